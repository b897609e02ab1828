"""Windows of each kind, by hand: what they give, when, in which order, and that nothing is left of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.api.badrecords import OnError
from strandline.api.windows import Global, Session, Sliding, Tumbling
from strandline.core.errors import UserCodeError
from strandline.plan.windows import operator_of
from strandline.runtime.operators.windows import sessions
from strandline.runtime.operators.windows.contents import Contents, Folding, Keeping
from strandline.runtime.operators.windows.operator import Rules
from strandline.runtime.program import pickle_process
from strandline.runtime.state.maps import MapTable
from strandline.types.plain import identity
from tests.runtime.windowed import SECOND, WindowBench, folded, joined, largest

Make = Callable[..., WindowBench]
LAST = 1 / SECOND


@pytest.fixture(params=["memory", "rocksdb"])
def make(request: Any, tmp_path: Path) -> Iterator[Make]:
    """Make partitions over a backend; when the test is over, nothing may be left of their windows."""
    made: list[WindowBench] = []

    def build(*given: Any, **named: Any) -> WindowBench:
        made.append(WindowBench(request.param, tmp_path / str(len(made)), *given, **named))
        return made[-1]

    yield build
    for bench in made:
        bench.step((), 10**6, 10**6)
        if not bench.backend.keeps_all:
            assert bench.left() == []
        assert bench.task.next_timers_us == (None, None)
        bench.close()


@pytest.fixture(params=[joined, folded])
def contents(request: Any, monkeypatch: pytest.MonkeyPatch) -> Contents:
    if request.param is folded:
        monkeypatch.setattr(sessions, "_FEW_SESSIONS", 0)
    made: Contents = request.param()
    return made


def row(k: str, start: float, end: float, result: Any) -> tuple[Any, ...]:
    return k, start, end, result, end - LAST


def session(k: str, start: float, end: float, result: Any) -> tuple[Any, ...]:
    return k, start, end, result, end


def row_of(kind: Any) -> Callable[..., tuple[Any, ...]]:
    return session if isinstance(kind, Session) else row


def test_a_tumbling_window_is_given_once_it_is_complete(make: Make, contents: Contents) -> None:
    bench = make(Tumbling("10s"), contents)
    assert bench.step([("a", 1, 0), ("b", 2, 9.999), ("a", 3, 10), ("a", 4, 5)]) == []
    assert bench.step((), 9.999999) == []
    assert bench.step([("a", 5, 12)], 10) == [row("a", 0, 10, "1,4"), row("b", 0, 10, "2")]
    assert bench.step([("a", 6, 9)], 19) == []
    assert bench.late == [("a", 6, 9)]
    assert bench.step((), 20) == [row("a", 10, 20, "3,5")]
    assert bench.step((), 1000) == []


def test_windows_with_an_offset_and_before_1970(make: Make) -> None:
    bench = make(Tumbling("10s", offset="3s"), joined())
    bench.step([("a", 1, 2), ("a", 2, 3), ("a", 3, -7), ("a", 4, -8)])
    assert bench.step((), 100) == [row("a", -17, -7, "4"), row("a", -7, 3, "1,3"), row("a", 3, 13, "2")]


def test_a_key_s_results_come_by_window_end(make: Make, contents: Contents) -> None:
    bench = make(Tumbling("10s"), contents)
    bench.step([("a", end, end - 1) for end in (50, 10, 30, 40, 20)])
    assert [r[2] for r in bench.step((), 100)] == [10, 20, 30, 40, 50]


def test_sliding_windows_take_an_event_several_times(make: Make, contents: Contents) -> None:
    bench = make(Sliding("10s", every="5s"), contents)
    bench.step([("a", 1, 7), ("a", 2, 12)], 3)
    assert bench.step((), 10) == [row("a", 0, 10, "1")]
    # One of its windows is done, the other takes it.
    assert bench.step([("a", 3, 9)], 14) == []
    assert bench.step([("a", 4, 3)], 14) == []
    assert bench.late == [("a", 4, 3)]
    assert bench.step((), 100) == [row("a", 5, 15, "1,2,3"), row("a", 10, 20, "2")]


def test_between_windows_with_gaps_nothing_is_late(make: Make) -> None:
    bench = make(Sliding("2s", every="10s"), joined())
    bench.step([("a", 1, 1), ("a", 2, 5), ("a", 3, 11)])
    assert bench.step([("a", 4, 5), ("a", 5, 1)], 8) == [row("a", 0, 2, "1")]
    assert bench.late == [("a", 5, 1)]
    assert bench.step((), 100) == [row("a", 10, 12, "3")]


def test_late_events_change_the_result_while_lateness_lasts(make: Make, contents: Contents) -> None:
    bench = make(Tumbling("10s"), contents, lateness=10)
    bench.step([("a", 1, 5)])
    assert bench.step([("a", 2, 6), ("a", 3, 7)], 10) == [row("a", 0, 10, "1")]
    # Two late events, one new result; it comes with the next epoch, whose watermark may be the same.
    assert bench.step((), 10) == [row("a", 0, 10, "1,2,3")]
    assert bench.step((), 10) == []
    assert bench.step([("a", 4, 1), ("b", 5, 1)], 19.999) == []
    # Given before the lateness is over, though the watermark says so already; b's window began late.
    assert bench.step([("a", 6, 1)], 20) == [row("a", 0, 10, "1,2,3,4"), row("b", 0, 10, "5")]
    assert bench.late == [("a", 6, 1)]
    assert bench.step((), 1000) == []


@pytest.mark.parametrize("lateness", [0, 20])
@pytest.mark.parametrize("kind", [Tumbling("10s"), Session("10s")])
def test_a_shorter_lateness_from_the_next_start_on(make: Make, contents: Contents, kind: Any, lateness: int) -> None:
    """Windows that wait for late events have timers of the longer one, and are removed all the same."""
    bench = make(kind, contents, lateness=100)
    bench.step([("a", 1, 0), ("b", 2, 0)])
    assert bench.step([("a", 3, 30)], 11) == [row_of(kind)("a", 0, 10, "1"), row_of(kind)("b", 0, 10, "2")]
    files = bench.snapshot()
    process = operator_of(kind, contents, Rules(lateness * SECOND, 0, "late"))
    bench.program = msgspec.structs.replace(bench.program, process=pickle_process(process, "op"))
    bench.restore(files, bench.epoch)
    assert bench.step((), 41) == [row_of(kind)("a", 30, 40, "3")]
    # The fixture looks for what is left.
    assert bench.step((), 60) == []


def test_sessions_are_removed_where_the_lateness_was_shorter_before(make: Make, contents: Contents) -> None:
    """An event would go into what is left when event time begins anew, and give nothing."""
    bench = make(Session("10s"), contents, lateness=10)
    bench.step([("a", 1, 0)])
    assert bench.step((), 11) == [session("a", 0, 10, "1")]
    files = bench.snapshot()
    process = operator_of(Session("10s"), contents, Rules(30 * SECOND, 0, "late"))
    bench.program = msgspec.structs.replace(bench.program, process=pickle_process(process, "op"))
    bench.restore(files, bench.epoch)
    # The timer of the shorter one comes to nothing. The fixture looks for what is left.
    bench.step((), 25)
    bench.step((), 100)


@pytest.mark.parametrize(
    ("before", "after", "others"), [(10, 0, [1, 2, 3]), (20, 10, [1, 2, 3]), (10, 30, [1, 2, 3]), (30, 10, [2])]
)
def test_windows_are_removed_where_the_lateness_was_such_that_another_one_ends_then(
    make: Make, contents: Contents, before: int, after: int, others: list[int]
) -> None:
    """What is left would be there when event time begins anew: an event of that window would give nothing."""
    bench = make(Tumbling("10s"), contents, lateness=before)
    bench.step([("a", 1, 0)])
    assert bench.step([("a", v, 10 * v) for v in others], 10) == [row("a", 0, 10, "1")]
    files = bench.snapshot()
    process = operator_of(Tumbling("10s"), contents, Rules(after * SECOND, 0, "late"))
    bench.program = msgspec.structs.replace(bench.program, process=pickle_process(process, "op"))
    bench.restore(files, bench.epoch)
    for watermark in (15, 25, 35, 45, 100):
        # The fixture looks for what is left.
        bench.step((), watermark)


def test_a_global_window_that_is_larger_than_the_count_of_the_next_start_ends(make: Make) -> None:
    bench = make(Global(when=lambda event, n: event.v == 0), folded())
    bench.step([("a", v, None) for v in (1, 2, 3, 4)])
    files = bench.snapshot()
    process = operator_of(Global(count=2), folded(), Rules(0, 0, "late"))
    bench.program = msgspec.structs.replace(bench.program, process=pickle_process(process, "op"))
    bench.restore(files, bench.epoch)
    given = bench.step([("a", v, None) for v in (5, 6, 7)])
    assert [result for *_, result, _ in given] == ["1,2,3,4,5", "6,7"]


def test_a_global_window_gives_no_result_so_far_that_only_an_earlier_start_wanted(make: Make) -> None:
    bench = make(Global(count=3), folded(), early=10)
    bench.step([("a", 1, None)], None, 1)
    files = bench.snapshot()
    process = operator_of(Global(count=3), folded(), Rules(0, 0, "late"))
    bench.program = msgspec.structs.replace(bench.program, process=pickle_process(process, "op"))
    bench.restore(files, bench.epoch)
    assert bench.step((), None, 20) == []
    given = bench.step([("a", v, None) for v in (2, 3)], None, 21)
    assert [result for *_, result, _ in given] == ["1,2,3"]


def test_sessions_end_after_a_gap(make: Make, contents: Contents) -> None:
    bench = make(Session("10s"), contents)
    bench.step([("a", 1, 0), ("a", 2, 9), ("b", 3, 5), ("a", 4, 40)])
    assert bench.step([("a", 5, 18)], 15) == []
    assert bench.step((), 16) == [session("b", 5, 15, "3")]
    # What comes at the very end belongs to it.
    assert bench.step([("a", 6, 28)], 28) == []
    assert bench.step((), 38) == []
    assert bench.step((), 39) == [session("a", 0, 38, "1,2,5,6")]
    assert bench.step((), 100) == [session("a", 40, 50, "4")]
    assert bench.late == []


def test_an_event_makes_sessions_one(make: Make, contents: Contents) -> None:
    bench = make(Session("10s"), contents)
    bench.step([("a", 1, 0)])
    bench.step([("a", 2, 15)])
    bench.step([("a", 3, 30)])
    # The first and the second are 15 s apart; the third stays alone.
    bench.step([("a", 4, 8)], 5)
    assert bench.step((), 25) == []
    assert bench.step((), 26) == [session("a", 0, 25, "1,2,4")]
    assert bench.step((), 100) == [session("a", 30, 40, "3")]


def test_an_event_makes_many_sessions_one_and_others_follow(make: Make, contents: Contents) -> None:
    bench = make(Session("10s"), contents)
    bench.step([("a", 20, 20), ("a", 0, 0), ("a", 11, 11), ("a", 9, 9), ("a", 30, 30), ("a", 29, 29)])
    assert bench.step((), 100) == [session("a", 0, 40, "0,20,11,9,30,29")]


def test_late_events_join_sessions_that_were_given(make: Make, contents: Contents) -> None:
    bench = make(Session("10s"), contents, lateness=30)
    bench.step([("a", 1, 0), ("a", 2, 15)])
    assert bench.step((), 26) == [session("a", 0, 10, "1"), session("a", 15, 25, "2")]
    bench.step([("a", 3, 8)], 27)
    assert bench.step((), 27) == [session("a", 0, 25, "1,2,3")]
    # It grows beyond the watermark: it is open again.
    bench.step([("a", 4, 24)], 27)
    assert bench.step([("a", 5, 30)], 33.9) == []
    assert bench.step((), 41) == [session("a", 0, 40, "1,2,3,4,5")]
    # Too late for a session of its own, but not for this one.
    bench.step([("a", 6, -1), ("a", 7, -20)], 69)
    assert bench.late == [("a", 7, -20)]
    assert bench.step([("a", 8, 29)], 71) == [session("a", -1, 40, "1,2,3,4,5,6")]
    assert bench.late[1:] == [("a", 8, 29)]


def test_a_late_session_does_not_give_another_s_result_again(make: Make, contents: Contents) -> None:
    bench = make(Session("10s"), contents, lateness=100)
    bench.step([("a", 1, 50)])
    assert bench.step([("a", 2, 0)], 61) == [session("a", 50, 60, "1")]
    assert bench.step((), 61) == [session("a", 0, 10, "2")]
    assert bench.step((), 109.9) == []


@pytest.mark.parametrize("keeping", [False, True])
def test_a_count_ends_a_global_window(make: Make, keeping: bool) -> None:
    bench = make(Global(count=3), joined() if keeping else folded(), timed=False)
    assert bench.step([("a", n, None) for n in range(5)] + [("b", 9, None)]) == [("a", None, None, "0,1,2", None)]
    assert bench.step([("b", 8, None), ("a", 5, None), ("b", 7, None)]) == [
        ("a", None, None, "3,4,5", None),
        ("b", None, None, "9,8,7", None),
    ]


def test_a_function_ends_a_global_window(make: Make) -> None:
    kind = Global(count=3, when=lambda event, n: n >= 2 and event.v == 0)
    bench = make(kind, joined(), timed=False, early=10)
    events = [("a", v, None) for v in (0, 1, 0, 5, 6, 7, 8)]
    assert [r[3] for r in bench.step(events)] == ["0,1,0", "5,6,7"]
    assert [r[3] for r in bench.step([("a", 0, None)])] == ["8,0"]
    assert bench.step([("a", 1, None)], None, 5) == []
    assert [r[3] for r in bench.step((), None, 10)] == ["1"]
    assert bench.step([("a", 0, None)], None, 11) == [("a", None, None, "1,0", None)]


def test_a_global_window_s_result_has_the_time_of_the_last_event(make: Make) -> None:
    bench = make(Global(count=2), folded())
    assert bench.step([("a", 1, 5), ("a", 2, 3)], 100) == [("a", None, None, "1,2", 3)]
    assert bench.late == []


@pytest.mark.parametrize("kind", [Tumbling("10s"), Session("10s")])
def test_early_results_come_by_the_clock_when_something_changed(make: Make, contents: Contents, kind: Any) -> None:
    bench = make(kind, contents, early=5)
    start = 10 if isinstance(kind, Tumbling) else 11
    end = 20 if isinstance(kind, Tumbling) else 21
    bench.step([("a", 1, 11), ("a", 9, 100)], None, 1001)
    assert bench.step((), None, 1004) == []
    later = (100, 110)
    assert bench.step((), None, 1005) == [row_of(kind)("a", start, end, "1"), row_of(kind)("a", *later, "9")]
    assert bench.step([("a", 2, 11)], 5, 1010) == []
    assert bench.step([("a", 3, 11)], 5, 1014) == []
    assert bench.step((), 5, 1017) == [row_of(kind)("a", start, end, "1,2,3")]
    # The last result comes whether it is new or not, and the other window has not changed.
    assert bench.step((), 50, 1030) == [row_of(kind)("a", start, end, "1,2,3")]


@pytest.mark.parametrize("timed", [False, True])
def test_windows_by_the_clock(make: Make, contents: Contents, timed: bool) -> None:
    bench = make(Tumbling("10s"), contents, processing=True, timed=timed)
    bench.step([("a", 1, None)], None, 1005)
    bench.step([("a", 2, None)], None, 1009)
    given = bench.step([("a", 3, None)], None, 1010)
    assert [r[:4] for r in given] == [("a", 1000, 1010, "1,2")]
    assert [r[:4] for r in bench.step((), None, 1020)] == [("a", 1010, 1020, "3")]
    assert bench.late == []


def test_sessions_by_the_clock(make: Make, contents: Contents) -> None:
    bench = make(Session("10s"), contents, processing=True, timed=False)
    bench.step([("a", 1, None)], None, 1005)
    bench.step([("a", 2, None)], None, 1014)
    assert bench.step([("b", 3, None)], None, 1023) == []
    assert bench.step([("a", 4, None)], None, 1025) == [("a", 1005, 1024, "1,2", None)]


def test_reducing_gives_one_of_the_events(make: Make) -> None:
    bench = make(Session("10s"), largest(), result="bigint")
    bench.step([("a", 3, 0), ("a", 7, 15), ("a", 5, 8), ("b", 1, 0)])
    assert bench.step((), 100) == [session("a", 0, 25, 7), session("b", 0, 10, 1)]


def test_a_fold_may_begin_with_nothing(make: Make) -> None:
    def smallest(value: int | None, event: Any) -> int:
        return event.v if value is None else min(value, event.v)  # type: ignore[no-any-return]

    bench = make(
        Tumbling("10s"), Folding("bigint", ["result"], create=partial(identity, None), add=smallest), result="bigint"
    )
    bench.step([("a", 3, 0), ("a", 2, 1), ("a", 5, 2)])
    assert bench.step((), 10) == [row("a", 0, 10, 2)]


def test_a_function_may_give_many_rows_or_none(make: Make) -> None:
    def each(key: str, window: Any, events: list[Any]) -> Any:
        assert (window.end - window.start).total_seconds() == 10
        return None if key == "none" else [(event.v,) for event in events]

    bench = make(Tumbling("10s"), Keeping("struct<k: string, v: bigint>", ["result"], each), result="bigint")
    bench.step([("none", 1, 0), ("a", 2, 0), ("a", 3, 0)])
    assert bench.step((), 10) == [row("a", 0, 10, 2), row("a", 0, 10, 3)]


@pytest.mark.parametrize("given", [{"other": 1}, {"result": 1, "k": "a"}, (1, 2), "text"])
def test_a_row_that_does_not_fit(make: Make, given: Any) -> None:
    contents = Keeping("struct<k: string, v: bigint>", ["result"], lambda key, window, events: [given])
    bench = make(Global(count=1), contents, timed=False)
    with pytest.raises(UserCodeError, match=r"operator 'op'.*expected"):
        bench.step([("a", 1, None)])
    bench.task.abort()


def test_an_error_in_a_function_leaves_everything_as_it_was(make: Make) -> None:
    broken = [True]

    def fail(key: str, window: Any, events: list[Any]) -> Any:
        if len(events) > 1 and broken:
            raise ValueError("no more")
        return [(str(len(events)),)]

    bench = make(Tumbling("10s"), Keeping("struct<k: string, v: bigint>", ["result"], fail))
    bench.step([("a", 1, 0), ("b", 2, 0), ("b", 3, 0)])
    with pytest.raises(UserCodeError, match="no more"):
        bench.step((), 10)
    bench.task.abort()
    bench.process._contents._function.__closure__[0].cell_contents.clear()  # type: ignore[union-attr]
    assert bench.step((), 10) == [row("a", 0, 10, "1"), row("b", 0, 10, "2")]


@pytest.mark.parametrize("lateness", [0, 10_000])
@pytest.mark.parametrize("kind", [Tumbling("10s"), Session("10s")])
def test_thousands_of_windows_of_a_key_are_not_searched_for_each(
    make: Make, kind: Any, lateness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, entries, searched = make(kind, joined(), lateness=lateness), MapTable.entries, [0]

    class Watched(dict[Any, Any]):
        def __iter__(self) -> Iterator[Any]:
            searched[0] += len(self)
            return super().__iter__()

        def items(self) -> Any:
            searched[0] += len(self)
            return super().items()

    monkeypatch.setattr(MapTable, "entries", lambda table, key: Watched(entries(table, key)))
    bench.step([("a", v, 20 * v) for v in range(500)])
    assert bench.step((), 10_000) == [row_of(kind)("a", 20 * v, 20 * v + 10, str(v)) for v in range(500)]
    assert bench.step((), 30_000) == []
    assert searched[0] <= 10_000


def test_sessions_that_a_failed_call_has_merged_are_apart(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_FEW_SESSIONS", 0)

    def add(sum_so_far: int, event: Any) -> int:
        return sum_so_far + 10 // event.v

    contents = Folding(
        "bigint", ["result"], create=partial(identity, 0), add=add, merge=lambda one, other: one + other,
    )  # fmt: skip
    bench = make(Session("10s"), contents, result="bigint")
    bench.program = msgspec.structs.replace(bench.program, on_error=OnError("skip"))
    bench.restore(bench.snapshot(), bench.epoch)
    bench.step([("a", 1, 0), ("a", 2, 20), ("a", 0, 10), ("a", 5, 25), ("a", 10, 3)])
    assert bench.step((), 100) == [session("a", 0, 13, 11), session("a", 20, 35, 7)]


def test_events_without_a_time_are_late(make: Make) -> None:
    bench = make(Session("10s"), joined())
    bench.step([("a", 1, None), ("a", 2, 0)])
    assert bench.late == [("a", 1, None)]
    assert bench.step((), 11) == [session("a", 0, 10, "2")]


def test_late_events_that_nobody_wants_are_counted(make: Make) -> None:
    bench = make(Tumbling("10s"), folded(), late=None)
    bench.step([("a", 1, 0)], 10)
    bench.step([("a", 2, 5), ("a", 3, None), ("a", 4, 15)], 12)
    assert bench.task.store.metrics()["late_dropped"] == 3
    assert bench.step((), 20) == [row("a", 10, 20, "4")]


@pytest.mark.parametrize("kind", [Tumbling("10s"), Session("10s")])
def test_keys_of_several_columns(make: Make, contents: Contents, kind: Any) -> None:
    bench = make(kind, contents, keys=("k", "v"))
    bench.step([("a", 1, 0), ("a", 2, 0), ("a", 1, 0)])
    given = bench.step((), 11)
    assert sorted(given, key=lambda r: r[3]) == [row_of(kind)("a", 0, 10, "1,1"), row_of(kind)("a", 0, 10, "2")]


def test_a_global_window_s_key_of_several_columns(make: Make) -> None:
    bench = make(Global(count=2), folded(), keys=("k", "v"), timed=False)
    assert [r[3] for r in bench.step([("a", 1, None), ("a", 2, None), ("a", 1, None)])] == ["1,1"]
    bench.step([("a", 2, None)])
