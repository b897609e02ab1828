"""Writers of a state's rows into canonical files. Writers of parts work independently.

A state whose rows fit into a file is one file; otherwise each key group has files of its own. A writer whose rows fit
into a file cannot know which, unless it has all key groups: it writes them into a piece. `join` turns all pieces into
the files that a single writer would have written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.format.manifest import TableFile
from strandline.snapshot.rows.columns import KEY_GROUP
from strandline.snapshot.rows.parquet import Cut, LocalTable, key_groups, read_tables, write_table

OnFile = Callable[[LocalTable], object]
Sizes = npt.NDArray[np.int64]

_CUT = Cut()
_LENGTH_BYTES = 4
_PRESENCE_BYTES = 1


def _ignore(local: LocalTable) -> None:
    """Leave a file to the caller."""


class _Rows:
    """Rows of one key group that are in no file yet."""

    def __init__(self) -> None:
        self.batches: deque[tuple[pa.RecordBatch, Sizes]] = deque()
        """Batches with the cumulative sizes of their rows, from 0 on."""
        self.size = 0

    def put(self, batch: pa.RecordBatch, ends: Sizes) -> None:
        self.batches.append((batch, ends))
        self.size += int(ends[-1] - ends[0])

    def take(self, size: int) -> list[pa.RecordBatch]:
        """Remove and return the most first rows, at least one, whose total size is within `size`."""
        first: list[pa.RecordBatch] = []
        while self.batches:
            batch, ends = self.batches.popleft()
            n = max(int(np.searchsorted(ends, ends[0] + size, side="right")) - 1, 0 if first else 1)
            first.append(batch.slice(0, n))
            size -= int(ends[n] - ends[0])
            self.size -= int(ends[n] - ends[0])
            if n < batch.num_rows:
                self.batches.appendleft((batch.slice(n), ends[n:]))
                break
        return first


class TableWriter:
    """Writes the rows of one state, of a contiguous range of key groups, into files in a local directory.

    The range of broadcast rows is BROADCAST_GROUPS. It holds the rows of at most one file in memory, and one batch.
    """

    def __init__(
        self,
        schema: pa.Schema,
        groups: range,
        max_parallelism: int,
        directory: Path,
        cut: Cut = _CUT,
        on_file: OnFile = _ignore,
        *,
        is_large: bool = False,
    ) -> None:
        """`schema` comes from `named_schema`. `on_file` gets each complete file and piece, and may delete it.

        With `is_large`, other writers have more rows of the state than one file holds.
        """
        if schema.names[:1] != [KEY_GROUP] or schema.field(0).type != pa.int32():
            raise ValueError(f"the first column is {schema.field(0)}, expected {KEY_GROUP}: int32")
        if not schema.metadata:
            raise ValueError("the columns do not say whose they are: expected a named_schema")
        self._schema = schema
        self._groups = groups
        self._has_all = groups in (BROADCAST_GROUPS, range(max_parallelism))
        self._directory = directory
        self._cut = cut
        self._on_file = on_file
        self._is_large = is_large
        self._size = 0
        self._waiting: deque[_Rows] = deque()
        self._last = groups.start
        self._files: list[LocalTable] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, sorted by key group and key, that follow all earlier rows.

        Raises ValueError if a key group is out of range or out of order, or if the columns differ.
        """
        if not batch.schema.equals(self._schema):
            raise ValueError(f"columns {batch.schema}, expected {self._schema}")
        if not batch.num_rows:
            return
        groups = key_groups(batch)
        if groups[0] < self._last or groups[-1] >= self._groups.stop or (np.diff(groups) < 0).any():
            raise ValueError(
                f"key groups from {groups[0]} to {groups[-1]}, expected them in order, "
                f"from {self._last} to {self._groups.stop - 1}"
            )
        ends = np.append(0, np.cumsum(row_sizes(batch)))
        borders = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), batch.num_rows]
        for first, last in pairwise(borders):
            if not self._waiting or groups[first] != self._last:
                self._waiting.append(_Rows())
            self._last = int(groups[first])
            self._waiting[-1].put(batch.slice(first, last - first), ends[first : last + 1])
        self._size += int(ends[-1])
        if self._size > self._cut.file_bytes:
            self._is_large = True
        if self._is_large:
            while len(self._waiting) > 1:
                self._write_group(self._waiting.popleft())
            while self._waiting[0].size > self._cut.file_bytes:
                self._write_file(self._waiting[0].take(self._cut.file_bytes))

    def finish(self) -> tuple[list[LocalTable], list[LocalTable]]:
        """Return the savepoint's files, and the pieces for `join`, each in order."""
        if self._is_large or not self._waiting:
            for rows in self._waiting:
                self._write_group(rows)
            return self._files, []
        batches = [batch for rows in self._waiting for batch, _ in rows.batches]
        self._write_file(batches, is_piece=not self._has_all)
        return (self._files, []) if self._has_all else ([], self._files)

    def _write_group(self, rows: _Rows) -> None:
        while rows.batches:
            self._write_file(rows.take(self._cut.file_bytes))

    def _write_file(self, batches: Sequence[pa.RecordBatch], *, is_piece: bool = False) -> None:
        table = pa.Table.from_batches(batches, self._schema)
        self._files.append(write_table(table, self._directory, self._cut, is_piece=is_piece))
        self._on_file(self._files[-1])


def join(
    files: Sequence[TableFile],
    pieces: Sequence[TableFile],
    max_parallelism: int,
    directory: Path,
    cut: Cut = _CUT,
    on_file: OnFile = _ignore,
) -> list[LocalTable]:
    """Join all writers' pieces of a state, which are in a local directory, to files there; the pieces stay.

    `files` are the files of the writers. Raises CorruptionError naming a piece that is damaged, and ValueError for
    pieces that overlap.
    """
    ordered = sorted(pieces, key=lambda piece: piece.first_key_group)
    for one, other in pairwise(ordered):
        if one.last_key_group >= (group := other.first_key_group):
            raise ValueError(f"{one.file.name} and {other.file.name}: both have key group {group}, expected one")
    groups, writer = range(max_parallelism), None
    for batch in read_tables(ordered, groups, lambda file: nullcontext(directory / file.name)):
        writer = writer or TableWriter(
            batch.schema, groups, max_parallelism, directory, cut, on_file, is_large=bool(files)
        )
        writer.write(batch)
    return writer.finish()[0] if writer else []


def row_sizes(batch: pa.RecordBatch) -> Sizes:
    """Return each row's size in bytes, which is equal for equal rows with any layout of buffers.

    Raises ValueError for a type that no column of state has.
    """
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += _sizes(column)
    return sizes


def _sizes(array: pa.Array) -> Sizes:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _LENGTH_BYTES + _of_valid(array, pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64))
    if pa.types.is_map(kind):
        return _LENGTH_BYTES + _of_valid(array, _of_parts(array.offsets, [array.keys, array.items]))
    if pa.types.is_list(kind):
        return _LENGTH_BYTES + _of_valid(array, _of_parts(array.offsets, [array.values]))
    if pa.types.is_struct(kind):
        inner = np.zeros(len(array), np.int64)
        for index in range(kind.num_fields):
            inner += _sizes(array.field(index))
        return _PRESENCE_BYTES + _of_valid(array, inner)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return np.full(len(array), -(-kind.bit_width // 8), np.int64)
    raise ValueError(f"a column of the Arrow type {kind}: state has none such")


def _of_parts(offsets: pa.Array, parts: list[pa.Array]) -> Sizes:
    """Return the size of the elements of each list, which are between its offsets."""
    at = offsets.to_numpy().astype(np.int64)
    if not len(at):
        return np.zeros(0, np.int64)
    first, last = at[0], at[-1]
    ends = np.zeros(last - first + 1, np.int64)
    for part in parts:
        ends[1:] += np.cumsum(_sizes(part.slice(first, last - first)))
    ends_of: Sizes = np.diff(ends[at - first])
    return ends_of


def _of_valid(array: pa.Array, sizes: Sizes) -> Sizes:
    """Return sizes with 0 for nulls, whose buffers may hold anything."""
    return sizes if not array.null_count else np.where(array.is_valid().to_numpy(False), sizes, 0)
