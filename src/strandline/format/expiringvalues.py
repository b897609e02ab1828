"""Values together with when they expire, encoded as one. See expiry.py for the bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strandline.format.expiry import expiry_of, pack_expiry, with_expiry, without_expiry
from strandline.format.values import ValueCodec

Expiring = tuple[int | None, Any]
"""When a value expires, in microseconds since 1970, and the value; None: it never does."""


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
