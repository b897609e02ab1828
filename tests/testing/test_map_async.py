"""Calls of other systems: how many run at once, their order, and what becomes of those that fail or hang."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.plan.pipeline import Pipeline
from strandline.spark.lower.plan import Plan
from strandline.testing import Harness, events

ROWS = events("k string, v int")


class Gauge:
    """Counts the calls that are under way."""

    def __reduce__(self) -> Any:
        """Of functions, it is looked at whether they can be sent; a harness calls the one that it was given."""
        return Gauge, ()

    def __init__(self) -> None:
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


@given(
    vs=st.lists(st.integers(0, 3), max_size=12), concurrency=st.integers(1, 5), ordered=st.booleans(),
    threads=st.booleans(),
)  # fmt: skip
def test_no_more_at_once_than_said_and_in_order(vs: list[int], concurrency: int, ordered: bool, threads: bool) -> None:
    gauge = Gauge()

    def answer(row: Any) -> Any:
        """As many rows as its number says, one as itself."""
        return None if row.v == 0 else {"k": row.k, "n": row.v} if row.v == 1 else [(row.k, row.v)] * row.v

    async def ask(row: Any) -> Any:
        with gauge:
            await asyncio.sleep((3 - row.v) / 1000)
            return answer(row)

    def ask_in_thread(row: Any) -> Any:
        with gauge:
            time.sleep((3 - row.v) / 1000)
            return answer(row)

    function = ask_in_thread if threads else ask
    asked = ROWS.map_async(function, "k string, n int", concurrency=concurrency, ordered=ordered)
    with Harness(asked) as h:
        found = h.push(*((f"k{at}", v) for at, v in enumerate(vs)))
    expected = [(f"k{at}", v) for at, v in enumerate(vs) for _ in range(v)]
    assert (found if ordered else sorted(found)) == (expected if ordered else sorted(expected))
    assert gauge.most <= concurrency
    assert gauge.now == 0


class Here:
    """Something of this process, which functions cannot take along when they are sent."""

    def __init__(self, its: Any = None) -> None:
        self.its = its

    def __reduce__(self) -> Any:
        return Here, ()


def test_calls_do_run_at_once() -> None:
    all_there = Here(threading.Barrier(4, timeout=20))

    def ask(row: Any) -> Any:
        all_there.its.wait()
        return row

    met = asyncio.Event()
    here: list[Any] = []

    async def ask_in_loop(row: Any) -> Any:
        here.append(row)
        if len(here) == 4:
            met.set()
        await met.wait()
        return row

    for function in (ask, ask_in_loop, lambda row: ask_in_loop(row)):
        here.clear()
        met = asyncio.Event()
        with Harness(ROWS.map_async(function, "k string, v int", concurrency=4)) as h:
            assert len(h.push(*[("a", v) for v in range(4)])) == 4


def test_answers_that_come_first_may_be_given_first() -> None:
    async def ask(row: Any) -> Any:
        await asyncio.sleep(0.3 if row.v == 0 else 0)
        return row

    with Harness(ROWS.map_async(ask, "k string, v int", concurrency=2, ordered=False)) as h:
        assert [row.v for row in h.push(("a", 0), ("a", 1), ("a", 2))] == [1, 2, 0]


def test_a_row_keeps_its_time() -> None:
    async def twice(row: Any) -> Any:
        await asyncio.sleep(0.002 * (row.ts.second % 2))
        return [(row.k,)] * 2

    timed = events("k string, ts timestamp").watermark("ts")
    asked = timed.map_async(twice, "k string", concurrency=3, ordered=False).key_by("k")
    counts = asked.window(sl.Tumbling("10s")).fold("n int", 0, lambda n, e: n + 1, uid="n")
    with Harness(counts) as h:
        start = h.now
        h.push(*(("a", start.replace(second=second)) for second in (1, 12, 3, 24)))
        rows = h.advance_watermark(start.replace(second=40))
        assert [(row.window_start.second, row.n) for row in rows] == [(0, 4), (10, 2), (20, 2)]


def test_an_error_names_the_row_and_gives_up_the_others() -> None:
    done: list[int] = []

    async def ask(row: Any) -> Any:
        if row.v == 2:
            raise ValueError("no such thing")
        await asyncio.sleep(0 if row.v < 2 else 5)
        done.append(row.v)
        return row

    began = time.monotonic()
    with Harness(ROWS.map_async(ask, "k string, v int", concurrency=2)) as h:
        with pytest.raises(sl.errors.UserCodeError) as caught:
            h.push(*(("a", v) for v in range(6)))
        assert "map_async: the function raised on the row Record(k='a', v=2): ValueError: no such thing" in str(
            caught.value
        )
        with pytest.raises(sl.errors.OutputError, match="map_async"):
            Harness(ROWS.map_async(lambda row: {"x": 1}, "k string, v int")).push(("a", 1))
    assert time.monotonic() - began < 4
    assert set(done) <= {0, 1}


def test_a_function_that_asks_an_iterator_for_more_than_it_has_fails() -> None:
    """Before Python 3.12, asyncio drops what StopIteration is to tell it, and the answer never came."""

    def ask(row: Any) -> Any:
        return next(iter(()))

    async def ask_in_loop(row: Any) -> Any:
        return next(iter(()))

    for function in (ask, ask_in_loop):
        failing = ROWS.map_async(function, "k string, v int")
        with Harness(failing) as h, pytest.raises(sl.errors.UserCodeError, match="k='a'"):
            h.push(("a", 1))
        asked = ROWS.map_async(function, "k string, v int", on_error="dead-letter")
        with Harness(asked) as h:
            assert h.push(("a", 1)) == []
            assert [letter.reason[:13] for letter in h.dead_letters] == ["RuntimeError:"]


def test_a_function_that_waits_for_what_another_one_has_cancelled_fails() -> None:
    """As one that waits for a connection, or an address, that a call was to bring which took too long."""

    def ask(row: Any) -> Any:
        cancelled = concurrent.futures.Future[None]()
        cancelled.cancel()
        cancelled.result()

    async def ask_in_loop(row: Any) -> Any:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    for function in (ask, ask_in_loop):
        with (
            Harness(ROWS.map_async(function, "k string, v int")) as h,
            pytest.raises(sl.errors.UserCodeError, match="k='a'"),
        ):
            h.push(("a", 1))
        with Harness(ROWS.map_async(function, "k string, v int", timeout="1m", fallback=("none", 0))) as h:
            assert h.push(("a", 1)) == [("none", 0)]


def test_a_task_of_the_functions_own_that_exits_holds_up_nobody() -> None:
    async def leaving() -> None:
        raise SystemExit(3)

    async def ask(row: Any) -> Any:
        if row.v:
            await asyncio.gather(leaving(), asyncio.sleep(0))
        return row.k, row.v

    said: list[str] = []

    def push() -> None:
        with Harness(ROWS.map_async(ask, "k string, v int", concurrency=2)) as h:
            with pytest.raises(sl.errors.UserCodeError) as caught:
                h.push(("a", 1), ("b", 0))
            said.extend([caught.value.message, *map(repr, h.push(("c", 0)))])

    pushing = threading.Thread(target=push, daemon=True)
    pushing.start()
    pushing.join(30)
    assert len(said) == 2
    assert "map_async: the function raised on the row" in said[0]
    assert "SystemExit: 3" in said[0]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_error_that_is_no_exception_may_be_a_rows_too(asynchronous: bool) -> None:
    class Panic(BaseException):
        """As a library written in Rust raises it."""

    def ask(row: Any) -> Any:
        if row.v:
            raise Panic("no")
        return row.k, row.v

    async def ask_later(row: Any) -> Any:
        return ask(row)

    asked = ROWS.map_async(ask_later if asynchronous else ask, "k string, v int", concurrency=2, on_error="skip")
    with Harness(asked) as h:
        assert h.push(("a", 1), ("b", 0)) == [("b", 0)]


@pytest.mark.parametrize("threads", [False, True])
def test_what_does_not_answer_in_time_is_not_the_functions_fault(threads: bool) -> None:
    released = Here(threading.Event())

    async def ask(row: Any) -> Any:
        await asyncio.sleep(30)

    def ask_in_thread(row: Any) -> Any:
        released.its.wait(30)

    function = ask_in_thread if threads else ask
    with Harness(ROWS.map_async(function, "k string, v int", timeout="50 ms")) as h:
        with pytest.raises(
            sl.errors.UnavailableError, match=r"no answer within 0.05 s for the row Record\(k='a', v=1\)"
        ):
            h.push(("a", 1))
        released.its.set()

    async def own(row: Any) -> Any:
        raise TimeoutError("theirs")

    own_error = pytest.raises(sl.errors.UserCodeError, match="TimeoutError: theirs")
    with Harness(ROWS.map_async(own, "k string, v int", timeout="10s")) as h, own_error:
        h.push(("a", 1))


def test_branches_of_what_was_asked_ask_once() -> None:
    asked = ROWS.map_async(lambda row: row, "k string, v int")
    called = ROWS.map(lambda row: row, "k string, v int")
    for stream, kept in ((asked, 1), (called, 1), (ROWS, 0)):
        sinks = [stream.to(sl.sinks.noop()), stream.map(lambda row: row, "k string, v int").to(sl.sinks.noop())]
        assert len(Plan._find_branches(_Planned(sinks))) == kept  # type: ignore[arg-type]


class _Planned:
    """What a plan knows when it looks for branches, without a source of Spark's."""

    def __init__(self, outputs: Any) -> None:
        self._outputs = outputs
        self.pipeline = Pipeline([output.stream._node for output in outputs])


def test_mistakes() -> None:
    for make, said in (
        (lambda: ROWS.map_async(5, "k string"), "map_async: it was given 5, expected a function"),  # type: ignore[arg-type]
        (lambda: ROWS.map_async(len, "k string", concurrency=0), "concurrency is 0, expected a number from 1 to 10000"),
        (lambda: ROWS.map_async(len, "k string", timeout="soon"), "map_async: timeout is 'soon', expected a duration"),
        (lambda: ROWS.map_async(len, "k string", timeout="0s"), "map_async: timeout is '0s', expected more than 0"),
    ):
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            make()  # type: ignore[no-untyped-call]
        assert said in str(caught.value)


class Service:
    """Answers when it was asked often enough; counts how often it was."""

    def __init__(self, failing: int, error: Exception | None = None) -> None:
        self.failing, self.error, self.asked = failing, error or ConnectionError("refused"), 0

    def __reduce__(self) -> Any:
        return Service, (self.failing, self.error)

    def answer(self, row: Any) -> Any:
        self.asked += 1
        if self.asked <= self.failing:
            raise self.error
        return row


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_call_that_fails_is_made_again_as_often_as_said(asynchronous: bool) -> None:
    def function(service: Service) -> Any:
        async def ask(row: Any) -> Any:
            return service.answer(row)

        return ask if asynchronous else service.answer

    patient = sl.Retry(3, backoff="1ms", longest="2ms", on=OSError)
    service = Service(3)
    with Harness(ROWS.map_async(function(service), "k string, v int", retry=patient)) as h:
        assert h.push(("a", 1)) == [("a", 1)]
        assert (service.asked, h.failed_events) == (4, 0)
    for service, asked in ((Service(4), 4), (Service(1, ValueError("no")), 1)):
        with Harness(ROWS.map_async(function(service), "k string, v int", retry=patient)) as h:
            with pytest.raises(sl.errors.UserCodeError, match="map_async: the function raised on the row"):
                h.push(("a", 1))
            assert service.asked == asked


@pytest.mark.parametrize("threads", [False, True])
def test_a_call_without_an_answer_is_made_again_too(threads: bool) -> None:
    tried: list[int] = []
    released = Here(threading.Event())

    async def ask(row: Any) -> Any:
        tried.append(row.v)
        await asyncio.sleep(0 if len(tried) > 2 else 30)
        return row

    def ask_in_thread(row: Any) -> Any:
        tried.append(row.v)
        released.its.wait(0 if len(tried) > 2 else 30)
        return row

    function = ask_in_thread if threads else ask
    asked = ROWS.map_async(
        function, "k string, v int", concurrency=1, timeout="500ms", retry=sl.Retry(2, backoff="1ms")
    )
    with Harness(asked) as h:
        assert h.push(("a", 7)) == [("a", 7)]
        assert tried == [7, 7, 7]
    released.its.set()


def test_calls_that_hang_leave_the_others_their_answers() -> None:
    released = Here(threading.Event())

    def ask(row: Any) -> Any:
        if row.v < 2:
            released.its.wait(30)
        return row

    asked = ROWS.map_async(ask, "k string, v int", concurrency=2, timeout="1s", fallback=("nobody", 0))
    with Harness(asked) as h:
        assert h.push(*(("a", v) for v in range(9))) == [("nobody", 0)] * 2 + [("a", v) for v in range(2, 9)]
    released.its.set()


async def never_or_odd(row: Any) -> Any:
    """Hang for a null, fail for an even number, misfit for a seven."""
    if row.v is None:
        await asyncio.sleep(30)
    if row.v % 2 == 0:
        raise ValueError("even")
    return (row.k, "seven" if row.v == 7 else row.v)


GIVEN = [("a", 1), ("b", 2), ("c", None), ("d", 3)]


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [
        (None, [("a", 1), ("d", 3)]),
        (("?", 0), [("a", 1), ("?", 0), ("?", 0), ("d", 3)]),
        ([("x", 1), {"k": "y", "v": 2}], [("a", 1), ("x", 1), ("y", 2), ("x", 1), ("y", 2), ("d", 3)]),
        (lambda row, error: (f"{row.k}:{type(error).__name__}", 0),
         [("a", 1), ("b:ValueError", 0), ("c:NoAnswer", 0), ("d", 3)]),
    ],
    ids=["no row", "a row", "rows", "a function"],
)  # fmt: skip
def test_what_fails_for_good_is_given_its_fallback(fallback: Any, expected: list[Any]) -> None:
    with Harness(ROWS.map_async(never_or_odd, "k string, v int", timeout="50ms", fallback=fallback)) as h:
        assert h.push(*GIVEN) == expected
        assert h.failed_events == 0


def test_what_fails_for_good_may_be_a_dead_letter_also_without_an_answer() -> None:
    asked = ROWS.map_async(never_or_odd, "k string, v int", timeout="50ms", on_error="dead-letter")
    with Harness(asked) as h:
        assert h.push(*GIVEN, ("e", 7)) == [("a", 1), ("d", 3)]
        found = {letter.event: letter.reason for letter in h.dead_letters}
        assert found['{"k": "b", "v": 2}'] == "ValueError: even"
        assert found['{"k": "c", "v": null}'] == "TimeoutError: no answer within 0.05 s"
        assert "expected int" in found['{"k": "e", "v": 7}']
        assert {(letter.operator, letter.step) for letter in h.dead_letters} == {("never_or_odd", "map_async")}
        assert h.failed_events == 3


def test_what_cannot_be_sent_or_does_not_fit_is_refused_as_it_is_written() -> None:
    refused: list[tuple[Any, str]] = [
        (lambda: ROWS.map_async(never_or_odd, "k string", fallback=lambda row: row), "fallback is called with"),
        (lambda: ROWS.map_async(lambda: 1, "k string"), r"map_async: the function is called with \(row\)"),
        (lambda: ROWS.map_async(never_or_odd, "k string", retry=-1), "Retry: times is -1"),
        (lambda: ROWS.map_async(never_or_odd, "k string", retry="3"), "retry is '3', expected a number or a Retry"),
        (lambda: sl.Retry(1, backoff="0s"), "backoff is '0s', expected more than 0"),
        (lambda: sl.Retry(1, backoff="1 min"), "longest is '30s', expected at least backoff"),
        (lambda: sl.Retry(1, on="OSError"), "expected types of exceptions"),
    ]
    for write, said in refused:
        with pytest.raises(sl.errors.ConfigurationError, match=said):
            write()
