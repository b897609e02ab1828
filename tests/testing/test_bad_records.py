"""Bad records in a harness: functions of two streams, rules, windows, and side outputs, as a job has them."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

import strandline as sl
from strandline.testing import Harness, Right, events

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def at(second: int) -> dt.datetime:
    return START + dt.timedelta(seconds=second)


class Rated(sl.KeyedBroadcastProcess):
    """Prices by rules; a rule below zero fails after it has been written."""

    rates = sl.Broadcast("string", "bigint")

    def on_broadcast(self, rule: Any, ctx: sl.Context) -> None:
        self.rates[rule.name] = rule.rate
        if rule.rate < 0:
            raise ValueError("below zero")

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        yield ctx.key, event.amount * self.rates[event.kind]


def test_a_rule_that_fails_is_undone_everywhere_and_one_dead_letter() -> None:
    given: Any = {"schema": "id bigint, kind string, amount bigint", "right": "name string, rate bigint", "key": "id"}
    with Harness(
        Rated(), **given, output="id bigint, cost bigint", on_error="dead-letter", parallelism=4, order_by="rate"
    ) as h:
        h.push_right(("a", 2), ("a", -3))
        # The rule that is below zero comes first, as they are in order; then one alone.
        h.push_right(("a", -5))
        rows = h.push(*((number, "a", 10) for number in range(8)), (8, "b", 1))
        assert sorted(rows) == [(number, 20) for number in range(8)]
        assert h.broadcast_state() == {"rates": {"a": 2}}
        rules = [letter for letter in h.dead_letters if letter.step == "on_broadcast"]
        assert [json.loads(letter.event)["rate"] for letter in rules] == [-3, -5]
        (missing,) = [letter for letter in h.dead_letters if letter.step == "on_event"]
        assert missing.reason == "KeyError: 'b'"


class Matching(sl.KeyedCoProcess):
    """Fails for what comes before the other half is there."""

    name = sl.Value("string")

    def on_left(self, event: Any, ctx: sl.Context) -> Any:
        yield ctx.key, len(self.name.value)

    def on_right(self, event: Any, ctx: sl.Context) -> None:
        self.name.value = event.name
        if not event.name:
            raise ValueError("no name")


def test_each_half_of_two_streams_is_told_as_it_came() -> None:
    given: Any = {"schema": "id bigint", "right": "id bigint, name string", "key": "id", "output": "id bigint, n int"}
    with Harness(Matching(), **given, on_error="dead-letter") as h:
        assert h.push((1,), Right((1, "ann")), Right((1, "")), (1,), (None,)) == [(1, 3)]
        assert [(letter.step, letter.event) for letter in h.dead_letters] == [
            ("key_by", '{"id": null}'),
            ("on_left", '{"id": 1}'),
            ("on_right", '{"id": 1, "name": ""}'),
        ]


AMOUNTS = events("user string, v int, ts timestamp").watermark("ts").key_by("user")


def result(key: Any, window: Any, found: list[Any]) -> Any:
    """Fail in a window that holds a seven; give what does not fit of one that holds an eight."""
    for event in found:
        if event.v == 7:
            raise ValueError("seven")
        yield {"v": 1 << 40 if event.v == 8 else event.v}


@pytest.mark.parametrize("kind", [sl.Tumbling("10s"), sl.Session("5s")], ids=["tumbling", "session"])
def test_a_window_whose_result_fails_ends_as_any_other(kind: Any) -> None:
    stream = AMOUNTS.window(kind, lateness="20s").process(result, "v int", uid="w", on_error="dead-letter")
    with Harness(stream) as h:
        h.push(("a", 1, at(1)), ("b", 1, at(1)), ("b", 7, at(2)), ("c", 2, at(3)), ("c", 8, at(3)))
        assert [(row.user, row.v) for row in h.advance_watermark(at(15))] == [("a", 1)]
        assert sorted((letter.step, json.loads(letter.key)) for letter in h.dead_letters) == [
            ("window", "b"),
            ("window", "c"),
        ]
        assert json.loads(h.dead_letters[0].event).keys() == {"window_start", "window_end"}
        h.advance_watermark(at(60))
        assert [h.state(user)["results"] for user in "abc"] == [[], [], []]
        assert [h.timers(user) for user in "abc"] == [[], [], []]


def test_a_window_by_count_whose_result_fails_begins_anew() -> None:
    stream = AMOUNTS.window(sl.Global(count=2)).process(result, "v int", uid="w", on_error="dead-letter")
    with Harness(stream) as h:
        rows = h.push(*(("a", v, at(0)) for v in (1, 7, 2, 3)))
        assert [row.v for row in rows] == [2, 3]
        (letter,) = h.dead_letters
        assert (letter.step, letter.event, letter.reason) == ("window", None, "ValueError: seven")


def test_an_event_that_cannot_be_folded_in_leaves_its_window_as_it_was() -> None:
    """And what is late goes aside, not to the dead letters: the function was never called for it."""
    stream = AMOUNTS.window(sl.Sliding("20s", every="10s"), late="late").fold(
        "v int", 0, lambda total, event: total + 10 // event.v, uid="w", on_error="dead-letter"
    )
    with Harness(stream) as h:
        h.push(("a", 1, at(30)), ("b", 0, at(30)))
        h.push(("a", 2, at(1)), ("a", 0, at(30)), ("a", 5, at(31)))
        assert h.failed_events == 1
        assert (h.state("b"), h.timers("b")) == ({"results": []}, [])
        assert [(row.user, row.v) for row in h.advance_watermark(at(50))] == [("a", 12), ("a", 12)]
        assert [row.v for row in h.side("late")] == [2]
        assert [letter.reason.partition(":")[0] for letter in h.dead_letters] == ["ZeroDivisionError"] * 2


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_a_bad_record_that_is_late_or_has_no_time_is_not_late_too(on_error: Any) -> None:
    """Neither of functions nor of aggregates: it would come twice."""
    windows = AMOUNTS.window(sl.Tumbling("10s"), late="late")
    streams = {
        "fold": windows.fold("v int", 0, lambda total, event: total + event.v, uid="w", on_error=on_error),
        "agg": windows.agg(v=sl.agg.sum("v"), uid="w", on_error=on_error),
    }
    for stream in streams.values():
        with Harness(stream) as h:
            h.push(("a", 1, at(30)))
            h.push((None, 2, at(1)), ("a", 3, at(2)), (None, 4, None), ("b", 5, None))
            assert [row.v for row in h.side("late")] == [3, 5]
            if on_error == "dead-letter":
                assert [json.loads(letter.event)["v"] for letter in h.dead_letters] == [2, 4]


def test_dead_letters_of_a_chain_are_together_and_survive_a_crash() -> None:
    class Odd(sl.KeyedProcess):
        n = sl.Value("bigint", default=0)

        def on_event(self, event: Any, ctx: sl.Context) -> Any:
            self.n.value += 1
            if event.v % 2 == 0:
                raise ValueError("even")
            yield ctx.key, self.n.value

    first = (
        events("k string, v bigint")
        .key_by("k")
        .process(Odd(), "k string, v bigint", uid="first", on_error="dead-letter")
    )
    second = first.key_by("k").process(Odd(), "k string, v bigint", uid="second", on_error="dead-letter")
    with Harness(second) as h:
        h.push(("a", 1), ("a", 2))
        h.snapshot()
        h.push(("a", 4))
        h.crash()
        h.push(("a", 3))
        assert [(letter.operator, letter.reason) for letter in h.dead_letters] == [
            ("first", "ValueError: even"),
            ("second", "ValueError: even"),
        ]
        assert h.state("a", "first") == {"n": 2}
