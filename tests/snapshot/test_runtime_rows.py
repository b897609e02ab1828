"""Rows of what the runtime has stored: the same whatever the backend and the history, and as good as the state itself."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from strandline.api.states import TTL
from strandline.api.windows import Session, Sliding, Tumbling
from strandline.runtime.operators.aggregates.accumulators import Accumulators
from strandline.runtime.operators.aggregates.sessions import NEWEST
from strandline.runtime.operators.aggregates.windows import PANES
from strandline.runtime.watermarks import Watermarks, WatermarkSpec
from strandline.snapshot.rows.codecs import times_of
from tests.checkpoint.helpers import manifest
from tests.runtime import test_broadcast as broadcast
from tests.runtime import test_joins as joins
from tests.runtime import test_times as times
from tests.runtime import windowed
from tests.runtime.aggregating import FIELDS, RESULTS, Aggregating
from tests.runtime.bench import KINDS, OPS, Bench, batch_of
from tests.runtime.living import Living, S, epoch
from tests.snapshot.partitions import files_of, tables_of
from tests.soak import examples, soaking

ASK = [(k, "read", 0, 0) for k in "abc"]
EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(OPS), st.integers(-3, 3), st.integers(0, 5)), max_size=8
)
# When a time is refreshed makes no difference to how it is stored.
TTLS = [None, TTL("20s", refresh="read"), *soaking([TTL("20s")])]
# Sums of doubles differ in their last bits with the order in which they are made.
EXACT = [field for field in FIELDS if field.merge != "moments"]
NAMES = {field.name for field in EXACT}
ACCUMULATORS = Accumulators(EXACT, [result for result in RESULTS if NAMES.issuperset(result.fields)])


@contextmanager
def benches(make: Callable[[str, Path], Bench]) -> Iterator[dict[str, Bench]]:
    with tempfile.TemporaryDirectory() as place:
        made = {}
        for kind in KINDS:
            root = Path(place) / kind
            root.mkdir()
            made[kind] = make(kind, root)
        try:
            yield made
        finally:
            for bench in made.values():
                bench.close()


def check_equal(made: dict[str, Bench]) -> dict[str, pa.RecordBatch]:
    """Compare the rows of all backends; then let each but the first have what another one's rows say."""
    tables = {kind: tables_of(bench) for kind, bench in made.items()}
    for kind in KINDS[1:]:
        for name, rows in tables[KINDS[0]].items():
            assert tables[kind][name].equals(rows), (kind, name)
    for kind, other in zip(KINDS[1:], [KINDS[2], KINDS[0]], strict=True):
        bench = made[kind]
        bench.restore(files_of(bench, kind, tables[other], bench.root / "rows"), bench.epoch)
        assert all(rows.equals(tables[other][name]) for name, rows in tables_of(bench).items())
    return tables[KINDS[0]]


@pytest.mark.parametrize("ttl", TTLS, ids=str)
@given(st.lists(EVENTS, max_size=6))
@example([[], [], [], [("a", "append", 0, 0)]])
@examples(15)
def test_states_of_functions(ttl: TTL | None, epochs: list[Any]) -> None:
    with benches(lambda kind, root: Bench(kind, root, Living(ttl))) as made:
        for kind, bench in made.items():
            for number, events in enumerate(epochs):
                epoch(bench, events, now_s=100 + 4 * number)
                # Other histories: snapshots after each epoch, and after none.
                if kind == "rocksdb":
                    bench.snapshot()
        check_equal(made)
        for now in (130, 200):
            # What is appended stands behind what was there.
            found = [epoch(bench, [("a", "append", 9, 0), *ASK], now_s=now) for bench in made.values()]
            assert found[0] == found[1] == found[2]
        if ttl is not None:
            # All has expired, and the cleaning has found it.
            for bench in made.values():
                epoch(bench, now_s=400)
                assert not any(rows.num_rows for rows in tables_of(bench).values())


class AnswersTimers(Living):
    """Sets a timer with each event, which reads all states."""

    def on_event(self, event: Any, ctx: Any) -> Any:
        ctx.timers.set(ctx.timestamp + dt.timedelta(seconds=event.b))
        yield from super().on_event(event, ctx)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        yield {"k": ctx.key, "answer": repr((timer.timestamp, self.read(0, 0)))}


WRITTEN = st.tuples(st.sampled_from("abc"), st.sampled_from(OPS), st.integers(-3, 3), st.integers(0, 30))
TIMED = st.lists(st.tuples(WRITTEN, st.integers(0, 60)), max_size=6)


@pytest.mark.parametrize("expires", ["element", "list"])
@given(st.lists(st.tuples(TIMED, st.none() | st.integers(0, 60)), min_size=1, max_size=5), st.integers(0, 90))
@example([([(("a", "set_value", 1, 10), 0)], None), ([(("b", "set_value", 1, 0), 60)], 50)], 60)
@examples(60)
def test_timers_find_in_rows_what_they_find_in_entries(expires: str, epochs: Sequence[Any], last: int) -> None:
    """A snapshot's rows lack what has expired by its own manifest, and no timer that is due next misses any of it."""
    marks = Watermarks([WatermarkSpec("ts")], {}, 0)

    def make(kind: str, root: Path) -> Bench:
        return Bench(kind, root, AnswersTimers(TTL("20s", time="event"), expires), timed=True)

    def run(bench: Bench, some: Sequence[Any]) -> list[Any]:
        rows = [batch_of([event for event, _ in some])] if some else []
        times = pa.array([at * S for _, at in some], pa.int64())
        batches = [batch.add_column(1, "time", times) for batch in rows]
        return [row for batch in bench.apply(batches, marks.reached_us, 0, marks.fired_us) for row in batch.to_pylist()]

    with benches(make) as made:
        for some, reached in epochs:
            for bench in made.values():
                run(bench, some)
            marks.fired_us = marks.reached_us
            if reached is not None:
                marks.observe(0, {"": reached * S}, 0)
            marks.advance(0)
        _, watermark_us = times_of(replace(manifest(1), watermarks=marks.stored()))
        tables = [tables_of(bench, watermark_us=watermark_us) for bench in made.values()]
        assert tables[0] == tables[1] == tables[2]
        restored = made["filesystem"]
        restored.restore(files_of(restored, "filesystem", tables[0], restored.root / "rows"), restored.epoch)
        for reached_us in (marks.reached_us, last * S):
            marks.observe(0, {"": reached_us or 0}, 0)
            marks.advance(0)
            found = [run(bench, [(event, 45) for event in ASK]) for bench in made.values()]
            assert found[0] == found[1] == found[2]
            marks.fired_us = marks.reached_us


SET = st.tuples(st.sampled_from("abc"), st.sampled_from(["set", "delete", "clock", "unclock"]), st.integers(20, 40))


@given(st.lists(st.lists(SET, max_size=5), max_size=5))
@examples(10)
def test_timers(epochs: Sequence[Any]) -> None:
    given = {"input_schema": times.EVENTS, "output_schema": times.SAID, "timed": True}
    with benches(lambda kind, root: Bench(kind, root, times.Teller(), **given)) as made:
        for kind, bench in made.items():
            for events in epochs:
                times.Stage(bench).epoch(times.timed(*((*event, 1) for event in events)))
                if kind == "rocksdb":
                    bench.snapshot()
        check_equal(made)
        found = [times.Stage(bench).epoch(watermark=1000, now=1000) for bench in made.values()]
        assert found[0] == found[1] == found[2]


ROWS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60), st.none() | st.integers(-5, 9)), max_size=8)
WINDOWS = [Tumbling("10s"), Sliding("20s", every="5s"), Session("5s")]


# Late rows change what is stored, and do not store it otherwise.
@pytest.mark.parametrize("lateness", [10, *soaking([0])])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: type(window).__name__)
@given(st.lists(st.tuples(ROWS, st.none() | st.integers(0, 40)), max_size=5))
@examples(10)
def test_aggregates_of_windows(window: Any, lateness: int, epochs: Sequence[Any]) -> None:
    def make(kind: str, root: Path) -> Aggregating:
        return Aggregating(kind, root, window, lateness, ACCUMULATORS)

    with benches(make) as made:
        for kind, bench in made.items():
            assert isinstance(bench, Aggregating)
            for rows, watermark in epochs:
                bench.epoch_of(rows, watermark=watermark)
                if kind == "rocksdb":
                    bench.snapshot()
        tables = check_equal(made)
        some = tables[NEWEST if isinstance(window, Session) else PANES]
        assert some.schema.names[:2] == ["key_group", "k"]
        found = [sorted(bench.epoch_of([("a", 45, 1)], watermark=200)) for bench in made.values()]  # type: ignore[attr-defined]
        assert found[0] == found[1] == found[2]


@given(st.lists(st.tuples(broadcast.events, broadcast.rules), max_size=4))
@examples(8)
def test_broadcast_state(epochs: Sequence[Any]) -> None:
    with benches(lambda kind, root: broadcast.make(kind, root)) as made:
        for kind, bench in made.items():
            for events, rules in epochs:
                bench.run(broadcast.batch(events, rules))
                if kind == "rocksdb":
                    bench.snapshot()
        rules_now = check_equal(made)["rules"]
        assert rules_now.schema.names == ["key_group", "map_key", "value"]
        assert rules_now.column(0).null_count == rules_now.num_rows
        found = [bench.run(broadcast.batch([("a", 1)], [])) for bench in made.values()]
        assert found[0] == found[1] == found[2]


ARRIVALS = st.lists(
    st.builds(joins.Arrival, st.booleans(), st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 99)), max_size=6
)


@pytest.mark.parametrize("how", ["inner", "full"])
@given(st.lists(st.tuples(ARRIVALS, st.integers(0, 9)), max_size=4))
@examples(8)
def test_buffers_of_joins(how: Any, epochs: Sequence[Any]) -> None:
    layout = joins.JoinColumns(joins.LEFTS, joins.RIGHTS, ("k",))

    def make(kind: str, root: Path) -> Bench:
        return joins.bench_of(kind, root, joins.IntervalJoin(layout, -3, 4, how), layout)

    with benches(make) as made:
        for kind, bench in made.items():
            reached = 0
            for rows, watermark in epochs:
                reached = max(reached, watermark)
                joins.run(bench, rows, reached)
                if kind == "rocksdb":
                    bench.snapshot()
        check_equal(made)
        found = [sorted(joins.run(bench, [joins.Arrival(True, "a", 11, 7)], 9), key=repr) for bench in made.values()]
        found += [sorted(joins.run(bench, [], joins.FOREVER), key=repr) for bench in made.values()]
        assert found[0] == found[1] == found[2]
        assert found[3] == found[4] == found[5]


SOME = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 30)), max_size=6)


# Windows that do not merge are stored alike.
@pytest.mark.parametrize(
    ("window", "contents"),
    [
        (Tumbling("10s"), windowed.joined), (Sliding("20s", every="5s"), windowed.folded),
        (Session("5s"), windowed.joined), (Session("5s"), windowed.folded),
        *(pytest.param(*some, marks=pytest.mark.soak)
          for some in ((Tumbling("10s"), windowed.folded), (Sliding("20s", every="5s"), windowed.joined))),
    ],
    ids=lambda given: getattr(given, "__name__", type(given).__name__),
)  # fmt: skip
@given(st.lists(st.tuples(SOME, st.integers(0, 20)), max_size=4))
@examples(6)
def test_windows_of_functions(window: Any, contents: Any, epochs: Sequence[Any]) -> None:
    with benches(lambda kind, root: windowed.WindowBench(kind, root, window, contents(), lateness=5)) as made:
        for kind, bench in made.items():
            reached = 0
            for rows, watermark in epochs:
                reached = max(reached, watermark)
                bench.step(rows, reached)  # type: ignore[attr-defined]
                if kind == "rocksdb":
                    bench.snapshot()
        check_equal(made)
        found = [bench.step([("a", 1, 29)], 500) for bench in made.values()]  # type: ignore[attr-defined]
        assert found[0] == found[1] == found[2]
