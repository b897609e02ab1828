"""Upload of the files of a local snapshot that its kind selects."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from strandline.backends.base import LocalFile
from strandline.backends.rocksfiles import permanent_kind
from strandline.checkpoint.folder import delete_quietly
from strandline.checkpoint.jobdir import JobDirectory, exclusive_path, shared_path
from strandline.checkpoint.kinds import SnapshotKind
from strandline.checkpoint.parallel import in_parallel, sha256_of
from strandline.core.errors import CheckpointError, CorruptionError
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef

Append = Callable[[Path], tuple[str, str]]
"""Writes a local file as a part of a log in Kafka, and returns its path and its sha256."""

_READ_WHOLE_UP_TO_BYTES = 1 << 20


def upload(
    jobdir: JobDirectory,
    files: Sequence[LocalFile],
    checkpoint: CheckpointId,
    base: Mapping[str, FileRef],
    kind: SnapshotKind,
    cancelled: Callable[[], bool] = lambda: False,
    append: Append | None = None,
) -> tuple[list[FileRef], int]:
    """Upload a snapshot's files, except those of `base` that its kind references; return all, and the uploaded bytes.

    `base` holds the same partition's files in the last CONFIRMED checkpoint, never in a later one, by name. On failure,
    or when `cancelled` returns True (CheckpointError), uploaded files are deleted if possible. Raises CorruptionError
    if a file that never changes is not what it is in `base`. With `append`, new parts of logs go there.
    """
    attempted: list[str] = []

    def one(file: LocalFile) -> tuple[FileRef, int]:
        if cancelled():
            raise CheckpointError(f"checkpoint {checkpoint}: the upload was cancelled")
        place = kind(file, base)
        if isinstance(place, FileRef):
            return place, 0
        if place == "inline":
            return _inline(file, checkpoint), file.size_bytes
        shared = place == "shared"
        hit("upload.file")
        known = base.get(file.name) if file.shared else None
        if append is not None and shared and permanent_kind(file.name) == "part":
            ref = append_part(file, append, checkpoint, known)
            attempted.append(ref.path)
            hit("upload.appended")
            return ref, file.size_bytes
        path = shared_path() if shared else exclusive_path(checkpoint)
        attempted.append(path)
        return upload_file(jobdir, file, path, shared=shared, checkpoint=checkpoint, known=known), file.size_bytes

    try:
        done = in_parallel(one, files)
        if cancelled():
            raise CheckpointError(f"checkpoint {checkpoint}: the upload was cancelled")
    except BaseException:
        delete_quietly(jobdir, attempted)
        raise
    return [ref for ref, _ in done], sum(size for _, size in done)


def _inline(file: LocalFile, checkpoint: CheckpointId) -> FileRef:
    data = file.path.read_bytes()
    _check_size(file, len(data), checkpoint)
    return FileRef(name=file.name, size=len(data), sha256=hashlib.sha256(data).hexdigest(), inline=data)


def upload_file(
    jobdir: JobDirectory,
    file: LocalFile,
    path: str,
    *,
    shared: bool,
    checkpoint: CheckpointId,
    known: FileRef | None = None,
) -> FileRef:
    """Upload one file to a new path. `known` is the same file in another checkpoint, which must be equal."""
    if file.size_bytes <= _READ_WHOLE_UP_TO_BYTES:
        data = file.path.read_bytes()
        _check_size(file, len(data), checkpoint)
        sha256 = hashlib.sha256(data).hexdigest()
        _check_known(file, sha256, known)
        jobdir.put(path, data)
    else:
        sha256 = _send(file, lambda source: (path, jobdir.put_file(path, source)), checkpoint, known)[1]
    return FileRef(name=file.name, size=file.size_bytes, sha256=sha256, path=path, shared=shared)


def append_part(file: LocalFile, append: Append, checkpoint: CheckpointId, known: FileRef | None) -> FileRef:
    """Write a part of a log into Kafka, under a new name. `known` is as for `upload_file`."""
    path, sha256 = _send(file, append, checkpoint, known)
    return FileRef(name=file.name, size=file.size_bytes, sha256=sha256, path=path, shared=True)


def _send(file: LocalFile, send: Append, checkpoint: CheckpointId, known: FileRef | None) -> tuple[str, str]:
    """Send a file, and return its path and its sha256, which is that of what was sent and of another read."""
    _check_size(file, file.path.stat().st_size, checkpoint)
    # Read a new file twice: nothing else shows that the read for the store, from the page cache, gave other bytes.
    first = known.sha256 if known else sha256_of(file.path)
    path, sha256 = send(file.path)
    _check_known(file, sha256, known)
    if sha256 != first:
        raise CheckpointError(
            f"checkpoint {checkpoint}: two reads of {file.path} on {socket.gethostname()} gave different bytes",
            hint="check the memory of this machine, and the disk of local_dir",
        )
    return path, sha256


def _check_known(file: LocalFile, sha256: str, known: FileRef | None) -> None:
    """Without this, a file that was damaged on this machine would replace the undamaged one in a full checkpoint."""
    if known is not None and sha256 != known.sha256:
        raise CorruptionError(f"{file.path}: the local file is damaged: the last checkpoint has other bytes of it")


def _check_size(file: LocalFile, size: int, checkpoint: CheckpointId) -> None:
    if size != file.size_bytes:
        raise CheckpointError(
            f"checkpoint {checkpoint}: snapshot file {file.path} has {size} bytes, expected {file.size_bytes}: "
            "it changed after the snapshot was taken"
        )
