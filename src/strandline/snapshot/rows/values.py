"""Codecs of states with one row for each entry: values, maps, broadcast state, timers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import CorruptionError
from strandline.format.keys import KeyCodec
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.format.schemas import codec_of
from strandline.format.values import ValueCodec, pack_expiry, packed_expiry, with_expiry, without_expiry
from strandline.snapshot.rows.codec import RowCodec
from strandline.snapshot.rows.columns import KEY_GROUP, MAP_KEY, TIME, VALUE, TableColumns, first_row, spread
from strandline.types.datatypes import (
    ArrayType,
    DataType,
    DoubleType,
    Field,
    FloatType,
    MapType,
    StructType,
    TimestampType,
    parse_type,
)
from strandline.types.scalars import Numbers

_BIAS = np.uint64(1 << 63)
_TIMES = pa.timestamp("us", "UTC")
_NO_TIME = b"\0" * 8
_NO_GROUP = b"\xff\xff"
_NOTHING = b"\0\0"
_TIME_END = 10


class StoredValues:
    """Codec of a table's value column, and of the times at which values expire."""

    def __init__(self, codec: ValueCodec, *, expiring: bool) -> None:
        self._codec = codec
        self._expiring = expiring

    def decode(self, data: Sequence[bytes]) -> list[pa.Array]:
        """Return the values, and the times at which they expire if the state has a TTL."""
        if not _flags(data).any():
            times = [pa.nulls(len(data), _TIMES)] if self._expiring else []
            return [self._codec.decode_arrow(data), *times]
        values = self._codec.decode_arrow([without_expiry(value) for value in data])
        return [values, to_times([packed_expiry(value) for value in data])] if self._expiring else [values]

    def encode(self, columns: TableColumns, values: pa.Array, expires: pa.Array | None) -> list[bytes]:
        """Return the values of rows as bytes."""
        encoded = columns.attempt(values, VALUE, self._codec.encode_arrow)
        if expires is None or expires.null_count == len(expires):
            return encoded
        return [
            value if packed is None else with_expiry(value, packed)
            for value, packed in zip(encoded, from_times(expires), strict=True)
        ]


def _flags(data: Sequence[bytes]) -> Numbers:
    try:
        return np.frombuffer(bytes(map(itemgetter(0), data)), np.uint8)
    except IndexError:
        raise CorruptionError("a stored value has no bytes", hint="the state was damaged") from None


def to_times(packed: Sequence[bytes | None]) -> pa.Array:
    """Return the bytes of times as a column."""
    absent = np.fromiter((item is None for item in packed), bool, len(packed))
    numbers = np.frombuffer(b"".join([item or _NO_TIME for item in packed]), ">u8").astype(np.uint64)
    return pa.array((numbers ^ _BIAS).view(np.int64), mask=absent).view(_TIMES)


def from_times(times: pa.Array) -> list[bytes | None]:
    """Return a column of times as bytes."""
    return [None if at is None else pack_expiry(at) for at in times.view(pa.int64()).to_pylist()]


class ValueRows(RowCodec):
    """Codec of values and maps: a row has the key, perhaps a map's key, and the value."""

    def __init__(self, operator: OperatorInfo, state: StateInfo, over_us: int | None) -> None:
        kind = parse_type(state.value_type)
        sub_keys = [Field(MAP_KEY, parse_type(state.key_type))] if state.key_type else []
        super().__init__(operator, state, [*sub_keys, Field(VALUE, kind)], over_us)
        self._codec = KeyCodec([*self._key_types, *(field.type for field in sub_keys)])
        self._values = StoredValues(codec_of(state), expiring=self._ttl is not None)
        self.plain = all(map(_orders_itself, self._codec.types)) and _is_unchanged(kind)

    def _decoded(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        groups, columns = self._codec.decode_arrow(keys)
        return self._rows([self._groups(groups), *columns, *self._values.decode(values)])

    def _encoded(self, columns: list[pa.Array]) -> list[tuple[bytes, bytes]]:
        at = 1 + len(self._codec.types)
        keys = self._keys_of(columns[0], columns[1:at])
        order = self._in_order(keys)
        if order is not None:
            columns, keys = spread(columns, order), [keys[row] for row in order.tolist()]
        values = self._values.encode(self._columns, columns[at], columns[at + 1] if self._ttl else None)
        return list(zip(keys, values, strict=True))

    def _sorted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if not self.plain:
            return super()._sorted(rows)
        # Sort by columns instead of encoded keys: several times as fast.
        names = rows.schema.names[: 1 + len(self._codec.types)]
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names]))
        same = np.ones(max(0, rows.num_rows - 1), bool)
        for name in names:
            column = rows.column(name)
            same &= pc.equal(column.slice(1), column.slice(0, len(same))).to_numpy(zero_copy_only=False)
        if same.any():
            row = first_row(same)
            why = f"row {row + 1} has the same key"
            raise self._columns.refused(names[-1], row, why, hint="keep one of them", same_as=row + 1)
        return rows

    def _groups(self, groups: Numbers) -> pa.Array:
        return pa.array(groups)

    def _keys_of(self, groups: pa.Array, columns: Sequence[pa.Array]) -> list[bytes]:
        return self._codec.encode_arrow(groups, columns)


def _orders_itself(kind: DataType) -> bool:
    """Whether Arrow sorts values like their bytes in keys, and equal values have one form."""
    return not isinstance(kind, FloatType | DoubleType | StructType)


def _is_unchanged(kind: DataType) -> bool:
    """Whether every value of the Arrow type can be stored, and is decoded unchanged."""
    if isinstance(kind, StructType):
        return all(_is_unchanged(field.type) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_unchanged(kind.element)
    return not isinstance(kind, MapType | FloatType)


class BroadcastRows(ValueRows):
    """Codec of broadcast state: a map without a key, equal in all partitions."""

    def __init__(self, operator: OperatorInfo, state: StateInfo, over_us: int | None) -> None:
        super().__init__(operator, state, over_us)
        self.plain = False

    def _nullable(self) -> list[str]:
        return [KEY_GROUP]

    def _groups(self, groups: Numbers) -> pa.Array:
        if (groups != int.from_bytes(_NO_GROUP, "big")).any():
            raise CorruptionError(f"{self._columns.where}: an entry of broadcast state belongs to a key group")
        return pa.nulls(len(groups), pa.int32())

    def _keys_of(self, groups: pa.Array, columns: Sequence[pa.Array]) -> list[bytes]:
        if groups.null_count < len(groups):
            row = int(np.flatnonzero(groups.is_valid().to_numpy(zero_copy_only=False))[0])
            raise self._columns.refused(KEY_GROUP, row, "broadcast state has no key group: expected null")
        zeros = pa.array(np.zeros(len(groups), np.int32))
        return [_NO_GROUP + key[2:] for key in self._codec.encode_arrow(zeros, columns)]


class TimerRows(RowCodec):
    """Codec of timers. Entries are in the order of times, rows in the order of keys."""

    whole_groups = True

    def __init__(self, operator: OperatorInfo, state: StateInfo, over_us: int | None) -> None:
        super().__init__(operator, state, [Field(TIME, TimestampType())], over_us)
        self._codec = KeyCodec([*self._key_types, TimestampType()])

    def _decoded(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        moved = [key[:2] + key[_TIME_END:] + key[2:_TIME_END] for key in keys]
        groups, columns = self._codec.decode_arrow(sorted(moved))
        return self._rows([pa.array(groups), *columns])

    def _encoded(self, columns: list[pa.Array]) -> list[tuple[bytes, bytes]]:
        keys = self._codec.encode_arrow(columns[0], columns[1:])
        self._in_order(keys)
        moved = sorted([key[:2] + key[-8:] + key[2:-8] for key in keys])
        return [(key, _NOTHING) for key in moved]
