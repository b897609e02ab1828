"""The encoding of values: a header of flags and schema id, then the fixed or the packed layout. See docs/format.md.

A flag in the header marks values that expire. Eight bytes with the time follow it, which compare as times do, so that
expired values are recognised without decoding.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from strandline.core.errors import ConfigurationError, CorruptionError, StateTypeError
from strandline.format.fixed import FixedLayout, is_fixed
from strandline.types.coercion import MisfitError, coercion, short_repr
from strandline.types.columns import build, conform, to_arrow_type
from strandline.types.datatypes import DataType
from strandline.types.plain import Convert, copier, from_plain, identity, plain_class, to_plain
from strandline.types.plaincolumns import arrow_to_plain, plain_to_arrow

_HAS_TTL = 1
_HEADER_BYTES = 2
_TTL_BYTES = 8
_TIME = struct.Struct(">Q")
_BIAS = 1 << 63
_START = _HEADER_BYTES + _TTL_BYTES
MAX_SCHEMA_ID = 254
# Many values are decoded as one array, in which a header is two msgpack integers: larger bytes are no integers.
_MAX_FIXINT = 127
_AT_ONCE = 2048

Older = Mapping[int, tuple[DataType, Convert | None]]
"""By schema id: a former type of the values, and the conversion into the current type."""

_DOES_NOT_FIT = (TypeError, ValueError, ArithmeticError, AttributeError, struct.error, msgspec.MsgspecError)
_IS_DAMAGED = (TypeError, ValueError, ArithmeticError, struct.error, msgspec.MsgspecError, IndexError)


class ValueCodec:
    """Encodes and decodes the values of one type. None means "no value" and is left to the callers.

    `encode` and `encode_many` take values that `coerce` returned, or whose type is `exact`; they raise StateTypeError
    for one that is out of range. Decoding raises CorruptionError for bytes that are no value of this type and schema
    id, nor of an older one. Values of older schemas are decoded by their own type and converted as `older` says.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    copy: Callable[[Any], Any]
    """Deep-copies the mutable parts of a value, so that user code cannot change a cached one."""

    def __init__(self, kind: DataType, schema_id: int = 0, older: Older | None = None) -> None:
        if not 0 <= schema_id <= MAX_SCHEMA_ID:
            raise ConfigurationError(f"the schema id is {schema_id}, expected 0 to {MAX_SCHEMA_ID}")
        self.type = kind
        self.schema_id = schema_id
        self.exact = kind.exact
        """Values of this Python type need no coercion: `encode` reports those that are out of range."""
        copy = copier(kind)
        self.mutable = copy is not None
        self.copy = copy or identity
        self._coerce = coercion(kind)
        self._head = bytes([0, schema_id])
        self._layout = FixedLayout(kind, schema_id << 8) if is_fixed(kind) else None
        self._to_plain = to_plain(kind)
        self._from_plain = from_plain(kind)
        self._pack = msgspec.msgpack.Encoder().encode
        self._plain_class = plain_class(kind)
        self._unpack = msgspec.msgpack.Decoder(self._plain_class).decode
        self._unpack_many = msgspec.msgpack.Decoder(list).decode
        self._older = {id: (ValueCodec(was, id), convert) for id, (was, convert) in (older or {}).items()}
        self.encode = self._guard_encode(self._layout.encoder() if self._layout else self._packed_encoder())
        decode = self._layout.decoder(self._usual) if self._layout else self._packed_decode
        # Without older schemas, decoding does not check for them.
        self.decode = self._guard_decode(self._decoding_older(decode) if self._older else decode)

    def coerce(self, value: Any) -> Any:
        """Return a copy of a user's value in its canonical form; raise StateTypeError if it does not fit."""
        try:
            return self._coerce(value)
        except MisfitError as misfit:
            raise self._misfit(misfit.path, value, str(misfit)) from None

    def encode_many(self, values: Sequence[Any]) -> list[bytes]:
        """Encode values, in order."""
        try:
            if self._layout is not None:
                return self._layout.encode_many(values)
            head, pack, convert = self._head, self._pack, self._to_plain
            if convert is None:
                return [head + pack(value) for value in values]
            return [head + pack(convert(value)) for value in values]
        except _DOES_NOT_FIT as error:
            for value in values:
                self.encode(value)
            raise self._misfit("", values, f"the values cannot be encoded: {error}") from error

    def decode_many(self, data: Sequence[bytes | None]) -> list[Any]:
        """Decode values, in order; None stays None."""
        present: Any = [item for item in data if item is not None] if None in data else data
        values = self._try_at_once(present)
        if values is None:
            values = self._decode_mixed(present) if self._older else list(map(self.decode, present))
        if present is data:
            return values
        each = iter(values)
        return [None if item is None else next(each) for item in data]

    def encode_arrow(self, array: pa.Array) -> list[bytes]:
        """Encode an Arrow column without nulls."""
        if array.null_count:
            raise self._misfit("", None, "the column has nulls, and a stored value is never null")
        if self._layout is not None:
            return self._layout.encode_arrow(array)
        head, pack, array = self._head, self._pack, conform(array, self.type)
        # In parts, as when they are decoded.
        parts = (array.slice(at, _AT_ONCE) for at in range(0, len(array), _AT_ONCE))
        return [head + pack(plain) for part in parts for plain in arrow_to_plain(part, self.type)]

    def decode_arrow(self, data: Sequence[bytes | None]) -> pa.Array:
        """Decode values into an Arrow column, null where None."""
        if self._layout is not None:
            return self._decoded_arrow(data)
        # Decode in parts: more plain forms at once would keep the garbage collector busy.
        parts = [self._decoded_arrow(data[at : at + _AT_ONCE]) for at in range(0, len(data), _AT_ONCE)]
        return pa.concat_arrays(parts) if parts else pa.nulls(0, to_arrow_type(self.type))

    def _decoded_arrow(self, data: Sequence[bytes | None]) -> pa.Array:
        column = self._layout.decode_arrow(data) if self._layout else self._packed_columns(data)
        return self._mixed_arrow(data) if column is None else column

    def _mixed_arrow(self, data: Sequence[bytes | None]) -> pa.Array:
        """Decode values of which some must be decoded one by one."""
        return build(self.decode_many(data), self.type)

    def _packed_columns(self, data: Sequence[bytes | None]) -> pa.Array | None:
        """Decode packed values column by column; None if they must be decoded one by one."""
        present: Any = [item for item in data if item is not None] if None in data else data
        try:
            plain = self._plain_at_once(present)
            if plain is None:
                return None
            if present is not data:
                each = iter(plain)
                plain = [None if item is None else next(each) for item in data]
            return plain_to_arrow(plain, self.type)
        except _IS_DAMAGED:
            return None

    # -- decoding

    def _try_at_once(self, data: Sequence[bytes]) -> list[Any] | None:
        try:
            return self._decode_at_once(data)
        except _IS_DAMAGED:
            return None

    def _decode_at_once(self, data: Sequence[bytes]) -> list[Any] | None:
        """Decode values together; None if they must be decoded one by one."""
        if self._layout is not None:
            return self._layout.decode_many(data)
        plain = self._plain_at_once(data)
        return plain if plain is None or self._from_plain is None else list(map(self._from_plain, plain))

    def _plain_at_once(self, data: Sequence[bytes]) -> list[Any] | None:
        """Return the plain forms of packed values; None if they must be decoded one by one."""
        if self.schema_id > _MAX_FIXINT:
            return None
        # One call decodes all values as one msgpack array of flags, schema id, value, flags, ….
        parts = self._unpack_many(b"\xdd" + (3 * len(data)).to_bytes(4, "big") + b"".join(data))
        plain: list[Any] = parts[2::3]
        usual = parts[::3].count(0) == parts[1::3].count(self.schema_id) == len(data)
        if not usual or set(map(type, plain)) - {self._plain_class}:
            return None
        return plain

    def _decoding_older(self, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        older, newest = self._older, self.schema_id

        def decode_any(data: bytes) -> Any:
            if data[1] == newest or data[1] not in older:
                return decode(data)
            codec, convert = older[data[1]]
            value = codec.decode(data)
            return value if convert is None else convert(value)

        return decode_any

    def _decode_mixed(self, data: Sequence[bytes]) -> list[Any]:
        """Decode values of several schemas: those of each schema together."""
        at: dict[int, list[int]] = {}
        for position, item in enumerate(data):
            at.setdefault(item[1] if len(item) >= _HEADER_BYTES else self.schema_id, []).append(position)
        if len(at) == 1:
            (schema_id,) = at
            return self._decode_written_with(schema_id, data)
        decoded: list[Any] = [None] * len(data)
        for schema_id, positions in at.items():
            values = self._decode_written_with(schema_id, [data[position] for position in positions])
            for position, value in zip(positions, values, strict=True):
                decoded[position] = value
        return decoded

    def _decode_written_with(self, schema_id: int, data: Sequence[bytes]) -> list[Any]:
        if schema_id not in self._older:
            values = self._try_at_once(data)
            return list(map(self.decode, data)) if values is None else values
        codec, convert = self._older[schema_id]
        values = codec.decode_many(data)
        return values if convert is None else list(map(convert, values))

    def _packed_decode(self, data: bytes) -> Any:
        if data[:_HEADER_BYTES] != self._head:
            data = self._usual(data)
        plain = self._unpack(data[_HEADER_BYTES:])
        return plain if self._from_plain is None else self._from_plain(plain)

    def _usual(self, data: bytes) -> bytes:
        """Return a value with the usual header in place of another one, and without its expiry."""
        if len(data) < _HEADER_BYTES:
            raise CorruptionError(f"a stored {self.type.ddl} has {len(data)} bytes, which is less than its header")
        flags, schema_id = data[0], data[1]
        if flags & ~_HAS_TTL:
            raise CorruptionError(
                f"a stored {self.type.ddl} has the flags {flags:#04x}, of which only {_HAS_TTL:#04x} is known",
                hint="it was written by a newer release, or damaged",
            )
        if schema_id != self.schema_id:
            known = " or ".join(map(str, (self.schema_id, *self._older)))
            raise CorruptionError(
                f"a stored {self.type.ddl} has the schema id {schema_id}, expected {known}",
                hint="it was written by a program with another schema for this state, or damaged",
            )
        return self._head + data[_HEADER_BYTES + (_TTL_BYTES if flags & _HAS_TTL else 0) :]

    def _guard_decode(self, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        def guarded(data: bytes) -> Any:
            try:
                return decode(data)
            except _IS_DAMAGED as error:
                raw = data[:64].hex() + ("…" if len(data) > 64 else "")
                raise CorruptionError(
                    f"the stored bytes {raw} are no {self.type.ddl}: {error}",
                    hint="the state was damaged, or the type of this state was changed",
                ) from error

        return guarded

    # -- encoding

    def _packed_encoder(self) -> Callable[[Any], bytes]:
        head, pack, convert = self._head, self._pack, self._to_plain
        if convert is None:
            return lambda value: head + pack(value)
        return lambda value: head + pack(convert(value))

    def _guard_encode(self, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        def guarded(value: Any) -> bytes:
            try:
                return encode(value)
            except _DOES_NOT_FIT as error:
                self.coerce(value)
                raise self._misfit("", value, f"it cannot be encoded: {error}") from error

        return guarded

    def _misfit(self, path: str, value: Any, why: str) -> StateTypeError:
        return StateTypeError(
            f"the value does not fit the declared type {self.type.ddl}: {why}",
            hint="make the value fit, or declare another type",
            expected=self.type.ddl,
            path=path,
            why=why,
            actual=f"{short_repr(value)} ({type(value).__name__})",
        )


# -- values that expire

Expiring = tuple[int | None, Any]
"""The time when a value expires, in microseconds since 1970, or None if it never does, and the value."""


class ExpiringCodec:
    """Encodes and decodes pairs of an expiry time and a value. Raises the errors of ValueCodec."""

    def __init__(self, values: ValueCodec) -> None:
        self._values = values
        self._decode: Callable[[bytes], Any] = values.decode

    def encode(self, pair: Expiring) -> bytes:
        """Encode one pair."""
        expires_us, value = pair
        encoded = self._values.encode(value)
        return encoded if expires_us is None else with_expiry(encoded, pack_expiry(expires_us))

    def decode(self, data: bytes) -> Expiring:
        """Decode one pair."""
        return expiry_of(data), self._decode(without_expiry(data))

    def encode_many(self, pairs: Sequence[Expiring]) -> list[bytes]:
        """Encode pairs, in order."""
        encoded = self._values.encode_many([value for _, value in pairs])
        return [
            data if expires_us is None else with_expiry(data, pack_expiry(expires_us))
            for (expires_us, _), data in zip(pairs, encoded, strict=True)
        ]

    def decode_many(self, data: Sequence[bytes | None]) -> list[Expiring | None]:
        """Decode pairs, in order; None stays None."""
        values = self._values.decode_many([None if item is None else without_expiry(item) for item in data])
        return [None if item is None else (expiry_of(item), value) for item, value in zip(data, values, strict=True)]


def pack_expiry(expires_us: int) -> bytes:
    """Encode a time as eight bytes."""
    return _TIME.pack(expires_us + _BIAS)


def with_expiry(value: bytes, packed: bytes) -> bytes:
    """Add an expiry to an encoded value that has none."""
    return bytes((value[0] | _HAS_TTL, value[1])) + packed + value[_HEADER_BYTES:]


def packed_expiry(value: bytes) -> bytes | None:
    """Return the eight bytes of an encoded value's expiry time; None if it never expires."""
    if not value or not value[0] & _HAS_TTL:
        return None
    if len(value) < _START:
        raise CorruptionError(
            f"the stored bytes {value.hex()} have a TTL flag and no TTL", hint="the state was damaged"
        )
    return value[_HEADER_BYTES:_START]


def expiry_of(value: bytes) -> int | None:
    """Return the time when an encoded value expires; None if it never does."""
    packed = packed_expiry(value)
    return None if packed is None else _TIME.unpack(packed)[0] - _BIAS


def without_expiry(value: bytes) -> bytes:
    """Remove the expiry of an encoded value, if it has one."""
    if packed_expiry(value) is None:
        return value
    return bytes((value[0] & ~_HAS_TTL, value[1])) + value[_START:]
