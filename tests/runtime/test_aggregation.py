"""Built-in aggregates in a partition, against plain Python: whatever the cuts, aborts, restores and evictions."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.windows import Global, Sliding, Tumbling, windows_of
from strandline.runtime.operators.aggregates import sketches
from strandline.runtime.rowlayout import FIRED, TIME
from tests.runtime.aggregating import COUNTS, SECOND, Aggregating, Row, close_to, expected
from tests.soak import BACKENDS, examples


@pytest.fixture(autouse=True)
def _sketches_of_few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches of so few values are exact."""
    monkeypatch.setattr(sketches, "_HELD", 2)


rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c\0", "ä"]), st.integers(0, 40), st.none() | st.integers(-9, 9)), max_size=8
)
ways = st.sampled_from(["keep", "abort", "snapshot", "restore", "write", "evict"])


@pytest.mark.parametrize("kind", BACKENDS)
@examples(15)
@given(epochs=st.lists(st.tuples(rows, rows, ways), min_size=1, max_size=8))
def test_running_aggregates(tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any) -> None:
    bench = Aggregating(kind, tmp_path_factory.mktemp("agg"))
    seen: dict[str, list[int | None]] = defaultdict(list)
    kept: tuple[Any, ...] | None = None
    for first, second, way in epochs:
        for table in bench.task.store._values:
            table._cache_bytes = 0 if way == "evict" else 1 << 20
        found = bench.epoch_of(first, second, abort=way == "abort")
        now = {k: list(v) for k, v in seen.items()}
        for k, _, v in [*first, *second]:
            now.setdefault(k, []).append(v)
        wanted = [(k, *expected(now[k])) for k in {k for k, _, _ in [*first, *second]}]
        assert close_to(found, wanted)
        if way != "abort":
            seen = defaultdict(list, now)
        if way == "snapshot":
            kept = bench.snapshot(), bench.epoch, {k: list(v) for k, v in seen.items()}
        elif way == "write":
            bench.write(bench.freeze())
        elif way == "restore" and kept is not None:
            bench.restore(kept[0], kept[1])
            seen = defaultdict(list, {k: list(v) for k, v in kept[2].items()})
    bench.close()


@dataclass
class Windows:
    """What windowed aggregation gives, in plain Python."""

    window: Any
    lateness: int = 0
    early: int = 0
    processing: bool = False
    values: dict[tuple[str, int, int], list[int | None]] = field(default_factory=lambda: defaultdict(list))
    given_until: int | None = None
    late: int = 0
    changed: set[tuple[str, int, int]] = field(default_factory=set)
    """Windows that changed since they were shown."""
    show_at: int | None = None

    def epoch(self, rows: Sequence[Row], watermark: int | None, now: int = 0) -> list[tuple[Any, ...]]:
        reached = now if self.processing else watermark
        shown = set()
        if reached is not None:
            before = -math.inf if self.given_until is None else self.given_until
            shown = {at for at in self.values if before < at[2] <= reached}
            self.given_until = reached
        if self.show_at is not None and self.show_at <= now:
            shown |= {at for at in self.changed if reached is None or at[2] > reached}
            self.changed, self.show_at = set(), None
        given = [(*at, *expected(self.values[at])) for at in shown]
        again = set()
        for k, t, v in rows:
            open_ones = []
            for w in windows_of(self.window, (now if self.processing else t) * SECOND):
                at = (k, w.start_us // SECOND, w.end_us // SECOND)
                if reached is None or at[2] + self.lateness > reached:
                    open_ones.append(at)
            self.late += not open_ones
            for at in open_ones:
                self.values[at].append(v)
                if reached is not None and at[2] <= reached:
                    again.add(at)
            self.changed.update(open_ones)
            if open_ones and self.early and self.show_at is None:
                self.show_at = now - now % self.early + self.early
        return given + [(*at, *expected(self.values[at])) for at in again]

    def restored(self) -> Windows:
        """Return what a restore makes of it: it is not known what has changed since it was shown."""
        found = copy.deepcopy(self)
        if self.early and self.values:
            found.changed, found.show_at = set(self.values), 0
        return found


def in_any_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Windows that slide share panes, which are in the order of time: so are their lists, not in that of arrival."""
    return [(*row[:10], None, None, sorted(row[12]), *row[13:]) if row[12] is not None else row for row in rows]


WINDOWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tumbling": (Tumbling("5s"), {}),
    "late": (Tumbling("5s"), {"lateness": 4}),
    "sliding": (Sliding("6s", every="4s"), {}),
    "sliding-late": (Sliding("6s", every="2s"), {"lateness": 5}),
    "early": (Tumbling("10s"), {"lateness": 4, "early": 3}),
    "sliding-early": (Sliding("6s", every="4s"), {"early": 2}),
    "clock": (Tumbling("5s"), {"processing": True}),
    "sliding-clock": (Sliding("6s", every="2s"), {"processing": True, "early": 2}),
}


@pytest.mark.parametrize("which", WINDOWS)
@pytest.mark.parametrize("kind", BACKENDS)
@examples(8)
@given(epochs=st.lists(st.tuples(rows, rows, st.integers(-3, 12), st.integers(0, 4), ways), min_size=1, max_size=10))
def test_windowed_aggregates(tmp_path_factory: pytest.TempPathFactory, kind: str, which: str, epochs: Any) -> None:
    window, rules = WINDOWS[which]
    bench = Aggregating(kind, tmp_path_factory.mktemp("agg"), window, **rules)
    model = Windows(window, **rules)
    kept: tuple[Any, ...] | None = None
    watermark, now = 0, 100
    for first, second, moved, clock, way in epochs:
        watermark, now = max(0, watermark + max(0, moved)), now + clock
        trial = copy.deepcopy(model)
        wanted = trial.epoch([*first, *second], watermark, now)
        bench.task.store._tables[0]._cache_bytes = 0 if way == "evict" else 1 << 20  # type: ignore[attr-defined]
        found = bench.epoch_of(first, second, watermark=watermark, now=now, abort=way == "abort")
        assert close_to(in_any_order(found), in_any_order(wanted))
        assert bench.task.late_rows == trial.late - model.late
        assert bench.task.source_rows == len(first) + len(second)
        if way == "abort":
            continue
        model = trial
        reached = now if model.processing else watermark
        open_ends = [at[2] for at in model.values if at[2] > reached]
        due = bench.task.next_timers_us[model.processing]
        if not model.processing or model.show_at is None:
            # The watermark has to pass a window's last moment, and the clock to reach its end.
            last = 0 if model.processing else 1
            assert due == (min(open_ends) * SECOND - last if open_ends else None)
        if model.early and model.show_at:
            assert bench.task.next_timers_us[1] is not None
        if way == "snapshot":
            kept = bench.snapshot(), bench.epoch, copy.deepcopy(model), watermark
        elif way in ("write", "evict"):
            bench.write(bench.freeze())
        elif way == "restore" and kept is not None:
            bench.restore(kept[0], kept[1])
            model, watermark = kept[2].restored(), kept[3]
            bench.watermark = None
    bench.close()


def test_the_clock_may_be_set_back(tmp_path: Path) -> None:
    """What was given stays given: events count in windows that are still to come."""
    bench = Aggregating("rocksdb", tmp_path, Tumbling("10s"), accumulators=COUNTS, processing=True)
    assert bench.epoch_of([("a", 0, 1)], now=105) == []
    assert bench.task.next_timers_us == (None, 110 * SECOND)
    assert bench.epoch_of(now=111) == [("a", 100, 110, 1, 1)]
    assert bench.epoch_of([("a", 0, 2)], now=95) == []
    assert bench.epoch_of([("a", 0, 3)], now=119) == []
    assert bench.epoch_of(now=120) == [("a", 110, 120, 2, 5)]
    assert bench.left() == []
    bench.close()


@pytest.mark.parametrize("kind", BACKENDS)
@examples(20)
@given(epochs=st.lists(st.tuples(rows, rows, ways), min_size=1, max_size=8), count=st.integers(1, 4))
def test_counted_aggregates(tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any, count: int) -> None:
    bench = Aggregating(kind, tmp_path_factory.mktemp("agg"), Global(count=count))
    seen: dict[str, list[int | None]] = {}
    kept: tuple[Any, ...] | None = None
    for first, second, way in epochs:
        for table in bench.task.store._values:
            table._cache_bytes = 0 if way == "evict" else 1 << 20
        found = bench.epoch_of(first, second, abort=way == "abort")
        now, wanted = copy.deepcopy(seen), []
        for k, _, v in [*first, *second]:
            values = now.setdefault(k, [])
            values.append(v)
            if len(values) == count:
                wanted.append((k, *expected(now.pop(k))))
        assert close_to(found, wanted)
        if way != "abort":
            seen = now
        if way == "snapshot":
            kept = bench.snapshot(), bench.epoch, copy.deepcopy(seen)
        elif way == "write":
            bench.write(bench.freeze())
        elif way == "restore" and kept is not None:
            bench.restore(kept[0], kept[1])
            seen = copy.deepcopy(kept[2])
    if not bench.backend.keeps_all:
        assert len(bench.left()) == len(seen)
    bench.close()


def test_a_counted_result_has_the_time_of_the_event_that_ended_it(tmp_path: Path) -> None:
    bench = Aggregating("memory", tmp_path, Global(count=2), accumulators=COUNTS, timed=True)
    batch = bench.rows_of([("a", 0, 1), ("b", 0, 5), ("a", 0, 2), ("a", 0, 3)])
    batch = batch.add_column(1, TIME, pa.array([7, 8, 5, 9]))
    found = [row for b in bench.apply([batch], 0) for row in b.to_pylist()]
    assert found == [{TIME: 5, FIRED: False, "k": "a", "count": 2, "sum": 3}]
    bench.close()
