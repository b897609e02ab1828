"""Base of the codecs between a state's entries and its rows. Entries are in the order of their bytes.

A codec converts batches of entries to batches of rows, and back. It cuts streams between key groups, or inside a large
key group between entries that do not belong together.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import lt
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.core.errors import StateTypeError
from strandline.format.manifest import OperatorInfo, StateInfo, TTLInfo
from strandline.format.values import expiry_of
from strandline.runtime.program import EVENT_TTL, PROCESSING_TTL
from strandline.runtime.state.ttl.lifetimes import step_us, tag_of
from strandline.snapshot.rows.columns import (
    EXPIRES_AT,
    KEY_GROUP,
    MAP_KEY,
    POSITION,
    TIME,
    WINDOW_END,
    TableColumns,
    key_fields,
)
from strandline.snapshot.rows.parquet import named_schema
from strandline.types.datatypes import DataType, Field, TimestampType, parse_schema

Entries = Sequence[tuple[bytes, bytes]]

_READ_ENTRIES = 64
_PART_ENTRIES, _PART_BYTES = 16_384, 16 << 20
_GROUP_BYTES = 2
_TIME = struct.Struct(">Q")
_PARTS_OF_KEY = (MAP_KEY, POSITION, TIME, WINDOW_END)
_BIAS = 1 << 63
_LAST_US = _BIAS - 1
_NOTHING = b"\0\0"


class RowCodec:
    """Converts entries of one state to rows, and back. `rows_of` returns the codec of a state."""

    whole_groups = False
    """Whether `decode` and `encode` take whole key groups only, since entries and rows differ in order."""
    whole_keys = False
    """Whether they take all entries or rows of a key at once only."""
    plain = False
    """Whether rows that pass `check` equal the rows that `decode` returns for their entries, except for the order."""

    def __init__(self, operator: OperatorInfo, state: StateInfo, columns: Sequence[Field], over_us: int | None) -> None:
        """`columns` follow the key's; rows omit what expires up to `over_us`."""
        self.state = state
        self._uid, self._name = operator.uid, state.name
        self._over_us = over_us
        self._keys = [] if state.kind == "broadcast" else key_fields(parse_schema(operator.key_schema))
        self._key_types: list[DataType] = [field.type for field in self._keys]
        self._ttl: TTLInfo | None = state.ttl or None
        expiry = [] if self._ttl is None else [Field(EXPIRES_AT, TimestampType())]
        where = f"operator '{operator.uid}', state '{state.name}'"
        self._columns = TableColumns(where, self._keys, [*columns, *expiry], operator.max_parallelism, self._nullable())

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._columns.schema

    @property
    def file_schema(self) -> pa.Schema:
        """The columns in files of the table, with the names of operator and state."""
        return named_schema(self.schema, self._uid, self._name)

    def decode(self, entries: Entries) -> pa.RecordBatch:
        """Return rows of entries, which are in the order of their keys; rows are ordered by key group and key.

        Raises CorruptionError if bytes do not match the manifest.
        """
        keys, values = zip(*entries, strict=True) if entries else ((), ())
        return self._decoded(keys, values)

    def encode(self, rows: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
        """Return the entries of rows, which may be in any order, in the order of their keys.

        Rows may lack `key_group`, which follows from the key. Raises StateTypeError, with fields column and row, for
        the first row that does not fit.
        """
        return self._encoded(self._columns.check(rows, verify=False))

    def check(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows, in any order, with exactly the table's columns: in its types, with their key groups.

        They may be a part of a key or a key group. Raises StateTypeError as `encode` does, also for a key group that is
        not the key's, and for two rows of one key in the batch.
        """
        columns = self._columns.check(rows, verify=True)
        if not self.plain:
            self._encoded(columns)
        batch = self._columns.batch(columns)
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise StateTypeError(
                f"{self._columns.where}: the rows' Arrow columns are not valid: {error}", hint="make them anew"
            ) from error
        return batch

    def sort(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return all rows of some key groups, which passed `check`, in the form and order of `decode`.

        Raises StateTypeError naming a key with two rows, or with rows that do not fit together.
        """
        try:
            return self._sorted(rows)
        except StateTypeError as error:
            if "row" not in error.fields:
                raise
            why = "there is more than one row of it" if "same_as" in error.fields else error.fields["why"]
            raise StateTypeError(
                f"{self._columns.where}: {self.name_key(rows, error.fields['row'])} does not fit: {why}",
                hint=error.hint,
            ) from None

    def name_key(self, rows: pa.RecordBatch, row: int) -> str:
        """Return the key of a row as text for errors."""
        names = [*(field.name for field in self._keys), *(n for n in _PARTS_OF_KEY if n in self.schema.names)]
        return f"the key {', '.join(f'{name}={_text(rows.column(name)[row])}' for name in names)}"

    def decode_groups(self, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
        """Return all entries of some key groups, in the order of their keys, as batches of rows.

        A batch holds whole key groups, or a part of one. Batches end at places that depend on stored bytes: callers
        that need equal batches for equal state cut them again.
        """
        for keys, values in self._parts(entries):
            batch = self._decoded(keys, values)
            if batch.num_rows:
                yield batch

    def encode_groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[tuple[bytes, bytes]]]:
        """Return lists of entries, in order, of rows in the order of their key groups.

        Rows must come in the order of `decode`. If entries hold several rows, the rows of a key group are gathered
        first.
        """
        before = b""
        for rows in self._gathered(batches) if self.whole_groups or self.whole_keys else batches:
            entries = self.encode(rows)
            if not entries:
                continue
            if entries[0][0] <= before:
                raise StateTypeError(
                    f"{self._columns.where}: rows are not in order: after a batch that ends with the entry "
                    f"{before[:40].hex()} comes one that begins with {entries[0][0][:40].hex()}",
                    hint="sort by key group and key, and give each row once",
                )
            before = entries[-1][0]
            yield entries

    # -- cleaning of expired entries

    @property
    def cleaning(self) -> str | None:
        """The name of the state with the times at which entries of this one expire; None if they do not."""
        if self._ttl is None:
            return None
        return EVENT_TTL if self._ttl.time == "event" else PROCESSING_TTL

    def cleaning_of(self, entries: Entries) -> list[tuple[bytes, bytes]]:
        """Return the entries of the state named `cleaning` for these entries, in the order of keys."""
        if self._ttl is None:
            return []
        step, tag = step_us(self._ttl.duration_ms * 1000), tag_of(self._name)
        cleanings = []
        for key, value in entries:
            expires_us = expiry_of(value)
            if expires_us is not None:
                at_us = min(-(-expires_us // step) * step, _LAST_US)
                entry = self._cleaned(key)
                cleanings.append((entry[:2] + _TIME.pack(at_us + _BIAS) + tag + entry[2:], _NOTHING))
        cleanings.sort()
        return cleanings

    def _cleaned(self, key: bytes) -> bytes:
        """Return the key under which the cleaning knows an entry."""
        return key

    # -- for each kind of state

    def _decoded(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        """Return the rows of entries, which are in order."""
        raise NotImplementedError

    def _encoded(self, columns: list[pa.Array]) -> list[tuple[bytes, bytes]]:
        """Return the entries of checked columns, in order."""
        raise NotImplementedError

    def _sorted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return checked rows of whole key groups in the form and order of `decode`."""
        return self.decode(self._encoded(rows.columns))

    def _nullable(self) -> list[str]:
        """Return the columns that may hold nulls."""
        return [EXPIRES_AT]

    def _rows(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return rows of columns, without expired ones."""
        batch = self._columns.batch(columns)
        if self._over_us is None or self._ttl is None:
            return batch
        expires = columns[-1].view(pa.int64()).fill_null(_LAST_US).to_numpy()
        return batch.filter(pa.array(expires > self._over_us))

    def _in_order(self, keys: list[bytes]) -> np.ndarray[Any, Any] | None:
        """Return row numbers in the order of their keys, or None if rows are in order. Refuses equal keys."""
        if all(map(lt, keys, islice(keys, 1, None))):
            return None
        order = sorted(range(len(keys)), key=keys.__getitem__)
        for one, other in zip(order, islice(order, 1, None), strict=False):
            if keys[one] == keys[other]:
                names = [name for name in self.schema.names[:-1] if name != KEY_GROUP]
                why = f"row {one} has the same key"
                raise self._columns.refused(names[0], other, why, hint="keep one of them", same_as=one)
        return np.array(order)

    # -- cutting

    def _parts(self, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[list[bytes], list[bytes]]]:
        rest = iter(entries)
        keys: list[bytes] = []
        values: list[bytes] = []
        size_bytes, least, begun = 0, _PART_ENTRIES, b""
        # Do not keep the pairs: so many tuples would slow down the garbage collector.
        while some := tuple(zip(*islice(rest, _READ_ENTRIES), strict=True)):
            keys += some[0]
            values += some[1]
            size_bytes += sum(map(len, some[1]))
            if len(keys) < least and size_bytes < _PART_BYTES:
                continue
            end = self._end(keys, begun)
            if end:
                begun = _group_of(keys[end - 1])
                yield keys[:end], values[:end]
                keys, values = keys[end:], values[end:]
            # After a failed cut, wait for more entries before the next try.
            size_bytes, least = 0, len(keys) + _PART_ENTRIES
        end = _in_group(keys, begun)
        if end:
            yield keys[:end], values[:end]
        if end < len(keys):
            yield keys[end:], values[end:]

    def _end(self, keys: list[bytes], begun: bytes) -> int:
        """Return how many of these entries can be decoded together without the following ones.

        A part of key group `begun` was returned before.
        """
        rest, groups = _in_group(keys, begun), bisect_left(keys, _group_of(keys[-1]))
        if rest and groups:
            return rest
        if groups or self.whole_groups:
            return groups
        return self._end_of_key(keys)

    def _end_of_key(self, keys: list[bytes]) -> int:
        return len(keys)

    def _gathered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches cut between rows that do not belong together."""
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            if KEY_GROUP not in batch.schema.names:
                raise StateTypeError(
                    f"{self._columns.where}: rows in the order of their key groups have no column '{KEY_GROUP}'",
                    hint="give them in one batch, or with their key groups",
                )
            if not batch.num_rows:
                continue
            start = self._start_of_last(batch, waiting[-1] if waiting else None)
            if start is not None:
                if start or waiting:
                    yield pa.concat_batches([*waiting, batch.slice(0, start)])
                waiting = []
            waiting.append(batch.slice(start or 0))
        if waiting:
            yield pa.concat_batches(waiting)

    def _start_of_last(self, rows: pa.RecordBatch, before: pa.RecordBatch | None) -> int | None:
        """Return the start of the last rows that belong together; None if they begin in the rows `before`."""
        groups = rows.column(KEY_GROUP).to_numpy(zero_copy_only=False)
        start = int(np.searchsorted(groups, groups[-1]))
        goes_on = not start and before is not None and before.column(KEY_GROUP)[-1].as_py() == groups[-1]
        return None if goes_on else start


def _group_of(key: bytes) -> bytes:
    return key[:_GROUP_BYTES]


def _in_group(keys: list[bytes], group: bytes) -> int:
    """Return how many of the first keys are of a key group; no key is of an earlier one."""
    return bisect_right(keys, group, key=_group_of)


def _text(value: pa.Scalar) -> str:
    try:
        return f"{value.as_py()!r:.100}"
    except (ValueError, OverflowError):
        # A time outside of Python's range.
        return f"{value.value} µs"
