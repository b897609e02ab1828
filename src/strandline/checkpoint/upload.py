"""Uploading the files of a local snapshot: which of them is for its kind to say, of which there is one for each mode.

A partition chooses its kind once, when it opens; whatever is uploaded then asks it, file by file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from strandline.backends.base import LocalFile
from strandline.checkpoint.jobdir import JobDirectory, delete_quietly, exclusive_path, shared_path
from strandline.checkpoint.parallel import in_parallel, sha256_of
from strandline.core.errors import CheckpointError
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef, Mode

_INLINE_UP_TO_BYTES = 4 << 10
_READ_WHOLE_UP_TO_BYTES = 1 << 20

Place = Literal["inline", "exclusive", "shared"]
"""Where a file goes: into the manifest, to this checkpoint's own files, or to those that later ones may reference."""

SnapshotKind = Callable[[LocalFile, Mapping[str, FileRef]], FileRef | Place]
"""Says of a local file which stored one is referenced instead, or where it goes.

The mapping has by name the same partition's files in the last CONFIRMED checkpoint, never in a later one.
"""


def kind_of(mode: Mode, *, inline: bool = False) -> SnapshotKind:
    """Return the kind of a mode. With `inline`, a backend says that its files are few and small."""
    return _all_inline if inline else _KINDS[mode]


def _full(file: LocalFile, base: Mapping[str, FileRef]) -> FileRef | Place:
    """Everything is uploaded anew, and is this checkpoint's own."""
    return "inline" if not file.shared and file.size_bytes <= _INLINE_UP_TO_BYTES else "exclusive"


def _incremental(file: LocalFile, base: Mapping[str, FileRef]) -> FileRef | Place:
    """What never changes is uploaded once."""
    if not file.shared:
        return _full(file, base)
    known = base.get(file.name)
    if known is not None and known.shared and known.path and known.size == file.size_bytes:
        return known
    return "shared"


def _all_inline(file: LocalFile, base: Mapping[str, FileRef]) -> Place:
    return "inline"


_KINDS: dict[Mode, SnapshotKind] = {"full": _full, "incremental": _incremental}


def upload(
    jobdir: JobDirectory,
    files: Sequence[LocalFile],
    checkpoint: CheckpointId,
    base: Mapping[str, FileRef],
    kind: SnapshotKind,
    cancelled: Callable[[], bool] = lambda: False,
) -> tuple[list[FileRef], int]:
    """Upload a snapshot's files, but those of `base` that its kind references; return all, and the bytes newly written.

    `base` is by name the same partition's files in the last CONFIRMED checkpoint, never in a later one. On failure or
    when `cancelled` says so (CheckpointError), what was uploaded is deleted as well as can be, and nothing is
    referenced.
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
        path = shared_path() if shared else exclusive_path(checkpoint)
        attempted.append(path)
        hit("upload.file")
        return _upload_one(jobdir, file, path, shared, checkpoint), file.size_bytes

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


def _upload_one(jobdir: JobDirectory, file: LocalFile, path: str, shared: bool, checkpoint: CheckpointId) -> FileRef:
    if file.size_bytes <= _READ_WHOLE_UP_TO_BYTES:
        data = file.path.read_bytes()
        _check_size(file, len(data), checkpoint)
        sha256 = hashlib.sha256(data).hexdigest()
        jobdir.put(path, data)
    else:
        # Read twice: the second time comes from the page cache, and the store can stream the file on its own.
        _check_size(file, file.path.stat().st_size, checkpoint)
        sha256 = sha256_of(file.path)
        jobdir.put_file(path, file.path)
    return FileRef(name=file.name, size=file.size_bytes, sha256=sha256, path=path, shared=shared)


def _check_size(file: LocalFile, size: int, checkpoint: CheckpointId) -> None:
    if size != file.size_bytes:
        raise CheckpointError(
            f"checkpoint {checkpoint}: snapshot file {file.path} has {size} bytes, expected {file.size_bytes}: "
            "it changed after the snapshot was taken"
        )
