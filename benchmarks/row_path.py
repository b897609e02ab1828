"""What a row costs a keeper: one operator partition, without Spark, in microseconds of processor time a row.

    python -m benchmarks.row_path [--keys 500000] [--subjects narrow …]

Each subject counts and sums by key, in an output row for each event or each key, on RocksDB: **narrow** rows of two
numbers, with a struct of two numbers as its state; **wide** rows of numbers, texts, a time and an array, with a struct
of five columns as its state; and a **vectorised** function of the narrow rows. An epoch has half as many rows as there
are keys. `epoch` is the thread of the epochs: Arrow, function, state. `write` is the background's: changes into
RocksDB, with its flushes. Subjects take turns; figures are medians of the epochs after the warm-up. As in a keeper, no
garbage is collected while an epoch runs.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import strandline as sl
from benchmarks._counting import MULTIPLIER
from benchmarks._harness import emit, progress
from benchmarks._partition import open_partition, run_epoch, write
from benchmarks._peers import OUTPUT
from benchmarks.keyed_counter import BatchCounter, Counter
from strandline.backends.base import Backend
from strandline.runtime.partition import OperatorPartition
from strandline.runtime.task.task import EpochTimes
from strandline.testing import events

BENCHMARK = "row_path"
_BATCH_ROWS = 10_000
_WARM_UP = 4
_NARROW = "key bigint, value bigint"
_WIDE = "key string, value bigint, name string, price double, city string, at timestamp, tags array<string>"
_WIDE_OUTPUT = "key string, cnt bigint, sm bigint, name string, at timestamp"


class WideCounter(sl.KeyedProcess):
    """Keeps the newest name and time of a key besides its count and sum."""

    stats = sl.Value("struct<cnt: bigint, sm: bigint, name: string, price: double, at: timestamp>")

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        old = self.stats.value
        count, total = (old.cnt, old.sm) if old else (0, 0)
        self.stats.value = (count + 1, total + event.value, event.name, event.price, event.at)
        yield event.key, count + 1, total + event.value, event.name, event.at


@dataclass(frozen=True, slots=True)
class Subject:
    """A function, and what it gets and gives."""

    make: Callable[[], sl.KeyedProcess | sl.KeyedBatchProcess]
    columns: str
    output: str


SUBJECTS = {
    "narrow": Subject(Counter, _NARROW, OUTPUT),
    "wide": Subject(WideCounter, _WIDE, _WIDE_OUTPUT),
    "vectorised": Subject(BatchCounter, _NARROW, OUTPUT),
}


def opened(subject: Subject, directory: Path) -> tuple[Backend, OperatorPartition]:
    """Return a partition that is ready for epochs, and its backend."""
    end = events(subject.columns).key_by("key").process(subject.make(), subject.output, uid="op")
    return open_partition(BENCHMARK, end, directory, mode="incremental", memory_bytes=512 << 20)


def rows_of(epoch: int, size: int, keys: int, *, wide: bool) -> list[pa.RecordBatch]:
    """Return an epoch's rows: any `keys` consecutive rows have each key once, in scrambled order."""
    numbers = np.arange(epoch * size, (epoch + 1) * size, dtype=np.int64)
    key = numbers * MULTIPLIER % keys
    columns = {"group": pa.array((key % 128).astype(np.int32)), "key": pa.array(key), "value": pa.array(numbers)}
    if wide:
        texts = columns["key"].cast(pa.string())
        columns |= {
            "key": texts,
            "name": pa.array([f"name of {each}" for each in key.tolist()]),
            "price": pa.array(numbers / 7),
            "city": pa.array(["Trondheim", "Bergen"]).take(pa.array(numbers % 2)),
            "at": pa.array(numbers, pa.timestamp("us", "UTC")),
            "tags": pa.array([["a", "b"]] * size),
        }
    batches: list[pa.RecordBatch] = pa.Table.from_pydict(columns).to_batches(_BATCH_ROWS)
    return batches


def main() -> None:
    """Measure the subjects in turn."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{BENCHMARK}", description=__doc__)
    parser.add_argument("--subjects", nargs="+", default=list(SUBJECTS), choices=SUBJECTS)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--epochs", type=int, default=8)
    given = parser.parse_args()
    size = given.keys // 2
    progress(f"{BENCHMARK}: {given.epochs} epochs of {size:,} rows, {given.keys:,} keys")
    gc.disable()
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in given.subjects}
    with tempfile.TemporaryDirectory() as scratch:
        there = {name: opened(SUBJECTS[name], Path(scratch) / name) for name in given.subjects}
        for epoch in range(_WARM_UP + given.epochs):
            for name, (backend, partition) in there.items():
                rows = rows_of(epoch, size, given.keys, wide=name == "wide")
                gc.collect()
                seconds = run_epoch(partition, EpochTimes(None, epoch * 1000), rows), write(backend, partition)
                if epoch >= _WARM_UP:
                    took[name].append(seconds)
        for backend, _ in there.values():
            backend.close()
    for name, times in took.items():
        for metric, seconds in zip(("epoch", "write"), zip(*times, strict=True), strict=True):
            emit(BENCHMARK, name, metric, round(median(seconds) / size * 1e6, 2), unit="µs of processor time a row")


if __name__ == "__main__":
    main()
