"""The ends of time: events of the years 1 and 9999 are like others, and event time can come to its end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.core.settings import parse_duration_ms
from strandline.core.times import END_US, FIRST_US, LAST_US, LONGEST_MS, as_datetime, within
from strandline.runtime.state import timers
from strandline.runtime.task import task
from strandline.runtime.watermarks import Watermarks, WatermarkSpec, is_drained
from strandline.testing import Harness, Right, events
from tests.runtime.test_timers import Table

FIRST, LAST = dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)
SCHEMA = "k string, v bigint, ts timestamp"

edges = st.sampled_from([FIRST_US, FIRST_US + 1, -1, 0, 1, LAST_US - 1, LAST_US])
times_us = edges | st.integers(FIRST_US, LAST_US)


def test_what_is_beyond_the_ends_is_shown_as_the_ends() -> None:
    assert (as_datetime(FIRST_US), as_datetime(LAST_US)) == (FIRST, LAST)
    assert (as_datetime(FIRST_US - 1), as_datetime(END_US)) == (FIRST, LAST)
    beyond = np.array([FIRST_US - 1, 5, LAST_US + 1])
    assert within(beyond).tolist() == [within(int(us)) for us in beyond] == [FIRST_US, 5, LAST_US]


def test_no_sum_of_a_time_and_durations_comes_near_the_end() -> None:
    longest_us = parse_duration_ms(f"{LONGEST_MS} ms", "it") * 1000
    assert LAST_US + 10 * longest_us < END_US
    assert FIRST_US - 10 * longest_us > -(1 << 63)
    for more in (f"{LONGEST_MS + 1}ms", "1000000000 d"):
        with pytest.raises(ConfigurationError, match="expected at most 10,000 years"):
            parse_duration_ms(more, "it")


def fold(windows: Any) -> Any:
    return windows.fold("total bigint", 0, lambda total, e: total + e.v, merge=lambda a, b: a + b, uid="sums")


def process(windows: Any) -> Any:
    def give(key: Any, window: Any, found: list[Any]) -> Any:
        assert FIRST <= window.start <= window.end <= LAST
        yield (sum(event.v for event in found),)

    return windows.process(give, output="total bigint", uid="sums")


WAYS: list[Callable[[Any], Any]] = [fold, process, lambda windows: windows.agg(total=sl.agg.sum("v"), uid="sums")]
KINDS = [sl.Tumbling("7d", offset="5h"), sl.Sliding("20s", every="10s"), sl.Tumbling("9000d"), sl.Session("10s")]


@settings(max_examples=8, deadline=None)
@given(some=st.lists(times_us, min_size=1, max_size=4), way=st.sampled_from(WAYS), kind=st.sampled_from(KINDS))
def test_windows_of_events_at_the_ends_of_time(some: list[int], way: Callable[[Any], Any], kind: Any) -> None:
    """They are shown early, survive a restore, and all of them come with a drain."""
    keyed = events(SCHEMA).watermark("ts", delay="9000d").key_by("k")
    with Harness(way(keyed.window(kind, lateness="9000d", early="10s"))) as h:
        h.push(*(("a", 1, as_datetime(us)) for us in some))
        h.advance_clock("1min")
        assert h.output
        h.snapshot()
        h.crash()
        h.tick()
        h.advance_to_end()
        rows = h.output
        assert all(FIRST <= row.window_start <= row.window_end <= LAST for row in rows)
        assert sum(row.total for row in rows) >= {KINDS[1]: 2}.get(kind, 1) * len(some)
        assert h.advance_to_end() == []
        assert h.state("a") == {"results": []}


@settings(max_examples=8, deadline=None)
@given(some=st.lists(times_us, min_size=1, max_size=4), way=st.sampled_from(WAYS), kind=st.sampled_from(KINDS))
def test_each_event_counts_as_often_as_any_other(some: list[int], way: Callable[[Any], Any], kind: Any) -> None:
    with Harness(way(events(SCHEMA).watermark("ts", delay="9000d").key_by("k").window(kind))) as h:
        h.push(*(("a", 1, as_datetime(us)) for us in some))
        h.tick()
        h.advance_to_end()
        assert sum(row.total for row in h.output) == {KINDS[1]: 2}.get(kind, 1) * len(some)


@pytest.mark.parametrize("how", ["inner", "full"])
def test_joins_at_the_ends_of_time(how: Any) -> None:
    left = events(SCHEMA, name="left").watermark("ts").key_by("k")
    right = events("k string, w bigint, at timestamp", name="right").watermark("at").key_by("k")
    for joined in (
        left.join(right, ("-1 min", "1 min"), uid="joined", how=how),
        left.window_join(right, sl.Tumbling("7d", offset="5h"), uid="joined", how=how),
    ):
        with Harness(joined) as h:
            h.push(("a", 1, FIRST), ("a", 2, LAST), Right(("a", 3, FIRST)))
            h.snapshot()
            h.crash()
            h.advance_to_end()
            pairs = sorted((row.v, row.w) for row in h.output)
            assert pairs == [(1, 3)] + ([(2, None)] if how == "full" else [])


class Keeps(sl.KeyedProcess):
    """Gives at each timer what is kept, and sets another one as often as the event says."""

    left = sl.Value("bigint", default=0)
    kept = sl.Value("bigint", ttl=sl.TTL("1h", time="event"))

    def on_event(self, event: Any, ctx: Any) -> None:
        assert not ctx.is_draining
        self.left.value, self.kept.value = event.v, event.v
        ctx.timers.set(ctx.timestamp)
        ctx.timers.set_processing(ctx.now + dt.timedelta(days=1))

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield ctx.key, self.kept.value, ctx.is_draining
        if self.left.value:
            self.left.value -= 1
            ctx.timers.set(min(timer.timestamp + dt.timedelta(minutes=1), LAST))


KEPT = {"schema": SCHEMA, "key": "k", "event_time": "ts", "output": "k string, kept bigint, draining boolean"}


def test_timers_at_the_end_find_what_there_was_at_their_time() -> None:
    start = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    with Harness(Keeps(), **KEPT) as h:
        h.push(("a", 90, start), ("b", 0, FIRST), ("c", 0, LAST))
        rows = h.advance_to_end()
        # For an hour, to the minute.
        assert [row.kept for row in rows if row.k == "a"] == [90] * 60 + [None] * 31
        assert [row.kept for row in rows if row.k != "a"] == [0, 0]
        assert all(row.draining for row in rows)
        assert len(h.timers("a", processing=True)) == 1, "the clock is not at its end"
        assert h.watermark == LAST


def test_timers_that_set_others_for_ever_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "LONGEST_CHAIN", 20)
    with Harness(Keeps(), **KEPT) as h:
        h.push(("a", 19, FIRST), ("b", 20, FIRST), ("c", 1 << 40, FIRST))
        rows = h.advance_to_end()
        assert [sum(row.k == key for row in rows) for key in "abc"] == [20, 21, 21]
        assert [len(h.timers(key)) for key in "abc"] == [0, 0, 1]


class InTurn(sl.KeyedProcess):
    """A timer of the clock sets one of event time, which sets one of the clock."""

    def on_event(self, event: Any, ctx: Any) -> None:
        ctx.timers.set_processing(ctx.now)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield ctx.key, timer.is_processing_time, timer.timestamp
        if timer.is_processing_time and timer.timestamp == ctx.now:
            ctx.timers.set(ctx.now)
        elif not timer.is_processing_time:
            ctx.timers.set_processing(ctx.now - dt.timedelta(seconds=1))


def test_what_timers_of_the_clock_set_fires_in_the_last_epoch() -> None:
    told = {"schema": SCHEMA, "key": "k", "event_time": "ts"}
    with Harness(InTurn(), **told, output="k string, by_clock boolean, at timestamp") as h:
        h.push(("a", 0, FIRST))
        rows = h.advance_to_end()
        assert [row.by_clock for row in rows] == [True, False, True]
        assert h.timers("a") == h.timers("a", processing=True) == []


class Flushing(sl.KeyedProcess):
    """Gives what it has gathered when the clock says so."""

    gathered = sl.List("bigint", ttl=sl.TTL("1h", time="event"))

    def on_event(self, event: Any, ctx: Any) -> None:
        self.gathered.append(event.v)
        ctx.timers.set_processing(ctx.now)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield ctx.key, list(self.gathered)


@pytest.mark.parametrize("drains", [False, True])
def test_timers_of_the_clock_find_what_has_not_expired_before_the_last_epoch(drains: bool) -> None:
    told = {"schema": SCHEMA, "key": "k", "event_time": "ts"}
    with Harness(Flushing(), **told, output="k string, gathered array<bigint>") as h:
        h.push(("a", 1, FIRST), ("a", 2, FIRST))
        assert (h.advance_to_end() if drains else h.tick()) == [("a", [1, 2])]
        assert h.timers("a", processing=True) == []


def test_timers_of_the_clock_that_are_set_in_the_last_epoch_find_what_has_not_expired() -> None:
    totals = events(SCHEMA).watermark("ts").key_by("k").window(sl.Tumbling("10s")).agg(v=sl.agg.sum("v"), uid="totals")
    flushed = totals.key_by("k").process(Flushing(), output="k string, gathered array<bigint>", uid="flushing")
    with Harness(flushed) as h:
        h.push(("a", 1, FIRST), ("a", 2, FIRST))
        assert h.advance_to_end() == [("a", [3])]


class Dating(sl.KeyedProcess):
    """Gives a moment later what has come, when it has event time."""

    held = sl.List("timestamp")

    def on_event(self, event: Any, ctx: Any) -> None:
        self.held.append(event.ts)
        ctx.timers.set_processing(ctx.now)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield from ((ctx.key, ts) for ts in self.held)


def test_what_timers_of_the_clock_give_that_gets_its_event_time_later_is_not_late() -> None:
    held = events(SCHEMA).key_by("k").process(Dating(), output="k string, ts timestamp", uid="one")
    # One after the other: what one gives has the next one set a timer.
    held = held.key_by("k").process(Dating(), output="k string, ts timestamp", uid="two")
    counted = held.watermark("ts").key_by("k").window(sl.Tumbling("10s")).agg(n=sl.agg.count(), uid="counted")
    with Harness(counted) as h:
        h.push(("a", 1, FIRST), ("a", 2, FIRST))
        assert [row.n for row in h.advance_to_end()] == [2]


class Again(sl.KeyedProcess):
    """Sets the next timer a number of microseconds after the one that fires."""

    def on_event(self, event: Any, ctx: Any) -> None:
        (ctx.timers.set_processing if event.v < 0 else ctx.timers.set)(FIRST)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        step = dt.timedelta(microseconds=int(ctx.key))
        set_timer = ctx.timers.set_processing if timer.is_processing_time else ctx.timers.set
        set_timer(timer.timestamp + step)
        yield (ctx.key,)


@pytest.mark.parametrize("processing", [False, True])
def test_a_chain_of_timers_that_never_ends_is_an_error(processing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "ENDLESS_CHAIN", 50)
    said: dict[str, Any] = {"schema": SCHEMA, "key": "k", "output": "k string", "event_time": "ts"}
    events = [(step, -1 if processing else 1, FIRST) for step in ("0", "1", "300")]
    until = FIRST + dt.timedelta(microseconds=30_000)
    with Harness(Again(), **said, on_error="dead-letter") as h:
        h.push(*events)
        rows = h.tick() if processing else h.advance_watermark(until)
        # Up to the watermark it is not far in steps of 300 µs, and that chain ends, as long as it is.
        found = [sum(row.k == step for row in rows) for step in ("0", "1", "300")]
        assert found == ([50, 50, 50] if processing else [50, 50, 100])
        assert {letter.step for letter in h.dead_letters} == {"on_timer"}
    with Harness(Again(), **said) as h:
        h.push(*events)
        with pytest.raises(UserCodeError, match=r"for key '0', .*number 50 of a chain") as caught:
            h.tick() if processing else h.advance_watermark(until)
        assert "set_timer(timer.timestamp + step)" in str(caught.value)


def test_how_many_timers_in_a_row_counts_across_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "_CHUNK", 3)
    keys = [b"\0\0" + bytes([number]) for number in range(8)]
    table = Table("rocksdb", tmp_path)
    for at, key in enumerate(keys):
        table.timers.set(key, 10 * at)
    table.timers.commit()
    table.freeze(set())
    table.write_oldest(snapshot=True)
    table.open(table.snapshots[0][0])
    fired = []
    for at_us, key in table.timers.fire(END_US, lambda encoded: None, longest=5):
        fired.append(at_us)
        table.timers.set(key, at_us + 1)
    assert fired == sorted(fired)
    assert len(fired) == 6 * len(keys)
    table.close()


def test_the_watermark_at_the_end_stays_there() -> None:
    watermarks = Watermarks([WatermarkSpec("ts")], {}, 0)
    watermarks.observe(0, {"": 5}, 0)
    assert not is_drained(watermarks.stored())
    watermarks.end()
    watermarks.observe(0, {"": LAST_US}, 0)
    assert watermarks.advance(0) == END_US
    assert is_drained(watermarks.stored())
    # Without event time there is nothing that could end.
    timeless = Watermarks([], {}, 0)
    timeless.end()
    assert timeless.advance(0) is None
