"""Jobs whose changelog is in a topic of a real Kafka: kills at each step, restores, rescaling, savepoints, its loss."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.checkpoint import gc
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.jobdir import JobDirectory
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.tools.copy import copy_snapshot
from strandline.storage.kafkaparts import LogPart, part_at
from strandline.storage.place import Place
from strandline.storage.remote import open_store
from tests import kafkaserver
from tests.checkpoint.helpers import late_clock
from tests.kafkaserver import Kafka
from tests.spark import small
from tests.spark.harness import App, Case, Reader, eventually, fired, keepers_armed, settle

pytestmark = [pytest.mark.spark, pytest.mark.long]

_numbers = itertools.count()
Start = Callable[..., sl.Run]


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create(f"jobs-log-{next(_numbers)}", 2, cleanup_policy="compact")


@pytest.fixture
def start(spark: Any, case: Case, kafka: Kafka, topic: str) -> Start:
    """Starts the job, without the local files of a run before."""

    def start(parts: int = 100, restore: Path | None = None, **given: Any) -> sl.Run:
        shutil.rmtree(case.local_dir)
        case.local_dir.mkdir()
        job = case.job(spark, **{"checkpoints": checkpoints(case, kafka.servers, topic, parts), **given})
        return job.start(spark, restore=restore)

    return start


def checkpoints(case: Case, servers: str, topic: str, parts: int = 100, **given: Any) -> sl.Checkpoints:
    log = sl.KafkaLog(servers, topic)
    return case.checkpoints(mode="changelog", changelog=sl.Changelog(parts=parts, log=log), **given)


def directory(case: Case) -> JobDirectory:
    return JobDirectory(Place(url=(case.root / "ck").as_uri()).store(), "pipeline")


def parts_of(case: Case) -> set[LogPart]:
    """Return the parts that manifests name."""
    manifests = [open_snapshot(str(path.parent)).manifest for path in case.directory.glob("chk-*/_metadata")]
    named = (part_at(file.path) for manifest in manifests for file in manifest.stored())
    return {part for part in named if part is not None}


def present(case: Case, parts: set[LogPart]) -> set[str]:
    """Return the paths of the job's parts that have no tombstone."""
    (folder,) = {part.folder for part in parts}
    return {info.path for info in directory(case).list(folder.path)}


MOMENTS = (
    "keeper.upload.before", "upload.file", "upload.appended", "keeper.upload.after",
    "keeper.rebase.upload", "keeper.rebase.uploaded",
)  # fmt: skip


@pytest.mark.timeout(600)
def test_keepers_are_killed_at_each_step_and_restores_read_the_topic(spark: Any, case: Case, start: Start) -> None:
    restored = 0
    with Reader(case):
        for moment in MOMENTS:
            case.add(3)
            with (
                keepers_armed(spark, case.root / moment, f"{moment}=kill@2"),
                start(parts=6, restart=sl.Restart(attempts=20, delay="50ms")) as run,
            ):
                settle(run)
                for _ in range(20):
                    case.add()
                    settle(run)
                    if fired(case.root / moment):
                        break
                assert fired(case.root / moment) == {moment}
                case.finish(run)
            restored += bool(parts_of(case))
    # A new base may have just come in one or the other.
    assert restored > 2
    assert not [path for path in case.directory.glob("shared/*/*") if path.name.endswith(".log")]


@pytest.mark.timeout(600)
def test_superseded_parts_get_tombstones_and_gc_finds_what_kills_have_left(
    spark: Any, case: Case, start: Start
) -> None:
    with start(restart=sl.Restart.never()) as run:
        for _ in range(12):
            case.add()
            settle(run)
        case.finish(run)
    parts = parts_of(case)
    assert present(case, parts) == {part.path for part in parts}
    case.add(2)
    with keepers_armed(spark, case.root / "fired", "upload.appended=kill@3"), start() as run:
        for _ in range(3):
            case.add()
            settle(run)
        case.finish(run)
    assert fired(case.root / "fired")
    parts = parts_of(case)
    left = present(case, parts)
    assert left > {part.path for part in parts}
    plan = gc.plan(directory(case), late_clock())
    assert {item.path for item in plan.garbage} & left == set()
    newest = max(case.directory.glob("chk-*/_metadata"), key=lambda path: path.stat().st_mtime)
    later = newest.stat().st_mtime + 2 * 3600
    os.utime(newest, (later, later))
    plan = gc.plan(directory(case), late_clock())
    assert {item.path for item in plan.garbage} >= left - {part.path for part in parts}
    gc.execute(plan)
    assert present(case, parts) == {part.path for part in parts}
    # Without log=, the job goes on, and drops what it needs no more.
    with start(checkpoints=case.checkpoints(mode="changelog")) as run:
        for _ in range(3):
            case.add()
            settle(run)
        case.finish(run)
    assert not parts_of(case)
    assert not present(case, parts)


@pytest.mark.timeout(600)
def test_a_job_is_rescaled_and_its_savepoint_needs_no_topic(case: Case, kafka: Kafka, topic: str, start: Start) -> None:
    saved, canonical = case.root / "saved", case.root / "canonical"
    with Reader(case, may_vanish=True):
        for parallelism in (2, 3, 1):
            case.add(3)
            with start(settings={"parallelism": parallelism}) as run:
                settle(run)
                run.rescale({"profile": 4})
                # The first checkpoint of a keeper has a base alone.
                for _ in range(3):
                    case.add()
                    settle(run)
                case.check()
                run.savepoint(saved / str(parallelism), format="native")
                run.savepoint(canonical / str(parallelism))
                case.finish(run)
        assert parts_of(case)
        checkpoint = open_snapshot(str(case.directory))
        with pytest.raises(sl.errors.ConfigurationError, match=f"topic '{topic}'.*only its checkpoint can write it"):
            copy_snapshot(checkpoint, Folder(open_store((case.root / "copied").as_uri())))
        admin = kafka.admin()
        for done in admin.delete_topics([topic]).values():
            done.result(10)
        for each in (saved / "1", canonical / "1"):
            assert not [file.path for file in open_snapshot(str(each)).manifest.stored() if part_at(file.path)]
        kafka.create(topic, 2, cleanup_policy="compact")
        with pytest.raises(sl.errors.CorruptionError, match=f"job 'pipeline': no checkpoint can be.*topic '{topic}'"):
            start()
        with start(restore=saved / "1") as run:
            case.add()
            case.finish(run)


@pytest.mark.timeout(900)
def test_checkpoints_fail_while_the_broker_is_away_and_the_job_goes_on(spark: Any, case: Case) -> None:
    server = kafkaserver.start()
    try:
        topic = server.create("log", 2, cleanup_policy="compact")
        options = checkpoints(case, server.servers, topic, tolerable_failures=None, timeout="3s")
        case.add(2)
        with case.job(spark, checkpoints=options).start(spark) as run:
            settle(run)
            server.kill()
            before = run.status().checkpoints
            case.add(2)
            run.process_all_available()
            # What the last checkpoint has made superfluous is deleted first, which is tried for a minute or two.
            eventually(lambda: run.status().checkpoints["failed"] > before["failed"] + 1, "checkpoints fail", 400)
            server.run()
            case.finish(run)
            assert run.status().restarts == 0
    finally:
        server.stop()


@pytest.mark.timeout(900)
def test_drivers_are_killed_and_nothing_local_is_left(
    case: Case, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_TEST_MODE", "changelog")
    monkeypatch.setenv("STRANDLINE_TEST_LOG", f"{kafka.servers} {topic}")
    with Reader(case):
        for moment in ("checkpoint.publish.before@4", "checkpoint.subsume.manifest_deleted@2", "restore.claimed@1"):
            case.add(6)
            name, _, at = moment.partition("@")
            App(case, f"{name}=kill@{at}").wait_killed()
            shutil.rmtree(case.local_dir, ignore_errors=True)
        App(case).finish()
        case.check()
    assert parts_of(case)


def test_a_topic_that_would_lose_parts_is_refused(spark: Any, case: Case, kafka: Kafka) -> None:
    topic = kafka.create(f"jobs-log-{next(_numbers)}", 1)
    with pytest.raises(sl.errors.ConfigurationError, match=f"topic '{topic}'.*cleanup.policy=delete, expected compact"):
        case.job(spark, checkpoints=checkpoints(case, kafka.servers, topic)).start(spark)


def test_samzas_order_shows_rows_before_their_checkpoint_and_perhaps_twice_and_counts_once(
    spark: Any, case: Case, kafka: Kafka, topic: str
) -> None:
    sink, users, source = sl.sinks.memory(visibility="epoch"), ["a", "b", "c"], case.root / "in"
    options = checkpoints(case, kafka.servers, topic, every=None, local_log=False)
    job = small.job(
        sl.stream(small.source(spark, source)), case.root, case.local_dir, sink=sink, checkpoints=options,
        restart=sl.Restart(attempts=5, delay="50ms"),
    )  # fmt: skip
    with job.start(spark) as run:
        small.write_rows(source, 0, [(user, "a", 1) for user in users])
        settle(run)
        small.write_rows(source, 1, [(user, "a", 1) for user in users])
        run.process_all_available()
        # No checkpoint has them.
        assert small.rows_of(sink) == small.counted(users * 2)
        os.kill(run.status().keepers[0].pid, signal.SIGKILL)
        small.write_rows(source, 2, [(user, "a", 1) for user in users])
        settle(run)
        assert run.status().restarts == 1
        assert set(small.rows_of(sink)) == set(small.counted(users * 3))
        assert small.rows_of(sink) >= small.counted(users * 3)
