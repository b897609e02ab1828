"""Random values that depend on nothing but a seed, what they are for, and an event's number."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._counting import mix

_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", np.uint8)
_WORD_BYTES = 8


class Noise:
    """One seed's random values. `what` tells apart what the values of one event are for."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def words(self, what: str, numbers: Any) -> Any:
        """Return 64 random bits for each number."""
        stream = mix(np.array([self._seed << 32 | zlib.crc32(what.encode())], np.uint64))
        return mix(numbers.astype(np.uint64) ^ stream)

    def below(self, what: str, numbers: Any, limit: Any) -> Any:
        """Return integers from 0 up to a limit, or one limit for each, without it."""
        return (self.words(what, numbers) % np.asarray(limit, np.uint64)).astype(np.int64)

    def prices(self, what: str, numbers: Any) -> Any:
        """Return prices from 1 to 1,000,000, in hundredths."""
        exponents = self.words(what, numbers) / 2.0**64 * 6
        return np.rint(10**exponents * 100).astype(np.int64)

    def choice(self, what: str, numbers: Any, texts: Sequence[str]) -> pa.Array:
        """Return one of the texts for each number."""
        return pa.array(list(texts)).take(pa.array(self.below(what, numbers, len(texts))))

    def letters(self, what: str, numbers: Any, shortest: int, longest: int) -> pa.Array:
        """Return texts of so many letters and spaces."""
        lengths = shortest + self.below(f"length of {what}", numbers, longest - shortest + 1)
        words = -(-longest // _WORD_BYTES)
        at = numbers.astype(np.int64)[:, None] * words + np.arange(words)
        found = _LETTERS[self.words(what, at).view(np.uint8) % len(_LETTERS)]
        there = np.arange(words * _WORD_BYTES) < lengths[:, None]
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(found[there]))
