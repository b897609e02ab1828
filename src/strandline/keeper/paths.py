"""Where things lie on a machine: sockets, working state, local recovery copies and logs of a job's keepers."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from strandline.core.errors import ConfigurationError
from strandline.core.ids import CheckpointId, Generation, Partition, unique_name

_SOCKET_PATH_BYTES = 107
_DRIVER_LOCK = "driver.lock"
_DRIVER_LOG = "driver.log"
_RUN_SOCKETS = "run.??????.sock"


@dataclass(frozen=True)
class Places:
    """All local paths of one job. Two jobs share none, nor do two checkpoint directories."""

    local_dir: Path
    store_url: str
    job: str

    @property
    def root(self) -> Path:
        """The job's own directory; removed when the job is stopped."""
        identity = hashlib.sha256(f"{self.store_url}\n{self.job}".encode()).hexdigest()[:12]
        return self.local_dir / identity

    @property
    def logs(self) -> Path:
        """The job's keeper logs; they outlive the job."""
        return self.local_dir / "logs" / _safe(self.job)

    def socket(self, uid: str, partition: Partition, generation: Generation) -> Path:
        """Where a keeper of this run listens."""
        return self._fitting(self.root / f"{_short(uid)}-{partition}-{generation}.sock")

    def run_socket(self) -> Path:
        """Where the driver of a run listens, under a new name: no longer than a keeper's."""
        return self._fitting(self.root / f"run.{unique_name()[:6]}.sock")

    def run_sockets(self) -> list[Path]:
        """Where drivers of this job listen, or have listened before they were killed."""
        return sorted(self.root.glob(_RUN_SOCKETS))

    def _fitting(self, path: Path) -> Path:
        if len(str(path).encode()) > _SOCKET_PATH_BYTES:
            raise ConfigurationError(
                f"local_dir {self.local_dir} is too long: the socket {path} would have {len(str(path))} characters, "
                f"and the system allows {_SOCKET_PATH_BYTES}",
                hint="give a shorter local_dir in Settings",
            )
        return path

    def failures(self, generation: Generation) -> Path:
        """Where tasks of a run note what has failed, on their machine; the epoch and `.tmp` follow."""
        return self.root / f"failed-{generation}"

    def forget_failures(self, generation: Generation) -> None:
        """Remove what tasks of a run have noted on this machine."""
        for path in self.root.glob(f"failed-{generation}-*"):
            path.unlink(missing_ok=True)

    @property
    def spark_failures(self) -> Path:
        """The file that has all of what Spark said when something failed."""
        return self.logs / "spark-failures.log"

    def state(self, uid: str, partition: Partition) -> Path:
        """The directory of one operator partition."""
        return self.root / f"{_safe(uid)}-{_short(uid)}-{partition}"

    def log(self, uid: str, partition: Partition) -> Path:
        """The log file of one operator partition's keepers."""
        return self.logs / f"{_safe(uid)}-{partition}.log"

    @property
    def driver_log(self) -> Path:
        """The log of the job's drivers."""
        return self.logs / _DRIVER_LOG

    @property
    def driver_record(self) -> Path:
        """What the job's newest driver said of it last. It outlives the job, as logs do."""
        return self.logs / f"{self.root.name}.driver.json"

    def make(self) -> None:
        """Create the directories, closed to others; raise ConfigurationError if others could write there.

        Who can write there could put a socket in a keeper's place, and pickled programs go through those sockets.
        """
        for directory in (self.local_dir, self.root, self.logs.parent, self.logs):
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(
                    f"local_dir {self.local_dir} cannot be used: {error.strerror}: {directory}",
                    hint="give a directory on a local disk that this user may write, Settings(local_dir=…): working "
                    "state, sockets and logs lie there",
                ) from None
            if not os.access(directory, os.W_OK | os.X_OK):
                raise ConfigurationError(
                    f"local_dir {self.local_dir} cannot be used: user {os.getuid()} may not write {directory}",
                    hint="give a directory of your own in Settings(local_dir=…)",
                )
            _refuse_others(directory, shared=directory == self.local_dir)

    def sockets(self, generation: Generation) -> list[Path]:
        """Where keepers of this run listen on this machine."""
        return sorted(self.root.glob(f"*-{generation}.sock"))

    def hold(self) -> IO[str]:
        """Keep others from taking the directories away while this file is open: a job may have no keeper here.

        Makes them, if a driver that ends has just removed them.
        """
        return self._locked(fcntl.LOCK_SH)

    def hold_alone(self) -> IO[str] | None:
        """Hold the directories with nobody beside; None if somebody holds them already."""
        try:
            return self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None

    def _locked(self, how: int) -> IO[str]:
        path = self.root / _DRIVER_LOCK
        while True:
            self.make()
            with contextlib.suppress(FileNotFoundError):
                held = path.open("a")
                try:
                    fcntl.flock(held, how)
                except BlockingIOError:
                    held.close()
                    raise
                if path.exists() and path.samefile(f"/proc/self/fd/{held.fileno()}"):
                    return held
                held.close()

    def remove(self, held: IO[str]) -> None:
        """Remove everything but the logs, unless another driver has taken the job up: `held` is what `hold` gave."""
        _remove(self.root, held)


def run_sockets(local_dir: Path) -> list[Path]:
    """Return where drivers of any job listen, or have listened before they were killed. Others' are left out."""
    found = []
    for path in local_dir.glob(f"????????????/{_RUN_SOCKETS}"):
        # In a directory that others use too, they can make one; or it has gone meanwhile.
        with contextlib.suppress(OSError):
            if path.parent.lstat().st_uid == os.geteuid() == path.lstat().st_uid and path.is_socket():
                found.append(path)
    return sorted(found)


def driver_records(local_dir: Path) -> list[Path]:
    """Return where drivers of any job have said what became of it. Those of other users are left out."""
    found = []
    for path in local_dir.glob("logs/*/????????????.driver.json"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.geteuid():
                found.append(path)
    return sorted(found)


def _remove(root: Path, lock: IO[str]) -> None:
    """Remove a job's directory, unless others hold its lock; that last: a driver that finds another works beside us."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in root.glob("*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(root, ignore_errors=True)
        # Closing it is not enough where a process that the program has forked has it, too.
        fcntl.flock(lock, fcntl.LOCK_UN)


def _refuse_others(directory: Path, *, shared: bool) -> None:
    """Refuse a directory that is not ours alone to write to.

    A `shared` one may be like /tmp, where everybody may write, but only to what is his own, and a link, unless one that
    another user has made: he could let it lead elsewhere later.
    """
    found = directory.lstat()
    if shared and stat.S_ISLNK(found.st_mode) and found.st_uid in (0, os.geteuid()):
        found = directory.stat()
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not writable
    if ours or (shared and found.st_mode & stat.S_ISVTX and found.st_uid in (0, os.geteuid())):
        return
    raise ConfigurationError(
        f"{directory} is used for the sockets and state of keepers, and others may write there: its owner is user "
        f"{found.st_uid} (we are {os.geteuid()}), its mode {stat.filemode(found.st_mode)}",
        hint=f"`chmod go-w {directory}` if it is yours, or give another local_dir in Settings",
    )


def local_copy(state_dir: Path, checkpoint: CheckpointId) -> Path:
    """Return where a partition keeps its hard-linked copy of a checkpoint's files."""
    return state_dir / f"chk-{checkpoint}"


def local_copies(state_dir: Path) -> Iterator[tuple[CheckpointId, Path]]:
    """Yield the copies that are there."""
    for path in state_dir.glob("chk-*"):
        number = path.name.removeprefix("chk-")
        if number.isdigit():
            yield CheckpointId(int(number)), path


def drop_copies(state_dir: Path, *, keep: Collection[CheckpointId | None]) -> None:
    """Remove the copies of all other checkpoints."""
    for checkpoint, path in local_copies(state_dir):
        if checkpoint not in keep:
            shutil.rmtree(path, ignore_errors=True)


def _safe(name: str) -> str:
    """Return a name fit for a path; one that had to be changed keeps apart by its hash."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:40]
    return safe if safe == name else f"{safe}-{_short(name)}"


def _short(name: str) -> str:
    # 40 bits in few characters: a socket's path has room for hardly more.
    return base64.b32encode(hashlib.sha256(name.encode()).digest()[:5]).decode().lower()


def sweep(local_dir: Path, older_than_s: float = 86_400.0) -> None:
    """Remove what jobs that were killed left on this machine and nobody came back for.

    `local_dir` may be a directory that others use too: only what looks like a job's own in every part is touched.
    """
    for root in local_dir.glob("????????????"):
        # Its job, or another one that sweeps, may be removing it.
        with contextlib.suppress(OSError):
            if re.fullmatch("[0-9a-f]{12}", root.name) and _is_abandoned(root, older_than_s):
                # Held meanwhile, so that no driver that starts takes up what is being removed.
                with (root / _DRIVER_LOCK).open("a") as lock:
                    _remove(root, lock)


def _is_abandoned(root: Path, older_than_s: float) -> bool:
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    # Spark's progress is written below the second level.
    newest = max(path.stat().st_mtime for path in [root, *root.iterdir(), *root.glob("spark-*/*")])
    is_old = time.time() - newest > older_than_s
    return is_old and all(map(_is_ours, root.glob("*"))) and not any(map(_held, root.glob("*/keeper.lock")))


def _is_ours(path: Path) -> bool:
    """Return whether a job's directory may hold this: sockets, locks, partitions, Spark's progress, scratch."""
    if path.is_dir():
        return path.name.startswith(("spark-", "strandline-")) or (path / "keeper.lock").exists()
    return path.suffix in (".sock", ".tmp") or path.name == _DRIVER_LOCK or path.name.startswith("failed-")


def _held(lock: Path) -> bool:
    """Return whether the process that locked it, a keeper or a driver, is alive."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
