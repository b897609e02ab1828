"""Accumulators of built-in aggregates as Arrow columns: how partial ones merge, and what results they give."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.format.columns import conform, to_arrow_type
from strandline.format.types import parse_type
from strandline.runtime import grouping
from strandline.runtime.grouping import Groups

_WIDE = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One column of an accumulator."""

    name: str
    ddl: str
    merge: str
    """How two become one: sum, min, max, first, last, first_valid, last_valid, joined, united, or moments."""


@dataclass(frozen=True, slots=True)
class ResultSpec:
    """One result, computed from an accumulator's columns."""

    name: str
    ddl: str
    kind: str
    fields: tuple[str, ...]


class Accumulators:
    """The accumulators of one operator."""

    def __init__(self, fields: Sequence[FieldSpec], results: Sequence[ResultSpec]) -> None:
        self.fields = list(fields)
        self.results = list(results)
        self._kinds = [parse_type(field.ddl) for field in fields]
        self.types = [to_arrow_type(kind) for kind in self._kinds]
        self._result_types = [to_arrow_type(parse_type(result.ddl)) for result in results]
        self.arrow_fields = [pa.field(f.name, kind) for f, kind in zip(fields, self.types, strict=True)]
        self.ddl = ", ".join(f"{field.name} {field.ddl}" for field in fields)

    def conform(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return columns as they came in, in exactly the accumulator's types."""
        return [conform(column, kind) for column, kind in zip(columns, self._kinds, strict=True)]

    def merge(self, columns: Sequence[pa.Array], groups: Groups) -> list[pa.Array]:
        """Merge the accumulators of each group into one, older ones first."""
        found: list[pa.Array] = []
        for at, (field, column) in enumerate(zip(self.fields, columns, strict=True)):
            if field.merge == "moments":
                # Three columns in a row: the first of them merges all.
                if len(found) == at:
                    found += grouping.moments(column, columns[at + 1], columns[at + 2], groups)
                continue
            found.append(_merge(field.merge, column, groups))
        return found

    def give(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Compute the results, a column each."""
        by_name = {field.name: column for field, column in zip(self.fields, columns, strict=True)}
        return [
            _result(spec, [by_name[name] for name in spec.fields], by_name).cast(kind)
            for spec, kind in zip(self.results, self._result_types, strict=True)
        ]


def _merge(how: str, column: pa.Array, groups: Groups) -> pa.Array:
    if how == "sum":
        return grouping.summed(column, groups)
    if how in ("min", "max"):
        return grouping.extreme(column, groups, how)
    if how == "joined":
        return grouping.joined(column, groups)
    if how == "united":
        return grouping.united(column, groups)
    which, _, valid = how.partition("_")
    return grouping.edge(column, groups, which, ignore_nulls=bool(valid))


def _result(spec: ResultSpec, columns: list[pa.Array], by_name: Mapping[str, pa.Array]) -> pa.Array:
    if spec.kind == "avg":
        return _mean(columns[0], columns[1], spec.ddl)
    if spec.kind == "count_distinct":
        return pc.list_value_length(columns[0])
    if spec.kind in ("stddev", "stddev_pop", "variance", "var_pop"):
        return _spread(spec.kind, columns[0].to_numpy(), columns[2].to_numpy())
    return columns[0]


def _mean(total: pa.Array, n: pa.Array, ddl: str) -> pa.Array:
    counted = pc.if_else(pc.equal(n, 0), None, n)
    if not pa.types.is_decimal(total.type):
        return pc.divide(total, counted.cast(pa.float64()))
    kind = to_arrow_type(parse_type(ddl))
    unit = Decimal(1).scaleb(-kind.scale)
    pairs = zip(total.to_pylist(), counted.to_pylist(), strict=True)
    means: list[Any] = [
        None if t is None or not k else _WIDE.divide(t, k).quantize(unit, context=_WIDE) for t, k in pairs
    ]
    return pa.array(means, kind)


def _spread(kind: str, n: Any, m2: Any) -> pa.Array:
    least = 0 if kind in ("stddev_pop", "var_pop") else 1
    absent = n <= least
    found = m2 / np.where(absent, 1, n - least)
    return pa.array(np.sqrt(found) if kind.startswith("stddev") else found, mask=absent)
