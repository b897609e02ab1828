"""Built-in aggregates in a partition, against plain Python: whatever the cuts, aborts, restores and evictions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.windows import Sliding, Tumbling, windows_of
from strandline.runtime import sketches
from tests.runtime.aggregating import SECOND, Aggregating, Row, close_to, expected
from tests.runtime.bench import KINDS
from tests.soak import examples


@pytest.fixture(autouse=True)
def _sketches_of_few_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches of so few values are exact."""
    monkeypatch.setattr(sketches, "_HELD", 2)


rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c\0", "ä"]), st.integers(0, 40), st.none() | st.integers(-9, 9)), max_size=8
)
ways = st.sampled_from(["keep", "abort", "snapshot", "restore", "write", "evict"])


@pytest.mark.parametrize("kind", KINDS)
@examples(15)
@given(epochs=st.lists(st.tuples(rows, rows, ways), min_size=1, max_size=8))
def test_running_aggregates(tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any) -> None:
    bench = Aggregating(kind, tmp_path_factory.mktemp("agg"))
    seen: dict[str, list[int | None]] = defaultdict(list)
    kept: tuple[Any, ...] | None = None
    for first, second, way in epochs:
        for table in bench.task.store._values.values():
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


class Windows:
    """What windowed aggregation gives, in plain Python."""

    def __init__(self, window: Any, lateness: int) -> None:
        self.window, self.lateness = window, lateness
        self.values: dict[tuple[str, int, int], list[int | None]] = defaultdict(list)
        self.given_until: int | None = None
        self.late = 0

    def copy(self) -> Windows:
        other = Windows(self.window, self.lateness)
        other.values = defaultdict(list, {at: list(v) for at, v in self.values.items()})
        other.given_until, other.late = self.given_until, self.late
        return other

    def epoch(self, rows: Sequence[Row], watermark: int | None) -> list[tuple[Any, ...]]:
        given = []
        if watermark is not None:
            before = -math.inf if self.given_until is None else self.given_until
            due = [at for at in self.values if before < at[2] <= watermark]
            given = [(*at, *expected(self.values[at])) for at in due]
            self.given_until = watermark
        again = set()
        for k, t, v in rows:
            open_ones = []
            for w in windows_of(self.window, t * SECOND):
                at = (k, w.start_us // SECOND, w.end_us // SECOND)
                if watermark is None or at[2] + self.lateness > watermark:
                    open_ones.append(at)
            self.late += not open_ones
            for at in open_ones:
                self.values[at].append(v)
                if watermark is not None and at[2] <= watermark:
                    again.add(at)
        for at in again:
            given.append((*at, *expected(self.values[at])))
        return given


def in_any_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Windows that slide share panes, which are in the order of time: so are their lists, not in that of arrival."""
    return [(*row[:10], None, None, sorted(row[12]), *row[13:]) if row[12] is not None else row for row in rows]


WINDOWS = {
    "tumbling": (Tumbling("5s"), 0),
    "late": (Tumbling("5s"), 4),
    "sliding": (Sliding("6s", every="4s"), 0),
    "sliding-late": (Sliding("6s", every="2s"), 5),
}


@pytest.mark.parametrize("which", WINDOWS)
@pytest.mark.parametrize("kind", KINDS)
@examples(15)
@given(epochs=st.lists(st.tuples(rows, rows, st.integers(-3, 12), ways), min_size=1, max_size=10))
def test_windowed_aggregates(tmp_path_factory: pytest.TempPathFactory, kind: str, which: str, epochs: Any) -> None:
    window, lateness = WINDOWS[which]
    bench = Aggregating(kind, tmp_path_factory.mktemp("agg"), window, lateness)
    model = Windows(window, lateness)
    kept: tuple[Any, ...] | None = None
    watermark = 0
    for first, second, moved, way in epochs:
        watermark = max(0, watermark + max(0, moved))
        trial = model.copy()
        late_before = trial.late
        wanted = trial.epoch([*first, *second], watermark)
        bench.task.store._others[0]._cache_bytes = 0 if way == "evict" else 1 << 20  # type: ignore[attr-defined]
        found = bench.epoch_of(first, second, watermark=watermark, abort=way == "abort")
        assert close_to(in_any_order(found), in_any_order(wanted))
        assert bench.task.late_rows == trial.late - late_before
        assert bench.task.source_rows == len(first) + len(second)
        if way == "abort":
            continue
        model = trial
        open_ends = [at[2] for at in model.values if at[2] > watermark]
        due = bench.task.next_timers_us[0]
        assert due == (min(open_ends) * SECOND if open_ends else None)
        if way == "snapshot":
            kept = bench.snapshot(), bench.epoch, model.copy(), watermark
        elif way in ("write", "evict"):
            bench.write(bench.freeze())
        elif way == "restore" and kept is not None:
            bench.restore(kept[0], kept[1])
            model, watermark = kept[2].copy(), kept[3]
            bench.watermark = None
    bench.close()
