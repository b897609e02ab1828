"""The keys that an operator partition works on, as objects and as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from strandline.format.keys import KeyCodec

_GROUPS_KEPT = 200_000


class LiveKeys:
    """Knows the key group of every key that is live or not yet written, so that keys can be encoded at any time.

    One thread learns and forgets; others may encode meanwhile.
    """

    def __init__(self, codec: KeyCodec) -> None:
        self.codec = codec
        self._groups: dict[Any, int] = {}

    def learn(self, keys: Iterable[Any], groups: Iterable[int]) -> None:
        """Note the key groups of keys."""
        self._groups.update(zip(keys, groups, strict=True))

    def encode(self, key: Any) -> bytes:
        """Return the bytes of a known key, key group first."""
        return self.codec.encode(self._groups[key], key)

    def encode_many(self, keys: Sequence[Any]) -> list[bytes]:
        """Return the bytes of known keys."""
        return self.codec.encode_many(list(map(self._groups.__getitem__, keys)), keys)

    def decode(self, entry: bytes) -> tuple[Any, int]:
        """Return the key that an entry begins with, known from now on, and where in the entry it ends."""
        group, key, end = self.codec.decode(entry)
        self._groups[key] = group
        return key, end

    def decode_many(self, entries: Sequence[bytes]) -> list[Any]:
        """Return the keys of encoded keys, known from now on."""
        keys = self.codec.decode_many(entries)
        groups = np.frombuffer(b"".join([entry[:2] for entry in entries]), ">u2")
        self.learn(keys, groups.tolist())
        return keys

    def forget(self, unwritten: Sequence[Mapping[Any, Any]]) -> None:
        """Once in a while drop all keys but those of these layers. Between epochs."""
        if len(self._groups) > _GROUPS_KEPT + 2 * sum(map(len, unwritten)):
            groups = self._groups
            # A new dict: a background thread may be reading the old one.
            self._groups = {key: groups[key] for layer in unwritten for key in tuple(layer)}
