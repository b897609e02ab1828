"""Copies a snapshot to another folder or store, without files that are there already, and its manifest last."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strandline.checkpoint.catalog import find_problem
from strandline.checkpoint.check import verify_files
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.invariants import is_verifying
from strandline.checkpoint.jobdir import GENERATIONS, manifest_path
from strandline.checkpoint.parallel import in_parallel
from strandline.checkpoint.restore import fetch
from strandline.core.errors import ConflictError, CorruptionError
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId
from strandline.core.scratch import Scratch
from strandline.format.manifest import FileRef
from strandline.snapshot.opening.deletion import DELETING
from strandline.snapshot.opening.snapshot import METADATA, Snapshot
from strandline.snapshot.savepoints.savepoint import WRITING, publish_manifest

_ELSEWHERE = "name another folder"


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of a copy."""

    files: int
    bytes: int
    sent_files: int
    """Files that were sent; the others were there already."""
    sent_bytes: int


def copy_snapshot(
    snapshot: Snapshot, target: Folder, progress: Callable[[int], None] = lambda size_bytes: None
) -> CopyResult:
    """Copy a savepoint to the folder `target`; or a checkpoint, as a job directory with this checkpoint alone.

    It continues an interrupted copy, and a second copy changes nothing. Several checkpoints of a job may share one
    folder, and their files. It verifies every file; `progress` gets the size of each complete file. Raises
    ConflictError if the folder is a job's directory or has another savepoint, CorruptionError naming a file that is
    missing or damaged, and OutcomeUnknownError.
    """
    # 1. Check the snapshot and the target.
    snapshot.check()
    is_savepoint = snapshot.kind == "savepoint"
    path = METADATA if is_savepoint else manifest_path(CheckpointId(snapshot.manifest.checkpoint))
    # Read the manifest again, and check that it has not changed since.
    data = snapshot.folder.read(snapshot.metadata, lambda data, where: _same(snapshot, data, where))
    there = {info.path: info.size_bytes for info in target.list()}
    _check_target(target, there, is_savepoint)
    if path in there and target.get(path) != data:
        raise ConflictError(f"{target.url}/{path}: another snapshot is there", hint=_ELSEWHERE)
    # 2. Copy the files.
    stored = snapshot.manifest.stored()
    with Scratch("copy") as scratch:

        def copy_file(file: FileRef) -> bool:
            # Verify an existing file unless its path has its hash: it may have other contents.
            send = there.get(file.path) != file.size or not (
                file.sha256 in file.path or not verify_files(target, [file])
            )
            if send:
                _send(snapshot.folder, target, file, scratch)
            progress(file.size)
            return send

        sent = [file for file, was_sent in zip(stored, in_parallel(copy_file, stored), strict=True) if was_sent]
    for damaged in verify_files(target, stored) if is_verifying() else []:
        raise CorruptionError(f"{target.url}/{damaged.path}: {damaged.problem}: it was copied")
    # 3. Create the manifest, which completes the snapshot.
    hit("copy.publish")
    publish_manifest(target, path, data)
    return CopyResult(len(stored), sum(f.size for f in stored), len(sent), sum(f.size for f in sent))


def _same(snapshot: Snapshot, data: bytes, where: str) -> bytes:
    if hashlib.sha256(data).hexdigest() != snapshot.sha256:
        raise CorruptionError(f"{where}: is not the manifest that was opened", hint="open the snapshot again")
    return data


def _check_target(target: Folder, there: dict[str, int], is_savepoint: bool) -> None:
    if any(path.startswith(f"{GENERATIONS}/") for path in there):
        raise ConflictError(f"{target.url}: a job's own directory: it would take the copy for its own", hint=_ELSEWHERE)
    if WRITING in there:
        raise ConflictError(f"{target.url}: a savepoint is being written here, or one was broken off", hint=_ELSEWHERE)
    if DELETING in there and METADATA not in there:
        raise ConflictError(
            f"{target.url}: a savepoint was here, and its deletion was broken off",
            hint=f"end it with `strandline snapshots delete {target.url}`, or {_ELSEWHERE}",
        )
    if not is_savepoint and METADATA in there:
        raise ConflictError(f"{target.url}: a savepoint is there, and a checkpoint was to be copied", hint=_ELSEWHERE)


def _send(source: Folder, target: Folder, file: FileRef, scratch: Path) -> None:
    # Use a directory for each file: files of several partitions may have equal names.
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        fetch(source, [file], Path(directory))
        hit("copy.file")
        target.put_known(file.path, Path(directory, file.name), file.sha256)
    if problem := find_problem(target, file):
        raise CorruptionError(f"{target.url}/{file.path}: {problem}: it was copied there")
