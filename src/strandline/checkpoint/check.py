"""Inspection of snapshots: lists a job's checkpoints, and verifies every byte of one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strandline.checkpoint.catalog import Catalog, read_catalog
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.parallel import in_parallel, sha256_of
from strandline.checkpoint.restore import local_path
from strandline.core.errors import NotFoundError
from strandline.core.ids import CheckpointId
from strandline.core.scratch import Scratch
from strandline.format.manifest import FileRef, Manifest, stored_once

Kind = Literal["checkpoint", "savepoint"]
State = Literal["complete", "void", "damaged"]
OnBytes = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Problem:
    """The problem of one object."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of reading every byte of a checkpoint."""

    files: int
    bytes: int
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """Whether the checkpoint can be restored in full."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """One line of a list; of a manifest that cannot be read, only the fields up to `created_ms` may be known."""

    url: str
    kind: Kind
    state: State
    reason: str = ""
    job: str = ""
    checkpoint: int = 0
    created_ms: int = 0
    """When it was taken; of a manifest that cannot be read, when that was written."""
    form: str = ""
    """A savepoint's form, or a checkpoint's mode."""
    generation: int = 0
    epoch: int = 0
    total_bytes: int = 0
    uploaded_bytes: int = 0
    duration_ms: int = 0


def ignore_bytes(size_bytes: int) -> None:
    """Do nothing: the progress of a verification is not wanted."""


def verify_manifest(folder: Folder, manifest: Manifest, on_bytes: OnBytes = ignore_bytes) -> VerifyReport:
    """Read every file of a snapshot, relative to `folder`, and name each that is missing or damaged."""
    files = _distinct(manifest.files())
    return VerifyReport(len(files), sum(f.size for f in files), verify_files(folder, files, on_bytes))


def verify_files(folder: Folder, files: Sequence[FileRef], on_bytes: OnBytes = ignore_bytes) -> list[Problem]:
    """Read files, each once, and name those that are missing or damaged."""
    with Scratch("verify") as scratch:

        def read(file: FileRef) -> Problem | None:
            problem = _verify_one(folder, file, scratch)
            on_bytes(0 if file.inline is not None else file.size)
            return problem

        problems = in_parallel(read, _distinct(files))
    return [problem for problem in problems if problem is not None]


def _distinct(files: Sequence[FileRef]) -> list[FileRef]:
    """Return each stored file once, and the files inside the manifest."""
    return [f for f in files if f.inline is not None] + stored_once(files)


def _verify_one(folder: Folder, file: FileRef, scratch: Path) -> Problem | None:
    if file.inline is not None:
        size, sha256 = len(file.inline), hashlib.sha256(file.inline).hexdigest()
    elif (local := local_path(folder, file)) is not None:
        try:
            size, sha256 = local.stat().st_size, sha256_of(local)
        except OSError:
            return Problem(file.path, f"missing ('{file.name}', {file.size} bytes)")
    else:
        target = scratch / hashlib.sha256(file.path.encode()).hexdigest()
        try:
            folder.get_file(file.path, target)
        except NotFoundError:
            return Problem(file.path, f"missing ('{file.name}', {file.size} bytes)")
        size, sha256 = target.stat().st_size, sha256_of(target)
        target.unlink()
    if size != file.size:
        return Problem(file.path or file.name, f"{size} bytes, expected {file.size}")
    if sha256 != file.sha256:
        return Problem(file.path or file.name, f"damaged: sha256 {sha256[:12]}…, expected {file.sha256[:12]}…")
    return None


def summaries(jobdir: JobDirectory) -> list[SnapshotSummary]:
    """List the checkpoints that have a manifest, newest first. Sizes are checked, contents are not."""
    catalog = read_catalog(jobdir)
    checkpoints = [
        SnapshotSummary(
            f"{jobdir.url}/chk-{i}", "checkpoint", "damaged", reason, jobdir.job, i,
            catalog.objects[manifest_path(i)].modified_ms,
        )
        for i, reason in catalog.damaged.items()
    ]  # fmt: skip
    checkpoints += [
        summary_of(manifest, f"{jobdir.url}/chk-{i}", *judge(catalog, i, manifest))
        for i, manifest in catalog.manifests.items()
    ]
    return sorted(checkpoints, key=lambda summary: summary.checkpoint, reverse=True)


def summary_of(manifest: Manifest, url: str, state: State, reason: str) -> SnapshotSummary:
    """Return the summary of a snapshot whose manifest can be read."""
    return SnapshotSummary(
        url, "savepoint" if manifest.savepoint else "checkpoint", state, reason, manifest.job, manifest.checkpoint,
        manifest.created_ms, manifest.savepoint or manifest.mode, manifest.generation, manifest.epoch,
        manifest.total_bytes, manifest.uploaded_bytes, manifest.duration_ms,
    )  # fmt: skip


def judge(catalog: Catalog, checkpoint: CheckpointId, manifest: Manifest) -> tuple[State, str]:
    """Return a checkpoint's state, and the reason if it is not just complete."""
    if checkpoint in catalog.void:
        return "void", catalog.void[checkpoint]
    if checkpoint in catalog.unknown:
        return "damaged", catalog.unknown[checkpoint]
    if missing := catalog.missing(manifest):
        reason = "; ".join(f"{file.path}: {problem}" for file, problem in missing[:3])
        return "damaged", reason + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    # The newest one can be restored in spite of damaged records; they show nowhere else.
    return "complete", "; ".join(catalog.chain.damaged.values()) if checkpoint == max(catalog.live) else ""
