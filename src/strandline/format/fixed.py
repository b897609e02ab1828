"""The fixed layout: a fixed-width scalar, or a struct of such, packed as numbers after a header.

`header (2) ‖ [null bitmap] ‖ numbers`, all little-endian. Many values are encoded and decoded as one numpy array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.types.columns import arrow_numbers, check_readable, conform, numbers_to_arrow, to_arrow_type
from strandline.types.datatypes import DataType, StructType
from strandline.types.records import record_type
from strandline.types.scalars import FIXED_SCALARS, Numbers, tolist


def is_fixed(kind: DataType) -> bool:
    """Return whether values of this type have the fixed layout."""
    if isinstance(kind, StructType):
        return all(field.type in FIXED_SCALARS for field in kind.fields)
    return kind in FIXED_SCALARS


class FixedLayout:
    """Encodes and decodes values of one fixed-layout type under one header."""

    def __init__(self, kind: DataType, header: int) -> None:
        self._kind = kind
        self._header = header
        self._types = [field.type for field in kind.fields] if isinstance(kind, StructType) else [kind]
        self._scalars = [FIXED_SCALARS[part] for part in self._types]
        self._is_struct = isinstance(kind, StructType)
        self._make = record_type(kind.names)._make if isinstance(kind, StructType) else None
        nulls = (len(self._types) + 7) // 8 if self._is_struct else 0
        codes = "".join(scalar.code for scalar in self._scalars)
        self._one = struct.Struct(f"<H{nulls}s{codes}" if nulls else f"<H{codes}")
        self._no_nulls = bytes(nulls)
        # Skips header and bitmap, which are checked for all values at once.
        self._values_only = struct.Struct(f"<{2 + nulls}x{codes}")
        self._converts = any(scalar.to_number for scalar in self._scalars)
        parts: list[Any] = [("header", "<u2")]
        if nulls:
            parts.append(("nulls", "u1", (nulls,)))
        parts += [(f"f{i}", scalar.dtype) for i, scalar in enumerate(self._scalars)]
        self.dtype = np.dtype(parts)
        self._slices = np.dtype(f"V{self.dtype.itemsize}")

    # -- one value

    def encoder(self) -> Callable[[Any], bytes]:
        """Return the function that encodes one value."""
        pack, header, convert = self._one.pack, self._header, self._scalars[0].to_number
        if self._is_struct:
            return self._encode_struct
        if convert is None:
            return lambda value: pack(header, value)
        return lambda value: pack(header, convert(value))

    def decoder(self, usual: Callable[[bytes], bytes]) -> Callable[[bytes], Any]:
        """Return the function that decodes one value; `usual` converts a value that has another header."""
        unpack, unpack_values = self._one.unpack, self._values_only.unpack
        head = struct.pack("<H", self._header)
        make, convert = self._make, self._scalars[0].from_number
        if make is None:

            def decode(data: bytes) -> Any:
                _, value = unpack(data if data[:2] == head else usual(data))
                return value if convert is None else convert(value)

            return decode
        start, start_bytes = head + self._no_nulls, len(head + self._no_nulls)

        def decode_struct(data: bytes) -> Any:
            if data[:start_bytes] == start and not self._converts:
                return make(unpack_values(data))
            _, nulls, *values = unpack(data if data[:2] == head else usual(data))
            return self._record(nulls, values)

        return decode_struct

    def _encode_struct(self, record: Any) -> bytes:
        nulls = self._no_nulls
        if None in record:
            nulls = sum(1 << i for i, v in enumerate(record) if v is None).to_bytes(len(nulls), "little")
            record = [s.zero if v is None else v for s, v in zip(self._scalars, record, strict=True)]
        if self._converts:
            record = [s.to_number(v) if s.to_number else v for s, v in zip(self._scalars, record, strict=True)]
        return self._one.pack(self._header, nulls, *record)

    def _record(self, nulls: bytes, numbers: list[Any]) -> Any:
        assert self._make is not None
        if self._converts:
            numbers = [s.from_number(n) if s.from_number else n for s, n in zip(self._scalars, numbers, strict=True)]
        if nulls != self._no_nulls:
            bits = int.from_bytes(nulls, "little")
            numbers = [None if bits >> i & 1 else n for i, n in enumerate(numbers)]
        return self._make(numbers)

    # -- many values

    def encode_many(self, values: Sequence[Any]) -> list[bytes]:
        """Encode values together; raises TypeError, OverflowError or ValueError if one does not fit."""
        if not values:
            return []
        packed = self._new(len(values))
        if not self._is_struct:
            packed["f0"] = self._scalars[0].to_numbers(values)
            return self._cut(packed)
        for i, column in enumerate(zip(*values, strict=True)):
            scalar = self._scalars[i]
            if None in column:
                absent = np.fromiter((v is None for v in column), bool, len(column))
                packed["nulls"][:, i >> 3] |= absent.astype(np.uint8) << np.uint8(i & 7)
                column = tuple(scalar.zero if v is None else v for v in column)
            packed[f"f{i}"] = scalar.to_numbers(column)
        return self._cut(packed)

    def decode_many(self, data: Sequence[bytes]) -> list[Any] | None:
        """Decode values together; None if some have another header or size and must be decoded one by one."""
        packed = self.unpack(data)
        if packed is None:
            return None
        if self._make is None:
            return self._scalars[0].from_numbers(packed["f0"])
        if not self._converts and not packed["nulls"].any():
            return list(map(self._make, self._values_only.iter_unpack(packed.data)))
        columns = []
        for i, scalar in enumerate(self._scalars):
            column = scalar.from_numbers(packed[f"f{i}"])
            for row in np.flatnonzero(self._absent(packed, i)).tolist():
                column[row] = None
            columns.append(column)
        return list(map(self._make, zip(*columns, strict=True)))

    def unpack(self, data: Sequence[bytes]) -> Numbers | None:
        """Return encoded values as one numpy array; None if some have another header or size."""
        if set(map(len, data)) - {self.dtype.itemsize}:
            return None
        packed = np.frombuffer(b"".join(data), self.dtype)
        return packed if bool((packed["header"] == self._header).all()) else None

    # -- Arrow

    def encode_arrow(self, array: pa.Array) -> list[bytes]:
        """Encode an Arrow array without nulls at its top level."""
        array = conform(array, self._kind)
        packed = self._new(len(array))
        children = array.flatten() if self._is_struct else [array]
        for i, (child, kind) in enumerate(zip(children, self._types, strict=True)):
            # A value that Python cannot represent must not be stored.
            check_readable(child, kind)
            if child.null_count:
                absent = child.is_null().to_numpy(zero_copy_only=False)
                packed["nulls"][:, i >> 3] |= absent.astype(np.uint8) << np.uint8(i & 7)
            packed[f"f{i}"] = arrow_numbers(child, kind)
        return self._cut(packed)

    def decode_arrow(self, data: Sequence[bytes | None]) -> pa.Array | None:
        """Decode values into an Arrow array, null where None; None if some must be decoded one by one."""
        absent = None
        present: Sequence[Any] = data
        if None in data:
            absent = np.fromiter((item is None for item in data), bool, len(data))
            present = list(compress(data, ~absent))
        packed = self.unpack(present)
        if packed is None:
            return None
        if absent is not None:
            spread = np.zeros(len(data), self.dtype)
            spread[~absent] = packed
            packed = spread
        if not self._is_struct:
            return numbers_to_arrow(packed["f0"], self._kind, absent)
        children = [
            numbers_to_arrow(packed[f"f{i}"], kind, self._absent(packed, i)) for i, kind in enumerate(self._types)
        ]
        mask = None if absent is None else pa.array(absent)
        return pa.StructArray.from_arrays(children, fields=list(to_arrow_type(self._kind)), mask=mask)

    def _new(self, count: int) -> Numbers:
        packed = np.zeros(count, self.dtype)
        packed["header"] = self._header
        return packed

    def _cut(self, packed: Numbers) -> list[bytes]:
        # This is the fastest way to cut one buffer into many bytes objects.
        return tolist(packed.view(self._slices))

    @staticmethod
    def _absent(packed: Numbers, field: int) -> Numbers:
        absent: Numbers = (packed["nulls"][:, field >> 3] & np.uint8(1 << (field & 7))) != 0
        return absent
