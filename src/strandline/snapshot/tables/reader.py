"""Reader of a snapshot's tables: all rows, a range of key groups, or one key.

The job may run meanwhile. The reader links local files, so that the job's deletions do not affect it, and fetches
remote ones, a part at a time, and only if the part may hold a requested row.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from strandline.backends.reading import SELF_CHECKED, PartitionReader, file_kind, open_reader
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.parallel import sha256_of
from strandline.checkpoint.restore import check_size, fetch, lay_out, local_path
from strandline.core.errors import ConfigurationError, CorruptionError
from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.core.scratch import Scratch, refuse_full_disk
from strandline.format.manifest import FileRef, OperatorInfo, PartitionInfo
from strandline.snapshot.opening.snapshot import deletion_detected
from strandline.snapshot.rows.keys import TableKey
from strandline.snapshot.rows.parquet import Open, read_tables
from strandline.snapshot.tables.table import Table

_OPEN_PARTS = 8
_KEYED_BY_GROUP = ("timers", "panes")
"""Kinds of state with entries that do not begin with the key."""


class StateReader:
    """Reads tables, and keeps partitions open for the next look-ups of keys. Several threads may use it."""

    def __init__(self, scratch: Path | None = None, most_open: int = _OPEN_PARTS) -> None:
        """`scratch` is a local directory with room for fetched files, those of `most_open` partitions."""
        self._scratch = Scratch("state", scratch)
        self.scratch = self._scratch.path
        """The reader's own directory, until it is closed."""
        self._most_open = most_open
        self._open: OrderedDict[tuple[str, str, int], _Part] = OrderedDict()
        self._verified: dict[Path, tuple[int, ...]] = {}
        """By path: the identity of local files whose checksums were compared."""
        self._lock = threading.Lock()

    def __enter__(self) -> StateReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        refuse_full_disk(error, self.scratch)

    def close(self) -> None:
        """Close all files, and delete fetched ones."""
        while self._open:
            self._open.popitem()[1].close()
        self._scratch.close()

    def rows(self, table: Table, groups: range | None = None, *, keep: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range of key groups, or all, in order; fetched parts exist one at a time.

        With `keep`, for one thread, parts stay open for the next call, as for look-ups.
        """
        if table.is_broadcast:
            wanted = BROADCAST_GROUPS
        else:
            whole = table.groups
            wanted = whole if groups is None else range(max(groups.start, 0), min(groups.stop, whole.stop))
        with deletion_detected(table.folder, table.metadata):
            if table.files is not None:
                yield from read_tables(table.files, wanted, self._opening(table.folder))
            for part in table.partitions:
                common = _common(wanted, part)
                if not common:
                    continue
                opened = self._part(table, part) if keep else self._new_part(table, part)
                try:
                    yield from table.codec.decode_groups(opened.reader.scan(table.state.name, common))
                finally:
                    if not keep:
                        opened.close()

    def look_up(self, table: Table, key: Any) -> pa.RecordBatch:
        """Return the rows of one key, in order; none if the table lacks it."""
        if table.is_broadcast:
            raise ConfigurationError(
                f"table '{table.name}': broadcast state belongs to no key", hint="read all of it, and filter its rows"
            )
        wanted = TableKey(table.operator, key)
        with deletion_detected(table.folder, table.metadata):
            return self._in_files(table, wanted) if table.files is not None else self._in_parts(table, wanted)

    def _in_files(self, table: Table, key: TableKey) -> pa.RecordBatch:
        groups = range(key.group, key.group + 1)
        opening = self._opening(table.folder)
        batches = read_tables(table.files or [], groups, opening, key.may_be_in)
        return _concat(table, [rows for batch in batches if (rows := key.among(batch)).num_rows])

    def _in_parts(self, table: Table, key: TableKey) -> pa.RecordBatch:
        part = table.part_of(key.group)
        name = table.state.name
        with self._lock:
            reader = self._part(table, part).reader
            if table.state.kind not in _KEYED_BY_GROUP:
                return table.codec.decode(list(reader.scan_prefix(name, key.bytes)))
            groups = range(key.group, key.group + 1)
            batches = [key.among(batch) for batch in table.codec.decode_groups(reader.scan(name, groups))]
        return _concat(table, [rows for rows in batches if rows.num_rows])

    def _part(self, table: Table, part: PartitionInfo) -> _Part:
        at = (f"{table.folder.url}/{table.metadata}", table.operator.uid, part.index)
        opened = self._open.get(at)
        if opened is None:
            while len(self._open) >= self._most_open:
                self._open.popitem(last=False)[1].close()
            opened = self._open[at] = self._new_part(table, part)
        self._open.move_to_end(at)
        return opened

    def _new_part(self, table: Table, part: PartitionInfo) -> _Part:
        return _Part(table.folder, table.operator, part, self._make_directory())

    def _verify(self, folder: Folder, file: FileRef, path: Path) -> None:
        """Compare a file with its checksum, once for each version of the file. Its pages have checksums, too."""
        status = path.stat()
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._verified.get(path) == identity:
            return
        if sha256_of(path) != file.sha256:
            raise CorruptionError(
                f"{folder.url}/{file.path}: damaged: its bytes do not match the manifest's checksum",
                hint="`strandline snapshots verify` names every damaged file",
                path=file.path,
            )
        self._verified[path] = identity

    def _make_directory(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.scratch))

    def _opening(self, folder: Folder) -> Open:
        """Return a function that opens a savepoint's files: local ones in place, others after a fetch."""

        @contextmanager
        def opened(file: FileRef) -> Iterator[Path]:
            path = local_path(folder, file)
            if path is not None:
                check_size(folder, file, path)
                self._verify(folder, file, path)
                yield path
                return
            directory = self._make_directory()
            try:
                fetch(folder, [file], directory)
                yield directory / file.name
            finally:
                shutil.rmtree(directory, ignore_errors=True)

        return opened


class _Part:
    """The open files of a partition."""

    def __init__(self, folder: Folder, operator: OperatorInfo, part: PartitionInfo, place: Path) -> None:
        self._place = place
        try:
            lay_out(folder, part.files, place, SELF_CHECKED)
            self.reader: PartitionReader = open_reader(file_kind(operator.backend), place)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    def close(self) -> None:
        self.reader.close()
        shutil.rmtree(self._place, ignore_errors=True)


def _common(groups: range, part: PartitionInfo) -> range:
    """Return the key groups of a range that a partition has; each one has broadcast rows."""
    if groups == BROADCAST_GROUPS:
        return groups
    return range(max(groups.start, part.first_key_group), min(groups.stop, part.last_key_group + 1))


def _concat(table: Table, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    return pa.concat_batches(batches)
