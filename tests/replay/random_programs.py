"""Random pipelines over random events: chains of functions with state and timers, windows, joins, unions and broadcasts."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as F

import strandline as sl

SCHEMA = "k string, g int, v long, x double, at timestamp"
_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
Rows = list[dict[str, Any]]
Step = Callable[[random.Random, sl.Stream, sl.Stream, str], sl.Stream]


def rows_of(chance: random.Random, count: int, second: int) -> Rows:
    """Return events in a stretch of time, some of them late."""
    return [
        {
            "k": f"k{chance.randrange(7)}",
            "g": chance.randrange(3),
            "v": chance.randrange(100),
            "x": chance.random(),
            "at": (_START + dt.timedelta(seconds=second + chance.randrange(-6, 10))).isoformat(),
        }
        for _ in range(count)
    ]


class Mixed(sl.KeyedProcess):
    """Has every kind of state, and timers of both kinds; what it gives depends on the order of its events."""

    last = sl.Value("struct<v: bigint, x: double>")
    seen = sl.List("bigint")
    by_g = sl.Map("int", "double", ttl=sl.TTL("20s"))
    least = sl.Reducing("bigint", min)
    recent = sl.Value("double", ttl=sl.TTL("15s", time="event"))

    def on_event(self, event: Any, ctx: Any) -> Any:
        before = self.last.value
        self.last.value = (event.v, event.x)
        self.seen.append(event.v)
        self.by_g[event.g] = self.by_g.get(event.g, 0.0) + event.x
        self.least.add(event.v)
        self.recent.value = (self.recent.value or 0.0) * 0.5 + event.x
        if event.v % 3 == 0 and ctx.timestamp is not None:
            ctx.timers.set(ctx.timestamp + dt.timedelta(seconds=7))
        if event.v % 5 == 0:
            ctx.timers.set_processing(ctx.now + dt.timedelta(milliseconds=300))
        if event.v % 7 == 0:
            self.seen.clear()
        yield event.k, event.g, event.v + (before.v if before else 0), self.recent.value, event.at

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        last = self.last.value
        yield ctx.key, len(list(self.seen)), last.v, sum(value for _, value in sorted(self.by_g.items())), ctx.watermark


class Both(sl.KeyedCoProcess):
    """Remembers the newest of the right stream."""

    right = sl.Value("bigint", default=0)

    def on_left(self, event: Any, ctx: Any) -> Any:
        yield event.k, event.g, event.v + self.right.value, event.x, event.at

    def on_right(self, event: Any, ctx: Any) -> Any:
        self.right.value = self.right.value * 3 % 1009 + event.v


class Ruled(sl.KeyedBroadcastProcess):
    """Applies factors that a broadcast sets."""

    factors = sl.Broadcast("int", "bigint")
    count = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.count.value += 1
        yield event.k, event.g, event.v * (self.factors.get(event.g) or 1), self.count.value / 3, event.at

    def on_broadcast(self, event: Any, ctx: Any) -> Any:
        self.factors[event.g] = event.v


def process(chance: random.Random, one: sl.Stream, other: sl.Stream, uid: str) -> sl.Stream:
    order = chance.choice([(), ("at",), ("v", "x")])
    keyed = one.key_by(chance.choice(["k", "k"]), order_by=order)
    return keyed.process(Mixed(), SCHEMA, uid=uid)


def running(chance: random.Random, one: sl.Stream, other: sl.Stream, uid: str) -> sl.Stream:
    rows = one.key_by("k").agg(g=sl.agg.max("g"), v=sl.agg.sum("v"), x=sl.agg.avg("x"), at=sl.agg.max("at"), uid=uid)
    return rows.select("k", "g", "v", "x", "at")


def windows(chance: random.Random, one: sl.Stream, other: sl.Stream, uid: str) -> sl.Stream:
    kind = chance.choice([sl.Tumbling("5s"), sl.Sliding("8s", every="4s"), sl.Session("3s")])
    rows = (
        one.key_by("k")
        .window(kind, lateness=chance.choice(["0s", "4s"]))
        .agg(g=sl.agg.min("g"), v=sl.agg.count(), x=sl.agg.sum("x"), at=sl.agg.max("at"), uid=uid)
    )
    return rows.select("k", "g", "v", "x", "at")


def joined(chance: random.Random, one: sl.Stream, other: sl.Stream, uid: str) -> sl.Stream:
    left, right = one.key_by("k"), other.key_by("k")
    both = left.join(right, within=("-3s", "2s"), uid=uid, how=chance.choice(["inner", "left"]), prefixes=("", "r_"))
    return both.select("k", "g", "v", "x", "at")


def connected(chance: random.Random, one: sl.Stream, other: sl.Stream, uid: str) -> sl.Stream:
    return one.key_by("k").connect(other.key_by("k")).process(Both(), SCHEMA, uid=uid)


def ruled(chance: random.Random, one: sl.Stream, other: sl.Stream, uid: str) -> sl.Stream:
    return one.key_by("k").broadcast(other, order_by=("at", "v")).process(Ruled(), SCHEMA, uid=uid)


def united(chance: random.Random, one: sl.Stream, other: sl.Stream, uid: str) -> sl.Stream:
    return process(chance, one.union(other), other, uid)


def stateless(chance: random.Random, one: sl.Stream, uid: str) -> sl.Stream:
    kind = chance.randrange(4)
    if kind == 0:
        return one.where("v % 4 > 0")
    if kind == 1:
        return one.select("k", "g", (F.col("v") + F.col("g")).alias("v"), "x", "at")
    if kind == 2:
        return one.flat_map(lambda row: [row] * (row.v % 3), SCHEMA)
    return one


STEPS: list[Step] = [process, running, windows, joined, connected, ruled, united]


def build(seed: int, sources: list[Any]) -> dict[str, sl.Stream]:
    """Return the ends of a random pipeline, by name."""
    chance = random.Random(seed)
    several = len(sources) > 1
    streams = [sl.stream(df, name=f"s{at}" if several else None) for at, df in enumerate(sources)]
    timed = [stream.watermark("at", chance.choice(["0s", "3s"])) for stream in streams]
    rows, other = timed[0], timed[-1]
    ends = {}
    for number in range(chance.randint(1, 3)):
        rows = stateless(chance, rows, f"m{number}")
        rows = chance.choice(STEPS)(chance, rows, other, f"op{number}")
        if chance.random() < 0.3:
            ends[f"end{number}"] = rows
    return {**ends, "last": rows}
