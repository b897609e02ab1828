"""Sinks that fail, tasks that Spark runs again, sinks that read twice or in part: each event counts once."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import functions as F

import strandline as sl
from strandline.core import failpoints
from strandline.core.errors import UnavailableError
from strandline.core.ids import Epoch, Generation
from strandline.spark.base.filesystem import FileSystem, HadoopFiles, LocalFiles
from strandline.spark.sinks import output_directory as place
from strandline.spark.sinks.base import SinkContext
from tests.crashing import Crash
from tests.ends.filesinks import shown_files, stage, started, visible
from tests.pages import run_page
from tests.soak import soaking
from tests.spark import pipeline, small
from tests.spark.functions import Count
from tests.spark.harness import Case, Reader, eventually, settle

pytestmark = pytest.mark.spark

USERS = [f"u{i % 7}" for i in range(40)]


def users(case: Case) -> list[str]:
    return [event["user"] for event in case.events]


class FlakyFiles(sl.sinks.files):
    """Fails at each of its steps, once each."""

    def __init__(self, path: str) -> None:
        super().__init__(path, format="json")
        self.failures = {"write": 1, "staged": 2, "commit": 1, "committed": 2}
        self.failed: list[str] = []

    def write(self, df: Any, epoch: Any) -> str | None:
        self._step("write")
        staged = super().write(df, epoch)
        self._step("staged")
        return staged

    def commit(self, pending: Sequence[str]) -> None:
        if pending:
            self._step("commit")
        super().commit(pending)
        if pending:
            self._step("committed")

    def _step(self, name: str) -> None:
        if name in self.failures:
            self.failures[name] -= 1
            if self.failures[name] == 0:
                del self.failures[name]
                self.failed.append(name)
                raise OSError(f"the sink failed at {name}")


@pytest.mark.long
def test_a_failing_sink_is_tried_again_from_the_last_checkpoint(spark: Any, case: Case) -> None:
    flaky, case.short = FlakyFiles(str(case.out / "profiles")), True
    df = small.source(spark, case.root / "in")
    users = sl.stream(df).key_by("user", order_by="seq")
    profiles = users.process(pipeline.Profile(), output=pipeline.PROFILE_OUTPUT, uid="profile")
    job = sl.Job(
        "pipeline",
        sinks=[profiles.to(flaky)],
        checkpoints=case.checkpoints(None),
        restart=sl.Restart(attempts=10, delay="10ms"),
        settings=sl.Settings(parallelism=2, local_dir=case.local_dir, state_memory="128MB"),
    )
    with Reader(case), job.start(spark) as run:
        while flaky.failures:
            case.add()
            settle(run)
        assert run.status().restarts == 4
        assert sorted(flaky.failed) == ["commit", "committed", "staged", "write"]
        assert "the sink failed at" in run.status().last_failure
        case.check()


def test_a_job_goes_back_while_a_function_hangs(spark: Any, case: Case) -> None:
    """Spark cannot stop the query that called it, and the next one does not wait for that."""
    hangs, begun, over = threading.Event(), threading.Event(), threading.Event()

    def hang(df: Any, epoch: int) -> None:
        if hangs.is_set():
            hangs.clear()
            begun.set()
            over.wait(120)

    sink, session = sl.sinks.memory(), spark.newSession()
    session.conf.set("spark.sql.streaming.stopTimeout", "500ms")
    # Spark has a query in the session of its source.
    stream = sl.stream(small.source(session, case.root / "in"))
    counts = stream.key_by("user").process(Count(), small.OUTPUT, uid="count")
    outputs = [counts.to(sl.sinks.foreach_batch(hang)), counts.to(sink)]
    try:
        with case.job_of("hangs", *outputs, restart=sl.Restart(attempts=1, delay="10ms")).start(spark) as run:
            small.write_rows(case.root / "in", 0, [("ann", "x", 1)])
            settle(run)
            hangs.set()
            small.write_rows(case.root / "in", 1, [("ann", "x", 1)])
            assert begun.wait(60)
            run.rollback(run.checkpoints()[-1].checkpoint)
            settle(run)
            assert not over.is_set()
            assert run.status().restarts == 0
            over.set()
    finally:
        over.set()
    assert small.rows_of(sink) == small.counted(["ann"] * 2)


# Rescaled, it is a function of foreach_batch that reads them.
@pytest.mark.parametrize("where", ["step", "rescaled", *soaking(["foreach_batch"])])
@pytest.mark.long
def test_what_a_program_reads_anew_each_epoch_may_be_away_for_a_moment(spark: Any, case: Case, where: str) -> None:
    """Another program replaces a directory: what Spark refuses then, it has taken before."""
    prices, away = case.root / "prices", case.root / "away"
    spark.createDataFrame([("ann", 2), ("bob", 3)], "user string, price int").write.parquet(str(prices))
    seen: set[tuple[Any, ...]] = set()
    moments = ["is there", "is away", "is there again"]

    def joined(df: Any) -> Any:
        moment = moments.pop(0)
        if moment == "is away":
            prices.rename(away)
        try:
            return df.join(spark.read.parquet(str(prices)), "user")
        finally:
            if moment == "is away":
                away.rename(prices)

    def note(df: Any, epoch: int) -> None:
        rows = df if where == "step" else joined(df)
        seen.update(map(tuple, rows.select("user", "n", "price").collect()))

    counts = sl.stream(small.source(spark, case.root / "in")).key_by("user").process(Count(), small.OUTPUT, uid="count")
    if where == "step":
        # It is tried as it is written, and once more by the start.
        moments = ["is there"] * 100
        counts = counts.transform(joined)
    sinks = [counts.to(sl.sinks.foreach_batch(note))]
    job = sl.Job(
        "again", sinks=sinks, checkpoints=case.checkpoints(None), restart=sl.Restart(attempts=1, delay="10ms"),
        settings=sl.Settings(parallelism=1, local_dir=case.local_dir, state_memory="128MB"),
    )  # fmt: skip
    with job.start(spark) as run:
        small.write_rows(case.root / "in", 0, [("ann", "a", 1)])
        settle(run)
        if where == "rescaled":
            run.rescale(2)
        moments[:] = ["is away", *["is there again"] * 10]
        small.write_rows(case.root / "in", 1, [("bob", "a", 1)])
        eventually(lambda: run.status().restarts == 1 and run.status().state == "running", "the job goes on")
        assert "PATH_NOT_FOUND" in run.status().last_failure
        settle(run)
    assert seen == {("ann", 1, 2), ("bob", 1, 3)}


def test_what_spark_refuses_of_the_first_epoch_ends_the_job(spark: Any, case: Case) -> None:
    small.write_rows(case.root / "in", 0, [("ann", "a", 1)])
    sink = sl.sinks.foreach_batch(lambda df, epoch: spark.read.parquet(str(case.root / "nowhere")))
    stream = sl.stream(small.source(spark, case.root / "in"))
    run = small.job(stream, case.root, case.local_dir, sink=sink, restart=sl.Restart()).start(spark)
    with pytest.raises(sl.errors.ConfigurationError, match="PATH_NOT_FOUND"):
        run.await_termination(60)
    assert run.status().restarts == 0


def fail_once_at_the_end(marker: Path) -> Any:
    """Return a step that reads all of its rows, and so the keeper's ack, before it fails its task once."""

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        everything = list(batches)
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            yield from everything
            return
        raise RuntimeError("the task fails once")

    return lambda df: df.mapInArrow(step, df.schema)


@pytest.mark.long
def test_a_task_that_spark_runs_again_does_not_apply_an_epoch_twice(spark: Any, case: Case) -> None:
    """Whatever a sink does with its rows, and whether anything else reads them: an operator for each way."""
    case.add(2)
    seen: Counter[tuple[Any, ...]] = Counter()

    def several(df: Any, epoch: int) -> None:
        assert df.count() == len(df.collect())
        seen.update(map(tuple, df.collect()))

    def one_row(df: Any, epoch: int) -> None:
        df.take(1)

    database = case.root / "results.db"
    sinks = {
        "files": sl.sinks.files(str(case.root / "files"), format="json", name="files"),
        "tasks": sl.sinks.Transactional(run_page("sinks.md", 2)["Results"](database), name="tasks"),
        "actions": sl.sinks.foreach_batch(several, name="actions"),
        "row": sl.sinks.foreach_batch(one_row, name="row"),
        "alone": sl.sinks.files(str(case.root / "alone"), format="json", name="alone"),
    }
    watched = {how: sl.sinks.memory(name=f"watched-{how}") for how in sinks if how != "alone"}
    keyed = sl.stream(small.source(spark, case.root / "in")).key_by("user")
    counts = {how: keyed.process(Count(), output=small.OUTPUT, uid=how) for how in sinks}
    failing = [counts[how].transform(fail_once_at_the_end(case.root / f"{how}-failed")).to(sinks[how]) for how in sinks]
    with case.job_of("again", *failing, *(counts[how].to(sink) for how, sink in watched.items())).start(spark) as run:
        settle(run)
        assert run.status().restarts == 0
    wanted = small.counted(users(case))
    for how, sink in watched.items():
        assert small.rows_of(sink) == wanted, how
    for how in sinks:
        assert (case.root / f"{how}-failed").exists(), how
    for how in ("files", "alone"):
        assert seen_in(case.root / how) == wanted, how
    assert seen == wanted
    with contextlib.closing(sqlite3.connect(database)) as db:
        assert Counter(n for (n,) in db.execute("select n from results")) == Counter(
            row[1] for row in wanted.elements()
        )
    # Without anything that keeps the operator's rows, the keeper itself must give them again.
    logs = (case.local_dir / "logs" / "again").glob("alone-*.log")
    assert any("is replayed" in log.read_text() for log in logs)


def clear_caches(df: Any, epoch: int) -> None:
    """Do all that programs do so that Spark keeps nothing."""
    df.persist().count()
    df.unpersist()
    df.sparkSession.catalog.clearCache()
    for rdd in df.sparkSession.sparkContext._jsc.getPersistentRDDs().values():
        rdd.unpersist()


def test_a_sink_that_clears_caches_neither_fails_the_job_nor_changes_rows(spark: Any, case: Case) -> None:
    case.add(1)
    before, after = sl.sinks.memory(name="before"), sl.sinks.memory(name="after")
    clears = sl.sinks.foreach_batch(clear_caches, name="clears")
    counted = (
        sl.stream(small.source(spark, case.root / "in"))
        .key_by("user")
        .process(Count(), output=small.OUTPUT, uid="count")
        .map(lambda row: (row.user, row.n, uuid4().hex), output="user string, n bigint, mark string")
    )
    with case.job_of("cleared", counted.to(before), counted.to(clears), counted.to(after)).start(spark) as run:
        settle(run)
        case.add(1)
        settle(run)
        assert (run.status().restarts, run.status().epoch) == (0, 2)
    assert sorted(before.rows) == sorted(after.rows)
    assert Counter((row.user, row.n) for row in after.rows) == small.counted(users(case))


def test_what_a_function_sets_on_its_session_is_not_set_for_sinks_behind_or_later_epochs(
    spark: Any, case: Case
) -> None:
    """After a restart, the job would be without it again: the same row would give another result."""
    zone, own = "spark.sql.session.timeZone", "my.own"

    def sets(df: Any, _: int) -> None:
        conf = df.sparkSession.conf
        seen.append((conf.get(zone), conf.get(own, None)))
        conf.set(zone, "Asia/Tokyo")
        conf.set(own, "1")

    seen: list[Any] = []
    told, before = sl.sinks.memory(), spark.conf.get(zone)
    stream = sl.stream(small.source(spark, case.root / "in"))
    hours = stream.with_column("hour", F.hour(F.expr("timestamp'2024-01-01 12:00:00Z'")))
    with case.job_of("sets", stream.to(sl.sinks.foreach_batch(sets)), hours.to(told)).start(spark) as run:
        for number in range(2):
            small.write_rows(case.root / "in", number, [("ann", "a", number)])
            settle(run)
    assert seen == [(before, None)] * 2
    assert [row.hour for row in told.rows] == [12, 12]


def test_several_sinks_of_one_operator_touch_its_state_once(spark: Any, case: Case) -> None:
    case.add(1)
    first, second, third = sl.sinks.memory(name="a"), sl.sinks.memory(name="b"), sl.sinks.memory(visibility="epoch")
    out = (
        sl.stream(small.source(spark, case.root / "in"))
        .key_by("user")
        .process(Count(), output=small.OUTPUT, uid="count")
    )
    even = out.where("n % 2 = 0")
    job = sl.Job(
        "small",
        sinks=[out.to(first), even.to(second), out.to(third)],
        checkpoints=sl.Checkpoints(case.root / "ck"),
        restart=sl.Restart.never(),
        settings=sl.Settings(parallelism=2, local_dir=case.local_dir),
    )
    with job.start(spark) as run:
        run.process_all_available(60)
        wanted = small.counted(users(case))
        # Visible with the epoch, and with the checkpoint.
        assert small.rows_of(third) == wanted
        assert not first.rows
        settle(run)
    assert small.rows_of(first) == wanted
    assert small.rows_of(second) == Counter({row: n for row, n in wanted.items() if row[1] % 2 == 0})


def files_job(spark: Any, case: Case, out: Path) -> sl.Job:
    rows = sl.stream(small.source(spark, case.root / "in")).key_by("user")
    sink = sl.sinks.files(str(out), format="json")
    return case.job_of("small", rows.process(Count(), output=small.OUTPUT, uid="count").to(sink))


def seen_in(*directories: Path) -> Counter[tuple[Any, ...]]:
    return Counter((row["user"], row["n"]) for path in directories for row in pipeline.read_json(path))


# What is whole and not shown is completed in test_lives.py, too, by a sink of another name.
@pytest.mark.parametrize("failpoint", ["sink.file_shown", *soaking(["checkpoint.commit_sinks.before"])])
def test_a_commit_that_failed_is_completed_in_a_moved_directory_that_was_read_meanwhile(
    spark: Any, case: Case, failpoint: str
) -> None:
    def fail() -> None:
        raise OSError("the commit fails")

    case.add(1)
    out, moved, taken = (case.root / name for name in ("before", "moved", "taken"))
    failpoints.arm(failpoint, fail)
    with files_job(spark, case, out).start(spark) as run:
        run.process_all_available(60)
        with pytest.raises(sl.errors.StrandlineError, match="the commit fails"):
            run.checkpoint(60)
    taken.mkdir()
    shown = list(out.glob("part-*"))
    assert len(shown) == (failpoint == "sink.file_shown")
    for file in shown:
        file.rename(taken / file.name)
    out.rename(moved)
    case.add()
    with files_job(spark, case, moved).start(spark) as run:
        settle(run)
        assert run.status().restored_from is not None
    assert seen_in(moved, taken) == small.counted(users(case))


def test_a_sink_becomes_another_kind_and_its_database_is_put_back(spark: Any, case: Case, caplog: Any) -> None:
    database, copy, out, moved = (case.root / name for name in ("out.db", "copy.db", "out", "moved.db"))

    def job(sink: sl.sinks.Sink) -> sl.Job:
        rows = sl.stream(small.source(spark, case.root / "in")).key_by("user")
        return case.job_of("small", rows.process(Count(), output=small.OUTPUT, uid="count").to(sink))

    def in_database(path: Path = database) -> Counter[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(path)) as db:
            return Counter(db.execute("select user, n from results").fetchall())

    def fail() -> None:
        raise OSError("the commit fails")

    # What a file sink has left is shown, though the sink of its name is another one by now.
    case.add(1)
    failpoints.arm("checkpoint.commit_sinks.before", fail)
    with job(sl.sinks.files(str(out), format="json", name="out")).start(spark) as run:
        run.process_all_available(60)
        with pytest.raises(sl.errors.StrandlineError, match="the commit fails"):
            run.checkpoint(60)
    failpoints.disarm_all()
    sink = sl.sinks.sqlite(database, "results", name="out", create=True)
    with job(sink).start(spark) as run:
        first = small.counted(users(case))
        assert seen_in(out) == first
        case.add(1)
        settle(run)
        shutil.copy(database, copy)
        case.add(1)
        settle(run)
        # Lists no rows any more.
        run.checkpoint(60)
    assert in_database() == small.counted(users(case)) - first
    newest = database.read_bytes()
    shutil.copy(copy, database)
    with pytest.raises(sl.errors.CorruptionError, match="the target has less on record than it had"):
        job(sink).start(spark)
    # A database may move, with its record.
    moved.write_bytes(newest)
    caplog.set_level("INFO")
    with job(sl.sinks.sqlite(moved, "results", name="out")).start(spark) as run:
        case.add(1)
        settle(run)
    said = f"sink 'out' goes on in table results of {moved}; its rows went to table results of {database} before"
    assert said in caplog.text
    assert in_database(moved) == small.counted(users(case)) - first


@pytest.mark.parametrize("kind", ["this machine", "Hadoop"])
def test_every_file_system_does_the_same(spark: Any, tmp_path: Path, kind: str) -> None:
    root = tmp_path / "a" / "b"
    files: FileSystem = LocalFiles(root) if kind == "this machine" else HadoopFiles(spark, f"file:{root}")
    assert list(files.list("x")) == list(files.directories("x")) == []
    assert files.read("x/one") is None
    assert not files.exists("")
    files.mkdirs("x/y")
    files.mkdirs("x/y")
    assert files.directories("") == ["x"]
    assert files.create("x/one", b"\x00\xff1")
    assert not files.create("x/one", b"2")
    assert files.read("x/one") == b"\x00\xff1"
    files.sync("x", ["one"])
    assert not files.rename("x/none", "two")
    assert files.rename("x/one", "two")
    assert (files.exists("x/one"), files.exists("two")) == (False, True)
    assert [entry for entry in files.list("") if not entry[0].startswith(".")] == [("two", 3)]
    files.delete("x")
    files.delete("x")
    assert files.directories("") == []


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_only_rows_are_staged(spark: Any, tmp_path: Path, format: str) -> None:
    """For each file besides, and for each of its checksums, Hadoop would start processes."""
    sink = sl.sinks.files(str(tmp_path / "out"), format=format)
    sink.open(SinkContext(spark, "job", "life", Generation(1), "out", fsync=False))
    sink.recover([], Epoch(0), fresh=True)
    assert sink.write(spark.range(0, 10, 1, 2), Epoch(1))
    files = [path.name for path in (tmp_path / "out" / "_strandline").rglob("g1/*/*")]
    assert sorted(name[:10] for name in files) == ["part-00000", "part-00001"]


def test_logs_of_queries_are_renamed_without_a_process_for_each_step(spark: Any) -> None:
    writer = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert writer.endswith(".FileSystemBasedCheckpointFileManager")
    assert spark._jvm.java.lang.Class.forName(writer) is not None


def test_a_sink_on_hadoop_goes_on_after_a_crash_in_the_middle_of_a_commit(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(place, "open_filesystem", lambda _, root, fsync, options: HadoopFiles(spark, root))

    def crash() -> None:
        raise Crash

    out, moved = tmp_path / "out", tmp_path / "moved"
    sink = started(out, 1)
    pending = [stage(sink, epoch, [epoch], [-epoch]) for epoch in (1, 2)]
    failpoints.arm("sink.file_shown", crash)
    with pytest.raises(Crash):
        sink.commit(pending)
    assert visible(out) == Counter([1])
    shown_files(out)[0].unlink()
    out.rename(moved)
    sink = started(moved, 2, pending, 2)
    assert visible(moved) == Counter([-1, 2, -2])
    sink.commit([*pending, stage(sink, 3, [3])])
    started(moved, 3, pending, 2)
    assert visible(moved) == Counter([-1, 2, -2])


def test_what_hadoop_has_no_room_for_leaves_nothing(spark: Any, tmp_path: Path) -> None:
    files = HadoopFiles(spark, f"file:{tmp_path}")
    real = files._fs

    class Full:
        """Makes a file, and has no room for what is in it."""

        def create(self, path: Any, overwrite: bool) -> Any:
            stream = real.create(path, overwrite)
            write: Any = lambda data: spark._jvm.java.io.FileInputStream(str(tmp_path / "no room"))  # noqa: E731
            return SimpleNamespace(write=write, close=stream.close)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    files._fs = Full()
    with pytest.raises(Py4JJavaError):
        files.create("one", b"1")
    files._fs = real
    assert files.read("one") is None
    assert files.create("one", b"1")


def test_a_rename_that_hadoop_did_not_do_is_not_taken_for_one_that_was_done(spark: Any, tmp_path: Path) -> None:
    class Refusing:
        """HDFS, for one, says no more than that it did not."""

        def exists(self, path: Any) -> bool:
            return True

        def rename(self, source: Any, target: Any) -> bool:
            return False

        def delete(self, path: Any, recursive: bool) -> bool:
            return False

        def getFileStatus(self, path: Any) -> Any:
            return SimpleNamespace(getLen=lambda: len(path.toString()))

    files = HadoopFiles(spark, f"file:{tmp_path}")
    files._fs = Refusing()
    with pytest.raises(UnavailableError, match=f"{tmp_path}/one to there"):
        files.rename("one", "there")
    with pytest.raises(UnavailableError, match=f"not delete file:{tmp_path}/one"):
        files.delete("one")


def test_what_an_object_store_had_copied_when_it_was_stopped_is_renamed(spark: Any, tmp_path: Path) -> None:
    class Copying:
        """Renames by copying and deleting, and refuses to where there is something: as S3A does."""

        def __init__(self) -> None:
            self.there = {"one": 3, "two": 3}

        def exists(self, path: Any) -> bool:
            return path.getName() in self.there

        def getFileStatus(self, path: Any) -> Any:
            return SimpleNamespace(getLen=lambda: self.there[path.getName()])

        def delete(self, path: Any, recursive: bool) -> bool:
            return self.there.pop(path.getName(), None) is not None

        def rename(self, source: Any, target: Any) -> bool:
            return False

    files = HadoopFiles(spark, f"file:{tmp_path}")
    files._fs = store = Copying()
    assert files.rename("one", "two")
    assert store.there == {"two": 3}
    assert not files.rename("one", "two")


# A source that grows all the time is in test_lives.py, one that grows while a checkpoint is shown in test_driver_kills.py.
@pytest.mark.soak
def test_a_source_that_grows_meanwhile(spark: Any, case: Case) -> None:
    case.short = True
    case.add(1)
    over = threading.Event()

    def add() -> None:
        while case.files < 4:
            case.add(1, rows=20)
            over.wait(0.15)

    adding = threading.Thread(target=add)
    with Reader(case), case.job(spark).start(spark) as run:
        adding.start()
        try:
            while case.files < 4:
                settle(run)
        finally:
            adding.join()
        assert run.status().restarts == 0
        case.finish(run)


@pytest.mark.long
def test_a_job_goes_on_while_its_table_is_away_and_goes_back_with_it(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(sink: Any) -> Any:
        raise ConnectionRefusedError("nobody listens")

    def shown() -> Counter[tuple[Any, ...]]:
        rows = DeltaTable(str(case.root / "out")).to_pyarrow_table().to_pylist()
        return Counter((row["user"], row["n"]) for row in rows)

    sink = sl.sinks.delta(case.root / "out", name="out")
    counts = sl.stream(small.source(spark, case.root / "in")).key_by("user").process(Count(), small.OUTPUT, uid="count")
    case.add(1)
    with case.job_of("small", counts.to(sink)).start(spark) as run:
        sink.patience_s = sink.start_patience_s = 0.1
        settle(run)
        first = shown()
        with monkeypatch.context() as patched:
            patched.setattr(type(sink), "load", away)
            case.add(1)
            run.rescale(1)
            settle(run)
            assert shown() == first
        eventually(lambda: shown() == small.counted(users(case)), "what waited is in the table")
        before = run.checkpoint(60).checkpoint
        case.add(1)
        settle(run)
        run.rollback(before)
        settle(run)
        assert shown() == small.counted(users(case))
