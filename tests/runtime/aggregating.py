"""What the tests of built-in aggregation share: a partition that aggregates, and what it must give for some values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.api.windows import Global, Session, WindowKind
from strandline.runtime.operators.aggregates.accumulators import Accumulators, FieldSpec, ResultSpec
from strandline.runtime.operators.aggregates.running import CountedAggregation, RunningAggregation
from strandline.runtime.operators.aggregates.sessions import SessionAggregation
from strandline.runtime.operators.aggregates.windows import WindowedAggregation
from strandline.runtime.operators.windows.operator import Rules
from strandline.runtime.rowlayout import TIME
from strandline.types.columns import to_arrow_type
from strandline.types.datatypes import parse_type
from strandline.types.murmur import key_group
from tests.runtime.bench import MAX_PARALLELISM, Bench

SECOND = 1_000_000
FIELDS = [
    FieldSpec("n", "bigint", "sum", 0),
    FieldSpec("vn", "bigint", "sum", 0),
    FieldSpec("vs", "double", "sum"),
    FieldSpec("total", "bigint", "sum"),
    FieldSpec("lo", "bigint", "min"),
    FieldSpec("hi", "double", "max"),
    FieldSpec("m0", "bigint", "moments", 0),
    FieldSpec("m1", "double", "moments", 0.0),
    FieldSpec("m2", "double", "moments", 0.0),
    FieldSpec("one", "bigint", "first"),
    FieldSpec("one_there", "boolean", "first", False),
    FieldSpec("fin", "bigint", "last_valid"),
    FieldSpec("all", "array<bigint>", "joined", []),
    FieldSpec("some", "array<bigint>", "united", []),
    FieldSpec("d", "decimal(20,2)", "sum"),
    FieldSpec("txt", "string", "max"),
    FieldSpec("hv", "array<bigint>", "hll_9", []),
    FieldSpec("hs", "binary", "hll_9"),
    FieldSpec("qv", "array<double>", "kll_64", []),
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
    ResultSpec("first", "bigint", "first", ("one", "one_there")),
    ResultSpec("last", "bigint", "last", ("fin",)),
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
        "m0": int(has), "m1": float(v) if has else None, "m2": 0.0, "one": v, "one_there": True, "fin": v, "all": [v] if has else [],
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


def rows_of(rows: Sequence[Row], accumulators: Accumulators, process: Any = None) -> pa.RecordBatch:
    """Return rows of the stream as a keeper receives them when Spark did not aggregate them."""
    times = [t * SECOND for _, t, _ in rows]
    groups = [int(key_group((k,), [parse_type("string")], MAX_PARALLELISM)) for k, _, _ in rows]
    columns: dict[str, pa.Array] = {"key_group": pa.array(groups, pa.int32())}
    of_time = columns_of_time(process)
    if of_time:
        columns[TIME] = pa.array(times, pa.int64())
    columns["k"] = pa.array([k for k, _, _ in rows], pa.string())
    if of_time == ["pane"]:
        columns["pane"] = pa.array([t - t % process.pane_us + process.pane_us for t in times], pa.int64())
    columns["rows"] = pa.array([1] * len(rows), pa.int64())
    if len(of_time) == 2:
        columns |= dict.fromkeys(of_time, pa.array(times, pa.int64()))
    made = [partial(v) for _, _, v in rows]
    for field in accumulators.fields:
        columns[field.name] = pa.array([row[field.name] for row in made], to_arrow_type(parse_type(field.ddl)))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def columns_of_time(process: Any) -> list[str]:
    """Return the columns that tell keepers when rows were."""
    if isinstance(process, WindowedAggregation):
        return [] if process._processing else ["pane"]
    if isinstance(process, SessionAggregation):
        return [] if process._rules.processing else ["first", "last"]
    return []


def fields_ddl(accumulators: Accumulators) -> str:
    return ", ".join(f"`{f.name}` {f.ddl}" for f in accumulators.fields)


def results_ddl(accumulators: Accumulators) -> str:
    return ", ".join(f"`{r.name}` {r.ddl}" for r in accumulators.results)


def process_of(window: WindowKind | None, accumulators: Accumulators, rules: Rules) -> Any:
    """Return the operator of a kind of window."""
    if window is None:
        return RunningAggregation(["k"], accumulators)
    if isinstance(window, Global):
        assert window.count is not None
        return CountedAggregation(["k"], accumulators, window.count)
    kind = SessionAggregation if isinstance(window, Session) else WindowedAggregation
    return kind("k string", accumulators, window, rules)  # type: ignore[arg-type]


class Aggregating(Bench):
    """A partition that aggregates, with windows or without."""

    def __init__(
        self,
        kind: str,
        root: Path,
        window: WindowKind | None = None,
        lateness: int = 0,
        accumulators: Accumulators = EVERYTHING,
        *,
        early: int = 0,
        processing: bool = False,
        **given: Any,
    ) -> None:
        self.accumulators = accumulators
        self.watermark: int | None = None
        process = process_of(window, accumulators, Rules(lateness * SECOND, early * SECOND, processing=processing))
        self.pane_us: int | None = getattr(process, "pane_us", None)
        timed = bool(columns_of_time(process))
        before, after = {0: ("", ""), 1: ("pane bigint, ", ""), 2: ("", "first bigint, last bigint, ")}[
            len(columns_of_time(process))
        ]
        ends = window is not None and not isinstance(window, Global)
        edges = "window_start timestamp, window_end timestamp, " if ends else ""
        super().__init__(
            kind, root, process, key_columns=["k"],
            input_schema=f"k string, {before}rows bigint, {after}{fields_ddl(accumulators)}",
            output_schema=f"k string, {edges}{results_ddl(accumulators)}",
            **{"timed": timed, **given},
        )  # fmt: skip

    def epoch_of(
        self, *batches: Sequence[Row] | pa.RecordBatch, watermark: int | None = None, now: int = 0, abort: bool = False
    ) -> list[Any]:
        """Process an epoch; return its rows, without hidden columns."""
        if watermark is not None:
            self.watermark = max(watermark, self.watermark or watermark)
        at = None if self.watermark is None else self.watermark * SECOND
        made = (rows if isinstance(rows, pa.RecordBatch) else self.rows_of(rows) for rows in batches if len(rows))
        found = self.apply(made, at, now * SECOND, abort=abort)
        return [
            plain(row)
            for batch in found
            for row in to_rows(batch, is_session=isinstance(self.process, SessionAggregation))
        ]

    def rows_of(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return rows of the stream as this keeper receives them when Spark did not aggregate them."""
        return rows_of(rows, self.accumulators, self.process)


def to_rows(batch: pa.RecordBatch, *, is_session: bool = False) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist():
        if TIME in row:
            # What is at a session's very end belongs to it.
            assert row.pop(TIME) == row["window_end"].timestamp() * SECOND - (not is_session)
            row.pop("__strandline_fired")
        if "window_end" in row:
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
    order: Callable[[Any], Any] = lambda row: (repr(row[:3]), repr(row))  # noqa: E731
    for a, b in zip(sorted(found, key=order), sorted(wanted, key=order), strict=True):
        for x, y in zip(a, b, strict=True):
            same = math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) if isinstance(x, float) and y is not None else x == y
            if not same:
                return False
    return True
