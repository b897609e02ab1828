"""Temporary directories that outlive no process: what a killed one has left, the next one removes.

Each holds a file that its process has locked. A directory with this file and without the lock is abandoned, whatever
the process's id is used for now. No other directory is touched, whatever its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

LOCK = "scratch.lock"
_PREFIX = "strandline-"


class Scratch:
    """A temporary directory, named by its `kind`; removed by `close`, or after a kill by the next process.

    Of the same parent directory, that is: the one for temporary files by default.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        remove_abandoned(parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=parent))
            self._lock = (self.path / LOCK).open("w")
            with contextlib.suppress(OSError):
                # Where locks are not supported, nothing is ever taken for abandoned.
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self.path / LOCK).exists():
                return
            # Another process took it for abandoned before it was locked.
            self._lock.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def remove_abandoned(parent: Path | None = None) -> None:
    """Remove the directories that killed processes of this user have left in a directory."""
    with contextlib.suppress(OSError):
        for path in (parent or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
            remove_if_abandoned(path)


def remove_if_abandoned(directory: Path) -> None:
    """Remove one of these directories if the process that made it has ended."""
    with contextlib.suppress(OSError):
        if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
            return
        with (directory / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The lock last: what is left by a removal that is broken off is removed by the next.
            for path in directory.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != LOCK:
                    path.unlink(missing_ok=True)
            if [path.name for path in directory.iterdir()] == [LOCK]:
                shutil.rmtree(directory, ignore_errors=True)
