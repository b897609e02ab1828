"""History before a stream: its order, its epochs, its clock; and that how it is cut into epochs makes no difference."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.plan.columns import Columns
from strandline.plan.graph import Node, SourceNode, WatermarkNode
from strandline.plan.history import HistoryClock, Slice, event_time_of, make_slices, progress_of
from strandline.runtime.watermarks import WatermarkSpec
from strandline.testing import Harness, events
from tests.clock import ManualClock

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LOOK = Columns.of("k string, at timestamp, text string")
SCHEMA = "kind string, k bigint, v bigint, at timestamp"
Event = tuple[str, int, int, int]


def file(part: int, number: int = 0) -> str:
    return f"part-{part:05d}-0e9c-4f2e-c{number:03d}.zstd.parquet"


@given(st.lists(st.tuples(st.integers(0, 120_000), st.integers(0, 3), st.integers(1, 3), st.booleans()), max_size=20),
       st.randoms(use_true_random=False))  # fmt: skip
def test_epochs_are_in_the_order_of_their_files_and_times(
    parts: list[tuple[int, int, int, bool]], chance: random.Random
) -> None:
    wanted, found, at = [], [], 0
    for part, number in sorted({(part, number) for part, number, _, _ in parts}):
        stretches = [(count, nulls) for p, n, count, nulls in parts if (p, n) == (part, number)][:1]
        ((count, nulls),) = stretches
        times: list[int | None] = [None] if nulls else []
        for _ in range(count):
            times, at = [*times, at], at + 10
        for time in times:
            wanted.append((file(part, number), time, len(times) == 1))
            found.append((file(part, number), 5, time, None if time is None else time + 9))
    chance.shuffle(found)
    slices = make_slices(found)
    assert [(each.file, each.first, each.is_whole) for each in slices] == wanted
    assert sum(each.rows for each in slices) == 5 * len(wanted)


def test_the_clock_goes_with_the_rows_but_not_beyond_the_machines() -> None:
    machine = ManualClock(5000)
    clock = HistoryClock(machine, 1_000_500)
    seen = [clock.now_ms()]
    for at_us in (2_000_000, 1_500_000, None, 9_000_000):
        clock.reach(at_us)
        seen.append(clock.now_ms())
    assert seen == [1000, 2000, 2000, 2000, 5000]
    assert clock.monotonic_ms() == 5000.0
    assert HistoryClock(machine, 9_000_000).now_ms() == 5000
    # Where rows have no times, it is the machine's.
    clock = HistoryClock(machine, None)
    clock.reach(1)
    machine.advance(7)
    assert (clock.now_ms(), clock.monotonic_ms()) == (5007, 5007.0)


def test_progress_counts_what_was_done_before_but_not_for_the_rate() -> None:
    slices = [Slice(file(n), 100) for n in range(10)]
    found = progress_of(4, slices, 2, 0.5, 1_767_225_600_000_000)
    assert (found.rows, found.total_rows, found.rows_per_s) == (400, 1000, 400)
    assert str(found) == "400 of 1,000 rows (40 %), 400 rows/s, watermark 2026-01-01T00:00:00+00:00"
    assert str(progress_of(0, [], 0, 0.0, None)) == "0 of 0 rows (100 %), 0 rows/s"


def test_the_order_is_that_of_the_watermark_if_its_column_is_the_sources() -> None:
    source, other = SourceNode(LOOK, name="pay"), SourceNode(LOOK, name="other")

    def order(*columns: str) -> str | None:
        nodes: list[Node] = [WatermarkNode(LOOK, source, WatermarkSpec(column)) for column in columns]
        return event_time_of(source, [source, other, WatermarkNode(LOOK, other, WatermarkSpec("text")), *nodes])

    assert order() is None
    assert order("at") == order("at", "at") == "at"
    for columns, said in (
        (("made",), "the watermark's column 'made' is made by a step: the source 'pay' has k, at, text"),
        (("text",), "the watermark's column 'text' is made by a step"),
        (("at", "k"), "the source 'pay' has watermarks on several columns: at, k"),
    ):
        with pytest.raises(sl.errors.ConfigurationError, match=said) as raised:
            order(*columns)
        assert 'order_by={"pay": "…"}' in raised.value.hint


class Sums(sl.KeyedProcess):
    """Sums what comes in ten seconds, and gives it when they are over."""

    sums = sl.Map("timestamp", "bigint")

    def on_event(self, event: Any, ctx: Any) -> None:
        end = event.at - dt.timedelta(seconds=event.at.second % 10) + dt.timedelta(seconds=10)
        self.sums[end] = self.sums.get(end, 0) + event.v
        ctx.timers.set(end)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield ctx.key, timer.timestamp, self.sums.pop(timer.timestamp)


def pipelines() -> list[sl.Stream]:
    def of(kind: str) -> Any:
        return lambda event: [(event.k, event.v, event.at)] if event.kind == kind else []

    timed = events(SCHEMA).watermark("at", "7s")
    left, right = (timed.flat_map(of(kind), "k bigint, v bigint, at timestamp").key_by("k") for kind in "ab")
    return [
        timed.key_by("k").process(Sums(), "k bigint, at timestamp, total bigint", uid="sums"),
        timed.key_by("k").window(sl.Session("6s")).agg({"n": sl.agg.count(), "v": sl.agg.sum("v")}, uid="sessions"),
        left.join(right, ("-4s", "9s"), uid="joined", how="full", prefixes=("", "b_")),
    ]


def given_by(
    stream: sl.Stream, history: Sequence[Sequence[Event]], rest: Sequence[Event]
) -> tuple[dict[str, int], Counter[Any]]:
    """Return how far event time is after history, in these epochs, and what the rest gives."""

    def push(h: Harness, some: Sequence[Event]) -> None:
        h.push(*((kind, k, v, BEGIN + dt.timedelta(seconds=at)) for kind, k, v, at in some))
        h.tick()

    with Harness(stream, parallelism=2, backend="filesystem") as h:
        for some in history:
            push(h, some)
        assert h.late_rows == 0
        before, watermarks = Counter(map(tuple, h.output)), h.snapshot().watermarks
        push(h, rest)
        push(h, [("a", 99, 0, 10_000)])
        return watermarks, Counter(map(tuple, h.output)) - before


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_sorted_history_leaves_what_a_stream_would_have_left(data: st.DataObject) -> None:
    """Of rows that come at most so late as the watermark waits: nothing is late in either."""
    steps = data.draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 9)), max_size=30))
    came: list[Event] = []
    for at, (kind, k, by) in enumerate(steps):
        came.append((kind, k, at, max(0, 3 * at - by % 7)))
    cut = data.draw(st.integers(0, len(came)))
    sizes = [data.draw(st.integers(1, 8)) for _ in range(2)]
    sorted_history = sorted(came[:cut], key=lambda event: event[3])
    streamed, at_once = (
        [rows[at : at + size] for at in range(0, cut, size)]
        for rows, size in zip((came[:cut], sorted_history), sizes, strict=True)
    )
    for one, other in zip(pipelines(), pipelines(), strict=True):
        assert given_by(one, at_once, came[cut:]) == given_by(other, streamed, came[cut:])
