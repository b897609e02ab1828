"""What it costs that a list's elements expire one by one: one operator partition, without Spark, on RocksDB.

    python -m benchmarks.list_ttl

Each subject processes the same epochs in this process, in turn: **append** adds an element an event, **read** adds one
and gives how many there are. Their lists have no TTL, one as a whole, or one for each element, by the clock and by
event time. A key gets an element in each epoch; with `--epochs 50`, its list is 50 long in the end. Figures are the
sum of processor time of the later half of the epochs, and ratios those of one run.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import strandline as sl
from benchmarks._harness import emit, progress
from benchmarks._partition import open_partition, run_epoch
from strandline.runtime.partition import OperatorPartition
from strandline.runtime.task.task import EpochTimes
from strandline.testing import events
from strandline.types.datatypes import LongType
from strandline.types.murmur import spark_hash

BENCHMARK = "list_ttl"
LISTS: dict[str, Any] = {
    "none": {},
    "whole": {"ttl": sl.TTL("1h"), "expires": "list"},
    "elements": {"ttl": sl.TTL("1h")},
    "elements-event-time": {"ttl": sl.TTL("1h", time="event")},
}


class _Listing(sl.KeyedProcess):
    """Adds to its list, and if it is to, looks at all of it."""

    reads = False
    seen: Any

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        self.seen.append(event.v)
        if self.reads:
            yield ctx.key, len(self.seen.get())


def made(name: str, *, reads: bool) -> sl.KeyedProcess:
    """Return a function with such a list."""
    kind: Any = type("Listing", (_Listing,), {"seen": sl.List("bigint", **LISTS[name]), "reads": reads})
    process: sl.KeyedProcess = kind()
    return process


def opened(process: sl.KeyedProcess, directory: Path) -> OperatorPartition:
    """Return a partition that is ready for epochs."""
    stream = events("k bigint, v bigint, ts timestamp").watermark("ts").key_by("k")
    return open_partition(BENCHMARK, stream.process(process, "k bigint, n bigint", uid="op"), directory)[1]


def rows_of(epoch: int, keys: int) -> pa.RecordBatch:
    """Return an epoch's rows, one a key, of which each has a time of its own."""
    groups = [spark_hash([key], [LongType()]) % 128 for key in range(keys)]
    times = pa.array(np.arange(keys) + epoch * 1_000_000)
    values = pa.array(np.arange(keys)), pa.array(np.arange(keys)), times.cast(pa.timestamp("us", "UTC"))
    arrays = [pa.array(groups, pa.int32()), times, *values]
    return pa.RecordBatch.from_arrays(arrays, names=["group", "time", "k", "v", "ts"])


def main() -> None:
    """Measure all subjects in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.list_ttl", description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--keys", type=int, default=20_000)
    given = parser.parse_args()
    progress(f"{BENCHMARK}: {given.epochs} epochs, {given.keys:,} keys")
    gc.disable()
    subjects = {
        f"{what}-{name}": partial(made, name, reads=what == "read") for what in ("append", "read") for name in LISTS
    }
    took = dict.fromkeys(subjects, 0.0)
    with tempfile.TemporaryDirectory() as scratch:
        there = {name: opened(make(), Path(scratch) / name) for name, make in subjects.items()}
        for epoch in range(1, given.epochs + 1):
            rows = rows_of(epoch, given.keys)
            for name, running in there.items():
                gc.collect()
                seconds = run_epoch(running, EpochTimes(epoch * 1_000_000, epoch * 1_000_000), [rows])
                if epoch > given.epochs // 2:
                    took[name] += seconds
    counted = (given.epochs - given.epochs // 2) * given.keys
    for name, seconds in took.items():
        base = took[f"{name.partition('-')[0]}-whole"]
        emit(BENCHMARK, name, "throughput", round(counted / seconds), unit="events/s of processor time")
        emit(BENCHMARK, name, "ratio", round(base / seconds, 3), peer="whole")


if __name__ == "__main__":
    main()
