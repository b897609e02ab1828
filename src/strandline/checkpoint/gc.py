"""Garbage collection of files that no live checkpoint, reader or upload needs. First plan, then execute.

A later checkpoint references only files that the newest live manifest has or plans, or that were uploaded after it was
published: a checkpoint begins when the last one has ended, and never reuses files of a failed one. So a file is garbage
only if no live manifest references it, and it was written before the newest live manifest. Both times are the
storage's, and equal ones decide nothing if its clock counts seconds. Without a live manifest every file stays. Thus a
checkpoint may take any time.

The grace covers the rest: clocks that differ slightly among a storage's machines, and a manifest whose write was still
in flight when its driver gave it up. Void manifests, and damaged ones outside of the history, are always garbage; they
too stay for the grace, so that users can inspect them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.checkpoint import invariants
from strandline.checkpoint.catalog import Catalog, find_problem, read_catalog
from strandline.checkpoint.jobdir import JobDirectory, is_checkpoints, is_probe, manifest_id, manifest_path
from strandline.checkpoint.pins import files_of_pin, is_pin, is_void
from strandline.core.clock import Clock
from strandline.core.errors import CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.storage.base import ObjectInfo
from strandline.storage.kafkaparts import part_at

_LOOKS = 3
_CLOCKS_MS = 3_600_000
"""By how much the clocks of the storage and of a keeper may differ."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """An object to delete, with the reason."""

    path: str
    size_bytes: int
    reason: str


@dataclass(frozen=True)
class GcPlan:
    """The objects that a collection would delete."""

    jobdir: JobDirectory
    garbage: list[Garbage]
    """Manifests first."""
    live: list[CheckpointId]
    clock: Clock
    too_young: int
    """The number of unreferenced objects that may belong to a checkpoint in progress."""

    @property
    def total_bytes(self) -> int:
        """The size of all garbage."""
        return sum(item.size_bytes for item in self.garbage)


def plan(jobdir: JobDirectory, clock: Clock, grace_ms: int = 3_600_000) -> GcPlan:
    """Return the garbage: void manifests, and objects that no live manifest references.

    Deletes nothing. Objects younger than `grace_ms` stay, and files that a checkpoint in progress may need. Raises
    CorruptionError if the newest checkpoint misses a file, or the listing one of an older checkpoint, or if a manifest
    or a base record cannot be read: then the needed files are unknown.
    """
    catalog, needed = _look(jobdir, clock)
    oldest_kept_ms = clock.now_ms() - grace_ms
    garbage: list[Garbage] = []
    too_young = 0
    for info in sorted(catalog.objects.values(), key=lambda info: (manifest_id(info.path) is None, info.path)):
        reason = _reason(catalog, needed, info)
        if reason is None:
            continue
        if info.modified_ms > oldest_kept_ms or _may_be_in_use(catalog, info):
            too_young += 1
        else:
            garbage.append(Garbage(info.path, info.size_bytes, reason))
    return GcPlan(jobdir, garbage, list(catalog.live), clock, too_young)


def execute(plan: GcPlan) -> int:
    """Delete the planned objects, manifests before files, except those needed since the plan; return the count."""
    catalog, needed = _look(plan.jobdir, plan.clock)
    present = [info for item in plan.garbage if (info := catalog.objects.get(item.path)) is not None]
    doomed = [i.path for i in present if _reason(catalog, needed, i) is not None and not _may_be_in_use(catalog, i)]
    manifests = {path: checkpoint for path in doomed if (checkpoint := manifest_id(path)) is not None}
    files = [path for path in doomed if path not in manifests]
    if invariants.is_verifying():
        invariants.check_deletion(plan.jobdir, manifests.values(), files)
    plan.jobdir.delete(manifests)
    plan.jobdir.delete(files)
    return len(doomed)


def _look(jobdir: JobDirectory, clock: Clock) -> tuple[Catalog, set[str]]:
    """Return what there is, and every path that live checkpoints and readers need, as `_needed` does.

    A running job may delete the checkpoint that was the newest while the others are read: then look again.
    """
    for left in reversed(range(_LOOKS)):
        catalog = read_catalog(jobdir)
        try:
            needed = _needed(jobdir, catalog, clock)
        except CorruptionError:
            if not left or not catalog.live or _is_there(jobdir, manifest_path(max(catalog.live))):
                raise
        else:
            return replace(catalog, objects={**catalog.objects, **_left_parts(jobdir, catalog, needed)}), needed
    raise AssertionError


def _left_parts(jobdir: JobDirectory, catalog: Catalog, needed: set[str]) -> dict[str, ObjectInfo]:
    """Return by path the parts of logs, in the topics in Kafka that manifests name, whose records nothing needs.

    A part may have other paths: another address of the same brokers is in them, or offsets of records that came again.
    """
    keys = {part.key(0) for path in needed if (part := part_at(path))}
    named = (part_at(file.path) for manifest in catalog.manifests.values() for file in manifest.stored())
    folders = {part.folder.path for part in named if part is not None}
    parts = {info.path: info for folder in folders for info in jobdir.list(folder)}
    return {path: info for path, info in parts.items() if (part := part_at(path)) and part.key(0) not in keys}


def _is_there(jobdir: JobDirectory, path: str) -> bool:
    try:
        jobdir.head(path)
    except NotFoundError:
        return False
    return True


def _needed(jobdir: JobDirectory, catalog: Catalog, clock: Clock) -> set[str]:
    """Return every path that live checkpoints and readers need; raise CorruptionError if that is unknown."""
    for why in catalog.chain.damaged.values():
        raise CorruptionError(
            f"{why}: which checkpoints are the job's history is not certain, so nothing may be deleted",
            hint="start the job and let it take a checkpoint: then no checkpoint depends on this record any more; "
            "never delete it by hand",
        )
    for checkpoint, why in catalog.damaged.items():
        if not catalog.passed_over(checkpoint):
            raise CorruptionError(
                f"{why}: what checkpoint {checkpoint} references is unknown, so nothing may be deleted",
                hint=f"if the checkpoint is lost for good, delete {jobdir.url}/{manifest_path(checkpoint)} by hand",
            )
    newest = max(catalog.live, default=0)
    for checkpoint, manifest in catalog.live.items():
        for file, problem in catalog.missing(manifest)[:1]:
            # If the file is gone indeed, an older checkpoint was deleted, and storage wrote its manifest again when a
            # repeated request was late. Else the listing lacks objects, perhaps manifests.
            if checkpoint != newest and find_problem(jobdir, file):
                continue
            raise CorruptionError(
                f"{jobdir.url}/{file.path}: {problem}, but live checkpoint {checkpoint} needs it: nothing is deleted",
                hint=f"`strandline snapshots verify {jobdir.url}/chk-{checkpoint}` names all that is wrong in it",
                path=file.path,
            )
    pins = [info.path for info in catalog.objects.values() if is_pin(info.path) and not is_void(info, clock)]
    read = {path for pin in pins for path in files_of_pin(jobdir, pin)}
    return read.union(pins, *(manifest.paths() for manifest in catalog.live.values()))


def _reason(catalog: Catalog, needed: set[str], info: ObjectInfo) -> str | None:
    """Return the reason why an object is garbage, None if it is not."""
    if is_probe(info.path):
        return "a start that was killed has left it"
    if is_pin(info.path) and info.path not in needed:
        return "a reader that was killed has left it"
    # Claims, bases and the start stay for ever: fencing and the sources rely on them, and they are tiny. All other
    # objects, such as savepoints, belong to users.
    if info.path in needed or not is_checkpoints(info.path):
        return None
    checkpoint = manifest_id(info.path)
    if checkpoint is None:
        return "no live checkpoint references it"
    if checkpoint in catalog.damaged:
        return "damaged manifest that the job did not go on from"
    return f"void manifest: {catalog.void[checkpoint]}" if checkpoint in catalog.void else None


def _may_be_in_use(catalog: Catalog, info: ObjectInfo) -> bool:
    """Whether a file that nothing references may belong to a checkpoint in progress, or to a start."""
    if manifest_id(info.path) is not None:
        return False
    if not catalog.live:
        return True
    newest = catalog.objects[manifest_path(max(catalog.live))]
    # The time of a part is that of the machine which wrote it, and not the storage's.
    return info.modified_ms + (_CLOCKS_MS if part_at(info.path) else 0) >= newest.modified_ms
