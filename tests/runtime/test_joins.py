"""Functions of two streams in one partition: connected ones, and joins against what plain Python says of all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.joins import KeyedCoProcess
from strandline.api.states import Value
from strandline.api.windows import Sliding, Tumbling, windows_of
from strandline.core.errors import UserCodeError
from strandline.core.times import as_datetime
from strandline.runtime.operators.joins import (
    BOUNDS,
    HOWS,
    LEFT,
    RIGHT,
    IntervalJoin,
    JoinColumns,
    TimedJoin,
    WindowJoin,
)
from strandline.runtime.state.maps import MapTable
from strandline.types.datatypes import parse_schema
from strandline.types.records import record_type
from tests.runtime.bench import Bench, batch_of
from tests.soak import BACKENDS, examples

LEFTS, RIGHTS = parse_schema("k string, n bigint"), parse_schema("k string, m bigint")
INPUT = f"{LEFT} struct<k: string, n: bigint>, {RIGHT} struct<k: string, m: bigint>, k string"
FOREVER = 1 << 50


@dataclass(frozen=True)
class Arrival:
    """A row on its way in."""

    left: bool
    k: str
    at: int | None
    id: int


def batch(rows: Sequence[Arrival]) -> pa.RecordBatch:
    """Return rows as a keeper receives them: the key group, the time, both halves, the key."""
    events = [((r.k, r.id) if r.left else None, None if r.left else (r.k, r.id), r.k) for r in rows]
    plain = batch_of(events, INPUT, ["k"])
    arrays = [plain.column(0), pa.array([r.at for r in rows], pa.int64()), *plain.columns[1:]]
    return pa.RecordBatch.from_arrays(arrays, names=["group", "time", *plain.schema.names[1:]])


def run(bench: Bench, rows: Sequence[Arrival], watermark: int | None, *, abort: bool = False) -> list[tuple[Any, ...]]:
    """Process an epoch; return its output rows with their times, in order."""
    # In two batches, between which caches may be emptied.
    halves = (rows[: len(rows) // 2], rows[len(rows) // 2 :])
    given = bench.apply((batch(some) for some in halves if some), watermark, abort=abort)
    found = [row for some in given for row in some.to_pylist()]
    return [tuple(value for name, value in row.items() if not name.endswith("fired")) for row in found]


def make_bench(kind: str, root: Path, process: Any, output: str, **given: Any) -> Bench:
    return Bench(kind, root, process, input_schema=INPUT, output_schema=output, timed=True, **given)


def bench_of(kind: str, root: Path, process: TimedJoin, layout: JoinColumns, more: str = "", **given: Any) -> Bench:
    output = ", ".join(f"{name} {ddl}" for name, ddl in layout.columns(("", "r_"))) + more
    return make_bench(kind, root, process, output, **given)


def stored(bench: Bench) -> list[Any]:
    """Return everything that is in state, as a snapshot would have it."""
    frozen = bench.freeze()
    if not bench.backend.keeps_all:
        bench.backend.write(frozen.changes())
        found = [entry for name in frozen.states for entry in bench.backend.scan(name)]
    else:
        found = [entry for entries in frozen.changes().values() for entry in entries]
    frozen.release()
    return found


# -- what a join must give


@dataclass(frozen=True)
class History:
    """Epochs with the watermark each began with, and what a join must give in the last one."""

    epochs: tuple[tuple[tuple[Arrival, ...], int | None], ...] = ()

    def then(self, rows: Sequence[Arrival], watermark: int | None) -> History:
        return History((*self.epochs, (tuple(rows), watermark)))

    def rows(self) -> Iterator[tuple[int, Arrival]]:
        return ((epoch, row) for epoch, (rows, _) in enumerate(self.epochs) for row in rows)

    def reached(self, time: int, since: int) -> int | None:
        """Return the first epoch, from one on, that began with at least this watermark."""
        for epoch, (_, watermark) in enumerate(self.epochs):
            if epoch >= since and watermark is not None and watermark >= time:
                return epoch
        return None

    def is_late(self, epoch: int, time: int) -> bool:
        watermark = self.epochs[epoch][1]
        return watermark is not None and time < watermark


def interval_results(history: History, lower: int, upper: int, how: str, shared: bool) -> Counter[Any]:
    """Return the rows that the last epoch gives: pairs when the second row comes, others when none can come."""
    last = len(history.epochs) - 1
    kept = [(epoch, row) for epoch, row in history.rows() if not history.is_late(epoch, row.at)]
    lefts = [(epoch, row) for epoch, row in kept if row.left]
    rights = [(epoch, row) for epoch, row in kept if not row.left]
    found: Counter[Any] = Counter()
    partners: Counter[Arrival] = Counter()
    for epoch, one in lefts:
        for other_epoch, other in rights:
            if one.k == other.k and lower <= other.at - one.at <= upper:
                partners.update([one, other])
                if max(epoch, other_epoch) == last:
                    found[(*result(one, other, shared), max(one.at, other.at))] += 1
    for rows, outer, reach in ((lefts, how in ("left", "full"), upper), (rights, how in ("right", "full"), -lower)):
        for epoch, row in rows if outer else ():
            over = row.at + reach
            if not partners[row] and history.reached(over + 1, epoch) == last:
                alone = result(row, None, shared) if row.left else result(None, row, shared)
                found[(*alone, max(over, row.at))] += 1
    return found


def result(left: Arrival | None, right: Arrival | None, shared: bool) -> tuple[Any, ...]:
    if shared:
        return (left or right).k, left and left.id, right and right.id
    return left and left.k, left and left.id, right and right.k, right and right.id


def window_results(history: History, kind: Tumbling | Sliding, how: str, shared: bool) -> Counter[Any]:
    """Return the rows that the last epoch gives: those of windows that its watermark was the first to complete."""
    last = len(history.epochs) - 1
    inside: dict[Any, tuple[list[Arrival], list[Arrival]]] = {}
    for epoch, row in history.rows():
        for window in windows_of(kind, row.at):
            if history.reached(window.end_us, 0) is None or history.reached(window.end_us, 0) > epoch:
                inside.setdefault((row.k, window), ([], []))[0 if row.left else 1].append(row)
    found: Counter[Any] = Counter()
    for (_, window), (lefts, rights) in inside.items():
        if history.reached(window.end_us, 0) != last:
            continue
        pairs: list[tuple[Arrival | None, Arrival | None]] = [(one, other) for one in lefts for other in rights]
        pairs += [(one, None) for one in lefts if how in ("left", "full") and not rights]
        pairs += [(None, other) for other in rights if how in ("right", "full") and not lefts]
        found.update((*result(*pair, shared), window.start, window.end, window.end_us - 1) for pair in pairs)
    return found


steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(-3, 20)), max_size=8),
        st.integers(0, 5),
        st.sampled_from(["keep", "keep", "abort", "write", "snapshot", "restore"]),
    ),
    min_size=1,
    max_size=10,
)


def follow(bench: Bench, epochs: Any, expected: Any, stays: Any = lambda history: 0) -> None:
    """Run epochs with aborts and restores; each must give what is expected, and so many entries stay at the end."""
    history, watermark, number = History(), None, 0
    files, then, then_watermark = bench.snapshot(), history, watermark
    for each, moved, end in epochs:
        rows = []
        for left, k, at in each:
            number += 1
            rows.append(Arrival(left, k, at, number))
        after = history.then(rows, watermark)
        assert Counter(run(bench, rows, watermark, abort=end == "abort")) == expected(after)
        if end != "abort":
            history = after
            # The first epochs know of no watermark.
            watermark = moved or None if watermark is None else watermark + moved
        if end == "write":
            bench.write(bench.freeze())
        if end == "snapshot":
            files, then, then_watermark = bench.snapshot(), history, watermark
        if end == "restore":
            bench.restore(files, len(then.epochs))
            history, watermark = then, then_watermark
    assert Counter(run(bench, [], FOREVER)) == expected(history.then([], FOREVER))
    assert len(stored(bench)) == stays(history)


@pytest.mark.parametrize("kind", BACKENDS)
@examples(30)
@given(
    epochs=steps, within=st.tuples(st.integers(-6, 6), st.integers(-6, 6)), how=st.sampled_from(HOWS),
    bounds=st.sampled_from(BOUNDS), shared=st.booleans(), cache_bytes=st.sampled_from([1, 1 << 20]),
)  # fmt: skip
def test_an_interval_join(
    tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any, within: Any, how: Any, bounds: Any, shared: bool,
    cache_bytes: int,
) -> None:  # fmt: skip
    lower, upper = sorted(within)
    layout = JoinColumns(LEFTS, RIGHTS, ("k",) if shared else ())
    # With room for what the brackets take away.
    process = IntervalJoin(layout, lower - (bounds[0] == "("), upper + (bounds[1] == ")"), how, bounds)
    bench = bench_of(kind, tmp_path_factory.mktemp("interval"), process, layout, cache_bytes=cache_bytes)
    try:
        follow(bench, epochs, lambda history: interval_results(history, lower, upper, how, shared))
    finally:
        bench.close()


@pytest.mark.parametrize("kind", BACKENDS)
@examples(20)
@given(
    epochs=steps, size_ms=st.integers(1, 4), every_ms=st.integers(0, 4), how=st.sampled_from(HOWS),
    shared=st.booleans(), cache_bytes=st.sampled_from([1, 1 << 20]),
)  # fmt: skip
def test_a_window_join(
    tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any, size_ms: int, every_ms: int, how: Any,
    shared: bool, cache_bytes: int,
) -> None:  # fmt: skip
    windows = Sliding(f"{size_ms}ms", every=f"{every_ms}ms") if every_ms else Tumbling(f"{size_ms}ms")
    layout = JoinColumns(LEFTS, RIGHTS, ("k",) if shared else ())
    process = WindowJoin(layout, windows, how)
    more = ", window_start timestamp, window_end timestamp"
    bench = bench_of(kind, tmp_path_factory.mktemp("window"), process, layout, more, cache_bytes=cache_bytes)
    # In halves of a millisecond, so that rows lie at the borders of windows and between them.
    scaled = [([(left, k, at * 500) for left, k, at in rows], moved * 500, end) for rows, moved, end in epochs]
    try:
        follow(bench, scaled, lambda history: window_results(history, windows, how, shared))
    finally:
        bench.close()


# -- by hand


def test_what_an_outer_join_gives_and_when(tmp_path: Path) -> None:
    layout = JoinColumns(LEFTS, RIGHTS)
    bench = bench_of("memory", tmp_path, IntervalJoin(layout, -10, 5, "full"), layout)
    first = [Arrival(True, "a", 100, 1), Arrival(False, "a", 90, 2), Arrival(False, "a", 106, 3)]
    assert run(bench, first, None) == [("a", 1, "a", 2, 100)]
    # 106 could still have a partner at 116.
    assert run(bench, [Arrival(True, "b", 200, 4)], 116) == []
    assert run(bench, [], 117) == [(None, None, "a", 3, 116)]
    assert bench.task.next_timers_us[0] is not None
    assert run(bench, [Arrival(False, "b", 205, 5), Arrival(False, "b", 206, 6)], 205) == [("b", 4, "b", 5, 205)]
    assert run(bench, [], 400) == [(None, None, "b", 6, 216)]
    assert stored(bench) == []
    assert bench.task.next_timers_us[0] is None
    bench.close()


def test_a_window_is_complete_at_its_end(tmp_path: Path) -> None:
    layout = JoinColumns(LEFTS, RIGHTS, ("k",))
    more = ", window_start timestamp, window_end timestamp"
    bench = bench_of("memory", tmp_path, WindowJoin(layout, Tumbling("1ms"), "left"), layout, more)
    assert run(bench, [Arrival(True, "a", 999, 1)], 998) == []
    # Late, but its window is not complete.
    assert run(bench, [Arrival(False, "a", 0, 2)], 999) == []
    window = (as_datetime(0), as_datetime(1000))
    assert run(bench, [Arrival(True, "a", 999, 3), Arrival(True, "a", 1000, 4)], 1000) == [("a", 1, 2, *window, 999)]
    assert run(bench, [], 2000) == [("a", 4, None, as_datetime(1000), as_datetime(2000), 1999)]
    assert stored(bench) == []
    bench.close()


def test_partners_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    layout = JoinColumns(LEFTS, RIGHTS, ("k",))
    bench = bench_of("memory", tmp_path, IntervalJoin(layout, -10, 10), layout)
    rows = [Arrival(False, "a", at, at) for at in (7, 3, 15, 5, 3, 30)]
    assert run(bench, [*rows, Arrival(True, "a", 6, 0)], None) == [("a", 0, at, max(at, 6)) for at in (3, 3, 5, 7, 15)]
    bench.close()


@pytest.mark.parametrize("windows", [False, True])
def test_a_key_with_many_rows_costs_a_copy_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: bool
) -> None:
    layout = JoinColumns(LEFTS, RIGHTS)
    process = WindowJoin(layout, Tumbling("1s"), "left") if windows else IntervalJoin(layout, 0, 1000, "left")
    more = ", window_start timestamp, window_end timestamp" if windows else ""
    bench = bench_of("memory", tmp_path, process, layout, more)
    put, puts = MapTable.put, []

    def count(table: MapTable, key: Any, sub: Any, value: Any) -> None:
        puts.append(sub)
        put(table, key, sub, value)

    monkeypatch.setattr(MapTable, "put", count)
    for epoch in range(3):
        run(bench, [Arrival(True, "a", (at * 7) % 100, at) for at in range(100)], None)
        assert len(puts) == epoch + 1
    bench.close()


def test_a_row_without_time_is_refused(tmp_path: Path) -> None:
    layout = JoinColumns(LEFTS, RIGHTS)
    bench = bench_of("memory", tmp_path, IntervalJoin(layout, 0, 0), layout, uid="pairs")
    with pytest.raises(UserCodeError, match=r"operator 'pairs': join\(\) failed for key 'a', .* has no time") as caught:
        run(bench, [Arrival(False, "a", None, 1)], None)
    assert "where(" in caught.value.hint
    bench.close()


def test_columns_of_a_join() -> None:
    left, right = parse_schema("x string, a bigint, y int"), parse_schema("b double, x string, y int")
    layout = JoinColumns(left, right, ("x",))
    assert [name for name, _ in layout.columns(("l_", "r_"))] == ["x", "l_a", "l_y", "r_b", "r_y"]
    one, other = record_type(left.names)._make(("k", 1, 2)), record_type(right.names)._make((0.5, "k", 3))
    assert layout.pair(one, other) == ("k", 1, 2, 0.5, 3)
    assert layout.left_alone(one) == ("k", 1, 2, None, None)
    assert layout.right_alone(other) == ("k", None, None, 0.5, 3)
    keys_only = JoinColumns(parse_schema("x string"), parse_schema("x string"), ("x",))
    assert keys_only.right_alone(record_type(["x"])._make(("k",))) == ("k",)
    assert keys_only.pair(("k",), ("k",)) == ("k",)


# -- connect


class Enrich(KeyedCoProcess):
    """Says the newest right event of the key with each left one, and once more when a timer fires."""

    newest = Value("bigint")

    def on_left(self, event: Any, ctx: Any) -> Any:
        if event.n < 0:
            raise ValueError("negative")
        ctx.timers.set(as_datetime(ctx.time_us + 10))
        yield ctx.key, "left", event.n, self.newest.value

    def on_right(self, event: Any, ctx: Any) -> None:
        if event["m"] < 0:
            raise ValueError("negative")
        self.newest.value = event["m"]

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield ctx.key, "timer", timer.time_us, self.newest.value


ENRICHED = "k string, what string, n bigint, newest bigint"


@pytest.mark.parametrize("kind", BACKENDS)
def test_both_methods_share_state_and_timers(tmp_path: Path, kind: str) -> None:
    bench = make_bench(kind, tmp_path, Enrich(), ENRICHED)
    rows = [Arrival(True, "a", 1, 10), Arrival(False, "a", 2, 20), Arrival(True, "a", 3, 30), Arrival(True, "b", 4, 40)]
    wanted = [("a", "left", 10, None, 1), ("a", "left", 30, 20, 3), ("b", "left", 40, None, 4)]
    assert run(bench, rows, None, abort=True) == wanted
    assert run(bench, rows, None) == wanted
    files = bench.snapshot()
    fired = [("a", "timer", 11, 20, 11), ("a", "timer", 13, 20, 13)]
    assert run(bench, [Arrival(False, "a", 14, 21)], 14) == fired
    bench.restore(files, 1)
    assert run(bench, [Arrival(False, "b", 14, 21)], 14) == fired
    assert run(bench, [], 15) == [("b", "timer", 14, 21, 14)]
    bench.close()


@pytest.mark.parametrize(("left", "method"), [(True, "on_left"), (False, "on_right")])
def test_an_error_names_the_method_and_the_event(tmp_path: Path, left: bool, method: str) -> None:
    bench = make_bench("memory", tmp_path, Enrich(), ENRICHED, uid="enrich")
    with pytest.raises(UserCodeError) as caught:
        run(bench, [Arrival(left, "a", 1, -1)], None)
    name = "n" if left else "m"
    said = (
        f"operator 'enrich': {method} of Enrich raised for key 'a', in the event Record(k='a', {name}=-1): ValueError"
    )
    assert said in caught.value.message
    bench.close()


def test_each_input_moves_its_own_watermark(tmp_path: Path) -> None:
    """Origins stand behind the column that says whether a timer gave a row."""
    given = {"phased": True, "origins": True, "measured": True}
    bench = make_bench("memory", tmp_path, Enrich(), ENRICHED, **given)
    rows = [Arrival(True, "a", 5, 1), Arrival(False, "a", 9, 2), Arrival(True, "a", 7, 3), Arrival(True, "a", 99, 4)]
    plain = batch(rows)
    fired, origins = pa.array([False, False, False, True]), pa.array(["0/", "1/x", "0/", "1/y"])
    arrays = [*plain.columns[:2], fired, origins, *plain.columns[2:]]
    names = ["group", "time", "fired", "origin", *plain.schema.names[2:]]
    given_rows = bench.apply([pa.RecordBatch.from_arrays(arrays, names=names)])
    assert [row["n"] for given in given_rows for row in given.to_pylist()] == [4, 1, 3]
    assert bench.task.newest_us == {"0/": 7, "1/x": 9, "1/y": 99}
    bench.close()
