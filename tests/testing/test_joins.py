"""Joins of streams in the harness: sessions, versions, excluded bounds, and what is late."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.testing import Harness, events
from tests.testing.times import START, at

ORDERS = events("currency string, amount int, at timestamp", "orders").watermark("at").key_by("currency")
RATES = events("currency string, rate double, at timestamp", "rates").watermark("at").key_by("currency")
PREFIXES = ("", "rate_")
LATE = ("late_orders", "late_rates")


def seconds(rows: Any, *names: str) -> list[Any]:
    """Return some columns of rows, times as seconds."""
    found = [[getattr(row, name) for name in names] for row in rows]
    return [tuple((v - START).total_seconds() if isinstance(v, dt.datetime) else v for v in row) for row in found]


def test_rows_come_with_their_time_and_are_late_for_nothing() -> None:
    joined = ORDERS.as_of_join(RATES, uid="rated", prefixes=PREFIXES, max_age="1 min")
    sums = joined.key_by("currency").window(sl.Tumbling("10s"), late="late")
    with Harness(sums.fold("amount int", 0, lambda n, row: n + row.amount, uid="sums")) as h:
        h.push(rates=[("EUR", 1.1, at(0))], orders=[("EUR", n, at(n)) for n in (1, 5, 9, 11, 60, 61)])
        h.advance_watermark(at(500))
        h.tick()
        # The rate is too old for the last one.
        assert seconds(h.output, "window_start", "amount") == [(0, 15), (10, 11), (60, 60)]
        assert h.side("late") == []


def test_late_rows_of_other_joins() -> None:
    session = sl.Session("10s")
    for joined, order, rate in (
        (ORDERS.join(RATES, ("0s", "5s"), uid="j", prefixes=PREFIXES, late=LATE), 99, 98),
        (ORDERS.window_join(RATES, sl.Tumbling("10s"), uid="j", prefixes=PREFIXES, late=LATE), 89, 81),
        (ORDERS.window_join(RATES, sl.Sliding("5s", every="10s"), uid="j", prefixes=PREFIXES, late=LATE), 94, 93),
        (ORDERS.window_join(RATES, session, uid="j", prefixes=PREFIXES, late=LATE), 89, 85),
        (ORDERS.as_of_join(RATES, uid="j", prefixes=PREFIXES, late=LATE), 99, 98),
    ):
        with Harness(joined) as h:
            h.advance_watermark(at(100))
            h.push(orders=[("EUR", 1, at(order)), ("EUR", 2, at(101))], rates=[("EUR", 1.0, at(rate))])
            assert h.side("late_orders") == [("EUR", 1, at(order))]
            assert h.side("late_rates") == [("EUR", 1.0, at(rate))]
    one = ORDERS.join(
        RATES, (dt.timedelta(0), dt.timedelta(seconds=5)), uid="j", prefixes=PREFIXES, late=(None, "late_rates")
    )
    with Harness(one) as h:
        h.advance_watermark(at(100))
        h.push(orders=[("EUR", 1, at(99))], rates=[("EUR", 1.0, at(99)), ("EUR", 2.0, at(100))])
        assert h.side("late_rates") == [("EUR", 1.0, at(99))]
        with pytest.raises(sl.errors.ConfigurationError, match="known: late_rates"):
            h.side("late_orders")


def test_bounds_that_are_excluded() -> None:
    for bounds, matched in (("[]", [-5, 0, 5]), ("[)", [-5, 0]), ("(]", [0, 5]), ("()", [0])):
        joined = ORDERS.join(RATES, (dt.timedelta(seconds=-5), "5s"), uid="j", bounds=bounds, prefixes=PREFIXES)  # type: ignore[arg-type]
        with Harness(joined) as h:
            h.push(orders=[("EUR", 1, at(50))], rates=[("EUR", 1.0, at(50 + n)) for n in (-5, 0, 5)])
            assert sorted(seconds(h.output, "rate_at")) == [(50 + n,) for n in matched]


def test_sessions_of_both_streams_together() -> None:
    joined = ORDERS.window_join(RATES, sl.Session("10s"), uid="j", how="full", prefixes=PREFIXES)
    with Harness(joined, parallelism=2) as h:
        h.push(orders=[("EUR", 1, at(0)), ("EUR", 2, at(18)), ("USD", 3, at(5))])
        # It joins what would be two sessions.
        h.push(rates=[("EUR", 1.0, at(9)), ("JPY", 2.0, at(7))])
        assert len(h.state("EUR")["results"]) == 2
        given = seconds(h.advance_watermark(at(100)), "currency", "amount", "rate_rate", "window_start", "window_end")
        assert sorted(given) == [
            ("EUR", 1, 1.0, 0, 28), ("EUR", 2, 1.0, 0, 28), ("JPY", None, 2.0, 7, 17), ("USD", 3, None, 5, 15),
        ]  # fmt: skip


def test_mistakes() -> None:
    join, as_of = ORDERS.join, ORDERS.as_of_join
    within = ("0s", "5s")
    for make, said in (
        (lambda: join(RATES, within, uid="j", bounds="both"), "join: bounds is 'both', expected one of [], [), (], ()"),
        (lambda: join(RATES, ("1s", "1s"), uid="j", bounds="[)"), "no two rows are that near"),
        (
            lambda: join(RATES, within, uid="j", prefixes=PREFIXES, late="late"),
            "join: late='late', expected the names of",
        ),
        (
            lambda: join(RATES, within, uid="j", prefixes=PREFIXES, late=("a", "a")),
            "join: late=('a', 'a'), expected the",
        ),
        (lambda: as_of(RATES, uid="", prefixes=PREFIXES), "as_of_join() has no uid"),
        (lambda: as_of(RATES, uid="j"), "as_of_join: the result would have the column at twice"),
        (
            lambda: as_of(RATES, uid="j", how="full", prefixes=PREFIXES),
            "as_of_join: how='full', expected one of inner, left",
        ),
        (
            lambda: as_of(RATES, uid="j", max_age="old", prefixes=PREFIXES),
            "as_of_join: max_age is 'old', expected a dura",
        ),
        (lambda: as_of(events("a int"), uid="j"), "as_of_join: the other stream is a Stream, expected a keyed stream"),
    ):
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            make()  # type: ignore[no-untyped-call]
        assert said in str(caught.value)


VERSIONS = (
    events("currency string, rate int, gone boolean, at timestamp", "rates")
    .watermark("at", delay="1 min")
    .key_by("currency")
)
LATE_ORDERS = events("currency string, amount int, at timestamp", "orders").watermark("at", delay="1 min")
VERSION = st.tuples(st.integers(0, 20), st.booleans() | st.none())


@given(epochs=st.lists(st.tuples(st.lists(VERSION, max_size=3), st.lists(st.integers(0, 20), max_size=3)), max_size=4))
def test_a_version_may_end_without_another(epochs: list[tuple[list[Any], list[int]]]) -> None:
    """None is late: each row finds the newest version of its time, or none if that is a deletion."""
    orders = LATE_ORDERS.key_by("currency")
    joined = orders.as_of_join(VERSIONS, uid="rated", how="left", prefixes=PREFIXES, deleted="gone")
    assert joined.columns == ["currency", "amount", "at", "rate_rate", "rate_at"]
    known: list[tuple[int, int, bool]] = []
    asked: list[int] = []
    with Harness(joined) as h:
        for versions, wanted in epochs:
            rates = [("EUR", len(known) + n, gone, at(second)) for n, (second, gone) in enumerate(versions)]
            h.push(rates=rates, orders=[("EUR", second, at(second)) for second in wanted])
            known += [(second, len(known) + n, bool(gone)) for n, (second, gone) in enumerate(versions)]
            asked += wanted
        found = [(row.amount, row.rate_rate) for row in h.advance_to_end()]
    expected = []
    for second in asked:
        _, number, gone = max([version for version in known if version[0] <= second], default=(0, None, True))
        expected.append((second, None if gone else number))
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_sessions_of_two_streams_may_have_a_gap_by_row() -> None:
    """Each row says how long it keeps its session open, whichever stream it is of; one that cannot is a bad record."""
    orders = events("k string, wait int, at timestamp", "orders").watermark("at").key_by("k")
    clicks = events("k string, page string, wait int, at timestamp", "clicks").watermark("at").key_by("k")
    gap = sl.Session(lambda row: f"{row.wait}s")
    joined = orders.window_join(clicks, gap, uid="j", prefixes=("", "click_"), on_error="dead-letter")
    with Harness(joined) as h:
        h.push(
            orders=[("a", 2, at(0)), ("a", 1, at(9)), ("a", None, at(1))],
            clicks=[("a", "/1", 5, at(1)), ("a", "/2", 1, at(7)), ("a", "/3", 1, at(10))],
        )
        rows = h.advance_to_end()
        assert sorted(seconds(rows, "click_page", "at", "window_start", "window_end")) == [
            ("/1", 0, 0, 6), ("/3", 9, 9, 11)
        ]  # fmt: skip
        assert [(letter.step, letter.event.partition(",")[0]) for letter in h.dead_letters] == [
            ("window_join", '{"k": "a"')
        ]
        assert "the function of a session's gap gave 'Nones'" in h.dead_letters[0].reason


def test_what_cannot_end_a_version_is_refused() -> None:
    for deleted, said in (
        ("lost", "deleted='lost' is no column of the versions, which have currency, rate, gone, at"),
        (True, "deleted=True is no column"),
        ("currency", "deleted='currency' is a column of the key"),
    ):
        with pytest.raises(sl.errors.ConfigurationError, match=f"as_of_join: {said}"):
            ORDERS.as_of_join(VERSIONS, uid="rated", prefixes=PREFIXES, deleted=deleted)  # type: ignore[arg-type]
