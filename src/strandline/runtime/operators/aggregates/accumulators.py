"""Accumulators of built-in aggregates as Arrow columns: merges partial ones, and computes results."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.aggregates import COMPARING, SPREADS
from strandline.api.windows import WINDOW_END, WINDOW_START
from strandline.core.errors import StateTypeError
from strandline.core.times import within
from strandline.format.manifest import AggregateInfo
from strandline.runtime.builtin import Aggregated
from strandline.runtime.operators.aggregates import grouping, sketches
from strandline.runtime.operators.aggregates.grouping import Groups, Numbers
from strandline.types.columns import conform, to_arrow_type
from strandline.types.datatypes import parse_type

_LARGEST_BIGINT = np.nextafter(2.0**63, 0.0)
"""The largest double that a bigint can hold."""
_ONE_COLUMN_MERGES = {"sum": grouping.summed, "joined": grouping.joined, "united": grouping.united}
_DECIMAL = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One column of an accumulator."""

    name: str
    ddl: str
    merge: str
    """The merge of two values: sum, min, max, first_valid, last_valid, joined, united, and of columns that belong
    together: first, last, moments, max_by, min_by, and sketches by kind and size, as hll_9."""
    empty: Any = None
    """Its value for no rows."""


@dataclass(frozen=True, slots=True)
class ResultSpec:
    """One result, computed from an accumulator's columns."""

    name: str
    ddl: str
    kind: str
    fields: tuple[str, ...]
    ranks: tuple[float, ...] = ()
    """The ranks of percentiles."""
    function: str = ""
    """The function in manifests. State is compatible only if it is the same; several functions share a kind."""
    was: str = ""
    """Its declared earlier name, if any."""
    is_added: bool = False
    """Whether it may begin empty if the state lacks it."""


class Accumulators:
    """The accumulators of one operator."""

    def __init__(self, fields: Sequence[FieldSpec], results: Sequence[ResultSpec]) -> None:
        for field in fields:
            if field.merge.startswith(sketches.KINDS):
                # Raise a missing library's error now rather than in a keeper.
                sketches.kind_of(field.merge)
        self.fields = list(fields)
        self.results = list(results)
        self._kinds = [parse_type(field.ddl) for field in fields]
        self._result_types = [to_arrow_type(parse_type(result.ddl)) for result in results]
        self.arrow_fields = [pa.field(f.name, to_arrow_type(k)) for f, k in zip(fields, self._kinds, strict=True)]
        self.merges = {field.name: field.merge for field in fields}
        """The merge of two accumulators, by column."""
        self.aggregated = Aggregated(
            infos={r.name: AggregateInfo(function=r.function, type=r.ddl, columns=[*r.fields]) for r in results},
            merges=self.merges,
            empty={field.name: field.empty for field in fields if field.empty is not None},
            was={result.name: result.was for result in results if result.was},
            added=frozenset(result.name for result in results if result.is_added),
        )
        """Their description for manifests and upgrades."""
        self.ddl = ", ".join(f"{field.name} {field.ddl}" for field in fields)

    def conform(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Convert input columns to exactly the accumulator's types."""
        return [conform(column, kind) for column, kind in zip(columns, self._kinds, strict=True)]

    def merge(self, columns: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """Merge the accumulators of each group into one, older ones first."""
        merged: list[pa.Array] = []
        while len(merged) < len(self.fields):
            # One column, or several that belong together.
            merged += _merge_fields(self.fields[len(merged)].merge, columns[len(merged) :], groups)
        return merged

    def compute_results(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Compute the results, one column each."""
        by_name = {field.name: column for field, column in zip(self.fields, columns, strict=True)}
        return [
            _compute(spec, [by_name[name] for name in spec.fields], self.merges[spec.fields[0]], kind)
            for spec, kind in zip(self.results, self._result_types, strict=True)
        ]


def results_of(
    keys: Mapping[str, pa.Array],
    start_us: Numbers,
    end_us: Numbers,
    last_us: Numbers,
    accumulators: Accumulators,
    columns: Sequence[pa.Array],
) -> tuple[pa.RecordBatch, pa.Array]:
    """Return the results of windows as rows, and the times of these: `last_us`, the last moments in the windows."""
    start, end = (pa.array(within(at), pa.timestamp("us", "UTC")) for at in (start_us, end_us))
    results = zip((result.name for result in accumulators.results), accumulators.compute_results(columns), strict=True)
    rows = pa.RecordBatch.from_pydict({**keys, WINDOW_START: start, WINDOW_END: end, **dict(results)})
    return rows, pa.array(within(last_us))


def _merge_fields(merge_kind: str, columns: Sequence[pa.Array], groups: Groups) -> Sequence[pa.Array]:
    """Merge the first columns, as many as belong together."""
    if merge_kind == "moments":
        return grouping.moments(columns[0], columns[1], columns[2], groups)
    if merge_kind in ("first", "last"):
        return grouping.edge_there(columns[0], columns[1], groups, merge_kind)
    if merge_kind in COMPARING:
        return grouping.best(columns[0], columns[1], groups, merge_kind[:3])
    if merge_kind.startswith(sketches.KINDS):
        return sketches.merged(merge_kind, columns[0], columns[1], groups)
    if merge_kind in _ONE_COLUMN_MERGES:
        return [_ONE_COLUMN_MERGES[merge_kind](columns[0], groups)]
    if merge_kind in ("min", "max"):
        return [grouping.extreme(columns[0], groups, merge_kind)]
    return [grouping.edge(columns[0], groups, merge_kind.removesuffix("_valid"), ignore_nulls=True)]


def _compute(spec: ResultSpec, columns: list[pa.Array], merge_kind: str, kind: pa.DataType) -> pa.Array:
    if spec.kind == "approx_percentile":
        return _percentiles(sketches.percentiles(merge_kind, columns[0], columns[1], spec.ranks), kind)
    result = columns[0]
    if spec.kind == "avg":
        result = _mean(columns[0], columns[1], spec.ddl)
    elif spec.kind == "count_distinct":
        result = pc.list_value_length(columns[0])
    elif spec.kind == "approx_count_distinct":
        result = sketches.distinct_counts(merge_kind, columns[0], columns[1])
    elif spec.kind in SPREADS:
        result = _spread(spec.kind, columns[0].to_numpy(), columns[2].to_numpy())
    return result.cast(kind)


def _mean(total: pa.Array, n: pa.Array, ddl: str) -> pa.Array:
    counts = pc.if_else(pc.equal(n, 0), None, n)
    if not pa.types.is_decimal(total.type):
        return pc.divide(total, counts.cast(pa.float64()))
    kind = to_arrow_type(parse_type(ddl))
    unit = Decimal(1).scaleb(-kind.scale)
    pairs = zip(total.to_pylist(), counts.to_pylist(), strict=True)
    means: list[Any] = [
        None if t is None or not k else _DECIMAL.divide(t, k).quantize(unit, context=_DECIMAL) for t, k in pairs
    ]
    try:
        return pa.array(means, kind)
    except pa.ArrowInvalid as error:
        raise StateTypeError(
            f"a mean does not fit into {ddl}", hint="cast the column to a narrower decimal or to double"
        ) from error


def _spread(kind: str, n: Any, m2: Any) -> pa.Array:
    ddof = 0 if kind in ("stddev_pop", "var_pop") else 1
    is_null = n <= ddof
    variance = m2 / np.where(is_null, 1, n - ddof)
    return pa.array(np.sqrt(variance) if kind.startswith("stddev") else variance, mask=is_null)


def _percentiles(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert percentiles from lists of doubles to a result's type: one number or a list of them."""
    if not pa.types.is_list(kind):
        return _from_doubles(pc.list_element(lists, 0), kind)
    elements = _from_doubles(lists.flatten(), kind.value_type)
    return pa.ListArray.from_arrays(lists.offsets, elements, type=kind, mask=lists.is_null())


def _from_doubles(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert doubles back to the type of the column that they were computed from."""
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return numbers.cast(kind, safe=False)
    # As doubles, the largest bigints are rounded up to 2**63, which does not fit.
    whole = np.minimum(numbers.fill_null(0.0).to_numpy(), _LARGEST_BIGINT).astype(np.int64)
    longs = pa.array(whole, mask=numbers.is_null().to_numpy(zero_copy_only=False))
    return longs.cast(pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)
