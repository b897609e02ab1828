"""Steps of writing a savepoint into a folder, which becomes one with its manifest.

1. `begin` reserves the empty folder by one conditional create.
2. Writers upload files and pieces (`uploading`), and `join_pieces` joins all pieces of a state to files.
3. `publish` checks every file that the manifest names, then writes the manifest by one conditional create.

A failure before the last step leaves no savepoint; `discard` removes the files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from strandline.checkpoint.catalog import find_problem
from strandline.checkpoint.check import verify_files
from strandline.checkpoint.folder import Folder, delete_quietly
from strandline.checkpoint.invariants import is_verifying
from strandline.checkpoint.parallel import BackgroundWork
from strandline.checkpoint.publish import create_manifest
from strandline.checkpoint.restore import fetch
from strandline.core.errors import ConflictError, CorruptionError, NotFoundError, StrandlineError
from strandline.core.failpoints import hit
from strandline.core.ids import unique_name
from strandline.format.manifest import MANIFEST, FileRef, Manifest, TableFile
from strandline.snapshot.opening.deletion import DELETING
from strandline.snapshot.opening.snapshot import METADATA, check_form
from strandline.snapshot.rows.parquet import Cut, LocalTable, Open
from strandline.snapshot.savepoints.tablewriter import join

WRITING = "_writing"
"""Marks a folder in which a process writes a savepoint, or was interrupted."""
_WRITTEN = ("data/", "files/", "pieces/")
"""The folders of a savepoint's files."""
_ELSEWHERE = "name a folder that is not there yet"


def begin(folder: Folder, mark: str = "") -> None:
    """Reserve an empty folder for a savepoint. Raises ConflictError, and changes nothing, if it is not empty.

    `mark` identifies the writer: see `discard_own`.
    """
    try:
        folder.create_own(WRITING, f"{mark} {unique_name()}".encode())
    except ConflictError as error:
        # A complete savepoint has the mark if its writer was killed before it deleted that.
        check_empty(folder)
        raise _is_written(folder) from error
    # Check after the create, so that one of two concurrent writers wins.
    try:
        _refuse_others([info.path for info in folder.list() if info.path != WRITING], folder)
    except BaseException:
        delete_quietly(folder, [WRITING])
        raise
    hit("savepoint.begun")


def check_empty(folder: Folder) -> None:
    """Raise ConflictError if `begin` would, for callers with long work before it."""
    there = [info.path for info in folder.list()]
    if METADATA in there:
        raise ConflictError(
            f"{folder.url}: there is a snapshot already", hint=f"start the job with it: restore=…; or {_ELSEWHERE}"
        )
    if WRITING in there:
        raise _is_written(folder)
    _refuse_others(there, folder)


def discard_own(folder: Folder, mark: str) -> None:
    """Remove the files of an interrupted savepoint with this mark, whose writer is gone; keep a complete one."""
    try:
        owner = folder.get(WRITING).decode(errors="replace").partition(" ")[0]
    except NotFoundError:
        return
    left = [info.path for info in folder.list()]
    if owner == mark and METADATA not in left:
        # A writer that was killed in `begin` may not have checked the folder: keep other files.
        folder.delete([path for path in left if path.startswith(_WRITTEN)])
        folder.delete([WRITING])


def _is_written(folder: Folder) -> ConflictError:
    return ConflictError(
        f"{folder.url}: a savepoint is being written here, or one was broken off",
        hint=f"{_ELSEWHERE}; what was broken off may be deleted, it is no savepoint",
    )


def _refuse_others(others: Sequence[str], folder: Folder) -> None:
    if DELETING in others:
        raise ConflictError(
            f"{folder.url}: a savepoint was here, and its deletion was broken off",
            hint=f"end it with `strandline snapshots delete {folder.url}`, or {_ELSEWHERE}",
        )
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise ConflictError(f"{folder.url}: expected an empty folder, found '{min(others)}'{more}", hint=_ELSEWHERE)


def uploading(folder: Folder) -> BackgroundWork[LocalTable]:
    """Return a background uploader of files and pieces, which deletes the local ones."""

    def upload(local: LocalTable) -> None:
        hit("savepoint.upload")
        folder.put_known(local.table.file.path, local.path, local.table.file.sha256)
        local.path.unlink()

    return BackgroundWork(upload)


def join_pieces(
    folder: Folder,
    files: Sequence[TableFile],
    pieces: Sequence[TableFile],
    max_parallelism: int,
    scratch: Path,
    cut: Cut = Cut(),  # noqa: B008
) -> list[TableFile]:
    """Join the pieces of all writers of a state; return all of the state's files, in order.

    `scratch` is a local directory with room for twice the pieces; this function removes its files there.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        fetch(folder, [piece.file for piece in pieces], Path(directory))
        with uploading(folder) as uploads:
            joined = join(files, pieces, max_parallelism, Path(directory), cut, on_file=uploads.put)
    hit("savepoint.joined")
    return sorted([*files, *(one.table for one in joined)], key=lambda file: file.first_key_group)


def fetching(folder: Folder, scratch: Path) -> Open:
    """Return a function that opens a savepoint's files: it fetches and verifies each, and deletes it after use."""

    @contextmanager
    def opened(file: FileRef) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=scratch) as directory:
            fetch(folder, [file], Path(directory))
            yield Path(directory, file.name)

    return opened


def publish(folder: Folder, manifest: Manifest) -> None:
    """Check a savepoint's files, create its manifest, and delete files that the manifest does not name.

    Raises CorruptionError naming a file that is missing or damaged, ConflictError if there is another savepoint by now,
    and OutcomeUnknownError when the manifest may be there or appear later.
    """
    # 1. Check the manifest, and that its files exist.
    check_form(manifest, folder.url)
    there = {info.path: info.size_bytes for info in folder.list()}
    named = {file.path: file for file in manifest.stored()}
    for path, file in named.items():
        if there.get(path) != file.size and (problem := find_problem(folder, file)):
            raise CorruptionError(f"{folder.url}/{path}: {problem}: it was uploaded, and the savepoint needs it")
    for damaged in verify_files(folder, manifest.files()) if is_verifying() else []:
        raise CorruptionError(f"{folder.url}/{damaged.path}: {damaged.problem}: a savepoint is to be published")
    hit("savepoint.publish")
    # 2. Create the manifest.
    publish_manifest(folder, METADATA, MANIFEST.encode(manifest))
    hit("savepoint.published")
    # 3. Delete leftovers of writers, and the mark: the folder was empty. A subfolder may be a savepoint by now.
    delete_quietly(folder, [path for path in there if path not in named and path.startswith((*_WRITTEN, WRITING))])


def publish_manifest(folder: Folder, path: str, data: bytes) -> None:
    """Create a snapshot's manifest; a second call with the same one changes nothing. Raises as `publish` does."""
    if not create_manifest(folder, path, data):
        raise ConflictError(f"{folder.url}/{path}: there is another snapshot by now", hint=_ELSEWHERE)


def discard(folder: Folder) -> None:
    """Remove the files of a failed savepoint as far as possible; keep a complete one.

    Call it only after `begin`, and not after an OutcomeUnknownError.
    """
    try:
        left = [info.path for info in folder.list()]
    except StrandlineError:
        return
    if METADATA not in left:
        delete_quietly(folder, [path for path in left if path.startswith(_WRITTEN)])
        delete_quietly(folder, [WRITING])
