"""Operators in event time on one, two or three partitions: any disorder, cuts, watermarks and crashes give one result."""

from __future__ import annotations

import copy
import datetime as dt
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.joins import KeyedCoProcess
from strandline.api.states import Value
from strandline.api.windows import Session, Sliding, Tumbling, WindowKind
from strandline.plan.windows import operator_of
from strandline.runtime.operators.joins import HOWS, How, IntervalJoin, JoinColumns
from strandline.runtime.operators.windows.operator import Rules
from strandline.testing import Harness, Right
from strandline.types.datatypes import parse_schema
from tests.runtime.test_joins import Arrival, History, interval_results
from tests.runtime.windowed import BEGIN, SECOND, Model, folded, joined, seconds_of
from tests.soak import examples

KEYS = "abcdef"
ROWS = "k string, id bigint, at timestamp"
STREAMS = {"schema": ROWS, "right": ROWS, "key": "k", "event_time": "at"}
SALES = "k string, v bigint, at timestamp"
FOREVER_S = 1000


class Reference(Protocol):
    """What an operator must give, by plain Python. Times are in seconds."""

    def step(self, rows: list[Any], watermark: int | None) -> Counter[Any]:
        """Return what comes of an epoch."""
        ...

    def copy(self) -> Self: ...

    def event(self, row: Any) -> Any:
        """Return a row as the operator gets it."""
        ...


@dataclass
class Joined:
    """Rows of an interval join."""

    lower: int
    upper: int
    how: How
    history: History = field(default_factory=History)

    def step(self, rows: list[Arrival], watermark: int | None) -> Counter[Any]:
        scaled = [Arrival(row.left, row.k, row.at * SECOND, row.id) for row in rows]
        self.history = self.history.then(scaled, None if watermark is None else watermark * SECOND)
        bounds = self.lower * SECOND, self.upper * SECOND
        found = interval_results(self.history, *bounds, self.how, shared=True)
        return Counter({row[:-1]: found[row] for row in found})

    def copy(self) -> Joined:
        return copy.copy(self)

    def event(self, row: Arrival) -> Any:
        return half(row)


@dataclass
class Windowed:
    """Rows of windows; those that came too late are in `model.late`."""

    model: Model

    def step(self, rows: list[Arrival], watermark: int | None) -> Counter[Any]:
        return Counter(row[:-1] for row in self.model.step([(row.k, row.id, row.at) for row in rows], watermark, 0))

    def copy(self) -> Windowed:
        return Windowed(self.model.copy())

    def event(self, row: Arrival) -> dict[str, Any]:
        return {"k": row.k, "v": row.id, "at": at(row.at)}


class Match(KeyedCoProcess):
    """Gives each right event with the last left one, if that is not more than five seconds of event time ago."""

    last = Value("bigint")
    until = Value("timestamp")

    def on_left(self, event: Any, ctx: Any) -> None:
        self.last.value = event.id
        self.until.value = ctx.timestamp + dt.timedelta(seconds=5)
        ctx.timers.set(self.until.value)

    def on_right(self, event: Any, ctx: Any) -> Any:
        yield ctx.key, event.id, self.last.value

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        if timer.timestamp == self.until.value:
            yield ctx.key, None, self.last.value
            self.last.clear()
            self.until.clear()


@dataclass
class Matched:
    """The same with a dict."""

    lefts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def step(self, rows: list[Arrival], watermark: int | None) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for k, (number, until) in list(self.lefts.items()):
            if watermark is not None and until < watermark:
                found[k, None, number] += 1
                del self.lefts[k]
        for row in rows:
            if row.left:
                self.lefts[row.k] = (row.id, row.at + 5)
            else:
                found[row.k, row.id, self.lefts[row.k][0] if row.k in self.lefts else None] += 1
        return found

    def copy(self) -> Matched:
        return Matched(dict(self.lefts))

    def event(self, row: Arrival) -> Any:
        return half(row)


def half(row: Arrival) -> Any:
    event = (row.k, row.id, at(row.at))
    return event if row.left else Right(event)


def at(seconds: int) -> dt.datetime:
    return BEGIN + dt.timedelta(seconds=seconds)


def plain(rows: Iterable[Any]) -> Counter[Any]:
    """Return rows without the times of joined ones."""
    kept = [[v for name, v in row._asdict().items() if not name.endswith("_at")] for row in rows]
    return Counter(tuple(seconds_of(v) if isinstance(v, dt.datetime) else v for v in row) for row in kept)


epochs_of_events = st.lists(
    st.tuples(
        # Around the watermark, on either side.
        st.lists(st.tuples(st.booleans(), st.sampled_from(KEYS), st.integers(-12, 20)), max_size=12),
        st.integers(0, 8),
        st.sampled_from(["go on", "go on", "snapshot", "crash"]),
    ),
    min_size=1,
    max_size=10,
)
parallel = {"parallelism": st.integers(1, 3), "backend": st.sampled_from(["memory", "memory", "filesystem", "rocksdb"])}


def follow(h: Harness, epochs: Any, reference: Reference) -> Reference:
    """Run epochs with crashes; each must give what the reference does, and no timer may be left at the end."""
    number, watermark = 0, None
    h.snapshot()
    then, then_watermark = reference.copy(), watermark
    for events, moved, end in epochs:
        if moved:
            watermark = (watermark or 0) + moved
            assert plain(h.advance_watermark(at(watermark))) == reference.step([], watermark)
        rows = []
        for left, k, distance in events:
            number += 1
            rows.append(Arrival(left, k, (watermark or 0) + distance, number))
        assert plain(h.push(*map(reference.event, rows))) == reference.step(rows, watermark)
        if end == "snapshot":
            h.snapshot()
            then, then_watermark = reference.copy(), watermark
        if end == "crash":
            h.crash()
            reference, watermark = then.copy(), then_watermark
    # Each timer that was due already, and what it sets in turn.
    for _ in range(2):
        assert plain(h.advance_watermark(at(FOREVER_S))) == reference.step([], FOREVER_S)
    assert not any(h.timers(k) for k in KEYS)
    return reference


@pytest.mark.parametrize("how", HOWS)
@examples(12)
@given(epochs=epochs_of_events, bounds=st.tuples(st.integers(-6, 6), st.integers(-6, 6)), **parallel)
def test_an_interval_join(how: How, epochs: Any, bounds: Any, parallelism: int, backend: Any) -> None:
    lower, upper = sorted(bounds)
    schema = parse_schema(ROWS)
    process = IntervalJoin(JoinColumns(schema, schema, ("k",)), lower * SECOND, upper * SECOND, how)
    output = "k string, id bigint, left_at timestamp, r_id bigint, right_at timestamp"
    with Harness(process, **STREAMS, output=output, parallelism=parallelism, backend=backend) as h:
        follow(h, epochs, Joined(lower, upper, how))


@pytest.mark.parametrize("kind", [Tumbling("10s"), Sliding("12s", every="5s"), Session("6s")], ids=repr)
@examples(15)
@given(epochs=epochs_of_events, lateness=st.sampled_from([0, 4, 25]), keeping=st.booleans(), **parallel)
def test_windows(kind: WindowKind, epochs: Any, lateness: int, keeping: bool, parallelism: int, backend: Any) -> None:
    process = operator_of(kind, joined(SALES) if keeping else folded(), Rules(lateness * SECOND, late="late"))
    with Harness(
        process,
        schema=SALES,
        key="k",
        output="k string, window_start timestamp, window_end timestamp, result string",
        event_time="at",
        sides={"late": SALES},
        parallelism=parallelism,
        backend=backend,
    ) as h:
        reference = follow(h, epochs, Windowed(Model(kind, lateness, by_epoch=keeping)))
        assert isinstance(reference, Windowed)
        assert plain(h.side("late")) == Counter(reference.model.late)


@examples(40)
@given(epochs=epochs_of_events, **parallel)
def test_a_function_of_two_streams(epochs: Any, parallelism: int, backend: Any) -> None:
    output = "k string, id bigint, last bigint"
    with Harness(Match(), **STREAMS, output=output, parallelism=parallelism, backend=backend) as h:
        follow(h, epochs, Matched())
