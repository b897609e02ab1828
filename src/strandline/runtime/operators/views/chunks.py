"""The rows of each key in chunks: what comes goes into the last one, and costs the same however many rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from strandline.backends.base import Backend
from strandline.core.errors import CorruptionError
from strandline.format.keys import KeyCodec
from strandline.format.manifest import StateInfo
from strandline.format.schemas import Schemas
from strandline.format.values import ValueCodec
from strandline.runtime.operators.views.bags import Bag, Numbers, RowType, entries_of, from_state
from strandline.runtime.state.vectors import EntryTable
from strandline.types.datatypes import LongType, parse_type

CHUNK = 16
"""Rows of a full chunk. Each epoch reads and writes the last chunk of the keys that it adds to."""
_NUMBERS = KeyCodec([LongType()])
_LAST = 0
"""The number of the chunk that is not full. The others are 1, 2, …"""
_LAST_SUB = _NUMBERS.encode_sub(_LAST)


@dataclass(frozen=True)
class LastChunks:
    """The last chunks of some keys."""

    encoded: Sequence[bytes]
    full: Numbers
    """By key: how many full chunks there are."""
    last: Bag

    @property
    def has_rows(self) -> Numbers:
        """By key: whether it has rows."""
        return (self.full > 0) | (np.bincount(self.last.of_key, minlength=len(self.full)) > 0)


class Chunks:
    """A bag of rows for each key."""

    def __init__(self, name: str, kind: RowType) -> None:
        self.name, self._kind = name, kind
        self._type = parse_type(f"struct<full: bigint, rows: {kind.bag_ddl}>")
        self.info = StateInfo(name=name, kind="map", key_type="bigint", value_type=self._type.ddl)

    def bind(self, backend: Backend, schemas: Schemas, cache_bytes: int) -> EntryTable:
        """Create the table."""
        self._codec: ValueCodec = schemas.codec(self._type)
        self._table = EntryTable(self.name, backend, cache_bytes, _NUMBERS)
        return self._table

    def find(self, encoded: Sequence[bytes]) -> LastChunks:
        """Read the last chunk of each of some keys."""
        stored = self._stored([key + _LAST_SUB for key in encoded])
        full, rows = stored.field(0), stored.field(1)
        if stored.null_count:
            rows = pa.ListArray.from_arrays(rows.offsets, rows.values, mask=stored.is_null())
        return LastChunks(encoded, full.fill_null(0).to_numpy(zero_copy_only=False), from_state(rows, self._kind))

    def whole(self, ends: LastChunks, chosen: Numbers) -> Bag:
        """Return all rows of those keys for which `chosen` is true. Raise CorruptionError if a chunk is missing."""
        last = ends.last.of_keys(chosen)
        keys = np.flatnonzero(chosen & (ends.full > 0))
        if not len(keys):
            return last
        of_chunk = np.repeat(keys, ends.full[keys])
        subs = [_NUMBERS.encode_sub(number) for number in range(int(ends.full[keys].max()) + 1)]
        names = [ends.encoded[key] + sub for key in keys.tolist() for sub in subs[1 : ends.full[key] + 1]]
        stored = self._stored(names)
        if stored.null_count:
            raise CorruptionError(
                f"state '{self.name}': {stored.null_count} of {len(stored)} full chunks of a join's rows are missing",
                hint="restore an older checkpoint; this is an error of Strandline, or of the disk",
            )
        rows = from_state(stored.field(1), self._kind)
        return Bag(of_chunk[rows.of_key], rows.rows, rows.counts).plus(last)

    def append(self, ends: LastChunks, added: Bag) -> None:
        """Add rows of keys."""
        keys = np.unique(added.of_key)
        touched = np.zeros(len(ends.full), bool)
        touched[keys] = True
        self._write(ends.encoded, keys, ends.full[keys], ends.last.of_keys(touched).plus(added))

    def replace(self, ends: LastChunks, chosen: Numbers, rows: Bag) -> None:
        """Put these rows in place of all rows of the chosen keys."""
        keys = np.flatnonzero(chosen)
        self._write(ends.encoded, keys, np.zeros(len(keys), np.int64), rows)
        left = np.bincount(rows.of_key, minlength=len(ends.full))
        gone = [
            ends.encoded[key] + _NUMBERS.encode_sub(number)
            for key in keys.tolist()
            for number in range(left[key] // CHUNK + 1 if left[key] else _LAST, ends.full[key] + 1)
        ]
        self._table.put(self._table.find(gone), [None] * len(gone))

    def _stored(self, names: list[bytes]) -> pa.StructArray:
        return self._codec.decode_arrow(self._table.get(self._table.find(names)))

    def _write(self, encoded: Sequence[bytes], keys: Numbers, full: Numbers, rows: Bag) -> None:
        """Write rows of keys into chunks behind those that are full; nothing for a key without rows."""
        has = np.bincount(rows.of_key, minlength=int(keys.max(initial=-1)) + 1)[keys] > 0
        keys, full = keys[has], full[has]
        if not len(keys):
            return
        rows = rows.take(np.argsort(rows.of_key, kind="stable"))
        sizes = np.unique(rows.of_key, return_counts=True)[1]
        more = sizes // CHUNK
        # Each key's new full chunks, and its last one.
        starts = np.cumsum(more + 1) - (more + 1)
        key_of = np.repeat(np.arange(len(keys)), more + 1)
        rank = np.arange(len(key_of)) - starts[key_of]
        is_last = rank == more[key_of]
        numbers = np.where(is_last, _LAST, full[key_of] + rank + 1)
        lengths = np.where(is_last, sizes[key_of] % CHUNK, CHUNK)
        offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
        counts = pa.array(np.where(is_last, (full + more)[key_of], 0))
        values = pa.StructArray.from_arrays(
            [counts, pa.ListArray.from_arrays(offsets, entries_of(rows))], names=["full", "rows"]
        )
        subs = {number: _NUMBERS.encode_sub(number) for number in {*numbers.tolist()}}
        names = [
            encoded[key] + subs[number] for key, number in zip(keys[key_of].tolist(), numbers.tolist(), strict=True)
        ]
        self._table.put(self._table.find(names), self._codec.encode_arrow(values))
