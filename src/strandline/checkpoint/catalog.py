"""What a job's directory holds, seen at one moment: objects, manifests, and which manifests count."""

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
from strandline.core.errors import ConflictError, CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId, Generation
from strandline.format.frame import RecordFormat
from strandline.format.manifest import MANIFEST, FileRef, Manifest
from strandline.storage.base import ObjectInfo


class _Published(msgspec.Struct, frozen=True, kw_only=True):
    generation: Generation
    checkpoint: CheckpointId


_PUBLISHED = RecordFormat(b"SLPUBLI1", 1, _Published, "the record")


@dataclass(frozen=True)
class Catalog:
    """A listing, and everything in it that was worth reading."""

    objects: Mapping[str, ObjectInfo]
    manifests: Mapping[CheckpointId, Manifest]
    """Every manifest that decodes, void or not."""
    damaged: Mapping[CheckpointId, str]
    """Manifests that do not decode, and why."""
    void: Mapping[CheckpointId, str]
    """Manifests that decode but are not the job's history, and why."""
    unknown: Mapping[CheckpointId, str]
    """Manifests that decode, but a damaged base record hides whether they are the job's history."""
    chain: Chain
    """The base records that say so."""

    @property
    def live(self) -> dict[CheckpointId, Manifest]:
        """The manifests that count, oldest first. Their files may still be missing."""
        aside = self.void.keys() | self.unknown.keys()
        return {i: m for i, m in sorted(self.manifests.items()) if i not in aside}

    @property
    def life(self) -> str:
        """The name of the job's life, "" if nothing that could be read says it."""
        if (newest := self.chain.newest) is not None:
            return newest.life
        return self.manifests[max(self.manifests)].life if self.manifests else ""

    @property
    def restored(self) -> Restored | None:
        """The last snapshot that was restored on purpose, of which the job's history descends."""
        newest = self.chain.newest
        return (newest.restored or None) if newest else None

    @property
    def next_id(self) -> CheckpointId:
        """A number above every checkpoint that was ever seen here."""
        in_paths = (i for path in self.objects if (i := checkpoint_id(path)) is not None)
        in_bases = (base.highest_seen for base in self.chain.bases.values())
        return CheckpointId(max([0, *in_paths, *in_bases]) + 1)

    def missing(self, manifest: Manifest) -> list[tuple[FileRef, str]]:
        """Return the files that are not there, or not with their size, and what is wrong with each."""
        found = ((file, self.objects.get(file.path)) for file in manifest.stored())
        return [(file, problem) for file, info in found if (problem := _problem(file, info))]

    def passed_over(self, checkpoint: CheckpointId) -> bool:
        """Whether the job has since gone on from an older checkpoint, knowing of this one."""
        return any((base.checkpoint or 0) < checkpoint <= base.highest_seen for base in self.chain.bases.values())


def read_catalog(jobdir: JobDirectory) -> Catalog:
    """List the job's directory once and read its manifests and base records.

    A manifest that disappears meanwhile was subsumed: it is left out.
    """
    objects = {info.path: info for info in jobdir.list()}
    manifests: dict[CheckpointId, Manifest] = {}
    damaged: dict[CheckpointId, str] = {}
    for checkpoint in sorted(i for path in objects if (i := manifest_id(path)) is not None):
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
            del objects[path]
    chain = read_chain(jobdir, objects, manifests.values())
    judged = {i: chain.judge(manifest) for i, manifest in manifests.items()}
    void = {i: why for i, (why, _) in judged.items() if why}
    unknown = {i: why for i, (_, why) in judged.items() if why}
    return Catalog(objects, manifests, damaged, void, unknown, chain)


def lacking(folder: Folder, problems: Iterable[tuple[FileRef, str]]) -> Iterator[tuple[FileRef, str]]:
    """Of what `Catalog.missing` gives, yield what is so when it is looked at by itself.

    A listing may be older than a file that another machine has just written.
    """
    for file, _ in problems:
        if problem := look_at(folder, file):
            yield file, problem


def look_at(folder: Folder, file: FileRef) -> str:
    """Return what is wrong with a stored file, as far as one small request shows it; "" if nothing is."""
    try:
        return _problem(file, folder.head(file.path))
    except NotFoundError:
        return _problem(file, None)


def _problem(file: FileRef, found: ObjectInfo | None) -> str:
    if found is None:
        return "missing"
    return "" if found.size_bytes == file.size else f"{found.size_bytes} bytes, expected {file.size}"


def mark_published(jobdir: JobDirectory, manifest: Manifest) -> None:
    """Put on record, once, that a generation that began empty has had a checkpoint: this one."""
    record = _Published(generation=manifest.generation, checkpoint=manifest.checkpoint)
    path = published_path(manifest.generation)
    with contextlib.suppress(ConflictError):
        jobdir.create(path, _PUBLISHED.encode(record))


def first_published(jobdir: JobDirectory, catalog: Catalog) -> CheckpointId | None:
    """Return the first checkpoint of the job's history, if it ever had one; 0 if the record of it cannot be read.

    What a generation below the newest base published is not the job's: that one began empty, beside it.
    """
    since = max(catalog.chain.bases, default=0)
    marked = [g for path in catalog.objects if (g := published_generation(path)) is not None and g >= since]
    if not marked:
        return None
    try:
        return jobdir.read(published_path(min(marked)), _PUBLISHED.decode).checkpoint
    except CorruptionError:
        return CheckpointId(0)
