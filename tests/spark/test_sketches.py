"""Approximate aggregates on a real Spark: its sketches are the library's, and results are close to exact ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F

import strandline as sl
from strandline.runtime.operators.aggregates import sketches
from tests.soak import soaking
from tests.spark.harness import Case, begin_reducing
from tests.spark.test_aggregation import start, write_lines

pytestmark = pytest.mark.spark

RSD, ACCURACY = 0.05, 100
RANKS = [0.0, 0.5, 0.99, 1.0]
SCHEMA = "ts timestamp, k string, user string, v bigint, x double, d decimal(12,2)"
GIVEN = {
    "users": sl.agg.approx_count_distinct("user"),
    "xs": sl.agg.approx_count_distinct("x", rsd=0.02),
    "median": sl.agg.approx_percentile("v", 0.5),
    "vs": sl.agg.approx_percentile("v", RANKS),
    "x_high": sl.agg.approx_percentile("x * 2", 0.9),
    "ds": sl.agg.approx_percentile("d", [0.5]),
    "day": sl.agg.approx_percentile("to_date(ts)", 0.5),
    "times": sl.agg.approx_percentile("ts", [0.0, 1.0]),
    "n": sl.agg.count(),
}


def write_rows(directory: Path, number: int, count: int, more: Sequence[str] = ()) -> None:
    """Add an input file: 20 s of rows, each file after the one before, and more lines."""
    draw = np.random.default_rng(number)
    lines = []
    for i in range(count):
        second = number * 20 + i * 20 // count
        v = int(draw.lognormal(7, 1))
        row = {
            "ts": f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.25Z", "k": "few" if i % 100 == 0 else f"k{i % 2}",
            "user": f"u{draw.integers(2000)}", "v": v, "x": v / 8, "d": f"{v / 4:.2f}",
        }  # fmt: skip
        if i % 13 == 0:
            row |= {"user": None, "v": None, "x": "NaN", "d": None}
        lines.append(json.dumps(row))
    write_lines(directory, number, [*lines, *more])


def source(spark: Any, directory: Path) -> sl.Stream:
    directory.mkdir(parents=True, exist_ok=True)
    return sl.stream(spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(directory)))


def exact(spark: Any, directory: Path, window: Any) -> dict[Any, Any]:
    """Return the values of each key, or of each key and window."""
    batch = spark.read.schema(SCHEMA).json(str(directory)).where("k <> 'last'")
    keys = [F.col("k")]
    if window is not None:
        keys.append(F.window("ts", "40 seconds", "20 seconds").start.alias("start"))
    columns = [F.collect_list(name).alias(name) for name in ("user", "v", "d", "ts")]
    doubles = F.collect_list(F.nanvl("x", F.lit(None))).alias("x")
    grouped = batch.groupBy(*keys).agg(*columns, doubles, F.count(F.lit(1)).alias("n"))
    return {tuple(row[: len(keys)]): row for row in grouped.collect()}


def check(found: Any, wanted: Any) -> None:
    assert found.n == wanted.n
    distinct = len(set(wanted.user))
    assert abs(found.users - distinct) <= 3 * RSD * distinct
    # NaN is a value here, as in Spark's own.
    distinct = len(set(wanted.x)) + 1
    assert abs(found.xs - distinct) <= 3 * 0.02 * distinct
    check_ranks(wanted.v, [0.5], [found.median])
    check_ranks(wanted.v, RANKS, found.vs)
    assert (found.vs[0], found.vs[-1]) == (min(wanted.v), max(wanted.v))
    check_ranks([x * 2 for x in wanted.x], [0.9], [found.x_high])
    check_ranks(wanted.d, [0.5], found.ds)
    assert found.day.isoformat() == "2026-01-01"
    assert found.times == [min(wanted.ts), max(wanted.ts)]


def check_ranks(values: list[Any], ranks: list[float], found: list[Any]) -> None:
    """The bound holds for 99 of 100 results: twice of it for all."""
    got = sorted(values)
    for rank, value in zip(ranks, found, strict=True):
        assert value in got
        low, high = (np.searchsorted(got, value, side) / len(got) for side in ("left", "right"))
        assert low - 2 / ACCURACY <= rank <= high + 2 / ACCURACY


WINDOWS = {"running": None, "sliding": sl.Sliding("40s", every="20s")}


@pytest.mark.parametrize("reduce", [(True, False), *soaking([(True, True), (False, False)])], ids=str)
@pytest.mark.long
def test_results_are_close_to_exact_ones(
    spark: Any, case: Case, reduce: tuple[bool, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Across a restart, whether Spark aggregates first or not, and when it does no longer."""
    directory = case.root / "in"
    keyed = source(spark, directory).watermark("ts").key_by("k")
    sinks = {name: sl.sinks.memory(name=name) for name in WINDOWS}
    streams = {
        name: (keyed if window is None else keyed.window(window)).agg(GIVEN, uid=name)
        for name, window in WINDOWS.items()
    }
    for part, more in enumerate(([], ['{"ts": "2026-01-01T01:00:00Z", "k": "last"}'])):
        begin_reducing(monkeypatch, reduce[part])
        write_rows(directory, part, 3000, more)
        outputs = ((streams[name], sinks[name]) for name in WINDOWS)
        assert start(spark, case, *outputs, trigger="available-now").await_termination(120)
    for name, window in WINDOWS.items():
        wanted = exact(spark, directory, window)
        found = {(row.k,) if window is None else (row.k, row.window_start): row for row in sinks[name].rows}
        assert {at for at in found if at[0] != "last"} == wanted.keys()
        for at, row in wanted.items():
            check(found[at], row)
    types = dict(spark.read.schema(SCHEMA).json(str(directory)).groupBy("k").agg(*own()).dtypes)
    for stream in streams.values():
        assert {name: type for name, type in dict_of(stream).items() if name in types} == types


def own() -> list[Any]:
    """Return Spark's aggregates, for their types."""
    expressions = {
        "users": "approx_count_distinct(user)", "median": "approx_percentile(v, 0.5)", "ds": "approx_percentile(d, array(0.5))",
        "vs": "approx_percentile(v, array(0.5, 1.0))", "x_high": "approx_percentile(x, 0.9)",
        "day": "approx_percentile(to_date(ts), 0.5)", "times": "approx_percentile(ts, array(0.0))",
    }  # fmt: skip
    return [F.expr(sql).alias(name) for name, sql in expressions.items()]


def dict_of(stream: sl.Stream) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in stream.schema.fields}


SIZES = (1, 5, 30, 300, 20_000)


def test_sketches_of_spark_and_of_the_library_are_the_same(spark: Any) -> None:
    """Each reads and merges what the other wrote, and hashes what the other hashed."""
    hll, kll = sketches.Distinct(9), sketches.Quantiles(269)
    made: list[Any] = []
    nothing = np.empty(0)
    for n in SIZES:
        values = spark.range(n).selectExpr("xxhash64(id) h", "cast(id as double) x")
        row = values.selectExpr(
            "hll_sketch_agg(h, 9) hll", "kll_sketch_agg_double(x, 269) kll", "collect_list(h) h", "collect_list(x) x"
        ).first()
        theirs = bytes(row.hll), bytes(row.kll)
        hashes, doubles = np.array(row.h), np.array(row.x)
        ours = hll.write(hll.read([], hashes)), kll.write(kll.read([], doubles))
        estimate = hll.read([theirs[0]], nothing).get_estimate()
        assert estimate == pytest.approx(n, rel=0.15)
        # The same values again, hashed here, are none that are new.
        again = hll.read([theirs[0], ours[0]], hashes)
        assert again.get_estimate() == pytest.approx(estimate, rel=0.1)
        read, both = kll.read([theirs[1]], nothing), kll.read(list(theirs[1:] + ours[1:]), doubles)
        assert (read.n, both.n) == (n, 3 * n)
        for sketch in (read, both):
            assert sketch.get_quantile(0.5, True) == pytest.approx(n / 2, abs=max(1, 0.03 * n))
        made.append((n, *map(bytearray, (*theirs, *ours))))
    back = spark.createDataFrame(made, "n bigint, h binary, q binary, our_h binary, our_q binary").selectExpr(
        "n", "hll_sketch_estimate(h) theirs", "hll_sketch_estimate(our_h) ours", "hll_sketch_estimate(hll_union(h, our_h)) u",
        "kll_sketch_get_quantile_double(our_q, 0.5D) median", "kll_sketch_get_n_double(kll_sketch_merge_double(q, our_q)) n2",
    )  # fmt: skip
    for row in back.collect():
        assert row.ours == pytest.approx(row.n, rel=0.15)
        assert row.u == pytest.approx(row.theirs, rel=0.1)
        assert row.median == pytest.approx(row.n / 2, abs=max(1, 0.03 * row.n))
        assert row.n2 == 2 * row.n


def test_percentiles_of_one_column_share_a_sketch(spark: Any, case: Case) -> None:
    agg = source(spark, case.root / "in").key_by("k").agg
    once = agg(a=sl.agg.approx_percentile("v", 0.5), uid="n")._node
    twice = agg(a=sl.agg.approx_percentile("v", 0.5), b=sl.agg.approx_percentile("v", [0.9]), uid="n")._node
    other = agg(a=sl.agg.approx_percentile("v", 0.5), b=sl.agg.approx_percentile("v", 0.5, accuracy=10), uid="n")._node
    fields = [len(node.parent.columns.names) for node in (once, twice, other)]  # type: ignore[union-attr]
    assert fields == [fields[0], fields[0], fields[0] + 2]


def test_what_has_no_sketch_is_said_before_the_start(spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = source(spark, case.root / "in").key_by("k")
    with pytest.raises(sl.errors.ConfigurationError, match=r"is over array<bigint>, expected a number"):
        keyed.agg(q=sl.agg.approx_percentile("array(v)", 0.5), uid="n")
    with pytest.raises(sl.errors.ConfigurationError, match=r"of a type that is not supported: .*interval"):
        keyed.agg(q=sl.agg.approx_percentile("ts - ts", 0.5), uid="n")
    for collated in ("k collate UTF8_LCASE", "struct(k collate UNICODE_CI)"):
        with pytest.raises(sl.errors.ConfigurationError, match=r"of a type that is not supported: .*collate"):
            keyed.agg(q=sl.agg.approx_count_distinct(collated), uid="n")
        keyed.agg(n=sl.agg.count(collated), d=sl.agg.approx_count_distinct("k collate UTF8_BINARY"), uid="n")
    with pytest.raises(sl.errors.ConfigurationError, match=r"'q' does not fit .*HASH_VARIANT_TYPE"):
        keyed.agg(q=sl.agg.approx_count_distinct("parse_json(k)"), uid="n")
    monkeypatch.setattr(sketches, "datasketches", None)
    with pytest.raises(sl.errors.ConfigurationError, match="need the package datasketches"):
        keyed.agg(q=sl.agg.approx_percentile("v", 0.5), uid="n")


def test_columns_of_any_type_have_distinct_values(spark: Any, case: Case) -> None:
    columns = ["true", "1Y", "x", "d", "ts", "to_date(ts)", "cast(k as binary)", "struct(k, v)", "array(v)"]
    given = {f"c{at}": sl.agg.approx_count_distinct(column) for at, column in enumerate(columns)}
    stream = source(spark, case.root / "in").key_by("k").agg(given, uid="n")
    assert set(dict_of(stream).values()) == {"string", "bigint"}
