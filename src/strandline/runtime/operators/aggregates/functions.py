"""What users ask of built-in aggregates: checked, and made into an operator and the columns it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.api.aggregates import COMPARING, Aggregate
from strandline.api.windows import Global, Session, WindowKind
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.aggregates.accumulators import Accumulators
from strandline.runtime.operators.aggregates.running import CountedAggregation, RunningAggregation
from strandline.runtime.operators.aggregates.sessions import SessionAggregation
from strandline.runtime.operators.aggregates.windows import WindowedAggregation
from strandline.runtime.operators.windows.functions import bounds_of, check_window_keys
from strandline.runtime.operators.windows.operator import Rules
from strandline.runtime.state.columnar import ColumnarProcess
from strandline.types.datatypes import (
    ArrayType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    Field,
    FloatType,
    IntegralType,
    MapType,
    StructType,
    TimestampType,
    parse_type,
)

OURS = "__strandline"
"""How our own columns begin."""
NUMBERS = (IntegralType, FloatType, DoubleType, DecimalType)


def named(results: Mapping[str, Aggregate] | None, more: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    """Return aggregates that are given as a dict and by keywords."""
    if results is not None and not isinstance(results, Mapping):
        raise ConfigurationError(
            f"agg() was given {results!r}, expected aggregates by their names",
            hint='write agg(n=sl.agg.count(), …), or give a dict: agg({"n": sl.agg.count()}, …)',
        )
    return {**(results or {}), **more}


@dataclass(frozen=True)
class AggregationPlan:
    """The keepers' part of an aggregation, and the DDL of what it gives."""

    operator: ColumnarProcess
    output: str


def plan(kind: WindowKind | None, rules: Rules, keys: StructType, accumulators: Accumulators) -> AggregationPlan:
    """Return the operator of a keyed stream's aggregation, in windows or, without a kind, of everything so far."""
    bounds = [Field(bound, TimestampType()) for bound in bounds_of(kind)]
    results = [Field(result.name, parse_type(result.ddl)) for result in accumulators.results]
    output = StructType((*keys.fields, *bounds, *results)).ddl
    return AggregationPlan(_operator_of(kind, rules, keys, accumulators), output)


def _operator_of(
    kind: WindowKind | None, rules: Rules, keys: StructType, accumulators: Accumulators
) -> ColumnarProcess:
    if kind is None:
        return RunningAggregation(keys.names, accumulators)
    if isinstance(kind, Global):
        assert kind.count is not None
        return CountedAggregation(keys.names, accumulators, kind.count)
    if isinstance(kind, Session):
        return SessionAggregation(keys.ddl, accumulators, kind, rules)
    return WindowedAggregation(keys.ddl, accumulators, kind, rules)


def check(kind: WindowKind | None, rules: Rules, keys: Sequence[str], given: Mapping[str, Any], uid: str) -> None:
    """Refuse what cannot be an aggregation."""
    if not isinstance(uid, str) or not uid.strip():
        raise ConfigurationError(
            "agg() has no uid", hint="give it a name that never changes, for example uid='totals': state is found by it"
        )
    if not given:
        raise ConfigurationError(f"operator '{uid}': agg() was given no aggregate", hint="write n=sl.agg.count()")
    for result, aggregate in given.items():
        if not isinstance(result, str) or not result.strip() or result.startswith(OURS):
            raise ConfigurationError(
                f"operator '{uid}': {result!r} is no name for a result", hint=f"give it one, not beginning with {OURS}"
            )
        if not isinstance(aggregate, Aggregate):
            raise ConfigurationError(
                f"operator '{uid}': the aggregate '{result}' is {aggregate!r}, expected one of sl.agg",
                hint=f'write {result}=sl.agg.sum("amount")',
            )
    bounds = bounds_of(kind)
    if bounds:
        check_window_keys(keys, uid)
    for at, result in enumerate(given):
        others = [*keys, *bounds, *list(given)[:at]]
        if result.lower() in [column.lower() for column in others]:
            raise ConfigurationError(
                f"operator '{uid}': the result '{result}' has the name of another column of the output",
                hint=f"the output has {', '.join(others)} already: give the result another name",
            )
    _check_window(kind, rules, uid)


def _check_window(kind: WindowKind | None, rules: Rules, uid: str) -> None:
    """Refuse what no built-in aggregation can do: calls of Python, or events that Spark has aggregated already."""
    if isinstance(kind, Global) and (kind.when is not None or rules.early_us):
        what = "when= runs Python for each event" if kind.when is not None else "Global windows have no early results"
        raise ConfigurationError(
            f"operator '{uid}': {what}, and agg() runs none",
            hint="use fold() or aggregate() of the window, or Global(count=…) alone",
        )
    if isinstance(kind, Session) and rules.late is not None:
        raise ConfigurationError(
            f"operator '{uid}': agg() of sessions has no late events to give: which they are shows when they have "
            "been aggregated",
            hint="leave late= out, they are counted in any case; or use fold(), aggregate() or process()",
        )


def check_type(aggregate: Aggregate, kind: DataType, uid: str) -> None:
    """Refuse columns that keepers cannot compare, or that have no percentiles."""
    if aggregate.kind in ("min", "max", *COMPARING):
        fits, expected = _is_ordered(kind), "a number, a text, a boolean, a date or a time, or a struct of such"
    elif aggregate.kind == "approx_percentile":
        fits, expected = isinstance(kind, (*NUMBERS, DateType, TimestampType)), "a number, a date or a timestamp"
    else:
        return
    if not fits:
        of = aggregate.by or aggregate.column
        raise ConfigurationError(
            f"operator '{uid}': {aggregate.kind} of '{of}' is over {kind.ddl}, expected {expected}"
        )


def _is_ordered(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_ordered(field.type) for field in kind.fields)
    return not isinstance(kind, ArrayType | MapType)
