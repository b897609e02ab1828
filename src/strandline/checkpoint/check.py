"""Inspection of checkpoints: lists them, and verifies every byte of one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from strandline.checkpoint.catalog import Catalog, read_catalog
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.parallel import in_parallel, sha256_of
from strandline.checkpoint.restore import local_path
from strandline.core.errors import CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.core.scratch import Scratch
from strandline.format.manifest import MANIFEST, FileRef, Manifest, stored_once

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
class CheckpointSummary:
    """One line of a list of checkpoints; if the manifest cannot be read, only id, state and reason are known."""

    checkpoint: CheckpointId
    state: State
    reason: str = ""
    epoch: int = 0
    mode: str = ""
    created_ms: int = 0
    total_bytes: int = 0
    uploaded_bytes: int = 0
    duration_ms: int = 0
    generation: int = 0


def _ignore_bytes(size_bytes: int) -> None:
    pass


def verify(jobdir: JobDirectory, checkpoint: CheckpointId, on_bytes: OnBytes = _ignore_bytes) -> VerifyReport:
    """Read every file of a checkpoint and name each that is missing or damaged; call `on_bytes` with each file's size.

    Raises NotFoundError if there is no such checkpoint.
    """
    path = manifest_path(checkpoint)
    try:
        manifest = jobdir.read(path, MANIFEST.decode)
    except NotFoundError as error:
        raise NotFoundError(
            f"{jobdir.url}: there is no checkpoint {checkpoint}", hint="`strandline checkpoints list` shows which are"
        ) from error
    except CorruptionError as error:
        return VerifyReport(0, 0, [Problem(path, error.message)])
    report = verify_manifest(jobdir, manifest, on_bytes)
    # All its bytes may be intact, and yet it may be unknown whether it is in the job's history.
    unknown = read_catalog(jobdir).unknown.get(checkpoint)
    return replace(report, problems=[*report.problems, Problem(path, unknown)]) if unknown else report


def verify_manifest(folder: Folder, manifest: Manifest, on_bytes: OnBytes = _ignore_bytes) -> VerifyReport:
    """Read every file of a snapshot, relative to `folder`, and name each that is missing or damaged."""
    files = _distinct(manifest.files())
    return VerifyReport(len(files), sum(f.size for f in files), verify_files(folder, files, on_bytes))


def verify_files(folder: Folder, files: Sequence[FileRef], on_bytes: OnBytes = _ignore_bytes) -> list[Problem]:
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
        target = scratch / file.path.replace("/", "_")
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


def summaries(jobdir: JobDirectory) -> list[CheckpointSummary]:
    """List the checkpoints that have a manifest, newest first. Sizes are checked, contents are not."""
    catalog = read_catalog(jobdir)
    checkpoints = [CheckpointSummary(i, "damaged", reason) for i, reason in catalog.damaged.items()]
    checkpoints += [_summary(catalog, i, manifest) for i, manifest in catalog.manifests.items()]
    return sorted(checkpoints, key=lambda summary: summary.checkpoint, reverse=True)


def _summary(catalog: Catalog, checkpoint: CheckpointId, manifest: Manifest) -> CheckpointSummary:
    state: State = "complete"
    reason = ""
    missing = catalog.missing(manifest)
    if checkpoint in catalog.void:
        state, reason = "void", catalog.void[checkpoint]
    elif checkpoint in catalog.unknown:
        state, reason = "damaged", catalog.unknown[checkpoint]
    elif missing:
        state = "damaged"
        reason = "; ".join(f"{file.path}: {problem}" for file, problem in missing[:3])
        reason += f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    elif checkpoint == max(catalog.live):
        # The checkpoint can be restored despite damaged records, which no other output shows.
        reason = "; ".join(catalog.chain.damaged.values())
    return CheckpointSummary(
        checkpoint, state, reason, manifest.epoch, manifest.mode, manifest.created_ms, manifest.total_bytes,
        manifest.uploaded_bytes, manifest.duration_ms, manifest.generation,
    )  # fmt: skip
