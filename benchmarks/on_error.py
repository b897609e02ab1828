"""What it costs to bear bad records: one operator partition, without Spark, with each `on_error` in turn.

    python -m benchmarks.on_error

Each subject processes the same epochs in this process, in turn, on RocksDB: a **counter** writes a value and gives a
row an event; **everything** writes a value, a map and a list, sets a timer, and gives a row. No event fails, but in the
last subject, where every hundredth does. Figures are the least of processor time, and ratios those of one run; as in a
keeper, no garbage is collected while an epoch runs.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import strandline as sl
from benchmarks._harness import emit, progress
from benchmarks._partition import open_partition, run_epoch
from strandline.runtime.partition import OperatorPartition
from strandline.runtime.task.task import EpochTimes
from strandline.testing import events
from strandline.types.datatypes import LongType
from strandline.types.murmur import spark_hash

BENCHMARK = "on_error"
KEYS = 10_000
_INPUT, _OUTPUT = "k bigint, v bigint", "k bigint, n bigint"


class Counter(sl.KeyedProcess):
    """Counts the events of each key; fails for those below zero."""

    n = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        self.n.value += 1
        if event.v < 0:
            raise ValueError("below zero")
        yield ctx.key, self.n.value


class Everything(sl.KeyedProcess):
    """Writes to several kinds of state; fails for events below zero."""

    n = sl.Value("bigint", default=0)
    by = sl.Map("bigint", "bigint")
    last = sl.List("bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        self.n.value += 1
        self.by[event.v % 10] = event.v
        self.last.append(event.v)
        ctx.timers.set_processing(ctx.now)
        if event.v < 0:
            raise ValueError("below zero")
        yield ctx.key, self.n.value

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> None:
        self.last.clear()


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: a function, what becomes of errors, and whether there are any."""

    make: Callable[[], sl.KeyedProcess]
    then: Any
    failing: bool = False


SUBJECTS = {
    f"{make.__name__.lower()}-{name}": Subject(make, then, failing)
    for make in (Counter, Everything)
    for name, then, failing in (
        ("fail", "fail", False),
        ("skip", "skip", False),
        ("dead-letter", "dead-letter", False),
        ("dead-letter-1%", "dead-letter", True),
    )
}


def opened(subject: Subject, directory: Path) -> OperatorPartition:
    """Return a partition that is ready for epochs."""
    end = events(_INPUT).key_by("k").process(subject.make(), _OUTPUT, uid="op", on_error=subject.then)
    return open_partition(BENCHMARK, end, directory)[1]


def rows_of(number: int, size: int, *, failing: bool) -> pa.RecordBatch:
    """Return an epoch's rows; if some are to fail, every hundredth."""
    keys = [at * 7919 % KEYS for at in range(number, number + size)]
    values = [-at if failing and at % 100 == 0 else at for at in range(1, size + 1)]
    groups = [spark_hash([key], [LongType()]) % 128 for key in keys]
    columns = [pa.array(groups, pa.int32()), pa.array(keys, pa.int64()), pa.array(values, pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["group", "k", "v"])


def main() -> None:
    """Measure all subjects in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_error", description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rows", type=int, default=50_000)
    given = parser.parse_args()
    progress(f"{BENCHMARK}: {given.epochs} epochs of {given.rows:,} rows, {KEYS:,} keys")
    gc.disable()
    good, bad = (rows_of(0, given.rows, failing=failing) for failing in (False, True))
    took: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    with tempfile.TemporaryDirectory() as scratch:
        there = {name: opened(subject, Path(scratch) / name) for name, subject in SUBJECTS.items()}
        for epoch in range(1, given.epochs + 1):
            for name, partition in there.items():
                rows = [bad if SUBJECTS[name].failing else good]
                gc.collect()
                took[name].append(run_epoch(partition, EpochTimes(None, epoch * 1000), rows))
    each = {name: min(times) for name, times in took.items()}
    for name, seconds in each.items():
        base = each[f"{name.partition('-')[0]}-fail"]
        emit(BENCHMARK, name, "throughput", round(given.rows / seconds), unit="events/s of processor time")
        emit(BENCHMARK, name, "ratio", round(base / seconds, 3), peer="fail")


if __name__ == "__main__":
    main()
