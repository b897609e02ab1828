"""A log that has the whole state: its oldest part is written again and dropped, and nothing is lost by it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.api import config
from strandline.api.config import Changelog, Continuous
from strandline.backends import rockscontinuous
from strandline.backends.base import LocalFile
from strandline.backends.options import MIB
from strandline.backends.rockscontinuous import ContinuousLog
from strandline.backends.rocksdb import RocksDBBackend
from strandline.core.errors import CorruptionError

from .conftest import BUDGET, restore_files
from .test_rockslog import flip

LIMITS = Continuous(log=2.0, budget=3.0)
VALUE_BYTES = 1000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of some hundred kilobytes."""
    monkeypatch.setattr(config, "_LEAST_CONTINUOUS_BYTES", 200_000)
    monkeypatch.setattr(rockscontinuous, "_LEAST_LOG_BYTES", 100_000)
    monkeypatch.setattr(rockscontinuous, "_LEAST_BUDGET_BYTES", 20_000)


class Kept:
    """A backend with such a log, a dict that it must equal, and its snapshots."""

    def __init__(self, root: Path, limits: Continuous | Changelog | None = LIMITS, seed: int = 1) -> None:
        self.root = root
        self.limits = limits
        self.random = random.Random(seed)
        self.model: dict[str, dict[bytes, bytes]] = {"a": {}, "b": {}}
        self.count = 0
        self.open(root / "db")

    def open(self, directory: Path, *, resumed: int | None = None, is_live: bool = False) -> None:
        self.directory = directory
        self.backend = RocksDBBackend(
            directory, list(self.model), memory=BUDGET, changelog=self.limits, is_live=is_live, resumed=resumed
        )

    @property
    def log(self) -> ContinuousLog:
        assert isinstance(self.backend.changelog, ContinuousLog)
        return self.backend.changelog

    def change(self, count: int, keys: int = 500) -> int:
        """Change random keys; delete one in ten. Return the bytes of it."""
        changes: dict[str, dict[bytes, bytes | None]] = {state: {} for state in self.model}
        for _ in range(count):
            state = self.random.choice(list(self.model))
            key = b"\0\1%05d" % self.random.randrange(keys)
            value = None if self.random.random() < 0.1 else self.random.randbytes(VALUE_BYTES)
            changes[state][key] = value
            if value is None:
                self.model[state].pop(key, None)
            else:
                self.model[state][key] = value
        self.backend.write({state: entries.items() for state, entries in changes.items()})
        return sum(len(key) + len(value or b"") for entries in changes.values() for key, value in entries.items())

    def take(self) -> list[LocalFile]:
        self.count += 1
        files = self.backend.changelog.append({}, self.root / f"snapshot-{self.count}")
        while self.backend.changelog.clean():
            pass
        return files

    def live(self, snapshots: int) -> None:
        for _ in range(snapshots):
            self.change(60)
            self.take()

    def leave_files(self) -> list[LocalFile]:
        """Change keys until snapshots have a log alone."""
        for _ in range(300):
            self.change(60)
            files = self.take()
            if not tables(files):
                return files
        raise AssertionError("the log has a base with files")

    def go_back(self, files: list[LocalFile], limits: Continuous | Changelog | None = LIMITS) -> None:
        """Restore a snapshot of the present model."""
        self.backend.close()
        self.limits = limits
        self.open(restore_files(files, self.root / f"db-{self.count}-{self.random.random()}"))
        self.check()

    def check(self) -> None:
        assert {state: dict(self.backend.scan(state)) for state in self.model} == self.model


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    made.backend.close()


def log_bytes(files: list[LocalFile]) -> int:
    return sum(file.size_bytes for file in files if file.name.endswith(".log"))


def tables(files: list[LocalFile]) -> list[str]:
    return [file.name for file in files if file.name.endswith((".sst", ".blob"))]


def test_the_log_stays_within_its_bound_and_each_snapshot_has_all_state(kept: Kept) -> None:
    longest = least = 0
    for number in range(120):
        kept.change(60)
        files = kept.take()
        assert not tables(files)
        state_bytes = sum(len(key) + len(value) for each in kept.model.values() for key, value in each.items())
        if number > 40:
            longest = max(longest, log_bytes(files) / state_bytes)
        if number % 40 == 39:
            kept.go_back(files)
        least = max(least, min(int(file.name.split("-")[0]) for file in files if file.name.endswith(".log")))
    # Beside twice the state, logs that are not over yet.
    assert 1 < longest < 3
    assert least > 10, "old logs went"


def test_a_snapshot_writes_no_more_than_its_budget(kept: Kept) -> None:
    known: set[str] = set()
    uploads, changed, rewritten = [], 0, 0
    for _ in range(100):
        changed = kept.change(60)
        before = {file.name for file in kept.take()}
        new = [name for name in before - known if name.endswith(".log")]
        known |= before
        uploads.append((sum((kept.root / f"snapshot-{kept.count}" / name).stat().st_size for name in new), changed))
        rewritten += kept.log._rewritten_bytes
    assert rewritten > 0
    # Merged parts are uploaded once more, and entries have headers.
    assert sum(up for up, _ in uploads) < 2.5 * sum(down for _, down in uploads)
    assert max(up / down for up, down in uploads) < (1 + LIMITS.budget) * 2


def test_a_state_that_grows_is_not_written_again(kept: Kept) -> None:
    for number in range(60):
        keys = {b"\0\1%05d" % n: bytes(VALUE_BYTES) for n in range(number * 60, number * 60 + 60)}
        kept.backend.write({"a": keys.items()})
        kept.model["a"] |= keys
        files = kept.take()
        assert kept.log._rewritten_bytes == 0
    kept.go_back(files)


def test_equal_values_do_not_let_the_log_grow_for_ever(kept: Kept) -> None:
    """They look as if each of them counted: in the end the log gets a new base with files."""
    keys = {b"\0\1%05d" % n: bytes(VALUE_BYTES) for n in range(300)}
    kept.model["a"] = keys
    longest = with_files = raw_bytes = 0
    for _ in range(100):
        kept.backend.write({"a": keys.items()})
        raw_bytes = max(raw_bytes, kept.backend.raw_bytes())
        files = kept.take()
        longest = max(longest, log_bytes(files))
        with_files += bool(tables(files))
        raw_bytes = max(raw_bytes, kept.backend.raw_bytes())
    assert with_files
    assert longest < 2.2 * LIMITS.log * raw_bytes
    kept.go_back(files)


def test_an_entry_whose_log_is_damaged_is_not_taken_for_an_old_one(kept: Kept) -> None:
    """It differs from the state's value, as superseded ones do, and the log would go without it."""
    cold = b"\0\1cold"
    kept.backend.write({"a": [(cold, bytes(VALUE_BYTES))]})
    kept.take()
    (part,) = (kept.root / "db-log").glob("*.log")
    flip(part, part.read_bytes().index(cold) + 200)
    with pytest.raises(CorruptionError, match=r"RocksDB's log is damaged at byte \d+"):
        kept.live(60)


def test_only_cold_keys_are_kept_by_being_written_again(kept: Kept) -> None:
    kept.change(500, keys=400)
    kept.take()
    for _ in range(60):
        kept.change(60, keys=5)
        files = kept.take()
    assert log_bytes(files) < 2_000_000
    kept.go_back(files)


@pytest.mark.parametrize("before", [None, Changelog()], ids=["incremental", "changelog"])
def test_the_files_of_another_mode_are_left_within_some_snapshots(tmp_path: Path, before: Changelog | None) -> None:
    kept = Kept(tmp_path, before)
    kept.change(400)
    files = kept.take() if before else kept.backend.persist({}, tmp_path / "first")
    kept.go_back(files)
    kept.change(10)
    files = kept.take()
    assert tables(files)
    kept.go_back(files)
    files = kept.leave_files()
    kept.go_back(files)
    kept.go_back(files, before)
    kept.backend.close()


def test_a_restore_goes_on_with_the_parts_of_the_log(kept: Kept) -> None:
    kept.change(300)
    before = kept.take()
    kept.go_back(before)
    kept.change(1)
    after = kept.take()
    names = {file.name for file in before if file.name.endswith(".log")}
    assert names <= {file.name for file in after}
    assert log_bytes(after) - log_bytes(before) < 2 * VALUE_BYTES
    kept.go_back(after)


def test_without_an_empty_database_snapshots_have_a_base_with_files(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another release of RocksDB wrote something else."""

    def refuse(*_: object) -> Path:
        raise CorruptionError("it has other families")

    monkeypatch.setattr(rockscontinuous, "empty_database", refuse)
    for number in range(80):
        kept.change(60)
        files = kept.take()
        assert tables(files)
        if number % 20 == 19:
            kept.go_back(files)
    monkeypatch.undo()
    kept.go_back(kept.leave_files())


def test_states_come_and_go(kept: Kept) -> None:
    """Families get numbers as they are made, and logs have the numbers alone."""
    kept.change(100)
    for number, name in enumerate(["c", "d", "0"]):
        kept.model[name] = {}
        kept.go_back(kept.take())
        kept.change(200)
        if number == 1:
            kept.go_back(kept.take())
            kept.backend.forget("c")
            del kept.model["c"]
            kept.change(100)
    kept.backend.close()
    shutil.rmtree(kept.directory)
    kept.open(kept.directory)
    kept.model = {state: {} for state in kept.model}
    for _ in range(40):
        kept.change(60)
        files = kept.take()
    kept.go_back(files)
    assert not tables(files)


def test_a_state_is_dropped_and_the_files_of_before_are_left(kept: Kept) -> None:
    kept.model["c"] = {}
    kept.go_back(kept.take())
    kept.change(300)
    kept.go_back(kept.take())
    kept.backend.forget("b")
    del kept.model["b"]
    kept.change(60)
    assert tables(kept.take())
    files = kept.leave_files()
    kept.model["late"] = {}
    kept.go_back(files)
    kept.change(100)
    kept.go_back(kept.take())


def test_snapshots_that_fail_for_long_leave_a_bounded_log(kept: Kept) -> None:
    kept.take()
    for _ in range(150):
        kept.backend.write({"a": [(b"\0\1%d" % n, bytes(100_000)) for n in range(10)]})
    kept.model["a"] |= {b"\0\1%d" % n: bytes(100_000) for n in range(10)}
    assert sum(path.stat().st_size for path in kept.directory.rglob("*.log")) < 100 * MIB
    files = kept.take()
    kept.go_back(files)
