"""Reader of a snapshot's rows by ranges of key groups, from files of partitions or from tables."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from strandline.backends.reading import SnapshotReader, file_kind, open_reader
from strandline.checkpoint.restore import fetch
from strandline.core.keygroups import BROADCAST_GROUPS
from strandline.format.manifest import FileRef, OperatorInfo, PartitionInfo, StateInfo, TableFile
from strandline.snapshot.opening.snapshot import Snapshot
from strandline.snapshot.rows.codec import RowCodec
from strandline.snapshot.rows.codecs import rows_of, times_of
from strandline.snapshot.rows.parquet import key_groups, read_tables


class OperatorRows:
    """Reads rows of one operator's states, without those that had expired when the snapshot was taken.

    It fetches and verifies the files of one partition, or one file of a table, and keeps them until it needs others.
    Callers read ascending key groups, all states of each range, so that it fetches each file once. `StateReader`
    instead links local files, without verifying those of partitions, and opens a partition at each call of `rows`.
    """

    def __init__(self, snapshot: Snapshot, operator: OperatorInfo, scratch: Path) -> None:
        """`scratch` is an existing local directory."""
        self.operator = operator
        self._snapshot = snapshot
        self._scratch = Path(tempfile.mkdtemp(dir=scratch))
        self._parts = sorted(operator.partitions, key=lambda part: part.first_key_group)
        self._open: tuple[PartitionInfo, SnapshotReader] | None = None
        self._fetched: FileRef | None = None

    @property
    def are_tables(self) -> bool:
        """Whether the snapshot is a canonical savepoint."""
        return self._snapshot.manifest.savepoint == "canonical"

    @property
    def starts(self) -> Collection[int]:
        """The first key groups of partitions. A range to read must not cross one of them."""
        return [0] if self.are_tables else [part.first_key_group for part in self._parts]

    def tables(self, state: str) -> list[TableFile]:
        """Return the files of a state's table."""
        return (self.operator.tables or {}).get(state, [])

    def read(self, state: StateInfo, groups: range, read_as: StateInfo | None = None) -> Iterator[pa.RecordBatch]:
        """Read rows in order, with the columns of `rows_of`; BROADCAST_GROUPS selects broadcast rows.

        With `read_as`, values are converted to the type of that state, which has this state's schemas as older ones.
        """
        codec = self._codec(read_as or state)
        if not self.are_tables:
            return codec.decode_groups(self._reader(groups).scan(state.name, groups))
        rows = read_tables(self.tables(state.name), groups, self._opened)
        if read_as is None:
            return rows
        entries = self._codec(state).encode_groups(rows)
        return codec.decode_groups(entry for some in entries for entry in some)

    def close(self) -> None:
        """Close and delete all files."""
        self._close_partition()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _codec(self, state: StateInfo) -> RowCodec:
        now_us, watermark_us = times_of(self._snapshot.manifest)
        return rows_of(self.operator, state, now_us=now_us, watermark_us=watermark_us)

    def _reader(self, groups: range) -> SnapshotReader:
        wanted = self._parts[0]
        if groups != BROADCAST_GROUPS:
            wanted = next(part for part in self._parts if part.last_key_group >= groups.start)
        if self._open is not None and self._open[0] is wanted:
            return self._open[1]
        self._close_partition()
        directory = self._scratch / "partition"
        fetch(self._snapshot.folder, wanted.files, directory)
        reader = open_reader(file_kind(self.operator.backend), directory)
        self._open = wanted, reader
        return reader

    def _close_partition(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None
        shutil.rmtree(self._scratch / "partition", ignore_errors=True)

    @contextmanager
    def _opened(self, file: FileRef) -> Iterator[Path]:
        """Open a file, and keep it: the next range is often in the same."""
        directory = self._scratch / "table"
        if self._fetched != file:
            self._fetched = None
            shutil.rmtree(directory, ignore_errors=True)
            fetch(self._snapshot.folder, [file], directory)
            self._fetched = file
        yield directory / file.name


def by_group(batches: Iterable[pa.RecordBatch], report: Callable[[int], None]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield whole key groups of rows that are in order; `report` gets the numbers of rows."""
    waiting: list[pa.RecordBatch] = []
    at = -1
    for batch in batches:
        if not batch.num_rows:
            continue
        report(batch.num_rows)
        groups = key_groups(batch)
        borders = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), batch.num_rows]
        for first, last in pairwise(borders):
            group = int(groups[first])
            if waiting and group != at:
                yield at, pa.concat_batches(waiting)
                waiting = []
            at = group
            waiting.append(batch.slice(first, last - first))
    if waiting:
        yield at, pa.concat_batches(waiting)


def unequal_groups(one: Iterable[TableFile], other: Iterable[TableFile]) -> set[int]:
    """Return the key groups in which two tables may differ: those of files that only one of them has.

    If one file of a key group differs, the whole key group does: a key's rows may span several files.
    """
    ours, theirs = {file.file.path: file for file in one}, {file.file.path: file for file in other}
    single = [*(f for path, f in ours.items() if path not in theirs), *(f for p, f in theirs.items() if p not in ours)]
    return {group for file in single for group in range(file.first_key_group, file.last_key_group + 1)}
