"""The keys in use by an operator partition: converts them between objects and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from strandline.format.keys import KeyCodec

_GROUPS_KEPT = 200_000


class LiveKeys:
    """The key group of every key that is live or not yet written, so that keys can be encoded at any time.

    One thread adds and removes keys; others may encode meanwhile.
    """

    def __init__(self, codec: KeyCodec) -> None:
        self.codec = codec
        self._groups: dict[Any, int] = {}

    def learn(self, keys: Iterable[Any], groups: Iterable[int]) -> None:
        """Add keys and their key groups."""
        self._groups.update(zip(keys, groups, strict=True))

    def encode(self, key: Any) -> bytes:
        """Return the bytes of a known key, key group first."""
        return self.codec.encode(self._groups[key], key)

    def encode_many(self, keys: Sequence[Any]) -> list[bytes]:
        """Return the bytes of known keys."""
        return self.codec.encode_many(list(map(self._groups.__getitem__, keys)), keys)

    def decode(self, entry: bytes) -> tuple[Any, int]:
        """Return the key that an entry begins with, and its end offset. The key is known from now on."""
        group, key, end = self.codec.decode(entry)
        self._groups[key] = group
        return key, end

    def decode_many(self, entries: Sequence[bytes]) -> list[Any]:
        """Return the keys of encoded keys. They are known from now on."""
        keys = self.codec.decode_many(entries)
        groups = np.frombuffer(b"".join([entry[:2] for entry in entries]), ">u2")
        self.learn(keys, groups.tolist())
        return keys

    def forget(self, unwritten: Sequence[Mapping[Any, Any]]) -> None:
        """If there are many keys, drop all but those of these layers. Between epochs."""
        if len(self._groups) > _GROUPS_KEPT + 2 * sum(map(len, unwritten)):
            groups = self._groups
            # A new dict: a background thread may be reading the old one.
            self._groups = {key: groups[key] for layer in unwritten for key in tuple(layer)}
