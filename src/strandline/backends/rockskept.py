"""The directory beside a database that has the parts of its log, for another opening of the same state.

After a restore it has links of the snapshot's files, after a kill what the process before has left.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from strandline.backends.logfiles import log_directory
from strandline.backends.rocksfiles import permanent_kind
from strandline.backends.rockslive import LiveRecords
from strandline.core.errors import UnavailableError

_RECORD = "log"


class Kept(msgspec.Struct, frozen=True):
    """The beginning of snapshots, as it is recorded for another process that goes on with the database."""

    base: str
    """The name of the base's directory; nothing if the base is empty."""
    first_log: int
    sequence: int
    """The number of the newest entry in the base, or before the first log."""

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
