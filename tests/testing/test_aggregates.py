"""The harness with built-in aggregates."""

from __future__ import annotations

import datetime as dt
import statistics
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import strandline as sl
from strandline.core.errors import NullKeyError
from strandline.testing import Harness, events
from tests.runtime.bench import KINDS
from tests.testing.times import START, at, in_seconds

SCHEMA = "k string, v bigint, x double, d decimal(10,2), s string, ts timestamp"
GIVEN = {
    "n": sl.agg.count(), "vn": sl.agg.count("v"), "total": sl.agg.sum("v"), "xs": sl.agg.sum("x"),
    "ds": sl.agg.sum("d"), "mean": sl.agg.avg("v"), "dmean": sl.agg.avg("d"), "lo": sl.agg.min("s"),
    "hi": sl.agg.max("ts"), "dev": sl.agg.stddev("v"), "var": sl.agg.var_pop("x"), "of_most": sl.agg.max_by("s", "v"),
    "of_least": sl.agg.min_by("v", "d"), "list": sl.agg.collect_list("v"), "set": sl.agg.collect_set("s"),
    "kinds": sl.agg.count_distinct("d"), "about": sl.agg.approx_count_distinct("s"),
    "median": sl.agg.approx_percentile("v", 0.5), "ends": sl.agg.approx_percentile("d", [0.0, 1.0]),
}  # fmt: skip
KEYED = events(SCHEMA).key_by("k")


def timed(delay: str = "1h") -> sl.KeyedStream:
    """Return events whose watermark stays behind until it is told to advance."""
    return events(SCHEMA).watermark("ts", delay).key_by("k")


def event(k: str, second: float | None, v: int | None = 1) -> dict[str, Any]:
    """Return an event whose columns but the time follow from `v`; all are null where that is."""
    ts = None if second is None else at(second)
    if v is None:
        return {"k": k, "ts": ts}
    return {"k": k, "v": v, "x": v / 2, "d": Decimal(v) / 4, "s": f"s{v:03d}", "ts": ts}


def expected(events: Iterable[dict[str, Any]]) -> tuple[Any, ...]:
    """Return what GIVEN is of some events."""
    events = list(events)
    vs = [e["v"] for e in events if "v" in e]
    ds = sum((Decimal(v) / 4 for v in vs), Decimal(0))
    some = bool(vs)
    return (
        len(events), len(vs), sum(vs) if some else None, sum(v / 2 for v in vs) if some else None,
        ds if some else None, statistics.mean(vs) if some else None,
        (ds / len(vs)).quantize(Decimal("0.000001"), "ROUND_HALF_UP") if some else None,
        f"s{min(vs):03d}" if some else None, max((e["ts"] for e in events if e["ts"] is not None), default=None),
        statistics.stdev(vs) if len(vs) > 1 else None, statistics.pvariance([v / 2 for v in vs]) if some else None,
        f"s{max(vs):03d}" if some else None, min(vs, default=None), vs, {f"s{v:03d}" for v in vs}, len(set(vs)),
        len(set(vs)), sorted(vs)[(len(vs) - 1) // 2] if some else None,
        [Decimal(min(vs)) / 4, Decimal(max(vs)) / 4] if some else None,
    )  # fmt: skip


def comparable(row: Iterable[Any]) -> tuple[Any, ...]:
    """Return what a row is compared with: the last digits of doubles may differ, and the order of lists."""
    return tuple(pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for v in in_order(row))


def in_order(row: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(v) if isinstance(v, list | set) else v for v in row)


def results(row: Any) -> tuple[Any, ...]:
    return in_order(row[-len(GIVEN) :])


EVENTS = st.lists(
    st.builds(
        event, st.sampled_from("ab"), st.integers(0, 60), st.none() | st.integers(0, 30)
    ),
    max_size=12,
)  # fmt: skip


@pytest.mark.hypothesis
@given(st.lists(EVENTS, max_size=5), st.sampled_from(KINDS), st.integers(1, 3))
def test_running_aggregates_are_of_everything_so_far(epochs: Any, kind: Any, parallelism: int) -> None:
    seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with Harness(KEYED.agg(GIVEN, uid="all"), backend=kind, parallelism=parallelism) as h:
        for number, some in enumerate(epochs):
            rows = h.push(*some)
            for one in some:
                seen[one["k"]].append(one)
            assert {row.k: results(row) for row in rows} == {
                k: comparable(expected(seen[k])) for k in {e["k"] for e in some}
            }
            if number % 2:
                h.snapshot()
                h.push(event("a", 1, 7))
                h.crash()


@pytest.mark.hypothesis
@given(st.lists(EVENTS, max_size=4))
def test_windows_are_those_of_their_events(epochs: Any) -> None:
    wanted: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    with Harness(timed().window(sl.Sliding("20s", every="10s")).agg(GIVEN, uid="all")) as h:
        for some in epochs:
            h.push(*some)
            for one in some:
                second = int((one["ts"] - START).total_seconds()) // 10 * 10
                for start in (second - 10, second):
                    wanted[one["k"], at(start)].append(one)
        h.snapshot()
        h.crash()
        rows = h.advance_watermark(at(100))
    assert {(row.k, row.window_start): results(row) for row in rows} == {
        of: comparable(expected(some)) for of, some in wanted.items()
    }
    assert all(row.window_end - row.window_start == dt.timedelta(seconds=20) for row in rows)


TOTALS = {"n": sl.agg.count(), "total": sl.agg.sum("v")}


def test_windows_by_count_and_by_the_clock() -> None:
    with Harness(KEYED.window(sl.Global(count=2)).agg(TOTALS, uid="totals")) as h:
        assert h.push(event("a", None, 1), event("a", None, 2), event("a", None, 4)) == [("a", 2, 3)]
        assert h.push(event("b", None, 8), event("a", None, 16)) == [("a", 2, 20)]
    with Harness(KEYED.window(sl.Tumbling("10s"), time="processing").agg(count=sl.agg.count(), uid="n")) as h:
        assert h.push(event("a", 100), event("b", 1), event("a", None)) == []
        assert in_seconds(h.advance_clock("10s")) == [("a", 0, 10, 2), ("b", 0, 10, 1)]


def test_a_null_key_is_shown_without_what_nobody_wrote() -> None:
    counted = events(SCHEMA).key_by("k", "s").agg(count=sl.agg.count(), uid="n")
    with Harness(counted) as h, pytest.raises(NullKeyError) as caught:
        h.push({"k": "a", "v": 1})
    assert "is null in the event Record(k='a', s=None)" in caught.value.message
