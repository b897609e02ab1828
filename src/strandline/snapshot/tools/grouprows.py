"""The rows of a snapshot's states, a range of key groups at a time: of partitions' files, or of tables."""

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
    """The rows of one operator's states. What had expired when the snapshot was taken is left out.

    Files are fetched to this machine, verified, and deleted when others are needed: those of one partition, or one
    file of a table, are here at a time. Whoever reads goes on with higher key groups, so that each is fetched once.
    """

    def __init__(self, snapshot: Snapshot, operator: OperatorInfo, scratch: Path) -> None:
        """`scratch` is a local directory, which is there."""
        self.operator = operator
        self._snapshot = snapshot
        self._scratch = Path(tempfile.mkdtemp(dir=scratch))
        self._parts = sorted(operator.partitions, key=lambda part: part.first_key_group)
        self._open: tuple[PartitionInfo, SnapshotReader] | None = None
        self._fetched: FileRef | None = None

    @property
    def are_tables(self) -> bool:
        """Whether they are those of a canonical savepoint."""
        return self._snapshot.manifest.savepoint == "canonical"

    @property
    def starts(self) -> Collection[int]:
        """The key groups with which other files begin: a range that is read must not go across one of them."""
        return [0] if self.are_tables else [part.first_key_group for part in self._parts]

    def tables(self, state: str) -> list[TableFile]:
        """Return the files of a state, if they are tables."""
        return (self.operator.tables or {}).get(state, [])

    def read(self, state: StateInfo, groups: range, read_as: StateInfo | None = None) -> Iterator[pa.RecordBatch]:
        """Read rows in order, with columns as `rows_of` says; broadcast rows are those of BROADCAST_GROUPS.

        With `read_as`, values become those of another type, whose older schemas are this state's and its own.
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
        """Let go of all files."""
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
        """Keep the last file: the next range is often of the same."""
        directory = self._scratch / "table"
        if self._fetched != file:
            self._fetched = None
            shutil.rmtree(directory, ignore_errors=True)
            fetch(self._snapshot.folder, [file], directory)
            self._fetched = file
        yield directory / file.name


def by_group(batches: Iterable[pa.RecordBatch], heard: Callable[[int], None]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cut rows that are in order into whole key groups; `heard` is told how many come."""
    waiting: list[pa.RecordBatch] = []
    at = -1
    for batch in batches:
        if not batch.num_rows:
            continue
        heard(batch.num_rows)
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

    A key group of several files is among them as a whole: a key's rows may begin in one file and end in the next.
    """
    ours, theirs = {file.file.path: file for file in one}, {file.file.path: file for file in other}
    single = [*(f for path, f in ours.items() if path not in theirs), *(f for p, f in theirs.items() if p not in ours)]
    return {group for file in single for group in range(file.first_key_group, file.last_key_group + 1)}
