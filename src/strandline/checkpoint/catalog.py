"""What a job's directory holds, seen at one moment: objects, manifests, and which manifests count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.checkpoint.generation import BaseRecord, decode_base
from strandline.checkpoint.jobdir import (
    JobDirectory,
    base_path,
    based_generation,
    checkpoint_id,
    manifest_id,
    manifest_path,
)
from strandline.core.errors import CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId, Generation
from strandline.format.manifest import FileRef, Manifest, decode_manifest
from strandline.storage.base import ObjectInfo


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
    bases: Mapping[int, BaseRecord]
    """By generation, the records on the chain."""

    @property
    def live(self) -> dict[CheckpointId, Manifest]:
        """The manifests that count, oldest first. Their files may still be missing."""
        return {i: m for i, m in sorted(self.manifests.items()) if i not in self.void}

    @property
    def next_id(self) -> CheckpointId:
        """A number above every checkpoint that was ever seen here."""
        in_paths = (i for path in self.objects if (i := checkpoint_id(path)) is not None)
        in_bases = (base.highest_seen for base in self.bases.values())
        return CheckpointId(max([0, *in_paths, *in_bases]) + 1)

    def missing(self, manifest: Manifest) -> list[tuple[FileRef, str]]:
        """Return the files that are not there, or not with their size, and what is wrong with each."""
        problems = []
        for file in manifest.files():
            if file.inline is not None:
                continue
            found = self.objects.get(file.path)
            if found is None:
                problems.append((file, "missing"))
            elif found.size_bytes != file.size:
                problems.append((file, f"{found.size_bytes} bytes, expected {file.size}"))
        return problems

    def passed_over(self, checkpoint: CheckpointId) -> bool:
        """Whether the job has since gone on from an older checkpoint, knowing of this one."""
        if not self.bases:
            return False
        newest = self.bases[max(self.bases)]
        return (newest.checkpoint or 0) < checkpoint <= newest.highest_seen


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
            manifest = decode_manifest(jobdir.get(path), f"{jobdir.url}/{path}")
            if manifest.checkpoint != checkpoint or manifest.job != jobdir.job:
                raise CorruptionError(
                    f"{jobdir.url}/{path}: is checkpoint {manifest.checkpoint} of job '{manifest.job}': it was moved"
                )
            manifests[checkpoint] = manifest
        except CorruptionError as error:
            damaged[checkpoint] = error.message
        except NotFoundError:
            del objects[path]
    bases = _read_bases(jobdir, objects, min((m.generation for m in manifests.values()), default=0))
    return Catalog(objects, manifests, damaged, _void(manifests, bases), bases)


def _read_bases(jobdir: JobDirectory, objects: Mapping[str, ObjectInfo], oldest: int) -> dict[int, BaseRecord]:
    """Walk the chain of bases from the newest record down, as far as there are manifests.

    The newest record decides, and it alone can bring in an older generation's history: a slow driver that writes
    its record late, when it is fenced already, therefore changes nothing.
    """
    found = {int(g) for path in objects if (g := based_generation(path)) is not None}
    bases: dict[int, BaseRecord] = {}
    generation = max(found, default=None)
    while generation in found and generation not in bases and (not bases or generation >= oldest):
        path = base_path(Generation(generation))
        bases[generation] = decode_base(jobdir.get(path), f"{jobdir.url}/{path}")
        generation = bases[generation].checkpoint_generation
    return bases


def _void(manifests: Mapping[CheckpointId, Manifest], bases: Mapping[int, BaseRecord]) -> dict[CheckpointId, str]:
    """Say which manifests are beside the chain: not of its newest generation, nor below what the next went on from."""
    if not bases:
        return {}
    limits: dict[int, float] = {max(bases): float("inf")}
    for base in bases.values():
        if base.checkpoint is not None and base.checkpoint_generation is not None:
            limits[base.checkpoint_generation] = base.checkpoint
    return {
        checkpoint: f"published by generation {manifest.generation}, which the job did not go on from"
        for checkpoint, manifest in manifests.items()
        if checkpoint > limits.get(manifest.generation, -1)
    }
