"""The files below a file source's directory, to be taken away: on this machine directly, else through Hadoop."""

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
    """What becomes of a source's files that no checkpoint needs: deleted, or moved into `archive`. Both absolute."""

    path: str
    archive: str | None = None


def open_source_files(spark: SparkSession, cleaning: Cleaning) -> SourceFiles:
    """Return the files of a source, as Spark would understand its path."""
    local = open_filesystem(spark, cleaning.path).local("")
    if local is None:
        return HadoopSourceFiles(spark, cleaning.path, cleaning.archive)
    archive = None if cleaning.archive is None else open_filesystem(spark, cleaning.archive).local("")
    return LocalSourceFiles(local, archive)


def relative_path(root: str, uri: str) -> str | None:
    """Return where a file of Spark's log lies below a directory; None if it is not there."""
    path = PurePosixPath(unquote(urlsplit(uri).path))
    if ".." in path.parts or not path.is_relative_to(root):
        return None
    return path.relative_to(root).as_posix()


def modified_ms(path: Path) -> int | None:
    """Return when a local file was last changed, as Spark's log has it; None if it is not there."""
    try:
        return path.stat().st_mtime_ns // 1_000_000
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnavailableError(f"{path} cannot be looked at: {error}") from error


class LocalSourceFiles:
    """Files of this machine below a directory; paths are relative to it. Any method may raise UnavailableError."""

    def __init__(self, root: Path, archive: Path | None) -> None:
        self.root = os.path.normpath(root)
        """The directory's path, without the file system's name."""
        self._root = Path(self.root)
        self._archive = archive

    def names(self, directory: str) -> set[str]:
        """Return the names of what is in a directory; nothing if it is not there."""
        try:
            return {entry.name for entry in os.scandir(self._root / directory)}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise UnavailableError(f"{self._root / directory} cannot be listed: {error}") from error

    def modified_ms(self, path: str) -> int | None:
        """Return when a file was last changed, as Spark's log has it; None if it is not there."""
        return modified_ms(self._root / path)

    def take_away(self, path: str) -> bool:
        """Delete the file or move it into the archive; return False if the archive has another one in its place."""
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
            what = "deleted" if self._archive is None else f"moved into {self._archive}"
            raise UnavailableError(f"{source} cannot be {what}: {error}") from error
        return True


class HadoopSourceFiles:
    """Files of any file system that Hadoop knows: they promise what those of this machine do."""

    def __init__(self, spark: SparkSession, root: str, archive: str | None) -> None:
        self._jvm: Any = spark._jvm
        self._fs: Any = self._path(root).getFileSystem(spark._jsc.hadoopConfiguration())
        qualified = self._fs.makeQualified(self._path(root))
        self.root: str = qualified.toUri().getPath()
        self._root: str = qualified.toString()
        self._archive = archive

    def names(self, directory: str) -> set[str]:
        where = self._path(f"{self._root}/{directory}")
        with _asking(where):
            found = self._fs.listStatus(where) if self._fs.exists(where) else ()
            return {status.getPath().getName() for status in found}

    def modified_ms(self, path: str) -> int | None:
        where = self._path(f"{self._root}/{path}")
        with _asking(where):
            return int(self._fs.getFileStatus(where).getModificationTime()) if self._fs.exists(where) else None

    def take_away(self, path: str) -> bool:
        where = self._path(f"{self._root}/{path}")
        with _asking(where):
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
def _asking(where: Any) -> Iterator[None]:
    try:
        yield
    except (Py4JError, PySparkException) as error:
        said = " ".join(str(error).splitlines()[:2])
        raise UnavailableError(f"{where.toString()}: the file system did not do it: {said}") from error
