"""The harness that users test with: what it runs is real, and it says what is wrong."""

from __future__ import annotations

import datetime as dt
import doctest
import gc
import math
from pathlib import Path
from typing import Any

import pytest

from strandline import Aggregating, Global, KeyedProcess, List, Map, Reducing, Value, agg
from strandline.core.errors import (
    ConfigurationError,
    NullKeyError,
    OutputError,
    StateLimitError,
    StateTypeError,
    UserCodeError,
)
from strandline.testing import Harness, events, run
from tests.runtime.bench import KINDS

EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
OUT = "k string, said string"


def at(seconds: float) -> dt.datetime:
    return EPOCH + seconds * SECOND


class Everything(KeyedProcess):
    """All kinds of state, and timers of both kinds."""

    seen = Value("bigint", default=0)
    history = List("bigint")
    by_op = Map("string", "bigint")
    top = Reducing("bigint", max)
    mean = Aggregating(
        "struct<n: bigint, total: bigint>",
        create=lambda: (0, 0),
        add=lambda acc, x: (acc[0] + 1, acc[1] + x),
        result=lambda acc: acc[1] / acc[0],
    )

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.op == "fail":
            raise ValueError("as asked")
        if event.op == "late":
            ctx.emit("late", (ctx.key, ctx.is_late))
            return
        if event.op == "timer":
            ctx.timers.set(ctx.timestamp + event.n * SECOND)
        if event.op == "clock":
            ctx.timers.set_processing(ctx.now + event.n * SECOND)
        self.seen.value += 1
        self.history.append(event.n)
        self.by_op[event.op] = event.n
        self.top.add(event.n)
        self.mean.add(event.n)
        yield ctx.key, f"{event.op} {self.seen.value} in {ctx.epoch}"

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        kind = "clock" if timer.is_processing_time else "event"
        yield ctx.key, f"{kind} timer {timer.timestamp - EPOCH} at {ctx.watermark and ctx.watermark - EPOCH}"


def everything(**given: Any) -> Harness:
    schema = "k string, op string, n bigint, ts timestamp"
    sides = {"late": "k string, is_late boolean"}
    return Harness(Everything(), schema=schema, key="k", output=OUT, sides=sides, event_time="ts", **given)


def said(rows: list[Any]) -> list[str]:
    return [f"{row.k}: {row.said}" for row in rows]


def event(k: str, op: str = "add", n: int = 1, ts: float = 0) -> dict[str, Any]:
    return {"k": k, "op": op, "n": n, "ts": at(ts)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_state_output_and_timers_come_back_after_a_crash(kind: Any, parallelism: int) -> None:
    with everything(backend=kind, parallelism=parallelism) as h:
        keys = [f"key {number}" for number in range(20)]
        assert sorted(said(h.push(*(event(k, "timer", 5) for k in keys)))) == sorted(f"{k}: timer 1 in 1" for k in keys)
        h.push(event("key 1", "late"), event("key 1", "clock", 7))
        kept = h.snapshot()
        before = h.state("key 1"), h.timers("key 1"), h.timers("key 1", processing=True), h.output, h.side("late")
        assert before[:3] == (
            {"seen": 2, "history": [5, 7], "by_op": {"timer": 5, "clock": 7}, "top": 7, "mean": 6.0},
            [at(5)],
            [at(7)],
        )
        assert before[4] == [("key 1", False)]
        # All of it is lost, and happens again.
        for _ in range(2):
            h.push(event("key 1", "more", 9), event("never seen", "more"))
            assert h.advance_watermark(at(5)) == [], "events at 5 s are still on time"
            assert len(h.advance_watermark(at(5.000001))) == 20
            assert h.timers("key 1") == []
            h.crash()
            assert (h.epoch, h.watermark) == (2, None)
            now = h.state("key 1"), h.timers("key 1"), h.timers("key 1", processing=True), h.output, h.side("late")
            assert now == before
            assert h.state("never seen") == {"seen": 0, "history": [], "by_op": {}, "top": None, "mean": None}
        h.restore(None)
        assert (h.epoch, h.output, h.state("key 1")["seen"], h.timers("key 1")) == (0, [], 0, [])
        h.restore(kept)
        assert (h.state("key 1"), h.output) == (before[0], before[3])
        h.crash()
        assert h.state("key 1") == before[0], "the snapshot that was restored is the last one"


def test_an_epoch_that_fails_is_not_applied() -> None:
    with everything() as h:
        h.push(event("a", "timer", 5), event("b"))
        before = h.state("a"), h.timers("a"), h.output, h.side("late"), h.epoch
        with pytest.raises(UserCodeError, match=r"'a'.*as asked"):
            h.push(event("a", "late"), event("a"), event("a", "timer", 9), event("b"), event("a", "fail"))
        assert (h.state("a"), h.timers("a"), h.output, h.side("late"), h.epoch) == before
        assert said(h.push(event("a"))) == ["a: add 2 in 2"]
        assert h.side("late") == []


def test_watermarks_by_hand() -> None:
    with everything() as h:
        assert h.push(event("a", "timer", 10), event("b", "timer", 5)) is not None
        assert h.watermark is None
        assert h.advance_watermark(at(5)) == []
        assert said(h.advance_watermark(at(7))) == ["b: event timer 0:00:05 at 0:00:07"]
        h.push(event("a", "late", ts=6.999999), event("b", "late", ts=7))
        assert h.late_rows == 1
        assert h.side("late") == [("a", True), ("b", False)]
        with pytest.raises(ConfigurationError, match="never goes back"):
            h.advance_watermark(at(6))
        with pytest.raises(ConfigurationError, match="time zone"):
            h.advance_watermark(dt.datetime(2024, 1, 1))
        h.snapshot()
        h.advance_watermark(at(20))
        h.crash()
        assert h.watermark == at(7)


def test_a_watermark_that_follows_events_moves_when_their_epoch_has_ended() -> None:
    with everything(watermark="2s") as h:
        assert said(h.push(event("a", "timer", 2), event("b", ts=5))) == ["a: timer 1 in 1", "b: add 1 in 1"]
        assert h.watermark == at(3)
        assert said(h.push(event("a", "late", ts=2.5))) == ["a: event timer 0:00:02 at 0:00:03"]
        assert h.side("late") == [("a", True)]
        h.snapshot()
        h.push(event("b", ts=9))
        assert h.watermark == at(7)
        assert h.advance_watermark(at(8)) == []
        assert h.watermark == at(8)
        h.crash()
        assert h.watermark == at(3)


def test_tick_goes_on_until_no_timer_is_due() -> None:
    with everything(watermark="0s") as h:
        h.push(event("a", "timer", 1, ts=0), event("a", "timer", -3, ts=5))
        assert said(h.tick()) == ["a: event timer 0:00:01 at 0:00:05", "a: event timer 0:00:02 at 0:00:05"]
        assert h.timers("a") == []
        assert h.tick() == []


def test_the_clock_moves_only_when_told_to() -> None:
    with everything() as h:
        h.push(event("a", "clock", 10))
        assert (h.now, h.advance_clock("9s")) == (EPOCH, [])
        assert said(h.advance_clock(SECOND)) == ["a: clock timer 0:00:10 at None"]
        assert h.advance_clock(at(60)) == []
        assert h.now == at(60)
        for back in (at(59), -SECOND):
            with pytest.raises(ConfigurationError, match="never goes back"):
                h.advance_clock(back)
        with pytest.raises(ConfigurationError, match="expected a duration"):
            h.advance_clock("soon")


class Twice(KeyedProcess):
    """Tells what it saw, when its event's time has come."""

    waiting = List("string")

    def on_event(self, event: Any, ctx: Any) -> Any:
        ctx.emit("seen", (f"{event.said}, watermark {ctx.watermark and ctx.watermark - EPOCH}, late {ctx.is_late}",))
        self.waiting.append(event.said)
        ctx.timers.set(ctx.timestamp)
        return ()

    def on_timer(self, timer: Any, ctx: Any) -> Any:
        for said in self.waiting:
            yield ctx.key, f"{said}, told at {timer.timestamp - EPOCH}"
        self.waiting.clear()


def chained(**given: Any) -> Harness:
    return everything(watermark="0s", **given).then(
        Twice(), key="k", output=OUT, uid="second", sides={"seen": "what string"}
    )


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_chain_passes_what_timers_gave_on_before_the_watermark_moves(parallelism: int) -> None:
    with chained(parallelism=parallelism) as h:
        assert h.push(event("a", "timer", 3)) == []
        assert h.side("seen") == [("timer 1 in 1, watermark None, late False",)]
        # The watermark is 0 in this epoch, and 4 in the next one: the second operator sees the timer's row, at 3, before.
        assert h.push(event("a", ts=4)) == [], "one more at 0 would be on time"
        told = said(h.push(event("a", "add", ts=1)))
        assert h.side("seen")[2:] == [
            ("event timer 0:00:03 at 0:00:04, watermark 0:00:00, late False",),
            ("add 3 in 3, watermark 0:00:04, late True",),
        ]
        waited = ("timer 1 in 1", "add 2 in 2", "event timer 0:00:03 at 0:00:04")
        assert told == [f"a: {what}, told at 0:00:00" for what in waited]
        assert (h.state("a", "operator")["seen"], h.state("a", "second")) == (3, {"waiting": ["add 3 in 3"]})
        assert h.timers("a", "second") == [at(1), at(4)]
        h.snapshot()
        assert said(h.tick()) == ["a: add 3 in 3, told at 0:00:01"]
        h.crash()
        assert said(h.tick()) == ["a: add 3 in 3, told at 0:00:01"]


def test_after_a_crash_too_what_timers_gave_comes_before_the_watermark_moves() -> None:
    with chained() as h:
        h.push(event("a", "timer", 3))
        h.push(event("a", ts=4))
        h.snapshot()
        for _ in range(2):
            h.tick()
            assert h.side("seen")[2:] == [("event timer 0:00:03 at 0:00:04, watermark 0:00:00, late False",)]
            h.crash()


def test_a_chain_applies_an_epoch_everywhere_or_nowhere() -> None:
    class Picky(KeyedProcess):
        seen = Value("bigint", default=0)

        def on_event(self, event: Any, ctx: Any) -> Any:
            self.seen.value += 1
            if "2 in" in event.said:
                raise ValueError("too much")

    with everything().then(Picky(), key="k", output=OUT, uid="picky") as h:
        h.push(event("a"))
        with pytest.raises(UserCodeError, match="'picky'"):
            h.push(event("a"))
        assert (h.state("a", "operator")["seen"], h.state("a", "picky")["seen"]) == (1, 1)


def test_a_chain_may_read_a_side_output() -> None:
    class Count(KeyedProcess):
        seen = Value("bigint", default=0)

        def on_event(self, event: Any, ctx: Any) -> Any:
            self.seen.value += 1
            yield ctx.key, self.seen.value, ctx.timestamp

    output = "is_late boolean, seen bigint, ts timestamp"
    with everything().then(Count(), key="is_late", output=output, uid="count", side="late") as h:
        assert h.push(event("a", "late", ts=3), event("b"), event("c", "late", ts=4)) == [
            (False, 1, at(3)),
            (False, 2, at(4)),
        ]
        assert h.side("late") == [("a", False), ("c", False)]


def test_a_stream_without_event_time() -> None:
    with Harness(Everything(), schema="k string, op string, n int", key="k", output=OUT) as h:
        assert said(h.push(("a", "clock", 3))) == ["a: clock 1 in 1"]
        assert said(h.advance_clock("3s")) == ["a: clock timer 0:00:03 at None"]
        with pytest.raises(ConfigurationError, match="no event time"):
            h.advance_watermark(at(1))


def test_keys_of_several_columns() -> None:
    class Count(KeyedProcess):
        seen = Value("bigint", default=0)

        def on_event(self, event: Any, ctx: Any) -> Any:
            self.seen.value += 1
            yield *ctx.key, self.seen.value

    schema = "a string, b date"
    day = dt.date(2024, 5, 1)
    with Harness(Count(), schema=schema, key=["b", "a"], output="b date, a string, n bigint", parallelism=2) as h:
        assert h.push(("x", day), ("x", day)) == [(day, "x", 1), (day, "x", 2)]
        assert h.state((day, "x")) == {"seen": 2}
        with pytest.raises(StateTypeError, match="operator 'operator': the key does not fit"):
            h.state("x")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": "a", "n": "many"}, "column 'n': expected bigint, got 'many'"),
        ({"k": "a", "ts": dt.datetime(2024, 1, 1)}, "column 'ts': expected timestamp.*no time zone"),
    ],
)
def test_events_that_do_not_fit(given: Any, message: str) -> None:
    with everything() as h:
        with pytest.raises(ConfigurationError, match=message) as caught:
            h.push(event("a"), given)
        assert "ts" in caught.value.hint
        assert h.epoch == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"key": "user"}, "there is no column 'user'; the stream has k, ts"),
        ({"key": []}, "needs at least one column"),
        ({"event_time": "k"}, "'k' is string, expected timestamp"),
        ({"event_time": "when"}, "is no column; the stream has k, ts"),
        ({"watermark": "5s"}, "without event_time"),
        ({"event_time": "ts", "watermark": "soon"}, "expected a duration"),
        ({"process": Everything}, "expected an instance"),
        ({"parallelism": 0}, "parallelism is 0"),
        ({"parallelism": "2"}, "parallelism is '2'"),
        ({"key": 1}, "key_by was given 1, expected a column's name"),
    ],
)
def test_harnesses_that_cannot_work(given: dict[str, Any], message: str) -> None:
    usual = {"process": Everything(), "schema": "k string, ts timestamp", "key": "k", "output": OUT}
    with pytest.raises(ConfigurationError, match=message):
        Harness(**{**usual, **given})


class Listed(KeyedProcess):
    said = Value("string", default="")

    def on_event(self, event: Any, ctx: Any) -> None:
        self.said.value += f"{event.n} "


def test_events_of_an_epoch_are_sorted_as_spark_sorts_them() -> None:
    given: Any = {"schema": "k string, n int, x double", "key": "k", "output": "k string"}
    with Harness(Listed(), **given, order_by=["x", "n"]) as h:
        h.push(("a", 1, math.nan), ("a", 2, 7.0), ("a", 3, None), ("a", 5, -math.inf), ("a", 4, -math.inf))
        h.push(("a", 7, 2.0), ("a", 6, 1.0))
        assert h.state("a") == {"said": "3 4 5 2 1 6 7 "}
    ordered = events(given["schema"]).key_by("k", order_by="n")
    with Harness(ordered.window(Global(count=2)).agg(first=agg.first("n"), uid="first")) as h:
        assert h.push(("a", 4, None), ("a", 2, None), ("a", 3, None), ("a", 1, None)) == [("a", 1), ("a", 3)]
    missing = "order_by: there is no column 'y'; the stream has k, n, x"
    for wrong, said in (("y", missing), (["n", "y"], missing), (3, "order_by was given 3, expected a column's name")):
        with pytest.raises(ConfigurationError, match=said):
            Harness(Listed(), **given, order_by=wrong)


def test_a_harness_that_nobody_closes_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    h = everything()
    h.push(event("a"))
    assert list(tmp_path.iterdir())
    del h
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_other_mistakes() -> None:
    with everything() as h:
        with pytest.raises(ConfigurationError, match="no side output 'lat', known: late"):
            h.side("lat")
        with pytest.raises(ConfigurationError, match="no side output 'lat', known: late"):
            h.then(Twice(), key="k", output=OUT, uid="second", side="lat")
        with pytest.raises(ConfigurationError, match="the uid 'operator' is used by 2 operators"):
            h.then(Twice(), key="k", output=OUT, uid="operator")
        with pytest.raises(ConfigurationError, match="is 'second', expected one of operator"):
            h.state("a", "second")
        with pytest.raises(NullKeyError, match="is null"):
            h.push({"op": "add"})
        h.push()
        with pytest.raises(ConfigurationError, match="after an epoch"):
            h.then(Twice(), key="k", output=OUT, uid="second")
        with everything(parallelism=2) as other:
            with pytest.raises(ConfigurationError, match="the snapshot is of another harness"):
                other.restore(h.snapshot())
            other.push(event("a"))
    for use in (h.push, h.tick, h.snapshot, h.crash, lambda: h.state("a")):
        with pytest.raises(ConfigurationError, match="closed already"):
            use()
    h.close()


def test_errors_are_a_jobs_own() -> None:
    class Wrong(KeyedProcess):
        def on_event(self, event: Any, ctx: Any) -> Any:
            yield {"k": ctx.key, "nothing": 1}

    with (
        Harness(Wrong(), schema="k string", key="k", output=OUT) as h,
        pytest.raises(OutputError, match="misses said"),
    ):
        h.push(("a",))

    class Hoard(KeyedProcess):
        text = Value("string")

        def on_event(self, event: Any, ctx: Any) -> Any:
            self.text.value = "x" * (11 << 20)

    with Harness(Hoard(), schema="k string", key="k", output=OUT, backend="memory") as h:
        with pytest.raises(StateLimitError):
            h.push(("a",))
        assert h.state("a") == {"text": None}


class Life(KeyedProcess):
    """Writes down what is called."""

    def __init__(self, log: Path, fails: bool = False) -> None:
        self.log, self.fails = log, fails

    def open(self) -> None:
        self.say("open")
        if self.fails:
            raise ValueError("cannot open")

    def on_event(self, event: Any, ctx: Any) -> Any:
        self.say("event")

    def close(self) -> None:
        self.say("close")

    def say(self, what: str) -> None:
        with self.log.open("a") as file:
            file.write(what + "\n")


class Unstorable(KeyedProcess):
    """Keeps what its types look like and do not hold."""

    n = Value("bigint")
    notes = List("string")

    def on_event(self, event: Any, ctx: Any) -> Any:
        if event.k == "n":
            self.n.value = 1 << 70
        else:
            self.notes.append("\ud800")


@pytest.mark.parametrize("backend", ["memory", "filesystem", "rocksdb"])
@pytest.mark.parametrize("state", ["n", "notes"])
def test_state_that_no_snapshot_could_hold_is_refused_in_its_epoch(backend: Any, state: str) -> None:
    with Harness(Unstorable(), schema="k string", key="k", output=OUT, backend=backend) as h:
        with pytest.raises(StateTypeError, match=f"state '{state}': the value does not fit the declared type"):
            h.push((state,))
        assert h.state(state)["n"] is None
        h.snapshot()


def test_open_and_close_are_called_as_in_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.tempfile, "tempdir", str(tmp_path))
    log = tmp_path / "log"
    with Harness(Life(log), schema="k string", key="k", output=OUT) as h:
        h.push(("a",))
        h.crash()
        assert list(tmp_path.glob("strandline-harness-*"))
    assert log.read_text().split() == ["open", "event", "open", "close"]
    with pytest.raises(UserCodeError, match="cannot open"):
        Harness(Life(log, fails=True), schema="k string", key="k", output=OUT, backend="rocksdb")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_the_examples() -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for thing in (Harness, events):
        examples = [test for test in finder.find(thing, thing.__name__, globs={"Harness": Harness}) if test.examples]
        assert [test.name for test in examples] == [thing.__name__]
        runner.run(examples[0])
    assert runner.summarize(verbose=False).failed == 0
