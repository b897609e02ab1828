"""What only Spark can be asked for, or only a job shows. Jobs that run cost seconds: few of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import strandline as sl
from strandline.core.errors import ConfigurationError, NotFoundError, OutputError, UserCodeError
from tests.cli.fabricate import FabricatedJob
from tests.mistakes.functions import Gives
from tests.mistakes.table import Mistake, Stage, mistake
from tests.spark import small


def stream(stage: Stage) -> Any:
    """Return a stream of two events with seq, user, kind and v."""
    small.write_rows(stage.directory / "in", 0, [("ann", "a", 1), ("bob", "b", 2)])
    return sl.stream(small.source(stage.spark, stage.directory / "in"))


def job(stage: Stage, made: Any, local_dir: Path | None = None, **given: Any) -> sl.Job:
    """Return a job that processes what is there, and is never restarted."""
    settings = sl.Settings(parallelism=1, local_dir=local_dir or stage.directory / "l", state_memory="64MB")
    given = {"checkpoints": sl.Checkpoints(stage.directory / "ck"), "restart": sl.Restart.never(), **given}
    return sl.Job("j", sinks=[made.to(sl.sinks.memory())], trigger="available-now", settings=settings, **given)


def step(name: str, write: Callable[[Any], Any], *said: str) -> Mistake:
    """Return the mistake of a step of Spark's."""
    return mistake(name, "declaration", lambda s: write(stream(s)), *said)


def started(
    name: str, make: Callable[[Stage], sl.Job], *said: str, error: type[Exception] = ConfigurationError, **more: Any
) -> Mistake:
    """Return the mistake of a job that does not begin."""
    return mistake(name, "start", lambda s: s.start(make(s), **more), *said, error=error)


def ran(
    name: str, make: Callable[[Any], Any], *said: str, error: type[Exception], lines: int = 12, **given: Any
) -> Mistake:
    """Return the mistake of a job that ends with its first epoch."""
    return mistake(name, "run", lambda s: s.start(job(s, make(stream(s)), **given)), *said, error=error, lines=lines)


def counted(made: Any, does: Callable[[Any, Any], Any] = lambda e, c: None) -> Any:
    """Return the stream's events in a process function."""
    return made.key_by("user").process(Gives(does), output=small.OUTPUT, uid="count")


def a_file(stage: Stage) -> Path:
    """Return a path below a file."""
    (stage.directory / "file").write_text("")
    return stage.directory / "file" / "l"


def in_ascii(stage: Stage) -> None:
    """Read local files in a JVM that was started in the locale C."""
    system, name = stage.spark._jvm.java.lang.System, "sun.jnu.encoding"
    stage.after.append(partial(system.setProperty, name, system.getProperty(name)))
    system.setProperty(name, "ANSI_X3.4-1968")
    stream(stage)


def in_a_job(stage: Stage, *below: str) -> sl.Job:
    """Return a job whose checkpoints are to be in the directory of another one."""
    FabricatedJob(stage.directory / "ck", name="other").checkpoint()
    directory = stage.directory.joinpath("ck", "other", *below)
    return job(stage, counted(stream(stage)), checkpoints=sl.Checkpoints(directory))


def among_checkpoints(stage: Stage) -> sl.Job:
    """Return a job that writes files where its checkpoints are."""
    sink = sl.sinks.files(stage.directory / "ck" / "j" / "out")
    return sl.Job("j", sinks=[stream(stage).to(sink)], checkpoints=sl.Checkpoints(stage.directory / "ck"))


def beside_another_format(stage: Stage) -> sl.Job:
    """Return a job that writes Parquet files where JSON files of another job are."""
    out = stage.directory / "out"
    out.mkdir()
    (out / f"part-0000000001-{'0' * 32}-g1-00000-c000.json").write_text("{}")
    sink = sl.sinks.files(out, existing="keep")
    return sl.Job("j", sinks=[stream(stage).to(sink)], checkpoints=sl.Checkpoints(stage.directory / "ck"))


def ends_with_a_number(event: Any, ctx: Any) -> Any:
    yield ctx.key, 1
    return 5


def with_the_sink_of_another(stage: Stage) -> sl.Job:
    """Return a job that has the sink object of one that is running."""
    made, sink = stream(stage), sl.sinks.memory()
    settings = sl.Settings(local_dir=stage.directory / "l", state_memory="64MB")
    first, second = (
        sl.Job(name, sinks=[made.to(sink)], checkpoints=sl.Checkpoints(stage.directory / "ck"), settings=settings)
        for name in ("first", "second")
    )
    stage.after.append(first.start(stage.spark).stop)
    return second


MISTAKES = [
    step(
        "select an unknown column",
        lambda s: s.select("usr"),
        "does not fit the stream's columns (seq, user, kind, v)",
        "usr",
    ),
    step(
        "where of an unknown column",
        lambda s: s.where("w > 1"),
        "does not fit the stream's columns (seq, user, kind, v)",
        "`w`",
    ),
    step("where that is no SQL", lambda s: s.where("v >"), "does not fit the stream's columns", "PARSE_SYNTAX_ERROR"),
    step(
        "where with a lambda",
        lambda s: s.where(lambda row: row.v > 1),
        "where() was given a function",
        "flat_map(lambda row:",
    ),
    step(
        "a sum of text that is no SQL",
        lambda s: s.key_by("user").agg(n=sl.agg.sum("v +"), uid="n"),
        "does not fit the stream's columns",
        "PARSE_SYNTAX_ERROR",
    ),
    step(
        "map with the session",
        lambda s: s.map(lambda row: (s._node.df.sparkSession, row.v), "n int"),
        "map: the function cannot be sent to other processes: it uses a SparkSession, a DataFrame or",
        "collect a small table into a dict before",
    ),
    started("checkpoints in a job's directory", in_a_job, "is the directory of one job", "give the directory above"),
    started("checkpoints in a checkpoint", lambda s: in_a_job(s, "shared"), "'shared' of a job's directory"),
    started(
        "files among checkpoints", among_checkpoints, "in the job's own directory", "give the sink a directory outside"
    ),
    started(
        "files of another format",
        beside_another_format,
        "holds files of format 'json'",
        "the sink's format is 'parquet'",
        "set format='json' again",
    ),
    started(
        "the sink of a running job",
        with_the_sink_of_another,
        "job 'second': its sink 'memory-0' is the same object as a sink of job 'first'",
        "make one sink for each job",
    ),
    started(
        "checkpoints in memory",
        lambda s: job(s, counted(stream(s)), checkpoints=sl.Checkpoints("memory://x")),
        "memory:// is a store of one process",
    ),
    started(
        "a local_dir below a file",
        lambda s: job(s, counted(stream(s)), a_file(s)),
        "local_dir",
        "cannot be used",
        "Settings(local_dir=…)",
    ),
    started(
        "a local_dir that is too long",
        lambda s: job(s, counted(stream(s)), s.directory / ("x" * 90)),
        "is too long",
        "give a shorter local_dir",
    ),
    step(
        "a lock in a process function",
        lambda s: counted(s, threading.Lock().acquire),
        "Gives cannot be shipped",
        "open()",
    ),
    step(
        "the session in a process function",
        lambda s: counted(s, lambda e, c: s._node.df),
        "Gives cannot be shipped to other processes: it uses a SparkSession, a DataFrame or",
        "which only the driver has",
        "broadcast()",
    ),
    mistake(
        "local files in a JVM of the locale C",
        "declaration",
        in_ascii,
        "supports only ASCII file names",
        "LC_ALL=C.UTF-8",
    ),
    started(
        "a restore of nothing",
        lambda s: job(s, counted(stream(s))),
        "chk-17: expected a directory, and it is not there",
        restore="/nowhere/chk-17",
        error=NotFoundError,
    ),
    ran(
        "an unknown column in a job",
        lambda s: counted(s, lambda e, c: e.usr),
        "there is no column 'usr'; there are seq, user, kind, v",
        "did you mean 'user'?",
        error=UserCodeError,
    ),
    ran(
        "a number at a generator's end in a job",
        lambda s: counted(s, ends_with_a_number),
        "it returned 5, a int, expected rows",
        error=OutputError,
    ),
    ran(
        "a UDF that raises, in a job",
        lambda s: s.with_column("w", F.udf(lambda v: v // 0, "bigint")("v")),
        "a Python function of a step of Spark's raised ZeroDivisionError: integer division or modulo by zero",
        "spark.py, line ",
        "in <lambda>: lambda s: s.with_column(",
        "fix the function and start again",
        error=UserCodeError,
        restart=sl.Restart(attempts=5, delay="1h"),
    ),
    ran(
        "a SparkSession made in a job",
        lambda s: counted(s, lambda e, c: [("ann", SparkSession.builder.getOrCreate().range(3).count())]),
        "a keeper has no Spark",
        "are for the driver: write plain Python here",
        error=UserCodeError,
        lines=30,
    ),
    ran(
        "map of an unknown column in a job",
        lambda s: s.map(lambda row: (row.usr, 1), small.OUTPUT),
        "map: the function raised on the row",
        "there is no column 'usr'",
        error=UserCodeError,
    ),
]
