"""What is said of failures, and where: without Spark."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError

from strandline.core import errors
from strandline.core.ids import Generation, Partition
from strandline.core.settings import Settings
from strandline.keeper.output import in_pieces
from strandline.keeper.paths import Places
from strandline.runtime.task.usererrors import user_error as user_error_of
from strandline.spark.base import task_errors as marks
from strandline.spark.base.spark_errors import summarize
from strandline.spark.base.task_errors import SEAL, Seal, sealed_errors
from strandline.spark.job.failure_reporter import FailureReporter
from strandline.spark.keepers.death_report import death_of, is_dead
from tests.spark import functions

SECRET = "ann@example.org"


def user_error(**given: Any) -> errors.UserCodeError:
    return errors.UserCodeError(f"raised for {SECRET}", hint="fix it", operator="op", key=SECRET, **given)


@given(st.text(), st.text(), st.text(), st.binary(min_size=1))
def test_only_its_owner_reads_a_mark(message: str, key: str, around: str, other: bytes) -> None:
    text = SEAL.mark(errors.UserCodeError(message, discreet="in short", key=key))
    found = SEAL.find(f"{around}{text}{around}")
    if "STRANDLINE-ERROR:" in around:
        return
    assert type(found) is errors.UserCodeError
    assert (found.message.encode(errors="replace"), found.discreet) == (
        message.encode(errors="backslashreplace").decode().encode(),
        "in short",
    )
    assert Seal(other).find(text) is None


def test_what_a_mark_holds_cannot_be_seen() -> None:
    first, second = SEAL.mark(user_error()), SEAL.mark(user_error())
    assert first != second
    assert SECRET not in first
    assert str(SEAL._key) not in repr(SEAL)


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tasks of this test note what has failed."""
    path = tmp_path / "failed-1-7"
    context = SimpleNamespace(getLocalProperty={marks.FIRST_FAILURE: str(path)}.get)
    monkeypatch.setattr(marks.TaskContext, "get", lambda: context)
    return path


def attempt(error: errors.StrandlineError) -> tuple[int, BaseException | None]:
    """Run a task that fails; return how often it was really run, and what the driver finds."""
    ran = 0
    try:
        with sealed_errors(SEAL):
            ran += 1
            raise error
    except RuntimeError as raised:
        return ran, SEAL.find(str(raised))


def test_what_a_users_function_raised_is_not_tried_again(noted: Path) -> None:
    assert attempt(user_error())[0] == 1
    ran, found = attempt(errors.KeeperError("another task of the epoch"))
    assert ran == 0
    assert type(found) is errors.UserCodeError
    assert SECRET not in noted.read_text()


def test_what_may_pass_is_tried_again(noted: Path) -> None:
    for _ in range(2):
        ran, found = attempt(errors.UnavailableError("storage"))
        assert (ran, type(found)) == (1, errors.UnavailableError)
    assert not noted.exists()


def test_a_keeper_that_died_is_the_reason_why_the_next_one_does_not_fit(noted: Path) -> None:
    died = errors.KeeperError("it died", pid=7)
    assert attempt(died)[0] == 1
    ran, found = attempt(errors.VersionMismatchError("the one before it is gone"))
    assert (ran, str(found)) == (1, "it died")
    # Where another one took its place, and died as well, no third is tried.
    assert attempt(died)[0] == 1
    assert attempt(died)[0] == 0


def test_without_a_directory_a_task_runs_again(noted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = SimpleNamespace(getLocalProperty=lambda name: str(noted.parent / "gone" / "failed"))
    monkeypatch.setattr(marks.TaskContext, "get", lambda: gone)
    for _ in range(2):
        ran, found = attempt(user_error())
        assert (ran, type(found)) == (1, errors.UserCodeError)


def session(process: Any = None, *, stopped: bool = False) -> Any:
    """Return a Spark session as far as it can be told whether there still is one."""
    core = SimpleNamespace(isStopped=lambda: stopped)
    gateway = SimpleNamespace(proc=process) if process else None
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=gateway, _jsc=SimpleNamespace(sc=lambda: core)))


@pytest.mark.parametrize(
    ("error", "hint"), [(MemoryError(), "ran out of memory"), (ValueError(SECRET), "fix the function")]
)
def test_what_a_function_raised_says_what_to_do(error: Exception, hint: str) -> None:
    try:
        raise error
    except Exception as raised:
        found = user_error_of("op", functions.Boom(), raised, "on_event", SECRET, {"mail": SECRET * 10_000})
    assert hint in found.hint
    assert len(str(found)) < 10_000
    assert SECRET in str(found)
    assert SECRET not in found.discreet
    assert "on_event of Boom raised" in found.discreet


def test_a_session_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.spark.job.failure_reporter._AWAIT_END_S", 0.1)
    telling = FailureReporter(Settings(), Places(tmp_path, "file:///x", "job"), session(stopped=True))
    found = telling.complete(errors.SparkError("Spark failed: SparkContext was shut down"))
    assert "Spark's session has been stopped" in str(found)
    interrupted = KeyboardInterrupt()
    assert telling.complete(interrupted) is interrupted


def test_what_is_discreet() -> None:
    assert errors.discreet(user_error(discreet="in short")) == "in short"
    assert SECRET not in errors.discreet(user_error())
    assert "operator 'op': UserCodeError" in errors.discreet(user_error())
    assert errors.discreet(ValueError(SECRET)) == "ValueError"
    assert errors.discreet(OSError(28, "No space left")) == "OSError: [Errno 28] No space left"
    said = errors.KeeperError("it died", hint="look")
    assert errors.discreet(said) == str(said) == "it died\n  next step: look"


@pytest.mark.parametrize(
    ("shown", "program", "logs"), [("nowhere", False, False), ("errors", True, False), ("logs", True, True)]
)
def test_where_values_are_shown(tmp_path: Path, shown: Any, program: bool, logs: bool) -> None:
    alive = session()
    places = Places(tmp_path, "file:///x", "job")
    telling = FailureReporter(Settings(show_values=shown), places, alive)
    error = user_error()
    assert (SECRET in str(telling.to_program(error))) is program
    assert type(telling.to_program(error)) is errors.UserCodeError
    assert (SECRET in telling.in_logs(error)) is logs
    failed = errors.SparkError("Spark failed: it said", discreet="Spark failed: IOException")
    vars(failed)["full_text"] = f": java.io.IOException: {SECRET}\n\tat x.y(Z.java:1)\n"
    complete = telling.complete(failed)
    assert str(places.spark_failures) in str(complete)
    text = places.spark_failures.read_text()
    assert "java.io.IOException" in text
    assert "x.y(Z.java:1)" in text
    assert (SECRET in text) is logs
    assert places.spark_failures.stat().st_mode & 0o77 == 0


def test_an_error_of_spark_is_written_with_its_stacks(tmp_path: Path) -> None:
    """PySpark's texts have none: the file had a time, and no text."""
    alive, places = session(), Places(tmp_path, "file:///x", "job")
    telling = FailureReporter(Settings(), places, alive)
    error = Py4JError(f"[STREAM_FAILED] Query [id = 1] terminated with exception: {SECRET} SQLSTATE: XXKST")
    # Of a query's error, PySpark has the stack in another form; its cause's has the kinds, too.
    vars(error)["_stackTrace"] = "x.y(Z.java:1)"
    vars(error)["_cause"] = cause = Py4JError(SECRET)
    vars(cause)["_stackTrace"] = f"x.IllegalStateException: {SECRET}\n\tat x.y(Z.java:1)\n"
    assert f"; its stacks are in {places.spark_failures}" in str(telling.complete(summarize(error)))
    text = places.spark_failures.read_text()
    assert text.partition(" ")[2].splitlines() == [
        "[STREAM_FAILED]",
        "x.IllegalStateException",
        "\tat x.y(Z.java:1)",
        "",
    ]
    said = telling.complete(summarize(Py4JError(SECRET)))
    assert "stacks are in" not in str(said)
    assert places.spark_failures.read_text() == text


def test_what_spark_said_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.spark.job.failure_reporter._MOST_BYTES", 1000)
    alive = session()
    telling = FailureReporter(Settings(), Places(tmp_path, "file:///x", "job"), alive)
    for _ in range(100):
        failed = errors.SparkError("Spark failed")
        vars(failed)["full_text"] = "\tat x.y(Z.java:1)\n" * 10
        telling.complete(failed)
    assert sum(path.stat().st_size for path in (tmp_path / "logs" / "job").iterdir()) < 3000


@pytest.mark.parametrize(
    ("code", "said"),
    [(52, "ran out of memory"), (-9, "signal 9 (SIGKILL)"), (137, "SIGKILL"), (1, "exit code 1"), (-15, "signal 15")],
)
def test_a_jvm_that_has_ended(tmp_path: Path, code: int, said: str) -> None:
    codes = iter([None, None])
    process = SimpleNamespace(poll=lambda: next(codes, code), pid=77)
    telling = FailureReporter(Settings(), Places(tmp_path, "file:///x", "job"), session(process, stopped=True))
    found = telling.complete(errors.SparkError("Spark failed: Answer from Java side is empty"))
    assert type(found) is errors.SparkError
    assert "Spark's JVM, process 77, has ended" in str(found)
    assert said in str(found)


def test_how_a_keepers_death_is_told(tmp_path: Path) -> None:
    log = tmp_path / "op-3.log"
    log.write_text(
        "2026-11-22 22:59:15,947 11 INFO opened at epoch 1 in 74 ms\n"
        "2026-11-22 22:59:16,779 12 INFO of another one\n"
        "2026-11-22T22:59:17.779+00:00 11 ERROR the last words\nTraceback\n"
        "2026-11-22 22:59:18,779 12 INFO of another one\n"
    )
    found = death_of("op", Partition(3), 11, log, -signal.SIGKILL)
    host = socket.gethostname()
    assert (
        f"the keeper of operator 'op', partition 3, died: process 11 on {host} was ended by signal 9 (SIGKILL)"
        in str(found)
    )
    assert [line.strip() for line in found.message.splitlines()[1:]] == [
        "2026-11-22 22:59:15,947 11 INFO opened at epoch 1 in 74 ms",
        "2026-11-22T22:59:17.779+00:00 11 ERROR the last words",
        "Traceback",
    ]
    assert "the last words" not in found.discreet
    assert str(log) in found.discreet
    assert "memory ran out" in found.hint
    assert "exit code 3" in str(death_of("op", Partition(3), 11, log, 3))
    log.write_text("2026-11-22 22:59:15,947 11 INFO x\nFatal Python error: Segmentation fault\n" + "a frame\n" * 50)
    crashed = death_of("op", Partition(3), 11, log, -signal.SIGSEGV)
    assert crashed.message.count("a frame") == 4
    assert "native code" in crashed.hint
    assert "has no lines of this process" in str(death_of("op", Partition(3), 11, tmp_path / "none.log"))


def test_who_is_dead() -> None:
    child = subprocess.Popen(["sleep", "100"])
    assert not is_dead(child.pid, 0)
    child.kill()
    # Before anybody has waited for it.
    assert is_dead(child.pid)
    child.wait()
    assert is_dead(child.pid, 0)
    assert not is_dead(os.getpid(), 0)


@given(st.lists(st.integers(0, 3000), max_size=60), st.integers(500, 4000))
def test_output_goes_in_pieces_and_what_is_too_large_is_refused(lengths: list[int], most: int) -> None:
    batch = pa.RecordBatch.from_pydict({"text": pa.array(["x" * length for length in lengths], pa.string())})
    if any(length + 4 > most for length in lengths):
        # Of a row there is an offset beside its text.
        with pytest.raises(errors.OutputError, match=r"operator 'op' gave a row of .* 'text'"):
            list(in_pieces(batch, "op", most))
    else:
        pieces = list(in_pieces(batch, "op", most))
        assert pa.Table.from_batches(pieces).to_pydict() == batch.to_pydict()
        assert all(piece.nbytes <= most for piece in pieces)


def test_notes_of_a_run_are_removed_with_it(tmp_path: Path) -> None:
    places = Places(tmp_path, "file:///x", "job")
    places.make()
    notes = [Path(f"{places.failures(Generation(n))}-{epoch}") for n, epoch in ((1, 2), (1, 3), (11, 2))]
    for note in notes:
        note.touch()
    places.forget_failures(Generation(1))
    assert [note.exists() for note in notes] == [False, False, True]


def test_no_run_reads_notes_of_another_with_its_generation(tmp_path: Path) -> None:
    """They stay on the machines of executors, and a job that was removed begins again with generation 1."""
    places = Places(tmp_path, "file:///x", "job")
    assert places.failures(Generation(1)) != places.failures(Generation(1))
