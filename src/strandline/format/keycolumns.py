"""Encodings of key columns. Their byte order is the order of the values, and none is a prefix of another."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.format.keybytes import KeyBytes
from strandline.types.columns import arrow_numbers, conform, numbers_to_arrow, to_arrow_type, to_python
from strandline.types.datatypes import (
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructType,
)
from strandline.types.plain import from_unscaled, to_unscaled
from strandline.types.plaincolumns import rescaled
from strandline.types.records import record_type
from strandline.types.scalars import FIXED_SCALARS, FixedScalar, Numbers, tolist

_LONG_DECIMAL_PRECISION, _LONG_DIGITS = 18, 19
_END = b"\0\0"
_NULL, _PRESENT = b"\x01", b"\x02"
_WIDE_BIAS = 1 << 127


class KeyColumn:
    """Encodes and decodes one column of a key: value by value, unless a subclass has a faster way."""

    def __init__(self, kind: DataType) -> None:
        self._kind = kind

    encode: Callable[[Any], bytes]
    """Encode one value; raises TypeError, ValueError and the like if it does not fit."""

    def pieces(self, values: Sequence[Any]) -> list[Iterable[bytes]]:
        """Encode values into iterables; the encoding of a value is the concatenation of its item of each iterable."""
        return [map(self.encode, values)]

    def arrow_pieces(self, array: pa.Array) -> list[Iterable[bytes]]:
        """Encode a column without nulls, as `pieces` does."""
        return self.pieces(to_python(array, self._kind))

    def packed(self, array: pa.Array) -> list[Numbers] | None:
        """Encode a column without nulls as arrays of fixed width, to be put side by side; None if widths differ."""
        return None

    def decode(self, data: bytes, at: int) -> tuple[Any, int]:
        """Decode the value that begins at `at`; return it and the position of its end."""
        raise NotImplementedError

    def decode_arrow(self, keys: KeyBytes, at: Numbers) -> tuple[pa.Array, Numbers]:
        """Decode the values that begin at these positions; return a column and the positions of their ends."""
        raise NotImplementedError


def key_column(kind: DataType) -> KeyColumn:
    """Return the encoding of a key column; raise ConfigurationError for a type that cannot be a key."""
    if isinstance(kind, DecimalType):
        return FixedColumn(kind) if kind.precision <= _LONG_DECIMAL_PRECISION else WideDecimalColumn(kind)
    if kind in FIXED_SCALARS:
        return FixedColumn(kind)
    if isinstance(kind, StringType | BinaryType):
        return TextColumn(kind)
    if isinstance(kind, StructType):
        return StructColumn(kind)
    raise ConfigurationError(
        f"a key is {kind.ddl}: arrays and maps cannot be keys",
        hint="make a string, a number or a struct of them with select() before key_by",
    )


class FixedColumn(KeyColumn):
    """Numbers of fixed width, as unsigned integers in the same order, big-endian."""

    def __init__(self, kind: DataType) -> None:
        super().__init__(kind)
        self._scalar = _decimal_scalar(kind) if isinstance(kind, DecimalType) else FIXED_SCALARS[kind]
        self._width = self._scalar.dtype.itemsize
        self._is_float = isinstance(kind, FloatType | DoubleType)
        self._one_by_array = self._is_float or isinstance(kind, BooleanType)
        self._bias = 0 if isinstance(kind, BooleanType) else 1 << (8 * self._width - 1)
        self._native = np.dtype(f"u{self._width}")
        self.dtype = self._native.newbyteorder(">")
        self._struct = struct.Struct(">" + {1: "B", 2: "H", 4: "I", 8: "Q"}[self._width])
        self.encode = self._encoder()

    def _encoder(self) -> Callable[[Any], bytes]:
        pack, bias, convert = self._struct.pack, self._bias, self._scalar.to_number
        if self._is_float:
            return lambda value: self.order([value]).astype(self.dtype).tobytes()
        if convert is None:
            return lambda value: pack(value + bias)
        return lambda value: pack(convert(value) + bias)

    def order(self, values: Iterable[Any]) -> Numbers:
        """Return values as unsigned integers in the same order."""
        return self._order(self._scalar.to_numbers(values))

    def arrow_order(self, array: pa.Array) -> Numbers:
        """Return a column without nulls as unsigned integers in the same order."""
        array = conform(array, self._kind)
        if isinstance(self._kind, DecimalType):
            return self.order(array.to_pylist())
        return self._order(arrow_numbers(array, self._kind))

    def _order(self, numbers: Numbers) -> Numbers:
        bias = self._native.type(self._bias)
        if not self._is_float:
            unsigned: Numbers = numbers.view(self._native)
            moved: Numbers = unsigned ^ bias
            return moved
        # As in Spark's group-by, all NaNs are equal and above all numbers, and -0.0 is 0.0.
        canonical = np.where(np.isnan(numbers), numbers.dtype.type(math.nan), numbers + numbers.dtype.type(0.0))
        bits = canonical.view(self._native)
        ordered: Numbers = np.where(bits & bias, ~bits, bits ^ bias)
        return ordered

    def restore(self, ordered: Numbers) -> list[Any]:
        """Return the values from which `order` made these integers."""
        numbers = self._restored(ordered)
        return one_nan(numbers.tolist()) if self._is_float else self._scalar.from_numbers(numbers)

    def _restored(self, ordered: Numbers) -> Numbers:
        bias = self._native.type(self._bias)
        bits = ordered.astype(self._native)
        numbers: Numbers = np.where(bits & bias, bits ^ bias, ~bits) if self._is_float else bits ^ bias
        return numbers.view(self._scalar.dtype)

    def pieces(self, values: Sequence[Any]) -> list[Iterable[bytes]]:
        return [self._cut(self.order(values))]

    def arrow_pieces(self, array: pa.Array) -> list[Iterable[bytes]]:
        return [self._cut(self.arrow_order(array))]

    def packed(self, array: pa.Array) -> list[Numbers] | None:
        return [self.arrow_order(array).astype(self.dtype)]

    def decode(self, data: bytes, at: int) -> tuple[Any, int]:
        end = at + self._width
        if self._one_by_array:
            return self.restore(np.frombuffer(data[at:end], self.dtype, 1))[0], end
        number = self._struct.unpack_from(data, at)[0] - self._bias
        convert = self._scalar.from_number
        return convert(number) if convert else number, end

    def decode_arrow(self, keys: KeyBytes, at: Numbers) -> tuple[pa.Array, Numbers]:
        ordered = keys.slices(at, self._width).view(self.dtype).reshape(-1)
        return self.restore_arrow(ordered), at + self._width

    def restore_arrow(self, ordered: Numbers) -> pa.Array:
        """Return the values from which `order` made these integers, as a column."""
        numbers = self._restored(ordered)
        if isinstance(self._kind, DecimalType):
            digits = pa.array(numbers).cast(pa.decimal128(_LONG_DIGITS, 0))
            return rescaled(digits.cast(pa.decimal128(self._kind.precision, 0)), self._kind)
        return numbers_to_arrow(numbers.astype(bool) if isinstance(self._kind, BooleanType) else numbers, self._kind)

    def _cut(self, ordered: Numbers) -> list[bytes]:
        return tolist(ordered.astype(self.dtype).view(f"V{self._width}"))


def _decimal_scalar(kind: DecimalType) -> FixedScalar:
    """Return the conversions between decimals that fit 64 bits and numbers."""
    longs, to_number, with_point = FIXED_SCALARS[LongType()], to_unscaled(kind.scale), from_unscaled(kind.scale)
    limit = 10**kind.precision

    def from_number(number: int) -> Any:
        if not -limit < number < limit:
            raise CorruptionError(f"{number} has more digits than {kind.ddl}")
        return with_point(number)

    return replace(
        longs,
        to_number=to_number,
        from_number=from_number,
        to_numbers=lambda values: longs.to_numbers(map(to_number, values)),
        from_numbers=lambda numbers: list(map(from_number, longs.from_numbers(numbers))),
    )


class TextColumn(KeyColumn):
    """Strings in UTF-8 and binaries: 00 becomes 00 FF, and 00 00 is the end."""

    def __init__(self, kind: DataType) -> None:
        super().__init__(kind)
        self._is_text = isinstance(kind, StringType)

    def encode(self, value: Any) -> bytes:
        raw: bytes = value.encode() if self._is_text else bytes(value) if type(value) is not int else _no_bytes(value)
        return raw.replace(b"\0", b"\0\xff") + _END

    def pieces(self, values: Sequence[Any]) -> list[Iterable[bytes]]:
        if self._is_text and "\0" not in "".join(values):
            return [map(str.encode, values), repeat(_END)]
        return [map(self.encode, values)]

    def decode(self, data: bytes, at: int) -> tuple[Any, int]:
        zero = data.find(b"\0", at)
        if zero >= 0 and data[zero + 1] == 0:
            raw = data[at:zero]
            return raw.decode() if self._is_text else raw, zero + 2
        while zero >= 0 and data[zero + 1 : zero + 2] == b"\xff":
            zero = data.find(b"\0", zero + 2)
        if zero < 0 or data[zero + 1 : zero + 2] != b"\0":
            raise CorruptionError(f"a key of {len(data)} bytes ends within its {self._kind.ddl}")
        raw = data[at:zero].replace(b"\0\xff", b"\0")
        return raw.decode() if self._is_text else raw, zero + 2

    def decode_arrow(self, keys: KeyBytes, at: Numbers) -> tuple[pa.Array, Numbers]:
        texts, ends = keys.texts(at)
        return texts.cast(to_arrow_type(self._kind)), ends


class WideDecimalColumn(KeyColumn):
    """Decimals beyond 18 digits: 16 bytes, big-endian, the sign bit flipped."""

    def __init__(self, kind: DecimalType) -> None:
        super().__init__(kind)
        self._unscaled, self._scaled = to_unscaled(kind.scale), from_unscaled(kind.scale)

    def encode(self, value: Any) -> bytes:
        return int.to_bytes(self._unscaled(value) + _WIDE_BIAS, 16, "big")

    def decode(self, data: bytes, at: int) -> tuple[Any, int]:
        if at + 16 > len(data):
            raise CorruptionError(f"a key of {len(data)} bytes ends within its {self._kind.ddl}")
        return self._scaled(int.from_bytes(data[at : at + 16], "big") - _WIDE_BIAS), at + 16

    def decode_arrow(self, keys: KeyBytes, at: Numbers) -> tuple[pa.Array, Numbers]:
        digits = keys.slices(at, 16)
        digits[:, 0] ^= 0x80
        little = pa.py_buffer(np.ascontiguousarray(digits[:, ::-1]))
        return pa.Array.from_buffers(to_arrow_type(self._kind), len(at), [None, little]), at + 16


class StructColumn(KeyColumn):
    """Structs: a field is 01 if it is null, else 02 and its encoding. Nulls come first."""

    def __init__(self, kind: StructType) -> None:
        super().__init__(kind)
        self._make = record_type(kind.names)._make
        self._fields = [key_column(field.type) for field in kind.fields]

    def encode(self, value: Any) -> bytes:
        return b"".join(
            _NULL if part is None else _PRESENT + column.encode(part)
            for column, part in zip(self._fields, value, strict=True)
        )

    def arrow_pieces(self, array: pa.Array) -> list[Iterable[bytes]]:
        pieces: list[Iterable[bytes]] = []
        for column, child in zip(self._fields, array.flatten(), strict=True):
            if not child.null_count:
                pieces += [repeat(_PRESENT), *column.arrow_pieces(child)]
                continue
            encoded = zip(*column.arrow_pieces(child.drop_null()))  # noqa: B905
            valid = child.is_valid().to_pylist()
            pieces.append([_PRESENT + b"".join(next(encoded)) if is_valid else _NULL for is_valid in valid])
        return pieces

    def packed(self, array: pa.Array) -> list[Numbers] | None:
        mark = np.full(len(array), _PRESENT[0], np.uint8)
        parts = []
        for column, child in zip(self._fields, array.flatten(), strict=True):
            part = None if child.null_count else column.packed(child)
            if part is None:
                return None
            parts += [mark, *part]
        return parts

    def decode(self, data: bytes, at: int) -> tuple[Any, int]:
        parts = []
        for column in self._fields:
            mark, part = data[at : at + 1], None
            at += 1
            if mark == _PRESENT:
                part, at = column.decode(data, at)
            elif mark != _NULL:
                raise CorruptionError(
                    f"a key has the byte {mark.hex() or 'nothing'} where a field of its struct begins"
                )
            parts.append(part)
        return self._make(parts), at

    def decode_arrow(self, keys: KeyBytes, at: Numbers) -> tuple[pa.Array, Numbers]:
        children = []
        for column in self._fields:
            marks = keys.slices(at, 1)[:, 0]
            at = at + 1
            present = marks == _PRESENT[0]
            if not (present | (marks == _NULL[0])).all():
                raise ValueError("a field of its struct begins with neither 01 nor 02")
            if present.all():
                child, at = column.decode_arrow(keys, at)
            else:
                there, at[present] = column.decode_arrow(keys, at[present])
                child = there.take(pa.array(np.cumsum(present) - 1, mask=~present))
            children.append(child)
        return pa.StructArray.from_arrays(children, fields=list(to_arrow_type(self._kind))), at


def one_nan(values: list[Any]) -> list[Any]:
    """Return floats with every NaN replaced by one object, so that a dict finds it again, and -0.0 by 0.0."""
    return [math.nan if v != v else v + 0.0 for v in values]


def _no_bytes(value: Any) -> bytes:
    # bytes(3) would return three zeros.
    raise TypeError(f"{value!r} is no binary")
