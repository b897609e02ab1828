"""The directory beside a database that has the parts of its log, for another opening of the same state.

After a restore it has links of the snapshot's files, after a kill what the process before has left.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from strandline.backends.base import Base, LocalFile
from strandline.backends.rocksfiles import part_bounds, permanent_kind
from strandline.backends.rockslive import LiveRecords
from strandline.backends.rockslog import Log, Part, log_directory, pieces_of
from strandline.backends.walformat import BatchReader
from strandline.core.errors import UnavailableError

_RECORD = "log"


class Kept(msgspec.Struct, frozen=True):
    """The beginning of snapshots, as it is recorded for another process that goes on with the database."""

    base: str
    """The name of the base's directory; nothing if the base is empty."""
    first_log: int
    sequence: int
    """The number of the newest entry in the base, or before the first log."""
    copied: int
    """That of an entry that the parts have, too."""

    @staticmethod
    def of(records: LiveRecords) -> Kept | None:
        """Return the record; None if there is none, or snapshots have no base yet."""
        try:
            return msgspec.json.decode(records.read(_RECORD), type=Kept | None)
        except UnavailableError:
            return None


def record(records: LiveRecords, kept: Kept | None) -> None:
    """Record what is kept, before files are deleted that an earlier record needs."""
    records.write(_RECORD, msgspec.json.encode(kept))


def keep_restored(database: Path) -> bool:
    """Keep links of the files of a restored snapshot, before RocksDB changes them, in an empty log directory.

    Return whether a log can go on with them; with no files at all, it can.
    """
    folder = log_directory(database)
    shutil.rmtree(folder, ignore_errors=True)
    paths = list(database.iterdir())
    kinds = {path: permanent_kind(path.name) for path in paths}
    if paths and "manifest" not in kinds.values():
        return False
    base = folder / "base-0"
    base.mkdir(parents=True)
    for path, kind in kinds.items():
        if kind is not None:
            os.link(path, (folder if kind == "part" else base) / path.name)
    return True


def stored_logs(folder: Path, first_log: int = 0) -> dict[int, Log]:
    """Return the logs from `first_log` on with the whole parts in the directory; delete all others.

    A kill leaves parts that are incomplete, and those of a log that was dropped.
    """
    bounds: dict[int, dict[int, tuple[int, str, Path]]] = {}
    for path in sorted(folder.glob("*.log")):
        number, tag, start, end = part_bounds(path.name)
        known_end, *_ = bounds.setdefault(number, {}).get(start, (start,))
        if number >= first_log and path.stat().st_size == end - start and end > known_end:
            # Of two that begin there, one is merged of the other one and those behind it.
            bounds[number][start] = end, tag, path
    logs: dict[int, Log] = {}
    whole: set[Path] = set()
    for number, parts in sorted(bounds.items()):
        at = 0
        while (part := parts.get(at)) is not None:
            end, tag, path = part
            logs.setdefault(number, Log(number, tag, [])).parts.append(Part(file_at(path), 0))
            whole.add(path)
            at = end
        if number in logs:
            logs[number].size_bytes = at
    for path in folder.glob("*.log"):
        if path not in whole:
            path.unlink()
    return logs


def newest_entry(base: Base, logs: Iterable[Log]) -> int | None:
    """Return the number of the newest entry in the parts that follow a base; None if some between are missing."""
    newest = base.sequence
    for log in logs:
        for first, count in entries_of(log):
            if first > newest + 1:
                return None
            newest = max(newest, first + count - 1)
    return newest


def entries_of(log: Log) -> Iterator[tuple[int, int]]:
    """Yield the first number and the count of the entries of each batch."""
    reader = BatchReader(0)
    for piece in pieces_of(log.parts):
        yield from reader.read(piece)


def file_at(path: Path) -> LocalFile:
    """Return a file of all snapshots that have it."""
    return LocalFile(path.name, path, path.stat().st_size, shared=True)
