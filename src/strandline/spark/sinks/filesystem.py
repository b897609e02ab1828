"""Listing, renaming and deleting files where Spark writes them: directly on this machine, else through Hadoop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

from pyspark.sql import SparkSession

from strandline.core.errors import UnavailableError


class FileSystem(Protocol):
    """A directory tree; all paths are relative to its root."""

    def list(self, path: str) -> list[tuple[str, int]]:
        """Return names and sizes of the files in a directory; nothing if it is not there."""
        ...

    def rename(self, source: str, target: str) -> bool:
        """Move a file in one step; return False if the source is not there."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is something."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file or tree, if it is there."""
        ...

    def mkdirs(self, path: str) -> None:
        """Make a directory and those above."""
        ...

    def local(self, path: str) -> Path | None:
        """Return the path on this machine, if it has one."""
        ...

    def directories(self, path: str) -> Sequence[str]:
        """Return the names of the directories in a directory; nothing if it is not there."""
        ...

    def for_spark(self, path: str) -> str:
        """Return the path as Spark must be given it to mean the same place."""
        ...


def open_filesystem(spark: SparkSession, root: str) -> FileSystem:
    """Return the file system that holds `root`, as Spark would understand it."""
    parsed = urlparse(root)
    default = spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    if parsed.scheme == "file" or (not parsed.scheme and default.startswith("file:")):
        return LocalFiles(Path(unquote(parsed.path) if parsed.scheme else root).absolute())
    return HadoopFiles(spark, root)


class LocalFiles:
    """Files of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list(self, path: str) -> list[tuple[str, int]]:
        try:
            return [(e.name, e.stat().st_size) for e in os.scandir(self._root / path) if e.is_file()]
        except FileNotFoundError:
            return []

    def rename(self, source: str, target: str) -> bool:
        try:
            (self._root / source).rename(self._root / target)
        except FileNotFoundError:
            return False
        return True

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def delete(self, path: str) -> None:
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def mkdirs(self, path: str) -> None:
        try:
            (self._root / path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnavailableError(f"the sink's directory {self._root / path} cannot be made: {error}") from None

    def local(self, path: str) -> Path | None:
        return self._root / path

    def directories(self, path: str) -> Sequence[str]:
        try:
            return [entry.name for entry in os.scandir(self._root / path) if entry.is_dir()]
        except FileNotFoundError:
            return []

    def for_spark(self, path: str) -> str:
        return f"file:{self._root / path}"


class HadoopFiles:
    """Files of any file system that Hadoop knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._jvm: Any = spark._jvm
        self._root = root.rstrip("/")
        conf = spark._jsc.hadoopConfiguration()
        self._fs: Any = self._path("").getFileSystem(conf)

    def list(self, path: str) -> list[tuple[str, int]]:
        if not self.exists(path):
            return []
        return [(s.getPath().getName(), s.getLen()) for s in self._fs.listStatus(self._path(path)) if s.isFile()]

    def rename(self, source: str, target: str) -> bool:
        if not self.exists(source):
            return False
        return bool(self._fs.rename(self._path(source), self._path(target)))

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    def mkdirs(self, path: str) -> None:
        self._fs.mkdirs(self._path(path))

    def local(self, path: str) -> Path | None:
        return None

    def directories(self, path: str) -> Sequence[str]:
        if not self.exists(path):
            return []
        return [s.getPath().getName() for s in self._fs.listStatus(self._path(path)) if s.isDirectory()]

    def for_spark(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{path}" if path else self._root)
