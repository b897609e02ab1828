"""Writers of a state's rows into canonical files. Writers of parts work independently.

A writer of a range of key groups writes the files whose ends it can determine (`tree.py`), and the remaining rows, at
the ends of its range, into pieces. `join` turns all pieces into the files that a single writer would have written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strandline.checkpoint.parallel import sha256_of
from strandline.core.errors import CorruptionError
from strandline.core.ids import unique_name
from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.format.manifest import FileRef, TableFile
from strandline.snapshot.rows.columns import KEY_GROUP
from strandline.snapshot.rows.parquet import Cut, LocalTable, key_groups, table_of, write_table
from strandline.snapshot.savepoints.tree import KeyGroupTree

OnFile = Callable[[LocalTable], object]
Sizes = npt.NDArray[np.int64]

_CUT = Cut()
_LENGTH_BYTES = 4
_PRESENCE_BYTES = 1
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


def _ignore(local: LocalTable) -> None:
    """Leave a file to the caller."""


class _Queue:
    """A queue of batches of rows, with their sizes."""

    def __init__(self) -> None:
        self._batches: deque[tuple[pa.RecordBatch, Sizes]] = deque()
        """Batches with the cumulative sizes of their rows, from 0 on."""

    def put(self, batch: pa.RecordBatch, ends: Sizes) -> None:
        self._batches.append((batch, ends))

    def take(self, rows: int) -> list[pa.RecordBatch]:
        """Remove the first rows and return them."""
        batches: list[pa.RecordBatch] = []
        while rows:
            batch, ends = self._batches.popleft()
            n = min(rows, batch.num_rows)
            batches.append(batch.slice(0, n))
            if n < batch.num_rows:
                self._batches.appendleft((batch.slice(n), ends[n:]))
            rows -= n
        return batches

    def prefix(self, size: int) -> tuple[int, int]:
        """Return the most first rows, at least one, whose total size is within `size`, and that size."""
        rows = total = 0
        for batch, ends in self._batches:
            n = int(np.searchsorted(ends, ends[0] + size - total, side="right")) - 1
            if n < batch.num_rows:
                n = n if rows + n else 1
                return rows + n, total + int(ends[n] - ends[0])
            rows += n
            total += int(ends[n] - ends[0])
        return rows, total


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
    ) -> None:
        """`schema` comes from `named_schema`. `on_file` gets each complete file and piece, and may delete it."""
        if schema.names[:1] != [KEY_GROUP] or schema.field(0).type != pa.int32():
            raise ValueError(f"the first column is {schema.field(0)}, expected {KEY_GROUP}: int32")
        if not schema.metadata:
            raise ValueError("the columns do not say whose they are: expected a named_schema")
        self._schema = schema
        self._groups = groups
        self._directory = directory
        self._cut = cut
        self._on_file = on_file
        self._first = groups.start if groups == BROADCAST_GROUPS else 0
        leaves = 1 if groups == BROADCAST_GROUPS else max_parallelism
        shifted = range(groups.start - self._first, groups.stop - self._first)
        self._tree = KeyGroupTree(shifted, leaves, cut.file_bytes, self._give)
        self._waiting = _Queue()
        self._last = groups.start
        self._piece: PieceWriter | None = None
        self._files: list[LocalTable] = []
        self._pieces: list[LocalTable] = []

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
        self._last = int(groups[-1])
        ends = np.append(0, np.cumsum(row_sizes(batch)))
        borders = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), batch.num_rows]
        self._waiting.put(batch, ends)
        for first, last in pairwise(borders):
            self._tree.add(int(groups[first]) - self._first, last - first, int(ends[last] - ends[first]))
            while self._tree.overfull:
                self._tree.cut(*self._waiting.prefix(self._cut.file_bytes))

    def mark_file(self, group: int) -> None:
        """Note that a file of another writer begins with this key group; this writer does not get its rows."""
        if group < self._last:
            raise ValueError(f"a file that begins with key group {group}, expected {self._last} or later")
        self._last = group
        self._tree.mark_file(group)

    def finish(self) -> tuple[list[LocalTable], list[LocalTable]]:
        """Return the savepoint's files, and the pieces for `join`, each in order."""
        self._tree.finish()
        self._end_piece()
        return self._files, self._pieces

    def _give(self, rows: int, whole: bool) -> None:
        batches = self._waiting.take(rows)
        if whole:
            self._end_piece()
            table = pa.Table.from_batches(batches, self._schema)
            self._files.append(write_table(table, self._directory, self._cut))
            self._on_file(self._files[-1])
            return
        if self._piece is None:
            self._piece = PieceWriter(self._schema, self._directory)
        self._piece.write(batches)

    def _end_piece(self) -> None:
        if self._piece is not None:
            self._pieces.append(self._piece.finish())
            self._on_file(self._pieces[-1])
            self._piece = None


def join(
    files: Iterable[TableFile],
    pieces: Sequence[LocalTable],
    max_parallelism: int,
    directory: Path,
    cut: Cut = _CUT,
    on_file: OnFile = _ignore,
) -> list[LocalTable]:
    """Join all writers' pieces of a state to files in a local directory; the pieces stay.

    `files` are the files of the writers, whose positions determine the ends of the new ones. Raises CorruptionError
    naming a piece that is damaged, and ValueError for pieces that overlap.
    """
    if not pieces:
        return []
    writer = TableWriter(piece_schema(pieces[0]), range(max_parallelism), max_parallelism, directory, cut, on_file)
    pending = deque(sorted(file.first_key_group for file in files))
    ordered = sorted(pieces, key=lambda piece: piece.table.first_key_group)
    for one, other in pairwise(ordered):
        if one.table.last_key_group >= (group := other.table.first_key_group):
            raise ValueError(f"{one.path} and {other.path}: both have key group {group}, expected one")
    for piece in ordered:
        while pending and pending[0] < piece.table.first_key_group:
            writer.mark_file(pending.popleft())
        for batch in read_piece(piece):
            writer.write(batch)
    for group in pending:
        writer.mark_file(group)
    return writer.finish()[0]


def in_order(files: Iterable[TableFile]) -> list[TableFile]:
    """Return a state's files in the order of its manifest."""
    return sorted(files, key=lambda file: file.first_key_group)


class PieceWriter:
    """Writes rows into a new local file, an Arrow IPC stream, which gets its name when it is complete."""

    def __init__(self, schema: pa.Schema, directory: Path) -> None:
        self._path = directory / f"{unique_name()}.arrow"
        self._draft = self._path.with_suffix(".writing")
        self._stream = pa.ipc.new_stream(self._draft, schema, options=_OPTIONS)
        self._first: int | None = None
        self._last = self._rows = 0

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Append rows, at least one."""
        for batch in batches:
            self._stream.write_batch(batch)
            self._rows += batch.num_rows
        if self._first is None:
            self._first = int(key_groups(batches[0])[0])
        self._last = int(key_groups(batches[-1])[-1])

    def finish(self) -> LocalTable:
        """Close the file, which has rows, and return it."""
        assert self._first is not None
        self._stream.close()
        self._draft.rename(self._path)
        name = self._path.name
        ref = FileRef(name=name, size=self._path.stat().st_size, sha256=sha256_of(self._path), path=f"pieces/{name}")
        return LocalTable(self._path, table_of(self._first, self._last, self._rows, ref))


def piece_schema(piece: LocalTable) -> pa.Schema:
    """Return the columns of a piece; raise CorruptionError naming it if they cannot be read."""
    try:
        with pa.OSFile(str(piece.path)) as file, pa.ipc.open_stream(file) as stream:
            return stream.schema
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"{piece.path}: cannot be read as a piece of a table: {error}") from error


def read_piece(piece: LocalTable) -> Iterator[pa.RecordBatch]:
    """Read a piece's rows in order; raise CorruptionError naming it if it is damaged."""
    file = piece.table.file
    try:
        size, sha256 = piece.path.stat().st_size, sha256_of(piece.path)
        if (size, sha256) != (file.size, file.sha256):
            raise CorruptionError(
                f"{piece.path}: {size} bytes with sha256 {sha256[:12]}…, expected {file.size} with {file.sha256[:12]}…"
            )
        with pa.OSFile(str(piece.path)) as file, pa.ipc.open_stream(file) as stream:
            yield from stream
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"{piece.path}: cannot be read as a piece of a table: {error}") from error


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
