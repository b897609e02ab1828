"""Operators one after the other that keep the key: in one task, with what a shuffle between them would give."""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import strandline as sl
from strandline.spark.keepers.exchange import Exchange
from tests.spark import small
from tests.spark.functions import Count
from tests.spark.harness import Case, fired, keepers_armed, settle

pytestmark = pytest.mark.spark

COUNTED = "user string, n bigint, v bigint"
SIDES = {"fifth": "user string, n bigint"}


class Counted(sl.KeyedProcess):
    """Count, and hand on the value; every fifth event of a key is also a row of a side output."""

    n = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        self.n.value += 1
        if self.n.value % 5 == 0:
            ctx.emit("fifth", {"user": event.user, "n": self.n.value})
        yield {"user": event.user, "n": self.n.value, "v": event.v}


class Totals(sl.KeyedBatchProcess):
    """Add up values in Arrow; each row gives the total of its batch and before."""

    total = sl.Value("bigint")

    def on_batch(self, batch: pa.RecordBatch, ctx: sl.BatchContext) -> pa.RecordBatch:
        keys, row_of = ctx.keys.unique()
        totals = [total or 0 for total in self.total.get_many(keys).to_pylist()]
        sums = []
        for key, v in zip(row_of.tolist(), batch.column("v").to_pylist(), strict=True):
            totals[key] += v
            sums.append(totals[key])
        self.total.put_many(keys, pa.array(totals, pa.int64()))
        return batch.append_column("total", pa.array(sums, pa.int64()))


class Deadly(Counted):
    """Count, and kill its keeper once, in the middle of an epoch."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        if event.v == 40 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().on_event(event, ctx)


class Straying(sl.KeyedProcess):
    """Says that it keeps the key, and does not."""

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        yield {"user": f"{event.user}'s friend", "n": 1, "v": event.v}


class Reminding(sl.KeyedProcess):
    """Gives each event now, and again by a timer when its time has passed."""

    def on_event(self, event: Any, ctx: sl.Context) -> Iterable[Any]:
        ctx.timers.set(event.at)
        yield {"user": ctx.key, "at": event.at}

    def on_timer(self, timer: Any, ctx: sl.Context) -> Iterable[Any]:
        yield {"user": ctx.key, "at": timer.timestamp}


@pytest.fixture
def routed(monkeypatch: Any) -> list[tuple[str, ...]]:
    """The keys of the shuffles that were planned."""
    keys: list[tuple[str, ...]] = []
    route = Exchange.route

    def note(self: Exchange, df: Any, by: Any, *given: Any) -> Any:
        keys.append(tuple(by))
        return route(self, df, by, *given)

    monkeypatch.setattr(Exchange, "route", note)
    return keys


def events(spark: Any, case: Case, files: int = 3) -> tuple[sl.Stream, list[tuple[str, int]]]:
    """Return a stream of events, and the events as users and values."""
    rows = [[(f"u{(i * i + file) % 11}", "a", i) for i in range(60)] for file in range(files)]
    for file, given in enumerate(rows):
        small.write_rows(case.root / "in", file, given)
    return sl.stream(small.source(spark, case.root / "in")), [(user, v) for given in rows for user, _, v in given]


def chain(stream: sl.Stream, *, keeps: bool) -> sl.Stream:
    """Return three operators in a row by user: by event, with a side output that nobody reads, by batch, and a fold."""
    counted = stream.key_by("user").process(Counted(), COUNTED, uid="counted", sides=SIDES, keeps_key=keeps)
    totals = counted.key_by("user").process(Totals(), f"{COUNTED}, total bigint", uid="totals", keeps_key=keeps)
    return totals.key_by("user").fold("most bigint, rows bigint", (0, 0), most, uid="most")


def most(value: Any, event: Any) -> Any:
    return max(value[0], event.total), value[1] + 1


def expected(given: list[tuple[str, int]]) -> Counter[tuple[Any, ...]]:
    rows: Counter[tuple[Any, ...]] = Counter()
    values: dict[str, list[int]] = defaultdict(list)
    for user, v in given:
        values[user].append(v)
        rows[user, sum(values[user]), len(values[user])] += 1
    return rows


@pytest.mark.parametrize("keeps", [True, False])
def test_a_chain_gives_what_shuffles_between_would_with_one_shuffle(
    spark: Any, case: Case, routed: list[Any], keeps: bool
) -> None:
    stream, given = events(spark, case)
    sink = sl.sinks.memory()
    rows_in: Counter[str] = Counter()
    with case.job_of("chain", chain(stream, keeps=keeps).to(sink)).start(spark) as run:
        settle(run)
        for keeper in run.glance().keepers:
            rows_in[keeper.uid] += keeper.all_rows_in
    assert rows_in == dict.fromkeys(("counted", "totals", "most"), len(given))
    assert small.rows_of(sink) == expected(given)
    assert set(routed) == {("user",)}
    assert len(routed) == (1 if keeps else 3)


def test_times_and_timers_pass_through_a_chain(spark: Any, case: Case, routed: list[Any]) -> None:
    stream, given = events(spark, case, files=1)
    results = []
    for keeps in (True, False):
        timed = stream.with_column("at", F.expr("timestamp_seconds(v)")).watermark("at", "0 s")
        reminded = timed.key_by("user").process(
            Reminding(), "user string, at timestamp", uid="reminded", keeps_key=keeps
        )
        windows = reminded.key_by("user").window(sl.Tumbling("20 s")).fold("n bigint", 0, plus_one, uid="windows")
        sink = sl.sinks.memory()
        with case.job_of(f"timed-{keeps}", windows.to(sink)).start(spark) as run:
            settle(run)
        results.append(small.rows_of(sink))
    assert len(routed) == 3
    assert results[0] == results[1]
    # Two of three windows are complete, and hold each event twice: as it came, and from its timer.
    assert sum(row[3] for row in results[0].elements()) == 2 * sum(v < 40 for _, v in given)


def plus_one(value: Any, event: Any) -> Any:
    return value + 1


def test_a_row_with_another_key_ends_the_job(spark: Any, case: Case) -> None:
    stream, _ = events(spark, case)
    stray = stream.key_by("user").process(Straying(), COUNTED, uid="stray", keeps_key=True)
    sink = sl.sinks.memory()
    job = case.job_of("stray", stray.key_by("user").process(Count(), small.OUTPUT, uid="count").to(sink))
    refused = pytest.raises(sl.errors.OutputError, match=r"operator 'stray' has keeps_key.*another key \(user\)")
    with refused, job.start(spark) as run:
        settle(run)
    assert not sink.rows


def test_a_chain_is_shuffled_where_its_rows_must_be(spark: Any, case: Case, routed: list[Any]) -> None:
    """Rows that others read, another parallelism, an order, another key."""
    stream, given = events(spark, case)
    counted = stream.key_by("user").process(Counted(), COUNTED, uid="counted", sides=SIDES, keeps_key=True)
    keyed = counted.key_by("user")
    sinks = {name: sl.sinks.memory() for name in ("same", "three", "ordered", "other", "fifth")}
    job = case.job_of(
        "mixed",
        keyed.process(Count(), small.OUTPUT, uid="same").to(sinks["same"]),
        keyed.process(Count(), small.OUTPUT, uid="three", parallelism=3).to(sinks["three"]),
        counted.key_by("user", order_by="n").process(Count(), small.OUTPUT, uid="ordered").to(sinks["ordered"]),
        counted.key_by("user", "n").agg(rows=sl.agg.count(), uid="other").to(sinks["other"]),
        counted.side("fifth").to(sinks["fifth"]),
    )
    with job.start(spark) as run:
        settle(run)
    # For "other", and for all the others and the first.
    assert routed.count(("user",)) == 4 * routed.count(("user", "n")) > 0
    counts = small.counted([user for user, _ in given])
    assert small.rows_of(sinks["same"]) == small.rows_of(sinks["three"]) == small.rows_of(sinks["ordered"]) == counts
    assert small.rows_of(sinks["fifth"]) == Counter(row for row in counts.elements() if row[1] % 5 == 0)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["keeper.epoch.middle", "keeper.applied"])
def test_a_chain_is_exact_when_its_keepers_are_killed(spark: Any, case: Case, moment: str) -> None:
    stream, given = events(spark, case)
    rows, marks = stream, [case.root / f"mark-{number}" for number in range(3)]
    for number, mark in enumerate(marks):
        rows = rows.key_by("user").process(Deadly(mark), COUNTED, uid=f"deadly-{number}", sides=SIDES, keeps_key=True)
    sink = sl.sinks.memory()
    job = case.job_of("deadly", rows.to(sink), restart=sl.Restart(attempts=20, delay="50ms"))
    with keepers_armed(spark, case.root / "armed", f"{moment}=kill@2"), job.start(spark) as run:
        settle(run)
    assert fired(case.root / "armed")
    assert all(mark.exists() for mark in marks)
    assert Counter((row.user, row.n) for row in sink.rows) == small.counted([user for user, _ in given])


@pytest.mark.long
def test_a_chain_goes_on_from_a_snapshot_without_one_and_at_another_parallelism(spark: Any, case: Case) -> None:
    _, given = events(spark, case)
    rows: Counter[tuple[Any, ...]] = Counter()
    for number, keeps in enumerate((False, True, True)):
        if number:
            small.write_rows(case.root / "in", 2 + number, [(f"u{i % 11}", "b", i) for i in range(30)])
            given += [(f"u{i % 11}", i) for i in range(30)]
        sink = sl.sinks.memory()
        job = case.job_of("chain", chain(sl.stream(small.source(spark, case.root / "in")), keeps=keeps).to(sink))
        with job.start(spark) as run:
            settle(run)
            if number == 2:
                run.rescale(3)
                small.write_rows(case.root / "in", 9, [(f"u{i % 11}", "b", i) for i in range(30)])
                given += [(f"u{i % 11}", i) for i in range(30)]
                settle(run)
        rows += small.rows_of(sink)
    assert rows == expected(given)
