"""Local paths of a job's keepers: sockets, working state, local copies of checkpoints, and logs."""

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
_EVENT_LOG = "events.jsonl"
_RUN_SOCKETS = "run.??????.sock"


@dataclass(frozen=True)
class Places:
    """All local paths of one job. Jobs share none, nor do equal job names of two checkpoint directories."""

    local_dir: Path
    store_url: str
    job: str

    @property
    def root(self) -> Path:
        """The job's directory, which a stop removes."""
        identity = hashlib.sha256(f"{self.store_url}\n{self.job}".encode()).hexdigest()[:12]
        return self.local_dir / identity

    @property
    def logs(self) -> Path:
        """The directory of the job's logs, which outlive the job."""
        return self.local_dir / "logs" / _safe(self.job)

    def socket(self, uid: str, partition: Partition, generation: Generation) -> Path:
        """Return the socket of a keeper of this run."""
        return self._fitting(self.root / f"{_short(uid)}-{partition}-{generation}.sock")

    def nursery(self, executor: int) -> Path:
        """Return the socket of the nursery of an executor's process."""
        return self._fitting(self.root / f"n.{executor}.sock")

    def run_socket(self) -> Path:
        """Return a new socket for the driver of a run. Its path is no longer than a keeper's."""
        return self._fitting(self.root / f"run.{unique_name()[:6]}.sock")

    def run_sockets(self) -> list[Path]:
        """Return the sockets of this job's drivers, also of killed ones."""
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
        """Return a new prefix of files in which tasks of a run record failures; the epoch and `.tmp` follow.

        Files on other machines stay there, and generations begin again if the checkpoint directory is set back.
        """
        return self.root / f"failed-{generation}-{unique_name()}"

    def forget_failures(self, generation: Generation) -> None:
        """Remove the failures that tasks of a run recorded on this machine."""
        for path in self.root.glob(f"failed-{generation}-*"):
            path.unlink(missing_ok=True)

    @property
    def spark_failures(self) -> Path:
        """The file with the full text of Spark's errors."""
        return self.logs / "spark-failures.log"

    def state(self, uid: str, partition: Partition) -> Path:
        """Return the directory of one operator partition."""
        return partition_directory(self.root, uid, partition)

    def log(self, uid: str, partition: Partition) -> Path:
        """Return the log file of one operator partition's keepers."""
        return self.logs / f"{_safe(uid)}-{partition}.log"

    @property
    def driver_log(self) -> Path:
        """The log of the job's drivers."""
        return self.logs / _DRIVER_LOG

    @property
    def event_log(self) -> Path:
        """The log of the job's events."""
        return self.logs / _EVENT_LOG

    @property
    def driver_record(self) -> Path:
        """The file with the last status that the job's newest driver wrote. It outlives the job, as logs do."""
        return self.logs / f"{self.root.name}.driver.json"

    def make(self) -> None:
        """Create the directories, private to this user; raise ConfigurationError if others can write there.

        Another user who can write there could replace a keeper's socket, and pickled programs pass through sockets.
        """
        for directory in (self.local_dir, self.root, self.logs.parent, self.logs):
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(
                    f"local_dir {self.local_dir} cannot be used: {error.strerror}: {directory}",
                    hint="give a directory on a local disk that this user may write, Settings(local_dir=…): working "
                    "state, sockets and logs lie there",
                    may_pass=True,
                ) from None
            if not os.access(directory, os.W_OK | os.X_OK):
                raise ConfigurationError(
                    f"local_dir {self.local_dir} cannot be used: user {os.getuid()} may not write {directory}",
                    hint="give a directory of your own in Settings(local_dir=…)",
                    may_pass=True,
                )
            _refuse_others(directory, shared=directory == self.local_dir)

    def sockets(self, generation: Generation) -> list[Path]:
        """Return the sockets of this run's keepers on this machine."""
        return sorted(self.root.glob(f"*-{generation}.sock"))

    def lock_shared(self) -> IO[str]:
        """Return an open file that keeps others from removing the directories: a job may have no keeper here.

        Creates them, if a driver that ends has just removed them.
        """
        return self._lock(fcntl.LOCK_SH)

    def lock_again(self, lock: IO[str]) -> IO[str]:
        """Return the lock of `lock_shared`, a new one if another program has removed the directories since."""
        if self._has(lock):
            return lock
        again = self.lock_shared()
        lock.close()
        return again

    def lock_exclusive(self) -> IO[str] | None:
        """Lock the directories for this driver alone; return None if another one has locked them."""
        try:
            return self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None

    def _lock(self, how: int) -> IO[str]:
        path = self.root / _DRIVER_LOCK
        while True:
            self.make()
            with contextlib.suppress(FileNotFoundError):
                lock = path.open("a")
                try:
                    fcntl.flock(lock, how)
                except BlockingIOError:
                    lock.close()
                    raise
                if self._has(lock):
                    return lock
                lock.close()

    def _has(self, lock: IO[str]) -> bool:
        """Whether an open lock is the one in the directory."""
        path = self.root / _DRIVER_LOCK
        return path.exists() and path.samefile(f"/proc/self/fd/{lock.fileno()}")

    def remove(self, lock: IO[str]) -> None:
        """Remove everything but the logs, unless another driver has locked it; `lock` is this driver's lock."""
        _remove(self.root, lock)


def run_sockets(local_dir: Path) -> list[Path]:
    """Return the sockets of this user's drivers of any job, also of killed ones."""
    paths = []
    for path in local_dir.glob(f"????????????/{_RUN_SOCKETS}"):
        # In a shared directory, other users can create one; or it is gone by now.
        with contextlib.suppress(OSError):
            if path.parent.lstat().st_uid == os.geteuid() == path.lstat().st_uid and path.is_socket():
                paths.append(path)
    return sorted(paths)


def driver_records(local_dir: Path) -> list[Path]:
    """Return the status files of this user's drivers of any job."""
    paths = []
    for path in local_dir.glob("logs/*/????????????.driver.json"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.geteuid():
                paths.append(path)
    return sorted(paths)


def _remove(root: Path, lock: IO[str]) -> None:
    """Remove a job's directory, unless others hold its lock; the lock last, since a new driver may create another."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in root.glob("*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(root, ignore_errors=True)
        # Closing the file would not unlock it while a fork of the program has it open.
        fcntl.flock(lock, fcntl.LOCK_UN)


def _refuse_others(directory: Path, *, shared: bool) -> None:
    """Refuse a directory that other users can write to.

    A `shared` one may have a sticky bit, as /tmp, or be a link of this user or of root: another user could redirect
    theirs later.
    """
    status = directory.lstat()
    if shared and stat.S_ISLNK(status.st_mode) and status.st_uid in (0, os.geteuid()):
        status = directory.stat()
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not writable
    if is_private or (shared and status.st_mode & stat.S_ISVTX and status.st_uid in (0, os.geteuid())):
        return
    raise ConfigurationError(
        f"{directory} is used for the sockets and state of keepers, and others may write there: its owner is user "
        f"{status.st_uid} (this user is {os.geteuid()}), its mode {stat.filemode(status.st_mode)}",
        hint=f"`chmod go-w {directory}` if it is yours, or give another local_dir in Settings",
    )


def partition_directory(root: Path, uid: str, partition: Partition) -> Path:
    """Return the directory of one operator partition in a job's directory."""
    return root / f"{_safe(uid)}-{_short(uid)}-{partition}"


def local_copy(state_dir: Path, checkpoint: CheckpointId) -> Path:
    """Return the directory of a partition's hard-linked copy of a checkpoint's files."""
    return state_dir / f"chk-{checkpoint}"


def local_copies(state_dir: Path) -> Iterator[tuple[CheckpointId, Path]]:
    """Yield all copies of a partition."""
    for path in state_dir.glob("chk-*"):
        number = path.name.removeprefix("chk-")
        if number.isdigit():
            yield CheckpointId(int(number)), path


def standby_files(state_dir: Path) -> Path:
    """Return the directory of the files that a standby keeps of a partition of another machine, by their checksums."""
    return state_dir / "standby"


def drop_copies(state_dir: Path, *, keep: Collection[CheckpointId | None]) -> None:
    """Remove the copies of all other checkpoints."""
    for checkpoint, path in local_copies(state_dir):
        if checkpoint not in keep:
            shutil.rmtree(path, ignore_errors=True)


def _safe(name: str) -> str:
    """Return a name that is safe in a path; a hash keeps altered names distinct."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:40]
    return safe if safe == name else f"{safe}-{_short(name)}"


def _short(name: str) -> str:
    # 40 bits in 8 characters: the path of a socket has a low limit.
    return base64.b32encode(hashlib.sha256(name.encode()).digest()[:5]).decode().lower()


def sweep_machine(state_dir: Path, generation: Generation) -> None:
    """Remove what this machine still has of partitions that were moved or removed, and what `sweep` removes.

    Call it in a partition's keeper when all partitions have been restored, which may use copies of others. What a
    keeper of this generation has left stays: if it died, the next one restores from it.
    """
    _remove_partitions(state_dir.parent, generation)
    sweep(state_dir.parent.parent)


def _remove_partitions(root: Path, before: Generation | None = None) -> None:
    """Remove the directories of a job's partitions, except those of living keepers.

    With `before`, only what keepers of generations before it have left.
    """
    for path in root.glob("*/keeper.lock"):
        # A keeper that lives holds its lock. Another sweep may remove this directory at the same time.
        with contextlib.suppress(OSError, ValueError), path.open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = lock.read().split()
            if before is not None and len(holder) == 3 and int(holder[2]) >= before:
                continue
            if not path.samefile(f"/proc/self/fd/{lock.fileno()}"):
                # Another sweep has removed it, and a new keeper has begun there.
                continue
            for left in path.parent.iterdir():
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
            # The lock last: the next keeper may start as soon as it is gone.
            path.unlink()
            path.parent.rmdir()


def sweep(local_dir: Path, older_than_s: float = 86_400.0) -> None:
    """Remove the directories of killed jobs that did not restart on this machine.

    `local_dir` may be a directory that others use too: a directory is only removed if all of its entries are a job's.
    """
    for root in local_dir.glob("????????????"):
        # Its job, or a sweep of another job, may remove it at the same time.
        with contextlib.suppress(OSError):
            if re.fullmatch("[0-9a-f]{12}", root.name) and _is_abandoned(root, older_than_s):
                # Hold the lock, so that no driver that starts uses the directory.
                with (root / _DRIVER_LOCK).open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove_partitions(root)
                    if any(root.glob("*/keeper.lock")):
                        # A keeper has started, whose driver is on another machine and holds no lock here.
                        fcntl.flock(lock, fcntl.LOCK_UN)
                    else:
                        _remove(root, lock)


def _is_abandoned(root: Path, older_than_s: float) -> bool:
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    # Spark writes its progress below the second level.
    newest = max(path.stat().st_mtime for path in [root, *root.iterdir(), *root.glob("spark-*/*")])
    is_old = time.time() - newest > older_than_s
    return is_old and all(map(_is_of_job, root.glob("*"))) and not any(map(_is_locked, root.glob("*/keeper.lock")))


def _is_of_job(path: Path) -> bool:
    """Whether a job's directory may have this entry: sockets, locks, partitions, Spark's progress, scratch."""
    if path.is_dir():
        return path.name.startswith(("spark-", "strandline-")) or (path / "keeper.lock").exists()
    return path.suffix in (".sock", ".tmp") or path.name == _DRIVER_LOCK or path.name.startswith("failed-")


def _is_locked(lock: Path) -> bool:
    """Whether the keeper or driver that locked this file is alive."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
