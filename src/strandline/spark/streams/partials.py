"""Built-in aggregates as SQL: how accumulators are made of rows in Spark's JVM, and what becomes of them in keepers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DateType, DecimalType, TimestampType

from strandline.api.aggregates import COMPARING, SPREADS, Aggregate
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.aggregates import functions as aggfunctions
from strandline.runtime.operators.aggregates import sketches
from strandline.runtime.operators.aggregates.accumulators import ResultSpec
from strandline.runtime.operators.aggregates.functions import OURS
from strandline.spark.base.ddl import ddl_of, first_line, quoted
from strandline.spark.base.hidden import visible
from strandline.spark.base.reported import errors_reported
from strandline.types.datatypes import DataType as OwnType
from strandline.types.datatypes import parse_type


@dataclass(frozen=True)
class Partial:
    """How a column of an accumulator is made: of many rows, of one row, and of two accumulators."""

    of_many: str
    of_one: str
    merge: str


def declare(
    probe: DataFrame, given: Mapping[str, Aggregate], uid: str
) -> tuple[dict[str, Partial], dict[str, str], list[ResultSpec]]:
    """Return the accumulator's columns, their types, and the results; what several aggregates need is there once.

    State is found by the names of columns and their order: of results that need them, however these are ordered.
    """
    names: dict[tuple[Partial, ...], tuple[str, ...]] = {}
    columns: dict[str, Partial] = {}
    wanted_by: dict[str, str] = {}
    specs: dict[str, ResultSpec] = {}
    for result, aggregate in sorted(given.items()):
        column = _sql(probe, aggregate.column)
        kind = _type_of(probe, _whole(aggregate, column), result, uid)
        by = _sql(probe, aggregate.by)
        partials = _partials(aggregate, column, by, kind)
        compared = _type_of(probe, f"max({by})", result, uid) if aggregate.by else kind
        aggfunctions.check_type(aggregate, _known(_element(aggregate, compared), result, uid), uid)
        # The columns of moments and of sketches belong together; others can be shared one by one.
        together = partials[0].merge.startswith(("moments", *COMPARING, *sketches.KINDS))
        parts = [tuple(partials)] if together else [(partial,) for partial in partials]
        fields: list[str] = []
        for part in parts:
            if part not in names:
                places = range(len(fields), len(fields) + len(part))
                names[part] = tuple(_named(result, aggregate.kind, at, [*columns]) for at in places)
                columns.update(zip(names[part], part, strict=True))
                wanted_by.update(dict.fromkeys(names[part], result))
            fields += names[part]
        ddl = _known(kind, result, uid).ddl
        specs[result] = ResultSpec(result, ddl, aggregate.kind, tuple(fields), aggregate.ranks)
    ddls = {}
    for name, partial in columns.items():
        result = wanted_by[name]
        ddls[name] = _known(_type_of(probe, partial.of_many, result, uid), result, uid).ddl
    return columns, ddls, [specs[result] for result in given]


def _named(result: str, kind: str, at: int, taken: list[str]) -> str:
    """Return the name of a new column of the accumulator, which needs no quotes."""
    name = f"{OURS}_{re.sub(r'[^0-9a-zA-Z]', '_', result).lower()}_{kind}_{at}"
    return name if name not in taken else _named(f"{result}_", kind, at, taken)


def _known(kind: DataType, result: str, uid: str) -> OwnType:
    """Return Spark's type as ours."""
    try:
        return parse_type(ddl_of(kind))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"operator '{uid}': the aggregate '{result}' is of a type that is not supported: {error.message}",
            hint="cast the column to a number, a text, a date or a timestamp",
        ) from None


def _partials(aggregate: Aggregate, c: str, by: str, type: DataType) -> list[Partial]:
    kind = aggregate.kind
    counted = Partial(f"count({c})", "1L" if c == "1" else f"if({c} is null, 0L, 1L)", "sum")
    elements = f"filter(array({c}), x -> x is not null)"
    if kind == "count":
        return [counted]
    if kind == "avg":
        exact = isinstance(type, DecimalType)
        return [Partial(f"sum({c})" if exact else f"sum(cast({c} as double))", c, "sum"), counted]
    if kind in SPREADS:
        number = f"cast({c} as double)"
        squares = f"coalesce(var_pop({number}) * count({c}), 0D)"
        return [
            Partial(counted.of_many, counted.of_one, "moments"),
            Partial(f"avg({number})", number, "moments"),
            Partial(squares, "0D", "moments"),
        ]
    if kind in COMPARING:
        # Where there is nothing to compare, the value does not count.
        return [
            Partial(f"{kind}({c}, {by})", f"if({by} is null, null, {c})", kind),
            Partial(f"{kind[:3]}({by})", by, kind),
        ]
    if kind in ("first", "last"):
        nulls = str(aggregate.ignore_nulls).lower()
        return [Partial(f"{kind}({c}, {nulls})", c, f"{kind}_valid" if aggregate.ignore_nulls else kind)]
    if kind == "collect_list":
        return [Partial(f"collect_list({c})", elements, "joined")]
    if kind in ("collect_set", "count_distinct"):
        return [Partial(f"collect_set({c})", elements, "united")]
    if kind == "approx_count_distinct":
        # Of the hash, since Spark's sketches take few types themselves.
        return _sketched(f"if({c} is null, null, xxhash64({c}))", "hll_sketch_agg", sketches.DISTINCT, aggregate.error)
    if kind == "approx_percentile":
        number = f"nanvl({_as_double(c, _element(aggregate, type))}, null)"
        return _sketched(number, "kll_sketch_agg_double", sketches.QUANTILES, aggregate.error)
    return [Partial(f"{kind}({c})", c, kind)]


def _sketched(value: str, function: str, how: str, error: float) -> list[Partial]:
    """Return the list of values and the sketch: of one row there is a value, of many a sketch."""
    size = sketches.size_of(how, error)
    array = "array<bigint>" if how == sketches.DISTINCT else "array<double>"
    sketch = f"if(count({value}) = 0, null, {function}({value}, {size}))"
    merge = f"{how}_{size}"
    return [
        Partial(f"cast(null as {array})", f"filter(array({value}), x -> x is not null)", merge),
        Partial(sketch, "cast(null as binary)", merge),
    ]


def _as_double(c: str, type: DataType) -> str:
    if isinstance(type, TimestampType):
        return f"cast(unix_micros({c}) as double)"
    return f"cast(unix_date({c}) as double)" if isinstance(type, DateType) else f"cast({c} as double)"


def _element(aggregate: Aggregate, type: DataType) -> DataType:
    """Return the type of the column, of percentiles: several are an array."""
    return type.elementType if isinstance(aggregate.percentage, tuple) and isinstance(type, ArrayType) else type


def _whole(aggregate: Aggregate, c: str) -> str:
    """Return Spark's own expression of an aggregate, which tells its type."""
    names = {"stddev": "stddev_samp", "variance": "var_samp"}
    if aggregate.kind == "count_distinct":
        return f"count(distinct {c})"
    if aggregate.kind in COMPARING:
        return f"{aggregate.kind}({c}, 1)"
    if aggregate.kind == "approx_percentile":
        return f"approx_percentile({c}, {'array(0.5D)' if isinstance(aggregate.percentage, tuple) else '0.5D'})"
    return f"{names.get(aggregate.kind, aggregate.kind)}({c})"


def _type_of(probe: DataFrame, expression: str, what: str, uid: str) -> DataType:
    try:
        with errors_reported():
            return probe.groupBy().agg(F.expr(expression).alias("v")).schema["v"].dataType
    except AnalysisException as error:
        raise ConfigurationError(
            f"operator '{uid}': the aggregate '{what}' does not fit the stream's columns "
            f"({', '.join(visible(probe.columns))}): {first_line(error)}"
        ) from None


def _sql(probe: DataFrame, column: str | None) -> str:
    if column is None:
        return "1"
    return quoted(column) if column in visible(probe.columns) else f"({column})"
