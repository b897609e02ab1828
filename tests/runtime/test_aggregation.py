"""Built-in aggregates in a partition, against plain Python: whatever the cuts, aborts, restores and evictions."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.windows import Sliding, Tumbling, windows_of
from strandline.core.ids import Epoch
from strandline.format.columns import to_arrow_type
from strandline.format.murmur import key_group
from strandline.format.types import parse_type
from strandline.runtime import sketches
from strandline.runtime.aggregates import Accumulators, FieldSpec, ResultSpec
from strandline.runtime.aggregation import RunningAggregation, WindowedAggregation
from strandline.runtime.outputs import TIME
from tests.runtime.bench import KINDS, MAX_PARALLELISM, Bench
from tests.soak import examples

SECOND = 1_000_000
FIELDS = [
    FieldSpec("n", "bigint", "sum"),
    FieldSpec("vn", "bigint", "sum"),
    FieldSpec("vs", "double", "sum"),
    FieldSpec("total", "bigint", "sum"),
    FieldSpec("lo", "bigint", "min"),
    FieldSpec("hi", "double", "max"),
    FieldSpec("m0", "bigint", "moments"),
    FieldSpec("m1", "double", "moments"),
    FieldSpec("m2", "double", "moments"),
    FieldSpec("one", "bigint", "first"),
    FieldSpec("end", "bigint", "last_valid"),
    FieldSpec("all", "array<bigint>", "joined"),
    FieldSpec("some", "array<bigint>", "united"),
    FieldSpec("d", "decimal(20,2)", "sum"),
    FieldSpec("txt", "string", "max"),
    FieldSpec("hv", "array<bigint>", "hll_9"),
    FieldSpec("hs", "binary", "hll_9"),
    FieldSpec("qv", "array<double>", "kll_64"),
    FieldSpec("qs", "binary", "kll_64"),
    FieldSpec("txt_at", "string", "min_by"),
    FieldSpec("at", "struct<a: double, b: string>", "min_by"),
    FieldSpec("num_at", "bigint", "max_by"),
    FieldSpec("num", "decimal(20,2)", "max_by"),
]
RESULTS = [
    ResultSpec("count", "bigint", "count", ("n",)),
    ResultSpec("avg", "double", "avg", ("vs", "vn")),
    ResultSpec("sum", "bigint", "sum", ("total",)),
    ResultSpec("min", "bigint", "min", ("lo",)),
    ResultSpec("max", "double", "max", ("hi",)),
    ResultSpec("stddev", "double", "stddev", ("m0", "m1", "m2")),
    ResultSpec("var_pop", "double", "var_pop", ("m0", "m1", "m2")),
    ResultSpec("first", "bigint", "first", ("one",)),
    ResultSpec("last", "bigint", "last", ("end",)),
    ResultSpec("list", "array<bigint>", "collect_list", ("all",)),
    ResultSpec("set", "array<bigint>", "collect_set", ("some",)),
    ResultSpec("distinct", "int", "count_distinct", ("some",)),
    ResultSpec("dsum", "decimal(20,2)", "sum", ("d",)),
    ResultSpec("davg", "decimal(14,6)", "avg", ("d", "vn")),
    ResultSpec("tmax", "string", "max", ("txt",)),
    ResultSpec("about", "bigint", "approx_count_distinct", ("hv", "hs")),
    ResultSpec("median", "bigint", "approx_percentile", ("qv", "qs"), (0.5,)),
    ResultSpec("ends", "array<double>", "approx_percentile", ("qv", "qs"), (0.0, 1.0)),
    ResultSpec("min_by", "string", "min_by", ("txt_at", "at")),
    ResultSpec("max_by", "bigint", "max_by", ("num_at", "num")),
]
EVERYTHING = Accumulators(FIELDS, RESULTS)
COUNTS = Accumulators([FIELDS[0], FIELDS[3]], [RESULTS[0], RESULTS[2]])
Row = tuple[str, int, int | None]
"""Key, time in seconds, value."""


def partial(v: int | None) -> dict[str, Any]:
    """Return the accumulator of one row."""
    has = v is not None
    return {
        "n": 1, "vn": int(has), "vs": float(v) if has else None, "total": v, "lo": v, "hi": float(v) if has else None,
        "m0": int(has), "m1": float(v) if has else None, "m2": 0.0, "one": v, "end": v, "all": [v] if has else [],
        "some": [v] if has else [], "d": Decimal(v) / 4 if has else None, "txt": str(v) if has else None,
        "hv": [v] if has else [], "hs": None, "qv": [float(v)] if has else [], "qs": None,
        "txt_at": str(v) if has else None, "at": {"a": float(v % 3), "b": str(v)} if has else None,
        "num_at": v, "num": Decimal(-v) / 4 if has else None,
    }  # fmt: skip


def expected(values: Sequence[int | None]) -> tuple[Any, ...]:
    """Return what EVERYTHING gives for values in this order."""
    got = [v for v in values if v is not None]
    total = sum(Decimal(v) / 4 for v in got)
    return (
        len(values), sum(got) / len(got) if got else None, sum(got) if got else None, min(got, default=None),
        float(max(got)) if got else None, statistics.stdev(got) if len(got) > 1 else None,
        statistics.pvariance(got) if got else None, values[0], got[-1] if got else None, got, sorted(set(got)),
        len(set(got)), total if got else None,
        (total / len(got)).quantize(Decimal("0.000001"), rounding="ROUND_HALF_UP") if got else None,
        max(map(str, got), default=None), len(set(got)), sorted(got)[(len(got) - 1) // 2] if got else None,
        [float(min(got)), float(max(got))] if got else None,
        str(min(got, key=lambda v: (v % 3, str(v)))) if got else None, min(got, default=None),
    )  # fmt: skip


def rows_of(rows: Sequence[Row], accumulators: Accumulators, pane_us: int | None) -> pa.RecordBatch:
    """Return rows of the stream as a keeper receives them when Spark did not aggregate them."""
    times = [t * SECOND for _, t, _ in rows]
    groups = [int(key_group((k,), [parse_type("string")], MAX_PARALLELISM)) for k, _, _ in rows]
    columns: dict[str, pa.Array] = {"key_group": pa.array(groups, pa.int32())}
    if pane_us is not None:
        columns[TIME] = pa.array(times, pa.int64())
    columns["k"] = pa.array([k for k, _, _ in rows], pa.string())
    if pane_us is not None:
        columns["pane"] = pa.array([t - t % pane_us + pane_us for t in times], pa.int64())
    columns["rows"] = pa.array([1] * len(rows), pa.int64())
    made = [partial(v) for _, _, v in rows]
    for field in accumulators.fields:
        columns[field.name] = pa.array([row[field.name] for row in made], to_arrow_type(parse_type(field.ddl)))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def fields_ddl(accumulators: Accumulators) -> str:
    return ", ".join(f"`{f.name}` {f.ddl}" for f in accumulators.fields)


def results_ddl(accumulators: Accumulators) -> str:
    return ", ".join(f"`{r.name}` {r.ddl}" for r in accumulators.results)


class Aggregating(Bench):
    """A partition that aggregates, with windows or without."""

    def __init__(
        self,
        kind: str,
        root: Path,
        window: Any = None,
        lateness: int = 0,
        accumulators: Accumulators = EVERYTHING,
        **given: Any,
    ) -> None:
        self.accumulators = accumulators
        self.watermark: int | None = None
        process: Any = RunningAggregation(["k"], accumulators)
        edges, panes, self.pane_us = "", "", None
        if window is not None:
            process = WindowedAggregation("k string", accumulators, window, lateness * SECOND)
            edges, panes, self.pane_us = (
                "window_start timestamp, window_end timestamp, ",
                "pane bigint, ",
                process.pane_us,
            )
        super().__init__(
            kind, root, process, key_columns=["k"], input_schema=f"k string, {panes}rows bigint, {fields_ddl(accumulators)}",
            output_schema=f"k string, {edges}{results_ddl(accumulators)}", **{"timed": window is not None, "gives_time": window is not None, **given},
        )  # fmt: skip

    def epoch_of(self, *batches: Sequence[Row], watermark: int | None = None, abort: bool = False) -> list[Any]:
        """Process an epoch; return its rows, without hidden columns."""
        if watermark is not None:
            self.watermark = max(watermark, self.watermark or watermark)
        at = None if self.watermark is None else self.watermark * SECOND
        task = self.task
        task.begin(Epoch(self.epoch + 1), at)
        found = list(task.fire())
        for rows in batches:
            if rows:
                found += task.process(rows_of(rows, self.accumulators, self.pane_us))
                task.evict()
        found += task.finish()
        if not abort:
            task.check()
        self.end(abort=abort)
        return [plain(row) for batch in found for row in to_rows(batch)]


def to_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist():
        if TIME in row:
            assert row.pop(TIME) == row["window_end"].timestamp() * SECOND - 1
            row.pop("__strandline_fired")
            row["window_start"], row["window_end"] = (int(row[n].timestamp()) for n in ("window_start", "window_end"))
        yield row


def plain(row: dict[str, Any]) -> tuple[Any, ...]:
    if row.get("set") is not None:
        row["set"] = sorted(row["set"])
    return tuple(row.values())


def close_to(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Compare rows in any order; floats nearly."""
    if len(found) != len(wanted):
        return False
    order: Callable[[Any], Any] = lambda row: repr(row[:3])  # noqa: E731
    for a, b in zip(sorted(found, key=order), sorted(wanted, key=order), strict=True):
        for x, y in zip(a, b, strict=True):
            same = math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) if isinstance(x, float) and y is not None else x == y
            if not same:
                return False
    return True


@pytest.fixture(autouse=True)
def _sketches_of_few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches of so few values are exact."""
    monkeypatch.setattr(sketches, "_HELD", 2)


rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c\0", "ä"]), st.integers(0, 40), st.none() | st.integers(-9, 9)), max_size=8
)
ways = st.sampled_from(["keep", "abort", "snapshot", "restore", "write", "evict"])


@pytest.mark.parametrize("kind", KINDS)
@examples(15)
@given(epochs=st.lists(st.tuples(rows, rows, ways), min_size=1, max_size=8))
def test_running_aggregates(tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any) -> None:
    bench = Aggregating(kind, tmp_path_factory.mktemp("agg"))
    seen: dict[str, list[int | None]] = defaultdict(list)
    kept: tuple[Any, ...] | None = None
    for first, second, way in epochs:
        for table in bench.task.store._values.values():
            table._cache_bytes = 0 if way == "evict" else 1 << 20
        found = bench.epoch_of(first, second, abort=way == "abort")
        now = {k: list(v) for k, v in seen.items()}
        for k, _, v in [*first, *second]:
            now.setdefault(k, []).append(v)
        wanted = [(k, *expected(now[k])) for k in {k for k, _, _ in [*first, *second]}]
        assert close_to(found, wanted)
        if way != "abort":
            seen = defaultdict(list, now)
        if way == "snapshot":
            kept = bench.snapshot(), bench.epoch, {k: list(v) for k, v in seen.items()}
        elif way == "write":
            bench.write(bench.freeze())
        elif way == "restore" and kept is not None:
            bench.restore(kept[0], kept[1])
            seen = defaultdict(list, {k: list(v) for k, v in kept[2].items()})
    bench.close()


class Windows:
    """What windowed aggregation gives, in plain Python."""

    def __init__(self, window: Any, lateness: int) -> None:
        self.window, self.lateness = window, lateness
        self.values: dict[tuple[str, int, int], list[int | None]] = defaultdict(list)
        self.given_until: int | None = None
        self.late = 0

    def copy(self) -> Windows:
        other = Windows(self.window, self.lateness)
        other.values = defaultdict(list, {at: list(v) for at, v in self.values.items()})
        other.given_until, other.late = self.given_until, self.late
        return other

    def epoch(self, rows: Sequence[Row], watermark: int | None) -> list[tuple[Any, ...]]:
        given = []
        if watermark is not None:
            before = -math.inf if self.given_until is None else self.given_until
            due = [at for at in self.values if before < at[2] <= watermark]
            given = [(*at, *expected(self.values[at])) for at in due]
            self.given_until = watermark
        again = set()
        for k, t, v in rows:
            open_ones = []
            for w in windows_of(self.window, t * SECOND):
                at = (k, w.start_us // SECOND, w.end_us // SECOND)
                if watermark is None or at[2] + self.lateness > watermark:
                    open_ones.append(at)
            self.late += not open_ones
            for at in open_ones:
                self.values[at].append(v)
                if watermark is not None and at[2] <= watermark:
                    again.add(at)
        for at in again:
            given.append((*at, *expected(self.values[at])))
        return given


def in_any_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Windows that slide share panes, which are in the order of time: so are their lists, not in that of arrival."""
    return [(*row[:10], None, None, sorted(row[12]), *row[13:]) if row[12] is not None else row for row in rows]


WINDOWS = {
    "tumbling": (Tumbling("5s"), 0),
    "late": (Tumbling("5s"), 4),
    "sliding": (Sliding("6s", every="4s"), 0),
    "sliding-late": (Sliding("6s", every="2s"), 5),
}


@pytest.mark.parametrize("which", WINDOWS)
@pytest.mark.parametrize("kind", KINDS)
@examples(15)
@given(epochs=st.lists(st.tuples(rows, rows, st.integers(-3, 12), ways), min_size=1, max_size=10))
def test_windowed_aggregates(tmp_path_factory: pytest.TempPathFactory, kind: str, which: str, epochs: Any) -> None:
    window, lateness = WINDOWS[which]
    bench = Aggregating(kind, tmp_path_factory.mktemp("agg"), window, lateness)
    model = Windows(window, lateness)
    kept: tuple[Any, ...] | None = None
    watermark = 0
    for first, second, moved, way in epochs:
        watermark = max(0, watermark + max(0, moved))
        trial = model.copy()
        late_before = trial.late
        wanted = trial.epoch([*first, *second], watermark)
        bench.task.store._others[0]._cache_bytes = 0 if way == "evict" else 1 << 20  # type: ignore[attr-defined]
        found = bench.epoch_of(first, second, watermark=watermark, abort=way == "abort")
        assert close_to(in_any_order(found), in_any_order(wanted))
        assert bench.task.late_rows == trial.late - late_before
        assert bench.task.source_rows == len(first) + len(second)
        if way == "abort":
            continue
        model = trial
        open_ends = [at[2] for at in model.values if at[2] > watermark]
        due = bench.task.next_timers_us[0]
        assert due == (min(open_ends) * SECOND if open_ends else None)
        if way == "snapshot":
            kept = bench.snapshot(), bench.epoch, model.copy(), watermark
        elif way in ("write", "evict"):
            bench.write(bench.freeze())
        elif way == "restore" and kept is not None:
            bench.restore(kept[0], kept[1])
            model, watermark = kept[2].copy(), kept[3]
            bench.watermark = None
    bench.close()
