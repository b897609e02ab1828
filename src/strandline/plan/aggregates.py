"""Built-in aggregates: the columns of each one's accumulator, how two accumulators merge, and the result's type.

Each column of an accumulator has SQL that computes it from many rows or from one, and Arrow code for one row each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.aggregates import COMPARING, SPREADS, Aggregate
from strandline.core.errors import ConfigurationError
from strandline.format.values import ValueCodec
from strandline.plan.columns import Columns, quoted
from strandline.runtime.operators.aggregates import sketches
from strandline.runtime.operators.aggregates.accumulators import FieldSpec, ResultSpec
from strandline.types.columns import to_arrow_type, to_python
from strandline.types.datatypes import (
    MAX_DECIMAL_PRECISION,
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    parse_type,
)

PREFIX = "__strandline"
"""Prefix of the columns that Strandline adds."""
NUMBERS = (IntegralType, FloatType, DoubleType, DecimalType)
_COLLATED = re.compile(r"\bstring collate\b", re.IGNORECASE)

Values = Mapping[str, pa.Array]
"""Columns of rows, by name."""
Make = Callable[[Values, int], pa.Array]
"""Takes the columns and the number of rows."""
TypeOf = Callable[[str, str], str]
"""Takes an SQL expression and its purpose; returns the DDL of its type."""


@dataclass(frozen=True, slots=True)
class AccumulatorColumn:
    """One column of an accumulator."""

    type: DataType
    merge: str
    """How two values merge. See FieldSpec."""
    many: str
    """SQL over many rows."""
    one: str
    """SQL over one row."""
    make: Make = field(compare=False)
    """Computes the column in Arrow, for accumulators of one row each."""
    empty: Any = field(default=None, compare=False)
    """The value for no rows."""
    addend: str = ""
    """SQL of the values of an exact sum, which may be too large for its type; empty for other columns."""


@dataclass(frozen=True, slots=True)
class AggregationPlan:
    """The accumulator and the results of some aggregates."""

    parts: dict[str, AccumulatorColumn]
    results: list[ResultSpec]

    @property
    def fields(self) -> list[FieldSpec]:
        """The accumulator's columns as keepers use them."""
        return [FieldSpec(name, part.type.ddl, part.merge, part.empty) for name, part in self.parts.items()]


def plan_results(columns: Columns, aggregates: Mapping[str, Aggregate], uid: str, type_of: TypeOf) -> AggregationPlan:
    """Return the accumulator and the results of aggregates; aggregates that need the same columns share them.

    The order of the aggregates does not change the state. Aggregates share all of their columns or none, so that one
    that is added later begins with empty columns.
    """
    names: dict[tuple[AccumulatorColumn, ...], tuple[str, ...]] = {}
    by_name: dict[str, AccumulatorColumn] = {}
    specs: dict[str, ResultSpec] = {}
    for result, aggregate in sorted(aggregates.items()):
        kind, parts = _plan(columns, result, aggregate, uid, type_of)
        if parts not in names:
            names[parts] = tuple(_column_name(result, aggregate.kind, at, [*by_name]) for at in range(len(parts)))
            by_name.update(zip(names[parts], parts, strict=True))
        function = parts[0].merge if aggregate.kind in ("first", "last") else aggregate.kind
        specs[result] = ResultSpec(
            result, kind.ddl, aggregate.kind, names[parts], aggregate.ranks, function, aggregate.was, aggregate.is_added
        )
    return AggregationPlan(by_name, [specs[result] for result in aggregates])


def _column_name(result: str, kind: str, at: int, names: list[str]) -> str:
    """Return a name for a new column of the accumulator that needs no quotes and is not in `names`."""
    plain = re.sub(r"[^0-9a-z_]", lambda match: f"_{ord(match[0]):x}_", result.lower())
    name = f"{PREFIX}_{plain}_{kind}_{at}"
    return name if name not in names else _column_name(f"{result}_", kind, at, names)


def _plan(
    columns: Columns, result: str, aggregate: Aggregate, uid: str, type_of: TypeOf
) -> tuple[DataType, tuple[AccumulatorColumn, ...]]:
    """Return the type of an aggregate's result, and its accumulator's columns."""
    if aggregate.column is None:
        return LongType(), (AccumulatorColumn(LongType(), "sum", "count(1)", "1L", _ones, 0),)
    what = f"operator '{uid}': the aggregate '{result}'"
    name, (c, kind) = aggregate.column, _column(columns, aggregate.column, what, type_of, aggregate.kind)
    if aggregate.by is None:
        check_type(aggregate, kind, uid)
        result_type, parts = _of_column(aggregate, kind, c, name)
        return result_type, tuple(parts)
    how, by_name, (by, by_kind) = aggregate.kind, aggregate.by, _column(columns, aggregate.by, what, type_of)
    check_type(aggregate, by_kind, uid)
    # A value whose `by` is null does not count.
    return kind, (
        AccumulatorColumn(
            kind, how, f"{how}({c}, {by})", f"if({by} is null, null, {c})",
            lambda of, n: pc.if_else(pc.is_valid(of[by_name]), of[name], _null_of(kind)),
        ),
        AccumulatorColumn(by_kind, how, f"{how[:3]}({by})", by, lambda of, n: of[by_name]),
    )  # fmt: skip


def _column(columns: Columns, column: str, what: str, type_of: TypeOf, how: str = "") -> tuple[str, DataType]:
    """Return the SQL and the type of a column or an expression, for an aggregate; errors begin with `what`."""
    known = column in columns.names
    c = quoted(column) if known else f"({column})"
    try:
        ddl = columns.ddl_of(column) if known else type_of(c, what)
    except ConfigurationError as error:
        if error.message.startswith(what):
            raise
        raise ConfigurationError(f"{what} has no one column: {error.message}", hint=error.hint) from None
    try:
        return c, parse_type(ddl)
    except ConfigurationError as error:
        # A type that only Spark knows. Texts that a collation holds equal have different hashes.
        if how == "approx_count_distinct" and not _COLLATED.search(ddl):
            type_of(_hash_sql(c), what)
            return c, StringType()
        if how == "count":
            return c, StringType()
        raise ConfigurationError(
            f"{what} is of a type that is not supported: {error.message}",
            hint="cast the column to a number, a text, a date or a timestamp",
        ) from None


def _of_column(aggregate: Aggregate, kind: DataType, c: str, name: str) -> tuple[DataType, list[AccumulatorColumn]]:
    how, array = aggregate.kind, ArrayType(kind)
    counted = AccumulatorColumn(
        LongType(), "sum", f"count({c})", f"if({c} is null, 0L, 1L)",
        lambda of, n: pc.is_valid(of[name]).cast(pa.int64()), 0,
    )  # fmt: skip
    if how == "count":
        return LongType(), [counted]
    if how in ("sum", "avg"):
        total = _sum_type(kind, exact=how == "sum")
        many = f"sum(cast({c} as double))" if how == "avg" and not isinstance(kind, DecimalType) else f"sum({c})"
        addend = c if isinstance(total, LongType | DecimalType) else ""
        summed = AccumulatorColumn(
            total, "sum", many, c, lambda of, n: of[name].cast(to_arrow_type(total)), addend=addend
        )  # fmt: skip
        return (total, [summed]) if how == "sum" else (_mean_type(kind), [summed, counted])
    if how in SPREADS:
        number = f"cast({c} as double)"
        squares = f"coalesce(var_pop({number}) * count({c}), 0D)"
        return DoubleType(), [
            AccumulatorColumn(LongType(), "moments", counted.many, counted.one, counted.make, 0),
            AccumulatorColumn(
                DoubleType(), "moments", f"avg({number})", number, lambda of, n: of[name].cast(pa.float64()), 0.0
            ),
            AccumulatorColumn(DoubleType(), "moments", squares, "0D", lambda of, n: pa.array(np.zeros(n)), 0.0),
        ]
    if how in ("first", "last"):
        nulls = str(aggregate.ignore_nulls).lower()
        merge = f"{how}_valid" if aggregate.ignore_nulls else how
        value = AccumulatorColumn(kind, merge, f"{how}({c}, {nulls})", c, lambda of, n: of[name])
        # The value is null for no rows and for a row with null: this column tells them apart.
        there = AccumulatorColumn(BooleanType(), merge, "true", "true", lambda of, n: pa.array(np.ones(n, bool)), False)
        return kind, [value] if aggregate.ignore_nulls else [value, there]
    elements = f"filter(array({c}), x -> x is not null)"
    if how == "collect_list":
        return array, [
            AccumulatorColumn(array, "joined", f"collect_list({c})", elements, lambda of, n: _elements(of[name]), [])
        ]
    if how in ("collect_set", "count_distinct"):
        part = AccumulatorColumn(array, "united", f"collect_set({c})", elements, lambda of, n: _elements(of[name]), [])
        return LongType() if how == "count_distinct" else array, [part]
    if how == "approx_count_distinct":
        # Sketch the hash, since Spark's sketches accept few types.
        hashed = _hash_sql(c)
        return LongType(), _sketch_columns(sketches.DISTINCT, aggregate, hashed, lambda of, n: _hashes(of[name], kind))
    if how == "approx_percentile":
        number = f"nanvl({_as_double(c, kind)}, null)"
        parts = _sketch_columns(sketches.QUANTILES, aggregate, number, lambda of, n: _doubles(of[name]))
        of = DoubleType() if isinstance(kind, StringType) else kind
        return ArrayType(of) if isinstance(aggregate.percentage, tuple) else of, parts
    return kind, [AccumulatorColumn(kind, how, f"{how}({c})", c, lambda of, n: of[name])]


def _hash_sql(c: str) -> str:
    return f"if({c} is null, null, xxhash64({c}))"


def _sketch_columns(how: str, aggregate: Aggregate, value: str, values: Make) -> list[AccumulatorColumn]:
    """Return two columns: a list, which holds the value of one row, and a sketch of many rows."""
    size = sketches.size_of(how, aggregate.error)
    merge, element = f"{how}_{size}", LongType() if how == sketches.DISTINCT else DoubleType()
    function = "hll_sketch_agg" if how == sketches.DISTINCT else "kll_sketch_agg_double"
    list_type = ArrayType(element)
    one = f"filter(array({value}), x -> x is not null)"
    sketch = f"if(count({value}) = 0, null, {function}({value}, {size}))"
    return [
        AccumulatorColumn(
            list_type, merge, f"cast(null as {list_type.ddl})", one, lambda of, n: _elements(values(of, n)), []
        ),
        AccumulatorColumn(BinaryType(), merge, sketch, "cast(null as binary)", lambda of, n: pa.nulls(n, pa.binary())),
    ]


def _as_double(c: str, kind: DataType) -> str:
    if isinstance(kind, TimestampType):
        return f"cast(unix_micros({c}) as double)"
    return f"cast(unix_date({c}) as double)" if isinstance(kind, DateType) else f"cast({c} as double)"


# -- types, the same as Spark's


def _sum_type(kind: DataType, *, exact: bool) -> DataType:
    """Return the type of a sum; with `exact`, a sum of integers is an integer."""
    if isinstance(kind, DecimalType):
        return DecimalType(min(kind.precision + 10, MAX_DECIMAL_PRECISION), kind.scale)
    return LongType() if exact and isinstance(kind, IntegralType) else DoubleType()


def _mean_type(kind: DataType) -> DataType:
    if isinstance(kind, DecimalType):
        most = MAX_DECIMAL_PRECISION
        return DecimalType(min(kind.precision + 4, most), min(kind.scale + 4, most))
    return DoubleType()


def check_type(aggregate: Aggregate, kind: DataType, uid: str) -> None:
    """Refuse a column whose type the aggregate does not accept."""
    if aggregate.kind in ("sum", "avg", *SPREADS):
        # Numbers are parsed from texts, too.
        fits, expected = isinstance(kind, (*NUMBERS, StringType)), "a number"
    elif aggregate.kind in ("min", "max", *COMPARING):
        fits, expected = _is_ordered(kind), "a number, a text, a boolean, a date or a time, or a struct of such"
    elif aggregate.kind == "approx_percentile":
        known = (*NUMBERS, StringType, DateType, TimestampType)
        fits, expected = isinstance(kind, known), "a number, a date or a timestamp"
    elif aggregate.kind in ("collect_set", "count_distinct", "approx_count_distinct"):
        fits, expected = not kind.contains_map(), "something without maps, which are not compared"
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


# -- values


def _ones(columns: Values, n: int) -> pa.Array:
    return pa.array(np.ones(n, np.int64))


def _null_of(kind: DataType) -> pa.Scalar:
    return pa.scalar(None, to_arrow_type(kind))


def _elements(column: pa.Array) -> pa.Array:
    """Return a list of one element for each value, and an empty list for null."""
    ends = np.cumsum(pc.is_valid(column).to_numpy(zero_copy_only=False))
    return pa.ListArray.from_arrays(pa.array(np.append(0, ends), pa.int32()), column.drop_null())


def _hashes(column: pa.Array, kind: DataType) -> pa.Array:
    """Return a 64-bit hash of each value. It differs from Spark's, with the same quality."""
    encode = ValueCodec(kind).encode
    values = to_python(column, kind)
    digests = [None if v is None else hashlib.blake2b(encode(v), digest_size=8).digest() for v in values]
    return pa.array([None if d is None else int.from_bytes(d, "little", signed=True) for d in digests], pa.int64())


def _doubles(column: pa.Array) -> pa.Array:
    """Return numbers, dates as days and times as microseconds, with null for NaN."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    doubles = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(doubles), _null_of(DoubleType()), doubles)
