"""Records beside an open database, with which another process of this machine goes on after a kill.

A killed process leaves the database's files, and the log of what they may lack. RocksDB's own file names do not tell
which files of a snapshot they are.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import msgspec

from strandline.backends.logfiles import Log, LogFiles, left_logs, newest_of
from strandline.backends.rocksfiles import Names
from strandline.core.errors import UnavailableError

_MARK = struct.Struct("<QQQQ?")
_CHECKSUM = struct.Struct("<I")


class Mark(NamedTuple):
    """The logs with which a database has a version."""

    version: int
    sequence: int
    """The number of its newest entry."""
    first_log: int
    """The oldest log that has entries which are in no other file."""
    before: int
    """The number of the newest entry before that log."""
    is_cleaning: bool
    """Whether more entries may follow, which do not change the state."""


class LiveRecords:
    """Records beside a database: its file names, the version that its newest entry completes, and others of its owner.

    They hold after a kill of the process. After a crash of the machine, the log may lack its end: then the newest
    entry is not the recorded one.
    """

    def __init__(self, database: Path, logs: LogFiles) -> None:
        """`logs` are the database's."""
        self._database = database
        self._directory = database.with_name(f"{database.name}-live")
        self._logs = logs
        self._mark = -1
        self.first_log = 0
        """The oldest log that the last note needs."""

    def begin(self, names: Names) -> None:
        """Record the names of the files of a database that was just opened."""
        self._directory.mkdir(exist_ok=True)
        self.write("names", msgspec.json.encode(names))

    def names(self) -> Names:
        """Return the recorded names; raise UnavailableError if there are none."""
        return msgspec.json.decode(self.read("names"), type=Names)

    def note(self, version: int, *, cleaning: bool = False) -> None:
        """Record that the log has all entries of a version, and no others, with one write that is not synced.

        With `cleaning`, entries may be written again until the next note.
        """
        if self._mark < 0:
            self._mark = os.open(self._directory / "mark", os.O_WRONLY | os.O_CREAT, 0o600)
        first_log, before = self._logs.unflushed
        os.pwrite(self._mark, _with_checksum(_MARK.pack(version, self._logs.sequence, first_log, before, cleaning)), 0)
        self.first_log = first_log

    def left(self, version: int) -> tuple[dict[int, Log], int]:
        """Return all logs that a process has left which was killed, at this version, and the oldest that is needed.

        Raises UnavailableError if it was at another one, or entries are missing.
        """
        mark = Mark(*_MARK.unpack(self.read("mark")))
        logs = left_logs(self._logs.directory)
        newest = newest_of((log for number, log in logs.items() if number >= mark.first_log), mark.before)
        if newest is None:
            raise UnavailableError(f"{self._logs.directory}: a part of the log is gone")
        if mark.version != version or not (mark.sequence == newest or (mark.is_cleaning and mark.sequence < newest)):
            raise UnavailableError(
                f"{self._directory}: version {mark.version} ends with entry {mark.sequence}; the log ends with entry "
                f"{newest}, and version {version} is expected"
            )
        self._logs.sequence = newest
        return logs, mark.first_log

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


def _with_checksum(data: bytes) -> bytes:
    return data + _CHECKSUM.pack(zlib.crc32(data))
