"""Brings a partition's state out of a snapshot whose partitions were others: more, fewer, another backend's, or tables.

Key groups are ranges of key bytes, so that one part can be taken as it is, with what is not ours cut off: the one that
holds most of ours, if its files are such as our backend has. Of all others, and of the tables of a savepoint, our key
groups are read and taken in.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from strandline.backends.base import Backend
from strandline.backends.reading import file_kind, open_reader
from strandline.checkpoint.folder import Folder, folder_at
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import fetch
from strandline.core import failpoints
from strandline.core.ids import Partition
from strandline.core.keygroups import BROADCAST_GROUPS, range_of
from strandline.format.manifest import FileRef, OperatorInfo, PartitionInfo
from strandline.keeper.paths import local_copy
from strandline.runtime.program import Program, Restore
from strandline.snapshot.rows.codec import RowCodec
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.parquet import read_tables
from strandline.snapshot.savepoints.savepoint import fetching


@dataclass(frozen=True)
class Restoring:
    """What one partition restores, and how."""

    _program: Program
    _partition: Partition
    _directory: Path
    _jobdir: JobDirectory
    restore: Restore
    _stored: OperatorInfo

    @cached_property
    def groups(self) -> range:
        """The key groups that the partition is to have."""
        return range_of(self._partition, self._program.max_parallelism, self._program.parallelism)

    @cached_property
    def parts(self) -> list[PartitionInfo]:
        """The parts that hold some of them; first the one that is taken as it is, if one is."""
        return self.restore.parts_of(self.groups)

    @cached_property
    def base(self) -> PartitionInfo | None:
        """The part whose files the partition goes on with."""
        fits = file_kind(self._stored.backend) == file_kind(self._program.backend)
        return self.parts[0] if fits and self.parts else None

    @property
    def referable(self) -> dict[str, FileRef]:
        """By name, files that the next checkpoint need not upload."""
        if self.base is None or self.restore.place is not None:
            return {}
        return {file.name: file for file in self.base.files if file.shared}

    @cached_property
    def _folder(self) -> Folder:
        return self._jobdir if self.restore.place is None else folder_at(self.restore.place)

    def fetch(self, database: Path, *, copies: bool) -> tuple[int, int]:
        """Bring all parts here, from local copies too; return how many bytes came from there, and from storage."""
        places = [database if part is self.base else _beside(database, part) for part in self.parts]
        found = [
            fetch(self._folder, part.files, into, self._copy_of(part) if copies else None)
            for part, into in zip(self.parts, places, strict=True)
        ]
        return sum(from_copy for from_copy, _ in found), sum(from_storage for _, from_storage in found)

    def fill(self, backend: Backend, states: Sequence[str], database: Path) -> None:
        """Bring a backend that was opened on the base's files, if there is one, to exactly the partition's state.

        States that are renamed are taken in under their new names; the base's have their old ones still.
        """
        base = self.base
        if base is not None and range(base.first_key_group, base.last_key_group + 1) != self.groups:
            backend.clip(self.groups)
        was = {state: self._program.was.get(state, state) for state in states}
        for part in self.parts:
            if part is not base:
                failpoints.hit("keeper.restore.part")
                self._take_in(backend, was, part, _beside(database, part))
        if self._stored.tables:
            self._read_tables(backend, was, database)

    def _take_in(self, backend: Backend, was: Mapping[str, str], part: PartitionInfo, directory: Path) -> None:
        """Read our key groups of a part; of the first one what all have, too, if no part is taken as it is."""
        reader = open_reader(file_kind(self._stored.backend), directory)
        try:
            for state, stored in was.items():
                backend.load(state, reader.scan(stored, self.groups))
                if self.base is None and part is self.parts[0]:
                    backend.load(state, reader.scan(stored, BROADCAST_GROUPS))
        finally:
            reader.close()
        shutil.rmtree(directory, ignore_errors=True)

    def _read_tables(self, backend: Backend, was: Mapping[str, str], database: Path) -> None:
        # Named as what a restart deletes: of one that is killed, nothing stays.
        scratch = database.with_name(f"{database.name}-tables")
        scratch.mkdir(parents=True, exist_ok=True)
        opening = fetching(self._folder, scratch)
        infos = {info.name: info for info in self._stored.states}
        for state, stored in was.items():
            if files := (self._stored.tables or {}).get(stored):
                failpoints.hit("keeper.restore.table")
                codec = rows_of(self._stored, infos[stored])
                rows = codec.encode_groups(read_tables(files, self.groups, opening))
                # The program may have taken the TTLs of all states away.
                cleaning = codec.cleaning if codec.cleaning in was else None
                backend.load(state, self._noted(backend, cleaning, codec, rows))
        shutil.rmtree(scratch, ignore_errors=True)

    def _noted(
        self, backend: Backend, cleaning: str | None, codec: RowCodec, found: Iterator[list[tuple[bytes, bytes]]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Give entries; the cleaning hears of those that expire."""
        for entries in found:
            if cleaning is not None:
                backend.write({cleaning: codec.cleaning_of(entries)})
            yield from entries

    def _copy_of(self, part: PartitionInfo) -> Path | None:
        """Return where the partition that a part was of has its copy, if it was on this machine and this job's."""
        if self.restore.place is not None:
            return None
        of_all = self._directory.name.removesuffix(f"-{self._partition}")
        return local_copy(self._directory.with_name(f"{of_all}-{part.index}"), self.restore.checkpoint)


def _beside(database: Path, part: PartitionInfo) -> Path:
    return database.with_name(f"{database.name}-part-{part.index}")
