"""reduce() and fold() of a keyed stream without windows, against plain Python."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Operator, Pipeline
from strandline.plan.upgrade import plan_upgrade
from strandline.testing import Harness, events
from tests.testing.times import START

SCHEMA = "v int, k string, note string"
KEYED = events(SCHEMA).key_by("k")

rows = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from("xyz"), st.sampled_from(["a", None])), max_size=6), max_size=5
)


@given(epochs=rows, backend=st.sampled_from(["filesystem", "memory"]), parallelism=st.sampled_from([1, 2]))
def test_each_event_gives_what_all_of_its_key_so_far_come_to(epochs: Any, backend: Any, parallelism: int) -> None:
    def most(a: Any, b: Any) -> Any:
        return {"v": max(a.v, b.v), "k": "not the key", "note": b.note}

    def last(found: Any, event: Any) -> Any:
        return event.note

    reduced = KEYED.reduce(most, uid="most")
    folded = reduced.key_by("k", "note").fold("n bigint, vs array<int>", (0, []), collect, uid="all")
    named = KEYED.fold("last string", "none yet", last, uid="last")
    with Harness(folded, backend=backend) as h, Harness(named, parallelism=parallelism) as n:
        highest: dict[str, int] = {}
        seen: dict[Any, list[int]] = {}
        for number, some in enumerate(epochs):
            expected = []
            for v, k, note in some:
                highest[k] = max(v, highest.get(k, v))
                seen[k, note] = [*seen.get((k, note), []), highest[k]]
                expected.append((k, note, len(seen[k, note]), seen[k, note]))
            if any(note is None for _, _, note in some):
                with pytest.raises(sl.errors.NullKeyError):
                    h.push(*some)
                return
            assert h.push(*some) == expected
            assert sorted(n.push(*some)) == sorted((k, note) for _, k, note in some)
            if number % 2:
                h.snapshot()
                h.crash()


def collect(found: Any, event: Any) -> Any:
    found.vs.append(event.v)
    return found.n + 1, found.vs


def test_null_is_a_value_where_a_fold_begins_with_it() -> None:
    step = {None: "something", "something": None}
    with Harness(KEYED.fold("said string", None, lambda said, _: step[said], uid="f")) as h:
        assert [r.said for r in h.push(*[(1, "x", None)] * 3)] == ["something", None, "something"]


def test_a_key_that_is_silent_begins_anew() -> None:
    totals = KEYED.fold("n int", 0, lambda n, e: n + e.v, uid="f", ttl=sl.TTL("1h"))
    with Harness(totals) as h:
        assert h.push((1, "x", ""), (2, "x", "")) == [("x", 1), ("x", 3)]
        h.advance_clock("59 min")
        assert h.push((1, "x", "")) == [("x", 4)]
        h.advance_clock("1h")
        assert h.push((1, "x", "")) == [("x", 1)]


def test_rows_have_the_time_of_their_event() -> None:
    timed = events("k string, v int, ts timestamp").watermark("ts").key_by("k")
    totals = timed.fold("total int", 0, lambda n, e: n + e.v, uid="f")
    behind = totals.key_by("k").window(sl.Tumbling("10s")).fold("most int", 0, lambda n, e: max(n, e.total), uid="g")
    with Harness(behind) as h:
        h.push(*(("x", 1, START + dt.timedelta(seconds=s)) for s in (1, 5, 12)))
        assert [(r.window_start, r.most) for r in h.advance_watermark(START + dt.timedelta(seconds=30))] == [
            (START, 2), (START + dt.timedelta(seconds=10), 3),
        ]  # fmt: skip


def test_mistakes() -> None:
    for make, said in (
        (lambda: KEYED.reduce(max, uid=""), "reduce() has no uid"),
        (lambda: KEYED.reduce(5, uid="r"), "reduce 'r': function is 5, expected a function"),  # type: ignore[arg-type]
        (lambda: KEYED.fold("n int", "a", max, uid="f"), "fold 'f': the initial value does not fit 'n int'"),
        (lambda: KEYED.fold("k int", 0, max, uid="f"), "the result's column 'k' has a name of the key's"),
        (lambda: events("k int").key_by("k").reduce(max, uid="r"), "no columns beside the key's"),
        (lambda: KEYED.reduce(max, uid="r", ttl="1h"), "ttl is '1h', expected a TTL"),  # type: ignore[arg-type]
        (
            lambda: KEYED.reduce(max, uid="r", ttl=sl.TTL("1h", time="event")),
            "is to expire by event time, and the stream has none",
        ),
    ):
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            make()  # type: ignore[no-untyped-call]
        assert said in str(caught.value)


def test_a_function_that_gives_what_does_not_fit_is_told_so() -> None:
    for stream, said in (
        (KEYED.fold("n int", 0, lambda n, e: "x", uid="f"), "the function of fold() raised for key 'x'"),
        (KEYED.fold("n int", 0, lambda n, e: "x", uid="f"), "what it gave does not fit int"),
        (KEYED.fold("n array<int>", [], lambda n, e: n.append(1), uid="f"), "gave None, expected the new value"),
        (
            KEYED.window(sl.Global(count=3)).fold("n array<int>", [], lambda n, e: n.append(1), uid="f"),
            "the function gave None, expected the new value",
        ),
        (
            KEYED.window(sl.Global(count=3)).aggregate(
                "array<int>", create=list, add=lambda n, e: n.append(1), output="n array<int>", uid="f"
            ),
            "the function gave None, expected the new value",
        ),
        (KEYED.reduce(lambda a, b: None, uid="r"), "the function of reduce() gave None, expected a row"),
        (KEYED.reduce(lambda a, b: (1,), uid="r"), "the function of reduce() raised for key 'x'"),
        (
            KEYED.window(sl.Global(count=3)).reduce(lambda a, b: None, uid="r"),
            "the function of reduce() gave None, expected a row",
        ),
    ):
        with Harness(stream) as h, pytest.raises(sl.errors.StrandlineError) as caught:
            h.push((1, "x", ""), (1, "x", ""))
        assert said in str(caught.value)
        assert "does not fit struct" not in str(caught.value).replace("fit struct<v", "")


def test_what_is_kept_changes_as_a_value_does() -> None:
    def settled(stream: sl.Stream) -> Operator:
        return Pipeline([stream._node]).settle(Parallelism(default=1))[0]

    def told(before: sl.Stream, now: sl.Stream) -> Any:
        return plan_upgrade([settled(before).info("rocksdb")], [settled(now)])

    more = events("k string, v bigint, note string, more int").key_by("k")
    found = told(KEYED.reduce(max, uid="r"), more.reduce(max, uid="r"))
    assert not found.refusals
    assert "value.value.more" in str(found)
    assert "value.value.v" in str(found)
    found = told(KEYED.fold("n int", 0, max, uid="f"), KEYED.fold("n bigint", 0, max, uid="f"))
    assert not found.refusals
    assert "bigint" in str(found)
    assert told(KEYED.fold("n int", 0, max, uid="f"), KEYED.fold("n string", "", max, uid="f")).refusals
