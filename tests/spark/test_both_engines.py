"""One plan, two engines: what a pipeline gives on Spark, it gives in the harness, epoch for epoch."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import Any

import pytest

import strandline as sl
from strandline.testing import Harness, events
from tests.spark.harness import Case, settle
from tests.spark.test_joins import SCHEMA, Event, add, at, source

pytestmark = pytest.mark.spark


class Seen(sl.KeyedProcess):
    """Numbers what it is given, and sends each third aside."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        if self.seen.value % 3:
            yield event.order_id, event.v, event.ship_v, self.seen.value
        else:
            ctx.emit("thirds", (event.order_id, self.seen.value))


def branch(what: str) -> Any:
    return lambda event: [(event.order_id, event.at, event.v)] if event.what == what else []


def pipeline(rows: sl.Stream) -> dict[str, sl.Stream]:
    """A join by time of two branches, a function of its own behind, and windows of windows, with what is late."""
    timed = rows.watermark("at", "3s", per="what")
    orders, ships = (timed.flat_map(branch(what), "order_id bigint, at timestamp, v string") for what in ("o", "s"))
    joined = orders.key_by("order_id", order_by="v").join(
        ships.key_by("order_id", order_by="v"),
        ("-4s", "4s"),
        "joined",
        how="left",
        prefixes=("", "ship_"),
        parallelism=3,
    )
    seen = joined.key_by("order_id", order_by=("v", "ship_v")).process(
        Seen(),
        "order_id bigint, v string, ship_v string, seen bigint",
        "seen",
        sides={"thirds": "order_id bigint, n bigint"},
    )
    windows = timed.key_by("what").window(sl.Sliding("10s", every="5s"), lateness="2s", late="late")
    counts = windows.agg(
        {"n": sl.agg.count(), "ids": sl.agg.count_distinct("order_id"), "most": sl.agg.max("v")},
        uid="counts",
        parallelism=1,
    )
    grand = counts.map(lambda row: ("all", row.n), "a string, n bigint").key_by("a").window(sl.Tumbling("10s"))
    return {
        "seen": seen, "thirds": seen.side("thirds"), "counts": counts, "late": counts.side("late"),
        "grand": grand.sum("n", uid="grand"),
    }  # fmt: skip


def epochs(seed: int) -> list[list[Event]]:
    chance = random.Random(seed)
    found = [
        [
            (chance.choice("os"), chance.randrange(5), max(0, 8 * epoch - chance.randrange(30)), f"v{epoch}-{n}")
            for n in range(12)
        ]
        for epoch in range(6)
    ]
    return [*found, [("o", 1, 0, "late"), ("s", 1, 30, "in time")], [("o", 99, 500, "end"), ("s", 98, 500, "end")]]


def plain(rows: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(v.astimezone(dt.UTC) if isinstance(v, dt.datetime) else v for v in row) for row in rows)


def test_a_pipeline_gives_the_same_in_both(spark: Any, case: Case) -> None:
    given = epochs(seed=1)
    expected = {}
    streams = pipeline(events(SCHEMA))
    for name, side in (("seen", "thirds"), ("counts", "late"), ("grand", None)):
        with Harness(streams[name], parallelism=2) as h:
            for some in given:
                h.push(*((what, order, at(second), v) for what, order, second, v in some))
                h.tick()
            expected[name] = plain(h.output)
            if side is not None:
                expected[side] = plain(h.side(side))
    assert all(expected.values())
    for some in given:
        add(case, some)
    streams = pipeline(source(spark, case))
    sinks = {name: sl.sinks.memory(name=name) for name in streams}
    with case.job_of("both", *(streams[name].to(sink) for name, sink in sinks.items())).start(spark) as run:
        settle(run)
    assert {name: plain(sink.rows) for name, sink in sinks.items()} == expected
