"""Snapshots in any folder: a savepoint, a checkpoint of a job, or a job's newest one; also moved or copied."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import UNSET

from strandline.checkpoint.catalog import find_problem, read_catalog
from strandline.checkpoint.chain import Restored
from strandline.checkpoint.check import Kind
from strandline.checkpoint.folder import Folder, delete_quietly
from strandline.checkpoint.jobdir import GENERATIONS, JobDirectory, is_reserved, manifest_id, manifest_path
from strandline.checkpoint.parallel import in_parallel
from strandline.checkpoint.pins import is_pin, keep_renewed, write_pin
from strandline.checkpoint.restore import choose
from strandline.core.errors import ConfigurationError, CorruptionError, NotFoundError, StrandlineError
from strandline.core.ids import CheckpointId
from strandline.core.urls import check_url
from strandline.format.manifest import MANIFEST, Manifest, table_path
from strandline.storage.place import Place
from strandline.storage.remote import open_store, remote_url
from strandline.storage.retrying import RetryingStore

log = logging.getLogger(__name__)

METADATA = "_metadata"

_IN_A_JOB = re.compile(r"(?:(.+)/)?(?:generations|chk-\d+)/[^/]+")
_OWN_SNAPSHOT = re.compile(r"(?:^|.*/)(?:chk-\d+|pins/[0-9a-f]{32})")
_MOST_NAMES = 10
_MOST_TRIES = 10
_READ_THE_NEWEST = "read the job's folder: its newest checkpoint; Checkpoints(retain=…) keeps more of them"
_NOTHING_YET = "let the job complete a checkpoint, or give a savepoint"


@dataclass(frozen=True)
class Snapshot:
    """An opened snapshot, and the folder of its files."""

    manifest: Manifest
    folder: Folder
    """The folder to which paths of the manifest's files are relative: the savepoint's, or the job's."""
    url: str
    """The url of the folder with the manifest, without secrets and symbolic links."""
    requested_url: str
    """The url that the caller passed, as `plain_url` returns it."""
    kind: Kind
    sha256: str
    """Hash of the manifest."""
    refused: str = ""
    """The reason from its manifest or the job's records why it must not be restored; "" if there is none."""
    pin: str = ""
    """The path of the pin that keeps its files, if there is one: see checkpoint/pins.py."""

    @property
    def metadata(self) -> str:
        """The path, in the folder of the files, of a manifest that exists as long as the files."""
        below = self.url.removeprefix(self.folder.url).strip("/")
        return self.pin or (f"{below}/{METADATA}" if below else METADATA)

    @property
    def reading_url(self) -> str:
        """A url that opens this very snapshot again, as long as its files exist."""
        return f"{self.folder.url}/{self.pin.removesuffix(f'/{METADATA}')}" if self.pin else self.url

    def lies_in(self, jobdir: JobDirectory) -> bool:
        """Whether this is a checkpoint of that job, in the directory where the job published it."""
        in_place = self.url == f"{self.folder.url}/chk-{self.manifest.checkpoint}"
        return self.kind == "checkpoint" and in_place and _resolved(self.folder.url) == _resolved(jobdir.url)

    def missing(self) -> list[str]:
        """Return the stored files that are missing or have a wrong size."""
        stored = self.manifest.stored()
        problems = in_parallel(lambda file: find_problem(self.folder, file), stored)
        return [f"{f.path} ('{f.name}'): {problem}" for f, problem in zip(stored, problems, strict=True) if problem]

    def check(self) -> None:
        """Raise CorruptionError if the snapshot must not or cannot be restored. `fetch` verifies contents."""
        if self.refused:
            raise CorruptionError(
                f"{self.url}: {self.refused}",
                hint="`strandline snapshots list` shows which can be restored; one that you want in spite of it, copy "
                f"out of its job's directory, with `shared/` beside it and without `{GENERATIONS}/`, for another job",
            )
        for first in (missing := self.missing())[:1]:
            more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise CorruptionError(
                f"{self.url}: {self.folder.url}/{first}{more}",
                hint="bring the files back: a checkpoint needs its job's `shared/` beside it, a savepoint all of its "
                "own folder",
            )

    def restored(self, before: Restored | None = None, *, claimed: bool = False, again: str = "") -> Restored:
        """Return the record of a job that restores this; `before` is the record of its last restore."""
        manifest = self.manifest
        return Restored(
            requested=self.requested_url, url=self.url, kind=self.kind, job=manifest.job,
            checkpoint=manifest.checkpoint, generation=manifest.generation, life=manifest.life,
            sha256=self.sha256, claimed=claimed, again=again or UNSET, earlier=before.commands if before else UNSET,
        )  # fmt: skip


def open_snapshot(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Snapshot:
    """Return the snapshot at a path or url: a savepoint, a checkpoint (`…/job/chk-17`), or a job's newest (`…/job`).

    It may have been moved or copied. Every file exists with its size. Raises NotFoundError, which names the snapshots
    that exist there, and CorruptionError for a snapshot that is damaged, or void.
    """
    snapshot = find_snapshot(url, options, fsync=fsync)
    snapshot.check()
    return snapshot


@contextmanager
def pinned_snapshot(url: str, options: Mapping[str, str] | None = None) -> Iterator[Snapshot]:
    """Open a snapshot as `open_snapshot` does, and pin its files in the block, so that a running job keeps them.

    In a folder without write access there is no pin, and the job may delete the files.
    """
    snapshot = pin_snapshot(url, options)
    try:
        with keep_renewed(snapshot.folder, snapshot.pin) if snapshot.pin else nullcontext():
            yield snapshot
    finally:
        # A pin that was opened by its url belongs to the process that wrote it.
        if snapshot.pin and not f"{snapshot.requested_url}/{METADATA}".endswith(snapshot.pin):
            delete_quietly(snapshot.folder, [snapshot.pin])


@contextmanager
def deletion_detected(folder: Folder, metadata: str) -> Iterator[None]:
    """Raise NotFoundError in place of CorruptionError for files that a running job has deleted.

    `metadata` is the path of the snapshot's manifest in its folder.
    """
    try:
        yield
    except CorruptionError as error:
        try:
            folder.head(metadata)
        except NotFoundError:
            raise NotFoundError(
                f"{folder.url}/{metadata}: the snapshot was deleted while it was read",
                hint="a job deletes checkpoints beyond Checkpoints(retain=…): read the newest, or a savepoint",
            ) from error
        raise


def pin_snapshot(url: str, options: Mapping[str, str] | None = None) -> Snapshot:
    """Open a snapshot as `open_snapshot` does, and pin it; the pin expires unless it is renewed in time."""
    before: set[CheckpointId] = set()
    for _ in range(_MOST_TRIES):
        try:
            return _pinned(find_snapshot(url, options, fsync=False))
        except (NotFoundError, CorruptionError):
            # A running job may have deleted the newest checkpoint: try again if its checkpoints have changed.
            current = _checkpoints_at(url, options)
            if current in (before, set()):
                raise
            before = current
    return _pinned(find_snapshot(url, options, fsync=False))


def _pinned(snapshot: Snapshot) -> Snapshot:
    if snapshot.kind == "savepoint" or snapshot.refused or snapshot.pin or not _can_be_pinned(snapshot.folder):
        snapshot.check()
        return snapshot
    try:
        pin = write_pin(snapshot.folder, snapshot.metadata)
    except StrandlineError as error:
        log.debug("%s is read without a pin: %s", snapshot.url, error)
        snapshot.check()
        return snapshot
    if pin is None:
        raise NotFoundError(f"{snapshot.url}: its job has deleted it", hint=_READ_THE_NEWEST)
    pinned = replace(snapshot, pin=pin)
    try:
        pinned.check()
    except BaseException:
        delete_quietly(snapshot.folder, [pin])
        raise
    return pinned


def _can_be_pinned(folder: Folder) -> bool:
    """Whether a job may delete files of this folder, and the process can write a pin."""
    if folder.url.startswith("file://") and not os.access(unquote(urlsplit(folder.url).path), os.W_OK):
        return False
    return next(folder.list(GENERATIONS), None) is not None


def _checkpoints_at(url: str, options: Mapping[str, str] | None) -> set[CheckpointId]:
    return {i for info in open_folder(url, options, fsync=False).list() if (i := manifest_id(info.path)) is not None}


def find_snapshot(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Snapshot:
    """Return the snapshot at a path or url as `open_snapshot` does, but also one that cannot be restored."""

    def open_at(address: str) -> Folder:
        return open_folder(address, options, fsync=fsync)

    requested_url, address = plain_url(url), _resolved(_address(url))
    here = open_at(address)
    try:
        manifest, sha256 = here.read(METADATA, decode_hashed)
    except NotFoundError:
        return _newest_of_job(here, requested_url)
    if manifest.savepoint:
        return Snapshot(manifest, here, here.url, requested_url, "savepoint", sha256)
    parent, name = _split(address)
    grandparent, pins = _split(parent)
    if is_pin(f"{pins}/{name}/{METADATA}"):
        jobdir = JobDirectory(open_at(grandparent).store, manifest.job, folder="")
        where, pin = f"{jobdir.url}/chk-{manifest.checkpoint}", f"{pins}/{name}/{METADATA}"
        return Snapshot(manifest, jobdir, where, requested_url, "checkpoint", sha256, pin=pin)
    jobdir = JobDirectory(open_at(parent).store, manifest.job, folder="")
    refused = _why_void(jobdir, manifest.checkpoint) if name == f"chk-{manifest.checkpoint}" else ""
    return Snapshot(manifest, jobdir, here.url, requested_url, "checkpoint", sha256, refused)


def open_folder(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Folder:
    """Open the folder at a path or url. A local one must exist: this function creates none."""
    address = _address(url)
    if address.startswith("file://") and not (path := Path(unquote(urlsplit(address).path))).is_dir():
        actual = "a file" if path.exists() else "not there"
        raise NotFoundError(f"{path}: expected a directory, and it is {actual}", hint=_list_siblings(path))
    return Folder(RetryingStore(open_store(address, options, fsync=fsync)))


def place_of(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Place:
    """Return the place of a new folder: its name in the store of its parent. A bucket is a folder, too."""
    parent, name = _split(_address(url))
    return Place(url=parent, path=name, options=dict(options or {}), fsync=fsync)


def savepoint_place(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Place:
    """Return the place of a new savepoint. Raises ConfigurationError for a path that cannot have one."""
    target = place_of(url, options, fsync=fsync)
    if not target.path:
        raise ConfigurationError(f"a savepoint cannot be {url}: name a folder in it")
    if is_reserved(target.path):
        raise ConfigurationError(
            f"a savepoint cannot be called '{target.path}': in a job's folder it would be taken for the job's own",
            hint="give another name",
        )
    check_outside_jobs(url, options)
    return target


def check_outside_jobs(url: str, options: Mapping[str, str] | None = None) -> None:
    """Raise ConfigurationError for a folder inside a job's own files, where its driver deletes unknown files."""
    address = _address(url)
    parent, name = _split(address)
    while name:
        if is_reserved(name) and _is_job_directory(parent, options):
            raise ConfigurationError(
                f"{plain_url(url)}: it would be in '{name}' of a job's directory, {plain_url(parent)}, where the job "
                "deletes what it does not know",
                hint="name a folder outside of it, or beside the job's directory",
            )
        parent, name = _split(parent)


def check_checkpoints_place(url: str, options: Mapping[str, str] | None = None) -> None:
    """Raise ConfigurationError for a directory of checkpoints that is one job's directory, or inside its files."""
    if _is_job_directory(_address(url), options):
        raise ConfigurationError(
            f"checkpoints: {plain_url(url)} is the directory of one job, and cannot have those of jobs",
            hint=f"give the directory above, {_split(plain_url(url))[0]}: a job's own has the job's name",
        )
    check_outside_jobs(url, options)


def _is_job_directory(address: str, options: Mapping[str, str] | None) -> bool:
    try:
        return next(open_folder(address, options, fsync=False).list(GENERATIONS), None) is not None
    except NotFoundError:
        return False


def plain_url(url: str) -> str:
    """Return the normal form of an address, without secrets."""
    address = _address(url)
    parts = urlsplit(address)
    return address if parts.scheme == "file" else remote_url(address)


def _address(url: str) -> str:
    """Return the url of a folder; the path of a manifest stands for its folder."""
    parts = urlsplit(check_url(url))
    if not url.strip():
        # Perhaps from an unset variable: the working directory is '.'.
        raise ConfigurationError("the path or url of a snapshot is empty", hint="name a folder")
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise ConfigurationError(
            f"{url}: '{parts.netloc}' is a machine there, and no folder", hint="write file:///absolute/path"
        )
    if "://" in url and parts.scheme != "file":
        path = parts.path.rstrip("/").removesuffix(f"/{METADATA}").rstrip("/")
        return f"{parts.scheme}://{parts.netloc}{path}"
    local = Path(unquote(parts.path) if parts.scheme == "file" else url).expanduser()
    absolute = Path(os.path.normpath(local.absolute()))
    return (absolute.parent if absolute.name == METADATA else absolute).as_uri()


def _split(address: str) -> tuple[str, str]:
    """Return the url of the parent folder and the name in it; the name of a bucket or a root is ""."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        return path.parent.as_uri(), path.name
    parent, _, name = address.rpartition("/")
    return (address, "") if parent.endswith(":/") else (parent, unquote(name))


def _resolved(address: str) -> str:
    """Resolve symbolic links: one named `latest` may lead elsewhere tomorrow."""
    is_local = address.startswith("file://")
    return Path(unquote(urlsplit(address).path)).resolve().as_uri() if is_local else address


def decode_hashed(data: bytes, where: str) -> tuple[Manifest, str]:
    """Decode a manifest; return it with the SHA-256 of its bytes."""
    return MANIFEST.decode(data, where), hashlib.sha256(data).hexdigest()


def _why_void(jobdir: JobDirectory, checkpoint: CheckpointId) -> str:
    """Return why a checkpoint is not in its job's history; "" if it is, or without the job's records."""
    if next(jobdir.list(GENERATIONS), None) is None:
        return ""
    catalog = read_catalog(jobdir)
    void = catalog.void.get(checkpoint)
    return f"void: {void}" if void else catalog.unknown.get(checkpoint, "")


def _newest_of_job(here: Folder, requested_url: str, again: bool = False) -> Snapshot:
    jobdir = as_job(here)
    if jobdir is None:
        raise nothing_error(here)
    choice = choose(jobdir)
    for skipped in choice.skipped:
        if skipped.lost:
            log.warning("%s: checkpoint %d is skipped: %s", here.url, skipped.checkpoint, skipped.reason)
    if choice.manifest is None:
        why = "; ".join(f"{one.checkpoint}: {one.reason}" for one in choice.skipped[:3])
        raise NotFoundError(
            f"{here.url}: job '{jobdir.job}' has no checkpoint that can be restored{f' ({why})' if why else ''}",
            hint=_NOTHING_YET,
        )
    path = manifest_path(choice.manifest.checkpoint)
    try:
        manifest, sha256 = jobdir.read(path, decode_hashed)
    except NotFoundError:
        if again:
            raise
        # The job runs, and has replaced it with a newer one.
        return _newest_of_job(here, requested_url, again=True)
    return Snapshot(manifest, jobdir, f"{here.url}/{path.rpartition('/')[0]}", requested_url, "checkpoint", sha256)


def as_job(here: Folder) -> JobDirectory | None:
    """Return the folder as a job's directory, whatever its name is; None if it is none.

    Raises NotFoundError for a job's directory without a readable manifest, which has the job's name.
    """
    is_one = next(here.list(GENERATIONS), None) is not None
    numbers = sorted(i for info in here.list() if (i := manifest_id(info.path)) is not None)
    why = ""
    for checkpoint in reversed(numbers):
        try:
            manifest, _ = here.read(manifest_path(checkpoint), decode_hashed)
        except (CorruptionError, NotFoundError) as error:
            why = why or f": {error.message}"
            continue
        return JobDirectory(here.store, manifest.job, folder=here.path)
    if is_one or numbers:
        what = f"none of its {len(numbers)} manifests can be read{why}" if numbers else "it has no checkpoint"
        raise NotFoundError(f"{here.url}: this is a job's folder, and {what}", hint=_NOTHING_YET)
    return None


def job_paths(paths: Iterable[str]) -> list[str]:
    """Return the folders of jobs that have files of these paths; "" is the folder that they are relative to."""
    return sorted({match[1] or "" for path in paths if (match := _IN_A_JOB.fullmatch(path))})


def savepoint_paths(paths: Iterable[str]) -> list[str]:
    """Return the folders of the savepoints whose manifests are among these paths."""
    folders = {path.removesuffix(f"/{METADATA}") for path in paths if path.endswith(f"/{METADATA}")}
    return sorted(folder for folder in folders if not _OWN_SNAPSHOT.fullmatch(folder))


def nothing_error(here: Folder) -> NotFoundError:
    """Return the error of a folder in which no snapshot is: it names what is there instead."""
    paths = [info.path for info in here.list()]
    jobs, savepoints = [path for path in job_paths(paths) if path], savepoint_paths(paths)
    if jobs or savepoints:
        kinds = [f"jobs: {_join(jobs)}"] * bool(jobs) + [f"savepoints: {_join(savepoints)}"] * bool(savepoints)
        hint = f"there are below it {'; '.join(kinds)}: give the path of one, as {here.url}/{(jobs + savepoints)[0]}"
    else:
        names = list({path.partition("/")[0] for path in paths})
        hint = f"there is below it: {_join(names)}" if names else "nothing is there at all: is the path right?"
    return NotFoundError(
        f"{here.url}: no snapshot there: neither a {METADATA} (of a savepoint or a checkpoint chk-N), nor chk-N or "
        f"{GENERATIONS} (of a job)",
        hint=hint,
    )


def _list_siblings(path: Path) -> str:
    """Return the names beside the first missing part of a path."""
    while not path.parent.is_dir():
        path = path.parent
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        names = []
    return f"in {path.parent} there is: {_join(names)}" if names else f"{path.parent} is empty"


def _join(names: list[str]) -> str:
    """List names in order, hidden ones last: a home directory has more of these than are listed."""
    in_order = sorted(names, key=lambda name: (name.startswith("."), name))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(in_order[:_MOST_NAMES]) + more


def check_form(manifest: Manifest, where: str) -> None:
    """Raise CorruptionError, naming `where`, unless a savepoint's manifest matches docs/format.md."""
    if not manifest.savepoint:
        raise CorruptionError(f"{where}: the manifest is a checkpoint's, expected a savepoint's")
    if why := MANIFEST.check(manifest):
        raise CorruptionError(f"{where}: {why}")
    for operator in manifest.operators if manifest.savepoint == "canonical" else ():
        if operator.partitions:
            raise CorruptionError(f"{where}: operator '{operator.uid}' has partitions, expected tables only")
        for state, files in (operator.tables or {}).items():
            for file in files:
                if file.file.path != (expected := table_path(operator.uid, state, file.file.sha256)):
                    raise CorruptionError(f"{where}: table '{state}': '{file.file.path}', expected '{expected}'")
