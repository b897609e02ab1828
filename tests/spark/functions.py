"""Process functions of the tests. Keepers import this module: nothing in here that needs Spark or pytest."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import strandline as sl


class Count(sl.KeyedProcess):
    """Count events a key: the state shows every event applied twice or not at all."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.seen.value += 1
        yield (ctx.key, self.seen.value)


class Lingering(Count):
    """Count, and take long for some events."""

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        if event.kind == "slow":
            time.sleep(6)
        return super().on_event(event, ctx)


class Held(Count):
    """Count, and wait for a file before some events."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        while event.kind == "slow" and not self._file.exists():
            time.sleep(0.02)
        return super().on_event(event, ctx)


class Slowly:
    """Returns what it is given; takes a second each time, and says so in a directory, if that is there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, user: str) -> str:
        if self._directory.exists():
            (self._directory / user).touch()
            time.sleep(1)
        return user


class CountAside(Count):
    """Count, also in an attribute."""

    def __init__(self) -> None:
        self.events = 0

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.events += 1
        return super().on_event(event, ctx)


class CountRecent(sl.KeyedProcess):
    """Count events a key, as long as each comes within ten seconds of event time after the one before."""

    seen = sl.Value("bigint", default=0, ttl=sl.TTL("10s", time="event"))

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.seen.value += 1
        yield (ctx.key, self.seen.value)


class CountText(sl.KeyedProcess):
    """Count, with a state of the same name and another type."""

    seen = sl.Value("string", default="0")

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.seen.value = str(int(self.seen.value) + 1)
        yield (ctx.key, int(self.seen.value))


class CountMore(sl.KeyedProcess):
    """Count, with the state of Count under another name and of a wider type."""

    count = sl.Value("decimal(20,0)", default=0, was="seen")
    last = sl.Value("string")

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.count.value += 1
        yield (ctx.key, int(self.count.value))


class CountList(sl.KeyedProcess):
    """Count, with a state of the same name and another kind."""

    seen = sl.List("bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.seen.append(event.v)
        yield (ctx.key, len(self.seen))


class CountWide(sl.KeyedProcess):
    """Count by several columns; gives the key back as it came."""

    seen = sl.Value("int", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.seen.value += 1
        yield (*ctx.key, self.seen.value)


LARGE = 90


class CountBatch(sl.KeyedBatchProcess):
    """Count and sum with whole columns; one row a key and batch. Large values are sent aside."""

    stats = sl.Value("struct<n: bigint, total: bigint>")

    def on_batch(self, batch: pa.RecordBatch, ctx: sl.BatchContext) -> pa.RecordBatch:
        keys, row_of = ctx.keys.unique()
        old = self.stats.get_many(keys)
        n = np.bincount(row_of, minlength=len(keys)) + old.field("n").fill_null(0).to_numpy()
        added = np.zeros(len(keys), np.int64)
        np.add.at(added, row_of, batch.column("v").to_numpy())
        total = added + old.field("total").fill_null(0).to_numpy()
        new = pa.StructArray.from_arrays([pa.array(n), pa.array(total)], names=["n", "total"])
        self.stats.put_many(keys, new)
        ctx.emit("large", batch.select(["v", "user"]).filter(pc.greater(batch.column("v"), LARGE)))
        return pa.RecordBatch.from_arrays([keys.columns[0], pa.array(n), pa.array(total)], names=["user", "n", "total"])


class Boom(sl.KeyedProcess):
    """Raise at one event, in a function below on_event."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.seen.value += 1
        yield (ctx.key, self.divide(event.v))

    def divide(self, v: int) -> int:
        return 100 // (v - 13)


class Hoard(sl.KeyedProcess):
    """Grow."""

    all = sl.List("string")

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        self.all.append("x" * 500)
