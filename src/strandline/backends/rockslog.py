"""Snapshots of a RocksDB database as a base and the log of the changes since: nothing is flushed or merged for them.

The log is RocksDB's write-ahead log, which RocksDB replays when it opens a database. Each snapshot cuts off the part
that was appended since the last one, as a file that never changes. Small parts are merged, so that a snapshot never has
many.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from strandline.api.config import Changelog
from strandline.backends.base import Base, Changes, LocalFile
from strandline.backends.options import MIB
from strandline.backends.rocksfiles import LOG_NAME, ErrorTranslation, SstFiles, log_part_name, logs_in, part_bounds
from strandline.backends.walformat import LOST_HINT, PIECE_BYTES, BatchReader, checked
from strandline.core.errors import CorruptionError, UnavailableError

_MERGED_PARTS = 8
_MERGED_BYTES, _MERGED_SHARE = 4 * MIB, 1 / 256
"""Parts that together are larger than this, and than this share of all logs, are not merged: they would be uploaded
again for little."""


def log_directory(database: Path) -> Path:
    """Return the directory of the parts and bases of a database's log."""
    return database.with_name(f"{database.name}-log")


class Logging(Protocol):
    """The part of the opened database that a log needs. One thread at a time calls it, the one that writes."""

    def write(self, changes: Changes) -> None:
        """Apply entries."""

    def link(self, into: Path) -> list[LocalFile]:
        """Flush, and link RocksDB's own checkpoint, with its logs, into a folder."""
        ...

    def newest_entry(self) -> int:
        """Return the number of the newest entry."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a log, which never changes."""

    file: LocalFile
    merges: int
    """How often its bytes were merged."""


@dataclass
class Log:
    """One log of RocksDB and its parts. Only the newest log grows."""

    number: int
    tag: str
    """Of the opening that began it."""
    parts: list[Part]
    size_bytes: int = 0

    def mergeable(self, most_bytes: float) -> list[Part]:
        """Return the newest parts, if they are so many of one kind that they should be one."""
        newest = self.parts[-_MERGED_PARTS:]
        is_even = len(newest) == _MERGED_PARTS and newest[0].merges == newest[-1].merges
        return newest if is_even and sum(part.file.size_bytes for part in newest) <= most_bytes else []


def pieces_of(parts: Iterable[Part], first: int = 0) -> Iterator[bytes]:
    """Yield the bytes of parts that follow each other, from byte `first` of the log on."""
    for part in parts:
        start = part_bounds(part.file.name)[2]
        at = max(start, first)
        with part.file.path.open("rb") as file:
            file.seek(at - start)
            # Pieces begin with a block, or with a part.
            while data := file.read(PIECE_BYTES - at % PIECE_BYTES):
                at += len(data)
                yield data


class RocksDBLog(ABC):
    """The log of an opened database. One thread at a time calls it, the one that writes."""

    def __init__(self, directory: Path, files: SstFiles, database: Logging) -> None:
        """`directory` is the database's."""
        self._database = database
        self._live = directory
        self._archive = directory / "archive"
        self._directory = log_directory(directory)
        self._files = files
        self._copied = 0
        """The number of the newest entry that the base or a part has."""
        self._pruned = 0
        """The number of the newest entry when logs were deleted that no snapshot has: no older base can be used."""
        self._translating = ErrorTranslation(directory)
        self.base: Base | None = None
        """The base of snapshots, before the first one None."""
        self._logs: dict[int, Log] = {}
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
    def _usable_base(self) -> Base | None:
        """The base, unless logs since then are gone."""
        return None if self.base is None or self.base.sequence < self._pruned else self.base

    def append(self, changes: Changes, into: Path) -> list[LocalFile]:
        """Apply the last entries, and write a snapshot into `into`: the base, and the log since. All files are links.

        The first snapshot makes the first base.
        """
        self._database.write(changes)
        with self._translating:
            base = self._usable_base
            if base is None:
                base = self.rebase()
                self.begin_at(base)
            self._cut(base.first_log)
            self._measure()
            into.mkdir(parents=True)
            files = [*base.files, *(part.file for log in self._logs.values() for part in log.parts)]
            for file in files:
                os.link(file.path, into / file.name)
        return [LocalFile(file.name, into / file.name, file.size_bytes, shared=True) for file in files]

    def _measure(self) -> None:
        self.size_bytes = sum(log.size_bytes for log in self._logs.values())

    def rebase(self) -> Base:
        """Flush, and write a new base. Snapshots begin with it from `begin_at` on."""
        self._bases += 1
        into = self._directory / f"base-{self._bases}"
        sequence = self._database.newest_entry()
        files = [file for file in self._database.link(into) if not LOG_NAME.fullmatch(file.name)]
        logs = logs_in(into)
        if not logs:
            raise UnavailableError(f"{into}: RocksDB has linked no log")
        for path in logs.values():
            path.unlink()
        return Base(into, files, min(logs), sequence)

    def begin_at(self, base: Base) -> None:
        """Begin later snapshots with a new base; drop the old one and the log before the new one."""
        if base.sequence < self._pruned:
            # Logs since then are gone: the next snapshot makes a base.
            shutil.rmtree(base.directory, ignore_errors=True)
            return
        self.base = base
        self._copied = max(self._copied, base.sequence)
        self._note()
        for directory in self._directory.glob("base-*"):
            # Also of one that was never used: its links keep files on the disk.
            if directory != base.directory:
                shutil.rmtree(directory, ignore_errors=True)
        for number in [number for number in self._logs if number < base.first_log]:
            for part in self._logs.pop(number).parts:
                part.file.path.unlink(missing_ok=True)

    def prune(self) -> None:
        """Bound the disk space of logs without snapshots; the next one makes a new base. After each write."""
        live, archived = logs_in(self._live), logs_in(self._archive)
        base = self._usable_base
        if base is not None:
            sizes = {number: log.size_bytes for number, log in self._logs.items()}
            for number, path in [*live.items(), *archived.items()]:
                # RocksDB may move it meanwhile: the next call counts it.
                with suppress(FileNotFoundError):
                    sizes[number] = max(sizes.get(number, 0), path.stat().st_size)
            size_bytes = sum(size for number, size in sizes.items() if number >= base.first_log)
            if size_bytes <= self._too_long(base):
                return
        self._pruned = self._database.newest_entry()
        if archived:
            self._note()
        for path in archived.values():
            path.unlink(missing_ok=True)

    def _cut(self, first_log: int) -> None:
        """Copy what was appended to the logs; delete the archived ones that are copied or not needed."""
        # In this order: RocksDB moves logs from the first directory to the second one.
        live, archived = logs_in(self._live), logs_in(self._archive)
        for number in sorted({*live, *archived}):
            if number >= first_log:
                self._copy(self._logs.setdefault(number, Log(number, self._files.tag, [])))
        if self._copied != (newest := self._database.newest_entry()):
            raise CorruptionError(
                f"{self._live}: RocksDB's logs end with entry {self._copied}, and its newest one is {newest}",
                hint=LOST_HINT,
            )
        for path in archived.values():
            path.unlink(missing_ok=True)

    def _copy(self, log: Log) -> None:
        try:
            source = (self._live / f"{log.number:06}.log").open("rb")
        except FileNotFoundError:
            source = (self._archive / f"{log.number:06}.log").open("rb")
        with source:
            size_bytes = os.fstat(source.fileno()).st_size - log.size_bytes
            if size_bytes <= 0:
                return
            source.seek(log.size_bytes)
            self._add(log, size_bytes, self._checked(log, source.read, size_bytes), merges=0)
        log.size_bytes += size_bytes
        while small := log.mergeable(max(_MERGED_BYTES, self.size_bytes * _MERGED_SHARE)):
            del log.parts[-len(small) :]
            start = part_bounds(small[0].file.name)[2]
            pieces = checked(pieces_of(small), start, f"{self._directory}: {log.number:06}.log")
            self._add(log, sum(part.file.size_bytes for part in small), pieces, merges=small[0].merges + 1)
            for part in small:
                part.file.path.unlink()

    def _checked(self, log: Log, read: Callable[[int], bytes], size_bytes: int) -> Iterator[bytes]:
        """Yield the next bytes of a log; raise CorruptionError if an entry is missing: a log before it is gone."""
        batches, at = BatchReader(log.size_bytes), log.size_bytes
        end = at + size_bytes
        while at < end:
            data = read(min(end - at, PIECE_BYTES - at % PIECE_BYTES))
            if not data:
                raise UnavailableError(f"{self._live}: {log.number:06}.log is shorter than a moment before")
            at += len(data)
            for first, count in batches.read(data):
                if first > self._copied + 1:
                    raise CorruptionError(
                        f"{self._live}: RocksDB's logs lack the entries {self._copied + 1} to {first - 1}: one "
                        f"before {log.number:06}.log is gone or damaged",
                        hint=LOST_HINT,
                    )
                self._copied = max(self._copied, first + count - 1)
            yield data

    def _add(self, log: Log, size_bytes: int, pieces: Iterable[bytes], merges: int) -> None:
        start = sum(part.file.size_bytes for part in log.parts)
        name = log_part_name(log.number, log.tag, start, start + size_bytes)
        path = self._directory / name
        with path.open("wb") as target:
            target.writelines(pieces)
        log.parts.append(Part(LocalFile(name, path, size_bytes, shared=True), merges))


class BasedLog(RocksDBLog):
    """A log that a new base bounds."""

    def __init__(self, directory: Path, files: SstFiles, limits: Changelog, database: Logging) -> None:
        """Forget the log of an earlier opening: the first snapshot makes a base."""
        super().__init__(directory, files, database)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._limits = limits

    @property
    def is_long(self) -> bool:
        if self.base is None:
            return False
        parts = sum(len(log.parts) for log in self._logs.values())
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
