"""Two streams in one job: connected, and joined by time, through restarts, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import strandline as sl
from strandline.api.windows import Tumbling
from tests.spark.harness import Case, settle

pytestmark = pytest.mark.spark

SCHEMA = "what string, order_id bigint, at timestamp, v string"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
Event = tuple[str, int, int, str]


def add(case: Case, events: Sequence[Event]) -> None:
    """Add an input file, an epoch of its own: what, order, seconds, v."""
    directory = case.root / "in"
    directory.mkdir(exist_ok=True)
    names = ("what", "order_id", "at", "v")
    rows = [dict(zip(names, (w, o, at(s).isoformat(), v), strict=True)) for w, o, s, v in events]
    temporary = case.root / "next.json"
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # Spark reads files in the order of their times, and these are written within a millisecond.
    written = time.time() - 1000 + case.files
    os.utime(temporary, (written, written))
    temporary.rename(directory / f"{case.files:04}.json")
    case.files += 1


def at(seconds: int) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def source(spark: Any, case: Case) -> sl.Stream:
    (case.root / "in").mkdir(exist_ok=True)
    return sl.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(case.root / "in")))


def shown(sink: Any) -> Counter[tuple[Any, ...]]:
    """Return a sink's rows, times as seconds since the start."""
    return Counter(tuple(_seconds(value) for value in row) for row in sink.rows)


def _seconds(value: Any) -> Any:
    return int((value.astimezone(dt.UTC) - START).total_seconds()) if isinstance(value, dt.datetime) else value


class Match(sl.KeyedCoProcess):
    """Says what is known of the other stream, and counts both."""

    seen = sl.Value("bigint", default=0)
    status = sl.Value("string")

    def on_left(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield ctx.key, event["v"], self.status.value, self.seen.value

    def on_right(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        self.status.value = event.v
        ctx.emit("changes", (ctx.key, event.v))


@pytest.mark.long
def test_two_branches_of_one_source(spark: Any, case: Case) -> None:
    """Connected with state and sides; joined by interval, and by windows with what an operator gave."""
    sinks = {name: sl.sinks.memory(name=name) for name in ("matched", "changes", "joined", "windows")}

    def start() -> sl.Run:
        events = source(spark, case).watermark("at")
        orders = events.where("what = 'order'").select("order_id", "at", "v")
        ships = events.where("what = 'ship'").select_expr("order_id as id", "v", "at")
        # Within an epoch sorted by time, though it is two streams.
        by_order, by_id = orders.key_by("order_id", order_by="at"), ships.key_by("id", order_by="at")
        matched = by_order.connect(by_id).process(
            Match(), output="id bigint, v string, status string, seen bigint", uid="match",
            sides={"changes": "id bigint, status string"},
        )  # fmt: skip
        joined = by_order.join(by_id, ("-5s", "10s"), uid="join", how="full", prefixes=("", "ship_"))
        windows = matched.key_by("id").window_join(
            ships.select_expr("id", "v as ship").key_by("id"),
            Tumbling("20s"),
            uid="windows",
            how="left",
        )
        return case.job_of(
            "joins",
            matched.to(sinks["matched"]),
            matched.side("changes").to(sinks["changes"]),
            joined.to(sinks["joined"]),
            windows.to(sinks["windows"]),
        ).start(spark)

    first = [("order", 1, 10, "a"), ("order", 2, 11, "b"), ("ship", 1, 12, "sent"), ("order", 1, 14, "a2")]
    add(case, [*first, ("ship", 2, 21, "lost"), ("order", 3, 21, "c")])
    with start() as run:
        settle(run)
    other = ("other", 9, 100, "moves no watermark: nobody reads it")
    add(case, [("ship", 2, 5, "late"), ("order", 3, 33, "c2"), ("ship", 3, 30, "sent"), other, ("order", 9, 90, "z")])
    with start() as run:
        assert settle(run).restored_from == 1
    assert shown(sinks["changes"]) == Counter([(1, "sent"), (2, "lost"), (2, "late"), (3, "sent")])
    assert shown(sinks["matched"]) == Counter(
        [(1, "a", None, 1), (1, "a2", "sent", 3), (2, "b", None, 1), (3, "c", None, 1), (3, "c2", "sent", 3),
         (9, "z", None, 1)]
    )  # fmt: skip
    assert shown(sinks["joined"]) == Counter(
        [(1, 10, "a", 1, "sent", 12), (1, 14, "a2", 1, "sent", 12), (2, 11, "b", 2, "lost", 21),
         (3, 21, "c", 3, "sent", 30), (3, 33, "c2", 3, "sent", 30)]
    )  # fmt: skip
    assert shown(sinks["windows"]) == Counter(
        [(1, "a", None, 1, "sent", 0, 20), (1, "a2", "sent", 3, "sent", 0, 20), (2, "b", None, 1, None, 0, 20),
         (3, "c", None, 1, "sent", 20, 40), (3, "c2", "sent", 3, "sent", 20, 40)]
    )  # fmt: skip


class Label(sl.KeyedBroadcastProcess):
    """Says which label the broadcast stream has for each order, and once more when a timer fires."""

    labels = sl.Broadcast("bigint", "string")
    seen = sl.Value("bigint", default=0)

    def on_broadcast(self, event: Any, ctx: Any) -> None:
        self.labels[event.order_id % 10] = event.v

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        ctx.timers.set(ctx.timestamp + dt.timedelta(seconds=5))
        yield ctx.key, "event", self.seen.value, self.labels.get(ctx.key % 10)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield ctx.key, "timer", self.seen.value, self.labels.get(ctx.key % 10)


@pytest.mark.long
def test_rules_reach_every_partition_and_survive(spark: Any, case: Case) -> None:
    sink, wide = sl.sinks.memory(), sl.sinks.memory()

    def start(parallelism: int) -> sl.Run:
        events = source(spark, case)
        labels = events.where("what = 'label'").select("order_id", "v", "at")
        orders = events.where("what = 'order'").watermark("at").key_by("order_id", order_by="at")
        both, output = orders.broadcast(labels, order_by="at"), "id bigint, what string, seen bigint, label string"
        # Another operator hears the same rules, in more partitions.
        labelled = both.process(Label(), output, uid="label", parallelism=parallelism)
        more = both.process(Label(), output, uid="wide", parallelism=3)
        return case.job_of("joins", labelled.to(sink), more.to(wide)).start(spark)

    many = range(20)
    # The rule counts for all orders of its epoch, and of two the later one.
    add(case, [("order", n, 1, "") for n in many] + [("label", 3, 2, "new"), ("label", 3, 1, "old")])
    with start(1) as run:
        settle(run)
    first = Counter((n, "event", 1, "new" if n % 10 == 3 else None) for n in many)
    assert shown(sink) == shown(wide) == first
    add(case, [*(("order", n, 2, "") for n in many), ("label", 4, 1, "four"), ("order", 99, 7, "")])
    with start(2) as run:
        settle(run)
        # Timers fire with the epoch after, in which there are no rules: they see those from before.
        labels = {3: "new", 4: "four"}
        second = Counter((n, "event", 2, labels.get(n % 10)) for n in many)
        fired = Counter((n, "timer", 2, labels.get(n % 10)) for n in many)
        assert shown(sink) == shown(wide) == first + second + fired + Counter([(99, "event", 1, None)])
