"""Built-in aggregates of sessions in a partition, against plain Python: any cuts, aborts, restores and evictions."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.windows import Session
from strandline.runtime.operators.aggregates import sessions as aggsessions
from strandline.runtime.operators.aggregates import sketches
from strandline.runtime.operators.aggregates.grouping import Groups, overlapping
from strandline.runtime.state import panes
from tests.runtime.aggregating import COUNTS, SECOND, Aggregating, Row, close_to, expected
from tests.soak import BACKENDS, examples

GAP = 5


@dataclass(eq=False)
class Open:
    """A session of the model."""

    start: int
    end: int
    values: list[Any]
    is_known: bool = False
    given: bool = False
    fresh: bool = True


@dataclass
class Model:
    """What aggregation of sessions must give, in the plainest way. Times are in seconds."""

    lateness: int = 0
    early: int = 0
    processing: bool = False
    sessions: dict[str, list[Open]] = field(default_factory=dict)
    marks: dict[str, set[int]] = field(default_factory=dict)
    late: int = 0

    def epoch(self, rows: Sequence[Row], watermark: int | None, now: int) -> list[tuple[Any, ...]]:
        reached = now if self.processing else watermark
        found = [*self._complete(reached), *self._so_far(now)]
        for k in {k for k, _, _ in rows}:
            spans = [(now if self.processing else t, v) for key, t, v in rows if key == k]
            found += self._take_in(k, spans, reached, now)
        return found

    def _row(self, k: str, session: Open) -> tuple[Any, ...]:
        session.fresh = False
        return (k, session.start, session.end, *expected(session.values))

    def _complete(self, reached: int | None) -> list[tuple[Any, ...]]:
        found = []
        for k, sessions in self.sessions.items():
            for session in sessions:
                if reached is not None and session.end < reached and not session.given:
                    found.append(self._row(k, session))
                    session.given = True
            self.sessions[k] = [
                s for s in sessions if not s.given or (reached is not None and s.end + self.lateness >= reached)
            ]
        return found

    def _so_far(self, now: int) -> list[tuple[Any, ...]]:
        found = []
        for k, marks in self.marks.items():
            if any(mark <= now for mark in marks):
                marks -= {mark for mark in marks if mark <= now}
                found += [self._row(k, s) for s in self.sessions.get(k, ()) if s.fresh and not s.given]
        return found

    def _take_in(self, k: str, spans: Any, reached: int | None, now: int) -> list[tuple[Any, ...]]:
        merged = sorted(self.sessions.get(k, []), key=lambda s: s.start)
        for session in merged:
            session.is_known = True
        merged += [Open(t, t + GAP, [v]) for t, v in spans]
        # What is merged has older sessions' values first, then those of the epoch as they came.
        for at, session in enumerate(merged):
            session.values = [(at, i, v) for i, v in enumerate(session.values)]
        while pair := next(((a, b) for a, b in combinations(merged, 2) if a.start <= b.end and b.start <= a.end), None):
            first, second = pair
            first.start, first.end = min(first.start, second.start), max(first.end, second.end)
            first.values += second.values
            first.is_known |= second.is_known
            first.given, first.fresh = False, True
            merged.remove(second)
        for session in merged:
            session.values = [v for _, _, v in sorted(session.values, key=lambda value: value[:2])]
        kept = []
        for session in merged:
            if not session.is_known and reached is not None and session.end + self.lateness < reached:
                self.late += len(session.values)
            else:
                kept.append(session)
        self.sessions[k] = kept
        found = []
        for session in kept:
            if reached is not None and session.end < reached and not session.given:
                found.append(self._row(k, session))
                session.given = True
        touched = any(s.start <= t < s.end for s in kept if not s.given for t, _ in spans)
        if self.early and touched:
            self.marks.setdefault(k, set()).add(now - now % self.early + self.early)
        return found

    @property
    def is_empty(self) -> bool:
        return not any(self.sessions.values())


def as_spark_does(bench: Aggregating, rows: Sequence[Row]) -> pa.RecordBatch:
    """Aggregate rows of one key that are in one stretch as long as the gap."""
    batch = bench.rows_of(rows)
    codes: dict[tuple[str, int], int] = {}
    of_row = np.array([codes.setdefault((k, t // GAP), len(codes)) for k, t, _ in rows])
    groups = Groups(of_row, len(codes))
    group, _, k, counts, first, last, *columns = batch.columns
    at = pa.array(groups.first)
    merged = bench.accumulators.merge(columns, groups)
    spans = [np.full(len(codes), np.iinfo(np.int64).max), np.full(len(codes), np.iinfo(np.int64).min)]
    np.minimum.at(spans[0], of_row, first.to_numpy())
    np.maximum.at(spans[1], of_row, last.to_numpy())
    counted = pa.array(np.bincount(of_row, counts.to_numpy()).astype(np.int64))
    arrays = [group.take(at), pa.array(spans[1]), k.take(at), counted, *map(pa.array, spans), *merged]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


@pytest.fixture(autouse=True)
def _small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches of so few values are exact, and keys are looked at some at a time."""
    monkeypatch.setattr(sketches, "_HELD", 2)
    monkeypatch.setattr(aggsessions, "_KEYS_AT_ONCE", 3)


rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c\0", "ä"]), st.integers(-12, 12), st.none() | st.integers(-9, 9)), max_size=8
)
ways = st.sampled_from(["keep", "abort", "snapshot", "restore", "write", "evict"])
RULES: dict[str, dict[str, Any]] = {
    "plain": {}, "late": {"lateness": 7}, "early": {"lateness": 3, "early": 4}, "clock": {"processing": True, "early": 3},
}  # fmt: skip


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("kind", BACKENDS)
@examples(12)
@given(epochs=st.lists(st.tuples(rows, rows, st.integers(-3, 9), st.integers(0, 6), ways), min_size=1, max_size=12))
def test_sessions_against_the_model(
    tmp_path_factory: pytest.TempPathFactory, kind: str, rules: str, epochs: Any
) -> None:
    bench = Aggregating(kind, tmp_path_factory.mktemp("agg"), Session(f"{GAP}s"), **RULES[rules])
    model = Model(**RULES[rules])
    kept: tuple[Any, ...] | None = None
    watermark, now = 0, 100
    for first, second, moved, clock, way in epochs:
        watermark, now = watermark + max(0, moved), now + clock
        first, second = ([(k, t + watermark, v) for k, t, v in some] for some in (first, second))
        trial = copy.deepcopy(model)
        wanted = trial.epoch([*first, *second], watermark, now)
        for table in bench.task.store._values:
            table._cache_bytes = 0 if way == "evict" else 1 << 20
        found = bench.epoch_of(first, second, watermark=watermark, now=now, abort=way == "abort")
        assert close_to(found, wanted)
        assert bench.task.late_rows == trial.late - model.late
        if way == "abort":
            continue
        model = trial
        if way == "snapshot":
            kept = bench.snapshot(), bench.epoch, copy.deepcopy(model), watermark, now
        elif way in ("write", "evict"):
            bench.write(bench.freeze())
        elif way == "restore" and kept is not None:
            bench.restore(kept[0], kept[1])
            model, watermark = copy.deepcopy(kept[2]), kept[3]
            bench.watermark = None
    bench.epoch_of(watermark=1000, now=1000)
    assert bench.task.next_timers_us == (None, None)
    if not bench.backend.keeps_all:
        assert bench.left() == []
    bench.close()


@pytest.mark.parametrize("slack", [-100, 200_000], ids=["merged-at-once", "kept"])
@pytest.mark.parametrize("lateness", [0, 6])
@examples(10)
@given(epochs=st.lists(st.tuples(rows, st.integers(0, 6)), min_size=1, max_size=8))
def test_what_spark_aggregated_before_makes_no_difference(
    tmp_path_factory: pytest.TempPathFactory, lateness: int, slack: int, epochs: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panes, "_SLACK_ROWS", slack)
        same_with_and_without(tmp_path_factory, lateness, epochs)


def same_with_and_without(tmp_path_factory: pytest.TempPathFactory, lateness: int, epochs: Any) -> None:
    benches = [
        Aggregating("memory", tmp_path_factory.mktemp("agg"), Session(f"{GAP}s"), lateness, COUNTS) for _ in range(2)
    ]
    watermark = 0
    for some, moved in epochs:
        watermark += moved
        some = [(k, t + watermark, v) for k, t, v in some]
        halves = [some[: len(some) // 2], some[len(some) // 2 :]]
        made = [as_spark_does(benches[0], half) for half in halves if half]
        found = [benches[0].epoch_of(*made, watermark=watermark), benches[1].epoch_of(*halves, watermark=watermark)]
        assert sorted(found[0]) == sorted(found[1])
        assert benches[0].task.late_rows == benches[1].task.late_rows
        assert benches[0].task.source_rows == len(some)
    for bench in benches:
        bench.close()


def sessions(root: Path, kind: str = "rocksdb", **given: Any) -> Aggregating:
    return Aggregating(kind, root, Session("10s"), accumulators=COUNTS, **given)


def test_a_late_event_joins_two_sessions_that_were_given(tmp_path: Path) -> None:
    bench = sessions(tmp_path, lateness=60)
    assert bench.epoch_of([("a", 0, 1), ("a", 18, 2), ("b", 3, 5)], watermark=0) == []
    assert sorted(bench.epoch_of(watermark=30)) == [("a", 0, 10, 1, 1), ("a", 18, 28, 1, 2), ("b", 3, 13, 1, 5)]
    assert bench.epoch_of([("a", 9, 4)]) == [("a", 0, 28, 3, 7)]
    # Nothing changed since, so nothing comes.
    assert bench.epoch_of([("b", 40, 1)], watermark=35) == []
    assert bench.task.next_timers_us == (50 * SECOND, None)
    assert bench.epoch_of(watermark=87) == [("b", 40, 50, 1, 1)]
    assert bench.epoch_of([("a", 9, 1)], watermark=89) == []
    assert bench.task.late_rows == 1
    bench.close()


def test_an_event_at_the_very_end_belongs_to_the_session(tmp_path: Path) -> None:
    bench = sessions(tmp_path)
    assert bench.epoch_of([("a", 0, 1), ("a", 10, 2)], [("a", 19, 3)], watermark=0) == []
    assert bench.epoch_of([("a", 29, 4)], watermark=29) == []
    assert bench.epoch_of([("a", 40, 5)], watermark=40) == [("a", 0, 39, 4, 10)]
    bench.close()


def test_no_results_so_far_come_that_only_an_earlier_start_wanted(tmp_path: Path) -> None:
    bench = sessions(tmp_path / "before", early=10)
    assert bench.epoch_of([("a", 0, 1)], watermark=0, now=1) == []
    files, number = bench.snapshot(), bench.epoch
    bench.close()
    bench = sessions(tmp_path / "after")
    bench.restore(files, number)
    assert bench.epoch_of(watermark=5, now=20) == []
    assert bench.task.next_timers_us == (10 * SECOND, None)
    assert bench.epoch_of(watermark=11, now=20) == [("a", 0, 10, 1, 1)]
    bench.close()


def test_an_epochs_events_are_one_set(tmp_path: Path) -> None:
    """What comes first in the epoch is too late for itself; with what comes after it, it is not."""
    bench = sessions(tmp_path)
    bench.epoch_of(watermark=20)
    assert bench.epoch_of([("a", 5, 1)], [("a", 14, 2)]) == []
    assert bench.task.late_rows == 0
    assert bench.epoch_of(watermark=25) == [("a", 5, 24, 2, 3)]
    assert bench.epoch_of([("a", 13, 1), ("b", 14, 1), ("b", 15, 4)]) == [], "ends at the watermark, or touches nothing"
    assert bench.task.late_rows == 1
    bench.close()


def test_a_key_has_many_sessions_at_once(tmp_path: Path) -> None:
    bench = sessions(tmp_path)
    starts = list(range(0, 300, 20))
    bench.epoch_of([("a", t, t) for t in reversed(starts)], watermark=0)
    bench.restore(bench.snapshot(), 1)
    assert bench.epoch_of([("a", 25, 1), ("a", 299, 1)], watermark=11) == [("a", 0, 10, 1, 0)]
    found = bench.epoch_of(watermark=291)
    assert found == [("a", 20, 35, 2, 21), *(("a", t, t + 10, 1, t) for t in starts[2:])]
    assert bench.epoch_of(watermark=1000) == [("a", 299, 309, 1, 1)]
    assert bench.left() == []
    bench.close()


def test_many_keys_are_looked_at_some_at_a_time(tmp_path: Path) -> None:
    bench = sessions(tmp_path, lateness=5)
    keys = [f"k{i}" for i in range(40)]
    bench.epoch_of([(k, i % 3, 1) for i, k in enumerate(keys)], watermark=0)
    bench.write(bench.freeze())
    found = bench.epoch_of([("k0", 20, 1)], watermark=13)
    assert sorted(found) == sorted((k, i % 3, i % 3 + 10, 1, 1) for i, k in enumerate(keys))
    assert bench.epoch_of(watermark=40) == [("k0", 20, 30, 1, 1)]
    assert bench.task.next_timers_us == (None, None)
    bench.close()


@examples(100)
@given(spans=st.lists(st.tuples(st.integers(0, 2), st.integers(-20, 20), st.integers(1, 9)), min_size=1, max_size=12))
def test_overlapping_spans(spans: list[tuple[int, int, int]]) -> None:
    key, start, length = (np.array(column) for column in zip(*spans, strict=True))
    end = start + length
    order, begins = overlapping(key, start, end)
    assert sorted(order.tolist()) == list(range(len(spans)))
    found = [sorted(part.tolist()) for part in np.split(order, begins[1:])]
    wanted: list[list[int]] = []
    for row in sorted(range(len(spans)), key=lambda i: (key[i], start[i])):
        last = wanted[-1] if wanted else []
        if last and key[last[0]] == key[row] and start[row] < max(end[i] for i in last):
            last.append(row)
        else:
            wanted.append([row])
    assert found == [sorted(part) for part in wanted]
