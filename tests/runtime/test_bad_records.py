"""Events that a function fails for, where that does not end the job: they leave a dead letter, and no other trace."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.badrecords import DEAD_LETTER, DEAD_LETTERS, OnError
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import TTL, Aggregating, List, Map, Reducing, Value
from strandline.core.errors import (
    ConfigurationError,
    StateLimitError,
    StrandlineError,
    UserCodeError,
)
from strandline.core.ids import Epoch
from strandline.runtime.rowlayout import SIDE
from strandline.runtime.task import guarded
from strandline.runtime.task.task import EpochTimes
from strandline.types.datatypes import parse_schema
from tests.runtime.bench import Bench, batch_of
from tests.runtime.conftest import Make
from tests.soak import BACKENDS, examples

_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_START_US = int(_START.timestamp()) * 1_000_000
_SECOND = dt.timedelta(seconds=1)
EVENTS = "k string, steps string, fails string, at bigint"
ANSWERS = "k string, said string, n int"
SIDES = {"aside": "k string, n int", DEAD_LETTERS: DEAD_LETTER}


class Doing(KeyedProcess):
    """Does what each event says, letter by letter, to every kind of state; then it fails, as the event says.

    With `passes`, it does not do what it would fail for: the one that all others are compared with.
    """

    value = Value("bigint", default=7)
    tags = Value("array<bigint>")
    history = List("bigint")
    by = Map("bigint", "array<bigint>")
    top = Reducing("bigint", max)
    mean = Aggregating("struct<n: int>", create=lambda: (0,), add=lambda acc, x: (acc.n + x,))
    short = Value("bigint", ttl=TTL("5s"))
    brief = List("bigint", ttl=TTL("5s", refresh="read"))
    entries = Map("bigint", "bigint", ttl=TTL("5s", time="event"))

    def __init__(self, *, passes: bool = False) -> None:
        self.passes = passes

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.fails and self.passes:
            return
        for number, step in enumerate(event.steps):
            self.do(step, number + event.at, ctx)
            yield ctx.key, step, number
        yield from self.fail(event.fails, ctx)
        yield {"k": ctx.key, "said": self.seen(), "n": 1}

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        at = timer.time_us // 1_000_000
        fails = "raise" if at % 3 == 2 or timer.timestamp > _START + 60 * _SECOND else ""
        if fails and self.passes:
            return
        self.do("lv" if timer.is_processing_time else "m", 3, ctx)
        if not timer.is_processing_time:
            # On the way: due already, or soon.
            ctx.timers.set_processing(ctx.now)
            ctx.timers.set(timer.timestamp + 2 * _SECOND)
        yield ctx.key, "timer", 0
        yield from self.fail(fails, ctx)

    def do(self, steps: str, n: int, ctx: Any) -> None:
        for step in steps:
            getattr(self, f"do_{step}")(n, ctx)

    def fail(self, how: str, ctx: Any) -> Iterator[Any]:
        if how == "raise":
            raise ValueError("bad \udc80 luck")
        if how == "row":
            yield ctx.key, "too large", 1 << 40
        if how == "columns":
            yield {"k": ctx.key}
        if how == "state":
            self.value.value = 1 << 70
        if how == "side":
            ctx.emit("aside", (ctx.key, "text"))

    def seen(self) -> str:
        plain = self.value.value, self.tags.value, self.top.value, self.mean.result(), self.short.value
        return repr((*plain, self.history.get(), self.brief.get(), sorted(self.by.items()), sorted(self.entries)))

    def do_v(self, n: int, ctx: Any) -> None:
        self.value.value = n if n % 4 else None

    def do_g(self, n: int, ctx: Any) -> None:
        self.tags.value = [*(self.tags.value or []), n]

    def do_l(self, n: int, ctx: Any) -> None:
        self.history.append(n)

    def do_c(self, n: int, ctx: Any) -> None:
        self.history.set([n] * (n % 3))
        self.brief.set([n] * (n % 2))

    def do_m(self, n: int, ctx: Any) -> None:
        self.by[n % 3] = [*self.by.get(n % 3, []), n]

    def do_d(self, n: int, ctx: Any) -> None:
        self.by.pop(n % 3, None)
        self.short.clear()
        self.entries.pop(n % 3, None)

    def do_x(self, n: int, ctx: Any) -> None:
        self.by.clear()
        self.mean.clear()

    def do_a(self, n: int, ctx: Any) -> None:
        self.top.add(n)
        self.mean.add(n)

    def do_s(self, n: int, ctx: Any) -> None:
        self.short.value = n
        self.brief.append(n)
        self.entries[n % 3] = n

    def do_t(self, n: int, ctx: Any) -> None:
        ctx.timers.set(_START + n * _SECOND)
        ctx.timers.set_processing(ctx.now + n % 3 * _SECOND)

    def do_u(self, n: int, ctx: Any) -> None:
        ctx.timers.delete(_START + n * _SECOND)
        ctx.timers.delete_processing(ctx.now + n % 3 * _SECOND)

    def do_e(self, n: int, ctx: Any) -> None:
        ctx.emit("aside", (ctx.key, n))


def opened(kind: str, root: Path, *, passes: bool = False, then: Any = "dead-letter", **given: Any) -> Bench:
    fields = {"input_schema": EVENTS, "output_schema": ANSWERS, "sides": SIDES, "timed": True, **given}
    return Bench(kind, root, Doing(passes=passes), on_error=OnError(then) if isinstance(then, str) else then, **fields)


def rows_of(events: list[Any]) -> pa.RecordBatch:
    """Return events with their times, which are as many seconds after the start as `at` says."""
    batch = batch_of(events, EVENTS)
    times = pa.array([_START_US + at * 1_000_000 for *_, at in events], pa.int64())
    return batch.add_column(1, "__strandline_time", times)


def told(batches: list[pa.RecordBatch]) -> tuple[list[Any], list[Any]]:
    """Return all rows but dead letters, each with its time, and the dead letters."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    letters = 1 + list(SIDES).index(DEAD_LETTERS)
    kept = [{n: v for n, v in row.items() if n != f"{SIDE}_{letters}"} for row in rows if row[SIDE] != letters]
    # Rows of side outputs come behind the others of their batch, wherever that ends.
    return sorted(kept, key=lambda row: row[SIDE]), [row[f"{SIDE}_{letters}"] for row in rows if row[SIDE] == letters]


def changed(bench: Bench) -> dict[str, list[Any]]:
    """Return everything that a snapshot would write now."""
    frozen = bench.freeze()
    # In memory, what was looked for and is not there may be known for a while.
    is_change = (lambda entry: entry[1] is not None) if bench.backend.keeps_all else lambda entry: True
    found = {name: sorted(filter(is_change, entries)) for name, entries in frozen.changes().items()}
    bench.write(frozen)
    return found


events = st.tuples(
    st.sampled_from(["x", "y", "z"]),
    st.text("vglcmdxastue", max_size=6),
    st.sampled_from(["", "", "", "raise", "row", "columns", "state", "side"]),
    st.integers(0, 12),
)
epochs = st.lists(
    st.tuples(
        st.lists(st.lists(events, min_size=1, max_size=8), max_size=2), st.integers(0, 12), st.booleans(), st.booleans()
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("kind", BACKENDS)
@examples(40)
@given(epochs=epochs, together=st.sampled_from([1, 3, 5000]), cache_bytes=st.sampled_from([1, 1 << 20]))
def test_what_fails_leaves_no_trace(
    tmp_path_factory: pytest.TempPathFactory, kind: str, epochs: Any, together: int, cache_bytes: int
) -> None:
    """State, timers, expiry and output are those of a function that does nothing at all for these events."""
    usual, guarded._TOGETHER = guarded._TOGETHER, together
    bench = opened(kind, tmp_path_factory.mktemp("failing"), cache_bytes=cache_bytes)
    model = opened(kind, tmp_path_factory.mktemp("passing"), cache_bytes=cache_bytes, passes=True, then="fail")
    watermark = _START_US
    try:
        for given_, later, abort, looks in epochs:
            batches = list(map(rows_of, given_))
            watermark += later * 1_000_000
            times = watermark, watermark
            rows, letters = told(bench.apply(batches, *times, abort=abort))
            wanted, none = told(model.apply(batches, *times, abort=abort))
            assert rows == wanted
            assert none == []
            failing = [event for batch in given_ for event in batch if event[2]]
            of_events = [letter for letter in letters if letter["step"] == "on_event"]
            assert [(json.loads(letter["key"]), json.loads(letter["event"])["at"]) for letter in of_events] == [
                (key, at) for key, _, _, at in failing
            ]
            if looks:
                assert changed(bench) == changed(model)
        assert changed(bench) == changed(model)
    finally:
        guarded._TOGETHER = usual
        bench.close()
        model.close()


def test_what_a_dead_letter_says(make: Make) -> None:
    bench = make(Doing(), input_schema=EVENTS, output_schema=ANSWERS, sides=SIDES, timed=True, on_error=OnError())
    _, letters = told(bench.apply([rows_of([("x", "vl", "raise", 2), ("y", "v", "row", 3), ("z", "v", "", 4)])]))
    first, second = letters
    assert first["operator"] == "op"
    assert first["step"] == "on_event"
    assert first["reason"] == "ValueError: bad \\udc80 luck", "half a surrogate pair is no text"
    assert json.loads(first["key"]) == "x"
    assert json.loads(first["event"]) == {"k": "x", "steps": "vl", "fails": "raise", "at": 2}
    assert first["event_time"] == _START + 2 * _SECOND
    assert "yield from self.fail(event.fails, ctx)" in first["traceback"]
    assert "guarded.py" not in first["traceback"], "it is the user's frames"
    assert second["reason"].startswith("expected int at .n, got 1099511627776 (int): the range is")
    assert second["traceback"] is None
    assert bench.task.failed_events == 2


def test_skip_gives_no_dead_letters_and_counts(make: Make) -> None:
    sides = {"aside": SIDES["aside"]}
    bench = make(Doing(), input_schema=EVENTS, output_schema=ANSWERS, sides=sides, timed=True, on_error=OnError("skip"))
    given_ = [("x", "v", "raise", 1), ("x", "e", "side", 1), ("x", "e", "", 1)]
    rows = [row for batch in bench.apply([rows_of(given_)]) for row in batch.to_pylist()]
    assert [row[f"{SIDE}_1"] for row in rows if row[SIDE] == 1] == [{"k": "x", "n": 1}]
    assert bench.task.failed_events == 2
    bench.apply([rows_of(given_[2:])])
    assert bench.task.failed_events == 0, "of this epoch"


class Alarms(KeyedProcess):
    """Sets a timer for each event; that of one key fails."""

    rung = Value("int", default=0)

    def on_event(self, event: Any, ctx: Any) -> None:
        ctx.timers.set(ctx.timestamp)

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        self.rung.value += 1
        ctx.timers.set(timer.timestamp + _SECOND)
        yield ctx.key, "rung", self.rung.value
        if ctx.key == "z" or self.rung.value == 2:
            raise RuntimeError("broken bell")


def test_a_timer_that_fails_has_fired(make: Make) -> None:
    bench = make(Alarms(), input_schema=EVENTS, output_schema=ANSWERS, sides=SIDES, timed=True, on_error=OnError())
    bench.apply([rows_of([("x", "", "", 0), ("z", "", "", 2)])])
    rows, letters = told(bench.apply([], _START_US + 9_000_000))
    assert [(row["k"], row["n"]) for row in rows] == [("x", 1)]
    # What a failing call has set is gone with it: the timers end there.
    assert [json.loads(letter["event"]) for letter in letters] == [
        {"timer": f"2026-01-01T00:00:0{second}+00:00", "is_processing_time": False} for second in (1, 2)
    ]
    assert [letter["step"] for letter in letters] == ["on_timer", "on_timer"]
    assert letters[1]["event_time"] == _START + 2 * _SECOND
    assert told(bench.apply([], _START_US + 99_000_000)) == ([], [])


def test_events_without_a_key_and_with_a_time_that_nobody_has(make: Make) -> None:
    """They are told apart before the function is called."""

    class Seeing(KeyedProcess):
        n = Value("int", default=0)

        def on_event(self, event: Any, ctx: Any) -> Any:
            self.n.value += 1
            yield ctx.key, str(event.ts), self.n.value

    schema = "k string, ts timestamp"
    bench = make(Seeing(), input_schema=schema, output_schema=ANSWERS, sides=SIDES, on_error=OnError())
    times = pa.array([0, 1 << 62, 0, None, -(1 << 62), 5], pa.int64()).view(pa.timestamp("us", "UTC"))
    keys = ["a", "a", None, "a", None, "b"]
    groups = pa.array([None if key is None else 1 for key in keys], pa.int32())
    batch = pa.RecordBatch.from_arrays([groups, pa.array(keys), times], names=["key_group", "k", "ts"])
    rows, letters = told(bench.apply([batch]))
    assert [(row["k"], row["n"]) for row in rows] == [("a", 1), ("a", 2), ("b", 1)]
    assert [(letter["step"], json.loads(letter["event"])["ts"]) for letter in letters] == [
        ("read", 1 << 62),
        ("key_by", "1970-01-01T00:00:00+00:00"),
        ("key_by", -(1 << 62)),
    ]
    assert "the column 'ts' cannot be read" in letters[0]["reason"]
    assert letters[1]["reason"] == "the key column 'k' is null"
    assert letters[1]["key"] is None


UNREADABLE = "k string, note struct<says: array<string>>"


def unreadable(*rows: tuple[bytes, bytes]) -> pa.RecordBatch:
    """Return rows whose strings are these bytes."""
    keys, notes = (pa.array(column, pa.binary()).view(pa.string()) for column in zip(*rows, strict=True))
    lists = pa.ListArray.from_arrays(range(len(rows) + 1), notes)
    columns = [pa.array([1] * len(rows), pa.int32()), keys, pa.StructArray.from_arrays([lists], ["says"])]
    return pa.RecordBatch.from_arrays(columns, names=["key_group", "k", "note"])


ROWS = unreadable((b"a", b"ok"), (b"a", b"\xff\xfe"), (b"\xfa", b"ok"), (b"a", b"ok"))


class Saying(KeyedProcess):
    """Keeps what events say, and counts it."""

    said = List("string")

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.said.extend(event.note.says)
        yield ctx.key, repr(self.said.get()), len(self.said)


def test_strings_that_are_no_utf8_are_bad_records(make: Make) -> None:
    given: dict[str, Any] = {"input_schema": UNREADABLE, "output_schema": ANSWERS}
    bench = make(Saying(), **given, sides=SIDES, on_error=OnError())
    rows, letters = told(bench.apply([ROWS]))
    assert [(row["k"], row["n"]) for row in rows] == [("a", 1), ("a", 2)]
    assert [(letter["step"], letter["key"], json.loads(letter["event"])) for letter in letters] == [
        ("read", '"a"', {"k": "a", "note": {"says": ["//4="]}}),
        ("read", '"+g=="', {"k": "+g==", "note": {"says": ["ok"]}}),
    ]
    assert letters[0]["reason"] == (
        "the column 'note' cannot be read: the string b'\\xff\\xfe' is no UTF-8: invalid start byte at byte 0"
    )
    assert bench.task.failures.last == "the column 'k' cannot be read"


def test_a_string_that_is_no_utf8_ends_the_job_in_words(make: Make) -> None:
    for process in (Saying(), KeysAlone()):
        bench = make(process, input_schema=UNREADABLE, output_schema=ANSWERS)
        with pytest.raises(UserCodeError) as caught:
            bench.apply([ROWS])
        column = "note" if isinstance(process, Saying) else "k"
        assert f"operator 'op': the column '{column}' cannot be read: the string b'\\xf" in caught.value.message
        assert ", in the event Record(k=" in caught.value.message
        assert caught.value.discreet == f"operator 'op': the column '{column}' cannot be read in an event"


class KeysAlone(KeyedBatchProcess):
    """Gives its keys; other columns are the function's own matter."""

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> pa.RecordBatch:
        keys, _ = ctx.keys.unique()
        nothing = [pa.nulls(len(keys), kind) for kind in (pa.string(), pa.int32())]
        return pa.RecordBatch.from_arrays([*keys.columns, *nothing], names=["k", "said", "n"])


def test_a_vectorised_function_gets_strings_as_they_are(make: Make) -> None:
    bench = make(KeysAlone(), input_schema=UNREADABLE, output_schema=ANSWERS)
    assert bench.run(ROWS.take(pa.array([0, 1, 3]))) == [("a", None, None)]


def test_more_failures_than_may_be_end_the_job(make: Make) -> None:
    bearing = OnError("dead-letter", at_most=2, per=dt.timedelta(seconds=10))
    bench = make(Doing(), input_schema=EVENTS, output_schema=ANSWERS, sides=SIDES, timed=True, on_error=bearing)
    bad = ("x", "v", "raise", 0)
    bench.apply([rows_of([bad])])
    with pytest.raises(
        UserCodeError, match=r"3 events failed within 10\.0s, and at most 2 may; the last one"
    ) as caught:
        bench.apply([rows_of([bad, bad])])
    assert "outage" in caught.value.hint
    assert caught.value.fields["traceback"]
    # What is given up does not count, and the next stretch of the clock begins at none.
    bench.apply([rows_of([bad])])
    with pytest.raises(UserCodeError, match="at most 2 may"):
        bench.apply([rows_of([bad])], now_us=9_999_999)
    _, letters = told(bench.apply([rows_of([bad, bad])], now_us=10_000_000))
    assert len(letters) == 2


class Raising(KeyedProcess):
    """Raises what it is given, after it has written."""

    n = Value("bigint", default=0)
    error: BaseException

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.n.value += 1
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        StateLimitError("too much"),
        ConfigurationError("not set up"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_are_no_events_end_the_job(make: Make, error: BaseException) -> None:
    bench = make(Raising(), input_schema=EVENTS, output_schema=ANSWERS, on_error=OnError("skip"))
    bench.process.error = error  # type: ignore[union-attr]
    expected = type(error) if isinstance(error, KeyboardInterrupt | GeneratorExit) else StrandlineError
    with pytest.raises(expected):
        bench.apply([batch_of([("x", "", "", 0)], EVENTS)])
    assert bench.task.failed_events == 0


class Panic(BaseException):
    """As a library written in Rust raises it, or a framework for its timeouts."""


@pytest.mark.parametrize("error", [Panic("no"), asyncio.CancelledError()], ids=lambda error: type(error).__name__)
def test_errors_that_are_no_exceptions_are_the_events_too(make: Make, error: BaseException) -> None:
    event = batch_of([("x", "", "", 0)], EVENTS)
    bench = make(Raising(), input_schema=EVENTS, output_schema=ANSWERS, on_error=OnError("skip"))
    bench.process.error = error  # type: ignore[union-attr]
    bench.apply([event])
    assert bench.task.failed_events == 1
    failing = make(Raising(), input_schema=EVENTS, output_schema=ANSWERS)
    failing.process.error = error  # type: ignore[union-attr]
    with pytest.raises(UserCodeError, match=f"on_event of Raising raised for key 'x'.*{type(error).__name__}"):
        failing.apply([event])


def test_an_event_whose_text_cannot_be_made_is_a_dead_letter_all_the_same(make: Make) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    bench = make(Raising(), input_schema=EVENTS, output_schema=ANSWERS, sides=SIDES, on_error=OnError())
    bench.process.error = Mute()  # type: ignore[union-attr]
    (letter,) = told(bench.apply([batch_of([("x", "", "", 0)], EVENTS)]))[1]
    assert letter["reason"] == "Mute: <its text raises RuntimeError>"
    bench.process.error = ValueError("x" * 100_000)  # type: ignore[union-attr]
    (letter,) = told(bench.apply([batch_of([("x", "", "", 0)], EVENTS)]))[1]
    assert len(letter["reason"]) < 2_100
    assert len(letter["traceback"]) < 20_100


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"at_most": 0}, "at_most is 0"),
        ({"at_most": 0.5}, "at_most is 0.5, expected a number"),
        ({"per": "0s"}, "per is"),
    ],
)
def test_bounds_that_cannot_be_meant(given_: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        OnError("skip", **given_)


def test_an_epoch_that_is_run_again_gives_the_same(make: Make) -> None:
    bench = make(Doing(), input_schema=EVENTS, output_schema=ANSWERS, sides=SIDES, timed=True, on_error=OnError())
    given_ = [rows_of([("x", "vl", "raise", 2), ("x", "vlmst", "", 3), ("y", "e", "row", 3)])]
    first = told(bench.apply(given_, abort=True))
    running = bench.partition.run(Epoch(1), EpochTimes(None, 0), given_)
    next(running)
    running.close()
    bench.partition.abort()
    assert told(bench.apply(given_)) == first
    assert parse_schema(DEAD_LETTER).names == tuple(first[1][0])


@pytest.mark.parametrize("per", ["1 min", dt.timedelta(minutes=1)])
def test_keepers_receive_the_handling_of_errors(per: Any) -> None:
    on_error = OnError(at_most=1, per=per)
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(on_error), type=OnError)
    assert (received, received.per_ms) == (on_error, 60_000)
