"""The harness with functions of windows."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

import pytest

from strandline import (
    Global,
    KeyedProcess,
    KeyedStream,
    Session,
    Stream,
    Tumbling,
    Value,
    WindowedStream,
    agg,
)
from strandline.core.errors import ConfigurationError, OutputError, StateTypeError, UserCodeError
from strandline.testing import Harness, Right, events
from tests.testing.times import START, at, in_seconds

SCHEMA = "user string, n bigint, ts timestamp"
SALES = events(SCHEMA).key_by("user")
FOREVER = START + dt.timedelta(hours=1)


def event(user: str, second: float | None, n: int = 1) -> tuple[Any, ...]:
    return user, n, None if second is None else at(second)


def timed(delay: str = "1h") -> KeyedStream:
    """Return sales whose watermark stays behind until it is told to advance."""
    return events(SCHEMA).watermark("ts", delay).key_by("user")


def summed(windows: WindowedStream, uid: str = "operator") -> Stream:
    return windows.fold("total bigint", 0, lambda total, e: total + e.n, uid=uid, merge=lambda a, b: a + b)


def listed(key: Any, bounds: Any, events: list[Any]) -> Any:
    assert bounds is None or bounds.start < bounds.end
    yield {"ns": ",".join(str(e.n) for e in events)}


EVENTS = [event("a", 1), event("a", 4, 2), event("b", 4, 3), event("a", 11, 4), event("a", 30, 5)]


def test_functions_of_windows() -> None:
    tens = timed().window(Tumbling("10s"))

    def mean(**given: Any) -> Any:
        return tens.aggregate(
            "struct<n: bigint, total: bigint>", create=lambda: (0, 0), add=lambda acc, e: (acc.n + 1, acc.total + e.n),
            uid="mean", **given,
        )  # fmt: skip

    functions = [
        (tens.reduce(lambda a, b: a if a.n >= b.n else b, uid="top"), (2, 4)),
        (mean(output="mean double", result=lambda acc: acc.total / acc.n), (1.5,)),
        (mean(output="n bigint, total bigint"), (2, 3)),
        (tens.process(listed, "ns string", uid="listed"), ("1,2",)),
        (tens.fold("n int, text string", (0, ""), lambda v, e: (v.n + 1, f"{v.text}{e.n}"), uid="texts"), (2, "12")),
    ]
    for function, result in functions:
        with Harness(function) as h:
            h.push(*EVENTS)
            assert in_seconds(h.advance_watermark(at(10)))[0] == ("a", 0, 10, *result)


class Double(KeyedProcess):
    seen = Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield ctx.key, 2 * event[-1 if "total" in event._fields else 1]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_in_a_chain(parallelism: int) -> None:
    doubled = timed("0s").process(Double(), "user string, n bigint", uid="operator").key_by("user")
    sums = summed(doubled.window(Tumbling("10s"), late="late"), "sums").key_by("user")
    again = sums.process(Double(), "user string, n bigint", uid="double").key_by("n")
    # A window of the same size takes in what the one before it gives.
    chain = again.window(Tumbling("10s")).process(listed, "ns string", uid="listed")
    with Harness(chain, parallelism=parallelism) as h:
        h.push(*EVENTS[:3])
        h.push(*EVENTS[3:])
        h.snapshot()
        for _ in range(2):
            h.push(event("a", 2))
            assert in_seconds(h.tick()) == []
            assert in_seconds(h.output) == [(12, 0, 10, "12,12"), (16, 10, 20, "16")]
            assert h.side("late") == [("a", 2)]
            assert h.state("a", "operator") == {"seen": 5}
            h.crash()


def test_a_function_that_fails_does_not_apply_the_epoch() -> None:
    def no_threes(total: int, event: Any) -> int:
        return total + 12 // (3 - event.n)

    tens = timed().window(Tumbling("10s"))
    with Harness(tens.fold("total bigint", 0, no_threes, uid="operator")) as h:
        h.push(event("a", 1, 1))
        with pytest.raises(UserCodeError, match=r"key 'a', in the event Record\(user='a', n=3.*ZeroDivisionError"):
            h.push(event("a", 1, 2), event("a", 1, 3))
        assert in_seconds(h.advance_watermark(at(10))) == [("a", 0, 10, 6)]
    with Harness(tens.process(lambda key, bounds, events: [(1, 2)], "n int", uid="operator")) as h:
        h.push(event("a", 1))
        with pytest.raises(OutputError, match=r"a result row is \(1, 2\), expected a dict or a tuple of n"):
            h.advance_watermark(at(10))


def test_a_function_that_gives_what_does_not_fit_is_told_of_nothing_else() -> None:
    windows = [timed().window(kind) for kind in (Tumbling("1s"), Session("1s"), Global(count=9))]
    cases: list[Any] = [("n int", "x", "int: expected int, got"), ("a int, b int", (1, "x"), "expected int at .b, got")]
    for made in windows:
        for output, gives, said in cases:
            folded = made.fold(output, None, lambda value, event, gives=gives: gives, uid="operator", merge=max)
            with Harness(folded) as h, pytest.raises(StateTypeError) as caught:
                h.push(event("a", 1))
            message = caught.value.message
            assert "operator 'operator': the function of windows raised for key 'a', in the event Record(" in message
            assert "what it gave does not fit " in message
            assert f"{said} 'x' (str)" in message
            assert "fresh" not in message
            assert str(caught.value).count("next step") == 1


SECONDS = timed().window(Tumbling("1s"))
AGGREGATE: Any = partial(SECONDS.aggregate, "bigint", output="n bigint", uid="x")
WINDOW_END = events("window_end int, n int, ts timestamp").watermark("ts").key_by("window_end")
DOUBLE = partial(Harness, Double(), schema=SCHEMA, key="user", output="n int")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SALES.window(Global(count=2), late="late"), "Global windows that do not follow event time have no late"),
        (lambda: Harness(summed(SECONDS), right="user string"), "only backend and parallelism are options for a stream"),
        (lambda: SECONDS.fold("User int", 0, max, uid="x"), "the result's column 'User' has a name of the key"),
        (lambda: SECONDS.fold("n int", 0, None, uid="x"), "fold 'x': function is None, expected a"),  # type: ignore[arg-type]
        (lambda: SECONDS.reduce("max", uid="x"), "reduce 'x': function is 'max', expected a"),  # type: ignore[arg-type]
        (lambda: AGGREGATE(create=0, add=max), ": create is 0, expected a function"),
        (lambda: AGGREGATE(create=int, add=max, merge=1), ": merge is 1, expected a function"),
        (lambda: timed().window(Tumbling("1s"), late=""), "late is '', expected a name"),
        (
            lambda: summed(WINDOW_END.window(Tumbling("1s"))),
            "the key 'window_end' has the name of a column that the window's results have",
        ),
    ],
)  # fmt: skip
def test_windows_that_cannot_work(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("given", [SECONDS, SALES, Tumbling("1s"), agg.count(), {"n": agg.count()}, max, None])
def test_windows_and_aggregates_are_given_as_streams(given: Any) -> None:
    said = f"Harness: it was given a {type(given).__name__}, expected a process function or a stream"
    with DOUBLE() as h:
        for make in (
            lambda: Harness(given, schema=SCHEMA, key="user", event_time="ts"),
            lambda: Harness(given),
            lambda: h.then(given, key="n", output="n int", uid="next"),
        ):
            with pytest.raises(ConfigurationError) as caught:
                make()
            assert caught.value.message == said
            assert "testing.events(schema)" in caught.value.hint


TO_SESSIONS = {
    "agg": lambda sales, others: sales.window(Session("10s")).agg(total=agg.sum("n"), uid="sessions"),
    "fold": lambda sales, others: summed(sales.window(Session("10s")), "sessions"),
    "process": lambda sales, others: sales.window(Session("10s")).process(listed, output="ns string", uid="sessions"),
    "window_join": lambda sales, others: sales.window_join(
        others, Session("10s"), uid="sessions", how="left", prefixes=("", "other_")
    ),
}
FURTHER = {
    "window_join": lambda sessions, others: sessions.window_join(
        others, Tumbling("1 min"), uid="further", how="left", prefixes=("", "o_")
    ),
    "join": lambda sessions, others: sessions.join(
        others, ("0s", "1s"), uid="further", how="left", prefixes=("", "o_")
    ),
}


@pytest.mark.parametrize("further", FURTHER)
@pytest.mark.parametrize("how", TO_SESSIONS)
def test_a_session_is_not_late_further_on_where_the_watermark_was_at_its_very_end(how: str, further: str) -> None:
    """Another event might have come there: the session ends when the watermark goes on."""
    sales = events(SCHEMA, "sales").watermark("ts").key_by("user")
    others = events(SCHEMA, "others").watermark("ts").key_by("user")
    sessions = TO_SESSIONS[how](sales, others).map(lambda row: (row.user, 1), "user string, n int").key_by("user")
    with Harness(FURTHER[further](sessions, others)) as h:
        # The watermark is at the minute, which is the session's end and a window's, and stays there for an epoch.
        for second in (50, 60, 61):
            given = [("b", 0, at(second))]
            h.push(sales=[*given, event("a", 50)] if second == 50 else given, others=given)
        h.advance_to_end()
        assert [row.user for row in h.output if row.user == "a"] == ["a"]


def test_other_mistakes() -> None:
    with Harness(summed(timed().window(Tumbling("10s")))) as h:
        h.push(event("a", 1))
        assert h.timers("a") == [at(9.999999)]
        assert h.state("a") == {"results": [("a", START, at(10), 1)]}
        with pytest.raises(ConfigurationError, match="there is no right stream"):
            h.push(Right(event("a", 1)))
