"""Spark's `hash(…)` in Python: 32-bit Murmur3 with seed 42, chained over columns, with Spark's deviations.

Spark computes key groups by this hash in the JVM; a point look-up outside of Spark must get the same key group. Nulls
do not change the hash, -0.0 counts as 0.0, and each byte after the last whole word is a round of its own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from strandline.core.ids import KeyGroup
from strandline.types.datatypes import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from strandline.types.plain import to_unscaled
from strandline.types.scalars import FIXED_SCALARS

SEED = 42
_MASK = 0xFFFFFFFF
_C1, _C2 = 0xCC9E2D51, 0x1B873593
LONG_DECIMAL_PRECISION = 18
_LONGS = (LongType, TimestampType, TimestampNTZType)

Hash = Callable[[Any, int], int]
"""From a value (never null) and an unsigned seed to an unsigned hash."""


def spark_hash(values: Sequence[Any], types: Sequence[DataType]) -> int:
    """Return Spark's `hash(columns…)`, a signed 32-bit integer. Values are in their Python forms."""
    unsigned = _chain(values, map(hasher, types), SEED)
    return unsigned - (1 << 32) if unsigned & 0x80000000 else unsigned


def key_group(values: Sequence[Any], types: Sequence[DataType], max_parallelism: int) -> KeyGroup:
    """Return the key group of a key, which has one value for each key column."""
    return KeyGroup(spark_hash(values, types) % max_parallelism)


def hasher(kind: DataType) -> Hash:
    """Return the hash function for values of a type."""
    if isinstance(kind, StringType):
        return lambda value, seed: _hash_bytes(value.encode(), seed)
    if isinstance(kind, BinaryType):
        return _hash_bytes
    if isinstance(kind, FloatType | DoubleType):
        return _hash_float if isinstance(kind, FloatType) else _hash_double
    if isinstance(kind, DecimalType):
        return _decimal_hasher(kind)
    if isinstance(kind, ArrayType):
        element = hasher(kind.element)
        return lambda value, seed: _chain(value, [element] * len(value), seed)
    if isinstance(kind, MapType):
        pair = [hasher(kind.key), hasher(kind.value)]
        return lambda value, seed: _chain([p for item in value.items() for p in item], pair * len(value), seed)
    if isinstance(kind, StructType):
        fields = [hasher(field.type) for field in kind.fields]
        return lambda value, seed: _chain(value, fields, seed)
    number = FIXED_SCALARS[kind].to_number or (int if isinstance(kind, BooleanType) else None)
    words = _hash_long if isinstance(kind, _LONGS) else _hash_int
    return words if number is None else lambda value, seed: words(number(value), seed)


def _chain(values: Sequence[Any], hashers: Iterable[Hash], seed: int) -> int:
    for value, hasher in zip(values, hashers, strict=True):
        if value is not None:
            seed = hasher(value, seed)
    return seed


def _decimal_hasher(kind: DecimalType) -> Hash:
    digits = to_unscaled(kind.scale)
    if kind.precision <= LONG_DECIMAL_PRECISION:
        return lambda value, seed: _hash_long(digits(value), seed)

    def hash_large(value: Any, seed: int) -> int:
        number = digits(value)
        # Like Java's BigInteger.toByteArray: the shortest two's complement with the sign.
        size = ((number if number >= 0 else ~number).bit_length() >> 3) + 1
        return _hash_bytes(number.to_bytes(size, "big", signed=True), seed)

    return hash_large


def _hash_float(value: float, seed: int) -> int:
    bits = 0x7FC00000 if math.isnan(value) else struct.unpack("<I", struct.pack("<f", value or 0.0))[0]
    return _hash_int(bits, seed)


def _hash_double(value: float, seed: int) -> int:
    bits = 0x7FF8 << 48 if math.isnan(value) else struct.unpack("<Q", struct.pack("<d", value or 0.0))[0]
    return _hash_long(bits, seed)


def _hash_int(value: int, seed: int) -> int:
    return _finish(_mix(seed, value & _MASK), 4)


def _hash_long(value: int, seed: int) -> int:
    return _finish(_mix(_mix(seed, value & _MASK), value >> 32 & _MASK), 8)


def _hash_bytes(data: bytes, seed: int) -> int:
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        seed = _mix(seed, word)
    for (byte,) in struct.iter_unpack("<b", data[whole:]):
        seed = _mix(seed, byte & _MASK)
    return _finish(seed, len(data))


def _mix(seed: int, word: int) -> int:
    word = word * _C1 & _MASK
    word = ((word << 15 | word >> 17) & _MASK) * _C2 & _MASK
    seed ^= word
    return ((seed << 13 | seed >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK


def _finish(seed: int, length: int) -> int:
    seed ^= length
    seed = (seed ^ seed >> 16) * 0x85EBCA6B & _MASK
    seed = (seed ^ seed >> 13) * 0xC2B2AE35 & _MASK
    return seed ^ seed >> 16
