"""Timers against a plain set: set, deleted, fired, given up, written in the background, restored, in any order."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.backends.base import Backend, Entry, LocalFile
from strandline.backends.heap import HeapBackend
from strandline.backends.rocksdb import RocksDBBackend
from strandline.runtime.state import timers
from strandline.runtime.state.timers import TimerTable
from tests.runtime.bench import BUDGET
from tests.soak import examples

NAME = "timers.event"
GROUPS = range(4)
FOREVER = (1 << 63) - 1
Timer = tuple[int, bytes]
"""The time, and the key behind its key group: in this order they fire."""


class Table:
    """A timer table over one kind of backend, and how it is written and restored."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind = kind
        self.root = root
        self.places = 0
        self.frozen: deque[tuple[Callable[[], Iterator[Entry]], frozenset[Timer]]] = deque()
        self.snapshots: list[tuple[list[LocalFile], frozenset[Timer]]] = []
        self.backend: Backend | None = None
        self.open([])

    def open(self, files: list[LocalFile]) -> None:
        directory = self.place()
        directory.mkdir()
        for file in files:
            (os.link if file.shared else shutil.copyfile)(file.path, directory / file.name)
        self.close()
        if self.kind == "rocksdb":
            self.backend = RocksDBBackend(directory, [NAME], memory=BUDGET)
        else:
            self.backend = HeapBackend(directory, [NAME], inline=False, limit_bytes=None)
        self.timers = TimerTable(NAME, self.backend, GROUPS)
        if self.backend.keeps_all:
            self.timers.adopt(self.backend.scan(NAME))
            self.backend.release(NAME)
        self.frozen.clear()

    def place(self) -> Path:
        self.places += 1
        return self.root / str(self.places)

    def freeze(self, model: set[Timer]) -> None:
        self.frozen.append((self.timers.freeze(), frozenset(model)))

    def write_oldest(self, snapshot: bool) -> None:
        """What the writer thread does."""
        changes, model = self.frozen.popleft()
        if snapshot:
            self.snapshots.append((self.backend.persist({NAME: changes()}, self.place()), model))
        elif not self.backend.keeps_all:
            self.backend.write({NAME: changes()})
        self.timers.release()

    def fire_all(self, until_us: int = FOREVER) -> list[Timer]:
        return list(self.timers.fire(until_us, lambda keys: None))

    def close(self) -> None:
        if self.backend is not None:
            self.backend.close()


keys = st.sampled_from([b"\0\0a", b"\0\0ab", b"\0\1", b"\0\1\xff\xff", b"\0\3a"])
times = st.one_of(st.integers(-2, 12), st.sampled_from([-(1 << 62), 1 << 62]))
changes = st.tuples(st.sampled_from(["set", "set", "delete"]), keys, times)
# What is done just after the n-th timer has fired; a write is that of another thread, between two of our steps.
actions = st.one_of(changes, changes, st.tuples(st.sampled_from(["write", "snapshot"]), keys, times))
epochs = st.fixed_dictionaries(
    {
        "before": st.lists(changes, max_size=8),
        "until": st.one_of(st.none(), times),
        "meanwhile": st.dictionaries(st.integers(0, 8), st.lists(actions, max_size=3), max_size=4),
        "after": st.lists(changes, max_size=4),
        "abort": st.sampled_from([False, False, True]),
    }
)


class TimerMachine(RuleBasedStateMachine):
    """The rules; one subclass a backend."""

    kind = ""

    @initialize(chunk=st.sampled_from([1, 2, 5, 20_000]), spare=st.sampled_from([0, 1000]))
    def start(self, chunk: int, spare: int) -> None:
        self.usual = timers._CHUNK, timers._SPARE_ENTRIES
        timers._CHUNK, timers._SPARE_ENTRIES = chunk, spare
        self.root = Path(tempfile.mkdtemp(prefix="sl-timers-"))
        self.table = Table(self.kind, self.root)
        self.model: set[Timer] = set()

    def teardown(self) -> None:
        if hasattr(self, "root"):
            assert self.table.fire_all() == sorted(self.model)
            self.table.close()
            shutil.rmtree(self.root)
            timers._CHUNK, timers._SPARE_ENTRIES = self.usual

    def change(self, model: set[Timer], what: str, key: bytes, at: int) -> None:
        if what == "set":
            model.add((at, key))
            self.table.timers.set(key, at)
        elif what == "delete":
            model.discard((at, key))
            self.table.timers.delete(key, at)
        elif self.table.frozen:
            self.table.write_oldest(snapshot=what == "snapshot")

    @rule(given=epochs)
    def epoch(self, given: dict[str, Any]) -> None:
        model = set(self.model)
        for change in given["before"]:
            self.change(model, *change)
        if given["until"] is not None:
            self.fire(model, given["until"], dict(given["meanwhile"]))
        for change in given["after"]:
            self.change(model, *change)
        if given["abort"]:
            self.table.timers.abort()
        else:
            self.table.timers.commit()
            self.model = model

    def fire(self, model: set[Timer], until: int, meanwhile: dict[int, list[Any]]) -> None:
        ready: set[bytes] = set()
        for fired, timer in enumerate(self.table.timers.fire(until, ready.update)):
            assert timer == min(model), "in the order of their times, those set on the way included"
            assert timer[0] <= until
            model.discard(timer)
            ready.add(timer[1])
            for action in meanwhile.get(fired, []):
                # The user's function sets timers of the key that it is called for.
                self.change(model, action[0], timer[1] if fired % 2 else action[1], action[2])
        assert all(at > until for at, _ in model)

    @rule(given=epochs, fired=st.integers(0, 3))
    def epoch_whose_consumer_fails(self, given: dict[str, Any], fired: int) -> None:
        """The walk over due timers is left in the middle, and somebody still holds on to it."""
        for change in given["before"]:
            self.change(set(), *change)
        walk = self.table.timers.fire(given["until"] or 0, lambda keys: None)
        for _ in range(fired):
            next(walk, None)
        self.table.timers.abort()
        self.epoch(given)
        walk.close()

    @rule()
    def freeze(self) -> None:
        self.table.freeze(self.model)

    @precondition(lambda self: self.table.frozen)
    @rule(snapshot=st.booleans())
    def write_oldest(self, snapshot: bool) -> None:
        self.table.write_oldest(snapshot)

    @rule(snapshot=st.booleans())
    def write_everything(self, snapshot: bool) -> None:
        self.table.freeze(self.model)
        while self.table.frozen:
            self.table.write_oldest(snapshot)

    @precondition(lambda self: self.table.frozen)
    @rule(given=epochs, snapshot=st.booleans())
    def write_while_an_epoch_runs(self, given: dict[str, Any], snapshot: bool) -> None:
        failed: list[BaseException] = []

        def write() -> None:
            try:
                self.table.write_oldest(snapshot)
            except BaseException as error:
                failed.append(error)

        quiet = {n: [a for a in some if a[0] in ("set", "delete")] for n, some in given["meanwhile"].items()}
        thread = threading.Thread(target=write)
        thread.start()
        try:
            self.epoch({**given, "meanwhile": quiet})
        finally:
            thread.join()
        assert not failed, failed

    @precondition(lambda self: self.table.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        files, model = data.draw(st.sampled_from(self.table.snapshots), label="snapshot")
        self.table.open(files)
        self.model = set(model)

    @rule()
    def tick_until_it_is_known_when_the_next_one_is_due(self) -> None:
        """What the driver does while the source is silent and time goes on: it must not go on for ever."""
        first = min(self.model)[0] if self.model else None
        before = None
        while (expected := self.table.timers.next_us()) is not None and expected != first:
            assert before is None or expected > before
            before = expected
            assert self.table.fire_all(expected) == []
            self.table.timers.commit()

    @invariant()
    def next_us_is_never_late(self) -> None:
        if hasattr(self, "table") and self.model:
            expected = self.table.timers.next_us()
            assert expected is not None
            assert expected <= min(self.model)[0]


def machine_of(kind: str) -> Any:
    machine = type(f"{kind.title()}Machine", (TimerMachine,), {"kind": kind}).TestCase
    machine.settings = examples(
        20 if kind == "rocksdb" else 60,
        stateful_step_count=20,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    return machine


TestFilesystem = machine_of("filesystem")
TestRocksDB = machine_of("rocksdb")


@pytest.fixture(params=["filesystem", "rocksdb"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    made = Table(request.param, tmp_path)
    yield made
    made.close()


def test_a_timer_deleted_while_a_snapshot_is_written_does_not_fire(table: Table) -> None:
    table.timers.set(b"\0\0a", 5)
    table.timers.commit()
    table.freeze({(5, b"\0\0a")})
    table.timers.delete(b"\0\0a", 5)
    table.timers.commit()
    assert table.fire_all(10) == []
    table.timers.commit()
    table.write_oldest(snapshot=True)
    assert table.timers.next_us() in (None, 5)
    assert table.fire_all(10) == []
    files, model = table.snapshots[0]
    table.open(files)
    assert table.fire_all(10) == list(model)


def test_a_timer_set_after_an_epoch_that_was_left_in_the_middle_is_kept(table: Table) -> None:
    table.timers.set(b"\0\0a", 5)
    table.timers.commit()
    walk = table.timers.fire(100, lambda keys: None)
    assert next(walk) == (5, b"\0\0a")
    table.timers.abort()
    table.timers.set(b"\0\0a", 7)
    walk.close()
    table.timers.commit()
    assert table.fire_all(100) == [(5, b"\0\0a"), (7, b"\0\0a")]


def test_written_timers_that_an_epoch_fired_are_there_again_when_it_is_given_up(table: Table) -> None:
    for at in (9, 5):
        # The earlier one is written later, where there is one already.
        table.timers.set(b"\0\0a", at)
        table.timers.commit()
        table.freeze(set())
        table.write_oldest(snapshot=False)
        assert table.timers.next_us() == at
    for _ in range(2):
        assert table.fire_all(6) == [(5, b"\0\0a")]
        table.timers.abort()
        assert table.timers.next_us() == 5
    assert table.fire_all(6) == [(5, b"\0\0a")]
    table.timers.commit()
    assert table.timers.next_us() == 9


def test_timers_that_are_moved_on_and_on_take_no_more_memory(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_SPARE_ENTRIES", 10)
    for epoch in range(200):
        if epoch:
            table.timers.delete(b"\0\0a", 1000 + epoch % 2)
        table.timers.set(b"\0\0a", 1000 + (epoch + 1) % 2)
        table.timers.commit()
        assert len(table.timers._dirty.order) <= 10 + 2 * 2
    assert table.fire_all() == [(1000, b"\0\0a")]


def test_a_timer_that_is_gone_before_it_was_written_wakes_nobody(table: Table) -> None:
    for wanted, change in ((5, table.timers.set), (None, table.timers.delete)):
        change(b"\0\0a", 5)
        table.timers.commit()
        assert table.timers.next_us() == wanted


def test_many_timers_are_found_in_chunks_and_told_ahead(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_CHUNK", 10)
    wanted = sorted((number * 7919 % 1000, b"\0" + bytes([number % 4]) + str(number).encode()) for number in range(95))
    for at, key in wanted:
        table.timers.set(key, at)
    table.timers.commit()
    table.freeze(set(wanted))
    table.write_oldest(snapshot=True)
    table.open(table.snapshots[0][0])
    told: list[list[bytes]] = []
    found = []
    for timer in table.timers.fire(1000, lambda keys: told.append(list(keys))):
        assert timer[1] in told[-1]
        found.append(timer)
    assert found == wanted
    assert max(map(len, told)) <= (95 if table.kind == "filesystem" else 10)
