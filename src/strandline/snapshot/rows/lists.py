"""Rows of lists, one for each element. They do not depend on the chunks of stored lists."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from operator import ne
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import StateTypeError
from strandline.format.keys import KeyCodec
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.format.schemas import codec_of
from strandline.format.values import ValueCodec, with_expiry
from strandline.snapshot.rows.codec import RowCodec
from strandline.snapshot.rows.columns import POSITION, VALUE, spread
from strandline.snapshot.rows.values import StoredValues, from_times
from strandline.types.datatypes import Field, LongType, parse_type
from strandline.types.scalars import Numbers

_SUB_BYTES = 8
# Epochs are numbered from 1: later elements follow this chunk.
_CHUNK, _HEAD = 0, -1


class ListRows(RowCodec):
    """Codec of lists. An encoded list has one chunk, and a head if it expires.

    If elements expire at different times, there is a chunk for each time.
    """

    whole_keys = True

    def __init__(self, operator: OperatorInfo, state: StateInfo, over_us: int | None) -> None:
        element = parse_type(state.value_type)
        super().__init__(operator, state, [Field(POSITION, LongType()), Field(VALUE, element)], over_us)
        self._codec = KeyCodec([*self._key_types, LongType()])
        self._chunks = codec_of(state)
        self._element = ValueCodec(element, state.schema_id)
        self._values = StoredValues(self._chunks, expiring=True)
        self._numbers = KeyCodec([LongType()])
        chunk, head = map(self._numbers.encode_sub, (_CHUNK, _HEAD))
        self._chunk_key, self._head_key = chunk, head

    def _decoded(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        groups, columns = self._codec.decode_arrow(keys)
        chunks, expires = self._values.decode(values)
        starts = _changes([key[:-_SUB_BYTES] for key in keys])
        first = np.repeat(starts, np.diff(np.append(starts, len(keys))))
        counts = np.diff(chunks.offsets.to_numpy()).astype(np.int64)
        if self._ttl is not None:
            expires = self._effective(keys, expires, starts, first)
            if self._over_us is not None:
                # Before rows exist, since positions count remaining elements.
                is_there = expires.view(pa.int64()).fill_null(self._over_us + 1).to_numpy() > self._over_us
                chunks, counts = chunks.filter(pa.array(is_there)), np.where(is_there, counts, 0)
        of_chunk = np.repeat(np.arange(len(keys)), counts)
        before = np.append(0, np.cumsum(counts))
        positions = np.arange(len(of_chunk)) - before[first][of_chunk]
        decoded = spread([pa.array(groups), *columns[:-1]], of_chunk)
        decoded += [pa.array(positions), chunks.flatten()]
        if self._ttl is not None:
            decoded += spread([expires], of_chunk)
        return self._rows(decoded)

    def _effective(self, keys: Sequence[bytes], expires: pa.Array, starts: Numbers, first: Numbers) -> pa.Array:
        """Return the times at which chunks expire: their own, or else that of the list's head."""
        heads = np.zeros(len(keys), bool)
        heads[[start for start in starts.tolist() if keys[start].endswith(self._head_key)]] = True
        of_heads = pc.if_else(pa.array(heads), expires, pa.scalar(None, expires.type))
        return pc.coalesce(expires, of_heads.take(pa.array(first)))

    def _encoded(self, columns: list[pa.Array]) -> list[tuple[bytes, bytes]]:
        at = 1 + len(self._key_types)
        keys = self._codec.encode_arrow(columns[0], columns[1 : at + 1])
        order = self._in_order(keys)
        if order is not None:
            columns, keys = spread(columns, order), [keys[row] for row in order.tolist()]
        keys = [key[:-_SUB_BYTES] for key in keys]
        starts = _changes(keys)
        cuts = starts if self._ttl is None else np.union1d(starts, _changes(columns[-1].view(pa.int64()).to_pylist()))
        offsets = pa.array(np.append(cuts, len(keys)).astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, columns[at + 1])
        try:
            chunks = self._chunks.encode_arrow(lists)
        except StateTypeError:
            # The error names no row: encode elements alone to find it.
            self._columns.attempt(columns[at + 1], VALUE, self._element.encode_arrow)
            raise
        lists_of = np.searchsorted(starts, cuts, "right") - 1
        places = np.arange(len(cuts)) - np.searchsorted(cuts, starts)[lists_of]
        named = [
            (keys[cut] + self._number(place), chunk)
            for cut, place, chunk in zip(cuts.tolist(), places.tolist(), chunks, strict=True)
        ]
        if self._ttl is None:
            return named
        is_whole = (np.bincount(lists_of, minlength=len(starts)) == 1)[lists_of]
        return self._with_times(named, columns[-1].take(pa.array(cuts)), is_whole.tolist())

    def _with_times(
        self, chunks: list[tuple[bytes, bytes]], expires: pa.Array, is_whole: list[bool]
    ) -> list[tuple[bytes, bytes]]:
        """Add expiry times to chunks; if a list is one chunk, to its head."""
        empty = self._chunks.encode([])
        entries = []
        for (key, chunk), packed, whole in zip(chunks, from_times(expires), is_whole, strict=True):
            if packed is not None and whole:
                entries.append((key[:-_SUB_BYTES] + self._head_key, with_expiry(empty, packed)))
            entries.append((key, chunk if packed is None or whole else with_expiry(chunk, packed)))
        return entries

    def _number(self, place: int) -> bytes:
        """Return the sub key of a list's chunk, which is less than those of chunks that epochs append."""
        return self._chunk_key if place == 0 else self._numbers.encode_sub(place)

    def _cleaned(self, key: bytes) -> bytes:
        return key[:-_SUB_BYTES] if key.endswith(self._head_key) else key

    def _start_of_last(self, rows: pa.RecordBatch, before: pa.RecordBatch | None) -> int | None:
        # Cut inside key groups, since a column may be too small for one.
        starts = np.flatnonzero(rows.column(POSITION).to_numpy() == 0)
        return int(starts[-1]) if len(starts) else None

    def _end_of_key(self, keys: list[bytes]) -> int:
        return bisect_left(keys, keys[-1][:-_SUB_BYTES])


def _changes(keys: list[Any]) -> Numbers:
    """Return the positions of keys, or times, that differ from the ones before."""
    if not keys:
        return np.empty(0, np.int64)
    differs = np.fromiter(map(ne, keys, islice(keys, 1, None)), bool, len(keys) - 1)
    return np.append(0, np.flatnonzero(differs) + 1)
