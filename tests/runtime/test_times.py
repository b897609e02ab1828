"""A task in event time: what fires when, what is late, which times and flags its rows have, and what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import Value
from strandline.core.errors import OutputError, StateLimitError, StateTypeError, UserCodeError
from strandline.core.ids import Epoch
from strandline.runtime.rowlayout import FIRED, SIDE, TIME
from strandline.runtime.state import timers
from strandline.runtime.task import calls
from strandline.runtime.task.outputs import raw_ddl
from strandline.runtime.task.task import EpochTimes
from strandline.types.scalars import EPOCH, timestamp_to_us
from tests.runtime.bench import Bench, batch_of
from tests.runtime.conftest import Make
from tests.soak import BACKENDS

US = dt.timedelta(microseconds=1)
EVENTS = "k string, op string, n bigint"
SAID = "k string, said string"
Event = tuple[str, str, int]


class Teller(KeyedProcess):
    """Does what events say, and tells of every call."""

    seen = Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.seen.value += 1
        getattr(self, event.op)(event.n, ctx)
        late = ", late" if ctx.is_late else ""
        yield ctx.key, f"{event.op} {event.n} at {us(ctx.timestamp)} of {us(ctx.watermark)}{late}"

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        assert ctx.timestamp == (None if timer.is_processing_time else timer.timestamp)
        kind = "clock" if timer.is_processing_time else "timer"
        now = us(ctx.now) if timer.is_processing_time else us(ctx.watermark)
        late = ", late" if ctx.is_late else ""
        yield ctx.key, f"{kind} {us(timer.timestamp)} of {now}, seen {self.seen.value}{late}"
        if us(timer.timestamp) % 100 == 66:
            raise ValueError("as asked")
        if us(timer.timestamp) % 100 == 10:
            # Due already, due in this pass too, and due in another.
            for after in (-3, 1, 500):
                ctx.timers.set(timer.timestamp + after * US)
            ctx.timers.delete(timer.timestamp + 2 * US)

    def add(self, n: int, ctx: Any) -> None:
        pass

    def set(self, n: int, ctx: Any) -> None:
        ctx.timers.set(EPOCH + n * US)

    def delete(self, n: int, ctx: Any) -> None:
        ctx.timers.delete(EPOCH + n * US)

    def clock(self, n: int, ctx: Any) -> None:
        ctx.timers.set_processing(EPOCH + n * US)

    def unclock(self, n: int, ctx: Any) -> None:
        ctx.timers.delete_processing(EPOCH + n * US)

    def aside(self, n: int, ctx: Any) -> None:
        ctx.emit("left" if n < 0 else "right", {"n": n} if n < 0 else (ctx.key, n))

    def nowhere(self, n: int, ctx: Any) -> None:
        ctx.emit("nowhere", (n,))

    def naive(self, n: int, ctx: Any) -> None:
        ctx.timers.set(dt.datetime(2024, 1, 1))


def us(at: dt.datetime | None) -> Any:
    return None if at is None else timestamp_to_us(at)


def hidden(events: Sequence[Event], **columns: pa.Array) -> pa.RecordBatch:
    """Return events with hidden columns, as a keeper gets them."""
    plain = batch_of(events, EVENTS)
    arrays = [plain.column(0), *columns.values(), *plain.columns[1:]]
    return pa.RecordBatch.from_arrays(arrays, names=["key_group", *columns, *plain.schema.names[1:]])


def timed(*events: tuple[Any, ...]) -> pa.RecordBatch:
    """Return events given as (key, op, n, time)."""
    return hidden([e[:3] for e in events], time=pa.array([e[3] for e in events], pa.int64()))


def phased(*events: tuple[Any, ...]) -> pa.RecordBatch:
    """Return events given as (key, op, n, time, fired)."""
    times, fired = pa.array([e[3] for e in events], pa.int64()), pa.array([e[4] for e in events], pa.bool_())
    return hidden([e[:3] for e in events], time=times, fired=fired)


class Stage:
    """Runs a bench's task through epochs with a watermark and a clock."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def epoch(
        self, *batches: pa.RecordBatch, watermark: int | None = None, now: int = 0, abort: bool = False
    ) -> list[Any]:
        """Process an epoch; return what was said, by key."""
        rows = list(self.raw(*batches, watermark=watermark, now=now, abort=abort))
        return [f"{row['k']}: {row['said']}" for row in rows if not row.get(SIDE)]

    def raw(
        self, *batches: pa.RecordBatch, watermark: int | None = None, now: int = 0, abort: bool = False
    ) -> list[dict[str, Any]]:
        found = self.bench.apply(batches, watermark, now, abort=abort)
        assert all(batch.schema == self.bench.task.output_schema for batch in found)
        return [row for batch in found for row in batch.to_pylist()]


@pytest.fixture
def stage(make: Make) -> Any:
    def build(process: Any = None, **given: Any) -> Stage:
        usual = {"input_schema": EVENTS, "output_schema": SAID, "timed": True}
        return Stage(make(process or Teller(), **{**usual, **given}))

    return build


def test_timers_fire_before_the_events_of_the_epoch_in_order(stage: Any) -> None:
    s = stage()
    s.epoch(
        timed(("b", "set", 20, 1), ("a", "set", 30, 2), ("a", "set", 20, 3), ("a", "set", 20, 4), ("c", "set", 31, 5))
    )
    s.epoch(timed(("c", "set", 25, 6), ("c", "delete", 31, 6)))
    told = s.epoch(timed(("a", "add", 1, 29), ("b", "set", 7, 30)), watermark=30)
    assert sorted(told[:2]) == ["a: timer 20 of 30, seen 3", "b: timer 20 of 30, seen 1"]
    assert told[2:] == [
        "c: timer 25 of 30, seen 3",
        "a: add 1 at 29 of 30, late",
        "b: set 7 at 30 of 30",
    ]
    assert s.bench.task.next_timers_us[0] <= 7
    assert s.epoch(watermark=30) == ["b: timer 7 of 30, seen 2"], "due when it was set: it fires in the next epoch"
    assert s.epoch(watermark=31) == ["a: timer 30 of 31, seen 4"], "until now, events at 30 were on time"
    assert s.epoch(watermark=1000) == []


def test_timers_set_and_deleted_while_firing(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_CHUNK", 2)
    s = stage()
    s.epoch(timed(*[("a", "set", n, 0) for n in (9, 10, 12, 13)], ("b", "set", 11, 0)))
    s.bench.restore(s.bench.snapshot(), 1)
    told = [line.removesuffix(", seen 4") for line in s.epoch(watermark=20)]
    assert sorted(told[3:5]) == ["a: timer 11 of 20", "b: timer 11 of 20, seen 1"]
    assert told[:3] + told[5:] == ["a: timer 9 of 20", "a: timer 10 of 20", "a: timer 7 of 20", "a: timer 13 of 20"]
    assert s.epoch(watermark=510) == []
    assert s.epoch(watermark=511) == ["a: timer 510 of 511, seen 4", "a: timer 507 of 511, seen 4"]


def test_processing_timers_need_no_event_time(stage: Any) -> None:
    s = stage(timed=False)
    events = batch_of([("a", "clock", 5), ("b", "clock", 6), ("b", "clock", 9), ("b", "unclock", 9)], EVENTS)
    assert s.epoch(events, now=4)[0] == "a: clock 5 at None of None"
    assert s.bench.task.next_timers_us == (None, 5)
    assert s.epoch(now=5) == ["a: clock 5 of 5, seen 1"]
    assert s.epoch(now=100) == ["b: clock 6 of 100, seen 3"]


def test_rows_have_the_time_of_what_they_came_of(stage: Any) -> None:
    s = stage()
    rows = s.raw(timed(("a", "set", 7, 3), ("a", "clock", 2, None)))
    assert [(row[TIME], row[FIRED]) for row in rows] == [(3, False), (None, False)]
    rows = s.raw(timed(("a", "add", 1, 9)), watermark=8, now=2)
    assert [(row["said"].split()[0], row[TIME], row[FIRED]) for row in rows] == [
        ("timer", 7, True),
        ("clock", None, True),
        ("add", 9, False),
    ]


def test_a_later_operator_takes_what_timers_gave_before_its_watermark_moves(stage: Any) -> None:
    s = stage(phased=True)
    s.epoch(phased(("a", "set", 15, 1, False)), watermark=10)
    told = s.epoch(
        phased(("a", "add", 1, 12, False), ("b", "add", 2, 13, True), ("a", "set", 14, 9, True)),
        phased(("b", "add", 3, 25, False), ("a", "add", 4, 12, True)),
        watermark=20,
    )
    assert told == [
        "b: add 2 at 13 of 10",
        "a: set 14 at 9 of 10, late",
        "a: add 4 at 12 of 10",
        "a: timer 14 of 20, seen 3",
        "a: timer 15 of 20, seen 3",
        "a: add 1 at 12 of 20, late",
        "b: add 3 at 25 of 20",
    ]
    assert s.bench.task.late_rows == 2, "as many as the function was told of"


def test_rows_that_do_not_say_whether_a_timer_gave_them_are_not_lost(stage: Any) -> None:
    s = stage(phased=True)
    assert s.epoch(phased(("a", "add", 1, 12, None))) == ["a: add 1 at 12 of None"]


def test_an_abort_takes_the_watermark_and_timers_back(stage: Any) -> None:
    s = stage()
    s.epoch(timed(("a", "set", 15, 1)), watermark=10)
    given = timed(("a", "set", 12, 12), ("a", "delete", 15, 12), ("a", "clock", 1, 12))
    told = s.epoch(given, watermark=20, now=5, abort=True)
    assert told[0] == "a: timer 15 of 20, seen 1"
    # Events of an epoch that is tried again see the watermark before, if it has not moved meanwhile.
    assert s.epoch(timed(("a", "add", 0, 12)), watermark=10, now=5) == ["a: add 0 at 12 of 10"]
    assert s.epoch(watermark=20, now=5) == ["a: timer 15 of 20, seen 2"]


def test_an_epoch_left_in_the_middle_of_firing_is_tried_again(stage: Any) -> None:
    s = stage()
    s.epoch(timed(*[("a", "set", n, 1) for n in range(20, 25)]))
    task = s.bench.task
    task.begin(Epoch(2), EpochTimes(30))
    walk = task.fire()
    assert next(walk).num_rows == 5
    task.abort()
    rows = s.raw(timed(("a", "add", 0, 1)))
    assert [row[FIRED] for row in rows] == [False]
    assert len(s.epoch(watermark=30)) == 5
    walk.close()


def test_a_timer_that_raises(stage: Any) -> None:
    s = stage()
    s.epoch(timed(("a", "set", 5, 1), ("a", "set", 66, 1)))
    for _ in range(2):
        with pytest.raises(
            UserCodeError, match=r"on_timer of Teller raised for key 'a', for the timer .*as asked"
        ) as caught:
            s.epoch(watermark=100)
        assert "1970, 1, 1, 0, 0, 0, 66" in caught.value.event
        assert "in on_timer" in caught.value.traceback
    assert s.epoch(watermark=65) == ["a: timer 5 of 65, seen 2"], "nothing was applied"


def test_an_event_is_late_and_a_timer_never(stage: Any) -> None:
    s = stage()
    s.epoch(timed(("a", "set", 5, 1), ("a", "set", 66, 1)))
    assert s.epoch(timed(("a", "add", 1, 8)), watermark=9) == ["a: timer 5 of 9, seen 2", "a: add 1 at 8 of 9, late"]
    with pytest.raises(UserCodeError, match="as asked"):
        s.epoch(watermark=100)
    # A timer that failed, and the epoch with it, leaves nothing behind.
    assert s.epoch(timed(("a", "add", 2, 8)), watermark=9) == ["a: add 2 at 8 of 9, late"]


def test_late_rows_and_the_newest_times(stage: Any) -> None:
    s = stage(measured=True)
    s.epoch(timed(("a", "add", 0, 7), ("b", "add", 0, None)), timed(("a", "add", 0, 5)))
    assert (s.bench.task.newest_us, s.bench.task.late_rows) == ({"": 7}, 0)
    s.epoch(timed(("a", "add", 0, 1), ("b", "add", 0, None), ("b", "add", 0, 3), ("c", "add", 0, 2)), watermark=3)
    assert (s.bench.task.newest_us, s.bench.task.late_rows) == ({"": 3}, 2)
    s.epoch(timed(("b", "add", 0, None)), watermark=3)
    assert (s.bench.task.newest_us, s.bench.task.late_rows) == ({}, 0)


def test_the_newest_times_of_each_origin(stage: Any) -> None:
    s = stage(measured=True, origins=True)

    def batch(*events: tuple[Any, Any]) -> pa.RecordBatch:
        times, origins = pa.array([e[1] for e in events], pa.int64()), pa.array([e[0] for e in events], pa.string())
        return hidden([("a", "add", 0)] * len(events), time=times, origin=origins)

    assert len(s.epoch(batch(("x", 5), ("y", 9), ("x", 7)), batch(("x", 6), ("z", None), (None, 4), (None, 3)))) == 7
    assert s.bench.task.newest_us == {"x": 7, "y": 9, "": 4}
    unreadable = pa.array([b"\xff"], pa.binary()).view(pa.string())
    s.epoch(hidden([("a", "add", 0)], time=pa.array([5]), origin=unreadable))
    assert s.bench.task.newest_us == {"\\xff": 5}


def test_only_events_straight_from_a_watermark_move_it(stage: Any) -> None:
    s = stage()
    s.epoch(timed(("a", "add", 0, 7)))
    assert s.bench.task.newest_us == {}


def test_side_outputs(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = {"left": "n bigint", "right": "k string, `an n` int"}
    s = stage(sides=sides)
    assert s.bench.task.output_schema.names == ["k", "said", SIDE, f"{SIDE}_1", f"{SIDE}_2", TIME, FIRED]
    assert "`an n`" in raw_ddl(SAID, sides, timed=True)
    rows = s.raw(timed(("a", "aside", -1, 3), ("b", "aside", 2, 4)), timed(("b", "aside", 3, 5)))
    main, left, right = ([row for row in rows if row[SIDE] == side] for side in (0, 1, 2))
    assert [(row["k"], row[f"{SIDE}_1"], row[TIME]) for row in main] == [("a", None, 3), ("b", None, 4), ("b", None, 5)]
    assert [(row["k"], row[f"{SIDE}_1"], row[f"{SIDE}_2"], row[TIME]) for row in left] == [(None, {"n": -1}, None, 3)]
    found = [(row[f"{SIDE}_2"], row[TIME], row[FIRED]) for row in right]
    assert found == [({"k": "b", "an n": 2}, 4, False), ({"k": "b", "an n": 3}, 5, False)]
    with pytest.raises(OutputError, match="has no side output 'nowhere', only left, right"):
        s.raw(timed(("a", "aside", 1, 1), ("a", "nowhere", 1, 1)))
    assert s.epoch(timed(("a", "add", 1, 1))) == ["a: add 1 at 1 of None"], "the failed epoch's rows are gone"
    with pytest.raises(OutputError, match="an n"):
        s.raw(timed(("a", "aside", 1 << 40, 1)))
    assert len(s.raw(timed(("a", "add", 1, 1)))) == 1


def test_side_outputs_without_event_time(stage: Any) -> None:
    s = stage(sides={"left": "n bigint"}, timed=False)
    rows = s.raw(batch_of([("a", "aside", -1)], EVENTS))
    assert rows == [
        {"k": "a", "said": "aside -1 at None of None", SIDE: 0, f"{SIDE}_1": None},
        {"k": None, "said": None, SIDE: 1, f"{SIDE}_1": {"n": -1}},
    ]


class Aside(KeyedProcess):
    def on_event(self, event: Any, ctx: Any) -> Any:
        ctx.timers.set(ctx.timestamp)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        ctx.emit("left", (us(timer.timestamp),))


def test_what_timers_send_aside_does_not_pile_up(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "OUTPUT_ROWS", 10)
    s = stage(Aside(), sides={"left": "n bigint"})
    assert s.raw(timed(*[("a", "", 0, n) for n in range(35)])) == []
    task = s.bench.task
    task.begin(Epoch(2), EpochTimes(100))
    batches = list(task.fire())
    assert [batch.num_rows for batch in batches] == [10, 10, 10, 5]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row[f"{SIDE}_1"]["n"], row[TIME], row[FIRED]) for row in rows] == [(n, n, True) for n in range(35)]


def test_a_side_output_that_was_not_declared(stage: Any) -> None:
    with pytest.raises(UserCodeError, match="has no side output 'left'") as caught:
        stage().epoch(timed(("a", "aside", -1, 1)))
    assert "sides=" in caught.value.hint


def test_timers_need_on_timer_and_event_time(stage: Any) -> None:
    class NoTimer(KeyedProcess):
        def on_event(self, event: Any, ctx: Any) -> Any:
            ctx.timers.set_processing(ctx.now)

    with pytest.raises(UserCodeError, match="cannot set this timer: NoTimer does not define on_timer"):
        stage(NoTimer()).epoch(timed(("a", "add", 1, 1)))
    s = stage(timed=False)
    for op in ("set", "delete"):
        with pytest.raises(UserCodeError, match=r"the stream has no event time: call watermark\("):
            s.epoch(batch_of([("a", op, 1)], EVENTS))
    with pytest.raises(StateTypeError, match="expected a datetime with a time zone"):
        stage().epoch(timed(("a", "naive", 1, 1)))


def test_timers_count_for_the_memory_backends_limit(tmp_path: Path) -> None:
    given = {"input_schema": EVENTS, "output_schema": SAID, "timed": True, "limit_bytes": 400}
    s = Stage(Bench("memory", tmp_path, Teller(), **given))
    s.epoch(timed(*[("a", "set", n, 1) for n in range(100, 110)]))
    with pytest.raises(StateLimitError, match="limit is 400"):
        s.epoch(timed(*[("a", "set", n, 1) for n in range(200, 230)]))
    assert s.bench.task.next_timers_us[0] == 100
    # Those that fire make room, also after a restore.
    s.bench.restore(s.bench.snapshot(), s.bench.epoch)
    assert len(s.epoch(watermark=106)) == 6
    assert len(s.epoch(timed(*[("a", "set", n, 1) for n in range(200, 212)]), watermark=110)) == 16
    s.bench.close()


class Sums(KeyedBatchProcess):
    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.Table:
        said = [f"{n} of {us(ctx.watermark)}" for n in batch.column("n").to_pylist()]
        return pa.table({"k": batch.column("k"), "said": said})


@pytest.mark.parametrize("is_phased", [False, True])
def test_a_vectorised_function_in_event_time(stage: Any, is_phased: bool) -> None:
    s = stage(Sums(), phased=is_phased, measured=not is_phased)
    batch = (
        phased(("a", "", 1, 5, True), ("b", "", 2, 9, False)) if is_phased else timed(("a", "", 1, 5), ("b", "", 2, 9))
    )
    rows = s.raw(batch, watermark=6)
    # What a timer gave comes before the watermark moves on, and what comes of it does so in the next operator.
    first = ("a", "1 of None", None, True) if is_phased else ("a", "1 of 6", None, False)
    assert [(row["k"], row["said"], row[TIME], row[FIRED]) for row in rows] == [first, ("b", "2 of 6", None, False)]
    assert s.bench.task.late_rows == (0 if is_phased else 1)
    assert s.bench.task.newest_us == ({} if is_phased else {"": 9})


class Sizes(KeyedProcess):
    def on_event(self, event: Any, ctx: Any) -> Any:
        yield ctx.key, f"{len(event.op)} {event.n}"


class SizesOfBatches(KeyedBatchProcess):
    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.Table:
        rows = zip(batch.column("op").to_pylist(), batch.column("n").to_pylist(), strict=True)
        return pa.table({"k": batch.column("k"), "said": [f"{len(op)} {n}" for op, n in rows]})


@pytest.mark.parametrize(
    ("process", "is_fired"), [(Sizes(), False), (SizesOfBatches(), False), (SizesOfBatches(), True)]
)
def test_an_epoch_whose_rows_wait_may_be_larger_than_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: Any, is_fired: bool
) -> None:
    for name in ("heldrows._IN_MEMORY_BYTES", "task._GATHER_BYTES"):
        monkeypatch.setattr(f"strandline.runtime.task.{name}", 1 << 20)
    given = {"input_schema": EVENTS, "output_schema": SAID, "timed": True, "phased": True}
    bench, begun, most = Bench("memory", tmp_path, process, **given), pa.total_allocated_bytes(), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for n in range(20):
            yield phased(("a", "x" * (1 << 20), n, 1, is_fired))
            most = max(most, pa.total_allocated_bytes() - begun)

    for abort in (True, False):
        found = [row["said"] for each in bench.apply(batches(), abort=abort) for row in each.to_pylist()]
        assert found == [f"{1 << 20} {n}" for n in range(20)]
    assert most < 8 << 20
    bench.close()


@pytest.mark.parametrize("kind", BACKENDS)
def test_looking_at_a_key_changes_nothing(tmp_path: Path, kind: str) -> None:
    given = {"input_schema": EVENTS, "output_schema": SAID, "timed": True}
    s = Stage(Bench(kind, tmp_path, Teller(), **given))
    s.epoch(timed(("a", "set", 5, 1), ("a", "set", 3, 1), ("b", "set", 4, 1), ("a", "clock", 9, 1)))
    for _ in range(2):
        group = batch_of([("a", "", 0)], EVENTS).column(0)[0].as_py()
        assert s.bench.task.store.timers_of(group, "a") == [(3, False), (5, False), (9, True)]
        s.bench.task.store.turn_to(group, "a")
        assert s.bench.process.seen.value == 3
        s.bench.task.abort()
        assert list(s.bench.task.store.freeze().changes()) == ["seen", "timers.event", "timers.processing"]
    assert len(s.epoch(watermark=10, now=10)) == 4
    s.bench.close()
