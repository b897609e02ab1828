"""What tests of state that expires share: epochs at a time, what is stored, and functions whose states expire."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from strandline.api.process import KeyedProcess
from strandline.api.states import TTL, Aggregating, List, Map, Reducing, State, Value
from strandline.backends.heap import HeapBackend
from strandline.backends.rocksdb import RocksDBBackend
from strandline.runtime.program import state_infos
from tests.runtime.bench import BUDGET, Bench, Event, Everything, batch_of

S = 1_000_000
WAKE_S = 60


def epoch(
    bench: Bench,
    events: Sequence[Event] = (),
    *,
    now_s: float = 0,
    watermark_s: float | None = None,
    times_s: Sequence[float | None] = (),
    abort: bool = False,
) -> list[tuple[Any, ...]]:
    """Run an epoch at a time; return its rows."""
    made = []
    if events:
        batch = batch_of(events, bench.program.input_schema, bench.program.key_columns)
        if bench.program.layout.timed:
            stamps = pa.array([None if t is None else int(t * S) for t in times_s], pa.int64())
            batch = batch.add_column(1, "time", stamps)
        made.append(batch)
    watermark_us = None if watermark_s is None else int(watermark_s * S)
    batches = bench.apply(made, watermark_us, int(now_s * S), abort=abort)
    return [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


def answers(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [row[1] for row in rows]


def stored(bench: Bench) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return what a snapshot holds, by state; states without entries are left out."""
    directory = bench.place()
    directory.mkdir()
    for file in bench.snapshot():
        shutil.copyfile(file.path, directory / file.name)
    names = [info.name for info in state_infos(bench.process)]
    backend: Any = (
        RocksDBBackend(directory, names, memory=BUDGET)
        if bench.kind == "rocksdb"
        else HeapBackend(directory, names, inline=False, limit_bytes=None)
    )
    found = {name: list(backend.scan(name)) for name in names}
    backend.close()
    return {name: entries for name, entries in found.items() if entries}


class Living(Everything):
    """Everything, with one TTL for all of it."""

    def __init__(self, ttl: TTL | None, expires: Any = "element") -> None:
        mean = Everything.__dict__["mean"]
        self.own_states: dict[str, State] = {
            "value": Value("bigint", default=7, ttl=ttl),
            "pair": Value("struct<a: bigint, s: string>", ttl=ttl),
            "tags": Value("array<bigint>", ttl=ttl),
            "history": List("bigint", ttl=ttl, expires="element" if ttl is None else expires),
            "by_kind": Map("bigint", "bigint", ttl=ttl),
            "top": Reducing("bigint", max, ttl=ttl),
            "mean": Aggregating(mean.value_type, create=mean.create, add=mean.add, result=mean.result, ttl=ttl),
        }


class Asked(KeyedProcess):
    """Keeps and gives what it is told; of two states one expires."""

    plain = Value("bigint")
    short = Value("bigint", default=-1, ttl=TTL("10s"))
    tags = Value("array<bigint>", default=[0], ttl=TTL("10s"))
    log = List("bigint", ttl=TTL("10s"))
    seen = Map("bigint", "bigint", ttl=TTL("10s"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.op == "set":
            self.plain.value = self.short.value = event.a
            self.tags.value = [event.a]
            self.log.append(event.a)
            self.seen[event.a] = event.b
        if event.op == "append":
            self.log.append(event.a)
        if event.op == "clear":
            self.short.clear()
            self.log.clear()
            self.seen.clear()
        one = self.plain.value, self.short.value, self.short.exists(), self.tags.value
        yield ctx.key, repr((one, list(self.log), len(self.log), bool(self.log), dict(self.seen), len(self.seen)))
