"""Restores a partition from a snapshot with other partitions: more, fewer, of another backend, or tables.

Key groups are ranges of key bytes. So the partition can adopt the files of one part and cut off foreign key groups: of
the part with most of its key groups, if the file formats agree. From all other parts, and from the tables of a
savepoint, it reads its key groups and writes them to its backend.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from strandline.backends.base import Backend
from strandline.backends.reading import file_kind, open_reader
from strandline.backends.rocksfiles import BLOCK_CHECKED
from strandline.checkpoint.folder import Folder, folder_at
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import Unverified, fetch
from strandline.core import failpoints
from strandline.core.ids import Partition
from strandline.core.keygroups import BROADCAST_GROUPS, range_of
from strandline.format.manifest import FileRef, OperatorInfo, PartitionInfo
from strandline.keeper.paths import local_copy, standby_files
from strandline.runtime.program import Program, Restore
from strandline.snapshot.rows.codec import RowCodec
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.parquet import read_tables
from strandline.snapshot.savepoints.savepoint import fetching


@dataclass(frozen=True)
class PartitionRestore:
    """The restore of one partition."""

    _program: Program
    _partition: Partition
    _directory: Path
    _jobdir: JobDirectory
    restore: Restore
    _stored: OperatorInfo
    unverified: Unverified = field(default_factory=lambda: Unverified(BLOCK_CHECKED))
    """Files from local copies, which the first upload waits for."""

    @cached_property
    def groups(self) -> range:
        """The key groups of the partition."""
        return range_of(self._partition, self._program.max_parallelism, self._program.parallelism)

    @cached_property
    def parts(self) -> list[PartitionInfo]:
        """The parts with some of these key groups; the first one is the base, if there is one."""
        return self.restore.parts_of(self.groups)

    @cached_property
    def base(self) -> PartitionInfo | None:
        """The part whose files the partition adopts."""
        fits = file_kind(self._stored.backend) == file_kind(self._program.backend)
        return self.parts[0] if fits and self.parts else None

    @property
    def known_files(self) -> dict[str, FileRef]:
        """By name, the files of the checkpoint that the partition adopts: the next one need not upload shared ones."""
        if self.base is None or self.restore.place is not None:
            return {}
        return {file.name: file for file in self.base.files}

    @cached_property
    def _folder(self) -> Folder:
        return self._jobdir if self.restore.place is None else folder_at(self.restore.place)

    def fetch(self, database: Path, *, copies: bool) -> tuple[int, int]:
        """Fetch all parts, with `copies` from local copies too; return the bytes from copies and those from storage."""
        places = [database if part is self.base else _beside(database, part) for part in self.parts]
        self.unverified.clear()
        sizes = [
            fetch(self._folder, part.files, into, *(self._copies_of(part) if copies else (None, None)), self.unverified)
            for part, into in zip(self.parts, places, strict=True)
        ]
        return sum(from_copy for from_copy, _ in sizes), sum(from_storage for _, from_storage in sizes)

    def fill(self, backend: Backend, states: Sequence[str], database: Path) -> None:
        """Complete a backend that was opened on the base's files, if there is a base, to the partition's state.

        Renamed states are loaded under their new names; those of the base still have their old names.
        """
        base = self.base
        if base is not None and range(base.first_key_group, base.last_key_group + 1) != self.groups:
            backend.clip(self.groups)
        was = {state: self._program.was.get(state, state) for state in states}
        for part in self.parts:
            if part is not base:
                failpoints.hit("keeper.restore.part")
                self._load_part(backend, was, part, _beside(database, part))
        if self._stored.tables:
            self._read_tables(backend, was, database)

    def _load_part(self, backend: Backend, was: Mapping[str, str], part: PartitionInfo, directory: Path) -> None:
        """Load the key groups of a part, and broadcast state from the first one if there is no base."""
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
        # A restart deletes directories with this prefix, also those of a killed keeper.
        scratch = database.with_name(f"{database.name}-tables")
        scratch.mkdir(parents=True, exist_ok=True)
        opening = fetching(self._folder, scratch)
        infos = {info.name: info for info in self._stored.states}
        for state, stored in was.items():
            if files := (self._stored.tables or {}).get(stored):
                failpoints.hit("keeper.restore.table")
                codec = rows_of(self._stored, infos[stored])
                rows = codec.encode_groups(read_tables(files, self.groups, opening))
                # The program may have removed the TTLs of all states.
                cleaning = codec.cleaning if codec.cleaning in was else None
                backend.load(state, self._with_cleaning(backend, cleaning, codec, rows))
        shutil.rmtree(scratch, ignore_errors=True)

    def _with_cleaning(
        self, backend: Backend, cleaning: str | None, codec: RowCodec, chunks: Iterator[list[tuple[bytes, bytes]]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries, and schedule the cleaning of those that expire."""
        for entries in chunks:
            if cleaning is not None:
                backend.write({cleaning: codec.cleaning_of(entries)})
            yield from entries

    def drop_copies(self) -> None:
        """Delete the local copies that `fetch` used, after damage was found: the next restore reads the storage."""
        for copy in (path for part in self.parts for path in self._copies_of(part) if path is not None):
            shutil.rmtree(copy, ignore_errors=True)

    def _copies_of(self, part: PartitionInfo) -> tuple[Path | None, Path | None]:
        """Return the paths of the local copy and of a standby's files of a part, if the part is of this job."""
        if self.restore.place is not None:
            return None, None
        of_all = self._directory.name.removesuffix(f"-{self._partition}")
        directory = self._directory.with_name(f"{of_all}-{part.index}")
        return local_copy(directory, self.restore.checkpoint), standby_files(directory)


def _beside(database: Path, part: PartitionInfo) -> Path:
    return database.with_name(f"{database.name}-part-{part.index}")
