"""Catalog of a job's directory at one moment: objects, manifests, and which manifests count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from strandline.checkpoint.chain import Chain, Restored, read_chain
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.jobdir import (
    JobDirectory,
    checkpoint_id,
    manifest_id,
    manifest_path,
    published_generation,
    published_path,
)
from strandline.checkpoint.parallel import in_parallel
from strandline.core.errors import ConflictError, CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId, Generation
from strandline.format.frame import RecordFormat
from strandline.format.manifest import MANIFEST, FileRef, Manifest
from strandline.storage.base import ObjectInfo
from strandline.storage.kafkaparts import part_at


class _Published(msgspec.Struct, frozen=True, kw_only=True):
    generation: Generation
    checkpoint: CheckpointId


_LISTINGS = 5
"""How often a directory is listed at most, while a running job deletes the newest manifest before it is read."""
_PUBLISHED = RecordFormat(b"SLPUBLI1", 1, _Published, "the record")


@dataclass(frozen=True)
class Catalog:
    """A listing, with its manifests and base records."""

    objects: Mapping[str, ObjectInfo]
    manifests: Mapping[CheckpointId, Manifest]
    """Every manifest that decodes, void or not."""
    damaged: Mapping[CheckpointId, str]
    """Manifests that do not decode, with the reason."""
    void: Mapping[CheckpointId, str]
    """Manifests that decode but are not in the job's history, with the reason."""
    unknown: Mapping[CheckpointId, str]
    """Manifests that decode, but a damaged base record hides whether they are in the job's history."""
    chain: Chain
    """The base records that define the history."""

    @property
    def live(self) -> dict[CheckpointId, Manifest]:
        """The manifests in the job's history, oldest first. Their files may be missing."""
        excluded = self.void.keys() | self.unknown.keys()
        return {i: m for i, m in sorted(self.manifests.items()) if i not in excluded}

    @property
    def life(self) -> str:
        """The name of the job's life, or "" if it cannot be read."""
        if (newest := self.chain.newest) is not None:
            return newest.life
        return self.manifests[max(self.manifests)].life if self.manifests else ""

    @property
    def restored(self) -> Restored | None:
        """The last snapshot that was restored on purpose, from which the job's history descends."""
        newest = self.chain.newest
        return (newest.restored or None) if newest else None

    @property
    def next_id(self) -> CheckpointId:
        """A number above those of all checkpoints so far."""
        in_paths = (i for path in self.objects if (i := checkpoint_id(path)) is not None)
        in_bases = (base.highest_seen for base in self.chain.bases.values())
        return CheckpointId(max([0, *in_paths, *in_bases]) + 1)

    def missing(self, manifest: Manifest) -> list[tuple[FileRef, str]]:
        """Return the files that are missing or have a wrong size, each with its problem."""
        stored = ((file, self.objects.get(file.path)) for file in manifest.stored())
        return [(file, problem) for file, info in stored if (problem := _problem(file, info))]

    def passed_over(self, checkpoint: CheckpointId) -> bool:
        """Whether the job has continued from an older checkpoint although this one existed."""
        return any((base.checkpoint or 0) < checkpoint <= base.highest_seen for base in self.chain.bases.values())


def read_catalog(jobdir: JobDirectory) -> Catalog:
    """List the job's directory and read its manifests and base records.

    A manifest that disappears after the listing was subsumed: it is left out. If the newest one does, a running job has
    newer ones, and the directory is listed again.
    """
    for _ in range(_LISTINGS):
        objects = {info.path: info for info in jobdir.list()}
        manifests, damaged, gone = _read_manifests(jobdir, objects)
        if max(gone, default=0) <= max([*manifests, *damaged], default=0):
            break
    for checkpoint in gone:
        del objects[manifest_path(checkpoint)]
    objects |= _parts(jobdir, manifests.values())
    chain = read_chain(jobdir, objects, manifests.values())
    verdicts = {i: chain.judge(manifest) for i, manifest in manifests.items()}
    void = {i: reason for i, (reason, _) in verdicts.items() if reason}
    unknown = {i: reason for i, (_, reason) in verdicts.items() if reason}
    return Catalog(objects, manifests, damaged, void, unknown, chain)


def _parts(jobdir: JobDirectory, manifests: Iterable[Manifest]) -> dict[str, ObjectInfo]:
    """Return those parts of logs in Kafka that manifests name, by path: a listing has none."""

    def look(path: str) -> ObjectInfo | None:
        try:
            return jobdir.head(path)
        except NotFoundError:
            return None

    paths = {file.path for manifest in manifests for file in manifest.stored() if part_at(file.path)}
    return {info.path: info for info in in_parallel(look, sorted(paths)) if info is not None}


def _read_manifests(
    jobdir: JobDirectory, paths: Iterable[str]
) -> tuple[dict[CheckpointId, Manifest], dict[CheckpointId, str], list[CheckpointId]]:
    """Return the listed manifests, the reasons why others do not decode, and those that were deleted meanwhile."""
    manifests: dict[CheckpointId, Manifest] = {}
    damaged: dict[CheckpointId, str] = {}
    gone: list[CheckpointId] = []
    for checkpoint in sorted(i for path in paths if (i := manifest_id(path)) is not None):
        path = manifest_path(checkpoint)
        try:
            manifest = jobdir.read(path, MANIFEST.decode)
            if manifest.checkpoint != checkpoint or manifest.job != jobdir.job:
                raise CorruptionError(
                    f"{jobdir.url}/{path}: is checkpoint {manifest.checkpoint} of job '{manifest.job}': it was moved"
                )
            manifests[checkpoint] = manifest
        except CorruptionError as error:
            damaged[checkpoint] = error.message
        except NotFoundError:
            gone.append(checkpoint)
    return manifests, damaged, gone


def confirm_missing(folder: Folder, problems: Iterable[tuple[FileRef, str]]) -> Iterator[tuple[FileRef, str]]:
    """Check each file of `Catalog.missing` by a request, and yield those that have a problem.

    A listing may be older than a file that another machine has just written.
    """
    for file, _ in problems:
        if problem := find_problem(folder, file):
            yield file, problem


def find_problem(folder: Folder, file: FileRef) -> str:
    """Return the problem of a stored file by one head request: it is missing, or has a wrong size; else ""."""
    try:
        return _problem(file, folder.head(file.path))
    except NotFoundError as error:
        return f"missing: {error.message}" if part_at(file.path) else _problem(file, None)


def _problem(file: FileRef, info: ObjectInfo | None) -> str:
    if info is None:
        return "missing"
    return "" if info.size_bytes == file.size else f"{info.size_bytes} bytes, expected {file.size}"


def mark_published(jobdir: JobDirectory, manifest: Manifest) -> None:
    """Record the first checkpoint of a generation that began empty."""
    record = _Published(generation=manifest.generation, checkpoint=manifest.checkpoint)
    path = published_path(manifest.generation)
    with contextlib.suppress(ConflictError):
        jobdir.create(path, _PUBLISHED.encode(record))


def first_published(jobdir: JobDirectory, catalog: Catalog) -> CheckpointId | None:
    """Return the first checkpoint of the job's history, None if it had none; 0 if its record cannot be read.

    Checkpoints of generations below the newest base are not in the history: those began empty, beside it.
    """
    since = max(catalog.chain.bases, default=0)
    marked = [g for path in catalog.objects if (g := published_generation(path)) is not None and g >= since]
    if not marked:
        return None
    try:
        return jobdir.read(published_path(min(marked)), _PUBLISHED.decode).checkpoint
    except CorruptionError:
        return CheckpointId(0)
