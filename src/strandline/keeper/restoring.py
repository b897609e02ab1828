"""Brings a partition's state out of a snapshot whose partitions were others: more, fewer, or another backend's.

Key groups are ranges of key bytes, so that one part can be taken as it is, with what is not ours cut off: the one that
holds most of ours, if its files are such as our backend has. Of all others, our key groups are read and taken in.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.backends.base import Backend
from strandline.backends.reading import file_kind, open_reader
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import fetch
from strandline.core import failpoints
from strandline.core.ids import CheckpointId, Partition
from strandline.core.keygroups import BROADCAST_GROUP, range_of
from strandline.format.manifest import FileRef, PartitionInfo
from strandline.keeper.paths import local_copy
from strandline.runtime.program import Program, Restore

_WITHOUT_GROUP = range(BROADCAST_GROUP, BROADCAST_GROUP + 1)


@dataclass(frozen=True)
class Restoring:
    """What one partition restores, and how."""

    _program: Program
    _partition: Partition
    _directory: Path
    _jobdir: JobDirectory
    _restore: Restore

    @property
    def groups(self) -> range:
        """The key groups that the partition is to have."""
        return range_of(self._partition, self._program.max_parallelism, self._program.parallelism)

    @property
    def parts(self) -> list[PartitionInfo]:
        """The parts that hold some of them; first the one that is taken as it is, if one is."""
        return self._restore.parts_of(self.groups)

    @property
    def base(self) -> PartitionInfo | None:
        """The part whose files the partition goes on with."""
        fits = file_kind(self._restore.backend) == file_kind(self._program.backend)
        return self.parts[0] if fits and self.parts else None

    @property
    def referable(self) -> dict[str, FileRef]:
        """By name, files that the next checkpoint need not upload."""
        return {} if self.base is None else {file.name: file for file in self.base.files if file.shared}

    def fetch(self, database: Path, *, copies: bool) -> tuple[int, int]:
        """Bring all files here, from local copies too; return how many bytes came from there, and from storage."""
        base = self.base
        places = [database if part is base else _beside(database, part) for part in self.parts]
        found = [
            fetch(self._jobdir, part.files, into, self._copy_of(part, self._restore.checkpoint) if copies else None)
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
        for number, part in enumerate(self.parts):
            if part is base:
                continue
            failpoints.hit("keeper.restore.part")
            directory = _beside(database, part)
            reader = open_reader(file_kind(self._restore.backend), directory)
            try:
                for state in states:
                    was = self._program.was.get(state, state)
                    backend.load(state, reader.scan(was, self.groups))
                    if base is None and number == 0:
                        backend.load(state, reader.scan(was, _WITHOUT_GROUP))
            finally:
                reader.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _copy_of(self, part: PartitionInfo, checkpoint: CheckpointId) -> Path:
        """Return where the partition that a part was of has its copy, if it was on this machine."""
        of_all = self._directory.name.removesuffix(f"-{self._partition}")
        return local_copy(self._directory.with_name(f"{of_all}-{part.index}"), checkpoint)


def _beside(database: Path, part: PartitionInfo) -> Path:
    return database.with_name(f"{database.name}-part-{part.index}")
