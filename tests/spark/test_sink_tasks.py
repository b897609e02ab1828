"""Sinks that write on the executors: one committable from each task that was through, and what becomes of it in a job."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import TaskContext

import strandline as sl
from strandline.checkpoint import coordinator
from strandline.core import failpoints
from strandline.format.manifest import MANIFEST, Manifest, SinkInfo
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.job import staging as job_staging
from strandline.spark.job.staging import Staging
from strandline.spark.sinks import tasks, transactional
from strandline.spark.sinks.base import committables_of
from tests.ends import inprocess
from tests.pages import run_page
from tests.spark import small
from tests.spark.functions import Count
from tests.spark.harness import Case, eventually, settle


def staging(directory: Path) -> tasks.WriteTask:
    """Return a function that stages a task's numbers as a file of its attempt."""

    def write(batches: Iterator[Any], attempt: sl.sinks.TaskAttempt) -> str:
        numbers = [n for batch in batches for n in batch["n"].to_pylist()]
        (directory / attempt.name).write_text(json.dumps(numbers))
        return f"{attempt.partition} {attempt.name}"

    return write


def staged(directory: Path, committables: list[str]) -> list[int]:
    names = [text.partition(" ")[2] for text in committables]
    return [n for name in names for n in json.loads((directory / name).read_text())]


@pytest.mark.spark
def test_each_partition_with_rows_gives_one_in_their_order(spark: Any, tmp_path: Path) -> None:
    df = spark.range(0, 30, 1, 6).toDF("n")
    found = sl.sinks.write_tasks(df.where("n < 10 or n >= 20"), staging(tmp_path))
    assert [text.partition(" ")[0] for text in found] == ["0", "1", "4", "5"]
    assert staged(tmp_path, found) == [*range(10), *range(20, 30)]
    assert sl.sinks.write_tasks(df.where("n < 0"), staging(tmp_path)) == []
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.spark
def test_rows_that_nobody_wants_are_read_all_the_same(spark: Any, tmp_path: Path) -> None:
    def count(batches: Iterator[Any]) -> Iterator[Any]:
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
        (tmp_path / str(rows)).touch()

    df = spark.range(0, 25_000, 1, 1).toDF("n")
    assert sl.sinks.write_tasks(df.mapInArrow(count, df.schema), lambda batches, attempt: None) == []
    assert [path.name for path in tmp_path.iterdir()] == ["25000"]


@pytest.mark.spark
def test_what_a_task_raises_is_found_behind_sparks_words(spark: Any) -> None:
    def refuse(batches: Iterator[Any], attempt: sl.sinks.TaskAttempt) -> str:
        raise sl.errors.UserCodeError("the table is gone")

    with pytest.raises(Exception, match="STRANDLINE-ERROR") as caught:
        sl.sinks.write_tasks(spark.range(1), refuse)
    assert str(unwrap_error(caught.value)) == "the table is gone"


@pytest.mark.parametrize("given", [b"bytes", ["one", "two"], 7])
def test_what_is_no_committable_is_refused(given: Any) -> None:
    rows: Any = inprocess.Session().range(0, 1, 1, 1)
    with pytest.raises(Exception, match="STRANDLINE-ERROR") as caught:
        sl.sinks.write_tasks(rows, lambda batches, attempt: given)
    found = unwrap_error(caught.value)
    assert isinstance(found, sl.errors.ConfigurationError)
    assert found.message == f"write_tasks: write returned {given!r}, expected a string or None"


class FailingLate(tasks.TaskWriter):
    """Fails a task of each partition when everything was written and the committable was given."""

    def __init__(self, write: Any, directory: Path) -> None:
        super().__init__(write)
        self._directory = directory

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in super().__call__(batches):
            yield batch
            context = TaskContext.get()
            marker = self._directory / str(context.partitionId())
            if not marker.exists():
                marker.touch()
                raise RuntimeError("the task fails once")


@pytest.mark.spark
def test_of_a_task_that_comes_again_only_one_attempt_counts(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    written, failed = tmp_path / "written", tmp_path / "failed"
    written.mkdir()
    failed.mkdir()
    monkeypatch.setattr(tasks, "TaskWriter", lambda write: FailingLate(write, failed))
    found = sl.sinks.write_tasks(spark.range(0, 10, 1, 2).toDF("n"), staging(written))
    assert staged(written, found) == list(range(10))
    assert (len(found), len(list(written.iterdir()))) == (2, 4)


@pytest.mark.spark
def test_of_a_task_whose_input_ends_too_early_only_the_attempt_that_had_all_of_it_counts(
    spark: Any, tmp_path: Path
) -> None:
    """The step before fails in the midst of its rows: `write` sees no more than that they end, and is through."""
    written, begun, cut_off = (tmp_path / name for name in ("written", "begun", "cut_off"))
    for directory in (written, begun, cut_off):
        directory.mkdir()

    def cut(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        partition = str(context.partitionId())
        for number, batch in enumerate(batches):
            # Behind several batches of 10,000 rows: less is not sent before there is more.
            if number == 4 and not (cut_off / partition).exists():
                (cut_off / partition).touch()
                eventually((begun / partition).exists, "`write` has rows")
                raise RuntimeError("the rows end too early")
            yield batch

    def write(batches: Iterator[Any], attempt: sl.sinks.TaskAttempt) -> str:
        (begun / str(attempt.partition)).touch()
        return stage(batches, attempt)

    df, stage = spark.range(0, 120_000, 1, 2).toDF("n"), staging(written)
    found = sl.sinks.write_tasks(df.mapInArrow(cut, df.schema), write)
    assert [text.partition(" ")[0] for text in found] == ["0", "1"]
    assert staged(written, found) == list(range(120_000))
    cut_short = {path.name for path in written.iterdir()} - {text.partition(" ")[2] for text in found}
    assert [0 < len(json.loads((written / name).read_text())) < 60_000 for name in cut_short] == [True, True]


@pytest.mark.spark
def test_what_a_lost_attempt_has_staged_is_never_shown_and_forgotten_by_a_restart(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    failed = tmp_path / "failed"
    failed.mkdir()
    monkeypatch.setattr(tasks, "TaskWriter", lambda write: FailingLate(write, failed))
    trial = run_page("sinks.md", 2)["trial_of"](spark, tmp_path / "results.db")
    sink = trial.start()
    pending = trial.stage(sink, 1)
    sink.commit(pending)
    trial.expect(1)
    staged = [path for path in Path(trial.storage).rglob("*") if path.is_file()]
    # What was shown is gone, and each task was through twice.
    assert len(staged) == len(pending)
    trial.start(pending, 1)
    trial.expect(1)
    assert not [path for path in Path(trial.storage).rglob("*") if path.is_file()]


def newest(directory: Path) -> Manifest:
    path = max(directory.glob("chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))
    return MANIFEST.decode(path.read_bytes(), str(path))


@pytest.mark.spark
def test_a_checkpoint_lists_every_task_and_the_restart_shows_them(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("the commit fails")

    def target(by: str) -> Any:
        made = run_page("sinks.md", 2)["Results"](case.root / f"{by}.db")
        made.on_driver = by == "driver"
        return made

    # However few rows there are, tasks deliver them.
    monkeypatch.setattr(transactional, "_SMALL_BYTES", 0)

    def run() -> sl.Run:
        events = sl.stream(small.source(spark, case.root / "in"))
        counts = events.key_by("user").process(Count(), output=small.OUTPUT, uid="count")
        return case.job_of(
            "small",
            counts.to(sl.sinks.Transactional(target("tasks"), name="tasks")),
            counts.to(sl.sinks.Transactional(target("driver"), name="driver")),
        ).start(spark)

    def shown() -> list[Counter[int]]:
        return [results_in(case.root / f"{by}.db") for by in ("tasks", "driver")]

    users = [f"u{i}" for i in range(20)]
    for epoch in range(2):
        small.write_rows(case.root / "in", epoch, [(user, "x", 1) for user in users])
    failpoints.arm("checkpoint.commit_sinks.before", fail)
    with run() as running:
        running.process_all_available(60)
        with pytest.raises(sl.errors.StrandlineError, match="the commit fails"):
            running.checkpoint(60)
    # Two epochs of two tasks, each of them with rows.
    assert [len(set(sink.pending)) for sink in newest(case.root / "ck" / "small").sinks] == [4, 4]
    assert shown() == [Counter(), Counter()]
    small.write_rows(case.root / "in", 2, [(user, "x", 1) for user in users])
    with run() as running:
        settle(running)
        assert running.status().restored_from is not None
    assert shown() == [Counter({1: 20, 2: 20, 3: 20})] * 2


def results_in(path: Path) -> Counter[int]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return Counter(n for (n,) in db.execute("select n from results"))


@pytest.mark.spark
def test_a_target_that_is_away_is_caught_up_with_by_a_job_that_goes_on(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, users = case.root / "results.db", [f"u{i}" for i in range(20)]
    monkeypatch.setattr(coordinator, "_SHOW_AGAIN_MS", 100)
    sink = sl.sinks.Transactional(run_page("sinks.md", 2)["Results"](path))
    sink.patience_s = 0.0
    stream = sl.stream(small.source(spark, case.root / "in"))
    with small.job(stream, case.root, case.local_dir, sink=sink).start(spark) as running:
        away = path.with_suffix(".away")
        path.rename(away)
        # No file can be made of that name.
        path.mkdir()
        for epoch in range(2):
            small.write_rows(case.root / "in", epoch, [(user, "x", 1) for user in users])
            running.process_all_available(60)
            running.checkpoint(60)
        (listed,) = newest(case.root / "ck" / "small").sinks
        assert len(listed.pending) == 4
        (told,) = running.status().sinks
        assert (told.rows, told.waiting_rows) == (0, 40)
        assert "unable to open" in told.failure
        with pytest.raises(
            sl.errors.CheckpointError, match="no savepoint is taken while 40 rows of sink 'transactional"
        ):
            running.savepoint(case.root / "sp")
        path.rmdir()
        away.rename(path)
        # No checkpoint comes any more: nothing has changed.
        eventually(lambda: results_in(path) == Counter({1: 20, 2: 20}), "the rows are written", 20)
        assert running.status().restarts == 0
        waiting = case.root / "ck" / "small" / "sinks"
        eventually(lambda: not any(files for _, _, files in os.walk(waiting)), "nothing waits", 20)

        def said() -> list[Any]:
            return [(sink.rows, sink.waiting_rows, sink.failure) for sink in running.status().sinks]

        eventually(lambda: said() == [(40, 0, "")], "the status says so", 20)


class Closed(sl.sinks.Sink):
    """Shows nothing yet, and has no status."""

    def write(self, df: Any, epoch: int) -> str:
        return f"{epoch}: {len(df.collect())} rows"

    def commit(self, pending: Any) -> Any:
        return pending


@pytest.mark.spark
def test_no_savepoint_is_taken_while_a_programs_own_sink_could_not_show_its_rows(spark: Any, case: Case) -> None:
    """A job that restores it elsewhere would not show them."""
    small.write_rows(case.root / "in", 0, [("ann", "x", 1)])
    stream = sl.stream(small.source(spark, case.root / "in"))
    with small.job(stream, case.root, case.local_dir, sink=Closed()).start(spark) as running:
        running.process_all_available(60)
        with pytest.raises(sl.errors.CheckpointError, match="while a sink could not show rows"):
            running.savepoint(case.root / "sp")
        assert not (case.root / "sp").exists()


@pytest.mark.parametrize("given", [b"bytes", ("a", "b"), ["a", None], 1, [["a"]]])
def test_committables_are_strings(given: Any) -> None:
    with pytest.raises(sl.errors.ConfigurationError, match="sink 'out'"):
        committables_of("out", given)


@pytest.mark.parametrize("epochs", [["a", "a"], ["a", "b", "a"]])
def test_no_two_that_wait_for_a_checkpoint_are_the_same(epochs: list[str]) -> None:
    staging = Staging([("out", sl.sinks.memory()), ("other", sl.sinks.memory())])
    staging.keep([("other", epochs[-1])])
    for text in epochs[:-1]:
        staging.keep([("out", text)])
    with pytest.raises(sl.errors.ConfigurationError, match=r"sink 'out'.* the same: a"):
        staging.keep([("out", epochs[-1])])


def test_sinks_are_asked_for_what_waits_and_for_nothing_else_that_a_restored_checkpoint_lists() -> None:
    """A sink that a program has instead of another one of its name knows nothing of what that one has left."""
    asked: list[tuple[str, list[str]]] = []
    behind: list[bool] = []
    visible: list[str] = []

    def sink(name: str, left: list[str]) -> Any:
        made = SimpleNamespace()
        made.commit = lambda pending: (asked.append((name, list(pending))), behind.append(made.is_behind), left)[2]
        return made

    left = ["b"]
    staging = Staging([("away", sink("away", left)), ("other", sink("other", []))], {"away": ["a", "b"]})
    staging.on_visible = visible.append
    listed = [SinkInfo(name="away", pending=["a", "b"]), SinkInfo(name="other", pending=["of another kind"])]
    manifest: Any = SimpleNamespace(sinks=listed)
    assert staging.commit(manifest)
    assert staging.commit(manifest)
    assert asked == [("away", ["a", "b"]), ("other", []), ("away", ["b"]), ("other", [])]
    assert behind == [False, True, False, True]
    assert visible == []
    left.clear()
    assert not staging.commit(manifest)
    assert visible == ["away"]


@pytest.mark.parametrize(
    ("given", "expected"), [(None, []), ("", [""]), ("one", ["one"]), ([], []), (["b", "a"], ["b", "a"])]
)
def test_none_one_or_a_list(given: Any, expected: list[str]) -> None:
    assert committables_of("out", given) == expected


def test_a_sink_that_does_not_return_is_named_in_the_log(monkeypatch: Any, caplog: Any) -> None:
    """Its function may wait for an answer for ever, and no checkpoint is taken any more."""
    monkeypatch.setattr(job_staging, "_SLOW_S", 0.01)
    caplog.set_level(logging.WARNING, "strandline")
    goes_on, manifest = threading.Event(), cast(Any, SimpleNamespace(sinks=[]))
    quick, hangs = SimpleNamespace(commit=lambda _: []), SimpleNamespace(commit=lambda _: [] * goes_on.wait(60))
    staging = Staging([("quick", cast(Any, quick)), ("hangs", cast(Any, hangs))])
    committing = threading.Thread(target=staging.commit, args=[manifest])
    committing.start()
    eventually(lambda: "sink 'hangs'" in caplog.text, "it is named", 10)
    goes_on.set()
    committing.join()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
