"""Failures of sinks, keepers and rows: one message of a few lines that names what it was, and no values in files."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, PythonException, StreamingQueryException
from pyspark.sql import functions as F

import strandline as sl
from strandline.spark.base.quiet import spark_log
from strandline.spark.base.spark_errors import frames_of, reason_of, summarize, unwrap_error
from tests.soak import soaking
from tests.spark import functions, small
from tests.spark.harness import Case, eventually, settle

pytestmark = pytest.mark.spark

SECRET = "4711-0815-secret"
MOST_LINES = 12


class Asking(sl.KeyedProcess):
    """Does to itself what an event says, and notes each call."""

    count = sl.Value("bigint", default=0)

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def on_event(self, event: Any, ctx: Any) -> Iterator[Any]:
        with Path(self.notes).open("a") as file:
            file.write(f"{event.kind}\n")
        if event.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if event.kind == "raise":
            raise ValueError(f"nobody knows {ctx.key}")
        self.count.value += 1
        yield {"user": ctx.key, "n": self.count.value, "text": "x" * event.v}


def asking(case: Case, stream: Any, **given: Any) -> sl.Job:
    given.setdefault("restart", sl.Restart.never())
    out = "user string, n bigint, text string"
    return small.job(stream, case.root, case.local_dir, process=Asking(str(case.root / "notes")), output=out, **given)


def failed(run: sl.Run) -> sl.errors.StrandlineError:
    with pytest.raises(sl.errors.StrandlineError) as caught:
        run.await_termination(60)
    assert len(str(caught.value).splitlines()) <= MOST_LINES
    for noise in ("Py4J", "\tat ", "org.apache.spark", "__strandline"):
        assert noise not in str(caught.value)
    return caught.value


def refused(spark: Any, case: Case, stream: Any, sink: Any, *said: str) -> None:
    with pytest.raises(sl.errors.ConfigurationError) as caught:
        case.job_of("refused", stream.to(sink)).start(spark)
    for part in said:
        assert part in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3
    assert not (case.root / "ck").exists() or not list((case.root / "ck").iterdir())


def test_what_a_sink_cannot_do_is_refused_by_start(spark: Any, case: Case) -> None:
    stream = sl.stream(small.source(spark, case.root / "in"))
    out = str(case.root / "out")
    files = sl.sinks.files
    refused(spark, case, stream, files(out, format="avroo"), "sink 'file-0'", "DATA_SOURCE_NOT_FOUND", "avroo")
    arrays = stream.select(F.array("v").alias("vs"))
    refused(spark, case, arrays, files(out, format="csv"), "sink 'file-0'", "CSV", "vs")
    refused(spark, case, stream, files(out, format="text"), "sink 'file-0'", "Spark refused")
    odd = files(out, format="json", compression="zipped")
    refused(spark, case, stream, odd, "sink 'file-0'", "zipped")
    below = case.root / "file"
    below.write_text("no directory")
    refused(spark, case, stream, files(str(below / "out")), "sink 'file-0'", str(below / "out"), "cannot be written")
    assert not Path(out).exists()


def test_names_with_dots(spark: Any, case: Case) -> None:
    """Through a map, an operator, an aggregate and a file."""
    directory = case.root / "in"
    directory.mkdir()
    rows = [{"a.b": user, "v`w": n} for user, n in (("ann", 1), ("bob", 2), ("ann", 3))]
    (directory / "1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stream = sl.stream(spark.readStream.schema("`a.b` string, `v``w` bigint").json(str(directory)))
    mapped = stream.map(lambda row: (row["a.b"], row["v`w"] * 10), "`c.d` string, `v.w` bigint")
    sums = mapped.key_by("c.d").agg({"s.t": sl.agg.sum("`v.w`")}, uid="sums")
    last = sums.key_by("c.d").process(functions.Count(), output="`x.y` string, n bigint", uid="count")
    shown = sl.sinks.memory()
    written = sl.sinks.files(str(case.out), format="json")
    with case.job_of("dots", last.to(shown), sums.to(written)).start(spark) as run:
        settle(run)
        assert small.rows_of(shown) == {("ann", 1): 1, ("bob", 1): 1}
        found = [json.loads(line) for file in case.out.glob("part-*") for line in file.read_text().splitlines()]
        assert sorted(row["s.t"] for row in found) == [20, 40]


def test_functions_of_sinks_that_raise(spark: Any, case: Case) -> None:
    notes = case.root / "notes"

    def refuse(row: Any) -> None:
        with notes.open("a") as file:
            file.write("called\n")
        raise ValueError(f"no {row.user} here")

    def refuse_all(df: Any, epoch: int) -> None:
        raise KeyError(SECRET)

    stream = sl.stream(small.source(spark, case.root / "in"))
    small.write_rows(case.root / "in", 0, [(SECRET, "a", 1)])
    run = case.job_of("each", stream.to(sl.sinks.foreach(refuse, name="mail"))).start(spark)
    error = failed(run)
    assert type(error) is sl.errors.SinkError
    for part in (
        "sink 'mail': its function refuse raised on the row Row(",
        f"no {SECRET} here",
        "test_failures.py, line",
    ):
        assert part in str(error)
    # The same row would fail in the same way: it is not tried again, but by a restart of the job.
    assert notes.read_text() == "called\n"
    assert SECRET not in run.status().last_failure
    assert "sink 'mail': its function refuse raised ValueError" in run.status().last_failure
    run = case.job_of("all", stream.to(sl.sinks.foreach_batch(refuse_all, name="table"))).start(spark)
    error = failed(run)
    for part in ("sink 'table', epoch 1", "KeyError", "test_failures.py, line", "in refuse_all"):
        assert part in str(error)
    assert SECRET not in run.status().last_failure


def test_a_keeper_that_dies_is_one_message_and_another_when_the_job_goes_on(
    spark: Any, case: Case, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "strandline")
    stream = sl.stream(small.source(spark, case.root / "in"))
    # It dies in each attempt.
    job = asking(case, stream, restart=sl.Restart(attempts=1, delay="10ms"))
    run = job.start(spark)
    # Before the first epoch another takes its place at once, though nothing comes.
    first = run.status().keepers[0].pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: first not in [keeper.pid for keeper in run.status().keepers], "another one is there", 10)
    assert run.status().restarts == 0
    eventually(lambda: f"process {first} on" in caplog.text, "its end is in the log", 10)
    assert "took its place, and the job goes on" in caplog.text
    small.write_rows(case.root / "in", 0, [("ann", "a", 1), ("bob", "b", 1)])
    settle(run)
    pid = next(keeper.pid for keeper in run.status().keepers if keeper.rows_in)
    caplog.clear()
    os.kill(pid, signal.SIGKILL)
    small.write_rows(case.root / "in", 1, [("ann", "a", 1), ("bob", "b", 1)])
    eventually(lambda: run.status().restarts == 1 and run.status().state == "running", "the job goes on")
    (died,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "the keeper of operator 'count', partition" in died
    assert f"process {pid} on" in died
    assert "was ended by signal 9 (SIGKILL)" in died
    assert "count-" in died
    eventually(lambda: "s after it failed" in caplog.text, "a line says that it works again")
    recent = run.recent()
    (interruption,) = recent.interruptions
    # Who has not looked meanwhile learns of the attempt before, too.
    assert [each.epoch for each in recent.earlier_epochs] == [1]
    assert [each.epoch for each in recent.earlier_checkpoints] == [1]
    assert (interruption.kind, interruption.cause, interruption.checkpoint) == (
        "failure", run.status().last_failure, run.status().restored_from,
    )  # fmt: skip
    assert interruption.at_ms == run.status().last_failure_ms
    assert interruption.down_ms > 0
    assert "goes on from checkpoint" in caplog.text
    small.write_rows(case.root / "in", 2, [("ann", "kill", 1)])
    error = failed(run)
    assert type(error) is sl.errors.KeeperError
    assert "the keeper of operator 'count', partition" in str(error)
    assert "died" in str(error)
    assert "memory ran out" in str(error)


@pytest.mark.parametrize("log", ["commits", *soaking(["offsets"])])
def test_a_log_that_spark_cannot_write_restarts_the_job_at_once(spark: Any, case: Case, log: str) -> None:
    """Another thread of Spark writes it, and Spark finds its error only before it plans the next epoch with rows."""
    case.short = True
    with case.job(spark, checkpoints=case.checkpoints("100ms")).start(spark) as run:
        case.add()
        settle(run)
        (directory,) = case.local_dir.rglob(f"spark-*/{log}")
        directory.rename(directory.with_name("gone"))
        directory.symlink_to("/proc/none")
        begun = run.status().epoch
        case.add(2)
        if log == "commits":
            # As a stop does: the next epoch waits, and Spark with it.
            eventually(lambda: run.status().epoch > begun, "an epoch", every_s=0.001)
            run._b.paused.set()
        eventually(lambda: run.status().restarts, "a restart", 10)
        run._b.paused.clear()
        case.finish(run)


def test_rows_that_are_too_large(spark: Any, case: Case) -> None:
    stream = sl.stream(small.source(spark, case.root / "in"))
    small.write_rows(case.root / "in", 0, [("ann" * 100_000, "a", 1)])
    settings = {"max_row": "100KB"}
    error = failed(asking(case, stream, settings=settings).start(spark))
    for part in (
        "operator 'count': an input row of 300001 bytes",
        "expected at most 102400",
        "column is user",
        "annannann",
    ):
        assert part in str(error)
    assert "annannann" not in error.discreet
    wide = small.source(spark, case.root / "wide")
    small.write_rows(case.root / "wide", 0, [("ann", "a", 200_000)])
    out = Case(case.root / "second", case.local_dir)
    out.root.mkdir()
    error = failed(asking(out, sl.stream(wide), settings=settings).start(spark))
    assert type(error) is sl.errors.OutputError
    for part in ("operator 'count' gave a row of 200,0", "102,400 are the most", "'text'"):
        assert part in str(error)


# That errors have no values either where they are to be shown nowhere, tests/spark/test_told.py sees without a job.
@pytest.mark.parametrize("shown", ["errors", *soaking(["nowhere"])])
def test_no_file_and_no_status_has_what_events_hold(
    spark: Any, case: Case, caplog: Any, capfd: Any, shown: str
) -> None:
    """While a function raises again and again: logs of keepers and of Spark, what Spark said, status, and our log."""
    caplog.set_level(logging.DEBUG, "strandline")
    stream = sl.stream(small.source(spark, case.root / "in"))
    small.write_rows(case.root / "in", 0, [(SECRET, "raise", 1)])
    restart = sl.Restart(attempts=1, delay="10ms", on_user_error=True)
    run = asking(case, stream, restart=restart, settings={"show_values": shown}).start(spark)
    error = failed(run)
    assert type(error) is sl.errors.UserCodeError
    assert (SECRET in str(error)) == (shown == "errors")
    # Once in each attempt, whatever Spark does with its task.
    assert (case.root / "notes").read_text() == "raise\n" * 2
    status = run.status()
    assert status.restarts == 1
    assert "operator 'count': on_event of Asking raised ValueError" in status.last_failure
    assert "test_failures.py, line" in status.last_failure
    log = spark_log()
    assert "PythonException" in log.read_text()
    files = [path for path in case.local_dir.rglob("*") if path.is_file()]
    assert any("on_event of Asking raised ValueError" in path.read_text() for path in files if path.suffix == ".log")
    for path in [*files, log]:
        assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in "".join([repr(status), caplog.text, *capfd.readouterr()])


def test_what_spark_says_in_a_line() -> None:
    said = (
        "An error occurred while calling o1721.save.\n"
        ": org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find avroo. SQLSTATE: 42K02\n"
        "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(QueryExecutionErrors.scala:749)\n"
        "Caused by: java.lang.ClassNotFoundException: avroo.DefaultSource\n"
        "\t... 55 more\n"
    )
    assert reason_of(said) == "SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find avroo."
    assert frames_of(said).splitlines() == [
        ": org.apache.spark.SparkClassNotFoundException",
        "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.x(QueryExecutionErrors.scala:749)",
        "Caused by: java.lang.ClassNotFoundException",
        "\t... 55 more",
    ]
    lost = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most "
        "recent failure: Lost task 0.3 in stage 3.0 (TID 7) (127.0.0.1 executor driver): java.io.IOException: No space "
        "left on device"
    )
    assert reason_of(lost) == "IOException: No space left on device"
    kafka = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most "
        "recent failure: Lost task 0.3 in stage 3.0 (TID 7) (vm executor driver): "
        "org.apache.spark.sql.kafka010.KafkaIllegalStateException: Record at topic odd partition 0 offset 3 has timestamp "
        "value 1795952051261065883 that overflows when converting to Spark's microsecond-precision TimestampType.\n"
        "\tat x\nCaused by: java.lang.ArithmeticException: long overflow\n"
    )
    assert reason_of(kafka).startswith("KafkaIllegalStateException: Record at topic odd partition 0 offset 3 has")
    assert "docs/kafka.md" in str(summarize(PySparkException(kafka)))
    raised = 'x.PythonException: Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nKeyError: 5\n\n\tat x'
    assert reason_of(raised) == "KeyError: 5"
    assert reason_of("") == "it gave no reason"
    other = ValueError("nobody's but the program's")
    assert unwrap_error(other) is other


def test_which_errors_of_python_functions_end_a_job() -> None:
    worker = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"

    def unwrapped(reason: str, *frames: str, kind: type[Exception] = PythonException) -> Any:
        return unwrap_error(kind(f"{worker}{''.join(frames)}{reason}\n"))

    parse, pandas, loads = (
        f'  File "{file}", line 3, in {name}\n    {name}(x)\n         ^\n'
        for file, name in (
            ("/app/job.py", "parse"),
            ("/venv/lib/site-packages/pandas/x.py", "divide"),
            ("/spark/pyspark.zip/pyspark/serializers.py", "loads"),
        )
    )
    error = unwrapped("KeyError: 'b'", parse, pandas)
    assert type(error) is sl.errors.UserCodeError
    assert error.message == (
        "a Python function of a step of Spark's raised KeyError: 'b'\n  /app/job.py, line 3, in parse: parse(x)"
    )
    assert "'b'" not in error.discreet
    # What another system answers may be otherwise the next time.
    for reason in ("ConnectionError: gone", "RuntimeError: away", "requests.exceptions.HTTPError: 502"):
        assert type(unwrapped(reason, parse)) is sl.errors.SparkError
    assert type(unwrapped("ValueError: cut", parse, parse.replace("parse", "read"))) is sl.errors.SparkError
    # Not of the program, or not of a task.
    assert type(unwrapped("ValueError: x", loads)) is sl.errors.SparkError
    assert type(unwrapped("ValueError: x", parse, kind=StreamingQueryException)) is sl.errors.SparkError
    missing = unwrapped("ModuleNotFoundError: No module named 'rules'", loads)
    assert type(missing) is sl.errors.ConfigurationError
    assert "needs a module: No module named 'rules'" in missing.message
    assert "addPyFile" in missing.hint
