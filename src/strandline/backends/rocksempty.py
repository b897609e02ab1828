"""An empty RocksDB database into which the logs of another one can be repeated."""

from __future__ import annotations

import shutil
from pathlib import Path

from rocksdict import Checkpoint, Options, Rdict

from strandline.backends.walformat import Families
from strandline.core.errors import CorruptionError


def empty_database(into: Path, families: Families, first_log: int) -> Path:
    """Make an empty database with these column families under their numbers; return its MANIFEST, the only file.

    RocksDB does not repeat logs before the one that a MANIFEST names, and entries of families that it does not have.
    """
    into.mkdir(parents=True)
    scratch, linked = into / "database", into / "linked"
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(scratch), options)
    try:
        by_number = {number: name for name, number in families.names.items()}
        dropped = []
        for number in range(1, families.largest + 1):
            name = by_number.get(number)
            if name is None:
                name = f"#{number}"
                dropped.append(name)
            database.create_column_family(name, Options(raw_mode=True)).close()
        for name in dropped:
            database.drop_column_family(name)
        Checkpoint(database).create_checkpoint(str(linked))
    finally:
        database.close()
    (path,) = linked.glob("MANIFEST-*")
    path = path.rename(into / path.name)
    shutil.rmtree(scratch)
    shutil.rmtree(linked)
    empty = Families.of(path)
    if empty.names != families.names or empty.largest < families.largest or empty.first_log > first_log:
        raise CorruptionError(
            f"{path}: an empty database has the families {empty}, expected {families} and the logs from {first_log} on"
        )
    return path
