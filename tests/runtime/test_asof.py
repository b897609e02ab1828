"""As-of joins and joins by session in one partition, against what plain Python says of all rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.windows import Session
from strandline.core.times import as_datetime
from strandline.runtime.operators.asof import AS_OF_HOWS, AsOfJoin
from strandline.runtime.operators.joins import HOWS, JoinColumns
from strandline.runtime.operators.sessionjoin import SessionJoin
from strandline.runtime.state.maps import MapTable
from tests.runtime.test_joins import (
    LEFTS,
    RIGHTS,
    Arrival,
    History,
    bench_of,
    follow,
    result,
    run,
    steps,
    stored,
)
from tests.soak import BACKENDS, examples

BOUNDS = ", window_start timestamp, window_end timestamp"


def as_of_results(history: History, how: str, max_age: int | None, shared: bool) -> Counter[Any]:
    """Return the rows that the last epoch gives: those whose times its watermark was the first to pass."""
    last = len(history.epochs) - 1
    found: Counter[Any] = Counter()
    for epoch, row in history.rows():
        if row.left and not history.is_late(epoch, row.at) and history.reached(row.at + 1, epoch) == last:
            known = [
                (version.at, number, version)
                for number, (came, version) in enumerate(history.rows())
                if not version.left and version.k == row.k and came < last and version.at <= row.at
            ]
            version = max(known)[2] if known else None
            if version is not None and max_age is not None and version.at + max_age < row.at:
                version = None
            if version is not None or how == "left":
                found[(*result(row, version, shared), row.at)] += 1
    return found


@pytest.mark.parametrize("kind", BACKENDS)
@examples(30)
@given(
    epochs=steps, how=st.sampled_from(AS_OF_HOWS), max_age=st.one_of(st.none(), st.integers(0, 12)),
    shared=st.booleans(), cache_bytes=st.sampled_from([1, 1 << 20]),
)  # fmt: skip
def test_an_as_of_join(
    tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any, how: Any, max_age: int | None, shared: bool,
    cache_bytes: int,
) -> None:  # fmt: skip
    layout = JoinColumns(LEFTS, RIGHTS, ("k",) if shared else ())
    process = AsOfJoin(layout, how, max_age)
    bench = bench_of(kind, tmp_path_factory.mktemp("asof"), process, layout, cache_bytes=cache_bytes)

    def stays(history: History) -> int:
        """Return how many versions are left: the last one of each key, if they do not grow too old."""
        return 0 if max_age is not None else len({row.k for _, row in history.rows() if not row.left})

    try:
        follow(bench, epochs, lambda history: as_of_results(history, how, max_age, shared), stays)
    finally:
        bench.close()


def test_a_version_counts_from_its_time_on(tmp_path: Path) -> None:
    layout = JoinColumns(LEFTS, RIGHTS, ("k",))
    bench = bench_of("memory", tmp_path, AsOfJoin(layout, "left"), layout)
    # Two at one time: the one that came last counts.
    versions = [Arrival(False, "a", 10, 1), Arrival(False, "a", 20, 2), Arrival(False, "a", 20, 3)]
    assert run(bench, [*versions, *(Arrival(True, "a", at, at) for at in (20, 9, 19, 10))], None) == []
    # A version may still come at the watermark's own time.
    assert run(bench, [], 10) == [("a", 9, None, 9)]
    assert run(bench, [Arrival(False, "a", 10, 4)], 10) == []
    assert run(bench, [], 30) == [("a", 10, 4, 10), ("a", 19, 4, 19), ("a", 20, 3, 20)]
    assert len(stored(bench)) == 1
    # Late versions change nothing that was given; the newest one counts from now on.
    late = [Arrival(False, "a", 15, 5), Arrival(False, "a", 25, 6), Arrival(True, "a", 29, 29)]
    assert run(bench, [*late, Arrival(True, "a", 30, 30)], 30) == []
    assert bench.task._process.own_metrics == {"late_dropped": 3}  # type: ignore[union-attr]
    assert run(bench, [], 31) == [("a", 30, 6, 30)]
    assert len(stored(bench)) == 1
    bench.close()


def test_versions_without_rows_are_not_kept(tmp_path: Path) -> None:
    """A stream of prices of which nobody buys: no more than one a key is kept, and none that is too old."""
    layout = JoinColumns(LEFTS, RIGHTS)
    for max_age, kept in ((None, 1), (50, 0)):
        bench = bench_of("memory", tmp_path / str(kept), AsOfJoin(layout, "inner", max_age), layout)
        run(bench, [Arrival(False, "a", at, at) for at in range(20)], None)
        run(bench, [], 69)
        # The last one is valid up to 69; with an age, a timer waits for its end.
        assert len(stored(bench)) == 1 + (max_age is not None)
        run(bench, [], 70)
        assert len(stored(bench)) == kept
        bench.close()


def test_rows_that_are_due_are_joined_with_one_look_at_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = JoinColumns(LEFTS, RIGHTS)
    bench = bench_of("memory", tmp_path, AsOfJoin(layout, "left"), layout)
    entries, looks = MapTable.entries, []

    def count(table: MapTable, key: Any) -> Any:
        looks.append(key)
        return entries(table, key)

    monkeypatch.setattr(MapTable, "entries", count)
    run(bench, [Arrival(left, "a", at, at) for at in range(100) for left in (True, False)], None)
    # At each of them: the versions and the rows that wait; the newest version has a timer of its own.
    assert len(run(bench, [], 60)) == 60
    assert len(looks) == 2
    bench.close()


def session_results(history: History, gap: int, how: str, shared: bool) -> Counter[Any]:
    """Return what the last epoch gives: sessions live as long as the watermark has not passed their end."""
    sessions: dict[str, list[list[Arrival]]] = {}
    found: Counter[Any] = Counter()
    for rows, watermark in history.epochs:
        found = Counter()
        for k, those in sessions.items():
            for session in list(those):
                end = max(row.at for row in session) + gap
                if watermark is not None and end < watermark:
                    those.remove(session)
                    window = as_datetime(min(row.at for row in session)), as_datetime(end)
                    lefts, rights = [r for r in session if r.left], [r for r in session if not r.left]
                    pairs: list[Any] = [(one, other) for one in lefts for other in rights]
                    pairs += [(one, None) for one in lefts if how in ("left", "full") and not rights]
                    pairs += [(None, other) for other in rights if how in ("right", "full") and not lefts]
                    found.update((*result(*pair, shared), *window, end) for pair in pairs)
            assert len(those) <= 30, k
        for row in rows:
            those = sessions.setdefault(row.k, [])
            near = [each for each in those if any(abs(row.at - other.at) <= gap for other in each)]
            if near or watermark is None or row.at + gap >= watermark:
                for each in near:
                    those.remove(each)
                those.append([*(other for each in near for other in each), row])
    return found


@pytest.mark.parametrize("kind", BACKENDS)
@examples(20)
@given(
    epochs=steps, gap_ms=st.integers(1, 3), how=st.sampled_from(HOWS), shared=st.booleans(),
    cache_bytes=st.sampled_from([1, 1 << 20]),
)  # fmt: skip
def test_a_join_by_session(
    tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any, gap_ms: int, how: Any, shared: bool,
    cache_bytes: int,
) -> None:  # fmt: skip
    layout = JoinColumns(LEFTS, RIGHTS, ("k",) if shared else ())
    process = SessionJoin(layout, Session(f"{gap_ms}ms"), how)
    bench = bench_of(kind, tmp_path_factory.mktemp("session"), process, layout, BOUNDS, cache_bytes=cache_bytes)
    scaled = [([(left, k, at * 500) for left, k, at in rows], moved * 500, end) for rows, moved, end in epochs]
    try:
        follow(bench, scaled, lambda history: session_results(history, gap_ms * 1000, how, shared))
    finally:
        bench.close()
