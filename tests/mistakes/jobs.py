"""Jobs, settings, checkpoints, harnesses: what is wrong is said where it is written."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import strandline as sl
from strandline.keeper.paths import Places
from strandline.testing import Harness, Right, events
from tests.mistakes.table import Mistake, Stage, mistake

PLAIN = events("user string, v bigint, ts timestamp")
KEYED = PLAIN.key_by("user")
CK = sl.Checkpoints("/nowhere/ck")


class Count(sl.KeyedProcess):
    n = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: Any) -> Any: ...


class Both(sl.KeyedCoProcess):
    def on_left(self, event: Any, ctx: Any) -> None: ...

    def on_right(self, event: Any, ctx: Any) -> None: ...


class Timed(Count):
    def on_timer(self, timer: Any, ctx: Any) -> Any: ...


COUNTED = KEYED.process(Count(), output="user string, n bigint", uid="count")


def made(name: str, make: Callable[[], Any], *said: str) -> Mistake:
    """Return the mistake of something that is refused when it is made."""
    return mistake(name, "declaration", lambda s: make(), *said)


def job(mistaken: str, /, *said: str, **given: Any) -> Mistake:
    """Return the mistake of a job."""

    def program(stage: Stage) -> None:
        sinks = given.get("sinks", lambda: [COUNTED.to(sl.sinks.memory())])
        more = {"name": "j", "checkpoints": CK, **given}
        sl.Job(more.pop("name"), **{**more, "sinks": sinks() if callable(sinks) else sinks})

    return mistake(mistaken, "declaration", program, *said)


def harness(name: str, make: Callable[[], Any], *said: str) -> Mistake:
    """Return the mistake of a harness."""

    def program(stage: Stage) -> None:
        stage.place = "start"
        make()

    return mistake(name, "start", program, *said)


def pushed(name: str, push: Callable[[Harness], Any], *said: str) -> Mistake:
    """Return the mistake of what a harness is asked for."""

    def program(stage: Stage) -> None:
        stage.place = "start"
        with Harness(Timed(), schema="user string, v bigint", key="user", output="n bigint", uid="count") as h:
            stage.place = "run"
            push(h)

    return mistake(name, "run", program, *said)


def unwritable(stage: Stage) -> None:
    (stage.directory / "file").write_text("")
    stage.place = "start"
    Places(stage.directory / "file" / "sub", "file:///ck", "j").make()


def nowhere(stage: Stage) -> None:
    stage.place = "start"
    Places(Path("/proc/x"), "file:///ck", "j").make()


MISTAKES = [
    # -- jobs
    job("no sinks", "the job has no sinks", "pass sinks=[", sinks=[]),
    job(
        "a sink that is not in a list",
        "is not a list of outputs",
        "sinks=[",
        sinks=lambda: COUNTED.to(sl.sinks.memory()),
    ),
    job("a stream as a sink", "is not a list of outputs", sinks=[COUNTED]),
    job("checkpoints as text", "job 'j': checkpoints is 'ck/'", "checkpoints=sl.Checkpoints(", checkpoints="ck/"),
    job("Spark's trigger", "expected a duration or 'available-now'", trigger="availableNow"),
    job("Spark's trigger as a dict", 'write trigger="available-now"', trigger={"once": True}),
    job("a trigger without unit", "trigger is 'often', expected a duration", trigger="often"),
    job(
        "settings as a dict",
        "job 'j': settings is {'parallelism': 2}, expected Settings(…)",
        "settings=sl.Settings(",
        settings={"parallelism": 2},
    ),
    job(
        "restarts as a number", "job 'j': restart is 5, expected Restart(…)", "restart=sl.Restart(attempts=", restart=5
    ),
    job("a number as name", "job name 5", name=5),
    job("a name of the layout", "job name 'shared'", "choose another name for the job", name="shared"),
    job("a name of a checkpoint", "job name 'chk-5'", "choose another name for the job", name="chk-5"),
    job("a name with a slash", "job name 'a/b'", name="a/b"),
    job(
        "a sink twice",
        "have the same sink object",
        sinks=lambda: [COUNTED.to(sink := sl.sinks.memory()), COUNTED.to(sink)],
    ),
    job(
        "a uid twice",
        "the uid 'count' is used by 2 operators (Count, Count)",
        "a uid of its own",
        sinks=lambda: [COUNTED.key_by("n").process(Count(), "n bigint", uid="count").to(sl.sinks.memory())],
    ),
    job(
        "late events without results",
        "late events of the operator 'totals' go to a sink, its results to none",
        sinks=lambda: [
            PLAIN.watermark("ts")
            .key_by("user")
            .window(sl.Tumbling("1s"), late="late")
            .agg(count=sl.agg.count(), uid="totals")
            .side("late")
            .to(sl.sinks.memory())
        ],
    ),
    job(
        "two sources without names",
        "the job reads 2 sources, and 2 of them have no name",
        'name="payments"',
        sinks=lambda: [
            KEYED.connect(events("user string").key_by("user")).process(Both(), "n int", uid="u").to(sl.sinks.memory())
        ],
    ),
    # -- checkpoints, restarts, settings
    made(
        "a mode of another system",
        lambda: sl.Checkpoints("/x", mode="aligned"),
        "'full', 'incremental', 'changelog' or 'continuous'",
    ),  # type: ignore[arg-type]
    made("no checkpoint kept", lambda: sl.Checkpoints("/x", retain=0), "retain is 0, expected 1 or more"),
    made(
        "checkpoints in flight without a bound",
        lambda: sl.Checkpoints("/x", max_concurrent=100),
        "max_concurrent is 100, expected 1 to 8",
    ),
    made(
        "a budget with which the log would grow",
        lambda: sl.Continuous(budget=1.5),
        "continuous: budget is 1.5, expected at least 2",
        "raise budget or log",
    ),
    made("a log without room for changes", lambda: sl.Continuous(log=1), "continuous: log is 1, expected more than 1"),
    made("two standbys", lambda: sl.Checkpoints("/x", standbys=2), "standbys is 2, expected 0 or 1", "another host"),
    made("no directory", lambda: sl.Checkpoints(" "), "the directory is empty", "give a path or URL"),
    made(
        "an interval without unit", lambda: sl.Checkpoints("/x", every="soon"), "checkpoints: every is 'soon'", "'10s'"
    ),
    made("no time for a checkpoint", lambda: sl.Checkpoints("/x", timeout=0), "timeout is 0, expected more than 0"),
    made("a restart's delay", lambda: sl.Restart(delay="soon"), "restart: delay is 'soon'"),
    made(
        "an unknown backend",
        lambda: sl.Settings(backend="redis"),
        "backend is 'redis', expected one of memory, filesystem, rocksdb",
    ),  # type: ignore[arg-type]
    made(
        "parallelism of 0 for all",
        lambda: sl.Settings(parallelism=0),
        "parallelism is 0, expected a positive number",
        "FollowExecutors()",
    ),
    made(
        "memory without unit",
        lambda: sl.Settings(state_memory="much"),
        "state_memory is 'much', expected a size",
        "'512MB'",
    ),
    made("a lease without unit", lambda: sl.Settings(keeper_lease="long"), "keeper_lease is 'long'"),
    made("fsync as text", lambda: sl.Settings(fsync="yes"), "fsync is 'yes', expected True or False"),  # type: ignore[arg-type]
    made("more at least than at most", lambda: sl.FollowExecutors(min=4, max=2), "max is 2, and min is 4"),
    made("checkpoints with one slash", lambda: sl.Checkpoints("s3:/b/ck"), "'s3:/b/ck'", "write 's3://b/ck'"),
    made("checkpoints in DBFS", lambda: sl.Checkpoints("dbfs:/ck"), "'dbfs:/ck'", "the cloud storage behind it"),
    made("a local_dir in a bucket", lambda: sl.Settings(local_dir="s3://b/l"), "local_dir", "of this machine"),
    made("files with one slash", lambda: sl.sinks.files("gs:/b/out"), "'gs:/b/out'", "write 'gs://b/out'"),
    mistake("a local_dir that is a file", "start", unwritable, "local_dir", "cannot be used", "Settings(local_dir=…)"),
    mistake("a local_dir that nobody can write", "start", nowhere, "local_dir /proc/x cannot be used"),
    # -- sinks
    made(
        "foreach of nothing",
        lambda: sl.sinks.foreach(None),
        "sinks.foreach(): the function is None, expected a function",
    ),
    made("foreach of two", lambda: sl.sinks.foreach(lambda a, b: a), "is called with (row), and it takes (a, b)"),
    made(
        "foreach with a lock", lambda: sl.sinks.foreach(threading.Lock().acquire), "cannot be sent to other processes"
    ),
    made(
        "foreach_batch of one",
        lambda: sl.sinks.foreach_batch(lambda df: df),
        "is called with (df, epoch), and it takes (df)",
    ),
    made("rows of a console", lambda: sl.sinks.console(rows="all"), "rows is 'all', expected how many rows"),
    made(
        "a visibility of another system",
        lambda: sl.sinks.files("out", visibility="commit"),
        "expected 'checkpoint' or 'epoch'",
    ),
    made(
        "partitions of a file sink",
        lambda: sl.sinks.files("out", partitionBy="day"),
        "'partitionBy' is no option of a file format, and would be ignored",
        "leave it out; for one directory per value",
    ),
    made("a mode of a file sink", lambda: sl.sinks.files("out", mode="append"), "'mode' is no option of a file format"),
    # -- harnesses
    harness(
        "no schema", lambda: Harness(Count()), "schema and key of the events are missing", 'schema="user string, n int"'
    ),
    harness(
        "no output",
        lambda: Harness(Count(), schema="user string", key="user"),
        "output, the columns of its rows, is missing",
    ),
    harness("an unknown backend of a harness", lambda: Harness(Count(), backend="redis"), "expected one of memory"),  # type: ignore[arg-type]
    harness("no function", lambda: Harness(len), "expected a process function or a stream"),  # type: ignore[arg-type]
    harness(
        "a window's arguments",
        lambda: Harness(COUNTED, key="user"),
        "only backend and parallelism are options for a stream",
    ),
    harness(
        "a right stream for one",
        lambda: Harness(Count(), schema="user string", key="user", output="n int", right="a int"),
        "is a function of one stream",
    ),
    harness(
        "no right stream for two",
        lambda: Harness(Both(), schema="user string", key="user", output="n int"),
        "is a function of two streams",
    ),
    pushed(
        "an event that misfits",
        lambda h: h.push(("ann", "x")),
        "column 'v': expected bigint",
        "fit the harness's schema",
    ),
    pushed("an event with unknown columns", lambda h: h.push({"user": "ann", "w": 1}), "has unknown w"),
    pushed("an event of too many values", lambda h: h.push(("ann", 1, 2)), "has 3 values, expected 2"),
    pushed("an event that is text", lambda h: h.push("ann"), "is 'ann', a str, expected a dict or a tuple"),
    pushed("a right event for one", lambda h: h.push(Right(("ann", 1))), "there is no right stream"),
    pushed(
        "a watermark without event time", lambda h: h.advance_watermark(h.now), "there is no event time", "event_time="
    ),
    pushed("a clock that goes back", lambda h: h.advance_clock(h.now.replace(year=2000)), "it never goes back"),
    pushed(
        "a clock without zone",
        lambda h: h.advance_clock(h.now.replace(tzinfo=None)),
        "expected a datetime with a time zone",
    ),
    pushed(
        "another operator's state",
        lambda h: h.state("ann", uid="counts"),
        "the operator's uid is 'counts', expected one of count",
    ),
    pushed("another side", lambda h: h.side("late"), "no side output 'late', known: none"),
]
