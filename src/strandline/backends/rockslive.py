"""Records beside an open database, with which another process of this machine goes on after a kill.

A killed process leaves the database with its log. Only the newest entry's number tells whether the log ends with an
epoch, and with which; and RocksDB's own file names do not tell which files of a snapshot they are.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from strandline.backends.rocksfiles import Names, logs_in
from strandline.backends.walformat import PIECE_BYTES, BatchReader
from strandline.core.errors import UnavailableError

_MARK = struct.Struct("<QQQ?")
"""A version, the number of its newest entry, that of the oldest log that has entries which are in no other file, and
whether more entries may follow, which do not change the state."""
_CHECKSUM = struct.Struct("<I")


class LiveRecords:
    """Records beside a database: its file names, the version that its newest entry completes, and others of its owner.

    They hold after a kill of the process. After a crash of the machine, RocksDB's log may lack its end: then the newest
    entry is not the recorded one.
    """

    def __init__(self, database: Path, sequence: Callable[[], int], oldest_log: Callable[[], int]) -> None:
        """`sequence` returns the number of the newest entry, `oldest_log` that of the oldest log that counts, or 0."""
        self._database = database
        self._oldest_log = oldest_log
        self._directory = database.with_name(f"{database.name}-live")
        self._sequence = sequence
        self._first_log = 0
        self._mark = -1

    def begin(self, names: Names) -> None:
        """Record the names of the files of a database that was just opened: all entries of older logs are in files."""
        self._first_log = max(logs_in(self._database))
        self._directory.mkdir(exist_ok=True)
        self.write("names", msgspec.json.encode(names))

    def names(self) -> Names:
        """Return the recorded names; raise UnavailableError if there are none."""
        return msgspec.json.decode(self.read("names"), type=Names)

    def note(self, version: int, *, cleaning: bool = False) -> None:
        """Record that the database has all entries of a version, and no others, with one write that is not synced.

        With `cleaning`, entries may be written again until the next note.
        """
        if self._mark < 0:
            self._mark = os.open(self._directory / "mark", os.O_WRONLY | os.O_CREAT, 0o600)
        oldest_log = max(self._first_log, self._oldest_log())
        os.pwrite(self._mark, _with_checksum(_MARK.pack(version, self._sequence(), oldest_log, cleaning)), 0)

    def check_logs(self) -> None:
        """Raise UnavailableError if a log is missing since the last note, which RocksDB would not notice."""
        _, _, oldest, _ = _MARK.unpack(self.read("mark"))
        logs = {**logs_in(self._database), **logs_in(self._database / "archive")}
        newest = 0
        for number in sorted(log for log in {*logs, oldest} if log >= oldest):
            first, last = _entries_of(logs[number]) if number in logs else (0, 0)
            if number not in logs or (newest and first and first != newest + 1):
                raise UnavailableError(f"{self._database}: {number:06}.log, or one before it, is gone")
            newest = last or newest

    def check(self, version: int) -> None:
        """Raise UnavailableError unless the open database has exactly the entries up to this version."""
        noted, sequence, _, cleaning = _MARK.unpack(self.read("mark"))
        newest = self._sequence()
        if noted != version or not (sequence == newest or (cleaning and sequence < newest)):
            raise UnavailableError(
                f"{self._directory}: version {noted} ends with entry {sequence}; the database ends with entry "
                f"{newest}, and version {version} is expected"
            )

    def write(self, name: str, data: bytes) -> None:
        """Write a record in place of the one of this name."""
        temporary = self._directory / f"{name}.tmp"
        temporary.write_bytes(_with_checksum(data))
        temporary.rename(self._directory / name)

    def read(self, name: str) -> bytes:
        """Return a record; raise UnavailableError if it is missing or damaged."""
        path = self._directory / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UnavailableError(f"{path}: {error}") from error
        record = data[: -_CHECKSUM.size]
        if _with_checksum(record) != data:
            raise UnavailableError(f"{path}: the record is damaged")
        return record

    def close(self) -> None:
        """Close the mark's file."""
        if self._mark >= 0:
            os.close(self._mark)
            self._mark = -1


def _entries_of(log: Path) -> tuple[int, int]:
    """Return the numbers of the first and the last entry of a log; zeros if it is empty."""
    batches, first, last = BatchReader(0), 0, 0
    with log.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            for number, count in batches.read(data):
                first, last = first or number, number + count - 1
    return first, last


def _with_checksum(data: bytes) -> bytes:
    return data + _CHECKSUM.pack(zlib.crc32(data))
