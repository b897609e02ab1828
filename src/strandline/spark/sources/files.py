"""File systems of sources, to delete or archive files: this machine's, and others through Hadoop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.core.errors import UnavailableError
from strandline.spark.base.filesystem import open_filesystem


@dataclass(frozen=True)
class Cleaning:
    """The policy for a source's files that no checkpoint needs: delete them, or move them to `archive`.

    Both paths are absolute.
    """

    path: str
    archive: str | None = None


def open_source_files(spark: SparkSession, cleaning: Cleaning) -> SourceFiles:
    """Return the files of a source, with its path resolved as by Spark."""
    local = open_filesystem(spark, cleaning.path).local("")
    if local is None:
        return HadoopSourceFiles(spark, cleaning.path, cleaning.archive)
    archive = None if cleaning.archive is None else open_filesystem(spark, cleaning.archive).local("")
    return LocalSourceFiles(local, archive)


def relative_path(root: str, uri: str) -> str | None:
    """Return the path of a file of Spark's log relative to a directory; None if it is not below it."""
    path = PurePosixPath(unquote(urlsplit(uri).path))
    if ".." in path.parts or not path.is_relative_to(root):
        return None
    return path.relative_to(root).as_posix()


def modified_ms(path: Path) -> int | None:
    """Return the modification time of a local file, in the unit of Spark's log; None if it does not exist."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnavailableError(f"{path}: cannot read the modification time: {error}") from error


class LocalSourceFiles:
    """Files of this machine below a directory; paths are relative to it. All methods may raise UnavailableError."""

    def __init__(self, root: Path, archive: Path | None) -> None:
        self.root = os.path.normpath(root)
        """The directory's path, without scheme and host."""
        self._root = Path(self.root)
        self._archive = archive

    def names(self, directory: str) -> set[str]:
        """Return the names of a directory's entries; none if it does not exist."""
        try:
            return {entry.name for entry in os.scandir(self._root / directory)}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise UnavailableError(f"{self._root / directory} cannot be listed: {error}") from error

    def modified_ms(self, path: str) -> int | None:
        """Return the modification time of a file, in the unit of Spark's log; None if it does not exist."""
        return modified_ms(self._root / path)

    def remove(self, path: str) -> bool:
        """Delete the file or move it to the archive; return False if the archive has another file of that name."""
        source = self._root / path
        try:
            if self._archive is None:
                source.unlink(missing_ok=True)
                return True
            target = self._archive / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists():
                return False
            source.rename(target)
        except OSError as error:
            action = "deleted" if self._archive is None else f"moved to {self._archive}"
            raise UnavailableError(f"{source} cannot be {action}: {error}") from error
        return True


class HadoopSourceFiles:
    """Files of any file system that Hadoop supports, with the interface of `LocalSourceFiles`."""

    def __init__(self, spark: SparkSession, root: str, archive: str | None) -> None:
        self._jvm: Any = spark._jvm
        self._fs: Any = self._path(root).getFileSystem(spark._jsc.hadoopConfiguration())
        qualified = self._fs.makeQualified(self._path(root))
        self.root: str = qualified.toUri().getPath()
        self._root: str = qualified.toString()
        self._archive = archive

    def names(self, directory: str) -> set[str]:
        where = self._path(f"{self._root}/{directory}")
        with _unavailable_errors(where):
            statuses = self._fs.listStatus(where) if self._fs.exists(where) else ()
            return {status.getPath().getName() for status in statuses}

    def modified_ms(self, path: str) -> int | None:
        where = self._path(f"{self._root}/{path}")
        with _unavailable_errors(where):
            return int(self._fs.getFileStatus(where).getModificationTime()) if self._fs.exists(where) else None

    def remove(self, path: str) -> bool:
        where = self._path(f"{self._root}/{path}")
        with _unavailable_errors(where):
            if self._archive is None:
                self._fs.delete(where, False)
                return True
            target = self._path(f"{self._archive}/{path}")
            self._fs.mkdirs(target.getParent())
            if self._fs.exists(target):
                return False
            if not self._fs.rename(where, target):
                raise UnavailableError(f"{where.toString()} could not be moved to {target.toString()}")
        return True

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)


SourceFiles = LocalSourceFiles | HadoopSourceFiles


@contextmanager
def _unavailable_errors(where: Any) -> Iterator[None]:
    try:
        yield
    except (Py4JError, PySparkException) as error:
        reason = " ".join(str(error).splitlines()[:2])
        raise UnavailableError(f"{where.toString()}: the file system failed: {reason}") from error
