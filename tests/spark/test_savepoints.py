"""Savepoints of jobs that run, and what goes on from them: the job itself, upgraded or moved, and forks beside it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.format.manifest import Manifest
from strandline.snapshot.opening.listing import verify_snapshot
from strandline.snapshot.opening.snapshot import open_snapshot
from strandline.snapshot.savepoints.take import take_savepoint
from strandline.spark.job import saving
from tests.spark import timed
from tests.spark.harness import Case, Reader, Rows, eventually, settle
from tests.spark.pipeline import visible

pytestmark = pytest.mark.spark


def fork_of(case: Case, name: str) -> Case:
    """Return a case that reads the same input, and has sinks and checkpoints of its own."""
    fork = Case(case.root, case.local_dir, case.seed)
    fork.events, fork.files = case.events, case.files
    fork.out, fork.short = case.root / f"{name}-out", case.short
    return fork


@contextmanager
def damaged(directory: Path, checkpoint: int) -> Iterator[None]:
    """Change a byte of a checkpoint's largest file for a while."""
    manifest = open_snapshot(str(directory / f"chk-{checkpoint}")).manifest
    path = directory / max((file for file in manifest.files() if file.path), key=lambda file: file.size).path
    # Another file: the keepers' own copies are links to the same one.
    kept = path.rename(directory.parent.parent / "kept")
    data = kept.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    try:
        yield
    finally:
        kept.rename(path)


@pytest.mark.long
def test_a_job_goes_on_and_forks_beside_it(spark: Any, case: Case) -> None:
    """A fork shows what comes after the savepoint, and nothing of before; none disturbs another.

    One goes on from a savepoint of the keepers' own files, on another backend and divided in another way, and claims it:
    it goes when the fork stands on its own.
    """
    case.short = True
    case.add(1)
    fork, claimed = fork_of(case, "fork"), fork_of(case, "claimed")
    on_demand: dict[str, Any] = {"checkpoints": case.checkpoints(None)}
    with Reader(case), case.job(spark, **on_demand).start(spark) as run:
        run.process_all_available(60)
        taken = run.savepoint(case.root / "savepoint")
        run.savepoint(case.root / "native", format="native")
        before = visible(case.out)
        # Copied anywhere, it is a savepoint there.
        for name in ("savepoint", "native"):
            shutil.move(case.root / name, case.root / "elsewhere" / name)
        moved, own_files = case.root / "elsewhere" / "savepoint", case.root / "elsewhere" / "native"
        assert verify_snapshot(str(moved)).problems == []
        other_way: dict[str, Any] = {"settings": {"parallelism": 3, "backend": "filesystem"}, **on_demand}
        # A start that ends before a checkpoint of its own comes again.
        fork.job(spark, name="fork", **other_way).start(spark, restore=moved).stop()
        with fork.job(spark, name="fork", **other_way).start(spark, restore=moved) as other:
            status = other.status()
            assert (status.restored_from, status.parallelism) == (taken.checkpoint, 3)
            assert {path.name for path in (case.root / "ck").iterdir()} == {"pipeline", "fork"}
            case.add(1)
            settle(run)
            settle(other)
            # Killed or not, the same command goes on from its own checkpoints.
        with fork.job(spark, name="fork", settings={"parallelism": 1}, **on_demand).start(
            spark, restore=moved
        ) as other:
            status = other.status()
            assert (status.epoch > taken.epoch, status.parallelism) == (True, 1)
        with claimed.job(spark, name="claimed", **other_way).start(spark, restore=own_files, claim=True) as other:
            assert other.status().depends_on.endswith("/native")
            assert (own_files / "_metadata").exists()
            settle(other)
            assert other.status().depends_on == ""
            eventually(lambda: not own_files.exists() or not any(own_files.iterdir()), "gone")
    case.check()
    check_fork(fork, before)
    check_fork(claimed, before)


def check_fork(fork: Case, before: Rows) -> None:
    """Assert that a fork shows what comes after what was shown before it, and nothing else."""
    for seen, earlier, wanted in zip(visible(fork.out), before, fork.expected(), strict=True):
        assert seen == wanted - earlier


class Late:
    """Has savepoints wait between their checkpoint and the rest until they are let go."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.checkpoint = Path()
        self._case = case
        monkeypatch.setattr(saving, "take_savepoint", self._take)

    def _take(self, manifest: Manifest, *args: Any, **given: Any) -> Manifest:
        self.checkpoint = self._case.directory / f"chk-{manifest.checkpoint}" / "_metadata"
        self.reached.set()
        assert self.go_on.wait(60)
        return take_savepoint(manifest, *args, **given)


def test_a_savepoint_outlives_what_becomes_of_the_run_it_was_asked_of(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint stays, whichever run subsumes; when the job ends first, the savepoint is given up and says so."""
    late, case.short = Late(case, monkeypatch), True
    case.add(1)
    with (
        ThreadPoolExecutor(1) as pool,
        case.job(spark, checkpoints=case.checkpoints(None, retain=1)).start(spark) as run,
    ):
        asked = pool.submit(run.savepoint, case.root / "savepoint", format="native")
        assert late.reached.wait(60)
        run.rescale(3)
        case.add(1)
        settle(run)
        assert late.checkpoint.exists()
        late.go_on.set()
        assert asked.result(60).form == "native"
        assert verify_snapshot(str(case.root / "savepoint")).problems == []
        late.reached.clear(), late.go_on.clear()
        asked = pool.submit(run.savepoint, case.root / "late")
        assert late.reached.wait(60)
        run.stop()
        late.go_on.set()
        with pytest.raises(
            sl.errors.CheckpointError, match=r"'pipeline' ended before its savepoint .*/late was complete"
        ):
            asked.result(60)
    assert not (case.root / "late").exists()


@pytest.mark.long
def test_a_job_stops_with_a_savepoint_not_behind_it_and_is_set_back(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stops with a savepoint moves what is shown there: nothing may be shown that the savepoint does not have."""
    late, case.short = Late(case, monkeypatch), True
    case.add(1)
    with ThreadPoolExecutor(2) as pool, case.job(spark).start(spark) as run:
        stopped = pool.submit(run.stop, savepoint=case.root / "first")
        assert late.reached.wait(60)
        rescaled = pool.submit(run.rescale, 3)
        case.add(1)
        time.sleep(1)
        assert not case.is_complete()
        run._supervisor.attempt.driver.error = sl.errors.KeeperError("lost")
        run._supervisor.attempt.driver.failed.set()
        eventually(lambda: run.status().restarts == 1 and run.status().state == "running", "it restarts")
        time.sleep(1)
        assert not case.is_complete()
        assert not rescaled.done()
        late.go_on.set()
        stopped.result(60)
        with pytest.raises(sl.errors.StrandlineError):
            rescaled.result(60)
        assert not case.is_complete()
    with case.job(spark).start(spark) as run:
        run.process_all_available(60)
        run.stop(savepoint=case.root / "second", format="native")
    case.check()
    case.add(1)
    # Into its own directory: the same life, so that the sinks take back what came later, and it comes again.
    # In other key groups, too, than its checkpoints have until then.
    sl.state.patch(case.root / "first", case.root / "patched", max_parallelism=96)
    with Reader(case, may_vanish=True), case.job(spark).start(spark, restore=case.root / "patched") as run:
        settle(run)
        case.check()
        newest = open_snapshot(str(case.directory)).manifest
        assert {operator.max_parallelism for operator in newest.operators} == {96}
        with pytest.raises(sl.errors.ConflictError, match="expected an empty folder"):
            run.savepoint(case.root / "second")
        with pytest.raises(sl.errors.ConfigurationError, match="cannot be called 'chk-7'"):
            run.savepoint(case.directory / "chk-7")
        run.stop()


def away() -> None:
    raise sl.errors.UnavailableError("storage is away for a moment")


def test_a_running_job_goes_back_to_an_older_checkpoint(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    # While a file is damaged, it would be seen by whoever looks at each deletion whether all are whole.
    monkeypatch.delenv("STRANDLINE_VERIFY")
    case.short = True
    case.add(1)
    with case.job(spark, checkpoints=case.checkpoints(None, retain=5)).start(spark) as run:
        first = settle(run).last_checkpoint
        assert first is not None
        case.add(1)
        settle(run)
        case.check()
        with pytest.raises(sl.errors.NotFoundError, match="cannot go back to checkpoint 999"):
            run.rollback(999)
        with damaged(case.directory, first.checkpoint):
            with pytest.raises(sl.errors.CorruptionError, match=f"does not go back to checkpoint {first.checkpoint}: "):
                run.rollback(first.checkpoint)
            assert run.status().state == "running"
        read = max((case.root / "in").glob("*.json"))
        hidden = read.rename(case.root / "hidden")
        with pytest.raises(sl.errors.ConfigurationError, match=f"1 file is missing .*{read.name}"):
            run.rollback(first.checkpoint)
        assert run.status().state == "running"
        hidden.rename(read)
        failpoints.arm("generation.base.before", away)
        try:
            run.rollback(first.checkpoint)
        finally:
            failpoints.disarm_all()
        status = run.status()
        assert (status.restored_from, status.restarts) == (first.checkpoint, 1)
        settle(run)
        case.check()
        newest = open_snapshot(str(case.directory)).manifest
        assert newest.turns == [(newest.generation, first.epoch)]
        run.rollback(first.checkpoint)
        case.finish(run)


# Without Spark: tests/runtime/test_rescale.py, tests/snapshot/test_regrouping.py; jobs that do so, without timers: others here.
@pytest.mark.soak
def test_timers_and_windows_go_where_their_keys_go(spark: Any, case: Case) -> None:
    """To other partitions of a job that runs, to the keepers after a kill, and with a savepoint to other key groups."""
    source = timed.Input(case.root, 5)
    source.add()
    on_demand: dict[str, Any] = {"checkpoints": case.checkpoints(None)}
    with timed.build(spark, case.root, case.local_dir, **on_demand).start(spark) as run:
        run.process_all_available(60)
        run.rescale(3)
        source.add()
        run.process_all_available(60)
        # What it has fired since the checkpoint fires again, and is shown once.
        os.kill(run.status().keepers[0].pid, signal.SIGKILL)
        eventually(lambda: run.status().restarts == 1, "the job is restarted")
        run.process_all_available(60)
        reached = run.status().watermark
        run.stop(savepoint=case.root / "savepoint")
    assert run.status().late_rows == 0
    shutil.rmtree(case.root / "ck")
    sl.state.patch(case.root / "savepoint", case.root / "patched", max_parallelism=200)
    with timed.build(spark, case.root, case.local_dir, **on_demand).start(spark, restore=case.root / "patched") as run:
        assert run.status().watermark == reached
        source.end()
        settle(run)
        assert run.status().late_rows == 0
        assert run.status().watermark == (source.events[-1][0] - 10 * timed.MINUTE).isoformat()
    shown, expected = timed.shown(case.root), source.expected()
    for sink in expected:
        assert shown[sink] == expected[sink], sink
    assert sum(expected["hours"].values()) >= 2


def test_a_restore_that_cannot_be_is_refused_before_anything_is_touched(spark: Any, case: Case) -> None:
    case.add(1)
    for wanted, error in (
        (case.root / "nowhere", sl.errors.NotFoundError),
        (case.root, sl.errors.NotFoundError),
    ):
        with pytest.raises(error):
            case.job(spark).start(spark, restore=wanted)
        assert not (case.root / "ck").exists() or not list(Path(case.root / "ck").rglob("*"))
