"""Spark's `hash(…)` of Arrow columns, for all rows at once; see murmur.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from strandline.types.columns import arrow_numbers, to_python
from strandline.types.datatypes import (
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from strandline.types.murmur import LONG_DECIMAL_PRECISION, SEED, hasher
from strandline.types.scalars import Numbers

_LONGS = (LongType, TimestampType, TimestampNTZType, DoubleType)
_U32 = np.uint32


def key_groups(columns: Sequence[pa.Array], types: Sequence[DataType], max_parallelism: int) -> Numbers:
    """Return the key group of each row's key; the columns have exactly the types."""
    hashes = np.full(len(columns[0]), SEED, _U32)
    for column, kind in zip(columns, types, strict=True):
        hashes = _hash_column(column, kind, hashes)
    return (hashes.view(np.int32).astype(np.int64) % max_parallelism).astype(np.int32)


def _hash_column(column: pa.Array, kind: DataType, seeds: Numbers) -> Numbers:
    """Return the hash of each value of a column, from the seed of its row; a null keeps the seed."""
    if isinstance(kind, StructType):
        for child, field in zip(column.flatten(), kind.fields, strict=True):
            seeds = _hash_column(child, field.type, seeds)
        return seeds
    if not len(column):
        return seeds  # The buffers of an empty column may have any size.
    if isinstance(kind, StringType | BinaryType):
        hashes = _hash_texts(column, seeds)
    elif isinstance(kind, DecimalType):
        hashes = _hash_decimals(column, kind, seeds)
    else:
        numbers = _bits(arrow_numbers(column, kind))
        is_long = isinstance(kind, _LONGS)
        hashes = _hash_longs(numbers, seeds) if is_long else _finish(_mix(seeds, numbers.astype(_U32)), 4)
    if column.null_count:
        hashes = np.where(column.is_valid().to_numpy(zero_copy_only=False), hashes, seeds)
    return hashes


def _bits(numbers: Numbers) -> Numbers:
    """Return the bits of numbers as unsigned integers of 32 or 64 bits; all NaN are equal, and so are 0.0 and -0.0."""
    if numbers.dtype.kind != "f":
        signed: Numbers = numbers if numbers.dtype.itemsize == 8 else numbers.astype(np.int32)
        return signed.view(np.uint64 if numbers.dtype.itemsize == 8 else _U32)
    plain: Numbers = np.where(np.isnan(numbers), numbers.dtype.type(np.nan), numbers + numbers.dtype.type(0.0))
    return plain.view(np.uint64 if numbers.dtype.itemsize == 8 else _U32)


def _hash_longs(numbers: Numbers, seeds: Numbers) -> Numbers:
    low, high = numbers.astype(_U32), (numbers >> np.uint64(32)).astype(_U32)
    return _finish(_mix(_mix(seeds, low), high), 8)


def _hash_decimals(column: pa.Array, kind: DecimalType, seeds: Numbers) -> Numbers:
    if kind.precision <= LONG_DECIMAL_PRECISION:
        words = np.frombuffer(column.buffers()[1], np.uint64)
        return _hash_longs(words[2 * column.offset :: 2][: len(column)], seeds)
    hash_one = hasher(kind)
    pairs = zip(to_python(column, kind), seeds.tolist(), strict=True)
    return np.array([seed if value is None else hash_one(value, seed) for value, seed in pairs], _U32)


def _hash_texts(column: pa.Array, seeds: Numbers) -> Numbers:
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    starts, sizes = bounds[:-1], np.diff(bounds)
    hashes = seeds.copy()
    # Three more bytes, so that a word begins at each byte.
    padded = np.frombuffer((data.to_pybytes() if data is not None else b"") + b"\0\0\0", np.uint8)
    words = np.lib.stride_tricks.sliding_window_view(padded, 4) if len(padded) > 3 else padded
    counts = sizes >> 2
    for number in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > number)
        word = np.ascontiguousarray(words[starts[rows] + 4 * number]).view("<u4").reshape(-1)
        hashes[rows] = _mix(hashes[rows], word)
    for number in range(3):
        rows = np.flatnonzero((sizes & 3) > number)
        byte = padded[starts[rows] + 4 * counts[rows] + number].view(np.int8)
        hashes[rows] = _mix(hashes[rows], byte.astype(np.int32).view(_U32))
    return _finish(hashes, sizes.astype(_U32))


def _mix(seeds: Numbers, words: Numbers) -> Numbers:
    words = words * _U32(0xCC9E2D51)
    words = _rotate(words, 15) * _U32(0x1B873593)
    return _rotate(seeds ^ words, 13) * _U32(5) + _U32(0xE6546B64)


def _rotate(numbers: Numbers, bits: int) -> Numbers:
    result: Numbers = numbers << _U32(bits) | numbers >> _U32(32 - bits)
    return result


def _finish(seeds: Numbers, length: Numbers | int) -> Numbers:
    seeds = seeds ^ _U32(length) if isinstance(length, int) else seeds ^ length
    seeds = (seeds ^ seeds >> _U32(16)) * _U32(0x85EBCA6B)
    seeds = (seeds ^ seeds >> _U32(13)) * _U32(0xC2B2AE35)
    hashes: Numbers = seeds ^ seeds >> _U32(16)
    return hashes
