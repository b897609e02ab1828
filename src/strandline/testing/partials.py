"""Accumulators of one event: the columns of each aggregate, in the types that Spark gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.aggregates import SPREADS, Aggregate
from strandline.core.errors import ConfigurationError
from strandline.format.values import ValueCodec
from strandline.runtime.operators.aggregates import sketches
from strandline.runtime.operators.aggregates.functions import NUMBERS, check_type
from strandline.types.columns import to_arrow_type, to_python
from strandline.types.datatypes import (
    MAX_DECIMAL_PRECISION,
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    IntegralType,
    LongType,
    StructType,
)

_COMPUTING = ("sum", "avg", *SPREADS)
Make = Callable[[Sequence[pa.Array], int], pa.Array]
"""Gets the columns of a stream and how many rows they have."""


@dataclass(frozen=True, slots=True)
class Part:
    """One column of an accumulator: its type, how two become one, and how it is made of events."""

    type: DataType
    merge: str
    make: Make


@dataclass(frozen=True, slots=True)
class Result:
    """The type of a result, and its accumulator's columns."""

    type: DataType
    parts: list[Part]


def make_result(name: str, aggregate: Aggregate, schema: StructType, uid: str) -> Result:
    """Return what one aggregate is made of on a stream of these columns."""
    if aggregate.column is None:
        return Result(LongType(), [Part(LongType(), "sum", _ones)])
    at = _place(name, aggregate.column, schema, uid)
    by_at = None if aggregate.by is None else _place(name, aggregate.by, schema, uid)
    kind = schema.fields[at].type
    _check_type(aggregate, kind if by_at is None else schema.fields[by_at].type, uid)
    if by_at is not None:
        by = schema.fields[by_at].type
        # Where there is nothing to compare, the value does not count.
        value = Part(kind, aggregate.kind, lambda c, n: pc.if_else(pc.is_valid(c[by_at]), c[at], _null_of(kind)))
        return Result(kind, [value, Part(by, aggregate.kind, lambda c, n: c[by_at])])
    return _of_column(aggregate, kind, at)


def _of_column(aggregate: Aggregate, kind: DataType, at: int) -> Result:
    how = aggregate.kind
    counted = Part(LongType(), "sum", lambda columns, n: pc.is_valid(columns[at]).cast(pa.int64()))
    if how == "count":
        return Result(LongType(), [counted])
    if how in ("sum", "avg"):
        total = _sum_type(kind, exact=how == "sum")
        summed = Part(total, "sum", lambda columns, n: columns[at].cast(to_arrow_type(total)))
        return Result(total, [summed]) if how == "sum" else Result(_mean_type(kind), [summed, counted])
    if how in SPREADS:
        number = Part(DoubleType(), "moments", lambda columns, n: columns[at].cast(pa.float64()))
        squares = Part(DoubleType(), "moments", lambda columns, n: pa.array(np.zeros(n)))
        return Result(DoubleType(), [Part(LongType(), "moments", counted.make), number, squares])
    if how in ("first", "last"):
        return Result(kind, [Part(kind, f"{how}_valid" if aggregate.ignore_nulls else how, lambda c, n: c[at])])
    if how in ("collect_list", "collect_set", "count_distinct"):
        merge = "joined" if how == "collect_list" else "united"
        part = Part(ArrayType(kind), merge, lambda columns, n: _elements(columns[at]))
        return Result(LongType() if how == "count_distinct" else ArrayType(kind), [part])
    if how == "approx_count_distinct":
        hashes = _sketched(sketches.DISTINCT, aggregate, LongType(), lambda columns, n: _hashes(columns[at], kind))
        return Result(LongType(), hashes)
    if how == "approx_percentile":
        numbers = _sketched(sketches.QUANTILES, aggregate, DoubleType(), lambda columns, n: _doubles(columns[at]))
        return Result(ArrayType(kind) if isinstance(aggregate.percentage, tuple) else kind, numbers)
    return Result(kind, [Part(kind, how, lambda columns, n: columns[at])])


def _sketched(how: str, aggregate: Aggregate, element: DataType, values: Make) -> list[Part]:
    """Return the list of values and the sketch; of one event there is none."""
    merge = f"{how}_{sketches.size_of(how, aggregate.error)}"
    held = Part(ArrayType(element), merge, lambda columns, n: _elements(values(columns, n)))
    return [held, Part(BinaryType(), merge, lambda columns, n: pa.nulls(n, pa.binary()))]


# -- types, as Spark has them


def _sum_type(kind: DataType, *, exact: bool) -> DataType:
    """Return what values are added up in; `exact` says whether integers are to stay such."""
    if isinstance(kind, DecimalType):
        return DecimalType(min(kind.precision + 10, MAX_DECIMAL_PRECISION), kind.scale)
    return LongType() if exact and isinstance(kind, IntegralType) else DoubleType()


def _mean_type(kind: DataType) -> DataType:
    if isinstance(kind, DecimalType):
        most = MAX_DECIMAL_PRECISION
        return DecimalType(min(kind.precision + 4, most), min(kind.scale + 4, most))
    return DoubleType()


def _check_type(aggregate: Aggregate, kind: DataType, uid: str) -> None:
    if aggregate.kind in _COMPUTING and not isinstance(kind, NUMBERS):
        raise ConfigurationError(
            f"operator '{uid}': {aggregate.kind} of '{aggregate.column}' is over {kind.ddl}, expected a number"
        )
    check_type(aggregate, kind, uid)


def _place(name: str, column: str, schema: StructType, uid: str) -> int:
    if column not in schema.names:
        raise ConfigurationError(
            f"operator '{uid}': the aggregate '{name}' is over {column!r}, and the columns are "
            f"{', '.join(schema.names)}",
            hint="in a harness an aggregate is over a column, since expressions are Spark's to compute: give events "
            "that have it",
        )
    return schema.names.index(column)


# -- values


def _ones(columns: Sequence[pa.Array], n: int) -> pa.Array:
    return pa.array(np.ones(n, np.int64))


def _null_of(kind: DataType) -> pa.Scalar:
    return pa.scalar(None, to_arrow_type(kind))


def _elements(column: pa.Array) -> pa.Array:
    """Return a list of each value; of null, an empty one."""
    ends = np.cumsum(pc.is_valid(column).to_numpy(zero_copy_only=False))
    return pa.ListArray.from_arrays(pa.array(np.append(0, ends), pa.int32()), column.drop_null())


def _hashes(column: pa.Array, kind: DataType) -> pa.Array:
    """Return 64 bits of each value: other ones than in a job, but as good."""
    encode = ValueCodec(kind).encode
    values = to_python(column, kind)
    digests = [None if v is None else hashlib.blake2b(encode(v), digest_size=8).digest() for v in values]
    return pa.array([None if d is None else int.from_bytes(d, "little", signed=True) for d in digests], pa.int64())


def _doubles(column: pa.Array) -> pa.Array:
    """Return numbers, dates as days and times as microseconds; NaN counts as null."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    found = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(found), _null_of(DoubleType()), found)
