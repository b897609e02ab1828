"""A snapshot wherever it lies: a savepoint's folder, a checkpoint of a job, or a job's newest one; moved or not."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from msgspec import UNSET

from strandline.checkpoint.catalog import find_problem, read_catalog
from strandline.checkpoint.chain import Restored
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
Kind = Literal["checkpoint", "savepoint"]

_IN_A_JOB = re.compile(r"(?:(.+)/)?(?:generations|chk-\d+)/[^/]+")
_SHOWN = 10
_MOST_TRIES = 10
_READ_THE_NEWEST = "read the job's folder: its newest checkpoint; Checkpoints(retain=…) keeps more of them"
_NOTHING_YET = "let the job complete a checkpoint, or give a savepoint"


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that was found, and where its files are."""

    manifest: Manifest
    folder: Folder
    """To which the paths of the manifest's files are relative: a savepoint's own, or the job's."""
    url: str
    """Of the folder with the manifest, without secrets and symbolic links."""
    asked: str
    """The url that led here, as `plain_url` writes it."""
    kind: Kind
    sha256: str
    """Of the manifest."""
    refused: str = ""
    """Why the snapshot must not be restored, as far as its manifest and the job's records say; "" if it may."""
    pin: str = ""
    """Where in the folder its files are pinned, if they are: see checkpoint/pins.py."""

    @property
    def metadata(self) -> str:
        """Where in the folder of the files a manifest is that stays as long as the files are kept."""
        below = self.url.removeprefix(self.folder.url).strip("/")
        return self.pin or (f"{below}/{METADATA}" if below else METADATA)

    @property
    def reading_url(self) -> str:
        """What opens exactly this again, as long as its files are kept."""
        return f"{self.folder.url}/{self.pin.removesuffix(f'/{METADATA}')}" if self.pin else self.url

    def lies_in(self, jobdir: JobDirectory) -> bool:
        """Whether this is a checkpoint of that very directory, where it was published."""
        in_place = self.url == f"{self.folder.url}/chk-{self.manifest.checkpoint}"
        return self.kind == "checkpoint" and in_place and _resolved(self.folder.url) == _resolved(jobdir.url)

    def missing(self) -> list[str]:
        """Return what is wrong with stored files, as far as their sizes show it; empty if nothing is."""
        stored = self.manifest.stored()
        found = in_parallel(lambda file: find_problem(self.folder, file), stored)
        return [f"{f.path} ('{f.name}'): {problem}" for f, problem in zip(stored, found, strict=True) if problem]

    def check(self) -> None:
        """Raise CorruptionError if the snapshot must not or cannot be restored. Contents are verified by `fetch`."""
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
        """Return the record of a job that restores this, after it has restored what came before."""
        manifest = self.manifest
        return Restored(
            requested=self.asked, url=self.url, kind=self.kind, job=manifest.job, checkpoint=manifest.checkpoint,
            generation=manifest.generation, life=manifest.life, sha256=self.sha256, claimed=claimed,
            again=again or UNSET, earlier=before.commands if before else UNSET,
        )  # fmt: skip


def open_snapshot(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Snapshot:
    """Return the snapshot at a path or url: a savepoint, a checkpoint (`…/job/chk-17`), or a job's newest (`…/job`).

    It may have been moved or copied. Every file is there with its size. Raises NotFoundError, which says what was
    looked for and what is there, and CorruptionError for a snapshot that is damaged, or void where it lies.
    """
    snapshot = find_snapshot(url, options, fsync=fsync)
    snapshot.check()
    return snapshot


@contextmanager
def pinned_snapshot(url: str, options: Mapping[str, str] | None = None) -> Iterator[Snapshot]:
    """Open a snapshot as `open_snapshot` does, and keep its files while it is read, also from the job that runs.

    Where nothing may be written, files are read as long as the job leaves them.
    """
    snapshot = pin_snapshot(url, options)
    try:
        with keep_renewed(snapshot.folder, snapshot.pin) if snapshot.pin else nullcontext():
            yield snapshot
    finally:
        # One that was there before stays for who has written it.
        if snapshot.pin and not f"{snapshot.asked}/{METADATA}".endswith(snapshot.pin):
            delete_quietly(snapshot.folder, [snapshot.pin])


def pin_snapshot(url: str, options: Mapping[str, str] | None = None) -> Snapshot:
    """Open a snapshot as `open_snapshot` does, and pin it; the pin is void when it is not renewed in time."""
    before: set[CheckpointId] = set()
    for _ in range(_MOST_TRIES):
        try:
            return _pinned(find_snapshot(url, options, fsync=False))
        except (NotFoundError, CorruptionError):
            # A job that runs deletes checkpoints under the eyes of who looks for the newest.
            there = _checkpoints_at(url, options)
            if there in (before, set()):
                raise
            before = there
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
    """Whether a job may delete what is there, and a pin can be written."""
    if folder.url.startswith("file://") and not os.access(unquote(urlsplit(folder.url).path), os.W_OK):
        return False
    return next(folder.list(GENERATIONS), None) is not None


def _checkpoints_at(url: str, options: Mapping[str, str] | None) -> set[CheckpointId]:
    return {i for info in open_folder(url, options, fsync=False).list() if (i := manifest_id(info.path)) is not None}


def find_snapshot(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Snapshot:
    """Return the snapshot at a path or url as `open_snapshot` does, but also one that cannot be restored."""

    def open_at(address: str) -> Folder:
        return open_folder(address, options, fsync=fsync)

    asked, address = plain_url(url), _resolved(_address(url))
    here = open_at(address)
    try:
        manifest, sha256 = here.read(METADATA, decode_hashed)
    except NotFoundError:
        return _newest_of_job(here, asked)
    if manifest.savepoint:
        return Snapshot(manifest, here, here.url, asked, "savepoint", sha256)
    above, name = _parted(address)
    over, pins = _parted(above)
    if is_pin(f"{pins}/{name}/{METADATA}"):
        jobdir = JobDirectory(open_at(over).store, manifest.job, folder="")
        where, pin = f"{jobdir.url}/chk-{manifest.checkpoint}", f"{pins}/{name}/{METADATA}"
        return Snapshot(manifest, jobdir, where, asked, "checkpoint", sha256, pin=pin)
    jobdir = JobDirectory(open_at(above).store, manifest.job, folder="")
    refused = _why_void(jobdir, manifest.checkpoint) if name == f"chk-{manifest.checkpoint}" else ""
    return Snapshot(manifest, jobdir, here.url, asked, "checkpoint", sha256, refused)


def open_folder(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Folder:
    """Open the folder at a path or url. A local one must be there: looking makes nothing."""
    address = _address(url)
    if address.startswith("file://") and not (path := Path(unquote(urlsplit(address).path))).is_dir():
        there = "a file" if path.exists() else "not there"
        raise NotFoundError(f"{path}: expected a directory, and it is {there}", hint=_around(path))
    return Folder(RetryingStore(open_store(address, options, fsync=fsync)))


def place_of(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Place:
    """Return where a folder is to be made: in the store above it, under its name. A bucket is a folder, too."""
    above, name = _parted(_address(url))
    return Place(url=above, path=name, options=dict(options or {}), fsync=fsync)


def savepoint_place(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Place:
    """Return where a savepoint is to be made. Raises ConfigurationError for a path at which none can be."""
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
    """Raise ConfigurationError for a place among what a job's directory has for its own: its driver deletes there."""
    address = _address(url)
    above, name = _parted(address)
    while name:
        if is_reserved(name) and _is_a_jobs(above, options):
            raise ConfigurationError(
                f"{plain_url(url)}: it would be in '{name}' of a job's directory, {plain_url(above)}, where the job "
                "deletes what it does not know",
                hint="name a folder outside of it, or beside the job's directory",
            )
        above, name = _parted(above)


def check_checkpoints_place(url: str, options: Mapping[str, str] | None = None) -> None:
    """Raise ConfigurationError for a directory of checkpoints that is a job's own directory, or in what it deletes."""
    if _is_a_jobs(_address(url), options):
        raise ConfigurationError(
            f"checkpoints: {plain_url(url)} is the directory of one job, and cannot have those of jobs",
            hint=f"give the directory above, {_parted(plain_url(url))[0]}: a job's own has the job's name",
        )
    check_outside_jobs(url, options)


def _is_a_jobs(address: str, options: Mapping[str, str] | None) -> bool:
    try:
        return next(open_folder(address, options, fsync=False).list(GENERATIONS), None) is not None
    except NotFoundError:
        return False


def plain_url(url: str) -> str:
    """Return the same address always written the same way, without secrets."""
    address = _address(url)
    parts = urlsplit(address)
    return address if parts.scheme == "file" else remote_url(address)


def _address(url: str) -> str:
    """Return the url of the folder that is meant: a manifest stands for its folder."""
    parts = urlsplit(check_url(url))
    if not url.strip():
        # As of a variable that is not set: the working directory is '.'.
        raise ConfigurationError("the path or url of a snapshot is empty", hint="name a folder")
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise ConfigurationError(
            f"{url}: '{parts.netloc}' is a machine there, and no folder", hint="write file:///absolute/path"
        )
    if "://" in url and (parts.query or parts.fragment):
        # What is behind them may be a signature.
        raise ConfigurationError(
            f"{re.split('[?#]', url)[0]}…: a url of a folder ends where a '?' or '#' begins",
            hint="write %3F or %23 if the folder's name has them",
        )
    if "://" in url and parts.scheme != "file":
        path = parts.path.rstrip("/").removesuffix(f"/{METADATA}").rstrip("/")
        return f"{parts.scheme}://{parts.netloc}{path}"
    local = Path(unquote(parts.path) if parts.scheme == "file" else url).expanduser()
    absolute = Path(os.path.normpath(local.absolute()))
    return (absolute.parent if absolute.name == METADATA else absolute).as_uri()


def _parted(address: str) -> tuple[str, str]:
    """Return the url of the folder above, and the name in it: "" of a bucket, or of a root, which are in none."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        return path.parent.as_uri(), path.name
    above, _, name = address.rpartition("/")
    return (address, "") if above.endswith(":/") else (above, unquote(name))


def _resolved(address: str) -> str:
    """Return where symbolic links lead, as one named `latest`, which leads elsewhere tomorrow."""
    is_local = address.startswith("file://")
    return Path(unquote(urlsplit(address).path)).resolve().as_uri() if is_local else address


def decode_hashed(data: bytes, where: str) -> tuple[Manifest, str]:
    """Return a manifest, and the SHA-256 of the object that it is."""
    return MANIFEST.decode(data, where), hashlib.sha256(data).hexdigest()


def _why_void(jobdir: JobDirectory, checkpoint: CheckpointId) -> str:
    """Return why a checkpoint is not its job's history; "" where it was moved, and no records are beside it."""
    if next(jobdir.list(GENERATIONS), None) is None:
        return ""
    catalog = read_catalog(jobdir)
    void = catalog.void.get(checkpoint)
    return f"void: {void}" if void else catalog.unknown.get(checkpoint, "")


def _newest_of_job(here: Folder, asked: str, again: bool = False) -> Snapshot:
    jobdir = as_job(here)
    if jobdir is None:
        raise _nothing(here)
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
        # The job runs, and a newer one has taken its place.
        return _newest_of_job(here, asked, again=True)
    return Snapshot(manifest, jobdir, f"{here.url}/{path.rpartition('/')[0]}", asked, "checkpoint", sha256)


def as_job(here: Folder) -> JobDirectory | None:
    """Return the folder as a job's directory, whatever its name is now; None if it is none.

    Raises NotFoundError for one of which no manifest says whose it is.
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


def _nothing(here: Folder) -> NotFoundError:
    paths = [info.path for info in here.list()]
    jobs = sorted({match[1] for path in paths if (match := _IN_A_JOB.fullmatch(path)) and match[1]})
    savepoints = sorted({path.removesuffix(f"/{METADATA}") for path in paths if path.endswith(f"/{METADATA}")})
    savepoints = [path for path in savepoints if not re.search(r"(^|/)(chk-\d+|pins/[0-9a-f]{32})$", path)]
    if jobs or savepoints:
        found = [f"jobs: {_some(jobs)}"] * bool(jobs) + [f"savepoints: {_some(savepoints)}"] * bool(savepoints)
        hint = f"there are below it {'; '.join(found)}: give the path of one"
    else:
        names = sorted({path.partition("/")[0] for path in paths})
        hint = f"there is below it: {_some(names)}" if names else "nothing is there at all: is the path right?"
    return NotFoundError(
        f"{here.url}: no snapshot there: neither a {METADATA} (of a savepoint or a checkpoint chk-N), nor chk-N or "
        f"{GENERATIONS} (of a job)",
        hint=hint,
    )


def _around(path: Path) -> str:
    """Return what is there instead: the names beside the first part of the path that is missing."""
    while not path.parent.is_dir():
        path = path.parent
    try:
        names = sorted(entry.name for entry in path.parent.iterdir())
    except OSError:
        names = []
    return f"in {path.parent} there is: {_some(names)}" if names else f"{path.parent} is empty"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def check_form(manifest: Manifest, where: str) -> None:
    """Raise CorruptionError, naming `where`, unless a savepoint's manifest is what docs/format.md says of its form."""
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
