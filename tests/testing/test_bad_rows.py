"""Bad rows of steps without state: what a function fails for leaves no row, and is a dead letter or is counted."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.testing import Harness, events

ROWS = events("k string, v int")


def spread(row: Any) -> Any:
    """Give as many rows as its number says; fail, after the first, for a multiple of three; misfit for a four."""
    for at in range(row.v or 0):
        yield row.k, "four" if row.v == 4 else at
        if row.v % 3 == 0:
            raise ValueError(f"{row.v} is a multiple")


@given(
    rows=st.lists(st.tuples(st.text(max_size=2), st.none() | st.integers(0, 7)), max_size=12),
    then=st.sampled_from(["skip", "dead-letter"]),
)
def test_a_row_that_fails_gives_none_of_its_rows(rows: list[tuple[str, int | None]], then: Any) -> None:
    good = [(k, at) for k, v in rows for at in range(v or 0) if v not in (3, 4, 6)]
    bad = [(k, v) for k, v in rows if v in (3, 4, 6)]
    with Harness(ROWS.flat_map(spread, "k string, at int", on_error=then)) as h:
        assert h.push(*rows) == good
        assert h.failed_events == len(bad)
        letters = h.dead_letters
    assert [tuple(json.loads(letter.event).values()) for letter in letters] == (bad if then == "dead-letter" else [])
    for letter in letters:
        assert (letter.operator, letter.step, letter.key) == ("spread", "flat_map", None)
        fails = "ValueError" if json.loads(letter.event)["v"] != 4 else "expected int"
        assert fails in letter.reason
        assert ("in spread" in (letter.traceback or "")) == (fails == "ValueError")


def halved(row: Any) -> Any:
    return row.k, 10 // row.v, row.ts


def test_rows_behind_a_map_keep_their_times_and_so_do_dead_letters() -> None:
    """What the steps give is read by an operator, whose own dead letters have the same columns."""
    stream = events("k string, v int, ts timestamp").watermark("ts")
    mapped = stream.map(halved, "k string, v int, ts timestamp", on_error="dead-letter")
    counts = mapped.key_by("k").window(sl.Tumbling("10s")).agg(count=sl.agg.count(), uid="n")
    letters = mapped.dead_letters.union(
        mapped.key_by("k")
        .fold("n int", 0, lambda n, e: n + 10 // (e.v - 5), uid="f", on_error="dead-letter")
        .dead_letters
    )
    assert letters.columns == mapped.dead_letters.columns
    with Harness(counts) as h:
        at = h.now
        h.push(("a", 1, at), ("a", 0, at), ("b", 2, at), ("b", 0, at.replace(second=12)))
        assert sorted((row.k, row.count) for row in h.advance_watermark(at.replace(second=20))) == [("a", 1), ("b", 1)]
        assert [letter.event_time for letter in h.dead_letters] == [at, at.replace(second=12)]
    with Harness(letters) as h:
        rows = h.push(("a", 0, at), ("a", 2, at))
        assert [(row.operator, row.reason) for row in rows] == [
            ("halved", "ZeroDivisionError: integer division or modulo by zero"),
            ("f", "ZeroDivisionError: integer division or modulo by zero"),
        ]


def test_what_is_not_the_rows_fault_ends_the_job() -> None:
    def hungry(row: Any) -> Any:
        raise MemoryError("no more")

    def leaving(row: Any) -> Any:
        raise SystemExit(3)

    for function, said in ((hungry, "MemoryError"), (leaving, "SystemExit")):
        raised = pytest.raises(sl.errors.UserCodeError, match=f"map: the function raised on the row.*{said}")
        with Harness(ROWS.map(function, "k string", on_error="skip")) as h, raised:
            h.push(("a", 1))


def test_a_map_that_fails_still_ends_the_job_unless_told() -> None:
    with Harness(ROWS.flat_map(spread, "k string, at int")) as h:
        with pytest.raises(sl.errors.UserCodeError, match="flat_map: the function raised on the row"):
            h.push(("a", 3))
        assert h.push(("a", 1)) == [("a", 0)]


class Total(sl.KeyedProcess):
    total = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        self.total.value += event.v
        yield ctx.key, self.total.value


TIMED = events("k string, v int, ts timestamp", name="a").watermark("ts")
OTHER = events("k string, w int, ts timestamp", name="b").watermark("ts")


def start(second: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


JOINS: dict[str, Any] = {
    "join": lambda a, b, **more: a.join(b, ("-5s", "5s"), uid="j", prefixes=("", "b_"), **more),
    "window_join": lambda a, b, **more: a.window_join(b, sl.Tumbling("10s"), uid="j", prefixes=("", "b_"), **more),
    "sessions": lambda a, b, **more: a.window_join(b, sl.Session("2s"), uid="j", prefixes=("", "b_"), **more),
    "as_of_join": lambda a, b, **more: a.as_of_join(b, uid="j", prefixes=("", "b_"), **more),
}


@pytest.mark.parametrize("join", JOINS)
def test_rows_that_no_join_can_take_are_dead_letters(join: str) -> None:
    """Without a key, or without a time; the others are joined as if these had never come."""
    a, b = TIMED.key_by("k"), OTHER.key_by("k")
    fine = [("a", 1, start(2)), ("a", 2, start(3))], [("a", 7, start(2))]
    bad = [(None, 3, start(2)), ("a", 4, None)], [(None, 5, start(1)), ("a", 6, None)]
    with Harness(JOINS[join](a, b)) as h:
        expected = h.push(a=fine[0], b=fine[1]) + h.advance_to_end()
        assert len(expected) == 2
    with Harness(JOINS[join](a, b)) as h:
        with pytest.raises(sl.errors.NullKeyError, match="the key column 'k' is null in the event"):
            h.push(a=bad[0][:1])
        called = "window_join" if join == "sessions" else join
        with pytest.raises(sl.errors.UserCodeError, match=rf"'j': {called}\(\) failed for key 'a', .*: the row has no"):
            h.push(b=bad[1][1:])
    for then in ("skip", "dead-letter"):
        with Harness(JOINS[join](a, b, on_error=then)) as h:
            rows = h.push(a=[*bad[0], *fine[0]], b=[*fine[1], *bad[1]])
            assert h.failed_events == 4
            assert rows + h.advance_to_end() == expected
            letters = h.dead_letters
        if then == "skip":
            assert letters == []
            continue
        assert [(letter.step, json.loads(letter.event).get("v", json.loads(letter.event).get("w"))) for letter in letters] == [
            ("key_by", 3), ("key_by", 5), (called, 4), (called, 6)
        ]  # fmt: skip
        assert all("the row has no time" in letter.reason for letter in letters[2:])


AGGREGATED: dict[str, Any] = {
    "running": lambda keyed: keyed,
    "tumbling": lambda keyed: keyed.window(sl.Tumbling("10s")),
    "sliding": lambda keyed: keyed.window(sl.Sliding("10s", every="5s"), late="late"),
    "sessions": lambda keyed: keyed.window(sl.Session("2s")),
    "by count": lambda keyed: keyed.window(sl.Global(count=2)),
    "by the clock": lambda keyed: keyed.window(sl.Tumbling("10s"), time="processing"),
}
ROW = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([1, 2, None]), st.integers(0, 30))


@pytest.mark.parametrize("cut", AGGREGATED)
@given(epochs=st.lists(st.lists(ROW, max_size=6), max_size=4), then=st.sampled_from(["skip", "dead-letter"]))
def test_rows_without_a_key_do_not_end_an_aggregation(cut: str, epochs: list[list[Any]], then: Any) -> None:
    stream = events("k string, l int, v int, ts timestamp").watermark("ts", delay="1 min")

    def run(epochs: list[list[Any]], on_error: Any) -> tuple[Any, ...]:
        keyed = AGGREGATED[cut](stream.key_by("k", "l"))
        with Harness(keyed.agg(n=sl.agg.count(), total=sl.agg.sum("v"), uid="agg", on_error=on_error)) as h:
            failed = []
            for epoch in epochs:
                h.push(*((k, number, at, start(at)) for k, number, at in epoch))
                failed.append(h.failed_events)
            h.advance_to_end()
            h.advance_clock("1 min")
            return Counter(h.output), failed, h.dead_letters

    def is_bad(row: Any) -> bool:
        return row[0] is None or row[1] is None

    found, failed, letters = run(epochs, then)
    assert failed == [sum(map(is_bad, epoch)) for epoch in epochs]
    expected, _, _ = run([[row for row in epoch if not is_bad(row)] for epoch in epochs], "fail")
    assert found == expected
    bad = [row for epoch in epochs for row in epoch if is_bad(row)] if then == "dead-letter" else []
    assert [json.loads(letter.key) for letter in letters] == [[k, number] for k, number, _ in bad]
    assert [json.loads(letter.event)["v"] for letter in letters] == [at for _, _, at in bad]
    assert [letter.event_time for letter in letters] == [start(at) for _, _, at in bad]
    assert {(letter.operator, letter.step) for letter in letters} <= {("agg", "key_by")}


def test_too_many_rows_without_a_key_are_an_outage() -> None:
    keyed = events("k string, v int").key_by("k")
    with Harness(keyed.agg(v=sl.agg.sum("v"), uid="total", on_error=sl.OnError("dead-letter", at_most=2))) as h:
        h.push((None, 1), (None, 2), ("a", 3))
        with pytest.raises(sl.errors.NullKeyError, match="'total', partition 0: 3 events failed within 1 min, and at"):
            h.push((None, 4))
        # The epoch that was given up counts for nothing.
        assert [(row.k, row.v) for row in h.advance_clock("2 min")] == []
        assert [(row.k, row.v) for row in h.push((None, 4), ("a", 5))] == [("a", 8)]
