"""Rows of lists: an element is a row. In which chunks a list was stored is not seen in them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from operator import ne

import numpy as np
import pyarrow as pa

from strandline.core.errors import StateTypeError
from strandline.format.keys import KeyCodec
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.format.schemas import codec_of
from strandline.format.values import ValueCodec, with_expiry
from strandline.snapshot.rowcodec import RowCodec
from strandline.snapshot.tablecolumns import EXPIRES_AT, POSITION, VALUE, first_row, spread
from strandline.snapshot.valuerows import StoredValues, from_times
from strandline.types.datatypes import Field, LongType, parse_type
from strandline.types.scalars import Numbers

_SUB_BYTES = 8
# Epochs are numbered from 1: what is appended later stands behind it.
_CHUNK, _HEAD = 0, -1


class ListRows(RowCodec):
    """An element of a list is a row. Encoded, a list is one chunk, and its head if it expires."""

    whole_keys = True

    def __init__(self, operator: OperatorInfo, state: StateInfo, over_us: int | None) -> None:
        element = parse_type(state.value_type)
        super().__init__(operator, state, [Field(POSITION, LongType()), Field(VALUE, element)], over_us)
        self._codec = KeyCodec([*self._key_types, LongType()])
        self._chunks = codec_of(state)
        self._element = ValueCodec(element, state.schema_id)
        # A list's head has the time of all its chunks.
        self._values = StoredValues(self._chunks, expiring=True)
        chunk, head = (KeyCodec([LongType()]).encode_sub(number) for number in (_CHUNK, _HEAD))
        self._chunk_key, self._head_key = chunk, head

    def _decoded(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        groups, columns = self._codec.decode_arrow(keys)
        chunks, expires = self._values.decode(values)
        starts = _changes([key[:-_SUB_BYTES] for key in keys])
        counts = np.diff(chunks.offsets.to_numpy()).astype(np.int64)
        of_chunk = np.repeat(np.arange(len(keys)), counts)
        first = np.repeat(starts, np.diff(np.append(starts, len(keys))))
        before = np.append(0, np.cumsum(counts))
        positions = np.arange(len(of_chunk)) - before[first][of_chunk]
        found = spread([pa.array(groups), *columns[:-1]], of_chunk)
        found += [pa.array(positions), chunks.flatten()]
        if self._ttl is not None:
            found += spread([expires], first[of_chunk])
        return self._rows(found)

    def _encoded(self, columns: list[pa.Array]) -> list[tuple[bytes, bytes]]:
        at = 1 + len(self._key_types)
        keys = self._codec.encode_arrow(columns[0], columns[1 : at + 1])
        order = self._in_order(keys)
        if order is not None:
            columns, keys = spread(columns, order), [keys[row] for row in order.tolist()]
        keys = [key[:-_SUB_BYTES] for key in keys]
        starts = _changes(keys)
        offsets = pa.array(np.append(starts, len(keys)).astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, columns[at + 1])
        try:
            chunks = self._chunks.encode_arrow(lists)
        except StateTypeError:
            # Of which list is not said: of which row, the elements tell.
            self._columns.attempt(columns[at + 1], VALUE, self._element.encode_arrow)
            raise
        found = [(keys[start] + self._chunk_key, chunk) for start, chunk in zip(starts.tolist(), chunks, strict=True)]
        return found if self._ttl is None else self._with_heads(found, columns[-1], starts)

    def _with_heads(
        self, chunks: list[tuple[bytes, bytes]], expires: pa.Array, starts: Numbers
    ) -> list[tuple[bytes, bytes]]:
        of_list = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(expires))))
        firsts = expires.take(pa.array(starts))
        numbers = expires.view(pa.int64()).fill_null(0).to_numpy()
        differs = numbers != firsts.take(pa.array(of_list)).view(pa.int64()).fill_null(0).to_numpy()
        if differs.any():
            why = "a list expires as a whole: expected the same time in all its rows"
            raise self._columns.refused(EXPIRES_AT, first_row(differs), why)
        empty = self._chunks.encode([])
        found = []
        for (key, chunk), packed in zip(chunks, from_times(firsts), strict=True):
            if packed is not None:
                found.append((key[:-_SUB_BYTES] + self._head_key, with_expiry(empty, packed)))
            found.append((key, chunk))
        return found

    def _cleaned(self, key: bytes) -> bytes:
        return key[:-_SUB_BYTES]

    def _end_of_key(self, keys: list[bytes]) -> int:
        return bisect_left(keys, keys[-1][:-_SUB_BYTES])


def _changes(keys: list[bytes]) -> Numbers:
    """Return where keys begin that differ from the ones before."""
    if not keys:
        return np.empty(0, np.int64)
    differs = np.fromiter(map(ne, keys, islice(keys, 1, None)), bool, len(keys) - 1)
    return np.append(0, np.flatnonzero(differs) + 1)
