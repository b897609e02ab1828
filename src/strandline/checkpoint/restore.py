"""Choosing what to restore, and bringing its files to this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from strandline.checkpoint.catalog import Catalog, first_published, lacking, read_catalog
from strandline.checkpoint.chain import Restored
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory, checkpoint_id
from strandline.checkpoint.parallel import in_parallel, sha256_of
from strandline.core.errors import CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef, Manifest

_DOWNLOADS = 2
_LINK_FROM_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint newer than the chosen one, and why it was not chosen."""

    checkpoint: CheckpointId
    reason: str
    lost: bool = False
    """True: it was complete and, as far as is known, the job's, and cannot be restored any more."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to restore. `manifest` is None when the job starts empty."""

    manifest: Manifest | None
    skipped: list[Skipped]
    """Newest first."""
    next_id: CheckpointId
    damaged_bases: list[str] = field(default_factory=list)
    """Base records that could not be read, each with what is wrong: worth a warning (chain.py says what follows)."""
    restored: Restored | None = None
    """The last snapshot that was restored on purpose, of which the job's history descends."""
    foreign: Restored | None = None
    """That snapshot, if it is to be restored again: it is not the job's, and the job has no checkpoint of its own."""
    life: str = ""
    """The job's, "" before its first start."""
    is_history_known: bool = True
    """False: the record is damaged that says what the job's history descends from."""


def choose(jobdir: JobDirectory, claim: Claim | None = None, exclude: frozenset[CheckpointId] = frozenset()) -> Choice:
    """Return the newest checkpoint that is complete, valid and there with every file.

    Lists the directory once, looks again for files that are not in the list, and reads none but manifests: content is
    verified by `fetch`. With `claim`, the choice is prepared for `claim.set_base`, which must follow. `exclude` are
    checkpoints that `fetch` found damaged.
    """
    if claim is not None:
        claim.check()
    catalog = read_catalog(jobdir)
    if claim is not None:
        claim.highest_seen = CheckpointId(catalog.next_id - 1)
        claim.life = catalog.life
        claim.restored = catalog.restored
    chain = catalog.chain
    skipped: list[Skipped] = []
    found = foreign = None
    seen = {i for path in catalog.objects if (i := checkpoint_id(path)) is not None}
    for checkpoint in sorted(seen, reverse=True):
        reason = "excluded: found damaged before" if checkpoint in exclude else _why_not(jobdir, catalog, checkpoint)
        if reason is None:
            found = catalog.manifests[checkpoint]
            break
        unreadable = checkpoint in catalog.damaged and not catalog.passed_over(checkpoint)
        lost = unreadable or checkpoint in catalog.unknown or checkpoint in catalog.live
        skipped.append(Skipped(checkpoint, reason, lost))
    if found is None and not any(one.lost for one in skipped):
        skipped += _gone(jobdir, catalog)
        foreign = chain.newest.foreign if chain.newest and not any(one.lost for one in skipped) else None
    return Choice(
        found, skipped, catalog.next_id, list(chain.damaged.values()), catalog.restored, foreign, catalog.life,
        is_history_known=chain.newest is not None or chain.broken_at is None,
    )  # fmt: skip


def _gone(jobdir: JobDirectory, catalog: Catalog) -> list[Skipped]:
    """Return the checkpoint that the job once went on from, or its first: deleted only when a later one is there."""
    chain, base = catalog.chain, catalog.chain.newest
    if base is None and chain.broken_at is not None:
        return [
            Skipped(CheckpointId(0), f"what the job went on from is unknown: {chain.damaged[chain.broken_at]}", True)
        ]
    if base is not None and base.checkpoint is not None:
        reason = f"gone, and every later one: generation {base.generation} went on from it"
        return [Skipped(base.checkpoint, reason, lost=True)]
    first = first_published(jobdir, catalog)
    return [] if first is None else [Skipped(first, "gone, and every later one: the job has had it", lost=True)]


@contextmanager
def damage_in(checkpoint: CheckpointId | None) -> Iterator[None]:
    """Let damage that shows only while restoring say which checkpoint it is in, so that it can be passed over."""
    try:
        yield
    except CorruptionError as error:
        if checkpoint is None or "checkpoint" in error.fields:
            raise
        fields = {**error.fields, "checkpoint": checkpoint}
        raise CorruptionError(f"checkpoint {checkpoint}: {error.message}", hint=error.hint, **fields) from error


def _why_not(jobdir: JobDirectory, catalog: Catalog, checkpoint: CheckpointId) -> str | None:
    """Return why a checkpoint cannot be restored, None if it can."""
    if checkpoint in catalog.damaged:
        return catalog.damaged[checkpoint]
    if checkpoint in catalog.void:
        return f"void: {catalog.void[checkpoint]}"
    if checkpoint in catalog.unknown:
        return catalog.unknown[checkpoint]
    if checkpoint not in catalog.manifests:
        return "never completed: it has no manifest"
    missing = catalog.missing(catalog.manifests[checkpoint])
    for file, problem in lacking(jobdir, missing):
        more = f", and {len(missing) - 1} more files" if len(missing) > 1 else ""
        return f"{file.path} ({file.name}): {problem}{more}"
    return None


def fetch(folder: Folder, files: Sequence[FileRef], into: Path, local_copy: Path | None = None) -> tuple[int, int]:
    """Bring the files of one partition's snapshot into the directory `into`, each verified by its checksum.

    A file of the same name, size and checksum in `local_copy` is linked instead of downloaded; small ones are copied,
    since a backend may write to them. Returns how many bytes came from the local copy, and how many from storage.
    Raises CorruptionError naming the file that is missing or damaged in storage.
    """
    into.mkdir(parents=True, exist_ok=True)
    from_local = sum(in_parallel(lambda file: _fetch_one(folder, file, into, local_copy), files))
    remote = sum(f.size for f in files if f.inline is None) - from_local
    return from_local, remote


def lay_out(folder: Folder, files: Sequence[FileRef], into: Path) -> None:
    """Bring the files of one partition's snapshot into the directory `into`, to be looked at and no more.

    Those of a local directory are linked, and not read; all others come as `fetch` brings them. Raises CorruptionError
    naming the file that is missing or has another size.
    """
    into.mkdir(parents=True, exist_ok=True)
    for file in files:
        source = local_path(folder, file)
        if source is None:
            continue
        target = into / _checked_name(folder, file)
        target.parent.mkdir(parents=True, exist_ok=True)
        check_size(folder, file, source)
        try:
            _link_or_copy(source, target, file.size, or_symbolic=True)
        except FileNotFoundError as error:
            raise _missing(folder, file) from error
    fetch(folder, [file for file in files if local_path(folder, file) is None], into)


def local_path(folder: Folder, file: FileRef) -> Path | None:
    """Return where a file lies in a local directory; None if it lies elsewhere."""
    if file.inline is not None or not folder.url.startswith("file://"):
        return None
    return Path(unquote(urlsplit(folder.url).path), file.path)


def check_size(folder: Folder, file: FileRef, path: Path) -> None:
    """Raise CorruptionError unless a file of a local directory has the size that it must have."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _missing(folder, file) from error
    if size != file.size:
        raise CorruptionError(
            f"{folder.url}/{file.path} ('{file.name}'): {size} bytes, expected {file.size}",
            hint="`strandline snapshots verify` names every damaged file",
            path=file.path,
        )


def _missing(folder: Folder, file: FileRef) -> CorruptionError:
    where = f"{folder.url}/{file.path} ('{file.name}')"
    return CorruptionError(f"{where}: missing, but a checkpoint needs it", path=file.path)


def _fetch_one(folder: Folder, file: FileRef, into: Path, local_copy: Path | None) -> int:
    """Bring one file; return how many bytes came from the local copy."""
    target = into / _checked_name(folder, file)
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.inline is not None:
        if len(file.inline) != file.size or hashlib.sha256(file.inline).hexdigest() != file.sha256:
            raise CorruptionError(f"{folder.url}: file '{file.name}' inside the manifest does not match its checksum")
        target.write_bytes(file.inline)
        return 0
    if local_copy is not None and _matches(local_copy / file.name, file):
        # Whoever it belongs to may take it away meanwhile.
        with suppress(FileNotFoundError):
            _link_or_copy(local_copy / file.name, target, file.size)
            return file.size
    where = f"{folder.url}/{file.path} ('{file.name}')"
    # Twice: a checkpoint is passed over for good when one of its files is damaged, and it may have been on the way.
    for _ in range(_DOWNLOADS):
        try:
            folder.get_file(file.path, target)
        except NotFoundError as error:
            raise _missing(folder, file) from error
        size, sha256 = target.stat().st_size, sha256_of(target)
        if (size, sha256) == (file.size, file.sha256):
            return 0
        target.unlink()
    raise CorruptionError(
        f"{where}: {size} bytes with sha256 {sha256[:12]}…, expected {file.size} with {file.sha256[:12]}…",
        hint="`strandline snapshots verify` names every damaged file",
        path=file.path,
    )


def _checked_name(folder: Folder, file: FileRef) -> str:
    name = PurePosixPath(file.name)
    if not file.name or name.is_absolute() or ".." in name.parts:
        raise CorruptionError(f"{folder.url}/{file.path}: the file name '{file.name}' leaves the restore directory")
    return file.name


def _matches(path: Path, file: FileRef) -> bool:
    try:
        return path.stat().st_size == file.size and sha256_of(path) == file.sha256
    except OSError:
        return False


def _link_or_copy(source: Path, target: Path, size: int, *, or_symbolic: bool = False) -> None:
    if size >= _LINK_FROM_BYTES:
        try:
            os.link(source, target)
            return
        except OSError:
            # Another file system, or one without links; or the file is of somebody else.
            if or_symbolic:
                target.symlink_to(source.resolve(strict=True))
                return
    shutil.copyfile(source, target)
