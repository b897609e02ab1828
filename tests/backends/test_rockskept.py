"""Logs with all state that go on after a kill: at each moment, nothing of the state is missing from later snapshots."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strandline.api import config
from strandline.api.config import Continuous
from strandline.backends import rockscontinuous, rocksdb, rockslog
from strandline.backends.rocksdb import RocksDBBackend
from strandline.core.errors import UnavailableError

from .conftest import BUDGET, restore_files
from .test_rockslive import killed

KEYS = 300
LIMITS = Continuous(log=1.5)


def opened(root: Path, directory: str = "db", *, resumed: int | None = None, is_live: bool = True) -> RocksDBBackend:
    config._LEAST_CONTINUOUS_BYTES, rockscontinuous._LEAST_LOG_BYTES = 100_000, 50_000
    return RocksDBBackend(
        root / directory, ["a", "b"], memory=BUDGET, changelog=LIMITS, is_live=is_live, resumed=resumed
    )


def value(version: int) -> bytes:
    return b"%03d" % version * 300


def write(backend: RocksDBBackend, version: int) -> None:
    """Change all keys of one state, and one of the other."""
    backend.write({"a": [(b"\0\1%06d" % n, value(version)) for n in range(KEYS)], "b": [(b"\0\1%d" % version, b"")]})
    backend.live.note(version)


def take(backend: RocksDBBackend, into: Path, version: int) -> list[Any]:
    files = backend.changelog.append({}, into)
    backend.live.note(version, cleaning=True)
    while backend.changelog.clean():
        pass
    backend.live.note(version)
    return files


def check(backend: RocksDBBackend, version: int) -> None:
    assert dict(backend.scan("a")) == {b"\0\1%06d" % n: value(version) for n in range(KEYS)}
    assert dict(backend.scan("b")) == {b"\0\1%d" % n: b"" for n in range(1, version + 1)}


def lived(root: Path, versions: int = 3) -> RocksDBBackend:
    backend = opened(root)
    for version in range(1, versions + 1):
        write(backend, version)
        take(backend, root / f"chk-{version}", version)
    return backend


def loaded(root: Path) -> RocksDBBackend:
    """Restore a snapshot in another form, as for other key groups: its files are in no log."""
    backend = opened(root)
    backend.load("a", iter([(b"\0\1%06d" % n, value(1)) for n in range(KEYS)]))
    backend.load("b", iter([(b"\0\1%d" % n, b"") for n in (1, 2, 3)]))
    return backend


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before_the_first_snapshot(root: Path) -> None:
    write(loaded(root), 4)


def after_a_base_with_files(root: Path) -> None:
    backend = loaded(root)
    write(backend, 4)
    take(backend, root / "chk-4", 4)


def while_files_are_drained(root: Path) -> None:
    backend = loaded(root)
    write(backend, 4)
    take(backend, root / "chk-4", 4)
    backend.live.note(4, cleaning=True)
    assert isinstance(backend.changelog, rockscontinuous.ContinuousLog)
    assert backend.changelog._begin_cleaning()
    assert backend.changelog._clean_some(1)
    assert (root / "db-log" / "cleaned").exists()


def as_a_new_base_takes_the_place_of_a_log(root: Path) -> None:
    backend = lived(root, 4)
    base = backend.changelog.rebase()
    rockslog.shutil = type("Dying", (), {"rmtree": staticmethod(die)})  # type: ignore[attr-defined]
    backend.changelog.begin_at(base)


def as_parts_of_a_dropped_log_go(root: Path) -> None:
    backend = lived(root)
    write(backend, 4)
    unlink = Path.unlink

    def unlink_and_die(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        if path.parent.name == "db-log" and path.suffix == ".log":
            die()

    rockscontinuous.Path.unlink = unlink_and_die  # type: ignore[method-assign]
    for _ in range(20):
        write(backend, 4)
        take(backend, root / f"chk-{len(list(root.iterdir()))}", 4)


def without_snapshots_for_long(root: Path) -> None:
    """Logs are deleted that no snapshot has."""
    backend = lived(root)
    rockscontinuous._SLACK_BYTES = 0
    for _ in range(40):
        write(backend, 4)
    backend._families["a"].flush(True)
    write(backend, 4)


@pytest.mark.parametrize(
    "moment",
    [
        before_the_first_snapshot,
        after_a_base_with_files,
        while_files_are_drained,
        as_a_new_base_takes_the_place_of_a_log,
        as_parts_of_a_dropped_log_go,
        without_snapshots_for_long,
    ],
)
def test_another_process_goes_on_and_its_snapshots_have_all_state(
    tmp_path: Path, moment: Callable[[Path], None]
) -> None:
    killed(moment, tmp_path)
    go_on(tmp_path)


@pytest.mark.parametrize("which", [0, 1])
def test_a_part_that_is_missing_is_noticed(tmp_path: Path, which: int) -> None:
    """The database does not need it, and later snapshots would."""
    killed(with_a_long_log, tmp_path)
    parts_of(tmp_path)[which].unlink()
    first, _ = go_on(tmp_path)
    assert any(file.name.endswith(".sst") for file in first), "all state is written again"


def test_a_part_that_the_database_needs_is_missing(tmp_path: Path) -> None:
    killed(with_a_long_log, tmp_path)
    parts_of(tmp_path)[-1].unlink()
    with pytest.raises(UnavailableError, match="the log ends with entry"):
        opened(tmp_path, resumed=4)


def parts_of(root: Path) -> list[Path]:
    parts = sorted((root / "db-log").glob("*.log"))
    assert len(parts) > 2
    return parts


def with_a_long_log(root: Path) -> None:
    global LIMITS
    LIMITS = Continuous(log=20.0)
    rocksdb._UNFLUSHED_BYTES = 300_000
    backend = lived(root, 4)
    for _ in range(100):
        if backend.live.first_log > min(backend._logs.logs) + 2:
            # The database may have all before this, and then needs no part: what is written last is flushed later.
            write(backend, 4)
            backend._logs.cut()
            return
        write(backend, 4)
        take(backend, root / f"chk-{len(list(root.iterdir()))}", 4)
    raise AssertionError("RocksDB never flushes")


def go_on(root: Path) -> list[Any]:
    """Go on after version 4, and check the state and two snapshots; return their files."""
    backend = opened(root, resumed=4)
    check(backend, 4)
    snapshots: list[Any] = []
    for version in (5, 6):
        write(backend, version)
        files = take(backend, root / f"later-{version}", version)
        snapshots.append(files)
        assert {path.name for path in (root / "db-log").iterdir()} & {"cleaned", "database", "linked"} == set()
        restored = RocksDBBackend(
            restore_files(files, root / f"restored-{version}"), ["a", "b"], memory=BUDGET, changelog=LIMITS
        )
        check(restored, version)
        restored.close()
        shutil.rmtree(root / f"restored-{version}")
    backend.close()
    return snapshots
