"""Calls of other systems: how many run at once, their order, and what becomes of those that fail or hang."""

from __future__ import annotations

import asyncio
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
    """Counts the calls that are under way; is not pickled: a harness calls the function itself."""

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


def test_calls_do_run_at_once() -> None:
    all_there = threading.Barrier(4, timeout=20)

    def ask(row: Any) -> Any:
        all_there.wait()
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


@pytest.mark.parametrize("threads", [False, True])
def test_what_does_not_answer_in_time_is_not_the_functions_fault(threads: bool) -> None:
    released = threading.Event()

    async def ask(row: Any) -> Any:
        await asyncio.sleep(30)

    def ask_in_thread(row: Any) -> Any:
        released.wait(30)

    function = ask_in_thread if threads else ask
    with Harness(ROWS.map_async(function, "k string, v int", timeout="50 ms")) as h:
        with pytest.raises(
            sl.errors.UnavailableError, match=r"no answer within 0.05 s for the row Record\(k='a', v=1\)"
        ):
            h.push(("a", 1))
        released.set()

    async def own(row: Any) -> Any:
        raise TimeoutError("theirs")

    own_error = pytest.raises(sl.errors.UserCodeError, match="TimeoutError: theirs")
    with Harness(ROWS.map_async(own, "k string, v int", timeout="10s")) as h, own_error:
        h.push(("a", 1))


def test_branches_of_what_was_asked_ask_once() -> None:
    asked = ROWS.map_async(lambda row: row, "k string, v int")
    plain = ROWS.map(lambda row: row, "k string, v int")
    for stream, kept in ((asked, 1), (plain, 0)):
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
        (lambda: ROWS.map_async(len, "k strin"), "strin"),
    ):
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            make()  # type: ignore[no-untyped-call]
        assert said in str(caught.value)
