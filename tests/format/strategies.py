"""Hypothesis strategies for types, and for values in exactly the forms that codecs give back."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from strandline.types.datatypes import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    Field,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from strandline.types.records import record_type

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.one_of(st.sampled_from(["a", "b", "cnt", "class", "_x", "two words", "b`t", "count", "é", "1a"]), st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5))  # fmt: skip


def decimals() -> st.SearchStrategy[DataType]:
    return st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s)))


def scalars() -> st.SearchStrategy[DataType]:
    plain: list[DataType] = [
        BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType(), StringType(),
        BinaryType(), DateType(), TimestampType(), TimestampNTZType(),
    ]  # fmt: skip
    return st.one_of(st.sampled_from(plain), decimals())


def structs(parts: st.SearchStrategy[DataType], max_size: int = 4) -> st.SearchStrategy[DataType]:
    names = st.lists(NAMES, min_size=1, max_size=max_size, unique_by=str.lower)
    return names.flatmap(
        lambda found: st.tuples(*[parts] * len(found)).map(
            lambda types: StructType(tuple(Field(n, t) for n, t in zip(found, types, strict=True)))
        )
    )


def types() -> st.SearchStrategy[DataType]:
    return st.recursive(
        scalars(),
        lambda inner: st.one_of(
            inner.map(ArrayType),
            structs(inner),
            st.tuples(inner.filter(lambda t: not t.contains_map()), inner).map(lambda kv: MapType(*kv)),
        ),
        max_leaves=6,
    )


def key_types() -> st.SearchStrategy[DataType]:
    return st.one_of(scalars(), structs(st.one_of(scalars(), structs(scalars(), 2)), 3))


def values(kind: DataType, *, hashable: bool = False, ordered: bool = False) -> st.SearchStrategy[Any]:
    """Values in canonical form. `ordered`: only such as Python can compare (no nulls, no NaN)."""

    def inner(part: DataType) -> st.SearchStrategy[Any]:
        found = values(part, hashable=hashable, ordered=ordered)
        return found if ordered else st.one_of(st.none(), found)

    if isinstance(kind, ArrayType):
        return st.lists(inner(kind.element), max_size=4).map(tuple if hashable else list)
    if isinstance(kind, MapType):
        return st.dictionaries(values(kind.key, hashable=True), inner(kind.value), max_size=4)
    if isinstance(kind, StructType):
        return st.tuples(*[inner(field.type) for field in kind.fields]).map(record_type(kind.names)._make)
    return scalar_values(kind, ordered)


def scalar_values(kind: DataType, ordered: bool = False) -> st.SearchStrategy[Any]:
    if isinstance(kind, BooleanType):
        return st.booleans()
    if isinstance(kind, IntegralType):
        limit = 1 << (8 * kind.width - 1)
        return st.one_of(st.integers(-limit, limit - 1), st.sampled_from([-limit, -1, 0, 1, limit - 1]))
    if isinstance(kind, FloatType | DoubleType):
        width = 32 if isinstance(kind, FloatType) else 64
        return st.floats(width=width, allow_nan=False) if ordered else st.floats(width=width).map(one_nan)
    if isinstance(kind, DecimalType):
        limit = 10**kind.precision - 1
        return st.integers(-limit, limit).map(lambda n: decimal(n, kind.scale))
    if isinstance(kind, StringType):
        return TEXT
    if isinstance(kind, BinaryType):
        return st.binary(max_size=12)
    if isinstance(kind, DateType):
        return st.dates()
    if isinstance(kind, TimestampType):
        return st.datetimes(timezones=st.just(dt.UTC))
    assert isinstance(kind, TimestampNTZType)
    return st.datetimes()


def decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((1 if unscaled < 0 else 0, tuple(map(int, str(abs(unscaled)))), -scale))


def one_nan(value: float) -> float:
    return math.nan if value != value else value


def same(left: Any, right: Any) -> bool:
    """Return whether two values are equal in class, bits and order of entries; NaN is NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return (left != left and right != right) or struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Decimal):
        return left.as_tuple() == right.as_tuple()
    if isinstance(left, dt.datetime):
        return left == right and left.tzinfo is right.tzinfo
    return bool(left == right)
