"""Writing a savepoint: a folder of its own, which is one once its manifest is there, and not before.

1. `begin`: the folder is empty, and this savepoint's: one conditional create says so.
2. Writers bring their files and pieces (`uploading`), and `join_pieces` makes files of all pieces of a state.
3. `publish`: every file that the manifest names is there; then the manifest, by one conditional create.

Whoever fails before the last step leaves nothing that anyone takes for a savepoint; `discard` takes it away.
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
from strandline.checkpoint.publish import OutcomeUnknownError
from strandline.checkpoint.restore import fetch
from strandline.core.errors import ConflictError, CorruptionError, NotFoundError, StrandlineError
from strandline.core.failpoints import hit
from strandline.core.ids import unique_name
from strandline.format.manifest import MANIFEST, FileRef, Manifest, TableFile
from strandline.snapshot.opening.deletion import DELETING
from strandline.snapshot.opening.snapshot import METADATA, check_form
from strandline.snapshot.rows.parquet import Cut, LocalTable, Open
from strandline.snapshot.savepoints.tablewriter import in_order, join

WRITING = "_writing"
"""Says that somebody writes a savepoint here, or was broken off."""
_WRITTEN = ("data/", "files/", "pieces/")
"""Where the files of a savepoint lie."""
_ELSEWHERE = "name a folder that is not there yet"


def begin(folder: Folder, mark: str = "") -> None:
    """Take an empty folder for a savepoint. Raises ConflictError, and leaves all as it was, if anything is in it.

    `mark` says who writes: see `discard_own`.
    """
    try:
        folder.create_own(WRITING, f"{mark} {unique_name()}".encode())
    except ConflictError as error:
        raise _is_written(folder) from error
    # Only now: of two that look at the same time, one is first.
    try:
        _refuse_others([info.path for info in folder.list() if info.path != WRITING], folder)
    except BaseException:
        delete_quietly(folder, [WRITING])
        raise
    hit("savepoint.begun")


def check_empty(folder: Folder) -> None:
    """Raise ConflictError if `begin` would: for those who have much to do before."""
    there = [info.path for info in folder.list()]
    if METADATA in there:
        raise ConflictError(
            f"{folder.url}: there is a snapshot already", hint=f"start the job with it: restore=…; or {_ELSEWHERE}"
        )
    if WRITING in there:
        raise _is_written(folder)
    _refuse_others(there, folder)


def discard_own(folder: Folder, mark: str) -> None:
    """Take away what somebody of this mark, who is gone, has left of a savepoint; never one that is there."""
    try:
        owner = folder.get(WRITING).decode(errors="replace").partition(" ")[0]
    except NotFoundError:
        return
    left = [info.path for info in folder.list()]
    if owner == mark and METADATA not in left:
        # Whoever was stopped within `begin` had not looked yet whether there is anything else.
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
    """Return what brings files and pieces into a savepoint's folder while more are made; here, they are deleted."""

    def bring(local: LocalTable) -> None:
        hit("savepoint.upload")
        folder.put_file(local.table.file.path, local.path)
        local.path.unlink()

    return BackgroundWork(bring)


def join_pieces(
    folder: Folder,
    files: Sequence[TableFile],
    pieces: Sequence[TableFile],
    max_parallelism: int,
    scratch: Path,
    cut: Cut = Cut(),  # noqa: B008
) -> list[TableFile]:
    """Make files of what all writers of a state have handed on; return all of the state's files, in order.

    `scratch` is a local directory with room for the pieces and once more; what is put there is deleted.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        local = [LocalTable(Path(own, piece.file.name), piece) for piece in pieces]
        fetch(folder, [piece.file for piece in pieces], Path(own))
        with uploading(folder) as uploads:
            joined = join(files, local, max_parallelism, Path(own), cut, made=uploads.put)
    hit("savepoint.joined")
    return in_order([*files, *(found.table for found in joined)])


def fetching(folder: Folder, scratch: Path) -> Open:
    """Return what opens a savepoint's files: each is brought to a local directory, verified, and deleted after use."""

    @contextmanager
    def opened(file: FileRef) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=scratch) as own:
            fetch(folder, [file], Path(own))
            yield Path(own, file.name)

    return opened


def publish(folder: Folder, manifest: Manifest) -> None:
    """Create a savepoint's manifest, which makes it one, once all is there; what it does not name is deleted.

    Raises CorruptionError naming a file that is missing or not as it should be, ConflictError if there is another
    savepoint by now, and OutcomeUnknownError when the manifest may be there or appear later.
    """
    # 1. What the manifest says fits together, and is there.
    check_form(manifest, folder.url)
    there = {info.path: info.size_bytes for info in folder.list()}
    named = {file.path: file for file in manifest.stored()}
    for path, file in named.items():
        if there.get(path) != file.size and (problem := find_problem(folder, file)):
            raise CorruptionError(f"{folder.url}/{path}: {problem}: it was uploaded, and the savepoint needs it")
    for damaged in verify_files(folder, manifest.files()) if is_verifying() else []:
        raise CorruptionError(f"{folder.url}/{damaged.path}: {damaged.problem}: a savepoint is to be published")
    hit("savepoint.publish")
    # 2. The manifest.
    create_manifest(folder, METADATA, MANIFEST.encode(manifest))
    hit("savepoint.published")
    # 3. What writers have left, and the mark that somebody writes; another savepoint may be in a folder of this one.
    delete_quietly(folder, [path for path in there if path not in named and path.startswith((*_WRITTEN, WRITING))])


def create_manifest(folder: Folder, path: str, data: bytes) -> None:
    """Create a snapshot's manifest; the same again changes nothing. Raises as `publish` does."""
    try:
        folder.create(path, data)
        return
    except ConflictError as error:
        conflict = error
    except StrandlineError as error:
        # Whatever it says, it may be about a second try whose first one has done the work.
        raise OutcomeUnknownError(
            f"{folder.url}/{path}: could not be written: {error.message}",
            hint=error.hint or "`strandline snapshots list` shows whether it is there",
        ) from error
    try:
        if folder.get(path) == data:
            return
    except NotFoundError:
        pass
    raise ConflictError(f"{folder.url}/{path}: there is another snapshot by now", hint=_ELSEWHERE) from conflict


def discard(folder: Folder) -> None:
    """Take away what a savepoint that failed has left, as well as can be; never one that is there.

    Only after `begin`, and not after an OutcomeUnknownError.
    """
    try:
        left = [info.path for info in folder.list()]
    except StrandlineError:
        return
    if METADATA not in left:
        delete_quietly(folder, [path for path in left if path.startswith(_WRITTEN)])
        delete_quietly(folder, [WRITING])
