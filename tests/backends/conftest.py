"""The backends under test, and a restore as the checkpoint layer does it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.api.config import Changelog, Continuous
from strandline.backends.base import Backend, Changes, LocalFile
from strandline.backends.heap import HeapBackend
from strandline.backends.options import MIB, Grouping, MemoryBudget
from strandline.backends.reading import FileKind
from strandline.backends.rocksdb import RocksDBBackend

STATES = ("a", "b")
BUDGET = MemoryBudget(block_cache_bytes=4 * MIB, write_buffer_bytes=4 * MIB)
GROUPINGS = {"a": Grouping(2, exact=True), "b": Grouping(1, exact=False)}
KINDS = ("memory", "filesystem", "rocksdb", "rocksdb-log", "rocksdb-continuous")


class LoggingBackend(RocksDBBackend):
    """A backend whose snapshots have a log, and which cleans it."""

    def __init__(self, directory: Path, states: tuple[str, ...], limits: Changelog | Continuous) -> None:
        super().__init__(directory, states, memory=BUDGET, groupings=GROUPINGS, changelog=limits)

    def persist(self, changes: Changes, into: Path) -> list[LocalFile]:
        files = self.changelog.append(changes, into)
        while self.changelog.clean():
            pass
        return files


def open_backend(kind: str, directory: Path, states: tuple[str, ...] = STATES) -> Backend:
    if kind == "rocksdb":
        return RocksDBBackend(directory, states, memory=BUDGET, groupings=GROUPINGS)
    if kind == "rocksdb-log":
        return LoggingBackend(directory, states, Changelog())
    if kind == "rocksdb-continuous":
        return LoggingBackend(directory, states, Continuous(log=1.5))
    inline = kind == "memory"
    return HeapBackend(directory, states, inline=inline, limit_bytes=64 * MIB if inline else None)


def restore_files(files: list[LocalFile], directory: Path) -> Path:
    """Fill a directory with the files of a snapshot: shared ones linked, the rest copied."""
    directory.mkdir(parents=True)
    for file in files:
        (os.link if file.shared else shutil.copyfile)(file.path, directory / file.name)
    return directory


class Lab:
    """Opens backends of one kind below one directory and closes them at the end."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind = kind
        self.root = root
        self._opened: list[Backend] = []
        self._count = 0

    @property
    def file_kind(self) -> FileKind:
        return "rocksdb" if self.kind.startswith("rocksdb") else "heap"

    def place(self) -> Path:
        self._count += 1
        return self.root / f"{self._count}"

    def open(self, directory: Path | None = None, states: tuple[str, ...] = STATES) -> Backend:
        backend = open_backend(self.kind, directory or self.place(), states)
        self._opened.append(backend)
        return backend

    def restore(self, files: list[LocalFile], states: tuple[str, ...] = STATES) -> Backend:
        return self.open(restore_files(files, self.place()), states)

    def close(self) -> None:
        for backend in self._opened:
            backend.close()


@pytest.fixture(params=KINDS)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def rocks(tmp_path: Path) -> Iterator[Lab]:
    made = Lab("rocksdb", tmp_path)
    yield made
    made.close()
