"""Sketches: within their documented error of exact results, whoever made them, wherever they were merged and kept."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest

import strandline as sl
from strandline.api.windows import Sliding, Tumbling, windows_of
from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.runtime.operators.aggregates import sketches
from strandline.runtime.operators.aggregates.accumulators import Accumulators, FieldSpec, ResultSpec
from strandline.runtime.operators.aggregates.grouping import Groups
from strandline.runtime.rowlayout import TIME
from strandline.types.columns import to_arrow_type
from strandline.types.datatypes import parse_type
from strandline.types.murmur import key_group
from tests.runtime.aggregating import SECOND, Aggregating, Row, to_rows
from tests.runtime.bench import MAX_PARALLELISM
from tests.soak import BACKENDS

RSD, ACCURACY = 0.05, 100
LG_K, K = sketches.size_of("hll", RSD), sketches.size_of("kll", 1 / ACCURACY)
RANKS = (0.0, 0.25, 0.5, 0.9, 0.99, 1.0)
ABOUT = Accumulators(
    [
        FieldSpec("hv", "array<bigint>", f"hll_{LG_K}"),
        FieldSpec("hs", "binary", f"hll_{LG_K}"),
        FieldSpec("qv", "array<double>", f"kll_{K}"),
        FieldSpec("qs", "binary", f"kll_{K}"),
    ],
    [
        ResultSpec("about", "bigint", "approx_count_distinct", ("hv", "hs")),
        ResultSpec("ranks", "array<bigint>", "approx_percentile", ("qv", "qs"), RANKS),
    ],
)


def hash_of(value: int) -> int:
    """Return 64 mixed bits, as Spark's xxhash64 would."""
    mask = (1 << 64) - 1
    bits = (value * 0x9E3779B97F4A7C15) & mask
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & mask
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
    return (bits ^ (bits >> 31)) - (1 << 63)


def drawn(n: int, seed: int = 0) -> list[Row]:
    """Return rows of a few keys of unequal weight, in the order of time; the same ones each time."""
    draw = np.random.default_rng(seed)
    keys = draw.choice(["few", "some", "many"], n, p=[0.002, 0.098, 0.9]).tolist()
    values = draw.lognormal(6, 1, n).astype(np.int64).tolist()
    return [(k, i * 60 // n, None if i % 11 == 0 else v) for i, k, v in zip(count(), keys, values, strict=False)]


def cut(rows: Sequence[Row], size: int) -> list[Sequence[Row]]:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def one_by_one(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return accumulators as Spark gives them where it does not aggregate."""
    return [
        {"k": k, "t": t, "rows": 1, "hv": [] if v is None else [hash_of(v)], "hs": None,
         "qv": [] if v is None else [float(v)], "qs": None}
        for k, t, v in rows
    ]  # fmt: skip


def as_spark_does(rows: Sequence[Row], pane_us: int | None) -> list[dict[str, Any]]:
    """Return accumulators as Spark gives them where it aggregates: by key and pane, in the form that it writes."""
    parts: dict[Any, list[Row]] = defaultdict(list)
    for k, t, v in rows:
        parts[k, pane_us and t * SECOND // pane_us].append((k, t, v))
    made = []
    for (k, _), some in parts.items():
        values = [v for _, _, v in some if v is not None]
        hll, kll = datasketches.hll_sketch(LG_K), datasketches.kll_doubles_sketch(K)
        for v in values:
            hll.update(hash_of(v))
            kll.update(float(v))
        made.append(
            {"k": k, "t": max(t for _, t, _ in some), "rows": len(some), "hv": None, "qv": None,
             "hs": hll.serialize_updatable() if values else None, "qs": kll.serialize() if values else None}
        )  # fmt: skip
    return made


class Sketching(Aggregating):
    """A partition that aggregates into sketches."""

    def take(self, *parts: Sequence[dict[str, Any]], watermark: int | None = None) -> list[dict[str, Any]]:
        """Process an epoch of accumulators."""
        found = self.apply(map(self._batch, parts), None if watermark is None else watermark * SECOND)
        return [row for batch in found for row in to_rows(batch)]

    def made(self, rows: Sequence[Row], how: str) -> list[dict[str, Any]]:
        return as_spark_does(rows, self.pane_us) if how == "aggregated" else one_by_one(rows)

    def _batch(self, made: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        groups = [int(key_group((row["k"],), [parse_type("string")], MAX_PARALLELISM)) for row in made]
        columns: dict[str, pa.Array] = {"key_group": pa.array(groups, pa.int32())}
        if self.pane_us is not None:
            times = [row["t"] * SECOND for row in made]
            columns[TIME] = pa.array(times, pa.int64())
        columns["k"] = pa.array([row["k"] for row in made], pa.string())
        if self.pane_us is not None:
            columns["pane"] = pa.array([t - t % self.pane_us + self.pane_us for t in times], pa.int64())
        columns["rows"] = pa.array([row["rows"] for row in made], pa.int64())
        for field in ABOUT.fields:
            columns[field.name] = pa.array([row[field.name] for row in made], to_arrow_type(parse_type(field.ddl)))
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def assert_close(about: int, found: list[int] | None, values: Sequence[int | None], *, exact_to: int) -> None:
    """Compare with exact results: up to so many values they must be the same, beyond that within the error."""
    got = np.sort([v for v in values if v is not None])
    if not len(got):
        assert (about, found) == (0, None)
        return
    distinct = len(set(got.tolist()))
    assert abs(about - distinct) <= (0 if len(got) <= exact_to else 3 * RSD * distinct)
    assert (found[0], found[-1]) == (got[0], got[-1])
    for rank, value in zip(RANKS, found, strict=True):
        # Where a value comes often, any rank of it is right.
        low, high = (np.searchsorted(got, value, side) / len(got) for side in ("left", "right"))
        error = 0 if len(got) <= exact_to else 2 / ACCURACY
        assert value in got
        assert low - error <= rank <= high + error


@pytest.mark.parametrize("how", ["aggregated", "single"])
@pytest.mark.parametrize("cuts", [1, 7, 40])
def test_running_results_are_close_whatever_the_cuts(tmp_path: Path, how: str, cuts: int) -> None:
    bench = Sketching("rocksdb", tmp_path, accumulators=ABOUT)
    rows = drawn(12_000)
    seen: dict[str, list[int | None]] = defaultdict(list)
    for at, part in enumerate(cut(rows, len(rows) // cuts)):
        half = len(part) // 2
        found = bench.take(bench.made(part[:half], how), bench.made(part[half:], how))
        for k, _, v in part:
            seen[k].append(v)
        assert {row["k"] for row in found} == {k for k, _, _ in part}
        for row in found:
            assert_close(row["about"], row["ranks"], seen[row["k"]], exact_to=30)
        if at % 10 == 3:
            bench.restore(bench.snapshot(), bench.epoch)
    bench.close()


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize(
    ("window", "lateness"), [(Tumbling("20s"), 0), (Sliding("30s", every="10s"), 0), (Sliding("30s", every="10s"), 15)]
)
def test_windows_are_close_whoever_aggregated(tmp_path: Path, kind: str, window: Any, lateness: int) -> None:
    """In one epoch Spark aggregates, in the next it does not; between them, panes are written, restored and evicted."""
    bench = Sketching(kind, tmp_path, window, lateness, ABOUT)
    rows = drawn(9_000, seed=1)
    wanted: dict[Any, list[int | None]] = defaultdict(list)
    for k, t, v in rows:
        for w in windows_of(window, t * SECOND):
            wanted[k, w.start_us // SECOND, w.end_us // SECOND].append(v)
    found: dict[Any, dict[str, Any]] = {}
    for at, part in enumerate(cut(rows, 600)):
        table = bench.task.store._tables[0]
        table._cache_bytes = 0 if at % 3 else 1 << 20  # type: ignore[attr-defined]
        how = "aggregated" if at % 2 else "single"
        given = bench.take(bench.made(part, how), watermark=part[0][1])
        found |= {(row["k"], row["window_start"], row["window_end"]): row for row in given}
        if at % 4 == 1:
            bench.restore(bench.snapshot(), bench.epoch)
        elif at % 4 == 3:
            bench.write(bench.freeze())
    found |= {(row["k"], row["window_start"], row["window_end"]): row for row in bench.take(watermark=200)}
    assert found.keys() == wanted.keys()
    for at_window, row in found.items():
        assert_close(row["about"], row["ranks"], wanted[at_window], exact_to=30)
    bench.close()


def test_a_sketch_of_many_values_stays_small() -> None:
    values = [hash_of(i) for i in range(100_000)]
    lists = pa.array([values[i : i + 1000] for i in range(0, len(values), 1000)])
    everything = Groups(np.zeros(len(lists), np.int64), 1)
    left, made = sketches.merged(f"hll_{LG_K}", lists, pa.nulls(len(lists), pa.binary()), everything)
    assert left.to_pylist() == [[]]
    assert len(made[0].as_py()) <= 320
    doubles = lists.cast(pa.list_(pa.float64()), safe=False)
    left, made = sketches.merged(f"kll_{K}", doubles, pa.nulls(len(lists), pa.binary()), everything)
    assert left.to_pylist() == [[]]
    assert len(made[0].as_py()) <= 7000


def test_few_values_wait_for_a_sketch() -> None:
    none = pa.nulls(3, pa.binary())
    groups = Groups(np.array([1, 0, 1]), 3)
    lists = pa.array([[1, 2], None, [2, 3]], pa.list_(pa.int64()))
    left, made = sketches.merged("hll_9", lists, none, groups)
    assert (left.to_pylist(), made.to_pylist()) == ([[], [1, 2, 3], []], [None] * 3)
    assert sketches.distinct_counts("hll_9", left, made).to_pylist() == [0, 3, 0]
    left, made = sketches.merged("kll_64", lists.cast(pa.list_(pa.float64())), none, groups)
    assert left.to_pylist() == [[], [1.0, 2.0, 2.0, 3.0], []]
    assert sketches.percentiles("kll_64", left, made, (0.5,)).to_pylist() == [None, [2.0], None]
    one = pa.array([b"a sketch", None, None], pa.binary())
    assert sketches.merged("hll_9", lists, one, groups)[1].to_pylist() == [None, b"a sketch", None]


def test_sketches_of_other_sizes_merge() -> None:
    """Who changes rsd or accuracy goes on from the old sketches: their error stays until they are gone."""
    hashes = np.array([hash_of(i) for i in range(20_000)])
    old = sketches.Distinct(9)
    stored = old.write(old.read([], hashes[:15_000]))
    both = sketches.Distinct(12).read(
        [stored, sketches.Distinct(12).write(sketches.Distinct(12).read([], hashes[5000:]))], hashes[:0]
    )
    assert both.get_estimate() == pytest.approx(20_000, rel=0.15)
    values = np.arange(20_000.0)
    small, large = sketches.Quantiles(64), sketches.Quantiles(500)
    joined = large.read(
        [small.write(small.read([], values[:9000])), large.write(large.read([], values[9000:]))], values[:0]
    )
    assert joined.n == 20_000
    assert joined.get_quantile(0.5, True) == pytest.approx(10_000, abs=0.1 * 20_000)


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("int", [7, -3], [-3, 7]),
        ("bigint", [2**63 - 1, -(2**63)], [-(2**63), 2**63 - 1024]),
        ("float", [0.1], [np.float32(0.1)]),
        ("decimal(10,2)", [Decimal("12345678.91")], [Decimal("12345678.91")]),
        ("date", [dt.date(1969, 12, 31)], [dt.date(1969, 12, 31)]),
        ("timestamp", [dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)], [dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)]),
    ],
)  # fmt: skip
def test_percentiles_have_the_type_of_their_column(kind: str, values: list[Any], wanted: list[Any]) -> None:
    """They travel as doubles."""
    numbers = pa.array(values, to_arrow_type(parse_type(kind)))
    if kind == "date":
        numbers = numbers.cast(pa.int32())
    doubles = numbers.cast(pa.int64() if kind == "timestamp" else numbers.type).cast(pa.float64(), safe=False)
    fields = [FieldSpec("v", "array<double>", "kll_64"), FieldSpec("s", "binary", "kll_64")]
    results = [
        ResultSpec("all", f"array<{kind}>", "approx_percentile", ("v", "s"), (0.0, 1.0)),
        ResultSpec("low", kind, "approx_percentile", ("v", "s"), (0.0,)),
    ]
    about = Accumulators(fields, results)
    every, low = about.compute_results(
        [pa.array([doubles.to_pylist(), []], pa.list_(pa.float64())), pa.nulls(2, pa.binary())]
    )
    assert every.to_pylist() == [[wanted[0], wanted[-1]], None]
    assert low.to_pylist() == [wanted[0], None]
    assert low.type == to_arrow_type(parse_type(kind))


# What states of before hold: of three hashes, of twenty as Spark writes it, of a thousand.
GOLDEN_DISTINCT = {
    3: "02010707030803007519c20c6956c00adcceea0c",
    20: "030107090500000914000000000000008c963507e2fd57180000000000000000000000000000000071e98b09000000006956c00aaa25850a"
    "000000000cb1570a000000000000000082f16206107ff2073186d90b69c05d052a256704145c020b7519c20ce78162046c05aa0700000000"
    "00000000000000008103240edcceea0c77cadc0b9e463c079f44f707",
    1000: "0a01070700080102f63ebb47f65690400000000000952740000000000000000001000000000000003341722461324153035442a1413736"
    "3313481524334211833252238332414344252132331328173151429423224452252325a333513123622251373322333461",
}
# Of 1.5, and of 0 to 39.
GOLDEN_QUANTILES = {
    1: "02020f0408000800000000000000f83f",
    40: "05010f0008000800280000000000000008000300080000000a00000013000000000000000000000000000000008043400000000000804340"
    "00000000000043400000000000003440000000000000364000000000000038400000000000003a400000000000003c400000000000003e40"
    "00000000000040400000000000004140000000000000424000000000000008400000000000001c4000000000000024400000000000002c40"
    "0000000000003240",
}


def test_old_sketches_can_be_read() -> None:
    nothing = np.empty(0)
    for n, stored in GOLDEN_DISTINCT.items():
        hashes = np.array([hash_of(i) for i in range(n)])
        for values in (nothing, hashes):
            # The same hashes again are none that are new.
            found = sketches.Distinct(9).read([bytes.fromhex(stored)], values).get_estimate()
            assert found == pytest.approx(n, rel=0.1)
    for n, stored in GOLDEN_QUANTILES.items():
        sketch = sketches.Quantiles(8).read([bytes.fromhex(stored)], nothing)
        assert sketch.n == n
    assert sketch.get_quantiles([0.25, 0.5, 1.0], True) == [10.0, 18.0, 39.0]


def test_a_damaged_sketch_is_named_as_such() -> None:
    values = pa.array([[1.0]])
    with pytest.raises(CorruptionError, match=r"a sketch cannot be read: .* \(of 3 bytes"):
        sketches.percentiles("kll_64", values, pa.array([b"abc"]), (0.5,))
    with pytest.raises(CorruptionError, match=r"a sketch cannot be read: .* \(of 8 bytes"):
        sketches.distinct_counts("hll_9", pa.array([[1]]), pa.array([b"a sketch"]))


def test_without_the_library_a_program_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "datasketches", None)
    with pytest.raises(ConfigurationError, match="need the package datasketches") as caught:
        Accumulators(ABOUT.fields, ABOUT.results)
    assert "pip install 'strandline[sketches]'" in str(caught.value)
    Accumulators([FieldSpec("n", "bigint", "sum")], [])


def test_what_sizes_promise() -> None:
    for rsd in (0.001, 0.01, 0.05, 0.3):
        lg_k = sketches.size_of("hll", rsd)
        assert -datasketches.hll_sketch.get_rel_err(True, True, lg_k, 1) <= rsd
    assert (LG_K, K) == (9, 269)
    for accuracy in (4, 100, 10_000):
        k = sketches.size_of("kll", 1 / accuracy)
        assert datasketches.kll_doubles_sketch.get_normalized_rank_error(k, False) <= 1 / accuracy


@pytest.mark.parametrize("rsd", [0, 0.5, "0.1", True])
def test_an_rsd_out_of_range(rsd: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"rsd is .*, expected a number from"):
        sl.agg.approx_count_distinct("v", rsd=rsd)


@pytest.mark.parametrize("percentage", [1.5, -1, [], [0.5, 2], "0.5", None, True])
def test_a_percentage_out_of_range(percentage: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"percentage is .*, expected a number from 0 to 1, or a list"):
        sl.agg.approx_percentile("v", percentage)


def test_an_accuracy_out_of_range() -> None:
    with pytest.raises(ConfigurationError, match=r"accuracy is 0.01, expected a number from 1 to"):
        sl.agg.approx_percentile("v", 0.5, accuracy=0.01)  # type: ignore[arg-type]
