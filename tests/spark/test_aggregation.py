"""EpochFrames-in aggregates on a real Spark: the same as Spark's own group-by over the same rows."""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

import strandline as sl
from strandline.core.errors import ConfigurationError
from strandline.plan.aggregates import plan_results
from strandline.plan.columns import Columns
from strandline.spark.base.ddl import ddl_of
from strandline.spark.lower.reduction import BY_TASK, TOGETHER, Reduction
from strandline.types.datatypes import parse_type
from tests.soak import soaking
from tests.spark.harness import Case, begin_reducing, eventually, settle

pytestmark = pytest.mark.spark

SCHEMA = "ts timestamp, k string, g int, v bigint, x double, d decimal(10,2), s string"
AGGREGATES: dict[str, tuple[sl.agg.Aggregate, str]] = {
    "n": (sl.agg.count(), "count(1)"),
    "vn": (sl.agg.count("v"), "count(v)"),
    "total": (sl.agg.sum("v"), "sum(v)"),
    "twice": (sl.agg.sum("v * 2"), "sum(v * 2)"),
    "small": (sl.agg.sum("g"), "sum(g)"),
    "xs": (sl.agg.sum("x"), "sum(x)"),
    "ds": (sl.agg.sum("d"), "sum(d)"),
    "mean": (sl.agg.avg("v"), "avg(v)"),
    "dmean": (sl.agg.avg("d"), "avg(d)"),
    "lo": (sl.agg.min("s"), "min(s)"),
    "hi": (sl.agg.max("x"), "max(x)"),
    "most": (sl.agg.max("struct(s, x)"), "max(struct(s, x))"),
    "time_of_most": (sl.agg.max_by("ts", "struct(x, ts)"), "max_by(ts, struct(x, ts))"),
    "text_of_first": (sl.agg.min_by("s", "struct(ts, x, s)"), "min_by(s, struct(ts, x, s))"),
    "first_time": (sl.agg.min("ts"), "min(ts)"),
    "dev": (sl.agg.stddev("v"), "stddev_samp(v)"),
    "var": (sl.agg.var_pop("x"), "var_pop(x)"),
    "list": (sl.agg.collect_list("g"), "sort_array(collect_list(g))"),
    "set": (sl.agg.collect_set("s"), "sort_array(collect_set(s))"),
    "kinds": (sl.agg.count_distinct("s"), "count(distinct s)"),
}
KINDS = ["n", "total", "xs", "dmean", "hi", "most", "dev", "list", "kinds"]
"""One for each way in which accumulators become one; what all of them give is seen where they run on."""


def given(names: Iterable[str] = AGGREGATES) -> dict[str, sl.agg.Aggregate]:
    return {name: AGGREGATES[name][0] for name in names}


def own(names: Iterable[str] = AGGREGATES) -> list[Any]:
    """Return the same aggregates as Spark has them."""
    return [F.expr(AGGREGATES[name][1]).alias(name) for name in names]


def write_rows(directory: Path, number: int, count: int, start: int, more: Sequence[str] = ()) -> None:
    """Add an input file, with more lines; its rows' times go forward from `start`, in seconds, with some disorder."""
    draw = random.Random(number)
    lines = []
    for i in range(count):
        second = start + i * 20 // count - draw.choice([0, 0, 0, 2])
        lines.append(
            {
                "ts": f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.5Z", "k": f"k{draw.randrange(7)}",
                "g": draw.choice([None, 1, 2, 3]), "v": draw.choice([None, draw.randrange(-50, 50)]),
                "x": draw.choice([None, 0.5, 1.25, draw.random()]), "d": draw.choice([None, "1.25", "3.10", "7.77"]),
                "s": draw.choice([None, "a", "b", "ü"]),
            }
        )  # fmt: skip
    write_lines(directory, number, [*map(json.dumps, lines), *more])


def write_lines(directory: Path, number: int, lines: Iterable[str]) -> None:
    """Add an input file, which comes after those of lower numbers: Spark reads files by age."""
    directory.mkdir(parents=True, exist_ok=True)
    hidden = directory / f".{number:03d}.json"
    hidden.write_text("\n".join(lines))
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(directory / hidden.name[1:])


def source(spark: Any, directory: Path) -> sl.Stream:
    directory.mkdir(parents=True, exist_ok=True)
    return sl.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(directory)))


def start(spark: Any, case: Case, *outputs: tuple[sl.Stream, Any], trigger: str | None = None) -> sl.Run:
    return case.job_of("agg", *(stream.to(sink) for stream, sink in outputs), trigger=trigger).start(spark)


def plain(rows: Any) -> list[tuple[Any, ...]]:
    """Return rows to compare: lists sorted, doubles rounded, since sums of doubles depend on the order."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return sorted(value)
        return round(value, 9) if isinstance(value, float) else value

    return sorted((tuple(map(one, row)) for row in rows), key=repr)


SOME = {"n": sl.agg.count(), "total": sl.agg.sum("v")}
WINDOWS = [sl.Sliding("20s", every="5s", offset="2s"), sl.Session("1s")]


@pytest.mark.parametrize("reduce", [(True, False), *soaking([(True, True), (False, False)])], ids=str)
@pytest.mark.long
def test_aggregates_are_those_of_a_batch(spark: Any, case: Case, reduce: tuple[bool, ...], monkeypatch: Any) -> None:
    """Running, of sliding windows, of sessions, and by count, with a restart in between.

    Whether Spark aggregates first or not, and when it does no longer.
    """
    events = source(spark, case.root / "in").watermark("ts", "10s")
    running = events.where("g is not null").key_by("k", "g").agg(given(), uid="totals")
    timed = [events.key_by("k").window(window).agg(given(KINDS), uid=f"w{i}") for i, window in enumerate(WINDOWS)]
    counted = events.key_by("k", order_by=("ts", "v")).window(sl.Global(count=5)).agg(SOME, uid="counted")
    outputs = [(stream, sl.sinks.memory()) for stream in (running, *timed, counted)]
    totals, *in_windows, in_fives = (sink for _, sink in outputs)
    # Its time completes the windows of all others, without any event after it.
    last = '{"ts": "2026-01-01T00:10:00Z", "k": "last"}'
    for part, more in enumerate(([], [last])):
        begin_reducing(monkeypatch, reduce[part])
        write_rows(case.root / "in", part, 600, 10 + 15 * part, more)
        assert start(spark, case, *outputs, trigger="available-now").await_termination(120)
    grouped = batch_of(spark, case).where("g is not null").groupBy("k", "g").agg(*own())
    newest = {tuple(row[:2]): row for row in totals.rows}
    assert plain(newest.values()) == plain(grouped.collect())
    assert len(totals.rows) > len(newest)
    assert running.schema.simpleString() == grouped.schema.simpleString()
    for sink, window in zip(in_windows, WINDOWS, strict=True):
        assert plain(sink.rows) == plain(by_window(spark, case, window).collect())
    assert plain(in_fives.rows) == plain(by_fives(case))


# Without Spark: tests/testing/test_aggregates.py, test_triggers.py; a job whose timers are the clock's: test_event_time.py.
@pytest.mark.soak
def test_windows_by_the_clock(spark: Any, case: Case) -> None:
    """Each row is in one, whatever restarts there are; a burst's last result is the whole of it."""
    events = source(spark, case.root / "in").key_by("k")
    clock = events.window(sl.Tumbling("1s"), time="processing").agg(SOME, uid="clock")
    bursts = events.window(sl.Session("1s"), time="processing", early="500 ms").agg(SOME, uid="bursts")
    in_windows, in_bursts = sl.sinks.memory(name="clock"), sl.sinks.memory(name="bursts")

    def newest() -> dict[Any, int]:
        return {(row.k, row.window_start): row.n for row in in_bursts.rows}

    def given() -> tuple[int, int]:
        return sum(row.n for row in in_windows.rows), sum(newest().values())

    def all_given(run: sl.Run) -> bool:
        # Sooner, nothing is over that was not.
        time.sleep(0.5)
        run.checkpoint(60)
        return given() == (900, 900)

    for number in range(2):
        write_rows(case.root / "in", number, 450, 10)
        with start(spark, case, (clock, in_windows), (bursts, in_bursts)) as run:
            settle(run)
            if number == 1:
                eventually(lambda: all_given(run), "all windows and bursts", 60)
    assert given() == (900, 900)


def batch_of(spark: Any, case: Case) -> Any:
    return spark.read.schema(SCHEMA).json(str(case.root / "in")).where("k <> 'last'")


def by_window(spark: Any, case: Case, window: Any) -> Any:
    if isinstance(window, sl.Session):
        cut = F.session_window("ts", f"{window.gap_us} microseconds")
    else:
        sizes = (f"{us // 1_000_000} seconds" for us in (window.size_us, window.every_us, window.offset_us))
        cut = F.window("ts", *sizes)
    grouped = batch_of(spark, case).groupBy("k", cut.alias("w")).agg(*own(KINDS))
    return grouped.select("k", F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end"), *KINDS)


def by_fives(case: Case) -> list[tuple[Any, ...]]:
    """Return sums of each key's rows by five of them; an input file is an epoch, and within it they are in order."""
    seen: dict[str, list[int | None]] = defaultdict(list)
    for path in sorted((case.root / "in").glob("*.json")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in sorted(rows, key=lambda row: (row["ts"], row.get("v") is not None, row.get("v") or 0)):
            seen[row["k"]].append(row.get("v"))
    found = []
    for k, values in seen.items():
        for at in range(0, len(values) - 4, 5):
            given = [v for v in values[at : at + 5] if v is not None]
            found.append((k, 5, sum(given) if given else None))
    return found


def test_what_is_stored_is_found_by_the_results_names() -> None:
    columns = Columns.of("k string, v bigint")
    first = {"t": sl.agg.sum("v"), "u": sl.agg.max("v"), "m": sl.agg.avg("v"), "a b": sl.agg.min("v")}
    made = plan_results(columns, first, "x", no_type)
    again = plan_results(columns, dict(reversed(first.items())), "x", no_type)
    assert [*made.parts] == [*again.parts]
    assert [result.name for result in made.results] == [*first]
    assert sorted(map(repr, made.results)) == sorted(map(repr, again.results))
    kinds = "a_20_b_min_0", "m_avg_0", "m_avg_1", "t_sum_0", "u_max_0"
    assert [*made.parts] == [f"__strandline_{kind}" for kind in kinds]
    swapped = plan_results(columns, {**first, "t": sl.agg.max("v"), "u": sl.agg.sum("v")}, "x", no_type)
    assert {*swapped.parts} != {*made.parts}


class Blind(sl.sinks.Sink):
    """Reads nothing."""

    def write(self, df: Any, epoch: int) -> str | None:
        return None

    def commit(self, pending: Any) -> None:
        pass


@pytest.mark.parametrize(
    "sink", [Blind(name="blind"), sl.sinks.foreach_batch(lambda df, epoch: None)], ids=["sink", "function"]
)
def test_a_sink_may_read_nothing_of_what_each_task_has_aggregated(spark: Any, case: Case, sink: Any) -> None:
    for number in range(8):
        write_rows(case.root / "in", number, 100, 10)
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 4).json(str(case.root / "in"))
    totals = sl.stream(files).key_by("k").agg(SOME, uid="totals")
    with start(spark, case, (totals, sink)) as run:
        settle(run)
        assert run.status().restarts == 0
        assert sum(keeper.all_rows_in for keeper in run.glance().keepers) == 2 * 7 * 2


@pytest.mark.parametrize("by_task", [True, False])
def test_each_task_aggregates_its_rows_alone_or_all_do_together(
    spark: Any, case: Case, by_task: bool, monkeypatch: Any
) -> None:
    class Begun(Reduction):
        def __init__(self, *, possible: bool) -> None:
            super().__init__(possible=possible)
            self.level = BY_TASK if by_task else TOGETHER

    monkeypatch.setattr("strandline.spark.lower.plan.Reduction", Begun)
    for number in range(8):
        write_rows(case.root / "in", number, 100, 10)
    # Spark reads the four files of an epoch in two tasks.
    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 4).json(str(case.root / "in"))
    sink = sl.sinks.memory()
    with start(spark, case, (sl.stream(files).key_by("k").agg(given(), uid="totals"), sink)) as run:
        settle(run)
        rows_in = sum(keeper.all_rows_in for keeper in run.glance().keepers)
    # Two epochs, of seven keys.
    assert rows_in == (2 * 7 * 2 if by_task else 2 * 7)
    newest = {row[0]: row for row in sink.rows}
    assert plain(newest.values()) == plain(batch_of(spark, case).groupBy("k").agg(*own()).collect())


def no_type(expression: str, what: str) -> str:
    raise AssertionError(expression)


def test_aggregating_before_the_shuffle_goes_on_while_it_makes_rows_fewer() -> None:
    reduction = Reduction()
    reduction.observe(1000, 10)
    reduction.observe(0, 0)
    assert reduction.by_task
    pauses = []
    for _ in range(6):
        reduction.observe(1000, 900)
        # The rows of all tasks together may be fewer.
        assert reduction.level == TOGETHER
        reduction.observe(1000, 900)
        assert not reduction.on
        pauses.append(0)
        while not reduction.on:
            reduction.observe(1000, 1000)
            pauses[-1] += 1
        assert reduction.by_task
    assert pauses == [16, 32, 64, 128, 256, 256]
    reduction.observe(1000, 100)
    assert reduction.by_task
    reduction.observe(1000, 900)
    for _ in range(15):
        reduction.observe(1000, 100)
        assert reduction.level == TOGETHER
    reduction.observe(1000, 100)
    assert reduction.by_task
    reduction.observe(1000, 100)
    assert reduction.by_task


def test_expressions_that_cannot_be_aggregated_are_said_before_the_start(spark: Any, case: Case, capfd: Any) -> None:
    keyed = source(spark, case.root / "in").key_by("k")
    for message, column, make in (
        ("'n' does not fit the stream's columns", "nothing", sl.agg.sum),
        ("is over map<string,int>, expected something without maps", "map(s, 1)", sl.agg.count_distinct),
        ("'n' does not fit the stream's columns", "sum(v)", sl.agg.max),
        ("'n' does not fit the stream's columns", "explode(array(v))", sl.agg.max),
        ("aggregate 'n' is of a type that is not", "ts - date'2026-01-01'", sl.agg.max),
    ):
        with pytest.raises(sl.errors.ConfigurationError, match=message):
            keyed.agg(n=make(column), uid="n")
    # Each is said once, and not with the JVM's stack.
    assert capfd.readouterr() == ("", "")


COLUMNS = [
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)", "decimal(38,10)",
    "decimal(30,29)", "string", "binary", "date", "timestamp", "timestamp_ntz", "array<int>", "struct<a: int, b: string>",
]  # fmt: skip
OF_A_COLUMN = [
    sl.agg.count, sl.agg.sum, sl.agg.avg, sl.agg.min, sl.agg.max, sl.agg.stddev, sl.agg.var_pop, sl.agg.first,
    sl.agg.last, sl.agg.collect_list, sl.agg.collect_set, sl.agg.count_distinct, sl.agg.approx_count_distinct,
    lambda column: sl.agg.first(column, ignore_nulls=True), lambda column: sl.agg.max_by(column, "c0"),
    lambda column: sl.agg.min_by("c0", column), lambda column: sl.agg.approx_percentile(column, 0.5),
    lambda column: sl.agg.approx_percentile(column, [0.1, 0.9]),
]  # fmt: skip


def test_types_are_those_of_spark(spark: Any) -> None:
    """Of every aggregate of every column: the accumulator's, of many rows and of one, and the result's."""
    ddl = ", ".join(f"c{at} {kind}" for at, kind in enumerate(COLUMNS))
    columns, wanted, refused = Columns.of(ddl), {}, set()
    for make in OF_A_COLUMN:
        for at, kind in enumerate(COLUMNS):
            aggregate = make(f"c{at}")
            try:
                made = plan_results(columns, {"r": aggregate}, "op", no_type)
            except ConfigurationError:
                # What Spark computes all the same, of types that cannot be compared here or added up.
                refused.add(kind)
                continue
            wanted[whole(aggregate)] = parse_type(made.results[0].ddl)
            for part in made.parts.values():
                wanted[part.many] = part.type
                wanted[f"first(cast({part.one} as {part.type.ddl}))"] = part.type
    assert len(wanted) > 400
    assert not refused & {"int", "float", "decimal(10,2)"}
    asked = [F.expr(expression).alias(f"v{at}") for at, expression in enumerate(wanted)]
    given = spark.createDataFrame([], ddl).groupBy().agg(*asked).schema
    assert {
        expression: parse_type(ddl_of(field.dataType)) for expression, field in zip(wanted, given, strict=True)
    } == wanted


def whole(aggregate: Any) -> str:
    """Return Spark's own expression of an aggregate."""
    names = {"stddev": "stddev_samp", "variance": "var_samp"}
    c, kind = aggregate.column, aggregate.kind
    if kind == "count_distinct":
        return f"count(distinct {c})"
    if aggregate.by is not None:
        return f"{kind}({c}, {aggregate.by})"
    if kind == "approx_percentile":
        return f"approx_percentile({c}, {'array(0.5D)' if isinstance(aggregate.percentage, tuple) else '0.5D'})"
    return f"{names.get(kind, kind)}({c})"
