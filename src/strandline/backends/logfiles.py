"""The logs of a database, which the backend writes itself, in the format of RocksDB's write-ahead logs.

RocksDB repeats them as it opens the database with them. With its own log, it would take in each change at once; so it
gets the changes later, and only the last ones of a key. A log consists of parts, files that never change; only the
newest part of the newest log grows, and is cut off for each snapshot.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from strandline.backends.base import Entry, LocalFile
from strandline.backends.options import MIB
from strandline.backends.rocksfiles import join_parts, log_part_name, part_bounds
from strandline.backends.walformat import PIECE_BYTES, BatchReader, batch_of, checked, framed
from strandline.core.errors import UnavailableError

_MERGED_PARTS = 8
_MERGED_BYTES, _MERGED_SHARE = 4 * MIB, 1 / 256
"""Parts that together are larger than this, and than this share of all logs, are not merged: they would be uploaded
again for little."""


def log_directory(database: Path) -> Path:
    """Return the directory of the parts and bases of a database's log."""
    return database.with_name(f"{database.name}-log")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a log, which never changes."""

    file: LocalFile
    merges: int
    """How often its bytes were merged."""


@dataclass
class Log:
    """One log and its parts. Only the newest log grows."""

    number: int
    tag: str
    """Of the opening that began it."""
    parts: list[Part]

    @property
    def size_bytes(self) -> int:
        """The size of its parts."""
        return part_bounds(self.parts[-1].file.name)[3] if self.parts else 0

    def mergeable(self, most_bytes: float) -> list[Part]:
        """Return the newest parts, if they are so many of one kind that they should be one."""
        newest = self.parts[-_MERGED_PARTS:]
        is_even = len(newest) == _MERGED_PARTS and newest[0].merges == newest[-1].merges
        return newest if is_even and sum(part.file.size_bytes for part in newest) <= most_bytes else []


class LogFiles:
    """The logs of an opened database. One thread at a time writes them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tag = ""
        """A name of the opening."""
        self.logs: dict[int, Log] = {}
        """Those with parts, by number, in order."""
        self.number = 0
        """That of the log that grows; 0 before the first."""
        self.sequence = 0
        """The number of the newest entry."""
        self.unflushed = 0, 0
        """The first log that has entries which RocksDB's files may lack, and the newest entry before it."""
        self._start = 0
        """Where the part begins that grows."""
        self.end = 0
        """The size of the log that grows, with this part."""
        self._file: BinaryIO | None = None

    def begin(self, number: int) -> None:
        """Begin a new log."""
        self.cut()
        self.number, self._start, self.end = number, 0, 0

    def write(self, family: int, entries: Sequence[Entry]) -> None:
        """Append entries of a column family, as one batch."""
        if self._file is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._file = self._growing.open("ab", buffering=0)
        data = b"".join(framed(batch_of(self.sequence + 1, family, entries), self.end))
        if self._file.write(data) != len(data):
            raise UnavailableError(f"{self._growing}: only a part of the last entries was written: is the disk full?")
        self.end += len(data)
        self.sequence += len(entries)

    def cut(self) -> None:
        """End the part that grows, after a check of what the disk has."""
        if self._file is None:
            return
        self._file.close()
        self._file = None
        growing, size_bytes = self._growing, self.end - self._start
        if growing.stat().st_size != size_bytes:
            raise UnavailableError(f"{growing}: another program changed the log: {size_bytes} bytes were written")
        with growing.open("rb") as written:
            for _ in checked(_pieces(written, self._start), self._start, str(growing)):
                pass
        name = log_part_name(self.number, self.tag, self._start, self.end)
        path = growing.rename(growing.with_name(name))
        log = self.logs.setdefault(self.number, Log(self.number, self.tag, []))
        log.parts.append(Part(LocalFile(name, path, size_bytes, shared=True), 0))
        self._start = self.end

    def merge(self) -> None:
        """Merge small parts of the newest log, so that a snapshot never has many."""
        log = self.logs.get(self.number)
        while log is not None and (small := log.mergeable(max(_MERGED_BYTES, self.size_bytes() * _MERGED_SHARE))):
            start, end = part_bounds(small[0].file.name)[2], log.size_bytes
            path = self.directory / log_part_name(log.number, log.tag, start, end)
            with path.open("wb") as target:
                target.writelines(checked(pieces_of(small), start, f"{self.directory}: {log.number:06}.log"))
            merged = Part(LocalFile(path.name, path, end - start, shared=True), small[0].merges + 1)
            log.parts[-len(small) :] = [merged]
            for part in small:
                part.file.path.unlink()

    def parts_since(self, first_log: int) -> list[Part]:
        """Return the parts of the logs from this one on."""
        return [part for number, log in self.logs.items() if number >= first_log for part in log.parts]

    def size_bytes(self, first_log: int = 0) -> int:
        """Return the size of the logs from this one on, with the part that grows."""
        sizes = (log.size_bytes for number, log in self.logs.items() if number >= first_log)
        return sum(sizes) + self.end - self._start

    def drop_before(self, number: int) -> None:
        """Delete older logs than this one."""
        for old in [old for old in self.logs if old < number]:
            for part in self.logs.pop(old).parts:
                part.file.path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete all files in the directory. A new log has to begin before the next write."""
        self.close()
        self.logs.clear()
        self.unflushed = 0, 0
        shutil.rmtree(self.directory, ignore_errors=True)

    def close(self) -> None:
        """Close the file that grows."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _growing(self) -> Path:
        return self.directory / f"{self.number:06}-{self.tag}-{self._start:012}.growing"


def left_logs(directory: Path) -> dict[int, Log]:
    """Return the logs that another process has left, as far as they are whole; end the part that grew.

    A kill leaves parts that are incomplete, and those of a log that was dropped.
    """
    for path in directory.glob("*.growing"):
        log, tag, begin = path.stem.split("-")
        path.rename(path.with_name(log_part_name(int(log), tag, int(begin), int(begin) + path.stat().st_size)))
    bounds: dict[int, dict[int, tuple[int, str, Path]]] = {}
    for path in sorted(directory.glob("*.log")):
        number, tag, start, end = part_bounds(path.name)
        known_end, *_ = bounds.setdefault(number, {}).get(start, (start,))
        if path.stat().st_size == end - start and end > known_end:
            # Of two that begin there, one is merged of the other one and those behind it.
            bounds[number][start] = end, tag, path
    logs: dict[int, Log] = {}
    for number, parts in sorted(bounds.items()):
        at = 0
        while (part := parts.get(at)) is not None:
            at, tag, path = part
            logs.setdefault(number, Log(number, tag, [])).parts.append(Part(file_at(path), 0))
    return logs


def drop_others(directory: Path, logs: dict[int, Log]) -> None:
    """Delete the parts in a directory that are not of these logs."""
    known = {part.file.path for log in logs.values() for part in log.parts}
    for path in directory.glob("*.log"):
        if path not in known:
            path.unlink()


def entries_of(logs: Iterable[Log]) -> Iterator[tuple[int, int]]:
    """Yield the first number and the count of the entries of each batch."""
    for log in logs:
        reader = BatchReader(0)
        for piece in pieces_of(log.parts):
            yield from reader.read(piece)


def newest_of(logs: Iterable[Log], before: int) -> int | None:
    """Return the number of the newest entry in logs that go on after entry `before`; None if some are missing."""
    newest = before
    for first, count in entries_of(logs):
        if first > newest + 1:
            return None
        newest = max(newest, first + count - 1)
    return newest


def put_into(database: Path, logs: Iterable[Log]) -> None:
    """Put logs into a database that is not open."""
    for log in logs:
        join_parts(database / f"{log.number:06}.log", [part.file.path for part in log.parts])


def pieces_of(parts: Iterable[Part], first: int = 0) -> Iterator[bytes]:
    """Yield the bytes of parts that follow each other, from byte `first` of the log on."""
    for part in parts:
        start = part_bounds(part.file.name)[2]
        at = max(start, first)
        with part.file.path.open("rb") as file:
            file.seek(at - start)
            yield from _pieces(file, at)


def _pieces(file: BinaryIO, at: int) -> Iterator[bytes]:
    """Yield the rest of a file, whose bytes are those of a log from byte `at` on."""
    # Pieces begin with a block, or with a part.
    while data := file.read(PIECE_BYTES - at % PIECE_BYTES):
        at += len(data)
        yield data


def file_at(path: Path) -> LocalFile:
    """Return a file of all snapshots that have it."""
    return LocalFile(path.name, path, path.stat().st_size, shared=True)
