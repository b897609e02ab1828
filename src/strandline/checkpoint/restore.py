"""The choice of a checkpoint to restore, and the download of its files."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from strandline.checkpoint.catalog import Catalog, confirm_missing, first_published, read_catalog
from strandline.checkpoint.chain import Restored
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory, checkpoint_id, generation_path
from strandline.checkpoint.parallel import in_parallel, sha256_of
from strandline.core.errors import CorruptionError, NotFoundError, UnavailableError
from strandline.core.ids import CheckpointId, Generation
from strandline.format.manifest import FileRef, Manifest
from strandline.storage.kafkaparts import TOPIC_HINT, part_at

_DOWNLOADS = 2
_LINK_FROM_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint newer than the chosen one, with the reason why it was skipped."""

    checkpoint: CheckpointId
    reason: str
    lost: bool = False
    """Whether it was complete, as far as is known in the job's history, and cannot be restored any more."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice of a checkpoint. `manifest` is None when the job starts empty."""

    manifest: Manifest | None
    skipped: list[Skipped]
    """Newest first."""
    next_id: CheckpointId
    damaged_bases: list[str] = field(default_factory=list)
    """The reasons why base records could not be read, for a warning; see chain.py."""
    restored: Restored | None = None
    """The last snapshot that was restored on purpose, from which the job's history descends."""
    foreign: Restored | None = None
    """That snapshot, if it must be restored again: it is foreign, and the job has no checkpoint of its own."""
    life: str = ""
    """The name of the job's life, "" before its first start."""
    goes_back: bool = False
    """Whether there are manifests of newer checkpoints."""
    is_history_known: bool = True
    """False if the base record of the job's history is damaged."""


def choose(jobdir: JobDirectory, claim: Claim | None = None, exclude: frozenset[CheckpointId] = frozenset()) -> Choice:
    """Return the newest checkpoint that is complete, valid and has every file.

    It lists the directory, checks by a request the files that are not listed, and reads only manifests; `fetch`
    verifies contents. With `claim`, the choice prepares `claim.set_base`, which must follow. `exclude` are checkpoints
    that `fetch` found damaged.
    """
    if claim is not None:
        claim.check()
    catalog = read_catalog(jobdir)
    _check_listing(jobdir, catalog, claim.generation if claim is not None else Generation(1))
    if claim is not None:
        claim.highest_seen = CheckpointId(catalog.next_id - 1)
        claim.life = catalog.life
        claim.restored = catalog.restored
    chain = catalog.chain
    skipped: list[Skipped] = []
    manifest = foreign = None
    goes_back = False
    seen = {i for path in catalog.objects if (i := checkpoint_id(path)) is not None}
    for checkpoint in sorted(seen, reverse=True):
        reason = "excluded: found damaged before" if checkpoint in exclude else _refusal(jobdir, catalog, checkpoint)
        if reason is None:
            manifest = catalog.manifests[checkpoint]
            break
        unreadable = checkpoint in catalog.damaged and not catalog.passed_over(checkpoint)
        lost = unreadable or checkpoint in catalog.unknown or checkpoint in catalog.live
        skipped.append(Skipped(checkpoint, reason, lost))
        goes_back |= checkpoint in catalog.manifests or checkpoint in catalog.damaged
    if manifest is None and not any(each.lost for each in skipped):
        skipped += _deleted(jobdir, catalog)
        foreign = chain.newest.foreign if chain.newest and not any(each.lost for each in skipped) else None
    if claim is not None and any(each.lost for each in skipped):
        # If a newer driver has subsumed them since the listing, raise FencedError: nothing is lost.
        claim.check()
    return Choice(
        manifest, skipped, catalog.next_id, list(chain.damaged.values()), catalog.restored, foreign, catalog.life,
        goes_back, is_history_known=chain.newest is not None or chain.broken_at is None,
    )  # fmt: skip


def _check_listing(jobdir: JobDirectory, catalog: Catalog, generation: Generation) -> None:
    """Raise UnavailableError if the listing lacks a claim that exists: claims are never deleted."""
    path = generation_path(generation)
    if path in catalog.objects:
        return
    with suppress(NotFoundError):
        jobdir.head(path)
        # The client takes an answer to a listing that has an unexpected content for an empty listing.
        raise UnavailableError(
            f"{jobdir.url}: the listing lacks {path}, which exists: the newest checkpoint is unknown",
            hint="check the storage, and proxies before it: a job would lose its state with such a listing",
        )


def _deleted(jobdir: JobDirectory, catalog: Catalog) -> list[Skipped]:
    """Return the job's base checkpoint or its first one, which is deleted only when a later one exists."""
    chain, base = catalog.chain, catalog.chain.newest
    if base is None and chain.broken_at is not None:
        return [Skipped(CheckpointId(0), f"the base of the job is unknown: {chain.damaged[chain.broken_at]}", True)]
    if base is not None and base.checkpoint is not None:
        reason = f"gone, and every later one: it is the base of generation {base.generation}"
        return [Skipped(base.checkpoint, reason, lost=True)]
    first = first_published(jobdir, catalog)
    return [] if first is None else [Skipped(first, "gone, and every later one: the job had it", lost=True)]


@contextmanager
def damage_in(checkpoint: CheckpointId | None) -> Iterator[None]:
    """Add the checkpoint to a CorruptionError during its restore, so that a retry can skip it."""
    try:
        yield
    except CorruptionError as error:
        if checkpoint is None or "checkpoint" in error.fields:
            raise
        fields = {**error.fields, "checkpoint": checkpoint}
        raise CorruptionError(f"checkpoint {checkpoint}: {error.message}", hint=error.hint, **fields) from error


def _refusal(jobdir: JobDirectory, catalog: Catalog, checkpoint: CheckpointId) -> str | None:
    """Return the reason why a checkpoint cannot be restored, None if it can."""
    if checkpoint in catalog.damaged:
        return catalog.damaged[checkpoint]
    if checkpoint in catalog.void:
        return f"void: {catalog.void[checkpoint]}"
    if checkpoint in catalog.unknown:
        return catalog.unknown[checkpoint]
    if checkpoint not in catalog.manifests:
        return "never completed: it has no manifest"
    missing = catalog.missing(catalog.manifests[checkpoint])
    for file, problem in confirm_missing(jobdir, missing):
        more = f", and {len(missing) - 1} more files" if len(missing) > 1 else ""
        return f"{file.path} ({file.name}): {problem}{more}"
    return None


_MOST_UNVERIFIED = 256


def _most_unverified() -> int:
    """Return how many files may wait for their verification: each takes one of the process's file descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_UNVERIFIED if soft == resource.RLIM_INFINITY else min(_MOST_UNVERIFIED, soft // 4)


@dataclass(frozen=True)
class Unverified:
    """Files that were linked before their checksums were computed, since their reader finds damage by itself.

    Of SST files, RocksDB verifies the checksum of each block that it reads, metadata blocks included; and by the unique
    id and the size in its MANIFEST, which is verified before, that a file is the one it wrote.
    """

    endings: tuple[str, ...]
    """The endings of such files' names."""
    _files: list[tuple[BufferedReader, FileRef]] = field(default_factory=list)
    """They stay open: a backend renames and deletes its files."""

    def takes(self, file: FileRef) -> bool:
        """Whether a file may be verified later."""
        return file.name.endswith(self.endings) and len(self._files) < _most_unverified()

    def add(self, path: Path, file: FileRef) -> None:
        """Add a file to verify."""
        self._files.append((path.open("rb"), file))

    def clear(self) -> None:
        """Close the files unverified."""
        while self._files:
            self._files.pop()[0].close()

    def verify(self) -> None:
        """Compute the checksums, and close the files. Raises CorruptionError naming the damaged one."""
        while self._files:
            opened, file = self._files.pop()
            sha256 = ""
            with opened, suppress(OSError):
                sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
            if sha256 != file.sha256:
                raise CorruptionError(
                    f"{opened.name} ('{file.name}'): the local copy is damaged",
                    hint="it is dropped, and the state comes from the checkpoint storage; if that happens again, check "
                    "the disk of local_dir",
                )


def fetch(
    folder: Folder,
    files: Sequence[FileRef],
    into: Path,
    local_copy: Path | None = None,
    standby: Path | None = None,
    unverified: Unverified | None = None,
) -> tuple[int, int]:
    """Fetch the files of one partition's snapshot into the directory `into`, and verify their checksums.

    A file of the same size and checksum, which has the same name in `local_copy` or its checksum as its name in
    `standby`, is linked instead of downloaded; small ones are copied, since a backend may write to them. Local files
    that `unverified` takes are for the caller to verify. Returns the bytes from local files, and those from storage.
    Raises CorruptionError naming the file that is missing or damaged in storage.
    """
    into.mkdir(parents=True, exist_ok=True)

    def fetch_one(file: FileRef) -> int:
        copies = [] if local_copy is None else [local_copy / file.name]
        return _fetch_one(folder, file, into, copies + ([] if standby is None else [standby / file.sha256]), unverified)

    from_local = sum(in_parallel(fetch_one, files))
    remote = sum(f.size for f in files if f.inline is None) - from_local
    return from_local, remote


def lay_out(folder: Folder, files: Sequence[FileRef], into: Path, checked: tuple[str, ...]) -> None:
    """Fetch the files of one partition's snapshot into the directory `into`, for reading only.

    Files of a local directory whose names end with one of `checked` are linked without a read, since their reader finds
    damage; `fetch` fetches all others. Raises CorruptionError naming the file that is missing or has another size.
    """
    into.mkdir(parents=True, exist_ok=True)
    fetched = []
    for file in files:
        source = local_path(folder, file) if file.name.endswith(checked) else None
        if source is None:
            fetched.append(file)
            continue
        target = into / _checked_name(folder, file)
        target.parent.mkdir(parents=True, exist_ok=True)
        check_size(folder, file, source)
        try:
            _link_or_copy(source, target, file.size, or_symbolic=True)
        except FileNotFoundError as error:
            raise _missing(folder, file) from error
    fetch(folder, fetched, into)


def local_path(folder: Folder, file: FileRef) -> Path | None:
    """Return the path of a file in a local directory; None if it is elsewhere, as a part of a log in Kafka is."""
    if file.inline is not None or not folder.url.startswith("file://") or part_at(file.path):
        return None
    return Path(unquote(urlsplit(folder.url).path), file.path)


def check_size(folder: Folder, file: FileRef, path: Path) -> None:
    """Raise CorruptionError unless a file of a local directory has the expected size."""
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


def _missing(folder: Folder, file: FileRef, why: str = "") -> CorruptionError:
    where = f"{folder.url}/{file.path} ('{file.name}')"
    return CorruptionError(
        f"{where}: missing, but its snapshot needs it{why and f': {why}'}",
        hint=TOPIC_HINT if part_at(file.path) else "",
        path=file.path,
    )


def _fetch_one(folder: Folder, file: FileRef, into: Path, copies: Sequence[Path], unverified: Unverified | None) -> int:
    """Fetch one file; return the bytes from the first local copy that fits."""
    target = into / _checked_name(folder, file)
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.inline is not None:
        if len(file.inline) != file.size or hashlib.sha256(file.inline).hexdigest() != file.sha256:
            raise CorruptionError(f"{folder.url}: file '{file.name}' inside the manifest does not match its checksum")
        target.write_bytes(file.inline)
        return 0
    later = unverified if unverified is not None and unverified.takes(file) else None
    for copy in copies:
        if _matches(copy, file, content=later is None):
            # The owner of the local copy may delete it at any time.
            with suppress(FileNotFoundError):
                _link_or_copy(copy, target, file.size)
                if later is not None:
                    later.add(target, file)
                return file.size
    download(folder, file, target)
    return 0


def download(folder: Folder, file: FileRef, target: Path) -> None:
    """Download a file from storage, and verify it. Raises CorruptionError if it is missing or damaged there."""
    where = f"{folder.url}/{file.path} ('{file.name}')"
    # Twice, since the transfer may damage a file, and a checkpoint with a damaged file is never restored.
    wrong: list[str] = []
    for _ in range(_DOWNLOADS):
        try:
            folder.get_file(file.path, target)
        except NotFoundError as error:
            raise _missing(folder, file, error.message if part_at(file.path) else "") from error
        size, sha256 = target.stat().st_size, sha256_of(target)
        if (size, sha256) == (file.size, file.sha256):
            return
        target.unlink()
        wrong.append(f"{size} bytes with sha256 {sha256[:12]}…")
    if len(set(wrong)) > 1:
        raise UnavailableError(
            f"{where}: {_DOWNLOADS} downloads to {target.parent} on {socket.gethostname()} differ "
            f"({', '.join(wrong)}): the transfer or this machine damages them",
            hint="check the network, the memory of this machine, and the disk of local_dir",
        )
    raise CorruptionError(
        f"{where}: {wrong[0]}, expected {file.size} with {file.sha256[:12]}…",
        hint="`strandline snapshots verify` names every damaged file",
        path=file.path,
    )


def _checked_name(folder: Folder, file: FileRef) -> str:
    name = PurePosixPath(file.name)
    if not file.name or name.is_absolute() or ".." in name.parts:
        raise CorruptionError(f"{folder.url}/{file.path}: the file name '{file.name}' leaves the restore directory")
    return file.name


def _matches(path: Path, file: FileRef, *, content: bool) -> bool:
    try:
        return path.stat().st_size == file.size and (not content or sha256_of(path) == file.sha256)
    except OSError:
        return False


def _link_or_copy(source: Path, target: Path, size: int, *, or_symbolic: bool = False) -> None:
    if size >= _LINK_FROM_BYTES:
        try:
            os.link(source, target)
            return
        except OSError:
            # Another file system, one without links, or a file of another user.
            if or_symbolic:
                target.symlink_to(source.resolve(strict=True))
                return
    shutil.copyfile(source, target)
