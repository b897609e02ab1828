"""Pieces: rows that a writer cannot know the file of, on their way to who does. They are no part of a savepoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from strandline.checkpoint.parallel import sha256_of
from strandline.core.errors import CorruptionError
from strandline.core.ids import unique_name
from strandline.format.manifest import FileRef
from strandline.snapshot.parquet import LocalTable, key_groups, table_of

_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


class PieceWriter:
    """Writes rows into a new local file, an Arrow IPC stream, which has its name only when it is whole."""

    def __init__(self, schema: pa.Schema, directory: Path) -> None:
        self._path = directory / f"{unique_name()}.arrow"
        self._draft = self._path.with_suffix(".writing")
        self._stream = pa.ipc.new_stream(self._draft, schema, options=_OPTIONS)
        self._first: int | None = None
        self._last = self._rows = 0

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Add rows, at least one, behind the others."""
        for batch in batches:
            self._stream.write_batch(batch)
            self._rows += batch.num_rows
        if self._first is None:
            self._first = int(key_groups(batches[0])[0])
        self._last = int(key_groups(batches[-1])[-1])

    def finish(self) -> LocalTable:
        """Return the whole file, which has rows."""
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
    """Read a piece's rows in order; raise CorruptionError naming it unless it is as it was written."""
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
