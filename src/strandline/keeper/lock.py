"""Lock on a partition's directory, which one keeper at a time uses."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from strandline.core.errors import KeeperError
from strandline.core.ids import Generation
from strandline.keeper.forks import CloseOnFork
from strandline.keeper.paths import standby_files
from strandline.keeper.watchdog import process_start

_NAME = "keeper.lock"
_PATIENCE_S = 10
_PAUSE_S = 0.02


@dataclass
class PartitionLock:
    """A lock that the process holds until it ends."""

    _directory: Path
    _generation: Generation
    _close_on_fork: CloseOnFork
    _file: IO[str] | None = field(default=None, init=False)

    @property
    def is_held(self) -> bool:
        """Whether the directory still has this lock: another keeper may have removed and recreated it."""
        return self._file is not None and self._is_in_place(self._file)

    def take(self) -> None:
        """Kill a keeper of the same partition that an earlier run left, and take the lock.

        Raises KeeperError if a keeper of a later run holds it: then this keeper's run is over. The caller touches files
        only after this method returns.
        """
        lock = self._open()
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_in_place(lock):
                    break
                # The last holder removed the directory: other keepers would not see this lock.
                lock.close()
                lock = self._open()
            except BlockingIOError:
                lock.seek(0)
                self._end_holder(lock.read().split())
                if time.monotonic() > deadline:
                    raise KeeperError(f"{self._directory} is held by another process") from None
                time.sleep(_PAUSE_S)
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()} {process_start(os.getpid())} {self._generation}")
        lock.flush()
        self._file = lock

    def remove(self) -> None:
        """Remove the lock file, and the directory if it is empty then."""
        with suppress(OSError):
            (self._directory / _NAME).unlink()
            self._directory.rmdir()

    def _open(self) -> IO[str]:
        while True:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                lock = (self._directory / _NAME).open("a+")
                self._close_on_fork.add(lock)
                return lock

    def _is_in_place(self, lock: IO[str]) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat((self._directory / _NAME).stat(), os.fstat(lock.fileno()))
        return False

    def _end_holder(self, identity: list[str]) -> None:
        if len(identity) != 3 or process_start(int(identity[0])) != identity[1]:
            # The holder has ended, or has not written its identity yet: the caller tries again.
            return
        if int(identity[2]) > self._generation:
            raise KeeperError(
                f"{self._directory} is held by a keeper of generation {identity[2]} of the job, and this one is of "
                f"generation {self._generation}: a newer run has taken over",
                hint="stop the older driver: it is fenced off",
            )
        with suppress(ProcessLookupError):
            os.kill(int(identity[0]), signal.SIGKILL)


def mark_standby(directory: Path, generation: Generation) -> bool:
    """Mark a partition's directory as that of a standby of this run; return False if a keeper or a newer run has it.

    Sweeps keep what has the mark of the newest run. The lock is not held: a keeper that begins here does not wait.
    """
    # No process has the number 0: a keeper that begins meanwhile kills none.
    mark = f"0 - {generation}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (directory / _NAME).open("a+") as lock:
        lock.seek(0)
        if lock.read() == mark:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        lock.seek(0)
        holder = lock.read().split()
        if len(holder) == 3 and int(holder[2]) > generation:
            return False
        lock.truncate(0)
        lock.write(mark)
    return True


def remove_standby(directory: Path, generation: Generation) -> None:
    """Remove the directory of a standby of this run."""
    if mark_standby(directory, generation):
        shutil.rmtree(standby_files(directory), ignore_errors=True)
        (directory / _NAME).unlink()
        directory.rmdir()
