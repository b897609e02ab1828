"""Several streams as one, below Spark: their rows, and the least of their watermarks, against plain Python."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline as sl
from strandline.testing import Harness, events
from tests.testing.times import START, at

SCHEMA = "k int, v int, dev string, ts timestamp"
OTHER = "ts timestamp, dev string, v int, k int"
TEN = sl.Tumbling("10s")


class Count(sl.KeyedProcess):
    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        yield ctx.key, self.seen.value


row = st.tuples(st.integers(0, 2), st.integers(0, 9), st.sampled_from(["x", "y"]), st.integers(0, 60))
epoch = st.fixed_dictionaries({name: st.lists(row, max_size=4) for name in ("a", "b", "c")})


@given(epochs=st.lists(epoch, max_size=8), parallelism=st.sampled_from([1, 2]))
def test_windows_of_a_union_follow_the_slowest_of_all_inputs(epochs: Any, parallelism: int) -> None:
    """A union of a union, one input with a watermark a device, and columns in another order."""
    a = events(SCHEMA, "a").watermark("ts", "2s")
    b = events(OTHER, "b").watermark("ts", per="dev")
    c = events(SCHEMA, "c").watermark("ts", "1s")
    whole = a.union(b.union(c))
    assert whole.columns == ["k", "v", "dev", "ts"]
    sums = whole.key_by("k").window(TEN, late="late").fold("v bigint", 0, lambda v, e: v + e.v, uid="sums")
    expected: Counter[tuple[int, int]] = Counter()
    late: list[tuple[int, int, str, dt.datetime]] = []
    newest: dict[str, int] = {}
    with Harness(sums, parallelism=parallelism) as h:
        for some in epochs:
            reached = None if h.watermark is None else (h.watermark - START).total_seconds()
            for name, rows in some.items():
                for k, v, dev, second in rows:
                    if reached is not None and second - second % 10 + 10 <= reached:
                        late.append((k, v, dev, at(second)))
                    else:
                        expected[k, second - second % 10] += v
                        # A window whose events are all 0 is there too.
                        expected[k, second - second % 10] += 0
                    origin, delay = {"a": ("a", 2), "b": (f"b/{dev}", 0), "c": ("c", 1)}[name]
                    newest[origin] = max(newest.get(origin, -100), second - delay)
            given = {n: [(k, v, dev, at(s)) for k, v, dev, s in rows] for n, rows in some.items()}
            given["b"] = [values[::-1] for values in given["b"]]
            h.push(**given)
            known = {origin[0] for origin in newest}
            assert h.watermark == (at(max(min(newest.values()), reached or -100)) if len(known) == 3 else None)
        h.advance_watermark(at(200))
        found = {(r.k, int((r.window_start - START).total_seconds())): r.v for r in h.output}
        assert len(found) == len(h.output)
        assert found == dict(expected)
        assert sorted(h.side("late")) == sorted(late)


@given(epochs=st.lists(epoch, max_size=6))
def test_what_timers_gave_is_not_late_beside_raw_rows(epochs: Any) -> None:
    a = events(SCHEMA, "a").watermark("ts")
    b = events(SCHEMA, "b").watermark("ts", "3s")
    c = events(SCHEMA, "c")
    counts = a.key_by("k").window(TEN, late="late").fold("v int", 0, lambda v, e: v + 1, uid="counts")
    shaped = counts.map(lambda r: (r.k, r.v, "w", r.window_start), SCHEMA)
    raw = b.union(c.watermark("ts", "3s"))
    sums = shaped.union(raw).key_by("k").window(TEN, late="late").fold("v int", 0, lambda v, e: v + e.v, uid="sums")
    expected: Counter[tuple[int, int]] = Counter()
    with Harness(sums) as h:
        for some in epochs:
            reached = None if h.watermark is None else (h.watermark - START).total_seconds()
            for name, rows in some.items():
                for k, v, _, second in rows:
                    if reached is None or second - second % 10 + 10 > reached:
                        expected[k, second - second % 10] += 1 if name == "a" else v
            h.push(**{n: [(k, v, dev, at(s)) for k, v, dev, s in rows] for n, rows in some.items()})
        h.advance_watermark(at(200))
        h.tick()
        found = {(r.k, int((r.window_start - START).total_seconds())): r.v for r in h.output}
        assert len(found) == len(h.output)
        assert {at: n for at, n in found.items() if n} == {at: n for at, n in expected.items() if n}


def test_a_stream_with_itself_gives_its_rows_twice_and_branches_share_their_watermark() -> None:
    a = events(SCHEMA).watermark("ts", per="dev")
    branch = a.flat_map(lambda e: [e] if e.v else [], SCHEMA)
    counted = a.union(a, branch).key_by("k").process(Count(), "k int, n bigint", uid="n")
    with Harness(counted) as h:
        assert h.push((1, 0, "x", at(3)), (1, 5, "y", at(9))) == [(1, n) for n in range(1, 6)]
        assert h.watermark == at(3)


def test_an_idle_input_is_not_waited_for() -> None:
    a = events(SCHEMA, "a").watermark("ts", idle="10s")
    b = events(SCHEMA, "b").watermark("ts")
    with Harness(a.union(b).key_by("k").process(Count(), "k int, n bigint", uid="n")) as h:
        h.push(a=[(1, 1, "x", at(3))], b=[(1, 1, "x", at(50))])
        assert h.watermark == at(3)
        h.advance_clock("11s")
        assert h.watermark == at(50)


def test_inputs_of_a_join_can_be_unions() -> None:
    a, b, c = (events(SCHEMA, name).watermark("ts") for name in "abc")
    joined = a.union(b).key_by("k").join(c.key_by("k"), ("0s", "0s"), uid="j", prefixes=("", "c_"))
    with Harness(joined) as h:
        h.push(a=[(1, 1, "x", at(5))], b=[(1, 2, "x", at(7))], c=[(1, 3, "x", at(6))])
        assert h.watermark == at(5)
        h.push(a=[(1, 1, "x", at(9))], b=[(1, 2, "x", at(9))])
        assert h.watermark == at(6)
        assert [(r.v, r.c_v) for r in h.push(c=[(1, 4, "x", at(7))])] == [(2, 4)]


def test_a_watermark_behind_a_union_is_one_for_all() -> None:
    a, b = (events(SCHEMA, name) for name in "ab")
    counted = {}
    for whole in (a.union(b), b.union(a)):
        with Harness(whole.watermark("ts").key_by("k").process(Count(), "k int, n bigint", uid="n")) as h:
            h.push(a=[(1, 1, "x", at(5))])
            assert h.watermark == at(5)
            counted[whole] = h.snapshot().watermarks
    assert len({tuple(sorted(found.items())) for found in counted.values()}) == 1


def test_unlike_streams_are_refused() -> None:
    a = events("k int, v int, at timestamp")
    for other, said in (
        (events("k int, v int"), "union: the columns of stream 2 are not those of the first: it lacks `at` timestamp"),
        (events("k int, V int, at timestamp"), "it lacks `v` int; it has `V` int as well"),
        (events("k bigint, v int, at timestamp"), "`k` is bigint, expected int"),
        (a.watermark("at"), "union: stream 2 has event time, and stream 1 has none"),
        (a.key_by("k"), "union: it was given a KeyedStream, expected a Stream"),
        (a.map(lambda e: e, "k int, v int, V int"), "union: of stream 2, the column v, V is there more than once"),
    ):
        with pytest.raises(sl.errors.ConfigurationError) as caught:
            a.union(other)  # type: ignore[arg-type]
        assert said in str(caught.value)
    with pytest.raises(sl.errors.ConfigurationError, match="no other stream was given"):
        a.union()
    with pytest.raises(sl.errors.ConfigurationError, match="stream 1 has event time, and stream 3 has none"):
        a.watermark("at").union(a.watermark("at"), a)
