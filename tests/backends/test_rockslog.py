"""The log of a backend with a changelog: what is missing in it is detected, and logs do not fill the disk."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from strandline.api.config import Changelog
from strandline.backends.base import LocalFile
from strandline.backends.rocksdb import RocksDBBackend
from strandline.core.errors import CorruptionError, UnavailableError

from .conftest import BUDGET


class Logged:
    """A backend with a log, and small write buffers."""

    def __init__(self, root: Path, limits: Changelog) -> None:
        self.root = root
        self.snapshots = 0
        self.backend = RocksDBBackend(root / "db", ["a", "b"], memory=BUDGET, changelog=limits)

    def write(self, count: int, state: str = "a", size: int = 100_000) -> None:
        self.backend.write({state: [(b"\0\1%06d" % n, bytes(size)) for n in range(count)]})

    def append(self) -> list[LocalFile]:
        self.snapshots += 1
        return self.backend.changelog.append({}, self.root / str(self.snapshots))

    def growing(self) -> Path:
        return max((self.root / "db-log").glob("*.growing"))


@pytest.mark.parametrize("fault", ["gone", "cut", "tail cut", "zeros", "flipped"])
def test_entries_that_the_disk_has_lost_are_noticed_before_a_snapshot(tmp_path: Path, fault: str) -> None:
    logged = Logged(tmp_path, Changelog())
    logged.append()
    for _ in range(4):
        logged.write(40)
    damaged = logged.growing()
    size_bytes = damaged.stat().st_size
    if fault == "gone":
        damaged.unlink()
    elif fault == "flipped":
        flip(damaged, size_bytes // 2)
    else:
        os.truncate(damaged, size_bytes - 10 if fault == "tail cut" else size_bytes // 2)
    if fault == "zeros":
        os.truncate(damaged, size_bytes)
    expected = CorruptionError if fault in ("zeros", "flipped") else UnavailableError
    with pytest.raises(expected, match=r"log is damaged at byte|another program changed the log|No such file"):
        logged.append()
    logged.backend.close()


def test_a_snapshot_never_has_a_part_of_the_entries_that_a_full_disk_refused(tmp_path: Path) -> None:
    """Also if there is space again."""
    logged = Logged(tmp_path, Changelog())
    logged.append()
    logged.write(1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, limits[1]))
    try:
        for match in ("only a part of the last entries was written", "File too large"):
            with pytest.raises(UnavailableError, match=match):
                logged.write(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    logged.write(1)
    with pytest.raises(UnavailableError, match="another program changed the log"):
        logged.append()
    logged.backend.close()


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_part_that_is_damaged_is_not_merged(tmp_path: Path) -> None:
    """The merged one would have a checksum of its own, and be uploaded as sound."""
    logged = Logged(tmp_path, Changelog())
    logged.append()
    for _ in range(7):
        logged.write(1, size=1000)
        logged.append()
    part = sorted((tmp_path / "db-log").glob("*.log"))[3]
    flip(part, 500)
    logged.write(1, size=1000)
    with pytest.raises(CorruptionError, match=r"000\d\d\d\.log: RocksDB's log is damaged at byte \d+"):
        logged.append()
    logged.backend.close()


@pytest.mark.parametrize("bases", [0, 1, 2])
def test_logs_do_not_fill_the_disk_while_there_is_no_checkpoint(tmp_path: Path, bases: int) -> None:
    """The next snapshot makes a new base, which is smaller than the log would be, and uses none that is older."""
    logged = Logged(tmp_path, Changelog(limit="1MB"))
    changelog = logged.backend.changelog
    if bases:
        logged.append()
    following = changelog.rebase() if bases > 1 else None
    for _ in range(30):
        logged.write(20)
        logged.backend._families["a"].flush(True)
    size_bytes = sum(path.stat().st_size for path in tmp_path.glob("db-log/*") if path.is_file())
    assert size_bytes < 8_000_000
    if following is not None:
        changelog.begin_at(following)
    files = logged.append()
    assert len(list((tmp_path / "db-log").glob("base-*"))) == 1
    assert sum(file.size_bytes for file in files if file.name.endswith(".log")) < 3_000_000
    directory = tmp_path / "restored"
    directory.mkdir()
    for file in files:
        os.link(file.path, directory / file.name)
    restored = RocksDBBackend(directory, ["a", "b"], memory=BUDGET)
    assert len(list(restored.scan("a"))) == 20
    restored.close()
    logged.backend.close()
