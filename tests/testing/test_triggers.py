"""Results so far of windows, by clock, watermark and count; results that count nothing twice; gaps that events say."""

from __future__ import annotations

import datetime as dt
import sys
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import strandline as sl
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Operator, Pipeline
from strandline.plan.upgrade import plan_upgrade
from strandline.testing import Harness, events
from tests.testing.times import at

TIMED = events("k string, v int, ts timestamp").watermark("ts").key_by("k")
PLAIN = events("k string, v int, ts timestamp").key_by("k")
MINUTE = sl.Tumbling("1 min")


def summed(windows: sl.WindowedStream) -> sl.Stream:
    return windows.fold("n int", 0, lambda n, e: n + e.v, uid="n", merge=lambda a, b: a + b)


def ns(rows: Any) -> list[int]:
    return [row.n for row in rows]


def test_each_so_many_events() -> None:
    early = sl.Early(events=2)
    for accumulate, given, last in ((True, [3, 15], [31]), (False, [3, 12], [16])):
        with Harness(summed(TIMED.window(MINUTE, early=early, accumulate=accumulate))) as h:
            assert ns(h.push(*(("x", v, at(1)) for v in (1, 2, 4, 8, 16)))) == given
            assert ns(h.advance_watermark(at(60))) == last
    # Nothing has come since the last result.
    for accumulate, last in ((True, [3]), (False, [])):
        with Harness(summed(TIMED.window(MINUTE, early=early, accumulate=accumulate))) as h:
            assert ns(h.push(("x", 1, at(1)), ("x", 2, at(1)))) == [3]
            assert ns(h.advance_watermark(at(60))) == last
            assert h.state("x") == {"results": []}


def test_by_the_watermark() -> None:
    with Harness(summed(TIMED.window(MINUTE, early=sl.Early("10s", time="event")))) as h:
        h.push(("x", 1, at(3)), ("x", 2, at(15)))
        assert ns(h.tick()) == [3]
        assert ns(h.advance_watermark(at(19))) == []
        assert ns(h.advance_watermark(at(20))) == []
        h.push(("x", 4, at(25)))
        assert ns(h.advance_watermark(at(30))) == [7]
        assert ns(h.advance_clock("1h")) == []
        # All at once: what is complete is not given twice.
        h.push(("x", 8, at(35)))
        assert ns(h.advance_watermark(at(60))) == [15]


@pytest.mark.parametrize("kind", [MINUTE, sl.Session("60s")])
def test_by_the_watermark_however_far_ahead_the_event_is(kind: Any) -> None:
    slow = events("k string, v int, ts timestamp").watermark("ts", "1h").key_by("k")
    with Harness(summed(slow.window(kind, early=sl.Early("10s", time="event")))) as h:
        h.push(("x", 1, at(3)))
        assert ns(h.advance_watermark(at(10))) == [1]
        h.push(("x", 2, at(45)))
        assert ns(h.advance_watermark(at(19))) == []
        assert ns(h.advance_watermark(at(20))) == [3]


def test_by_whichever_comes_first() -> None:
    with Harness(summed(TIMED.window(MINUTE, early=sl.Early("10s", events=2), accumulate=False))) as h:
        assert ns(h.push(*(("x", v, at(1)) for v in (1, 2, 4)))) == [3]
        assert ns(h.advance_clock("10s")) == [4]
        assert ns(h.push(("x", 8, at(1)))) == []
        h.snapshot()
        for _ in range(2):
            assert ns(h.push(("x", 16, at(1)))) == [24]
            h.crash()


def test_late_events_alone() -> None:
    windows = TIMED.window(MINUTE, lateness="1h", late="late", accumulate=False)
    with Harness(summed(windows)) as h:
        h.push(("x", 1, at(1)))
        assert ns(h.advance_watermark(at(60))) == [1]
        assert ns(h.push(("x", 2, at(1)), ("x", 4, at(2)))) == []
        assert ns(h.tick()) == [6]
        assert h.timers("x") == []


def test_sessions_keep_their_bounds_and_forget_what_was_given() -> None:
    slow = events("k string, v int, ts timestamp").watermark("ts", "1h").key_by("k")
    windows = slow.window(sl.Session("10s"), early=sl.Early(events=2), accumulate=False)
    with Harness(summed(windows)) as h:
        assert ns(h.push(("x", 1, at(1)), ("x", 2, at(5)))) == [3]
        assert h.state("x") == {"results": []}
        assert ns(h.push(("x", 4, at(24)))) == []
        # It makes both one, of which the older one is empty.
        given = h.push(("x", 8, at(14)))
        assert [(row.n, row.window_start, row.window_end) for row in given] == [(12, at(1), at(34))]
        h.push(("x", 16, at(2)))
        given = h.advance_watermark(at(100))
        assert [(row.n, row.window_start, row.window_end) for row in given] == [(16, at(1), at(34))]
        assert h.timers("x") == []


def test_global_windows() -> None:
    def listed(key: Any, window: Any, events: Any) -> Any:
        yield {"vs": [e.v for e in events]}

    for accumulate, given in (
        (True, [[1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5], [6, 7]]),
        (False, [[1, 2], [3, 4], [5], [6, 7]]),
    ):
        windows = PLAIN.window(sl.Global(count=5), early=sl.Early(events=2), accumulate=accumulate)
        with Harness(windows.process(listed, "vs array<int>", uid="g")) as h:
            assert [row.vs for row in h.push(*(("x", v, None) for v in range(1, 8)))] == given
            assert h.state("x") == {"results": [("x", [6, 7])] if accumulate else []}
    windows = PLAIN.window(sl.Global(count=5), early="10s", accumulate=False)
    with Harness(summed(windows)) as h:
        h.push(("x", 1, None), ("x", 2, None))
        assert ns(h.advance_clock("10s")) == [3]
        assert ns(h.push(*[("x", 1, None)] * 3)) == [3]


def test_a_gap_that_each_event_says() -> None:
    def gap(event: Any) -> Any:
        return {1: "10s", 2: dt.timedelta(seconds=60)}.get(event.v, event.v)

    with Harness(summed(TIMED.window(sl.Session(gap)))) as h:
        # The first one reaches over the second.
        h.push(("x", 2, at(0)), ("x", 1, at(5)), ("x", 1, at(59)), ("y", 1, at(5)), ("y", 1, at(59)))
        rows = h.advance_watermark(at(500))
        assert sorted((row.k, row.window_start, row.window_end, row.n) for row in rows) == [
            ("x", at(0), at(69), 4), ("y", at(5), at(15), 1), ("y", at(59), at(69), 1),
        ]  # fmt: skip
        for bad in (0, -5):
            with pytest.raises(sl.errors.UserCodeError, match=f"a session's gap gave {bad}, expected a duration"):
                h.push(("x", bad, at(600)))


def test_aggregates_keep_other_state_where_they_look_at_each_event() -> None:
    def counted(*windows: Any, **said: Any) -> Operator:
        node = TIMED.window(*windows, **said).agg(count=sl.agg.count(), uid="n")._node
        return Pipeline([node]).settle(Parallelism(default=1))[0]

    for kind in (MINUTE, sl.Session("10s"), sl.Global(count=5)):
        usual, by_event = counted(kind), counted(kind, early=sl.Early(events=5))
        parts = counted(kind, early=sl.Early("1s", events=7), accumulate=False)
        for before, now, said in (
            (usual, by_event, "its windows look at each event now, as with early=Early(events=…)"),
            (by_event, usual, "its windows looked at each event, as with early=Early(events=…)"),
        ):
            assert f"operator 'n': {said}" in plan_upgrade([before.info("rocksdb")], [now]).refusals[0]
        assert not plan_upgrade([by_event.info("rocksdb")], [parts]).refusals


KINDS = {
    "tumbling": sl.Tumbling("20s"),
    "sliding": sl.Sliding("20s", every="10s"),
    "sessions": sl.Session("5s"),
    "sessions by a function": sl.Session(lambda event: f"{1 + event.v}s"),
    "by count": sl.Global(count=4),
    "by a function": sl.Global(when=lambda event, n: event.v == 3 or n == 5),
}
EARLY = st.sampled_from([None, sl.Early(events=2), sl.Early("10s", time="event"), sl.Early("10s", events=3)])
ROWS = st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 3), st.integers(0, 60)), max_size=5)


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.given(
    epochs=st.lists(st.tuples(ROWS, st.sampled_from(["push", "crash", "snapshot", "clock"])), max_size=6), early=EARLY,
    accumulate=st.booleans(), late=st.booleans(),
)  # fmt: skip
def test_built_in_aggregates_come_when_functions_results_do(
    kind: str, epochs: Any, early: Any, accumulate: bool, late: bool
) -> None:
    """Whatever says when: the same results, in the same epochs."""
    by_event = early in (sl.Early(events=2), sl.Early("10s", time="event"), sl.Early("10s", events=3))
    accumulate = accumulate and (by_event or "function" in kind)
    rules: dict[str, Any] = {"early": early, "accumulate": accumulate}
    if not isinstance(KINDS[kind], sl.Global):
        rules |= {"lateness": "10s"} if late else {}
    windows = TIMED.window(KINDS[kind], **rules)
    ours = windows.agg(
        n=sl.agg.count(), total=sl.agg.sum("v"), top=sl.agg.max("v"), vs=sl.agg.collect_list("v"),
        mean=sl.agg.avg("v"), first=sl.agg.first("v"), uid="ours",
    )  # fmt: skip
    theirs = windows.aggregate(
        "array<int>",
        create=list,
        add=lambda vs, e: [*vs, e.v],
        merge=lambda a, b: [*a, *b],
        result=lambda vs: (len(vs), sum(vs), max(vs), vs, sum(vs) / len(vs), vs[0]),
        output="n bigint, total bigint, top int, vs array<int>, mean double, first int",
        uid="theirs",
    )
    assert ours.columns == theirs.columns

    def steps(h: Harness) -> Any:
        yield h.watermark
        for rows, then in epochs:
            yield h.push(*((k, v, at(second)) for k, v, second in rows))
            yield h.tick()
            if then in ("crash", "snapshot"):
                getattr(h, then)()
            if then == "clock":
                yield h.advance_clock("10s")
        for k in "xy":
            yield h.state(k)
        yield h.advance_to_end()

    with Harness(ours) as one, Harness(theirs) as other:
        for mine, yours in zip(steps(one), steps(other), strict=True):
            assert mine == yours


def test_mistakes() -> None:
    for make, said in (
        (lambda: sl.Early(), "Early: neither every nor events is set"),
        (lambda: sl.Early(events=0), "Early: events is 0, expected a positive number"),
        (lambda: sl.Early("0s"), "Early: every is '0s', expected more than 0"),
        (lambda: sl.Early("1s", time="events"), "Early: time is 'events', expected 'processing' or 'event'"),  # type: ignore[arg-type]
        (lambda: TIMED.window(MINUTE, accumulate=0), "window: accumulate is 0, expected True or False"),  # type: ignore[arg-type]
        (
            lambda: PLAIN.window(sl.Global(5), early=sl.Early("1s", time="event")),
            "Early(every='1s', time='event'), and the stream has no watermark",
        ),
        (
            lambda: TIMED.window(MINUTE, early=sl.Early("1s", time="event"), time="processing"),
            "and windows follow the clock",
        ),
        (
            lambda: TIMED.window(MINUTE, accumulate=False).agg(n=sl.agg.count().renamed(was="m"), uid="n"),
            "the aggregate 'n' is renamed, and windows that look at each event",
        ),
        (
            lambda: TIMED.window(sl.Session(lambda: "1s")).agg(count=sl.agg.count(), uid="n"),  # type: ignore[misc, arg-type]
            "the function of a session's gap is called with (event)",
        ),
        (lambda: TIMED.window_join(TIMED, sl.Session(lambda: "1s"), uid="j"), "the sessions' gap is called with"),  # type: ignore[misc, arg-type]
    ):
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            make()  # type: ignore[no-untyped-call]
        assert said in str(caught.value)


def test_when_results_come_may_change_at_any_start() -> None:
    def info(*windows: Any, **said: Any) -> Operator:
        return Pipeline([summed(TIMED.window(*windows, **said))._node]).settle(Parallelism(default=1))[0]

    for kind in (MINUTE, sl.Session("10s"), sl.Global(count=5)):
        usual, counted = info(kind), info(kind, early=sl.Early(events=5), accumulate=False)
        for before, now in ((usual, counted), (counted, usual)):
            assert not plan_upgrade([before.info("rocksdb")], [now]).refusals


def test_a_key_with_many_open_sessions_costs_no_more_an_event() -> None:
    """As when a job that was away for long reads in one epoch all that it has missed."""

    def calls_of(n: int) -> int:
        found = 0

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal found
            found += event == "call"

        sessions = TIMED.window(sl.Session("5s"))
        with Harness(sessions.fold("n array<int>", [], lambda n, e: [*n, 1], uid="n", merge=lambda a, b: a + b)) as h:
            sys.setprofile(count)
            h.push(*[("a", 1, at(10 * second)) for second in range(n)])
            rows = h.advance_watermark(at(100_000))
            sys.setprofile(None)
            assert len(rows) == n
        return found

    calls_of(1)  # What is made once is made now.
    assert calls_of(400) < 3 * calls_of(200)
