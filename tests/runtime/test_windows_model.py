"""Windows of every kind against the naive model: any disorder, any cuts, epochs given up, snapshots and restores."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from strandline.api.windows import Session, Sliding, Tumbling, WindowKind, windows_of
from strandline.backends.base import LocalFile
from strandline.runtime.operators.windows import contents, sessions
from strandline.runtime.state.store import Frozen
from tests.runtime.windowed import SECOND, Event, Model, Row, Timed, WindowBench, folded, gap_of, joined
from tests.soak import examples

KINDS: list[WindowKind] = [
    Tumbling("10s"), Tumbling("7s", offset="3s"), Sliding("12s", every="5s"), Sliding("3s", every="5s"), Session("6s"),
    Session(gap_of),
]  # fmt: skip
keys = st.sampled_from(["x", "y", "é\0"])
events = st.tuples(keys, st.integers(0, 99), st.integers(-15, 15))


class WindowMachine(RuleBasedStateMachine):
    """The rules; one subclass a backend."""

    backend = ""

    @initialize(
        kind=st.sampled_from(KINDS), lateness=st.sampled_from([0, 0, 4, 25]), early=st.sampled_from([0, 0, 5]),
        processing=st.sampled_from([False, False, False, True]), keeping=st.booleans(),
        cache_bytes=st.sampled_from([1, 2000, 1 << 20]), by_event_time=st.booleans(),
        early_events=st.sampled_from([0, 0, 1, 3]), accumulate=st.sampled_from([True, True, False]),
        few_chunks=st.sampled_from([0, 64]), few_sessions=st.sampled_from([0, 32]),
    )  # fmt: skip
    def start(
        self, kind: Any, lateness: int, early: int, processing: bool, keeping: bool, cache_bytes: int,
        by_event_time: bool, early_events: int, accumulate: bool, few_chunks: int, few_sessions: int,
    ) -> None:  # fmt: skip
        contents._FEW_CHUNKS, sessions._FEW_SESSIONS = few_chunks, few_sessions
        lateness = 0 if processing else lateness
        more: Any = {
            "early_by_event_time": early > 0 and by_event_time and not processing,
            "early_events": early_events,
            "accumulate": accumulate,
        }
        self.root = Path(tempfile.mkdtemp(prefix="sl-windows-"))
        self.bench = WindowBench(
            self.backend, self.root, kind, joined() if keeping else folded(),
            lateness=lateness, early=early, processing=processing, cache_bytes=cache_bytes, **more,
        )  # fmt: skip
        self.model = Model(kind, lateness, early, processing=processing, by_epoch=keeping, **more)
        self.watermark, self.now = 0, 1000
        self.frozen: deque[tuple[Frozen, Any]] = deque()
        self.snapshots: list[tuple[list[LocalFile], Any]] = []

    def teardown(self) -> None:
        contents._FEW_CHUNKS, sessions._FEW_SESSIONS = 64, 32
        if hasattr(self, "root"):
            self.step([], 1000, 1000)
            assert self.bench.task.next_timers_us == (None, None)
            if not self.bench.backend.keeps_all:
                while self.frozen:
                    self.write_oldest(False)
                assert self.bench.left() == []
            self.bench.close()
            shutil.rmtree(self.root)

    @rule(given=st.lists(events, max_size=12), moves=st.integers(0, 12), clock=st.integers(0, 8), abort=st.booleans())
    def process(self, given: list[Timed], moves: int, clock: int, abort: bool) -> None:
        """An epoch, perhaps given up and then done again; times are around the watermark."""
        if abort:
            self.bench.step(self.around(given), self.watermark + moves, self.now + clock, abort=True)
        self.step(given, moves, clock)

    def step(self, given: list[Timed], moves: int, clock: int) -> None:
        self.watermark += moves
        self.now += clock
        given = self.around(given)
        before, late = len(self.bench.late), len(self.model.late)
        found = self.bench.step(given, self.watermark, self.now)
        wanted = self.model.step(given, self.watermark, self.now)
        if self.model.early and self.model.processing is not self.model.early_by_event_time:
            # Both by one time, in one order: results so far and those at the ends.
            found.sort(key=lambda row: row[:3])
            wanted.sort(key=lambda row: row[:3])
        assert found == sorted(wanted, key=lambda row: row[0])
        assert self.bench.late[before:] == self.model.late[late:]

    def around(self, given: list[Timed]) -> list[Timed]:
        return [(k, v, self.watermark + (time or 0)) for k, v, time in given]

    def state(self) -> Any:
        return self.model.copy(), self.watermark, self.now, self.bench.epoch

    @rule()
    def freeze(self) -> None:
        self.frozen.append((self.bench.freeze(), self.state()))

    @precondition(lambda self: self.frozen)
    @rule(snapshot=st.booleans())
    def write_oldest(self, snapshot: bool) -> None:
        frozen, state = self.frozen.popleft()
        if snapshot:
            self.snapshots.append((self.bench.persist(frozen), state))
        else:
            self.bench.write(frozen)

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        files, (model, watermark, now, epoch) = data.draw(st.sampled_from(self.snapshots), label="snapshot")
        self.frozen.clear()
        self.bench.restore(files, epoch)
        self.bench.late.clear()
        self.model = model.copy()
        self.model.late.clear()
        self.watermark, self.now = watermark, now


class RocksDBMachine(WindowMachine):
    backend = "rocksdb"


class HeapMachine(WindowMachine):
    backend = "memory"


_CHECKS = [HealthCheck.too_slow]
TestRocksDB = RocksDBMachine.TestCase
TestRocksDB.settings = examples(10, stateful_step_count=20, suppress_health_check=_CHECKS)
TestHeap = HeapMachine.TestCase
TestHeap.settings = examples(40, stateful_step_count=20, suppress_health_check=_CHECKS)


def named(kind: Any) -> str:
    """Return the name of a case: the same in every process."""
    return re.sub(r"<function (\w+) at \w+>", r"\1", repr(kind))


@pytest.mark.parametrize("kind", KINDS, ids=named)
@examples(25)
@given(
    given_events=st.lists(st.tuples(keys, st.integers(0, 99), st.integers(0, 60)), max_size=25),
    cuts=st.lists(st.integers(1, 6), max_size=12),
)
def test_whatever_the_cuts(kind: Any, given_events: list[Timed], cuts: list[int]) -> None:
    """When nothing comes late, results are those of all events at once, however they are cut into epochs."""
    root = Path(tempfile.mkdtemp(prefix="sl-windows-"))
    bench = WindowBench("memory", root, kind, joined())
    found: list[Row] = []
    rest = list(given_events)
    for size in [*cuts, len(rest)]:
        # The best watermark there can be: what is still to come is not older.
        watermark = min((time for _, _, time in rest if time is not None), default=None)
        found += bench.step(rest[:size], watermark)
        rest = rest[size:]
    found += bench.step((), 1000)
    assert bench.late == []
    assert {row[:3]: sorted(row[3].split(",")) for row in found} == all_at_once(kind, given_events)
    assert len(found) == len({row[:3] for row in found})
    bench.close()
    shutil.rmtree(root)


@examples(40)
@given(
    epochs=st.lists(
        st.tuples(st.lists(st.tuples(keys, st.integers(0, 99), st.integers(-40, 100)), max_size=30), st.integers(0, 60),
                  st.booleans()),
        max_size=8,
    ),
    kind=st.sampled_from([Session("6s"), Session(gap_of)]), lateness=st.sampled_from([0, 25, 200]),
    accumulate=st.booleans(), early_events=st.sampled_from([0, 3]),
)  # fmt: skip
def test_many_sessions_give_what_few_do(
    epochs: list[tuple[list[Timed], int, bool]], kind: Any, lateness: int, accumulate: bool, early_events: int
) -> None:
    """Those of a key with many are found in an order that is kept, instead of by a search of all."""
    given: list[list[Any]] = []
    for few in (0, 1_000_000):
        sessions._FEW_SESSIONS, watermark = few, 0
        root = Path(tempfile.mkdtemp(prefix="sl-windows-"))
        rules: dict[str, Any] = {"lateness": lateness, "accumulate": accumulate, "early_events": early_events}
        bench = WindowBench("memory", root, kind, joined(), **rules)
        given.append([])
        for events, moves, abort in epochs:
            watermark += moves
            placed = [(k, v, watermark + (time or 0)) for k, v, time in events]
            if abort:
                bench.step(placed, watermark, abort=True)
            given[-1] += [bench.step(placed, watermark), *bench.late, bench.task.next_timers_us]
        given[-1] += [bench.step((), 10_000), bench.task.next_timers_us]
        bench.close()
        shutil.rmtree(root)
    sessions._FEW_SESSIONS = 32
    assert given[0] == given[1]
    assert given[0][-1] == (None, None)


def all_at_once(kind: Any, given_events: list[Timed]) -> dict[Any, list[str]]:
    """Return the windows of a batch of events, by the definition."""
    found: dict[Any, list[int]] = {}
    for k, v, time in sorted(given_events, key=lambda event: (event[0], event[2] or 0)):
        assert time is not None
        if not isinstance(kind, Session):
            for window in windows_of(kind, time * SECOND):
                found.setdefault((k, window.start_us / SECOND, window.end_us / SECOND), []).append(v)
            continue
        end = time + kind.gap_after_us(Event(v)) // SECOND
        last = next((w for w in reversed(found) if w[0] == k), None)
        if last is not None and time <= last[2]:
            found[k, last[1], max(last[2], end)] = [*found.pop(last), v]
        else:
            found[k, time, end] = [v]
    return {window: sorted(map(str, values)) for window, values in found.items()}
