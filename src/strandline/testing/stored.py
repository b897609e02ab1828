"""State of a snapshot, with which a harness begins: opened, checked against the program, and only read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from strandline.backends.base import LocalFile
from strandline.checkpoint.folder import folder_at
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.parallel import sha256_of
from strandline.core.errors import NotFoundError
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition, unique_name
from strandline.core.keygroups import range_of
from strandline.core.settings import BackendName
from strandline.core.version import VERSION
from strandline.format.manifest import MANIFEST, FileRef, Manifest, OperatorInfo, PartitionInfo
from strandline.keeper.restoring import PartitionRestore
from strandline.plan.matching import match_operators
from strandline.plan.pipeline import Operator
from strandline.runtime.program import Program, Restore
from strandline.snapshot.opening.snapshot import METADATA, Snapshot, deletion_detected, open_snapshot
from strandline.spark.job.compat import check_compatible
from strandline.spark.job.draining import Draining
from strandline.storage.place import Place

Restoring = Callable[[Program, Partition, Path], PartitionRestore | None]
"""Returns what a partition restores into its database's directory; None: it begins empty."""


def restoring_from(manifest: Manifest, place: Place, operators: Sequence[Operator]) -> Restoring:
    """Return how partitions of operators restore a snapshot whose files are relative to `place`."""
    stored = {operator.uid: operator.migration.stored for operator in operators}

    def restoring(program: Program, partition: Partition, database: Path) -> PartitionRestore | None:
        info = stored[program.uid]
        if info is None:
            return None
        restore = Restore(checkpoint=manifest.checkpoint, epoch=manifest.epoch, stored=info, place=place)
        jobdir = JobDirectory(folder_at(place).store, manifest.job)
        return PartitionRestore(program, partition, database.parent, jobdir, restore, info)

    return restoring


def save(
    job: str,
    epoch: Epoch,
    operators: Sequence[OperatorInfo],
    snapshots: Mapping[str, Sequence[Sequence[LocalFile]]],
    folder: Path,
    *,
    now_us: int,
    watermarks: Mapping[str, int],
) -> Manifest:
    """Write snapshots of operators, by uid the files of each partition, as a native savepoint into a new folder."""
    (folder / "files").mkdir(parents=True)

    def ref(file: LocalFile) -> FileRef:
        sha256 = sha256_of(file.path)
        path = f"files/{sha256}"
        if file.shared:
            with suppress(OSError):
                # It may be there already, or on another disk.
                os.link(file.path, folder / path)
        if not (folder / path).exists():
            shutil.copyfile(file.path, folder / path)
        return FileRef(name=file.name, size=file.size_bytes, sha256=sha256, path=path)

    infos = []
    for operator in operators:
        parts = []
        for index, files in enumerate(snapshots[operator.uid]):
            groups = range_of(Partition(index), operator.max_parallelism, operator.parallelism)
            parts.append(
                PartitionInfo(
                    index=Partition(index), first_key_group=groups.start, last_key_group=groups.stop - 1,
                    files=[ref(file) for file in files],
                )
            )  # fmt: skip
        infos.append(structs.replace(operator, partitions=parts))
    manifest = Manifest(
        job=job, generation=Generation(1), checkpoint=CheckpointId(1), epoch=epoch, mode="incremental",
        created_ms=now_us // 1000, triggered_ms=now_us // 1000, engine_version=VERSION, life=unique_name(),
        operators=infos, watermarks=dict(watermarks), savepoint="native",
    )  # fmt: skip
    (folder / METADATA).write_bytes(MANIFEST.encode(manifest))
    return manifest


@dataclass(frozen=True)
class StoredState:
    """A snapshot's state, and what a program may lose of it."""

    snapshot: Snapshot
    place: Place
    drop: Sequence[str] = ()
    from_now: Sequence[str] = ()
    reopen: bool = False

    @classmethod
    def open(
        cls,
        url: str | Path,
        options: Mapping[str, str] | None = None,
        *,
        drop: Sequence[str] = (),
        from_now: Sequence[str] = (),
        reopen: bool = False,
    ) -> StoredState:
        """Open a snapshot. Nothing is written beside it: not even a pin, so that its files are fetched at once.

        Raises what `open_snapshot` does, and ConfigurationError for one of a drained job without `reopen`.
        """
        snapshot = open_snapshot(str(url), options, fsync=False)
        Draining().refuse(snapshot.manifest.job, snapshot.manifest, reopen=reopen)
        place = snapshot.folder.place(dict(options or {}), fsync=False)
        return cls(snapshot, place, tuple(drop), tuple(from_now), reopen)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the snapshot."""
        return self.snapshot.manifest

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which its files are read: NotFoundError says that the job has deleted them meanwhile."""
        return deletion_detected(self.snapshot.folder, self.snapshot.metadata)

    @property
    def backend(self) -> BackendName:
        """The backend that adopts its files; of state in memory, the one with the same files on disk."""
        is_rocksdb = any(operator.backend == "rocksdb" for operator in self.manifest.operators)
        return "rocksdb" if is_rocksdb else "filesystem"

    @property
    def now_us(self) -> int:
        """The clock when it was taken."""
        return (self.manifest.triggered_ms or self.manifest.created_ms) * 1000

    @property
    def watermarks(self) -> Mapping[str, int]:
        """The watermarks with which a run begins."""
        return Draining().watermarks(self.manifest, reopen=self.reopen)

    def continued_by(self, operators: Sequence[Operator], *, in_full: bool) -> list[Operator]:
        """Return operators with the way in which each continues; make the check of a start, without the sources.

        Without `in_full`, operators that the snapshot alone has do not count, and one of these must be in it.
        Raises IncompatibleStateError with all differences, and NotFoundError.
        """
        manifest = structs.replace(self.manifest, source=None, sinks=[])
        if not in_full:
            matches = match_operators(operators, manifest.operators)
            if not matches:
                raise NotFoundError(
                    f"{self.snapshot.url}: there is no operator '{operators[0].uid}' in the snapshot, which has "
                    f"{', '.join(info.uid for info in manifest.operators) or 'none'}",
                    hint="give the uid that the function has in the job: uid=…",
                )
            known = [info for info in manifest.operators if info in matches.values()]
            manifest = structs.replace(manifest, operators=known)
        upgrade = check_compatible(
            manifest, operators, {}, (), self.drop, url=self.snapshot.url, fork=True, from_now=self.from_now
        )
        return [replace(operator, migration=upgrade.migrations[operator.uid]) for operator in operators]

    def restoring(self, operators: Sequence[Operator]) -> Restoring:
        """Return how partitions of operators restore it."""
        return restoring_from(self.manifest, self.place, operators)
