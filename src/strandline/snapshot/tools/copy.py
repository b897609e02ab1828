"""Copying a snapshot to another folder or store: what is there is not sent again, and its manifest comes last."""

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
from strandline.snapshot.savepoints.savepoint import WRITING, create_manifest

_ELSEWHERE = "name another folder"


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy has done."""

    files: int
    bytes: int
    sent_files: int
    """The others were there."""
    sent_bytes: int


def copy_snapshot(
    snapshot: Snapshot, target: Folder, progress: Callable[[int], None] = lambda size_bytes: None
) -> Copied:
    """Make the folder `target` a copy of a savepoint; or of a checkpoint's job, with this checkpoint alone.

    One that broke off goes on where it was, and to copy again what is there changes nothing. Several checkpoints of a
    job may be copied to one folder, and share their files there. Every file is read whole and checked on its way;
    `progress` is told the size of each that is there. Raises ConflictError if the folder is a job's own or holds
    another savepoint, CorruptionError naming a file that is missing or damaged, and OutcomeUnknownError.
    """
    # 1. What is to be copied, and where it may go.
    snapshot.check()
    is_savepoint = snapshot.kind == "savepoint"
    path = METADATA if is_savepoint else manifest_path(CheckpointId(snapshot.manifest.checkpoint))
    # Again if it changes under our hands: it was read and found good before.
    data = snapshot.folder.read(snapshot.metadata, lambda data, where: _same(snapshot, data, where))
    there = {info.path: info.size_bytes for info in target.list()}
    _check_target(target, there, is_savepoint)
    if path in there and target.get(path) != data:
        raise ConflictError(f"{target.url}/{path}: another snapshot is there", hint=_ELSEWHERE)
    # 2. Its files.
    stored = snapshot.manifest.stored()
    with Scratch("copy") as scratch:

        def one(file: FileRef) -> bool:
            # What is not called by its bytes, somebody else may have put there.
            send = there.get(file.path) != file.size or not (
                file.sha256 in file.path or not verify_files(target, [file])
            )
            if send:
                _send(snapshot.folder, target, file, scratch)
            progress(file.size)
            return send

        sent = [file for file, was_sent in zip(stored, in_parallel(one, stored), strict=True) if was_sent]
    for damaged in verify_files(target, stored) if is_verifying() else []:
        raise CorruptionError(f"{target.url}/{damaged.path}: {damaged.problem}: it was copied")
    # 3. The manifest, which makes it a snapshot.
    hit("copy.publish")
    create_manifest(target, path, data)
    return Copied(len(stored), sum(f.size for f in stored), len(sent), sum(f.size for f in sent))


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
    # Names are the backend's, and those of several partitions may be equal.
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        fetch(source, [file], Path(own))
        hit("copy.file")
        target.put_file(file.path, Path(own, file.name))
    if problem := find_problem(target, file):
        raise CorruptionError(f"{target.url}/{file.path}: {problem}: it was copied there")
