"""Files of canonical savepoints: rows of a state in Parquet, named by the state and a hash. See docs/format.md.

Equal rows in equal order have equal bytes, independent of batches, with the same version of the Parquet library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.core.errors import CorruptionError
from strandline.core.keygroups import BROADCAST_GROUP
from strandline.format.manifest import FileRef, TableFile, table_path
from strandline.snapshot.rows.columns import KEY_GROUP, VALUE

# Each option changes the bytes. Statistics and the page index, for all columns but values, let readers skip rows by
# key. Rows are sorted by key, so that values rarely allow skipping. Values have no dictionary: few repeat, and the
# search for repetitions would double the time. Arrow's schema is left out: it differs where Parquet's is the same.
_OPTIONS: dict[str, Any] = {
    "version": "2.6",
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": [KEY_GROUP],
    "write_page_index": True,
    "write_page_checksum": True,
    "store_schema": False,
    "write_batch_size": 1024,
    "data_page_size": 1 << 20,
    "dictionary_pagesize_limit": 1 << 20,
    "data_page_version": "1.0",
}

_TABLE = "strandline.table"
"""The only metadata key, since the library would order several ones."""

Open = Callable[[FileRef], AbstractContextManager[Path]]
"""Makes a savepoint's verified file available on this machine while the context is open."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Sizes of files and row groups, which are equal for all writers of a savepoint: they change the bytes."""

    file_bytes: int = 16 << 20
    """Size of the values, before compression."""
    row_group_rows: int = 64 << 10


@dataclass(frozen=True, slots=True)
class LocalTable:
    """A local file with rows of one state, in order, and its entry for the manifest."""

    path: Path
    table: TableFile


def named_schema(schema: pa.Schema, uid: str, state: str) -> pa.Schema:
    """Return the schema of a table's files, with the names of operator and state."""
    # Drop Arrow's own metadata, which would change the hash.
    fields = [pa.field(field.name, field.type, field.nullable) for field in schema]
    return pa.schema(fields, {_TABLE: json.dumps({"operator": uid, "state": state}, ensure_ascii=False)})


def key_groups(batch: pa.RecordBatch | pa.Table) -> npt.NDArray[np.int32]:
    """Return each row's key group, BROADCAST_GROUP for broadcast rows."""
    groups: npt.NDArray[np.int32] = batch.column(KEY_GROUP).fill_null(BROADCAST_GROUP).to_numpy()
    return groups


def write_table(table: pa.Table, directory: Path, cut: Cut, *, is_piece: bool = False) -> LocalTable:
    """Write these rows, at least one, in order of key groups; the file gets its name when it is complete.

    The table's schema comes from `named_schema`. A piece is no file of the savepoint yet.
    """
    # Ends of pages would depend on the chunks of columns.
    table = table.combine_chunks()
    groups = key_groups(table)
    named = table.schema.metadata[_TABLE.encode()]
    sink = pa.BufferOutputStream()
    keys = [path for field in table.schema if field.name != VALUE for path in _leaves(field.name, field.type)]
    with pq.ParquetWriter(sink, table.schema, write_statistics=keys, **_OPTIONS) as writer:
        for first, last in _row_groups(groups, cut.row_group_rows):
            writer.write_table(table.slice(first, last - first), row_group_size=last - first)
        writer.add_key_value_metadata({_TABLE: named.decode()})
    data = sink.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    names = json.loads(named)
    in_savepoint = f"pieces/{sha256}" if is_piece else table_path(names["operator"], names["state"], sha256)
    path = directory / Path(in_savepoint).name
    draft = path.with_suffix(".writing")
    draft.write_bytes(data)
    draft.rename(path)
    ref = FileRef(name=path.name, size=data.size, sha256=sha256, path=in_savepoint)
    return LocalTable(path, table_of(groups[0], groups[-1], len(groups), ref))


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """Yield the Parquet names of the leaf columns of a column without lists."""
    if not pa.types.is_struct(kind):
        yield path
        return
    for part in kind:
        yield from _leaves(f"{path}.{part.name}", part.type)


def table_of(first: int, last: int, rows: int, file: FileRef) -> TableFile:
    """Return the manifest's entry of a file with rows from the first to the last of these key groups."""
    return TableFile(first_key_group=int(first), last_key_group=int(last), rows=rows, file=file)


def _row_groups(groups: npt.NDArray[np.int32], most_rows: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows that end with a key group and have half of the most rows or more, if possible."""
    ends = np.append(np.flatnonzero(np.diff(groups)) + 1, len(groups))
    first = 0
    while first < len(groups):
        last = first + most_rows
        at = int(np.searchsorted(ends, first + -(-most_rows // 2)))
        if at < len(ends):
            last = min(last, int(ends[at]))
        last = min(last, len(groups))
        yield first, last
        first = last


def read_tables(
    files: Sequence[TableFile],
    groups: range,
    open: Open,
    may_hold: Callable[[pq.ParquetFile, int], bool] = lambda parquet, row_group: True,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a range of key groups, in order, from the files and row groups that have such rows.

    Broadcast rows belong to every range. One file is open at a time. It skips row groups for which `may_hold` is False.
    Raises CorruptionError naming a file that is damaged or does not match the manifest.
    """
    for file in files:
        if _overlap(file.first_key_group, file.last_key_group, groups):
            with open(file.file) as path:
                yield from _read(path, groups, file, may_hold)


def _read(
    path: Path, groups: range, file: TableFile, may_hold: Callable[[pq.ParquetFile, int], bool]
) -> Iterator[pa.RecordBatch]:
    where = file.file.path or str(path)
    try:
        with pq.ParquetFile(path, memory_map=True, page_checksum_verification=True) as parquet:
            ranges = [row_group_range(parquet, index) for index in range(parquet.num_row_groups)]
            _check(where, parquet.metadata.num_rows, ranges, file)
            wanted = [index for index, (first, last) in enumerate(ranges) if _overlap(first, last, groups)]
            wanted = [index for index in wanted if may_hold(parquet, index)]
            for batch in parquet.iter_batches(row_groups=wanted, use_threads=False):
                if (rows := _within(batch, groups)).num_rows:
                    yield rows
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"{where}: cannot be read as a table of state: {error}", path=where) from error


def _check(where: str, rows: int, ranges: list[tuple[int, int]], file: TableFile) -> None:
    first, last = (ranges[0][0], ranges[-1][1]) if ranges else (None, None)
    if (rows, first, last) != (file.rows, file.first_key_group, file.last_key_group):
        raise CorruptionError(
            f"{where}: holds {rows} rows of key groups {first} to {last}, "
            f"expected {file.rows} of {file.first_key_group} to {file.last_key_group}"
        )


def row_group_range(parquet: pq.ParquetFile, index: int) -> tuple[int, int]:
    """Return the first and the last key group of a row group, from its statistics alone."""
    statistics = parquet.metadata.row_group(index).column(0).statistics
    if statistics is None or not statistics.has_min_max:
        return BROADCAST_GROUP, BROADCAST_GROUP
    return statistics.min, statistics.max


def _overlap(first: int, last: int, groups: range) -> bool:
    return first == BROADCAST_GROUP or (first < groups.stop and last >= groups.start)


def _within(batch: pa.RecordBatch, groups: range) -> pa.RecordBatch:
    row_groups = key_groups(batch)
    if not len(row_groups) or row_groups[0] == BROADCAST_GROUP:
        return batch
    first, last = np.searchsorted(row_groups, [groups.start, groups.stop])
    return batch.slice(first, last - first)
