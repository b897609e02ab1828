"""Stored values that expire: the header says so, and eight bytes with the time follow it. See docs/format.md.

The time is written so that bytes compare as times do; many values can be looked at without decoding them.
"""

from __future__ import annotations

import struct

from strandline.core.errors import CorruptionError

HAS_TTL = 1
HEADER_BYTES = 2
TTL_BYTES = 8
_TIME = struct.Struct(">Q")
_BIAS = 1 << 63
_START = HEADER_BYTES + TTL_BYTES


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
