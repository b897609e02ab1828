"""Stored values that expire: the header says so, and eight bytes with the time follow it. See docs/format.md.

The time is written so that bytes compare as times do; many values can be looked at without decoding them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from strandline.core.errors import CorruptionError

if TYPE_CHECKING:
    from strandline.format.values import ValueCodec

HAS_TTL = 1
HEADER_BYTES = 2
TTL_BYTES = 8
_TIME = struct.Struct(">Q")
_BIAS = 1 << 63
_START = HEADER_BYTES + TTL_BYTES

Expiring = tuple[int | None, Any]
"""When a value expires, in microseconds since 1970, and the value; None: it never does."""


def pack_expiry(expires_us: int) -> bytes:
    """Return the eight bytes of a time."""
    return _TIME.pack(expires_us + _BIAS)


def with_expiry(value: bytes, packed: bytes) -> bytes:
    """Return an encoded value that has no expiry as one that has."""
    return bytes((value[0] | HAS_TTL, value[1])) + packed + value[HEADER_BYTES:]


def packed_expiry(value: bytes) -> bytes | None:
    """Return the eight bytes that say when an encoded value expires; None when it never does."""
    if not value or not value[0] & HAS_TTL:
        return None
    if len(value) < _START:
        raise CorruptionError(
            f"the stored bytes {value.hex()} have a TTL flag and no TTL", hint="the state was damaged"
        )
    return value[HEADER_BYTES:_START]


def expiry_of(value: bytes) -> int | None:
    """Return when an encoded value expires; None when it never does."""
    packed = packed_expiry(value)
    return None if packed is None else _TIME.unpack(packed)[0] - _BIAS


def without_expiry(value: bytes) -> bytes:
    """Return an encoded value as if it never expired."""
    if packed_expiry(value) is None:
        return value
    return bytes((value[0] & ~HAS_TTL, value[1])) + value[_START:]


class ExpiringCodec:
    """Encodes and decodes values together with when they expire, as pairs. See ValueCodec for what it raises."""

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
