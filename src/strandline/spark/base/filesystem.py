"""File systems of sinks: this machine's, object storage, and others through Spark's Hadoop."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from strandline.core.errors import ConfigurationError, ConflictError, NotFoundError, UnavailableError
from strandline.core.ids import unique_name
from strandline.core.urls import check_url
from strandline.storage.local import if_allowed, sync_directory, sync_file
from strandline.storage.place import Place

_SCHEMES = ("s3", "gs", "az")
"""Schemes for which Strandline has a client. For all others, Hadoop needs one."""


def absolute(path: str | Path) -> str:
    """Return the absolute path: Spark's JVM may have another working directory."""
    text = check_url(path, hadoop=True)
    return text.rstrip("/") if re.match("[A-Za-z][A-Za-z0-9+.-]*:/", text) else str(Path(path).absolute())


def open_filesystem(
    spark: SparkSession, root: str, *, fsync: bool = True, options: Mapping[str, str] | None = None
) -> FileSystem:
    """Return the file system of `root`, resolved as Spark resolves it, except for object storage.

    With `options` for object storage, Strandline's client also serves Hadoop's schemes, as s3a.
    """
    parsed = urlparse(root)
    if parsed.scheme in _SCHEMES or options:
        return ObjectFiles(root, options or {})
    if parsed.scheme == "file":
        return LocalFiles(Path(unquote(parsed.path)).absolute(), fsync=fsync)
    if not parsed.scheme and spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///").startswith("file:"):
        return LocalFiles(Path(root).absolute(), fsync=fsync)
    return HadoopFiles(spark, root)


class LocalFiles:
    """Files of this machine below a root directory; all paths are relative to it.

    Without `fsync`, durable files survive a crash of the process, but not a power failure.
    """

    def __init__(self, root: Path, *, fsync: bool = True) -> None:
        self._root = root
        self._fsync = fsync

    def check_writable(self) -> None:
        """Raise ConfigurationError if the root cannot be created or written; leave nothing there."""
        directory = self._root
        try:
            while not directory.exists():
                directory = directory.parent
            with tempfile.TemporaryFile(dir=directory, prefix=".strandline-try-"):
                pass
        except OSError as error:
            raise ConfigurationError(
                f"the directory {self._root} cannot be written: {directory}: {error.strerror}",
                hint="choose a directory that this user may write to, or create it",
            ) from None

    def list(self, path: str) -> list[tuple[str, int]]:
        """Return names and sizes of the files in a directory; none if it does not exist."""
        files = []
        try:
            with os.scandir(self._root / path) as entries:
                for entry in entries:
                    # A consumer may remove a file meanwhile: the others still count.
                    with suppress(FileNotFoundError):
                        files += [(entry.name, entry.stat().st_size)] if entry.is_file() else []
        except FileNotFoundError:
            return []
        return files

    def rename(self, source: str, target: str) -> bool:
        """Move a file in one step; return False only if the source does not exist."""
        try:
            (self._root / source).rename(self._root / target)
        except FileNotFoundError as error:
            if (self._root / source).exists():
                raise UnavailableError(f"{self._root / source} cannot be renamed to {target}: {error}") from None
            return False
        return True

    def read(self, path: str) -> bytes | None:
        """Return a file's content, None if it does not exist."""
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, path: str, data: bytes) -> bool:
        """Write a file durably, in a directory that exists; return False if the file exists."""
        target, is_created = self._root / path, False
        try:
            with target.open("xb") as file:
                is_created = True
                file.write(data)
        except FileExistsError:
            return False
        except OSError as error:
            if is_created:
                # After a full disk: the next reader would take a partial file for another driver's.
                with suppress(OSError):
                    target.unlink(missing_ok=True)
            raise UnavailableError(f"{target} cannot be written: {error}") from None
        if self._fsync:
            sync_file(target)
            sync_directory(target.parent)
        return True

    def sync(self, path: str, files: Sequence[str] = ()) -> None:
        """Make durable: the content of `files` in a directory, its entries, and those of its parents up to the root."""
        if not self._fsync:
            return
        directory = self._root / path
        for name in files:
            sync_file(directory / name)
        sync_directory(directory)
        while directory != self._root:
            directory = directory.parent
            sync_directory(directory)

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists."""
        return (self._root / path).exists()

    def delete(self, path: str) -> None:
        """Delete a file or tree, if it exists."""
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def mkdirs(self, path: str) -> None:
        """Create a directory and its parents, durably."""
        directory = self._root / path
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for parent in directory.parents if self._fsync else ():
                # Parents that existed too: the process that created them may have been killed before it synced them.
                with if_allowed():
                    sync_directory(parent)
        except OSError as error:
            raise UnavailableError(f"the sink's directory {directory} cannot be created: {error}") from None

    def local(self, path: str) -> Path:
        """Return the path on this machine, None for other file systems."""
        return self._root / path

    def directories(self, path: str) -> Sequence[str]:
        """Return the names of the directories in a directory; none if it does not exist."""
        try:
            return [entry.name for entry in os.scandir(self._root / path) if entry.is_dir()]
        except FileNotFoundError:
            return []

    def for_spark(self, path: str) -> str:
        """Return the path as Spark resolves it to the same place."""
        return f"file:{self._root / path}"


class HadoopFiles:
    """Files of any file system that Hadoop supports, with the interface of `LocalFiles`.

    Durability depends on that file system: Hadoop has no call for all of them.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark._jvm
        self._root = root.rstrip("/")
        self._fs: Any = self._path("").getFileSystem(spark._jsc.hadoopConfiguration())

    def check_writable(self) -> None:
        name = f"_strandline-try-{unique_name()[:8]}"
        try:
            with closing(self._fs.create(self._path(name), False)):
                pass
            self._fs.delete(self._path(name), False)
        except Py4JJavaError as error:
            thrown = error.java_exception
            raise ConfigurationError(
                f"{self._root} cannot be written: {thrown.getClass().getSimpleName()}: {thrown.getMessage()}",
                hint="choose a directory that this user may write to, and set Spark's settings for its file system",
            ) from None

    def list(self, path: str) -> list[tuple[str, int]]:
        return [(status.getPath().getName(), status.getLen()) for status in self._inside(path) if status.isFile()]

    def rename(self, source: str, target: str) -> bool:
        if not self.exists(source):
            return False
        if self.exists(target) and self._size(target) == self._size(source):
            # An object store renames by copying; this one stopped before it deleted the source.
            self.delete(source)
            return True
        if self._fs.rename(self._path(source), self._path(target)):
            return True
        # Hadoop returns no reason.
        if self.exists(source):
            raise UnavailableError(f"the file system did not rename {self._root}/{source} to {target}")
        return False

    def _size(self, path: str) -> int:
        return int(self._fs.getFileStatus(self._path(path)).getLen())

    def read(self, path: str) -> bytes | None:
        if not self.exists(path):
            return None
        with closing(self._fs.open(self._path(path))) as stream:
            return bytes(stream.readAllBytes())

    def create(self, path: str, data: bytes) -> bool:
        try:
            stream = self._fs.create(self._path(path), False)
        except Py4JJavaError as error:
            if "AlreadyExists" in error.java_exception.getClass().getSimpleName():
                return False
            raise
        try:
            with closing(stream):
                stream.write(data)
        except Py4JJavaError:
            # As in `LocalFiles`: the next reader would take a partial file for another driver's.
            with suppress(Py4JJavaError):
                self._fs.delete(self._path(path), False)
            raise
        return True

    def sync(self, path: str, files: Sequence[str] = ()) -> None:
        pass

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def delete(self, path: str) -> None:
        if not self._fs.delete(self._path(path), True) and self.exists(path):
            raise UnavailableError(f"the file system did not delete {self._root}/{path}")

    def mkdirs(self, path: str) -> None:
        self._fs.mkdirs(self._path(path))

    def local(self, path: str) -> None:
        return None

    def directories(self, path: str) -> Sequence[str]:
        return [status.getPath().getName() for status in self._inside(path) if status.isDirectory()]

    def for_spark(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _inside(self, path: str) -> Any:
        return self._fs.listStatus(self._path(path)) if self.exists(path) else ()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{path}" if path else self._root)


class ObjectFiles:
    """Objects below a url, with the interface of `LocalFiles`. A written object is durable.

    One object is created or replaced in one step; several are not. To rename one is to copy it within the storage and
    to delete the source: a consumer that removes the copy in between may see it again after a retry.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self._place = Place(url=root, options=dict(options))
        self._store = self._place.store()

    def place(self) -> Place:
        """Return the place of the objects, for tasks."""
        return self._place

    def check_writable(self) -> None:
        name = f"_strandline-try-{unique_name()[:8]}"
        self._store.put(name, b"")
        self._store.delete([name])

    def list(self, path: str) -> list[tuple[str, int]]:
        return [(name, size) for name, size in self._below(path) if "/" not in name]

    def rename(self, source: str, target: str) -> bool:
        try:
            size = self._store.head(source).size_bytes
        except NotFoundError:
            return False
        # An earlier attempt may have copied it.
        if self._size(target) != size and not self._store.take(target, self._store, source):
            # This storage cannot copy synchronously, or not an object of this size.
            try:
                self._store.put(target, self._store.get(source))
            except NotFoundError:
                return False
        if self._size(target) != size:
            raise UnavailableError(f"{self._store.url}/{source} was copied to {target}, but the copy has another size")
        self._store.delete([source])
        return True

    def read(self, path: str) -> bytes | None:
        try:
            return self._store.get(path)
        except NotFoundError:
            return None

    def create(self, path: str, data: bytes) -> bool:
        try:
            self._store.create(path, data)
        except ConflictError:
            # If the answer was lost, the client has retried, and this is the object of its first attempt.
            return self.read(path) == data
        return True

    def sync(self, path: str, files: Sequence[str] = ()) -> None:
        pass

    def exists(self, path: str) -> bool:
        return self._size(path) is not None or next(iter(self._below(path)), None) is not None

    def delete(self, path: str) -> None:
        self._store.delete([path, *(f"{path}/{name}" for name, _ in self._below(path))])

    def mkdirs(self, path: str) -> None:
        # A folder exists while an object is in it.
        pass

    def local(self, path: str) -> None:
        return None

    def directories(self, path: str) -> Sequence[str]:
        return sorted({name.partition("/")[0] for name, _ in self._below(path) if "/" in name})

    def for_spark(self, path: str) -> str:
        return f"{self._place.url}/{path}"

    def _below(self, path: str) -> Sequence[tuple[str, int]]:
        prefix = f"{path}/" if path else ""
        return [(info.path.removeprefix(prefix), info.size_bytes) for info in self._store.list(path)]

    def _size(self, path: str) -> int | None:
        try:
            return self._store.head(path).size_bytes
        except NotFoundError:
            return None


FileSystem = LocalFiles | HadoopFiles | ObjectFiles
