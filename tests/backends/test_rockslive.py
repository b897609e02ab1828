"""Databases of processes that were killed, also while they opened one of these."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from strandline.api.config import Changelog, Continuous
from strandline.backends import rocksdb
from strandline.backends.options import MIB, MemoryBudget
from strandline.backends.rockscontinuous import ContinuousLog
from strandline.backends.rocksdb import RocksDBBackend
from strandline.backends.rockslive import LiveRecords
from strandline.core.errors import CorruptionError, UnavailableError

from .conftest import restore_files
from .test_rockslog import flip

BUDGET = MemoryBudget(block_cache_bytes=2 * MIB, write_buffer_bytes=2 * MIB)


LOGS = [Changelog(), Continuous(), None]


def opened(root: Path, log: Changelog | Continuous | None, resumed: int | None = None) -> RocksDBBackend:
    return RocksDBBackend(root / "db", ["a", "b"], memory=BUDGET, changelog=log, is_live=True, resumed=resumed)


def killed(work: Callable[..., object], *given: object) -> None:
    """Do something in another process, which is killed at its end. Not in a fork: RocksDB's threads are not in one."""
    process = get_context("spawn").Process(target=_do_and_die, args=(work, *given))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def _do_and_die(work: Callable[..., object], *given: object) -> None:
    _kept.append(work(*given))
    os.kill(os.getpid(), signal.SIGKILL)


_kept: list[object] = []


def open_and_die(root: Path, log: Changelog | Continuous | None) -> None:
    """Be killed before anything is recorded of the opening."""
    LiveRecords.begin = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    opened(root, log, 8)


def write_and_die(root: Path, log: Changelog | Continuous | None, noted: int = 1) -> None:
    """Be killed when only some versions are noted."""
    backend = opened(root, log)
    for version in (1, 2):
        write(backend, version)
        if version == noted:
            backend.live.note = lambda *_: None  # type: ignore[method-assign]


def snapshot(backend: RocksDBBackend, into: Path, version: int) -> None:
    """Take a snapshot, and note the version again, as keepers do: logs may be gone."""
    (backend.changelog.append if backend.changelog else backend.persist)({}, into)
    backend.live.note(version)


def write(backend: RocksDBBackend, version: int) -> None:
    """Write so much that write buffers are flushed, and note it."""
    keys = [b"\0\0%06d" % number for number in range(3_000)]
    backend.write({"a": [(key, b"%d" % version * 300) for key in keys], "b": [(b"\0\0%d" % version, b"")]})
    backend.live.note(version)


def by_name(*directories: Path) -> dict[str, set[str]]:
    """Return the checksums of the contents that each name has in some snapshots."""
    found: dict[str, set[str]] = {}
    for path in (path for directory in directories for path in directory.iterdir()):
        found.setdefault(path.name, set()).add(hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def first(root: Path, log: Changelog | Continuous | None) -> None:
    """Do what a keeper does until it is killed."""
    backend = opened(root, log)
    for version in range(1, 6):
        write(backend, version)
    snapshot(backend, root / "chk-1", 5)
    for version in range(6, 9):
        write(backend, version)


def clean_and_die(root: Path) -> None:
    """Be killed as the first entries of the oldest log were written again."""
    write_again = ContinuousLog._write_again

    def die(log: ContinuousLog, *given: Any) -> None:
        before = log._rewritten_bytes
        write_again(log, *given)
        if log._rewritten_bytes > before:
            os.kill(os.getpid(), signal.SIGKILL)

    backend = opened(root, Continuous(log=1.5))
    for version in range(1, 8):
        write(backend, version)
        snapshot(backend, root / f"chk-{version}", version)
        assert backend.changelog is not None
        if version == 7:
            ContinuousLog._write_again = die  # type: ignore[method-assign]
        backend.live.note(version, cleaning=True)
        backend.changelog.clean()
        backend.live.note(version)
    os._exit(1)


def second(root: Path, log: Changelog | Continuous | None) -> None:
    backend = opened(root, log, resumed=8)
    write(backend, 9)
    snapshot(backend, root / "chk-2", 9)


def check(backend: RocksDBBackend, version: int) -> None:
    """Check that the state is that of a version."""
    assert {value for _, value in backend.scan("a")} == {b"%d" % version * 300}
    assert {key for key, _ in backend.scan("b")} == {b"\0\0%d" % each for each in range(1, version + 1)}


@pytest.mark.parametrize("log", LOGS)
def test_a_process_that_is_killed_when_it_has_just_gone_on_leaves_the_state(
    tmp_path: Path, log: Changelog | Continuous | None
) -> None:
    """RocksDB has flushed its log then."""
    killed(first, tmp_path, log)
    for _ in range(2):
        killed(opened, tmp_path, log, 8)
    killed(second, tmp_path, log)
    backend = opened(tmp_path, log, resumed=9)
    check(backend, 9)
    snapshot(backend, tmp_path / "chk-3", 9)
    backend.close()
    assert len(list(tmp_path.glob("chk-*"))) == 3
    # In storage, the name of a shared file has one content for ever.
    names = {name: contents for name, contents in by_name(*tmp_path.glob("chk-*")).items() if "-" in name}
    assert all(len(contents) == 1 for name, contents in names.items() if log or not name.startswith("MANIFEST"))
    restored = RocksDBBackend(tmp_path / "chk-3", ["a", "b"], memory=BUDGET)
    check(restored, 9)
    restored.close()


@pytest.mark.parametrize("log", LOGS)
def test_a_process_that_is_killed_as_it_goes_on_leaves_the_state(
    tmp_path: Path, log: Changelog | Continuous | None
) -> None:
    killed(first, tmp_path, log)
    killed(open_and_die, tmp_path, log)
    backend = opened(tmp_path, log, resumed=8)
    check(backend, 8)
    backend.close()


@pytest.mark.parametrize("log", LOGS)
def test_a_process_that_is_killed_before_it_notes_a_version_leaves_none(
    tmp_path: Path, log: Changelog | Continuous | None
) -> None:
    """RocksDB may have some of it."""
    killed(write_and_die, tmp_path, log)
    for version in (1, 2):
        with pytest.raises(UnavailableError, match=rf"ends with entry 3001; the log ends with .* version {version} is"):
            opened(tmp_path, log, resumed=version)


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("fault", ["gone", "cut", "flipped"])
def test_a_log_that_lacks_entries_is_not_gone_on_with(
    tmp_path: Path, log: Changelog | Continuous | None, fault: str
) -> None:
    killed(write_and_die, tmp_path, log, 2)
    growing = max((tmp_path / "db-log").glob("*.growing"))
    if fault == "gone":
        growing.unlink()
    elif fault == "cut":
        os.truncate(growing, growing.stat().st_size - 10)
    else:
        flip(growing, 100_000)
    with pytest.raises(UnavailableError, match="the log ends with entry"):
        opened(tmp_path, log, resumed=2)


def test_a_process_that_is_killed_as_it_cleans_its_log_leaves_the_state(tmp_path: Path) -> None:
    """Entries that were written again have numbers after the noted one, and change nothing."""
    killed(clean_and_die, tmp_path)
    backend = opened(tmp_path, Continuous(log=1.5), resumed=7)
    check(backend, 7)
    write(backend, 8)
    snapshot(backend, tmp_path / "chk-8", 8)
    check(backend, 8)
    backend.close()
    files = {path.name for path in (tmp_path / "chk-8").iterdir()}
    assert not any(name.endswith(".sst") for name in files)
    assert files & {path.name for path in (tmp_path / "chk-7").iterdir() if path.name.endswith(".log")}
    restored = RocksDBBackend(tmp_path / "chk-8", ["a", "b"], memory=BUDGET)
    check(restored, 8)
    restored.close()


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("torn_bytes", [3, 500])
def test_a_log_whose_last_batch_is_torn_is_not_gone_on_with(
    tmp_path: Path, log: Changelog | Continuous | None, torn_bytes: int
) -> None:
    """As if the kill came while entries were written."""
    killed(write_and_die, tmp_path, log, 2)
    growing = max((tmp_path / "db-log").glob("*.growing"))
    data = growing.read_bytes()
    growing.write_bytes(data + data[:torn_bytes])
    with pytest.raises(CorruptionError, match="truncated"):
        opened(tmp_path, log, resumed=2)


def flush_and_die(root: Path, log: Changelog | Continuous | None, is_slow: bool) -> None:
    rocksdb._UNFLUSHED_BYTES = MIB
    if is_slow:
        # As if RocksDB always had something to flush.
        RocksDBBackend._total = lambda *_: 1  # type: ignore[method-assign]
    backend = opened(root, log)
    for version in range(1, 100):
        write(backend, version)
        assert backend.live is not None
        if version % 5 == 0:
            snapshot(backend, root / f"chk-{version}", version)
        if version == 98:
            (root / "first_log").write_text(str(backend.live.first_log))


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("is_slow", [False, True])
def test_only_what_the_database_may_lack_is_repeated(
    tmp_path: Path, log: Changelog | Continuous | None, is_slow: bool
) -> None:
    killed(flush_and_die, tmp_path, log, is_slow)
    first_log = int((tmp_path / "first_log").read_text())
    parts = [path for path in (tmp_path / "db-log").iterdir() if path.is_file()]
    needed = [path for path in parts if int(path.name[:6]) >= first_log]
    # Twice the size from which on it flushes, and what two writes of 1.8 MB add, however slow the disk is.
    assert sum(path.stat().st_size for path in needed) < 6 * MIB
    for path in {*parts} - {*needed}:
        path.unlink()
    backend = opened(tmp_path, log, resumed=99)
    check(backend, 99)
    write(backend, 100)
    snapshot(backend, tmp_path / "chk-last", 100)
    backend.close()
    restored = RocksDBBackend(tmp_path / "chk-last", ["a", "b"], memory=BUDGET)
    check(restored, 100)
    restored.close()


def restored_and_clipped(root: Path, log: Changelog | Continuous | None, before: Changelog | Continuous | None) -> None:
    """Restore what was loaded, drop one of two key groups, and be killed before the first snapshot."""
    made = RocksDBBackend(root / "made", ["a", "b", "c"], memory=BUDGET, changelog=before)
    made.load("a", iter([(b"\0%c%d" % (group, n), b"0" * 300) for group in range(2) for n in range(5)]))
    files = made.changelog.append({}, root / "chk") if made.changelog else made.persist({}, root / "chk")
    made.close()
    restore_files(files, root / "db")
    backend = opened(root, log)
    backend.write({"c": [(b"\0\0early", b"")], "b": [(b"\0\0early", b"")]})
    backend.clip(range(1))
    backend.forget("c")
    backend.write({"b": [(b"\0\0\1", b"")]})
    assert backend.live is not None
    backend.live.note(1)


@pytest.mark.parametrize("before", [None, Changelog(), Continuous()])
@pytest.mark.parametrize("log", LOGS)
def test_what_was_done_before_the_first_write_survives(
    tmp_path: Path, log: Changelog | Continuous | None, before: Changelog | Continuous | None
) -> None:
    """Logs have neither what is loaded nor what is clipped, and a state that is dropped takes its changes along."""
    killed(restored_and_clipped, tmp_path, log, before)
    for number in range(2):
        backend = opened(tmp_path, log, resumed=1)
        assert [key for key, _ in backend.scan("a")] == [b"\0\0%d" % n for n in range(5)]
        assert [key for key, _ in backend.scan("b")] == [b"\0\0\1", b"\0\0early"]
        snapshot(backend, tmp_path / f"later-{number}", 1)
        backend.close()


@pytest.mark.parametrize("log", LOGS)
def test_a_scan_that_begins_late_has_what_was_written_meanwhile(
    tmp_path: Path, log: Changelog | Continuous | None
) -> None:
    backend = opened(tmp_path, log)
    scan = backend.scan("a")
    backend.write({"a": [(b"\0\0\1", b"")]})
    assert [key for key, _ in scan] == [b"\0\0\1"]
    backend.close()
