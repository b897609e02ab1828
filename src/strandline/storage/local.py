"""Local directories behind our ObjectStore. What a call has done or shown is still so after a power cut.

A file's bytes and its name are made durable apart: by syncing the file, and by syncing every directory on the way to
it. So an object is written beside its name, synced, given its name, and then its directories are synced, all of them:
another process may have made one of them and not have come to syncing it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from strandline.core.clock import Clock, SystemClock
from strandline.core.errors import ConfigurationError, ConflictError, NotFoundError, UnavailableError
from strandline.core.ids import unique_name
from strandline.storage.base import ObjectInfo, ObjectStore

_TEMPORARY = re.compile(r"(?:^|/)\.[0-9a-f]{32}\.writing$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CHUNK_BYTES = 1 << 20
_LEFTOVER_MS = 24 * 3_600_000
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_FULL = "check that the directory is writable and its disk not full"


def sync_file(path: Path) -> None:
    """Make a file's bytes durable, whoever wrote them; its name is its directory's. Raises OSError."""
    _fsync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Make durable which names a directory has; that it is there itself is its parent's. Raises OSError."""
    try:
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        # Some file systems do not sync directories at all: what they do at once is all there is.
        if error.errno != errno.EINVAL:
            raise


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def if_allowed() -> Iterator[None]:
    """Go on where we may not even look: nobody like us has just made a directory there."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def _look_anew(directory: Path) -> None:
    """Have a network file system ask its server.

    Of what it found absent, NFS believes that it still is, for up to a minute, unless the directory is opened.
    """
    with suppress(OSError):
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))


class Disk:
    """All that a LocalStore changes, and syncs, on a disk. Every function raises OSError, as the system's own do."""

    copy = staticmethod(shutil.copyfile)
    """Write a new file with the bytes of another: copied, since the other one may be written to."""
    sync_file = staticmethod(sync_file)
    sync_directory = staticmethod(sync_directory)
    rename = staticmethod(os.replace)
    """Give a file another name, replacing the file that has it."""
    link = staticmethod(os.link)
    """Give a file a second name; raise FileExistsError if that one is taken."""
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file."""
        with open(path, "xb") as file:
            file.write(data)


class LocalStore:
    """A directory as an ObjectStore, for any number of processes.

    When a call returns, a power cut takes nothing of it back: neither what it wrote or deleted, nor what it read,
    listed or ran into, even if whoever had written that was killed before it was synced. (`get_file` alone syncs
    nothing: what it reads is named by something that was read before.) A name has all of its bytes or is not there.
    `fsync` False: all that holds while the machine runs, and nothing after a power cut.

    A writer that is killed may leave a temporary file beside its target. Nobody sees it, and the first listing that
    finds it a day old removes it. Directories are made when needed and removed when a deletion empties them.
    """

    def __init__(self, root: Path, *, fsync: bool = True, disk: Disk | None = None, clock: Clock | None = None) -> None:
        """Open a directory, which is made if it is not there. Raises UnavailableError."""
        self._root = root.absolute()
        # Keepers open what is shown here: every character of the path must survive being read as a url.
        self.url = self._root.as_uri()
        self._fsync = fsync
        self._disk = disk or Disk()
        self._clock = clock or SystemClock()
        try:
            self._make(self._root)
            self._sync_way_to_root()
        except OSError as error:
            raise UnavailableError(
                f"storage {self.url}: the directory cannot be made: {error.strerror or error}",
                hint="check that the path is a directory you may write to",
            ) from None

    def put(self, path: str, data: bytes) -> None:
        self._put(path, lambda temporary: self._disk.write(temporary, data))

    def put_file(self, path: str, source: Path) -> None:
        if not source.is_file():
            raise NotFoundError(f"{source}: no such local file to upload to {self.url}/{path}")
        self._put(path, lambda temporary: self._disk.copy(source, temporary))

    def _put(self, path: str, write: Callable[[Path], object]) -> None:
        target = self._at(path)
        with self._errors(path, writing=True), self._lasting(target), self._temporary(target, write) as temporary:
            self._disk.rename(temporary, target)

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        """Give a file of another directory a second name here: objects never change under a name."""
        if not isinstance(source, LocalStore):
            return False
        try:
            self._put(path, lambda temporary: self._disk.link(source._at(source_path), temporary))
        except UnavailableError:
            # Another file system, one without links, or no such file.
            return False
        return True

    def create(self, path: str, data: bytes) -> None:
        target, write = self._at(path), lambda temporary: self._disk.write(temporary, data)
        with self._errors(path, writing=True), self._lasting(target), self._temporary(target, write) as temporary:
            try:
                self._disk.link(temporary, target)
            except FileExistsError:
                raise ConflictError(f"{self.url}/{path}: an object is already there") from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise ConfigurationError(
                    f"{self.url}/{path}: the file system makes no hard links ({error.strerror}), and nothing else "
                    "writes a file only if none is there, whole or not at all",
                    hint="use a directory on another file system (ext4, XFS, Btrfs, NFS), or object storage",
                ) from None

    def get(self, path: str) -> bytes:
        target = self._at(path)
        with self._errors(path), self._lasting(target):
            return target.read_bytes()

    def get_file(self, path: str, target: Path) -> None:
        with self._errors(path), open(self._at(path), "rb") as source, downloaded(target) as file:
            shutil.copyfileobj(source, file, _CHUNK_BYTES)

    def head(self, path: str) -> ObjectInfo:
        target = self._at(path)
        with self._errors(path), self._lasting(target):
            _look_anew(target.parent)
            if target.is_dir():
                raise IsADirectoryError
            return self._info(target, target.stat())

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        directory = self._at(prefix) if prefix.strip("/") else self._root
        with self._errors(prefix), self._lasting(directory):
            return iter([*self._walk(directory)])

    def _walk(self, directory: Path) -> Iterator[ObjectInfo]:
        """Give the objects of a directory, once what it shows is durable, and those of the directories below."""
        found, below = [], []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir():
                        below.append(Path(entry.path))
                    elif entry.is_file():
                        # It may be gone by now.
                        with suppress(FileNotFoundError):
                            found.append(self._info(Path(entry.path), entry.stat()))
        except (FileNotFoundError, NotADirectoryError):
            # It is gone by now, or never was there: that must be durable, too.
            self._sync_way_to(directory)
            return
        self._sync(directory)
        for info in found:
            if not _TEMPORARY.search(info.path):
                yield info
            elif info.modified_ms < self._clock.now_ms() - _LEFTOVER_MS:
                self._remove_leftover(self._root / info.path)
        for each in below:
            yield from self._walk(each)

    def _remove_leftover(self, path: Path) -> None:
        # It takes room and nothing else: a reader that may not delete reads on.
        with suppress(OSError):
            self._disk.unlink(path)
            self._prune(path.parent)

    def delete(self, paths: Iterable[str]) -> None:
        touched: dict[Path, str] = {}
        for path in paths:
            target = self._at(path)
            # Of one that is gone already, the deletion may not be durable yet.
            touched.setdefault(target.parent, path)
            with self._errors(path, writing=True), suppress(FileNotFoundError):
                self._disk.unlink(target)
        for directory, path in touched.items():
            with self._errors(path, writing=True):
                self._sync(self._prune(directory))

    def _prune(self, directory: Path) -> Path:
        """Remove a directory, and those above it, as far as they are empty; return the first that is there."""
        while directory != self._root:
            try:
                self._disk.rmdir(directory)
            except FileNotFoundError:
                pass
            except OSError:
                return directory
            directory = directory.parent
        return directory

    def _at(self, path: str) -> Path:
        parts = path.strip("/").split("/")
        if any(part in ("", ".", "..") for part in parts) or _CONTROL.search(path) or _TEMPORARY.search(path):
            raise ConfigurationError(
                f"{self.url}: {path!r} is no path of an object",
                hint="write names with '/' between them, none of them empty, '.' or '..', without control characters",
            )
        return self._root.joinpath(*parts)

    def _info(self, path: Path, found: os.stat_result) -> ObjectInfo:
        return ObjectInfo(path.relative_to(self._root).as_posix(), found.st_size, found.st_mtime_ns // 1_000_000)

    @contextmanager
    def _temporary(self, target: Path, write: Callable[[Path], object]) -> Iterator[Path]:
        """Give a file beside the target with its bytes, durable; whatever has become of it, it is gone at the end."""
        temporary = target.with_name(f".{unique_name()}.writing")
        try:
            try:
                write(temporary)
            except FileNotFoundError:
                self._make(target.parent)
                write(temporary)
            if self._fsync:
                self._disk.sync_file(temporary)
            yield temporary
        finally:
            with suppress(OSError):
                self._disk.unlink(temporary)

    def _make(self, directory: Path) -> None:
        """Make a directory, and those above it that are missing."""
        if directory.is_dir():
            return
        self._make(directory.parent)
        try:
            self._disk.mkdir(directory)
        except FileExistsError:
            # Somebody else made it meanwhile; or it is a file.
            if not directory.is_dir():
                raise

    def _sync_way_to_root(self) -> None:
        for directory in self._root.parents:
            with if_allowed():
                self._sync(directory)

    def _sync_way_to(self, target: Path) -> None:
        """Make a name durable: that of a file or directory, and those of all directories that it is in."""
        while target != self._root:
            target = target.parent
            self._sync(target)

    def _sync(self, directory: Path) -> None:
        if self._fsync:
            # One that is gone has no names: that it is gone is its parent's.
            with suppress(FileNotFoundError, NotADirectoryError):
                self._disk.sync_directory(directory)

    @contextmanager
    def _lasting(self, target: Path) -> Iterator[None]:
        """Make durable what is done or seen within: that the target is there, or that it is not."""
        try:
            yield
        finally:
            self._sync_way_to(target)

    @contextmanager
    def _errors(self, path: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"{self.url}/{path}"
            if not writing and isinstance(error, FileNotFoundError | IsADirectoryError):
                raise NotFoundError(f"{where}: no such object") from None
            raise UnavailableError(f"{where}: {error.strerror or error}", hint=_FULL if writing else "") from None


@contextmanager
def downloaded(target: Path) -> Iterator[BinaryIO]:
    """Give a new file, which becomes the target once it is complete; raise UnavailableError if it cannot be written."""
    part = target.with_name(f".{target.name}.{unique_name()}.part")
    try:
        with open(part, "xb") as file:
            yield file
        part.replace(target)
    except OSError as error:
        raise UnavailableError(
            f"{target}: cannot be written: {error.strerror or error}",
            hint="check that the local directory is writable and its disk not full",
        ) from error
    finally:
        part.unlink(missing_ok=True)
