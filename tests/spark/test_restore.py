"""What a job is restored from: the newest checkpoint that is whole, files of this machine where they are right."""

from __future__ import annotations

import logging
import os
import re
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.format.manifest import MANIFEST, Manifest
from strandline.spark.job.checking import check_upgrade
from strandline.spark.sinks.simple import NoopSink
from tests.soak import soaking
from tests.spark import small
from tests.spark.functions import CountText
from tests.spark.harness import App, Case, Reader, eventually, settle

pytestmark = pytest.mark.spark


def manifests(directory: Path) -> dict[int, Manifest]:
    """Return the manifests of a job by checkpoint."""
    found = {}
    for path in directory.glob("chk-*/_metadata"):
        found[int(path.parent.name.removeprefix("chk-"))] = MANIFEST.decode(path.read_bytes(), str(path))
    return found


def flip(path: Path, at: float = 0.5) -> None:
    """Change one bit at a part of a file's length, in a copy: hard links to it keep the right bytes."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    damaged = path.with_name("damaged")
    damaged.write_bytes(data)
    damaged.replace(path)


def tree(*roots: Path) -> dict[str, bytes]:
    """Return every file below these directories, with its bytes."""
    return {str(path): path.read_bytes() for root in roots for path in sorted(root.rglob("*")) if path.is_file()}


def only_in_newest(directory: Path) -> str:
    """Return a shared file that the newest checkpoint needs and the one before does not."""
    paths = {n: {f.path for f in manifest.files() if f.shared} for n, manifest in manifests(directory).items()}
    newest = paths.pop(max(paths))
    return sorted(newest.difference(*paths.values()))[0]


def damage_shared(directory: Path) -> str:
    path = only_in_newest(directory)
    flip(directory / path)
    return path


def truncate_manifest(directory: Path) -> str:
    path = directory / f"chk-{max(manifests(directory))}" / "_metadata"
    path.write_bytes(path.read_bytes()[:-20])
    return "_metadata"


def remove_shared(directory: Path) -> str:
    path = only_in_newest(directory)
    (directory / path).unlink()
    return path


# What else can be damaged, and how it is found, is in tests/checkpoint.
@pytest.mark.parametrize("damage", [damage_shared, *soaking([truncate_manifest, remove_shared])])
@pytest.mark.long
def test_a_damaged_newest_checkpoint_is_passed_over(
    spark: Any, case: Case, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    case.short = True
    with case.job(spark, checkpoints=case.checkpoints(None)).start(spark) as run:
        for _ in range(2):
            case.add(1)
            settle(run)
    newest = max(manifests(case.directory))
    what = damage(case.directory)
    case.add(1)
    # Rows of the damaged checkpoint were visible: they are taken back, and come again.
    again = case.job(spark, checkpoints=case.checkpoints(None))
    with Reader(case, may_vanish=True), caplog.at_level(logging.WARNING), again.start(spark) as run:
        status = settle(run)
        assert status.restored_from == newest - 1
        case.check()
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [text for text in warnings if f"checkpoint {newest}" in text and what in text], warnings


def restored(case: Case) -> list[tuple[int, int]]:
    """Return, for each restore in the keepers' logs, the bytes from the local copy and from storage."""
    found = re.findall(r"restored checkpoint \d+: (\d+) bytes from the local copy, (\d+) from storage", case.logs())
    return [(int(local), int(remote)) for local, remote in found]


# Both are errors of a reader: tests/backends/test_rocksdb.py.
@pytest.mark.parametrize(
    "at", [pytest.param(0.01, id="a block"), pytest.param(0.5, id="the index", marks=pytest.mark.soak)]
)
@pytest.mark.long
def test_local_copies_are_used_and_damaged_ones_are_not(spark: Any, case: Case, at: float) -> None:
    case.short = True
    case.add(1)
    with case.job(spark, checkpoints=case.checkpoints(None, local_log=False)).start(spark) as run:
        settle(run)
        os.kill(run.status().keepers[0].pid, signal.SIGKILL)
        case.add(1)
        assert settle(run).restarts == 1
        used = restored(case)
        assert len(used) == 2
        assert all(local > 0 and remote == 0 for local, remote in used)

        copies = [path for path in case.local_dir.glob("*/profile-*/chk-*/*.sst") if path.stat().st_size > 1000]
        assert copies
        for path in copies:
            flip(path, at)
        os.kill(run.status().keepers[-1].pid, signal.SIGKILL)
        case.add(1)
        # A damaged index is found at once. A damaged block is found when it is read, or before anything is uploaded:
        # then the copy is dropped, and the job is restarted.
        eventually(lambda: settle(run).restarts > 1 and restored(case)[-1][1] > 0, "the damage is found")
        case.add(1)
        settle(run)
        case.check()


def test_sinks_begin_anew_where_a_program_starts_a_job_and_not_where_it_is_looked_at(spark: Any, case: Case) -> None:
    class Noting(NoopSink):
        def _begin_anew(self) -> None:
            begun.append("")

    begun: list[str] = []
    job = small.job(sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir, sink=Noting())
    case.add(1)
    for times in (1, 2):
        with job.start(spark) as run:
            settle(run)
            assert check_upgrade(job, str(case.root / "ck" / "small")).refusals == ()
            assert len(begun) == times


def test_a_program_that_does_not_fit_is_refused_before_anything_is_touched(spark: Any, case: Case) -> None:
    out, root = sl.sinks.files(str(case.out), format="json", name="out"), case.root
    stream = sl.stream(small.source(spark, root / "in"))

    def job(**changed: Any) -> sl.Job:
        given: dict[str, Any] = {"stream": stream, "sink": out, "max_parallelism": 128}
        return small.job(**{**given, **changed}, root=root, local_dir=case.local_dir)

    case.add(1)
    with job().start(spark) as run:
        settle(run)
    before = tree(root / "ck", case.out)
    for differences, changed in (
        (["its key", "`user` binary"], {"stream": stream.select_expr("cast(user as binary) user", "kind", "v")}),
        # Everything at once: one message names it all.
        (
            ["its key", "max_parallelism is 64", "the type of state 'seen'"],
            {"keys": ["kind"], "max_parallelism": 64, "process": CountText()},
        ),
    ):
        with pytest.raises(sl.errors.IncompatibleStateError) as caught:
            job(**changed).start(spark)
        for difference in [*differences, "job 'small' cannot go on from checkpoint 1"]:
            assert difference in str(caught.value)
        assert tree(root / "ck", case.out) == before
    # Looked at from outside, also for a directory that is not there: what would help is said.
    for checkpoints in ({}, {"checkpoints": sl.Checkpoints(root / "nowhere")}):
        found = check_upgrade(job(max_parallelism=64, **checkpoints), str(root / "ck" / "small"))
        assert found.refusals == ("operator 'count': max_parallelism is 64, was 128",)
        assert "strandline state patch file://" in found.regroup
        assert "/small/chk-1 NEW_SAVEPOINT --max-parallelism count=64`" in found.regroup
    assert not (root / "nowhere").exists()
    assert check_upgrade(job(), str(root / "ck" / "small")).regroup == ""
    # And what a start would ask of sinks: a table that is not there, a directory of Spark's own sink.
    with sqlite3.connect(root / "db") as db:
        db.execute("create table other (n int)")
    (why,) = check_upgrade(job(sink=sl.sinks.sqlite(root / "db", "counts")), str(root / "ck" / "small")).refusals
    assert "has no table counts" in why
    (root / "spark" / "_spark_metadata").mkdir(parents=True)
    files = sl.sinks.files(root / "spark", name="files")
    (why,) = check_upgrade(
        job(sink=files, checkpoints=sl.Checkpoints(root / "nowhere")), str(root / "ck" / "small")
    ).refusals
    assert "_spark_metadata" in why
    # A fresh directory knows of nothing: the other program starts there, and starts empty.
    sink = sl.sinks.memory()
    fresh = small.job(
        stream, root, case.local_dir, sink=sink, process=CountText(), max_parallelism=64,
        checkpoints=sl.Checkpoints(root / "fresh"),
    )  # fmt: skip
    with fresh.start(spark) as run:
        assert settle(run).restored_from is None
    assert small.rows_of(sink) == small.counted([event["user"] for event in case.events])
    assert tree(root / "ck", case.out) == before


# One kill and restart of a state on the heap is in test_a_job_goes_on_with_another_type_name_and_uid.
@pytest.mark.parametrize("backend", soaking(["memory", "filesystem"]))
def test_state_on_the_heap_goes_on_after_kill_and_restart(spark: Any, case: Case, backend: str) -> None:
    case.short = True
    case.add(1)
    with Reader(case):
        with case.job(spark, settings={"backend": backend}, checkpoints=case.checkpoints(None)).start(spark) as run:
            settle(run)
            os.kill(run.status().keepers[0].pid, signal.SIGKILL)
            case.add(1)
            assert settle(run).restarts == 1
        case.add(1)
        with case.job(spark, settings={"backend": backend}, checkpoints=case.checkpoints(None)).start(spark) as run:
            status = settle(run)
            assert status.restored_from is not None
            case.check()
    operators = manifests(case.directory)[max(manifests(case.directory))].operators
    assert [operator.backend for operator in operators] == [backend]
    if backend == "memory":
        assert all(f.inline is not None for o in operators for p in o.partitions for f in p.files)


def test_of_two_drivers_on_one_machine_the_older_stops(spark: Any, case: Case) -> None:
    """The newer one ends the older one's keepers: that must not make the older one take the job back.

    It goes on from full checkpoints, which share nothing.
    """
    case.short = True
    case.add(1)
    given: dict[str, Any] = {"checkpoints": case.checkpoints(None, mode="full")}
    with Reader(case), case.job(spark, **given).start(spark) as older:
        settle(older)
        case.add(1)
        settle(older)
        full = manifests(case.directory)
        with case.job(spark, **given).start(spark) as newer:
            case.add(1)
            with pytest.raises(sl.errors.FencedError, match="generation 1 was replaced by a newer driver"):
                older.await_termination(60)
            assert older.status().state == "failed"
            status = settle(newer)
            assert (status.generation, status.restarts) == (2, 0)
            case.check()
    full |= manifests(case.directory)
    assert len(full) == 3
    paths = [f.path for m in full.values() for o in m.operators for p in o.partitions for f in p.files if f.path]
    assert paths
    assert len(paths) == len(set(paths))


@pytest.mark.soak
def test_of_two_drivers_on_two_machines_the_older_stops(spark: Any, case: Case) -> None:
    """Nothing but the storage tells them of each other."""
    case.add(2)
    with Reader(case), case.job(spark).start(spark) as older:
        settle(older)
        case.add(1)
        # In a process of its own: of two runs of one query in a JVM, Spark itself stops the older one.
        newer = App(case, local_dir=case.local_dir / "other")
        eventually(lambda: newer.status().get("state") == "running", "the newer one runs")
        # Both process it; one of them shows it.
        case.add(1)
        with pytest.raises(sl.errors.FencedError, match="generation 1 was replaced by a newer driver"):
            older.await_termination(60)
        assert older.status().restarts == 0
        assert newer.finish()["restarts"] == 0
    case.check()


def test_a_deploy_from_the_last_savepoint_does_not_warn_of_rows_that_come_again(
    spark: Any, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    def job() -> sl.Job:
        stream = sl.stream(small.source(spark, case.root / "in"))
        return small.job(stream, case.root, case.local_dir, sink=sl.sinks.foreach_batch(lambda df, _: df.collect()))

    last = case.root / "last"
    small.write_rows(case.root / "in", 0, [("a", "x", 1)])
    with job().start(spark) as run:
        run.process_all_available(60)
        run.stop(savepoint=last)
    with job().start(spark, restore=last) as run:
        assert "goes back" not in caplog.text
        run.checkpoint(60)
    with job().start(spark, restore=last, again="once more"):
        assert "the later output of sink" in caplog.text


@pytest.mark.long
def test_the_mode_of_checkpoints_changes_from_start_to_start(spark: Any, case: Case) -> None:
    case.short = True
    modes = ["incremental", "changelog", "full", "changelog", "incremental"]
    for mode in modes:
        with case.job(spark, checkpoints=case.checkpoints(None, mode=mode)).start(spark) as run:
            for _ in range(3):
                case.add(1)
                settle(run)
            case.check()
            assert run.status().restarts == 0
            newest = manifests(case.directory)[max(manifests(case.directory))]
            names = [f.name for o in newest.operators for p in o.partitions for f in p.files]
            assert any(name.endswith(".log") for name in names) == (mode == "changelog")
