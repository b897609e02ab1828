"""Streams: keys, event time, windows, joins, broadcasts, built-in aggregates; refused as they are written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import strandline as sl
from strandline.testing import events
from tests.mistakes.table import Mistake, mistake

PLAIN = events("user string, v bigint, vs array<int>, m map<string, int>, at string, ts timestamp")
TIMED = PLAIN.watermark("ts")
KEYED, TIMED_KEYED = PLAIN.key_by("user"), TIMED.key_by("user")
NARROW = events("user string, w int, ts timestamp").watermark("ts").key_by("user")
TUMBLING = TIMED_KEYED.window(sl.Tumbling("1s"))
TUMBLING_EARLY = TIMED_KEYED.window(sl.Tumbling("1s"), early=sl.Early(events=5))
JOIN = ("0s", "1s")
N = sl.agg.count()
LOCK = threading.Lock()


class Each(sl.KeyedProcess):
    def on_event(self, event: Any, ctx: Any) -> Any: ...


class Match(sl.KeyedCoProcess):
    def on_left(self, event: Any, ctx: Any) -> None: ...

    def on_right(self, event: Any, ctx: Any) -> None: ...


class Half(sl.KeyedCoProcess):
    def on_left(self, event: Any, ctx: Any) -> None: ...


class Overridden(Match):
    def on_event(self, event: Any, ctx: Any) -> None: ...


class Ruled(sl.KeyedBroadcastProcess):
    def on_event(self, event: Any, ctx: Any) -> None: ...


def written(name: str, write: Callable[[], Any], *said: str) -> Mistake:
    """Return the mistake of a pipeline."""
    return mistake(name, "declaration", lambda s: write(), *said)


def asked(name: str, ask: Callable[[], Any], *said: str) -> Mistake:
    """Return the mistake of a name that is not there."""
    return mistake(name, "declaration", lambda s: ask(), *said, error=AttributeError)


MISTAKES = [
    # -- functions of each row
    written(
        "a fallback that does not fit",
        lambda: PLAIN.map_async(len, "n int", fallback={"m": 0}),
        "map_async: fallback: the output row {'m': 0} misses n and has unknown m",
        "give a row that fits `output`, None for no row, or a function of (row, error)",
    ),
    written("a retry in words", lambda: PLAIN.map_async(len, "n int", retry="twice"), "write retry=3, or sl.Retry(3,"),
    written(
        "a function with a lock",
        lambda: PLAIN.map_async(partial(print, LOCK), "n int"),
        "cannot be sent",
        "at its first call",
    ),
    written(
        "bad rows that are ignored", lambda: PLAIN.map(len, "n int", on_error="ignore"), "map: on_error is 'ignore'"
    ),  # type: ignore[arg-type]
    written(
        "dead letters nobody asked for", lambda: PLAIN.map(len, "n int").dead_letters, 'on_error="dead-letter"', "map()"
    ),
    # -- names that are not there
    asked("groupBy", lambda: PLAIN.groupBy("user"), "a stream has no 'groupBy': write .key_by(…)"),
    asked("withColumn", lambda: PLAIN.withColumn("a", 1), "write .with_column(…)"),
    asked("show", lambda: PLAIN.show(), "write .to(sl.sinks.console())"),
    asked("collect", lambda: PLAIN.collect(), "write .to(sl.sinks.memory()), and read the rows of that sink"),
    asked("collect behind key_by", lambda: KEYED.collect(), "call .process(…) or .agg(…) first, then .to(sl.sinks.mem"),
    asked("show of windows", lambda: TUMBLING.show(), "then .to(sl.sinks.console())"),
    asked("groupBy behind key_by", lambda: KEYED.groupBy("v"), "it has keys already; write .process(…) or .agg(…)"),
    asked("head", lambda: PLAIN.head(5), "write .to(sl.sinks.console())"),
    asked("start", lambda: PLAIN.start(), "start a job: sl.Job(…, sinks=[…]).start(spark)"),
    asked("foreachBatch", lambda: PLAIN.foreachBatch(print), "write .to(sl.sinks.foreach_batch(function))"),
    asked("count", lambda: PLAIN.count(), "write .key_by(…).agg(count=sl.agg.count(), uid=…)"),
    asked("sum", lambda: KEYED.sum("v", uid="u"), "write .agg(column=sl.agg.sum(…), uid=…)"),
    asked("writeStream", lambda: PLAIN.writeStream, "write .to(sl.sinks.files(…))"),
    asked("dropDuplicates", lambda: PLAIN.dropDuplicates(["user"]), "with a Value that remembers what was seen"),
    asked(
        "withColumnRenamed", lambda: PLAIN.withColumnRenamed("a", "b"), ".transform(lambda df: df.withColumnRenamed(…))"
    ),
    asked("a misspelt step", lambda: PLAIN.flatmap(len, "n int"), "did you mean 'flat_map'?"),
    asked("process without keys", lambda: PLAIN.process(Each(), "n int", uid="u"), "write .key_by(…).process(…)"),
    asked(
        "a step behind key_by",
        lambda: KEYED.where("v > 1"),
        "a keyed stream has no 'where': write .where(…) before .key_by(…)",
    ),
    asked("a sink behind key_by", lambda: KEYED.to(sl.sinks.noop()), "it has keys and no rows yet", "then .to(…)"),
    asked("a sink of windows", lambda: TUMBLING.to(sl.sinks.noop()), "a windowed stream has no 'to'"),
    asked(
        "Flink's name",
        lambda: sl.KeyedProcessFunction,
        "has no attribute 'KeyedProcessFunction': did you mean 'KeyedProcess'?",
    ),
    asked("Spark's name", lambda: sl.ValueState, "did you mean 'Value'?"),
    asked("a format for a sink", lambda: sl.sinks.parquet("out/"), "sinks.files(path, format='parquet')"),
    asked("another system's sink", lambda: sl.sinks.mongodb("topic"), "there is no sink 'mongodb'", "foreach_batch"),
    written(
        "a topic for a server",
        lambda: sl.sinks.kafka("topic", "out"),
        "servers is 'topic', expected addresses with ports",
    ),
    written("no schema", lambda: events(""), "events(): the schema: cannot read the schema", "expected a name"),
    written("a schema that is a type", lambda: events("bigint"), "events(): the schema", "expected a type"),
    # -- keys
    written(
        "an unknown key",
        lambda: PLAIN.key_by("usr"),
        "key_by: there is no column 'usr'; the stream has user, v, vs, m, at, ts",
    ),
    written("no key", lambda: PLAIN.key_by(), "at least one column", 'write key_by("customer")'),
    written("a key twice", lambda: PLAIN.key_by("v", "v"), "the column 'v' is given more than once"),
    written(
        "keys in a list",
        lambda: PLAIN.key_by(["user", "v"]),
        "key_by was given ['user', 'v'], expected a column's name",
        'write key_by("a", "b")',
    ),  # type: ignore[arg-type]
    written(
        "a function as key",
        lambda: PLAIN.key_by(lambda row: row.user),
        "expected a column's name",
        'with_column("k", expression)',
    ),  # type: ignore[arg-type]
    written("an array as key", lambda: PLAIN.key_by("vs"), "'vs' cannot be a key", "arrays and maps cannot be keys"),
    written(
        "order by a number", lambda: PLAIN.key_by("user", order_by=5), "order_by was given 5, expected a column's name"
    ),  # type: ignore[arg-type]
    written(
        "order by an unknown column",
        lambda: PLAIN.key_by("user", order_by="z"),
        "order_by: there is no column 'z'; the stream has user",
    ),
    written(
        "order by a map",
        lambda: PLAIN.key_by("user", order_by="m"),
        "order_by names 'm', a map<string,int>, and maps have no order",
    ),
    # -- event time
    written(
        "a watermark of a bigint",
        lambda: PLAIN.watermark("v"),
        "the column 'v' is bigint, expected timestamp",
        "with_column(",
    ),
    written("a watermark of text", lambda: PLAIN.watermark("at"), "the column 'at' is string, expected timestamp"),
    written(
        "a watermark that waits for nobody",
        lambda: PLAIN.watermark("ts", idle="0s"),
        "watermark: idle is '0s', expected more",
    ),
    written("a second watermark", lambda: TIMED.watermark("ts"), "has a watermark already", "call it once"),
    written(
        "a watermark of an unknown column",
        lambda: PLAIN.watermark("time"),
        "watermark: column='time' is no column; the stream has user",
    ),
    written(
        "a watermark per unknown column", lambda: PLAIN.watermark("ts", per="z"), "watermark: per='z' is no column"
    ),
    written(
        "a delay without unit",
        lambda: PLAIN.watermark("ts", delay="soon"),
        "delay is 'soon', expected a duration",
        "'10s'",
    ),
    written(
        "a side output of no operator",
        lambda: TIMED.side("late"),
        "no side output 'late'",
        "call side() on the result of process",
    ),
    # -- windows
    written(
        "windows without event time",
        lambda: KEYED.window(sl.Tumbling("1s")),
        "the stream has no watermark",
        'time="processing"',
    ),
    written("a window as text", lambda: TIMED_KEYED.window("10s"), "expected a kind of window", 'sl.Tumbling("10s")'),  # type: ignore[arg-type]
    written("a window of nothing", lambda: sl.Tumbling("0s"), "a window's size is 0 ms, expected more than 0"),
    written("a window without unit", lambda: sl.Tumbling("10"), "Tumbling: size is '10', expected a duration"),
    written(
        "a number as size",
        lambda: sl.Tumbling(60000),  # type: ignore[arg-type]
        "Tumbling: size is 60000, expected a duration with its unit",
        "write it like '60000s' or '60000ms'",
    ),
    written("a number as ttl", lambda: sl.TTL(3600), "TTL: its duration is 3600", "'3600s'"),  # type: ignore[arg-type]
    written("a number as delay", lambda: PLAIN.watermark("ts", 2.5), "watermark: delay is 2.5", "'2.5s'"),  # type: ignore[arg-type]
    written(
        "a delay below zero",
        lambda: PLAIN.watermark("ts", timedelta(seconds=-5)),
        "watermark: delay is -5 s, expected 0 or more",
        "leave the minus out",
    ),
    written("a size below zero", lambda: sl.Tumbling("-10 min"), "size is '-10 min', expected 0 or more"),
    written(
        "a bound as a number",
        lambda: TIMED_KEYED.join(NARROW, (-5, "1s"), uid="u"),
        "join: within is -5, expected a duration",
    ),  # type: ignore[arg-type]
    written("a window that never ends", lambda: sl.Global(), "a Global window never ends", "write Global(count=100)"),
    written("a window of -1 events", lambda: sl.Global(count=-1), "count is -1, expected a positive number"),
    written("late events of a count", lambda: TIMED_KEYED.window(sl.Global(count=1), late="late"), "no late events"),
    written(
        "a third kind of time", lambda: TIMED_KEYED.window(sl.Session("1s"), time="any"), "'event' or 'processing'"
    ),  # type: ignore[arg-type]
    written(
        "early of nothing",
        lambda: TIMED_KEYED.window(sl.Session("1s"), early="0s"),
        "early is '0s', expected more than 0",
    ),
    written(
        "sessions that cannot merge",
        lambda: TIMED_KEYED.window(sl.Session("1s")).fold("n int", 0, max, uid="x"),
        "no `merge`",
        "give it merge=",
    ),
    written(
        "a fold that begins with text",
        lambda: TUMBLING.fold("n int", "0", max, uid="x"),
        "fold 'x': the initial value does not fit 'n int'",
    ),
    written(
        "a fold of one argument",
        lambda: TUMBLING.fold("n int", 0, lambda e: e, uid="x"),
        "fold 'x': function is called with (value, event), and it takes (e)",
    ),  # type: ignore[misc,arg-type]
    written(
        "a fold of the key's name", lambda: TUMBLING.fold("user int", 0, max, uid="x"), "'user' has a name of the key's"
    ),
    written(
        "a fold of a misspelt type",
        lambda: TUMBLING.fold("n itn", 0, max, uid="x"),
        "fold 'x': output: cannot read the schema",
    ),
    written(
        "a process of windows of two",
        lambda: TUMBLING.process(lambda key, rows: [], "n int", uid="x"),
        "called with (key, window, events)",
    ),  # type: ignore[misc,arg-type]
    written(
        "a process function in windows",
        lambda: TUMBLING.process(Each(), "n int", uid="x"),
        "process 'x': function is",
        "expected a function",
    ),  # type: ignore[arg-type]
    written(
        "an accumulator of Python's",
        lambda: TUMBLING.aggregate(int, create=int, add=max, output="n int", uid="x"),
        "the accumulator's type is <class 'int'>",
        "'bigint'",
    ),  # type: ignore[arg-type]
    written(
        "an accumulator made of something",
        lambda: TUMBLING.aggregate("int", create=lambda e: 0, add=max, output="n int", uid="x"),
        "create is called with ()",
    ),  # type: ignore[misc,arg-type]
    # -- two streams
    written(
        "other keys",
        lambda: TIMED_KEYED.connect(TIMED.key_by("v")),
        "connect: the keys of the streams differ: user string here, v bigint there",
    ),
    written(
        "a stream without key",
        lambda: TIMED_KEYED.connect(TIMED),
        "the other stream is a Stream, expected a keyed stream",
        "b.key_by(…)",
    ),  # type: ignore[arg-type]
    written("time on one side", lambda: TIMED_KEYED.connect(KEYED), "connect: only the left stream has event time"),
    written(
        "a process of one for two",
        lambda: KEYED.connect(KEYED).process(Each(), "a int", uid="u"),
        "was given Each, expected a KeyedCoProcess",
    ),  # type: ignore[arg-type]
    written(
        "a process of two for one",
        lambda: KEYED.process(Match(), "a int", uid="u"),
        "after key_by(), process() was given Match",
        "connect(b.key_by(…))",
    ),
    written(
        "half a process of two",
        lambda: KEYED.connect(KEYED).process(Half(), "a int", uid="u"),
        "Half does not define on_right",
        "write def on_right(self, event, ctx)",
    ),
    written(
        "on_event of two",
        lambda: KEYED.connect(KEYED).process(Overridden(), "a int", uid="u"),
        "defines on_event, which a KeyedCoProcess must not",
    ),
    written(
        "a process of one for rules",
        lambda: KEYED.broadcast(PLAIN).process(Each(), "a int", uid="u"),
        "after broadcast(), process() was given Each, expected a KeyedBroadcastProcess",
    ),  # type: ignore[arg-type]
    written(
        "a process of two for rules",
        lambda: KEYED.broadcast(PLAIN).process(Match(), "a int", uid="u"),
        "process() was given Match, expected a KeyedBroadcastProcess",
    ),  # type: ignore[arg-type]
    written(
        "rules without on_broadcast",
        lambda: KEYED.broadcast(PLAIN).process(Ruled(), "a int", uid="u"),
        "Ruled does not define on_broadcast",
    ),
    written(
        "rules with a key", lambda: KEYED.broadcast(KEYED), "broadcast() was given a KeyedStream, expected a Stream"
    ),  # type: ignore[arg-type]
    written(
        "rules in an unknown order",
        lambda: KEYED.broadcast(PLAIN, order_by="z"),
        "broadcast: order_by names 'z'; the broadcast stream has user",
    ),
    written(
        "time of rules alone", lambda: KEYED.broadcast(TIMED), "broadcast: only the broadcast stream has event time"
    ),
    written(
        "a join that ends before it begins",
        lambda: TIMED_KEYED.join(TIMED_KEYED, ("1s", "0s"), uid="u"),
        "its first bound is the later one",
    ),
    written(
        "a join within one bound",
        lambda: TIMED_KEYED.join(TIMED_KEYED, "1s", uid="u"),
        "join: within is '1s', expected a pair of durations",
    ),  # type: ignore[arg-type]
    written(
        "a join with columns twice",
        lambda: TIMED_KEYED.join(TIMED_KEYED, JOIN, uid="u"),
        "the column at, m, ts, v, vs twice",
        "prefixes=('', 'right_')",
    ),
    written(
        "an outer join",
        lambda: NARROW.join(NARROW, JOIN, uid="u", how="outer", prefixes=("", "r_")),
        "how='outer', expected one of inner, left",
    ),  # type: ignore[arg-type]
    written("a join without uid", lambda: NARROW.join(NARROW, JOIN, uid="", prefixes=("", "r_")), "has no uid"),
    written(
        "a join without event time",
        lambda: KEYED.join(KEYED, JOIN, uid="u"),
        "join: the streams have no event time",
        'call watermark("column")',
    ),
    # -- aggregates
    written("no aggregate", lambda: KEYED.agg(uid="n"), "agg() was given no aggregate", "write n=sl.agg.count()"),
    written("a number as aggregate", lambda: KEYED.agg(n=3, uid="n"), "is 3, expected one of sl.agg"),  # type: ignore[arg-type]
    written(
        "an aggregate without name",
        lambda: KEYED.agg(N, uid="n"),
        "agg() was given Aggregate",
        "write agg(n=sl.agg.count(), …)",
    ),  # type: ignore[arg-type]
    written("the key's name", lambda: KEYED.agg(user=N, uid="n"), "'user' has the name of another column"),
    written(
        "the window's name", lambda: TUMBLING.agg(window_end=N, uid="n"), "'window_end' has the name of another column"
    ),
    written(
        "a sum of arrays",
        lambda: KEYED.agg(n=sl.agg.sum("vs"), uid="n"),
        "sum of 'vs' is over array<int>, expected a number",
    ),
    written(
        "a sum of an unknown column", lambda: KEYED.agg(n=sl.agg.sum("z"), uid="n"), "'z'", "user, v, vs, m, at, ts"
    ),
    written(
        "a maximum of an array",
        lambda: KEYED.agg(n=sl.agg.max("vs"), uid="n"),
        "max of 'vs' is over array<int>, expected",
    ),
    written(
        "a count of distinct maps",
        lambda: KEYED.agg(n=sl.agg.count_distinct("m"), uid="n"),
        "over map<string,int>, expected",
    ),
    written("a function as a column", lambda: sl.agg.sum(len), "sum() was given", 'write sl.agg.sum("amount")'),  # type: ignore[arg-type]
    written(
        "dead letters of aggregates by event",
        lambda: TUMBLING_EARLY.agg(count=sl.agg.count(), uid="n", on_error="dead-letter"),
        "on_error is not for agg() of windows that look at each event",
        "or use fold() of the window",
    ),
    written(
        "a renamed aggregate by event",
        lambda: TUMBLING_EARLY.agg(n=N.renamed(was="m"), uid="n"),
        "the aggregate 'n' is renamed",
        "leave .renamed(…) out",
    ),
    written(
        "a list that expires as a whole, without a TTL",
        lambda: sl.List("int", expires="list"),
        "and no ttl",
        "ttl=TTL('1h')",
    ),
    written(
        "versions that a number ends",
        lambda: TIMED_KEYED.as_of_join(NARROW, uid="j", deleted="w"),
        "deleted='w' is int, expected a boolean",
        "give the name of a boolean column",
    ),
    # -- names
    written("a uid that was itself", lambda: sl.uid("a", was="a"), "which is the same", "leave was= out"),
    written("a uid left out", lambda: KEYED.process(Each(), "n int"), "process() in streams.py:", "no uid", "uid='to"),  # type: ignore[call-arg]
    written("a uid by its place", lambda: KEYED.process(Each(), "n int", "each"), "has no uid", "by its keyword"),  # type: ignore[call-arg, misc]
    written("no uid for aggregates", lambda: TUMBLING.agg(n=N), "agg() in streams.py:", "no uid"),  # type: ignore[call-arg]
    written("no uid for a join", lambda: NARROW.join(NARROW, JOIN), "join() in streams.py:", "no uid"),  # type: ignore[call-arg]
    written("a uid that is a number", lambda: KEYED.agg(n=N, uid=5), "agg(): uid is 5, expected text"),  # type: ignore[arg-type]
    written("a uid of nothing", lambda: sl.uid("", was="a"), "its name is '', expected text"),
    written("a sink that is none", lambda: PLAIN.to("out/"), "to() was given 'out/', expected a sink", "sl.sinks"),  # type: ignore[arg-type]
]
