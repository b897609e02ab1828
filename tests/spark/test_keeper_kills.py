"""Keepers killed with -9 at every moment that matters: the job recovers by itself, and nobody can tell from its results."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest

import strandline as sl
from tests.soak import soaking
from tests.spark.harness import Case, Reader, eventually, fired, keepers, keepers_armed, settle

pytestmark = pytest.mark.spark

MOMENTS = [
    "keeper.epoch.middle",
    "keeper.applied",
    "keeper.persist.before",
    "keeper.upload.before",
    "upload.file",
    "keeper.upload.after",
    "keeper.restore.before",
    "keeper.restore.after",
]
LOG_MOMENTS = ["keeper.log.written", "keeper.log.noted"]
"""With local logs, after which a keeper is mostly replaced alone, and nothing is restored."""


def at_rest(run: sl.Run, case: Case) -> sl.Status | None:
    """Return the status if it names exactly the keepers that live."""
    status = run.status()
    named = {keeper.pid for keeper in status.keepers}
    return status if status.state == "running" and named and named == set(keepers(case.local_dir)) else None


def kill_at_every_moment(
    spark: Any, case: Case, moments: list[str], rng: random.Random, latest: int = 4, **checkpoints: Any
) -> None:
    """Run a job whose keepers die once at each of these moments, and once between two epochs."""
    directory = case.root / "fired"
    # A process restores once, and does everything else often.
    armed = ";".join(f"{m}=kill@{1 if 'restore' in m else rng.randint(1, latest)}" for m in moments)
    case.add(1)
    # With it, keepers are replaced alone, and nothing is restored.
    local_log = checkpoints.setdefault("local_log", False)
    job = case.job(spark, checkpoints=case.checkpoints(**checkpoints))
    with keepers_armed(spark, directory, armed), Reader(case), job.start(spark) as run:
        while fired(directory) != set(moments):
            case.add(1)
            settle(run)
            left = set(moments) - fired(directory)
            if left and all("restore" in moment for moment in left):
                # The other kills may all have come before the first checkpoint: nothing would be restored any more.
                status = eventually(lambda: at_rest(run, case), "all keepers are there")
                os.kill(rng.choice(status.keepers).pid, signal.SIGKILL)
        # Between epochs: everything is processed, and nothing more comes until the job is restarted. The last of the kills
        # may have come after that, and its restart be under way. And an epoch after it: a keeper that dies when none has
        # run since the restore is started anew from the same checkpoint, without a restart of the job.
        status = None
        while status is None or not any(keeper.all_rows_in for keeper in status.keepers):
            case.add(1)
            settle(run)
            status = eventually(lambda: at_rest(run, case), "all keepers are there")
        restarts = status.restarts
        # A few kills may all have come before the first epoch was applied: then keepers are started anew, not the job.
        assert restarts >= 1 or len(moments) < len(MOMENTS) or local_log
        victim = rng.choice(status.keepers)
        os.kill(victim.pid, signal.SIGKILL)
        if local_log:
            eventually(lambda: victim.pid not in {one.pid for one in run.status().keepers}, "seen though …", 10)
        else:
            eventually(lambda: run.status().restarts > restarts, "seen though nobody asks it anything", 10)
        case.add(1)
        status = settle(run)
        assert (status.restarts > restarts) != local_log
        assert victim.pid not in {keeper.pid for keeper in status.keepers}
        assert (status.restored_from is not None) or local_log
        # However often epochs came again, each event counts once.
        assert status.rows_in == len(case.events)
        assert status.last_failure or local_log
        assert (status.last_failure_ms is not None) == bool(status.last_failure)
        assert status.last_checkpoint is not None
        work = {one.uid: 0 for one in status.keepers}
        for one in status.keepers:
            work[one.uid] += one.all_rows_in
            assert one.memory_bytes is not None
        # Since the last restart.
        assert 40 <= work["profile"] <= len(case.events)
        case.check()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, *soaking(range(100, 110))])
@pytest.mark.long
def test_keepers_killed_at_every_moment(spark: Any, case: Case, seed: int) -> None:
    # A chain is in the soak tests, and in test_event_time.py.
    case.seed, case.short = seed, seed == 1
    kill_at_every_moment(spark, case, MOMENTS, random.Random(seed), latest=2 if seed == 1 else 4)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, *soaking(range(200, 220))])
@pytest.mark.long
def test_keepers_with_local_logs_killed_at_every_moment(spark: Any, case: Case, seed: int) -> None:
    case.seed = seed
    moments = [moment for moment in MOMENTS if "restore" not in moment] + LOG_MOMENTS
    kill_at_every_moment(spark, case, moments, random.Random(seed), local_log=True)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 10))
def test_keepers_killed_at_some_moments(spark: Any, case: Case, seed: int) -> None:
    case.seed = seed
    rng = random.Random(seed)
    kill_at_every_moment(spark, case, rng.sample(MOMENTS, 3), rng)


@pytest.mark.timeout(600)
@pytest.mark.long
def test_keepers_killed_while_several_checkpoints_are_in_flight(spark: Any, case: Case) -> None:
    case.short = True
    kill_at_every_moment(spark, case, MOMENTS, random.Random(7), latest=3, every="100ms", max_concurrent=2)


@pytest.mark.long
def test_a_slow_upload_delays_no_later_rows(spark: Any, case: Case) -> None:
    """A later checkpoint subsumes the one whose upload waits, and shows the rows of both."""
    case.short = True
    directory = case.root / "fired"
    checkpoints = case.checkpoints("100ms", max_concurrent=2)
    case.add(1)
    with (
        keepers_armed(spark, directory, "keeper.upload.before=sleep:10@3"),
        Reader(case),
        case.job(spark, checkpoints=checkpoints).start(spark) as run,
    ):

        def has_subsumed() -> bool:
            case.add(1)
            run.process_all_available()
            return run.status().checkpoints["subsumed"] > 0

        eventually(has_subsumed, "a later checkpoint is complete before the slow one")
        assert fired(directory) == {"keeper.upload.before"}
        settle(run)
        case.check()
        assert run.status().restarts == 0
        assert "subsumed" in {stats.status for stats in run.checkpoints()}
