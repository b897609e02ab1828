"""Temporary directories that outlive no process: what a killed one has left, the next one removes.

Each holds a file that its process has locked. A directory with this file and without the lock is abandoned, whatever
the process's id is used for now. No other directory is touched, whatever its name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from strandline.core.errors import StrandlineError, UnavailableError

LOCK = "scratch.lock"
_PREFIX = "strandline-"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MAKE_ROOM = "make room there, or set TMPDIR (for a job: Settings(local_dir=…)) to a directory on a larger disk"


class Scratch:
    """A temporary directory, named by its `kind`; removed by `close`, or after a kill by the next process.

    Of the same parent directory, that is: the one for temporary files by default.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        remove_abandoned(parent)
        while True:
            try:
                self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=parent))
                self._lock = (self.path / LOCK).open("w")
            except OSError as error:
                raise UnavailableError(
                    f"{parent or tempfile.tempdir or 'TMPDIR'}: no temporary directory can be made: "
                    f"{error.strerror or error}",
                    hint=_MAKE_ROOM,
                ) from None
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
        refuse_full_disk(error, self.path)

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def refuse_full_disk(error: BaseException | None, scratch: Path) -> None:
    """Raise UnavailableError for an error that says that a disk is full, whichever library says it.

    An error of ours passes: it names its place already.
    """
    if error is None or isinstance(error, StrandlineError):
        return
    # Arrow, DuckDB and RocksDB have the system's words in theirs.
    reason = next((text for text in map(os.strerror, _FULL) if text in str(error)), "")
    if not reason:
        return
    raise UnavailableError(f"{scratch}: cannot be written: {reason}", hint=_MAKE_ROOM) from error


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
