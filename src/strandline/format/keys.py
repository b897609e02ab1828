"""The encoding of keys: `key group (2 bytes, big-endian) ‖ columns`, in the values' order as bytes, and prefix-free.

See docs/format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.core.errors import ConfigurationError, CorruptionError, StateTypeError
from strandline.core.keygroups import MAX_MAX_PARALLELISM
from strandline.format.keybytes import KeyBytes
from strandline.format.keycolumns import FixedColumn, key_column, one_nan
from strandline.types.coercion import Coercion, MisfitError, coercion, short_repr
from strandline.types.datatypes import DataType, DoubleType, FloatType, StructType
from strandline.types.plain import identity
from strandline.types.scalars import Numbers, tolist

_GROUP_BYTES = 2
_DOES_NOT_FIT = (TypeError, ValueError, AttributeError, ArithmeticError, IndexError, struct.error)


class KeyCodec:
    """Encodes and decodes keys: scalars if there is one column, tuples if there are several. Keys are never null.

    Encoding raises StateTypeError for a key that does not fit; decoding raises CorruptionError for invalid bytes.
    """

    def __init__(self, types: Sequence[DataType]) -> None:
        if not types:
            raise ConfigurationError("a key has no columns", hint="name at least one column in key_by")
        self.types = tuple(types)
        self._single = len(self.types) == 1
        self._columns = [key_column(kind) for kind in self.types]
        self._first = self._columns[0]
        self._groups = _group_bytes()
        self._coercions = [_coercion(kind) for kind in self.types]
        self._ddl = ", ".join(kind.ddl for kind in self.types)
        fixed = [column for column in self._columns if isinstance(column, FixedColumn)]
        # If all columns have fixed width, many keys are one numpy array.
        self._fixed = fixed if len(fixed) == len(self._columns) else []
        parts: list[Any] = [("group", ">u2"), *((f"f{i}", column.dtype) for i, column in enumerate(self._fixed))]
        self._dtype = np.dtype(parts)
        normalisers = [_normaliser(kind) for kind in self.types]
        self._normalisers = [each or identity for each in normalisers] if any(normalisers) else None

    @property
    def size_bytes(self) -> int | None:
        """The size of every encoded key, with its key group; None if sizes differ."""
        return self._dtype.itemsize if self._fixed else None

    # -- encoding

    def encode(self, key_group: int, key: Any) -> bytes:
        """Encode one key."""
        try:
            if self._single:
                return self._groups[key_group] + self._first.encode(key)
            if len(key) == len(self._columns):
                return self._groups[key_group] + b"".join([c.encode(part) for c, part in zip(self._columns, key)])  # noqa: B905
            raise ValueError("another number of columns")
        except _DOES_NOT_FIT as error:
            raise self._misfit([key], error) from None

    def encode_many(self, key_groups: Sequence[int], keys: Sequence[Any]) -> list[bytes]:
        """Encode keys, in order, each with its key group."""
        if not len(keys):
            return []
        try:
            columns: Iterable[Sequence[Any]] = [keys] if self._single else zip(*keys, strict=True)
            if self._fixed:
                ordered = [c.order(values).astype(c.dtype) for c, values in zip(self._fixed, columns, strict=True)]
                return _side_by_side([np.asarray(key_groups, ">u2"), *ordered])
            pieces = [p for c, values in zip(self._columns, columns, strict=True) for p in c.pieces(values)]
            return list(map(b"".join, zip(map(self._groups.__getitem__, key_groups), *pieces)))  # noqa: B905
        except _DOES_NOT_FIT as error:
            raise self._misfit(keys, error) from None

    def encode_arrow(self, key_groups: pa.Array, columns: Sequence[pa.Array]) -> list[bytes]:
        """Encode keys from Arrow columns without nulls."""
        packed = [key_groups.to_numpy().astype(">u2")]
        for one, column in zip(self._columns, columns, strict=True):
            parts = one.packed(column)
            if parts is None:
                break
            packed += parts
        else:
            return _side_by_side(packed)
        pieces = [p for c, column in zip(self._columns, columns, strict=True) for p in c.arrow_pieces(column)]
        groups = map(self._groups.__getitem__, key_groups.to_pylist())
        return list(map(b"".join, zip(groups, *pieces)))  # noqa: B905

    def encode_sub(self, value: Any) -> bytes:
        """Encode a value of the only column without a key group, to follow a key, like the key of a map."""
        try:
            return self._first.encode(value)
        except _DOES_NOT_FIT as error:
            raise self._misfit([value], error) from None

    # -- decoding

    def decode(self, data: bytes) -> tuple[int, Any, int]:
        """Return the key group, the key, and the position in the bytes at which the key ends."""
        if len(data) < _GROUP_BYTES:
            raise CorruptionError(f"a stored key has {len(data)} bytes, which is less than its key group")
        at = _GROUP_BYTES
        group = data[0] << 8 | data[1]
        parts = []
        try:
            if self._single:
                return group, *self._first.decode(data, at)
            for column in self._columns:
                part, at = column.decode(data, at)
                parts.append(part)
        except _DOES_NOT_FIT as error:
            raise self._damaged(data, str(error)) from error
        return group, tuple(parts), at

    def decode_many(self, data: Sequence[bytes]) -> list[Any]:
        """Return the keys of encoded keys, in order."""
        if not self._fixed or set(map(len, data)) - {self._dtype.itemsize}:
            return [self._whole(item) for item in data]
        packed = np.frombuffer(b"".join(data), self._dtype)
        columns = [column.restore(packed[f"f{i}"]) for i, column in enumerate(self._fixed)]
        return columns[0] if self._single else list(zip(*columns, strict=True))

    def decode_arrow(self, data: Sequence[bytes]) -> tuple[Numbers, list[pa.Array]]:
        """Return the key groups of encoded keys, and their columns."""
        try:
            keys = KeyBytes(data)
            groups = keys.slices(keys.starts, _GROUP_BYTES).view(">u2").reshape(-1).astype(np.int32)
            at, columns = keys.starts + _GROUP_BYTES, []
            for column in self._columns:
                values, at = column.decode_arrow(keys, at)
                columns.append(values)
            if np.array_equal(at, keys.ends):
                return groups, columns
            why = "some end elsewhere"
        except (*_DOES_NOT_FIT, pa.ArrowException) as error:
            why = str(error)
        for item in data:
            self._whole(item)
        raise self._damaged(b"".join(data[:1]), why)

    def decode_sub(self, data: bytes, offset: int) -> Any:
        """Return the value that `encode_sub` encoded and that begins at `offset`; it must end the bytes."""
        try:
            value, end = self._first.decode(data, offset)
        except _DOES_NOT_FIT as error:
            raise self._damaged(data, str(error)) from error
        if end != len(data):
            raise self._damaged(data, f"{len(data) - end} bytes follow it")
        return value

    def _whole(self, data: bytes) -> Any:
        _, key, end = self.decode(data)
        if end != len(data):
            raise self._damaged(data, f"{len(data) - end} bytes follow it")
        return key

    # -- checks

    def coerce(self, key: Any) -> Any:
        """Return a user's key in its canonical form; raise StateTypeError if it does not fit."""
        try:
            if self._single:
                return self.normalise([self._coercions[0](key)])[0]
            if not isinstance(key, tuple | list) or len(key) != len(self.types):
                raise MisfitError(f"a tuple of {len(self.types)} values", key)
            return self.normalise([tuple(one(part) for one, part in zip(self._coercions, key, strict=True))])[0]
        except MisfitError as misfit:
            raise self._error(key, str(misfit)) from None

    def normalise(self, keys: list[Any]) -> list[Any]:
        """Return keys such that a dict finds equal keys: all NaNs are one object, -0.0 is 0.0."""
        if self._normalisers is None:
            return keys
        if self._single:
            return [self._normalisers[0](key) for key in keys]
        return [tuple(one(part) for one, part in zip(self._normalisers, key, strict=True)) for key in keys]

    def _misfit(self, keys: Sequence[Any], error: Exception) -> StateTypeError:
        for key in keys:
            self.coerce(key)
        return self._error(keys[0] if len(keys) == 1 else keys, str(error))

    def _error(self, key: Any, why: str) -> StateTypeError:
        return StateTypeError(
            f"the key does not fit the declared type {self._ddl}: {why}",
            hint="make the key fit, or declare another key type",
            expected=self._ddl,
            actual=f"{short_repr(key)} ({type(key).__name__})",
        )

    def _damaged(self, data: bytes, why: str) -> CorruptionError:
        return CorruptionError(
            f"the stored bytes {data[:64].hex()} hold no key of {self._ddl}: {why}",
            hint="the state was damaged, or the type of the key was changed",
        )


def _side_by_side(parts: Sequence[Numbers]) -> list[bytes]:
    """Return the bytes of each place of some arrays of equal lengths, one after the other."""
    rows = np.empty(len(parts[0]), [(f"f{at}", part.dtype) for at, part in enumerate(parts)])
    for at, part in enumerate(parts):
        rows[f"f{at}"] = part
    return tolist(rows.view(f"V{rows.dtype.itemsize}"))


@lru_cache(maxsize=1)
def _group_bytes() -> list[bytes]:
    return [group.to_bytes(_GROUP_BYTES, "big") for group in range(MAX_MAX_PARALLELISM)]


def _coercion(kind: DataType) -> Coercion:
    one = coercion(kind, hashable=True)

    def coerce(part: Any) -> Any:
        if part is None:
            raise MisfitError(kind.ddl, None, "keys are never null")
        return one(part)

    return coerce


def _normaliser(kind: DataType) -> Callable[[Any], Any] | None:
    if isinstance(kind, FloatType | DoubleType):
        return lambda value: one_nan([value])[0]
    if isinstance(kind, StructType):
        parts = [_normaliser(field.type) for field in kind.fields]
        if any(parts):
            each = [part or identity for part in parts]
            return lambda record: record._make(
                [None if v is None else one(v) for one, v in zip(each, record, strict=True)]
            )
    return None
