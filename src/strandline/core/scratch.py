"""Temporary directories that are removed with their process; the next process removes those of a killed one.

Each holds a file that its process has locked. A directory with this file and without the lock is abandoned, even if
the process id is in use again. Other directories are never removed, whatever their names.
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

    That is the next process with the same parent directory, by default the system's for temporary files.
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
                # Without support for locks, no directory ever counts as abandoned.
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self.path / LOCK).exists():
                return
            # Another process removed it before it was locked.
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
    """Raise UnavailableError for any library's error that says that a disk is full.

    Our own errors are not replaced: they name the place already.
    """
    if error is None or isinstance(error, StrandlineError):
        return
    # The messages of Arrow, DuckDB and RocksDB contain the system's.
    reason = next((text for text in map(os.strerror, _FULL) if text in str(error)), "")
    if not reason:
        return
    raise UnavailableError(f"{scratch}: cannot be written: {reason}", hint=_MAKE_ROOM) from error


def remove_abandoned(parent: Path | None = None) -> None:
    """Remove the scratch directories that killed processes of this user have left in a directory."""
    with contextlib.suppress(OSError):
        for path in (parent or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
            remove_if_abandoned(path)


def remove_if_abandoned(directory: Path) -> None:
    """Remove a scratch directory if the process that created it has ended."""
    with contextlib.suppress(OSError):
        if directory.is_symlink() or directory.stat().st_uid != os.geteuid():
            return
        with (directory / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The lock file goes last: if this removal is interrupted, the next one completes it.
            for path in directory.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name != LOCK:
                    path.unlink(missing_ok=True)
            if [path.name for path in directory.iterdir()] == [LOCK]:
                shutil.rmtree(directory, ignore_errors=True)
