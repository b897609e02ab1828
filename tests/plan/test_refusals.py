"""What a program is refused as it is written, beside the mistakes of tests/mistakes: rarer ones, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core.errors import ConfigurationError
from strandline.plan.checks import missing_yield
from strandline.testing import events
from tests.spark import functions

PLAIN = events("user string, v bigint, vs array<int>, m map<string, int>, ts timestamp")
TIMED = PLAIN.watermark("ts")
KEYED, TIMED_KEYED = PLAIN.key_by("user"), TIMED.key_by("user")
NARROW = events("user string, w int, ts timestamp").watermark("ts").key_by("user")
JOIN = ("0s", "1s")


def refused(make: Any, *said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()
    for part in said:
        assert part in str(caught.value)


def test_event_time() -> None:
    refused(lambda: PLAIN.watermark(5), "watermark: column=5 is no column; the stream has user")  # type: ignore[arg-type]
    twice = PLAIN.map(lambda row: (row.ts, row.ts), "ts timestamp, TS timestamp")
    refused(lambda: twice.watermark("ts"), "the column ts, TS is there more than once")
    refused(lambda: twice.key_by("ts"), "'ts' cannot be a key: the column ts, TS is there more than once")


def test_functions() -> None:
    count = functions.Count
    twice = events("user string, v int").map(lambda row: row, "user string, v int, V int").key_by("user")
    refused(lambda: twice.process(count(), output="n bigint", uid="n"), "the column v, V is there more than once")
    refused(lambda: KEYED.process(count(), output="n int, N int", uid="n"), "output: the column n, N is there more")
    refused(
        lambda: KEYED.process(count(), output="n int", uid="n", sides={"late": "v int, V int"}),
        "operator 'n': the side output 'late': the column v, V is there more than once",
    )
    refused(
        lambda: KEYED.process(count(), output="user string, n bigint", uid="n", keeps_key="user"),  # type: ignore[arg-type]
        "operator 'n': keeps_key is 'user', expected True or False",
    )
    for output, said in (("n bigint", "there is no such column"), ("user binary", "it is binary")):
        refused(
            lambda output=output: KEYED.process(count(), output=output, uid="n", keeps_key=True),
            f"operator 'n': keeps_key needs the key in the output, as 'user string'; {said}",
        )
    refused(lambda: KEYED.process(count(), output="n bigint", uid=None), "Count has no uid")  # type: ignore[arg-type]
    done = KEYED.process(count(), "n bigint", uid="u", sides={"a": "n int"})
    refused(lambda: done.side("b"), "operator 'u' has no side output 'b', known: a")


def test_windows() -> None:
    alone = events("ts timestamp").watermark("ts").key_by("ts").window(sl.Tumbling("1s"))
    refused(lambda: alone.reduce(max, uid="x"), "no columns beside")
    for make in (KEYED.reduce, TIMED_KEYED.window(sl.Tumbling("1s")).reduce):
        for option in ("paralelism", "sides"):
            with pytest.raises(TypeError, match=rf"reduce\(\) got an unexpected keyword argument '{option}'; all oper"):
                make(max, uid="x", **{option: 3})
    with pytest.raises(TypeError, match=r"join\(\) got an unexpected keyword argument 'sides'"):
        TIMED_KEYED.join(NARROW, JOIN, uid="x", sides={})  # type: ignore[call-arg]


def test_joins() -> None:
    ordered = TIMED.key_by("user", order_by="ts")
    refused(lambda: TIMED_KEYED.connect(ordered), "the order_by of the streams differ: nothing")
    join = TIMED_KEYED.join
    refused(lambda: join(NARROW, JOIN, uid="u", prefixes=("", None)), "prefixes=('', None), expected a pair of")  # type: ignore[arg-type]
    refused(
        lambda: TIMED_KEYED.window_join(NARROW, sl.Global(5), uid="u"), "expected Tumbling, Sliding or Session ones"
    )


class Column:
    """Like Spark's: compared with something, it is another one, of which nobody can say whether it is true."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise ValueError("cannot convert column into bool")

    def __repr__(self) -> str:
        return "Column<'v'>"


def test_broadcasts() -> None:
    refused(lambda: KEYED.broadcast(PLAIN, order_by="m"), "broadcast: order_by names 'm', a map<string,int>, and maps")
    refused(lambda: KEYED.broadcast(PLAIN, order_by=5), "broadcast: order_by names 5; the broadcast stream has user")  # type: ignore[arg-type]
    refused(lambda: KEYED.broadcast(PLAIN, order_by=[Column()]), "broadcast: order_by names Column<'v'>; the broadcast")  # type: ignore[list-item]


def test_errors_that_are_to_be_borne(tmp_path: Path) -> None:
    def refused_with(said: str, process: Any = None, **given: Any) -> None:
        given = {"output": "user string, n bigint", "uid": "n", **given}
        refused(lambda: KEYED.process(process or functions.Count(), **given), said)

    refused_with("operator 'n': on_error is 'ignore', expected 'fail', 'skip' or 'dead-letter'", on_error="ignore")
    refused_with("operator 'n': on_error is True, expected", on_error=True)

    class Batches(sl.KeyedBatchProcess):
        def on_batch(self, batch: Any, ctx: Any) -> None:
            return None

    refused_with("on_error is 'skip', and Batches is a KeyedBatchProcess", Batches(), on_error="skip")
    taken = {"dead_letters": "user string"}
    refused_with("its side output 'dead_letters' has the name", sides=taken, on_error="dead-letter")
    window = TIMED_KEYED.window(sl.Tumbling("1s"))
    refused(
        lambda: window.fold("n int", 0, lambda n, e: n, uid="n", on_error="drop"),  # type: ignore[arg-type]
        "operator 'n': on_error is 'drop'",
    )
    skipping = KEYED.process(functions.Count(), output="user string, n bigint", uid="count", on_error="skip")
    refused(lambda: skipping.dead_letters, "dead_letters: there are none here")
    giving = KEYED.process(functions.Count(), output="user string, n bigint", uid="count", on_error="dead-letter")
    job = {"checkpoints": sl.Checkpoints(tmp_path / "ck")}
    refused(
        lambda: sl.Job("j", sinks=[giving.to(sl.sinks.memory())], **job),
        "operator 'count': on_error is 'dead-letter', and its dead letters go to no sink",
    )


def test_aggregates() -> None:
    agg, tumbling, n = KEYED.agg, TIMED_KEYED.window(sl.Tumbling("1s")), sl.agg.count()
    refused(
        lambda: TIMED_KEYED.window(sl.Session("1s"), late="late").agg(count=sl.agg.count(), uid="n"),
        "agg() of sessions has no late events to give",
    )
    refused(
        lambda: KEYED.window(sl.Global(when=lambda e: True)).agg(count=sl.agg.count(), uid="n"),  # type: ignore[arg-type, misc]
        "when= of Global windows is called with",
    )
    refused(lambda: agg(n=n, uid=""), "agg() has no uid")
    refused(lambda: agg({1: n}, uid="n"), "1 is no name for a result")  # type: ignore[dict-item]
    refused(lambda: agg(__strandline_time=n, uid="n"), "'__strandline_time' is no name")
    refused(lambda: agg(n=n, N=sl.agg.sum("v"), uid="n"), "'N' has the name of another column")
    refused(lambda: agg(n=sl.agg.avg("ts"), uid="n"), "avg of 'ts' is over timestamp, expected a number")
    refused(
        lambda: agg(n=sl.agg.approx_percentile("vs", 0.5), uid="n"), "is over array<int>, expected a number, a date"
    )
    twice = events("user string, v int").map(lambda row: row, "user string, v int, V int").key_by("user")
    refused(
        lambda: twice.agg(v=sl.agg.sum("v"), uid="n"),
        "the aggregate 'v' has no one column: the column v, V is there more than once",
    )
    again = tumbling.agg(count=sl.agg.count(), uid="n").key_by("window_start")
    refused(
        lambda: again.window(sl.Tumbling("1s")).agg(count=sl.agg.count(), uid="m"),
        "the key 'window_start' has the name of a column that",
    )
    assert KEYED.agg(v=sl.agg.sum("v"), uid="n").columns == ["user", "v"]
    assert tumbling.agg(count=sl.agg.count(), uid="n").columns == ["user", "window_start", "window_end", "count"]
    assert KEYED.window(sl.Global(count=3)).agg(count=sl.agg.count(), uid="n").columns == ["user", "count"]


def of(on_event: Any, **methods: Any) -> Any:
    return type("Mine", (sl.KeyedProcess,), {"on_event": on_event, **methods})()


def forgets(self: Any, event: Any, ctx: Any) -> Any:
    if event.v < 0:
        return
    {"user": ctx.key, "v": event.v}  # noqa: B018


def gives(self: Any, event: Any, ctx: Any) -> Any:
    yield event


def refuses(self: Any, event: Any, ctx: Any) -> Any:
    raise ValueError(event)


def test_a_function_without_yield_is_warned_of() -> None:
    assert missing_yield(of(forgets), "mine") == (
        "operator 'mine': on_event of Mine gives no rows: it has no yield, and returns nothing; if it should give rows, "
        "write yield row"
    )
    sent = of(lambda self, event, ctx: ctx.emit("late", event))
    for process in (of(gives), of(lambda s, e, c: [e]), of(forgets, on_timer=gives), of(refuses), of(print), sent):
        assert missing_yield(process, "mine") == ""
    match = type("Match", (sl.KeyedCoProcess,), {"on_left": forgets, "on_right": forgets})
    assert missing_yield(match(), "mine") == ""
