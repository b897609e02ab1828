"""Every kind of operator knows which of its keys has the most rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.runtime.heavykeys import HeavyKeys
from strandline.runtime.task import task
from strandline.testing import Harness, events
from tests.testing.times import at

COLUMNS = "card string, n bigint, ts timestamp"
ROWS = [("hot" if n % 2 else f"c{n}", n, at(n % 60)) for n in range(600)]


class Keep(sl.KeyedProcess):
    """Keeps the last number."""

    last = sl.Value("bigint")

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        self.last.value = event.n


class KeepAll(sl.KeyedBatchProcess):
    """Keeps the last numbers of a batch."""

    last = sl.Value("bigint")

    def on_batch(self, batch: pa.RecordBatch, ctx: sl.BatchContext) -> None:
        self.last.put_many(ctx.keys, batch["n"], last=True)


class Pair(sl.KeyedCoProcess):
    """Keeps the last number of either side."""

    last = sl.Value("bigint")

    def on_left(self, event: Any, ctx: sl.Context) -> None:
        self.last.value = event.n

    def on_right(self, event: Any, ctx: sl.Context) -> None:
        self.last.value = event.n


def source(name: str) -> Any:
    return events(COLUMNS, name).watermark("ts").key_by("card")


LEFT, RIGHT = source("left"), source("right")
PREFIXES = ("", "r_")
PIPELINES = {
    "process": LEFT.process(Keep(), COLUMNS, uid="op"),
    "vectorised": LEFT.process(KeepAll(), COLUMNS, uid="op"),
    "running aggregates": LEFT.agg(n=sl.agg.sum("n"), uid="op"),
    "windows": LEFT.window(sl.Tumbling("1s")).agg(n=sl.agg.sum("n"), uid="op"),
    "sessions": LEFT.window(sl.Session("1s")).agg(n=sl.agg.sum("n"), uid="op"),
    "fold": LEFT.fold("n bigint", 0, lambda n, row: n + row.n, uid="op"),
    "connect": LEFT.connect(RIGHT).process(Pair(), COLUMNS, uid="op"),
    "interval join": LEFT.join(RIGHT, ("0s", "1s"), uid="op", prefixes=PREFIXES),
    "window join": LEFT.window_join(RIGHT, sl.Tumbling("1s"), uid="op", prefixes=PREFIXES),
    "as-of join": LEFT.as_of_join(RIGHT, uid="op", prefixes=PREFIXES),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_each_kind_of_operator_names_its_hot_key(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[HeavyKeys] = []

    class Recorded(HeavyKeys):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(task, "HeavyKeys", Recorded)
    with Harness(PIPELINES[kind], parallelism=2) as h:
        for start in range(0, len(ROWS), 60):
            h.push(left=ROWS[start : start + 60])
            h.advance_clock("1s")
        first, second = sorted(made, key=lambda each: len(each.heaviest()[:1]) and each.heaviest()[0].share)
    (hot, *_) = second.heaviest()
    assert hot.key == {"card": "hot"}
    assert hot.share * second.rows == pytest.approx((first.rows + second.rows) / 2, rel=0.05)
    assert all(each.key != {"card": "hot"} for each in first.heaviest())
