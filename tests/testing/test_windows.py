"""The harness with functions of windows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from strandline import Global, KeyedProcess, Session, Sliding, Tumbling, Value
from strandline.core.errors import ConfigurationError, OutputError, StateTypeError, UserCodeError
from strandline.testing import Harness, Right, window
from tests.runtime.bench import KINDS

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
SALES: dict[str, Any] = {"schema": "user string, n bigint, ts timestamp", "key": "user"}
TIMED = {**SALES, "event_time": "ts"}
FOREVER = START + dt.timedelta(hours=1)


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def event(user: str, second: float | None, n: int = 1) -> tuple[Any, ...]:
    return user, n, None if second is None else at(second)


def plain(rows: Iterable[Any]) -> list[Any]:
    return sorted(tuple((v - START).total_seconds() if isinstance(v, dt.datetime) else v for v in row) for row in rows)


def summed(kind: Any, **rules: Any) -> Any:
    return window(kind, **rules).fold("total bigint", 0, lambda total, e: total + e.n, merge=lambda a, b: a + b)


def listed(key: Any, bounds: Any, events: list[Any]) -> Any:
    assert bounds is None or bounds.start < bounds.end
    yield {"ns": ",".join(str(e.n) for e in events)}


EVENTS = [event("a", 1), event("a", 4, 2), event("b", 4, 3), event("a", 11, 4), event("a", 30, 5)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Tumbling("10s"), [("a", 0, 10, 3), ("a", 10, 20, 4), ("a", 30, 40, 5), ("b", 0, 10, 3)]),
        (
            Sliding("10s", every="5s"),
            [
                ("a", -5, 5, 3), ("a", 0, 10, 3), ("a", 5, 15, 4), ("a", 10, 20, 4), ("a", 25, 35, 5),
                ("a", 30, 40, 5), ("b", -5, 5, 3), ("b", 0, 10, 3),
            ],
        ),
        (Session("8s"), [("a", 1, 19, 7), ("a", 30, 38, 5), ("b", 4, 12, 3)]),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("backend", KINDS)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_of_every_kind_and_what_a_crash_loses(
    kind: Any, expected: list[Any], backend: Any, parallelism: int
) -> None:
    with Harness(summed(kind), **TIMED, backend=backend, parallelism=parallelism) as h:
        h.push(*EVENTS[:2])
        h.snapshot()
        h.push(event("a", 2, 100), *EVENTS[2:])
        h.advance_watermark(FOREVER)
        h.crash()
        assert h.output == []
        h.push(*EVENTS[2:])
        assert plain(h.advance_watermark(FOREVER)) == expected
        assert not h.timers("a")


def test_functions_of_windows() -> None:
    def mean(**given: Any) -> Any:
        return window(Tumbling("10s")).aggregate(
            "struct<n: bigint, total: bigint>", create=lambda: (0, 0), add=lambda acc, e: (acc.n + 1, acc.total + e.n),
            **given,
        )  # fmt: skip

    functions = [
        (window(Tumbling("10s")).reduce(lambda a, b: a if a.n >= b.n else b), (2, 4)),
        (mean(output="mean double", result=lambda acc: acc.total / acc.n), (1.5,)),
        (mean(output="n bigint, total bigint"), (2, 3)),
        (window(Tumbling("10s")).process(listed, output="ns string"), ("1,2",)),
        (
            window(Tumbling("10s")).fold("n int, text string", (0, ""), lambda v, e: (v.n + 1, f"{v.text}{e.n}")),
            (2, "12"),
        ),
    ]
    for function, result in functions:
        with Harness(function, **TIMED) as h:
            h.push(*EVENTS)
            assert plain(h.advance_watermark(at(10)))[0] == ("a", 0, 10, *result)


def test_late_events() -> None:
    with Harness(summed(Tumbling("10s"), lateness="5s", late="too late"), **TIMED, watermark="0s") as h:
        h.push(event("a", 1), event("a", 12))
        assert plain(h.tick()) == [("a", 0, 10, 1)]
        h.push(event("a", 9, 5))
        assert plain(h.tick()) == [("a", 0, 10, 6)]
        h.push(event("b", 15))
        assert h.push(event("a", 8), event("a", None, 2)) == []
        assert plain(h.side("too late")) == [("a", 1, 8), ("a", 2, None)]
        assert h.late_rows == 1


def test_early_results_come_by_the_clock() -> None:
    with Harness(summed(Tumbling("1h"), early="10s"), **TIMED) as h:
        h.push(event("a", 1), event("a", 2))
        assert plain(h.advance_clock("10s")) == [("a", 0, 3600, 2)]
        assert h.advance_clock("10s") == []
        h.push(event("a", 3))
        assert plain(h.advance_clock("10s")) == [("a", 0, 3600, 3)]


def test_windows_that_follow_the_clock() -> None:
    with Harness(summed(Tumbling("10s"), time="processing"), **SALES) as h:
        h.push(event("a", None), event("b", 5))
        assert h.advance_clock("9s") == []
        h.push(event("a", None))
        assert plain(h.advance_clock("1s")) == [("a", 0, 10, 2), ("b", 0, 10, 1)]


def test_global_windows_and_keys_of_several_columns() -> None:
    by_count = window(Global(count=2)).process(listed, output="ns string")
    with Harness(by_count, schema=SALES["schema"], key=["user", "ts"], parallelism=2) as h:
        assert plain(h.push(event("a", 1, 7), event("b", 1), event("a", 2), event("a", 1, 8))) == [("a", 1, "7,8")]
    with Harness(summed(Global(when=lambda e, n: e.n == 0)), **SALES) as h:
        assert h.push(event("a", 1, 7), event("a", 1, 8), event("a", 1, 0)) == [("a", 15)]


class Double(KeyedProcess):
    seen = Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield ctx.key, 2 * event[-1 if "total" in event._fields else 1]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_windows_in_a_chain(parallelism: int) -> None:
    chain = Harness(Double(), **TIMED, output="user string, n bigint", watermark="0s", parallelism=parallelism).then(
        summed(Tumbling("10s"), late="late"), key="user", uid="sums"
    )
    chain.then(Double(), key="user", output="user string, n bigint", uid="double")
    # A window of the same size takes in what the one before it gives.
    chain.then(window(Tumbling("10s")).process(listed, output="ns string"), key="n", uid="listed")
    with chain as h:
        h.push(*EVENTS[:3])
        h.push(*EVENTS[3:])
        h.snapshot()
        for _ in range(2):
            h.push(event("a", 2))
            assert plain(h.tick()) == []
            assert plain(h.output) == [(12, 0, 10, "12,12"), (16, 10, 20, "16")]
            assert h.side("late") == [("a", 2)]
            assert h.state("a", "operator") == {"seen": 5}
            h.crash()


def test_a_function_that_fails_does_not_apply_the_epoch() -> None:
    def no_threes(total: int, event: Any) -> int:
        return total + 12 // (3 - event.n)

    with Harness(window(Tumbling("10s")).fold("total bigint", 0, no_threes), **TIMED) as h:
        h.push(event("a", 1, 1))
        with pytest.raises(UserCodeError, match=r"key 'a', in the event Record\(user='a', n=3.*ZeroDivisionError"):
            h.push(event("a", 1, 2), event("a", 1, 3))
        assert plain(h.advance_watermark(at(10))) == [("a", 0, 10, 6)]
    wrong = window(Tumbling("10s")).process(lambda key, bounds, events: [(1, 2)], output="n int")
    with Harness(wrong, **TIMED) as h:
        h.push(event("a", 1))
        with pytest.raises(OutputError, match=r"a result row is \(1, 2\), expected a dict or a tuple of n"):
            h.advance_watermark(at(10))


def test_a_function_that_gives_what_does_not_fit_is_told_of_nothing_else() -> None:
    windows = [window(Tumbling("1s")), window(Session("1s")), window(Global(count=9))]
    cases: list[Any] = [("n int", "x", "int: expected int, got"), ("a int, b int", (1, "x"), "expected int at .b, got")]
    for made in windows:
        for output, gives, said in cases:
            function = made.fold(output, None, lambda value, event, gives=gives: gives, merge=max)
            with Harness(function, **TIMED) as h, pytest.raises(StateTypeError) as caught:
                h.push(event("a", 1))
            message = caught.value.message
            assert "operator 'operator': the function of windows raised for key 'a', in the event Record(" in message
            assert "what it gave does not fit " in message
            assert f"{said} 'x' (str)" in message
            assert "fresh" not in message
            assert str(caught.value).count("next step") == 1


AGGREGATE: Any = partial(window(Tumbling("1s")).aggregate, "bigint", output="n bigint")


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (lambda: window(Tumbling), {}, r"window\(\) was given .*Tumbling.*, expected a kind of window"),
        (lambda: window(Tumbling("1s"), time="clock"), {}, "time is 'clock'"),  # type: ignore[arg-type]
        (lambda: window(Global(count=2), late="late"), {}, "Global windows that do not follow event time have no late"),
        (lambda: window(Tumbling("1s"), early="0s"), {}, "early is '0s'"),
        (lambda: summed(Tumbling("1s")), {"event_time": None}, "Tumbling windows need the events' times"),
        (lambda: summed(Tumbling("1s")), {"output": "total bigint"}, "'operator': output or sides was given"),
        (lambda: summed(Tumbling("1s")), {"sides": {}}, "'operator': output or sides was given"),
        (lambda: summed(Tumbling("1s")), {"key": "name"}, "there is no column 'name'"),
        (lambda: summed(Tumbling("1s")), {"right": "user string"}, "is a function of one stream"),
        (lambda: window(Session("1s")).fold("n int", 0, max), {"uid": "x"}, "fold 'x': session windows can become one"),
        (lambda: window(Tumbling("1s")).fold("n int", "0", max), {"uid": "x"}, "fold 'x': the initial value does not fit"),
        (lambda: window(Tumbling("1s")).fold("user int", 0, max), {}, "the result's column 'user' has a name of the key"),
        (lambda: window(Tumbling("1s")).fold("User int", 0, max), {}, "the result's column 'User' has a name of the key"),
        (lambda: window(Tumbling("1s")).fold("n int", 0, None), {"uid": "x"}, "fold 'x': function is None, expected a"),  # type: ignore[arg-type]
        (lambda: window(Tumbling("1s")).reduce("max"), {"uid": "x"}, "reduce 'x': function is 'max', expected a"),  # type: ignore[arg-type]
        (lambda: window(Tumbling("1s")).process(None, "n int"), {}, "process: function is None, expected a function"),  # type: ignore[arg-type]
        (lambda: AGGREGATE(create=0, add=max), {}, "aggregate: create is 0, expected a function"),
        (lambda: AGGREGATE(create=int, add=max, merge=1), {}, "aggregate: merge is 1, expected a function"),
        (lambda: window(Tumbling("1s"), late=""), {}, "late is '', expected a name"),
        (
            lambda: summed(Tumbling("1s")),
            {"schema": "window_end int, n int, ts timestamp", "key": "window_end"},
            "the key 'window_end' has the name of a column that the window's results have",
        ),
        (lambda: window(Tumbling("1s")).reduce(max), {"schema": "ts timestamp", "key": "ts"}, "no columns beside"),
        (Double, {}, "it is not said which columns its rows have"),
    ],
)  # fmt: skip
def test_windows_that_cannot_work(make: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Harness(make(), **{**TIMED, **given})


def test_other_mistakes() -> None:
    with Harness(summed(Tumbling("10s")), **TIMED) as h:
        h.push(event("a", 1))
        assert h.timers("a") == [at(10)]
        assert h.state("a") == {"results": [("a", START, at(10), 1)]}
        with pytest.raises(ConfigurationError, match="there is no right stream"):
            h.push(Right(event("a", 1)))
