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

from strandline.backends.rocksfiles import Names
from strandline.core.errors import UnavailableError

_MARK = struct.Struct("<QQ")
_CHECKSUM = struct.Struct("<I")


class LiveRecords:
    """Records beside a database: its file names, the version that its newest entry completes, and others of its owner.

    They hold after a kill of the process. After a crash of the machine, RocksDB's log may lack its end: then the newest
    entry is not the recorded one.
    """

    def __init__(self, database: Path, sequence: Callable[[], int]) -> None:
        """`sequence` returns the number of the database's newest entry."""
        self._directory = database.with_name(f"{database.name}-live")
        self._sequence = sequence
        self._mark = -1

    def keep_names(self, names: Names) -> None:
        """Record the names of the files of a database that was opened."""
        self._directory.mkdir(exist_ok=True)
        self.write("names", msgspec.json.encode(names))

    def names(self) -> Names:
        """Return the recorded names; raise UnavailableError if there are none."""
        return msgspec.json.decode(self.read("names"), type=Names)

    def note(self, version: int) -> None:
        """Record that the database has all entries of a version, and no others, with one write that is not synced."""
        if self._mark < 0:
            self._mark = os.open(self._directory / "mark", os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(self._mark, _with_checksum(_MARK.pack(version, self._sequence())), 0)

    def check(self, version: int) -> None:
        """Raise UnavailableError unless the database has exactly the entries up to this version."""
        noted, sequence = _MARK.unpack(self.read("mark"))
        if (noted, sequence) != (version, self._sequence()):
            raise UnavailableError(
                f"{self._directory}: version {noted} ends with entry {sequence}; the database ends with entry "
                f"{self._sequence()}, and version {version} is expected"
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


def _with_checksum(data: bytes) -> bytes:
    return data + _CHECKSUM.pack(zlib.crc32(data))
