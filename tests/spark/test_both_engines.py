"""One plan, two engines: what a pipeline gives on Spark, it gives in the harness, epoch for epoch."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections import Counter
from typing import Any

import pytest

import strandline as sl
from strandline.testing import Harness, events
from tests.spark.harness import Case
from tests.spark.test_joins import SCHEMA, Event, add, at, source

pytestmark = pytest.mark.spark


class Seen(sl.KeyedProcess):
    """Numbers what it is given."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield event.order_id, event.v, event.next_v, self.seen.value


def branch(what: str) -> Any:
    return lambda event: [(event.order_id, event.at, event.v)] if event.what == what else []


def pipeline(rows: sl.Stream) -> dict[str, sl.Stream]:
    """A join by time of a branch with itself, a function of its own behind, and windows of windows, with what is late."""
    timed = rows.watermark("at", "3s", per="what")
    orders = timed.flat_map(branch("o"), "order_id bigint, at timestamp, v string").key_by("order_id", order_by="v")
    joined = orders.join(orders, ("1s", "5s"), uid="joined", how="left", prefixes=("", "next_"), parallelism=3)
    seen = joined.key_by("order_id", order_by=("v", "next_v")).process(
        Seen(), "order_id bigint, v string, next_v string, seen bigint", uid="seen"
    )
    windows = timed.key_by("what").window(sl.Sliding("10s", every="5s"), lateness="2s", late="late")
    counts = windows.agg(
        {"n": sl.agg.count(), "ids": sl.agg.count_distinct("order_id"), "most": sl.agg.max("v")},
        uid="counts",
        parallelism=1,
    )
    grand = counts.map(lambda row: ("all", row.n), "a string, n bigint").key_by("a").window(sl.Tumbling("10s"))
    return {
        "seen": seen,
        "counts": counts,
        "late": counts.side("late"),
        "grand": grand.agg(n=sl.agg.sum("n"), uid="grand"),
    }


def epochs(seed: int) -> list[list[Event]]:
    chance = random.Random(seed)
    first, second = (
        [
            (chance.choice("os"), chance.randrange(5), chance.randrange(begin, begin + 30), f"v{begin}-{n}")
            for n in range(40)
        ]
        for begin in (0, 20)
    )
    late = [("o", 1, 0, "late"), ("s", 1, 0, "late"), ("s", 1, 50, "in time")]
    return [first, second + late, [("o", 99, 500, "end"), ("s", 98, 500, "end")]]


def plain(rows: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(_plain, row)) for row in rows)


def _plain(value: Any) -> Any:
    return (
        value.astimezone(dt.UTC)
        if isinstance(value, dt.datetime)
        else repr(value)
        if isinstance(value, list)
        else value
    )


async def asked(row: Any) -> Any:
    """Ask nobody; later rows have their answers first."""
    await asyncio.sleep(0.001 if row.order_id % 2 else 0)
    return row.order_id, row.at, f"{row.v}/{row.ship_v}"


ROW = "order_id bigint, at timestamp, v string"


def combining(rows: sl.Stream) -> dict[str, sl.Stream]:
    """Streams that are brought together, each with a watermark of its own, and parts of windows."""
    orders, ships = (
        rows.flat_map(branch(what), ROW).watermark("at", delay) for what, delay in (("o", "3s"), ("s", "1s"))
    )
    by_order, by_ship = (some.key_by("order_id", order_by="v") for some in (orders, ships))
    rated = by_order.as_of_join(
        by_ship,
        uid="rated",
        how="left",
        max_age="20s",
        prefixes=("", "ship_"),
        late=("late_orders", "late_ships"),
    )
    whole = orders.union(ships).key_by("order_id", order_by="v")
    answers = rated.map_async(asked, ROW, concurrency=3, timeout="30s")
    parts = (
        answers.union(ships)
        .key_by("order_id", order_by="v")
        .window(sl.Tumbling("20s"), early=sl.Early("5s", time="event", events=2), lateness="5s", accumulate=False)
        .fold("vs string", "", lambda found, e: f"{found} {e.v}", uid="parts")
    )
    counted = whole.window(sl.Tumbling("20s"), early=sl.Early("5s", time="event", events=2), accumulate=False).agg(
        n=sl.agg.count(), vs=sl.agg.collect_list("v"), top=sl.agg.max("v"), uid="counted"
    )
    late = rated.side("late_orders").union(rated.side("late_ships"))
    return {"rated": rated, "counted": counted, "late for a rate": late, "parts": parts}


@pytest.mark.long
def test_a_pipeline_gives_the_same_in_both(spark: Any, case: Case) -> None:
    given = epochs(seed=1)
    expected: dict[str, Counter[tuple[Any, ...]]] = {}
    streams = everything(events(SCHEMA))
    for name in streams.keys() - {"late"}:
        with Harness(streams[name], parallelism=2) as h:
            for some in given:
                h.push(*((what, order, at(second), v) for what, order, second, v in some))
                h.tick()
            expected[name] = plain(h.output)
            if name == "counts":
                expected["late"] = plain(h.side("late"))
    assert all(expected.values()), expected
    for some in given:
        add(case, some)
    streams = everything(source(spark, case))
    sinks = {name: sl.sinks.memory(name=name) for name in streams}
    outputs = (streams[name].to(sink) for name, sink in sinks.items())
    assert case.job_of("both", *outputs, trigger="available-now").start(spark).await_termination(120)
    for name, sink in sinks.items():
        assert plain(sink.rows) == expected[name], name


def everything(rows: sl.Stream) -> dict[str, sl.Stream]:
    return pipeline(rows) | combining(rows)
