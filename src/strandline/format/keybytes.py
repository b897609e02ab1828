"""Decodes the bytes of many keys column by column."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from strandline.types.scalars import Numbers

_ESCAPE = 0xFF


class KeyBytes:
    """The concatenated bytes of keys. `at` has for each key the position in them at which a column begins.

    Its methods raise ValueError if there is no column of their kind at a position.
    """

    def __init__(self, data: Sequence[bytes]) -> None:
        self.ends = np.cumsum(np.fromiter(map(len, data), np.int64, len(data)))
        self.starts = np.append(0, self.ends[:-1]) if len(data) else self.ends
        self.bytes = np.frombuffer(b"".join(data), np.uint8)

    def slices(self, at: Numbers, width: int) -> Numbers:
        """Return `width` bytes of each key, as the rows of an array."""
        if not len(at):
            return np.empty((0, width), np.uint8)
        if at.max() + width > len(self.bytes):
            raise ValueError(f"it ends within {width} bytes")
        return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(self.bytes, width)[at])

    def texts(self, at: Numbers) -> tuple[pa.Array, Numbers]:
        """Return escaped texts, which end with two zeros, as binaries, and the positions of the next column."""
        first = np.searchsorted(self._zeros, at)
        last = first.copy()
        pending = np.arange(len(at))
        while len(pending):
            if last[pending].max() >= len(self._zeros):
                raise ValueError("it ends within a text")
            following = self._following[last[pending]]
            pending = pending[following != 0]
            if (following[following != 0] != _ESCAPE).any():
                raise ValueError("a zero byte is neither escaped nor an end")
            last[pending] += 1
        ends = self._zeros[last]
        escaped = last - first
        inside = np.zeros(len(self.bytes) + 1, np.int8)
        inside[at] += 1
        inside[ends] -= 1
        inside = np.cumsum(inside, dtype=np.int8)[:-1]
        if escaped.any():
            # Drop the FF of 00 FF.
            zeros = self._zeros[self._following == _ESCAPE]
            inside[zeros[inside[zeros] == 1] + 1] = 0
        offsets = np.zeros(len(at) + 1, np.int64)
        np.cumsum(ends - at - escaped, out=offsets[1:])
        if offsets[-1] > np.iinfo(np.int32).max:
            raise ValueError(f"a column of {offsets[-1]} bytes is too large for one batch")
        body = self.bytes[inside.view(bool)]
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(body)]
        return pa.Array.from_buffers(pa.binary(), len(at), buffers), ends + 2

    @cached_property
    def _zeros(self) -> Numbers:
        return np.flatnonzero(self.bytes == 0)

    @cached_property
    def _following(self) -> Numbers:
        """The byte after each zero; after the last byte of all, 1, which is invalid there."""
        following: Numbers = np.append(self.bytes, 1)[self._zeros + 1]
        return following
