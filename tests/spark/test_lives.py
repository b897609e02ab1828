"""What lasts as long as a job lives: where it began, its keepers while others work, its stop that failed."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import strandline as sl
from strandline.core import failpoints
from strandline.core.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptionError,
    IncompatibleStateError,
    KeeperError,
    UnavailableError,
)
from tests.spark import small
from tests.spark.functions import Count
from tests.spark.harness import Case, eventually, keepers, keepers_armed, settle
from tests.spark.pipeline import EVENT_SCHEMA, read_json

pytestmark = pytest.mark.spark


def from_now(spark: Any, name: str | None = None) -> sl.Stream:
    """A source that begins at the moment when it is first looked at."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", 40).option("numPartitions", 1).load()
    stream = sl.stream(rate, name=name) if name else sl.stream(rate)
    return stream.select_expr("cast(value % 3 as string) user", "value v", "timestamp")


class Values(sl.KeyedProcess):
    """Give every event, with how many of its key there were."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        self.seen.value += 1
        yield (event.v, str(event.timestamp), self.seen.value)


def life(case: Case, stream: sl.Stream, sink: sl.sinks.Sink) -> sl.Job:
    return small.job(
        stream, case.root, case.local_dir, sink=sink, process=Values(), output="v bigint, at string, n bigint",
        trigger="1s", restart=sl.Restart(attempts=5, delay="50ms"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "dies"),
    [
        ("an epoch", "keeper"),
        ("a checkpoint", "job"),
        *(pytest.param(*both, marks=pytest.mark.soak) for both in (("an epoch", "job"), ("a checkpoint", "keeper"))),
    ],
)
@pytest.mark.long
def test_rows_from_the_very_first_on_are_seen_whenever_a_job_fails(
    spark: Any, case: Case, first: str, dies: str
) -> None:
    sink = sl.sinks.memory()
    job = life(case, from_now(spark), sink)
    run = job.start(spark)
    if first == "a checkpoint":
        assert run.checkpoint(60).checkpoint == 1
    eventually(lambda: run.glance().rows_in >= 20, "rows that no checkpoint covers")
    if dies == "keeper":
        os.kill(run.glance().keepers[0].pid, signal.SIGKILL)
        eventually(lambda: run.glance().restarts and run.glance().state == "running", "restarted")
    else:
        run.stop()
        time.sleep(1)
        run = job.start(spark)
    eventually(lambda: run.glance().rows_in >= 20, "rows")
    run.checkpoint(60)
    run.stop()
    assert sorted(row.v for row in sink.rows) == list(range(len(sink.rows)))
    assert len({row.at for row in sink.rows}) == len(sink.rows)


def test_a_job_that_began_with_other_sources_is_refused(spark: Any, case: Case) -> None:
    with life(case, from_now(spark, "clock"), sl.sinks.noop()).start(spark) as run:
        eventually(lambda: run.glance().epoch >= 1, "an epoch")
    with pytest.raises(IncompatibleStateError, match="no source named 'clock'") as caught:
        life(case, from_now(spark, "sundial"), sl.sinks.noop()).start(spark)
    assert "when it began, the job read clock" in str(caught.value)
    assert not keepers(case.local_dir)


class Slow(sl.KeyedProcess):
    """Take longer than a lease."""

    seen = sl.Value("bigint", default=0)

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        time.sleep(2.5)
        self.seen.value += 1
        yield (ctx.key, self.seen.value)


@pytest.mark.long
def test_keepers_live_on_while_another_works_or_restores(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    first = sl.stream(small.source(spark, case.root / "in")).key_by("user")
    counted = first.process(Count(), output=small.OUTPUT, uid="first").key_by("user")
    slow = counted.process(Slow(), output=small.OUTPUT, uid="slow")
    settings = sl.Settings(parallelism=1, local_dir=case.local_dir, state_memory="128MB", keeper_lease="1s")
    job = sl.Job(
        "lease", sinks=[slow.to(sink)], settings=settings, checkpoints=sl.Checkpoints(case.root / "ck"),
        restart=sl.Restart.never(),
    )  # fmt: skip
    with job.start(spark) as run:
        small.write_rows(case.root / "in", 0, [("a", "x", 1)])
        run.process_all_available(60)
        working = {keeper.pid for keeper in run.status().keepers}
        run.checkpoint(60)
        assert {keeper.pid for keeper in run.status().keepers} == working == set(keepers(case.local_dir))
    assert small.rows_of(sink) == small.counted(["a"])
    with keepers_armed(spark, case.root / "armed", "keeper.restore.before=sleep:3"):
        run = job.start(spark)
    with run:
        opened = {keeper.pid for keeper in run.status().keepers}
        run.checkpoint(60)
        assert {keeper.pid for keeper in run.status().keepers} == opened == set(keepers(case.local_dir))


def test_a_stop_whose_checkpoint_fails_leaves_a_job_that_goes_on(spark: Any, case: Case) -> None:
    def fail() -> None:
        raise UnavailableError("storage is away for a moment")

    sink = sl.sinks.memory()
    checkpoints = sl.Checkpoints(case.root / "ck", tolerable_failures=3)
    job = small.job(
        sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir, sink=sink, checkpoints=checkpoints
    )
    run = job.start(spark)
    small.write_rows(case.root / "in", 0, [("a", "x", 1)])
    run.process_all_available(60)
    failpoints.arm("upload.source", fail)
    with pytest.raises(CheckpointError, match="storage is away"):
        run.stop(checkpoint=True)
    small.write_rows(case.root / "in", 1, [("a", "x", 1)])
    run.process_all_available(60)
    assert run.status().state == "running"
    run.stop(checkpoint=True)
    assert small.rows_of(sink) == small.counted(["a", "a"])


class Stuck(sl.KeyedProcess):
    """Never come back from a timer that fires while no rows come."""

    def on_event(self, event: Any, ctx: sl.Context) -> Any:
        ctx.timers.set_processing(ctx.now + dt.timedelta(seconds=1))
        yield (ctx.key, 0)

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> None:
        time.sleep(600)


@pytest.mark.parametrize("stuck", ["a timer", "a keeper"])
def test_a_job_that_waits_for_a_keeper_can_be_stopped(
    spark: Any, case: Case, stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.spark.job.supervision._ABORT_AFTER_S", 1.0)
    process = Stuck() if stuck == "a timer" else Count()
    stream = sl.stream(small.source(spark, case.root / "in"))
    run = small.job(stream, case.root, case.local_dir, process=process).start(spark)
    small.write_rows(case.root / "in", 0, [("a", "x", 1)])
    supervisor = run._supervisor
    driver = eventually(
        lambda: run.status().epoch >= 1 and supervisor.attempt and supervisor.attempt.driver, "an epoch"
    )
    if stuck == "a keeper":
        os.kill(run.status().keepers[0].pid, signal.SIGSTOP)
        asked = supervisor.attempt.coordinator.request()  # type: ignore[union-attr]
    eventually(lambda: driver.is_running, "a conversation with keepers")
    with pytest.raises(UnavailableError, match=r"has not ended within 0.05 s"):
        run.stop(timeout=0.05)
    run.stop()
    assert run.status().state == "stopped"
    if stuck == "a keeper":
        assert isinstance(asked.exception(60), CheckpointError)


def test_a_keeper_that_dies_in_its_restore_ends_the_start_while_another_restores(spark: Any, case: Case) -> None:
    """The error has the signal: without it, the message takes a crash of a function for a lack of memory."""
    job = small.job(sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir)
    with job.start(spark) as run:
        small.write_rows(case.root / "in", 0, [("a", "x", 1)])
        settle(run)
    begun_s = time.monotonic()
    armed = keepers_armed(spark, case.root / "armed", "keeper.restore.before=sleep:60;keeper.restore.after=kill")
    with armed, pytest.raises(KeeperError, match="SIGKILL"):
        job.start(spark)
    assert time.monotonic() - begun_s < 40
    assert not keepers(case.local_dir)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("strandline-ask")]


class Watching(sl.sinks.Sink):
    """Remembers whether it was told to recover."""

    def __init__(self) -> None:
        super().__init__()
        self.recovered = 0

    def write(self, df: Any, epoch: int) -> str | None:
        df.collect()
        return None

    def recover(self, pending: Any, epoch: int, *, fresh: bool) -> None:
        self.recovered += 1


def test_sinks_are_not_touched_before_the_bytes_that_are_restored_have_been_verified(spark: Any, case: Case) -> None:
    sink = Watching()
    job = small.job(sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir, sink=sink)
    with job.start(spark) as run:
        small.write_rows(case.root / "in", 0, [("a", "x", 1)])
        settle(run)
    assert sink.recovered == 1
    for path in (case.root / "ck" / "small" / "shared").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    shutil.rmtree(case.local_dir)
    with pytest.raises(CorruptionError, match="no checkpoint can be restored"):
        job.start(spark)
    assert sink.recovered == 1


def test_a_local_dir_that_is_removed_while_a_job_runs_is_locked_again(spark: Any, case: Case) -> None:
    """Else a driver of this job that ends would remove it."""
    job = small.job(
        sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir, sink=sl.sinks.memory(),
        restart=sl.Restart(attempts=2, delay="50ms"),
    )  # fmt: skip
    with job.start(spark) as run:
        small.write_rows(case.root / "in", 0, [("a", "x", 1)])
        settle(run)
        shutil.rmtree(case.local_dir)
        small.write_rows(case.root / "in", 1, [("a", "x", 1)])
        assert settle(run).restarts == 1
        assert list(case.local_dir.glob("*/driver.lock"))


def test_state_that_breaks_while_a_job_runs_is_restored(spark: Any, case: Case) -> None:
    """The checkpoint has the right bytes: the guide promises a restart."""
    sink = sl.sinks.memory()
    broken: list[Path] = []

    def breaks(df: Any) -> Any:
        if not broken and df.sparkSession is not spark and (case.root / "break").exists():
            broken.append(case.root)
            raise CorruptionError("state directory: Corruption: block checksum mismatch")
        return df

    stream = sl.stream(small.source(spark, case.root / "in")).transform(breaks)
    job = small.job(stream, case.root, case.local_dir, sink=sink, restart=sl.Restart(attempts=2, delay="50ms"))
    with job.start(spark) as run:
        small.write_rows(case.root / "in", 0, [("a", "x", 1)])
        settle(run)
        (case.root / "break").touch()
        small.write_rows(case.root / "in", 1, [("a", "x", 1)])
        settle(run)
        assert run.status().restarts == 1
    assert broken
    assert small.rows_of(sink) == small.counted(["a", "a"])


@pytest.mark.long
def test_a_job_says_where_it_begins_and_does_not_begin_in_front_of_another_lifes_rows(
    spark: Any, case: Case, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ck = case.root / "ck"

    def job(checkpoints: str = "ck", existing: Any = "refuse", root: Path = case.root) -> sl.Job:
        sink = sl.sinks.files(str(case.out), format="json", existing=existing)
        return small.job(stream, case.root, case.local_dir, sink=sink, checkpoints=sl.Checkpoints(root / checkpoints))

    def shown() -> Counter[tuple[str, int]]:
        return Counter((row["user"], row["n"]) for row in read_json(case.out))

    def told() -> list[str]:
        texts = [record.getMessage() for record in caplog.records if record.name == "strandline.told"]
        caplog.clear()
        return texts

    small.write_rows(case.root / "in", 0, [("a", "x", 1), ("b", "x", 1)])
    stream = sl.stream(spark.readStream.schema(EVENT_SCHEMA).json(str(case.root / "in")))
    with job().start(spark) as run:
        settle(run)
        assert told() == [f"job 'small' starts afresh in file://{ck}/small"]
    # Somebody mistypes the checkpoint directory: nothing is touched.
    before = sorted(case.out.rglob("*"))
    with pytest.raises(
        ConfigurationError, match=r"holds [12] files? of an earlier life of job 'small'.* starts afresh"
    ):
        job("kc").start(spark)
    assert not list((case.root / "kc").rglob("*"))
    assert sorted(case.out.rglob("*")) == before
    small.write_rows(case.root / "in", 1, [("a", "x", 1)])
    run = job().start(spark)
    settle(run)
    run.stop(savepoint=case.root / "sp")
    assert shown() == small.counted(["a", "a", "b"])
    assert told() == [f"job 'small' goes on from checkpoint 1 of file://{ck}/small"]
    # What is restored from a snapshot goes on beside what that covers, and not beside more.
    small.write_rows(case.root / "in", 2, [("b", "x", 1)])
    with job("fork").start(spark, restore=case.root / "sp") as run:
        settle(run)
    assert shown() == small.counted(["a", "a", "b", "b"])
    assert told() == [
        f"job 'small' begins in file://{case.root}/fork/small with the savepoint file://{case.root}/sp of job 'small'"
    ]
    with pytest.raises(ConfigurationError, match=r"begins in .*/late/small with the savepoint .*/sp of job 'small'"):
        job("late").start(spark, restore=case.root / "sp")
    # Without its checkpoints, the job begins anew in another place, and its rows take the place of those of before.
    for checkpoint in (ck / "small").glob("chk-*"):
        shutil.rmtree(checkpoint)
    with pytest.raises(CorruptionError, match=r"no checkpoint can be restored[^$]*existing='replace'"):
        job().start(spark)
    caplog.clear()
    monkeypatch.chdir(case.root)
    with job("new", "replace", Path()).start(spark) as run:
        settle(run)
        assert shown() == small.counted(["a", "a", "b", "b"])
    assert f"is relative to {case.root}, and a job of this name ran last with file://{case.root}/" in caplog.text
    with job("new", "replace").start(spark) as run:
        settle(run)
        assert shown() == small.counted(["a", "a", "b", "b"])


def test_a_sink_that_is_renamed_in_mid_life_shows_each_row_once(spark: Any, case: Case) -> None:
    """Also where the job goes back to when it had the old name, and where the old one was killed with rows to show."""
    stream = sl.stream(small.source(spark, case.root / "in"))

    def job(name: str) -> sl.Job:
        sink = sl.sinks.files(str(case.out), format="json", name=name)
        return small.job(stream, case.root, case.local_dir, sink=sink, checkpoints=case.checkpoints(None, retain=9))

    def shown() -> Counter[tuple[Any, ...]]:
        return Counter((row["user"], row["n"]) for row in read_json(case.out))

    def add(number: int) -> None:
        small.write_rows(case.root / "in", number, [("ann", "a", 1), ("bob", "b", 1)])

    add(0)
    run = job("old").start(spark)
    first = settle(run).last_checkpoint
    assert first is not None
    add(1)
    run.process_all_available(60)
    failpoints.arm("checkpoint.commit_sinks.before", lambda: (_ for _ in ()).throw(KeyError("killed")))
    with pytest.raises(CheckpointError, match="a sink failed to commit"):
        run.checkpoint(60)
    with pytest.raises(sl.errors.StrandlineError):
        run.await_termination(60)
    failpoints.disarm_all()
    assert shown() == small.counted(["ann", "bob"])
    with job("new").start(spark) as run:
        assert shown() == small.counted(["ann", "bob"] * 2)
        run.rollback(first.checkpoint)
        assert shown() == small.counted(["ann", "bob"])
        add(2)
        settle(run)
        assert shown() == small.counted(["ann", "bob"] * 3)


@pytest.mark.long
def test_a_table_sink_that_was_renamed_takes_back_what_it_wrote_under_the_old_name(spark: Any, case: Case) -> None:
    stream = sl.stream(small.source(spark, case.root / "in"))

    def job(name: str) -> sl.Job:
        sink = sl.sinks.delta(case.out, name=name)
        return small.job(stream, case.root, case.local_dir, sink=sink, checkpoints=case.checkpoints(None, retain=9))

    def shown() -> Counter[tuple[Any, ...]]:
        rows = DeltaTable(str(case.out)).to_pyarrow_table().to_pylist()
        return Counter((row["user"], row["n"]) for row in rows)

    def add(run: sl.Run, number: int) -> Any:
        """Have some rows shown; return a checkpoint that lists none."""
        small.write_rows(case.root / "in", number, [("ann", "a", 1), ("bob", "b", 1)])
        settle(run)
        return run.checkpoint(60)

    with job("old").start(spark) as run:
        first = add(run, 0)
        add(run, 1)
    with job("new").start(spark) as run:
        add(run, 2)
        assert shown() == small.counted(["ann", "bob"] * 3)
        run.rollback(first.checkpoint)
        assert shown() == small.counted(["ann", "bob"])
        settle(run)
        assert shown() == small.counted(["ann", "bob"] * 3)
