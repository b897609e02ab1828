"""Snapshots of a RocksDB database as a base and the log of the changes since: nothing is flushed or merged for them.

RocksDB repeats the log when it opens a database that has it. Each snapshot cuts off the part that was appended since
the last one, as a file that never changes. Small parts are merged, so that a snapshot never has many.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

from strandline.api.config import Changelog
from strandline.backends.base import Base, Changes, LocalFile
from strandline.backends.logfiles import LogFiles
from strandline.backends.rocksfiles import ErrorTranslation


class Logging(Protocol):
    """The part of the opened database that a log needs. One thread at a time calls it, the one that writes."""

    def write(self, changes: Changes) -> None:
        """Apply entries."""

    def link(self, into: Path) -> list[LocalFile]:
        """Flush, link the files into a folder, and begin a new log for what comes after them."""
        ...


class RocksDBLog(ABC):
    """The log of an opened database. One thread at a time calls it, the one that writes."""

    def __init__(self, directory: Path, logs: LogFiles, database: Logging) -> None:
        """`directory` is the database's."""
        self._database = database
        self._logs = logs
        self._translating = ErrorTranslation(directory)
        self.base: Base | None = None
        """The base of snapshots, before the first one None."""
        self._following: Base | None = None
        """The newest base, if snapshots do not begin with it yet, and the log since then is there."""
        self._bases = 0
        self.size_bytes = 0
        """The size of the log since the base, as of the last snapshot. Any thread may read it."""

    @property
    @abstractmethod
    def is_long(self) -> bool:
        """Whether a new base is worth its upload: a restore replays the log, and storage keeps it beside the state."""

    @abstractmethod
    def _too_long(self, base: Base) -> float:
        """Return the size of a log that is not worth its disk space while there are no snapshots."""

    @abstractmethod
    def invalidate(self) -> None:
        """Forget what was kept: files came into the database, or left it, without a log."""

    @abstractmethod
    def clean(self) -> bool:
        """Do what bounds the log beside new bases, for a moment; return whether to go on. After each snapshot."""

    @abstractmethod
    def _note(self) -> None:
        """Record what snapshots begin with, before files are deleted that an earlier record needs."""

    @abstractmethod
    def close(self) -> None:
        """Close what it reads."""

    @property
    def first_log(self) -> int | None:
        """The oldest log that a later snapshot may have; None if they begin with another base."""
        return min((base.first_log for base in (self.base, self._following) if base is not None), default=None)

    def append(self, changes: Changes, into: Path) -> list[LocalFile]:
        """Apply the last entries, and write a snapshot into `into`: the base, and the log since. All files are links.

        The first snapshot makes the first base.
        """
        self._database.write(changes)
        with self._translating:
            base = self.base
            if base is None:
                base = self.rebase()
                self.begin_at(base)
            self._logs.cut()
            self._logs.merge()
            self._measure()
            into.mkdir(parents=True)
            files = [*base.files, *(part.file for part in self._logs.parts_since(base.first_log))]
            for file in files:
                os.link(file.path, into / file.name)
        return [LocalFile(file.name, into / file.name, file.size_bytes, shared=True) for file in files]

    def _measure(self) -> None:
        self.size_bytes = self._logs.size_bytes(self.base.first_log) if self.base is not None else 0

    def rebase(self) -> Base:
        """Write a new base. Snapshots begin with it from `begin_at` on."""
        self._bases += 1
        into = self._logs.directory / f"base-{self._bases}"
        files = self._database.link(into)
        self._following = Base(into, files, self._logs.number, self._logs.sequence)
        return self._following

    def begin_at(self, base: Base) -> None:
        """Begin later snapshots with a new base; drop the old one. The log before it goes with the next write."""
        if base is self._following:
            self._begin_at(base)
        else:
            # The log since then is gone: the next snapshot makes a base.
            shutil.rmtree(base.directory, ignore_errors=True)

    def _begin_at(self, base: Base) -> None:
        self.base, self._following = base, None
        self._note()
        for directory in self._logs.directory.glob("base-*"):
            # Also of one that was never used: its links keep files on the disk.
            if directory != base.directory:
                shutil.rmtree(directory, ignore_errors=True)

    def _drop_base(self) -> None:
        """Have the next snapshot make a new base: the log goes."""
        self.base = self._following = None
        self._note()

    def prune(self) -> None:
        """Have the next snapshot make a new base if the log is too long: there were none for a long time."""
        base = self.base or self._following
        if base is not None and self._logs.size_bytes(base.first_log) > self._too_long(base):
            self._drop_base()


class BasedLog(RocksDBLog):
    """A log that a new base bounds."""

    def __init__(self, directory: Path, logs: LogFiles, limits: Changelog, database: Logging) -> None:
        """Forget the log of an earlier opening: the first snapshot makes a base."""
        super().__init__(directory, logs, database)
        logs.forget()
        self._limits = limits

    @property
    def is_long(self) -> bool:
        if self.base is None:
            return False
        parts = len(self._logs.parts_since(self.base.first_log))
        return parts >= self._limits.parts or self.size_bytes > self._limits.longest_log(self.base.size_bytes)

    def _too_long(self, base: Base) -> float:
        # What a new base would upload at most, beside what a log may have.
        return base.size_bytes + self._limits.limit_bytes

    def invalidate(self) -> None:
        """Do nothing: it has no base yet."""

    def clean(self) -> bool:
        """Do nothing: new bases bound it."""
        return False

    def _note(self) -> None:
        """Do nothing: another process begins with a new base."""

    def close(self) -> None:
        """Do nothing."""
