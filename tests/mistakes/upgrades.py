"""Programs that do not fit the state that another one has left: refused before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

import strandline as sl
from strandline.api.states import State
from strandline.core.errors import IncompatibleStateError
from strandline.core.ids import Generation
from strandline.format.manifest import Manifest, SinkInfo
from strandline.plan.parallelism import Parallelism
from strandline.plan.pipeline import Pipeline
from strandline.runtime.rowlayout import RowLayout
from strandline.spark.job.compat import check_compatible
from strandline.spark.sinks.base import kind_of
from tests.mistakes.jobs import KEYED, PLAIN, Count, Timed
from tests.mistakes.table import Mistake, Stage, mistake
from tests.runtime.bench import Bench, batch_of


def process(kind: type = sl.KeyedProcess, *, timer: bool = False, **states: State) -> Any:
    """Return a process function with these states."""
    methods: dict[str, Any] = {"on_event": lambda self, event, ctx: None}
    if timer:
        methods["on_timer"] = lambda self, timer, ctx: None
    return type("Mine", (kind,), {**methods, **states})()


def upgraded(name: str, before: Callable[[], sl.Stream], now: Callable[[], sl.Stream], *said: str) -> Mistake:
    """Return the mistake of a program that is started where another one has left its state."""

    def program(stage: Stage) -> None:
        old, new = (Pipeline([made()._node]).settle(Parallelism(default=2)) for made in (before, now))
        manifest = Manifest(
            job="j", generation=Generation(1), checkpoint=17, epoch=5, mode="full", created_ms=0, engine_version="1",  # type: ignore[arg-type]
            life="l", operators=[operator.info("rocksdb") for operator in old],
        )  # fmt: skip
        stage.place = "start"
        check_compatible(manifest, new, {}, [])

    said = "job 'j' cannot go on from checkpoint 17", *said
    return mistake(name, "start", program, *said, error=IncompatibleStateError)


def other_sink(name: str, before: sl.sinks.Sink, now: sl.sinks.Sink, *said: str) -> Mistake:
    """Return the mistake of a program that has another sink in the place of one whose rows wait."""

    def program(stage: Stage) -> None:
        sink = SinkInfo(name="out", pending=["x"], kind=kind_of(before), destination=before.destination)
        manifest = Manifest(
            job="j", generation=Generation(1), checkpoint=17, epoch=5, mode="full", created_ms=0, engine_version="1",  # type: ignore[arg-type]
            life="l", operators=[], sinks=[sink],
        )  # fmt: skip
        stage.place = "start"
        check_compatible(manifest, [], {"out": now}, [])

    said = "job 'j' cannot go on from checkpoint 17", *said
    return mistake(name, "start", program, *said, error=IncompatibleStateError)


def of(made: Any, uid: str = "count", **more: Any) -> Callable[[], sl.Stream]:
    """Return a pipeline of one process function."""
    return lambda: KEYED.process(made, output="n bigint", uid=uid, **more)


def agg(window: Any = None, /, **results: Any) -> Callable[[], sl.Stream]:
    """Return a pipeline of aggregates."""
    keyed = PLAIN.watermark("ts").key_by("user")
    return lambda: (keyed.window(window) if window else keyed).agg(uid="count", **results)


class Ordering(sl.KeyedProcess):
    def on_event(self, event: Any, ctx: Any) -> Any:
        ctx.timers.set(ctx.timestamp)

    def on_timer(self, timer: Any, ctx: Any) -> Any: ...


def without_watermark(name: str, backend: str) -> Mistake:
    """Return the mistake of going on from timers of event time where there is none any more."""

    def program(stage: Stage) -> None:
        bench = Bench(backend, stage.directory, Ordering(), timed=True)
        stage.after.append(bench.close)
        rows = batch_of([("x", "", 1, 1)])
        columns = [rows.column(0), pa.array([5_000_000], pa.int64()), *rows.columns[1:]]
        bench.apply([pa.RecordBatch.from_arrays(columns, names=["group", "time", *rows.schema.names[1:]])])
        files = bench.snapshot()
        bench.program = msgspec.structs.replace(bench.program, layout=RowLayout())
        stage.place = "start"
        bench.restore(files, 1)

    said = (
        "timers of event time, the first for 1970-01-01T00:00:05+00:00",
        "would never fire",
        'call watermark("column")',
    )
    return mistake(name, "start", program, *said, error=IncompatibleStateError)


MISTAKES = [
    upgraded(
        "an operator is gone",
        of(Count()),
        of(Count(), "counts"),
        "the program has no operator with uid 'count', which has state; it has counts",
        'drop=["count"]',
    ),
    upgraded(
        "a state is gone", of(Count()), of(process()), "the state 'n' is not declared any more", 'drop=["count.n"]'
    ),
    upgraded(
        "a state has another type",
        of(Count()),
        of(process(n=sl.Value("int"))),
        "the type of state 'n' is int, was bigint",
    ),
    upgraded(
        "a field has another name",
        of(process(s=sl.Value("struct<n: int, total: double>"))),
        of(process(s=sl.Value("struct<n: int, spent: double>"))),
        "the field total is gone, and spent is new",
        'renamed={"spent": "total"}',
        'drop=["count.s.total"]',
    ),
    upgraded(
        "a state is of another kind",
        of(Count()),
        of(process(n=sl.List("bigint"))),
        "the kind of state 'n' is list, was value",
    ),
    upgraded(
        "another key",
        of(Count()),
        lambda: PLAIN.key_by("v").process(Count(), "n bigint", uid="count"),
        "its key is `v` bigint, was `user` string",
    ),
    upgraded(
        "another max_parallelism",
        of(Count(), max_parallelism=128),
        of(Count(), max_parallelism=64),
        "max_parallelism is 64, was 128",
        "state patch",
    ),
    upgraded(
        "on_timer is gone",
        of(Timed()),
        of(Count()),
        "has no on_timer any more, and timers of event time may be set",
        'drop=["count.timers.event"',
    ),
    upgraded(
        "an aggregate is new",
        agg(n=sl.agg.count()),
        agg(n=sl.agg.count(), t=sl.agg.sum("v")),
        "the aggregate 't' is new",
        "t=sl.agg.sum(…).added()",
    ),
    upgraded(
        "an aggregate is gone",
        agg(n=sl.agg.count(), t=sl.agg.sum("v")),
        agg(n=sl.agg.count()),
        "the aggregate 't' is not declared any more",
        'drop=["count.t"]',
    ),
    upgraded(
        "an aggregate is another",
        agg(n=sl.agg.min("v")),
        agg(n=sl.agg.max("v")),
        "the aggregate 'n': it is max, was min: give it another name",
    ),
    upgraded(
        "an aggregate is of another type",
        agg(n=sl.agg.min("v")),
        agg(n=sl.agg.min("ts")),
        "the aggregate 'n': its type is timestamp, was bigint",
    ),
    upgraded(
        "windows of another size",
        agg(sl.Tumbling("1s"), n=sl.agg.count()),
        agg(sl.Tumbling("2s"), n=sl.agg.sum("v")),
        "windows of state 'panes' are 2000 ms",
        "were 1000 ms",
    ),
    upgraded(
        "windows that are to wait longer",
        lambda: PLAIN.watermark("ts").key_by("user").window(sl.Tumbling("1s")).agg(count=sl.agg.count(), uid="count"),
        lambda: (
            PLAIN.watermark("ts")
            .key_by("user")
            .window(sl.Tumbling("1s"), lateness="1 min")
            .agg(count=sl.agg.count(), uid="count")
        ),
        "the lateness of the windows of state 'panes' is 60000 ms, was 0 ms",
        "a shorter one is possible",
    ),
    upgraded(
        "windows where there were none",
        agg(n=sl.agg.count()),
        agg(sl.Tumbling("1s"), n=sl.agg.count()),
        "is not declared any more",
        "drop=",
    ),
    other_sink(
        "a sink without a name has another place",
        sl.sinks.sqlite("/a/1.db", "t"),
        sl.sinks.sqlite("/a/1.db", "u"),
        "its rows went to table t of /a/1.db, and now go to table u of /a/1.db",
        "give name='out' to the sink of table t",
    ),
    other_sink(
        "a sink of another kind",
        sl.sinks.sqlite("/a/1.db", "t", name="out"),
        sl.sinks.memory(name="out"),
        "the sink 'out' is of kind memory, and the checkpoint lists rows that one of kind sqlite is to show",
    ),
    without_watermark("the watermark is gone", "rocksdb"),
    without_watermark("the watermark is gone, of live state", "filesystem"),
]
