"""An ObjectStore in a local directory. The effects and results of a call survive a power cut.

A file's bytes and its name become durable separately: by fsync of the file, and by fsync of every directory on its
path. So an object is written to a temporary file, synced and renamed, and then all directories of its path are synced:
another process may have made one of them and not have synced it yet.
"""

from __future__ import annotations

import errno
import hashlib
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
    """Make a file's bytes durable, from any writer, but not its name: see sync_directory. Raises OSError."""
    _fsync(path, os.O_RDONLY)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable; its own name needs a sync of its parent. Raises OSError."""
    try:
        _fsync(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        # Some file systems cannot sync directories.
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
    """Ignore errors of missing rights: a process with ours cannot have made a directory there."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def _refresh_names(directory: Path) -> None:
    """Have a network file system ask its server for a directory's names.

    NFS caches for up to a minute that a file is absent, unless its directory is opened.
    """
    with suppress(OSError):
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))


class Disk:
    """The functions by which a LocalStore changes and syncs a disk. Each raises OSError, as the system's do."""

    sync_file = staticmethod(sync_file)
    sync_directory = staticmethod(sync_directory)
    rename = staticmethod(os.replace)
    """Rename a file, replacing the file with that name."""
    link = staticmethod(os.link)
    """Give a file a second name; raise FileExistsError if a file has that name."""
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)

    def write(self, path: Path, data: bytes) -> None:
        """Write a new file."""
        with open(path, "xb") as file:
            file.write(data)

    def copy(self, source: Path, path: Path) -> str:
        """Write a new file with a copy of another's bytes, no link, since the other may change; return their sha256."""
        sha256 = hashlib.sha256()
        with open(path, "xb") as file:
            file.writelines(hashed_chunks(source, _CHUNK_BYTES, sha256))
        return sha256.hexdigest()


class LocalStore:
    """A directory as an ObjectStore, for any number of processes.

    When a call returns, its effect and its result survive a power cut: also a read, a listing or a conflict, even if
    the writer of the object was killed before it synced it. (Only `get_file` syncs nothing: the name of its object was
    read from another object before.) A name has all of its bytes or does not exist. With `fsync` False, these
    guarantees hold while the machine runs, but not after a power cut.

    A writer that is killed may leave a temporary file beside its target. No call returns it, and the first listing
    that finds it a day old removes it. Directories are made when needed and removed when a deletion empties them.
    """

    def __init__(self, root: Path, *, fsync: bool = True, disk: Disk | None = None, clock: Clock | None = None) -> None:
        """Open a directory, or make it. Raises UnavailableError."""
        self._root = root.absolute()
        # Keepers open the store by this url, so it must encode every character of the path.
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

    def put_file(self, path: str, source: Path) -> str:
        if not source.is_file():
            raise NotFoundError(f"{source}: no such local file to upload to {self.url}/{path}")
        hashes: list[str] = []
        self._put(path, lambda temporary: hashes.append(self._disk.copy(source, temporary)))
        return hashes[-1]

    def _put(self, path: str, write: Callable[[Path], object]) -> None:
        target = self._at(path)
        with self._errors(path, writing=True), self._lasting(target), self._temporary(target, write) as temporary:
            self._disk.rename(temporary, target)

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        """Hard-link a file of another directory, which is safe since objects never change."""
        if not isinstance(source, LocalStore):
            return False
        try:
            self._put(path, lambda temporary: self._disk.link(source._at(source_path), temporary))
        except UnavailableError:
            # It is on another file system, on one without links, or absent.
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
            _refresh_names(target.parent)
            if target.is_dir():
                raise IsADirectoryError
            return self._info(target, target.stat())

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        directory = self._at(prefix) if prefix.strip("/") else self._root
        with self._errors(prefix), self._lasting(directory):
            return iter([*self._walk(directory)])

    def _walk(self, directory: Path) -> Iterator[ObjectInfo]:
        """Yield the objects of a directory, once its names are durable, and those of the directories below."""
        infos, below = [], []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir():
                        below.append(Path(entry.path))
                    elif entry.is_file():
                        # It may have been deleted meanwhile.
                        with suppress(FileNotFoundError):
                            infos.append(self._info(Path(entry.path), entry.stat()))
        except (FileNotFoundError, NotADirectoryError):
            # It is absent: that must be durable, too.
            self._sync_way_to(directory)
            return
        self._sync(directory)
        for info in infos:
            if not _TEMPORARY.search(info.path):
                yield info
            elif info.modified_ms < self._clock.now_ms() - _LEFTOVER_MS:
                self._remove_leftover(self._root / info.path)
        for each in below:
            yield from self._walk(each)

    def _remove_leftover(self, path: Path) -> None:
        # It only takes space: a reader without the right to delete continues.
        with suppress(OSError):
            self._disk.unlink(path)
            self._prune(path.parent)

    def delete(self, paths: Iterable[str]) -> None:
        touched: dict[Path, str] = {}
        for path in paths:
            target = self._at(path)
            # If the object is absent already, its deletion may not be durable yet.
            touched.setdefault(target.parent, path)
            with self._errors(path, writing=True), suppress(FileNotFoundError):
                self._disk.unlink(target)
        for directory, path in touched.items():
            with self._errors(path, writing=True):
                self._sync(self._prune(directory))

    def _prune(self, directory: Path) -> Path:
        """Remove a directory and its parents as far as they are empty; return the first that remains."""
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

    def _info(self, path: Path, stat: os.stat_result) -> ObjectInfo:
        return ObjectInfo(path.relative_to(self._root).as_posix(), stat.st_size, stat.st_mtime_ns // 1_000_000)

    @contextmanager
    def _temporary(self, target: Path, write: Callable[[Path], object]) -> Iterator[Path]:
        """Yield a durable temporary file with the bytes, in the target's directory; delete its name at the end."""
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
        """Make a directory and its missing parents."""
        if directory.is_dir():
            return
        self._make(directory.parent)
        try:
            self._disk.mkdir(directory)
        except FileExistsError:
            # Another process made it meanwhile; or it is a file.
            if not directory.is_dir():
                raise

    def _sync_way_to_root(self) -> None:
        for directory in self._root.parents:
            with if_allowed():
                self._sync(directory)

    def _sync_way_to(self, target: Path) -> None:
        """Make durable the name of a file or directory, and those of all directories on its path."""
        while target != self._root:
            target = target.parent
            self._sync(target)

    def _sync(self, directory: Path) -> None:
        if self._fsync:
            # A deleted directory has no names; the sync of its parent makes its deletion durable.
            with suppress(FileNotFoundError, NotADirectoryError):
                self._disk.sync_directory(directory)

    @contextmanager
    def _lasting(self, target: Path) -> Iterator[None]:
        """Make the target's existence or absence durable after the block."""
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


def hashed_chunks(source: Path, size_bytes: int, sha256: hashlib._Hash) -> Iterator[bytes]:
    """Read a file in chunks, and add each to a hash before it is yielded."""
    with open(source, "rb") as file:
        while chunk := file.read(size_bytes):
            sha256.update(chunk)
            yield chunk


@contextmanager
def downloaded(target: Path) -> Iterator[BinaryIO]:
    """Yield a new file, and rename it to the target after the block; raise UnavailableError if a write fails."""
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
