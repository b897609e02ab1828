"""A job goes on with more or fewer partitions, while it runs and from one start to the next: exact, and seen as such."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import strandline as sl
from strandline.core import failpoints
from tests.soak import soaking
from tests.spark import timed
from tests.spark.harness import Case, Reader, eventually, keepers, settle

pytestmark = pytest.mark.spark


def keepers_of(status: sl.Status) -> set[tuple[str, int]]:
    return {(keeper.uid, keeper.partition) for keeper in status.keepers}


def wanted(parallelism: int) -> set[tuple[str, int]]:
    return {(uid, partition) for uid in ("profile", "per-kind") for partition in range(parallelism)}


def test_a_running_job_is_rescaled_and_its_keepers_are_killed(spark: Any, case: Case) -> None:
    with Reader(case):
        case.add(1)
        with case.job(spark).start(spark) as run:
            settle(run)
            case.add(1)
            run.rescale(3)
            status = settle(run)
            assert (status.parallelism, status.restarts, keepers_of(status)) == (3, 0, wanted(3))
            os.kill(status.keepers[0].pid, signal.SIGKILL)
            case.add(1)
            # What a restart restores, it restores with the parallelism that the run was told to have.
            assert settle(run).restarts == 1
            run.rescale(1)
            case.add(1)
            status = settle(run)
            assert (status.parallelism, keepers_of(status)) == (1, wanted(1))
            with pytest.raises(sl.errors.ConfigurationError, match="operator 'profile': parallelism is 4096"):
                run.rescale(4096)
            case.add(1)
            settle(run)
        # Started again, with the settings' parallelism and another backend; keepers of before are gone.
        assert not keepers(case.local_dir)
        case.add(1)
        with case.job(spark, settings={"backend": "filesystem"}).start(spark) as run:
            status = run.status()
            assert (status.parallelism, status.restored_from is not None) == (2, True)
            case.finish(run)
    case.check()


def test_each_operator_has_a_parallelism_of_its_own(spark: Any, case: Case) -> None:
    def of(run: sl.Run) -> tuple[int, dict[str, int]]:
        status = settle(run)
        per_operator = {operator.uid: operator.parallelism for operator in status.operators}
        expected = {(uid, partition) for uid, number in per_operator.items() for partition in range(number)}
        assert keepers_of(status) == expected
        return status.parallelism, per_operator

    def tables(name: str) -> set[str]:
        return {file.name for file in (case.root / name / "data").iterdir()}

    with Reader(case):
        case.add(1)
        with case.job(spark, settings={"parallelism": 3}, kinds_parallelism=1).start(spark) as run:
            assert of(run) == (3, {"profile": 3, "per-kind": 1})
            run.savepoint(case.root / "narrow")
            run.rescale({"per-kind": 4})
            assert of(run) == (3, {"profile": 3, "per-kind": 4})
            # The same state, however it is divided.
            run.savepoint(case.root / "wide")
            assert tables("narrow") == tables("wide")
            case.add(1)
            run.rescale(2)
            os.kill(run.status().keepers[0].pid, signal.SIGKILL)
            case.add(1)
            # A number is for those that have none of their own; what was told survives a restart.
            assert of(run) == (2, {"profile": 2, "per-kind": 4})
            with pytest.raises(sl.errors.ConfigurationError, match="no operator 'kinds', it has per-kind, profile"):
                run.rescale({"kinds": 2})
            with pytest.raises(sl.errors.ConfigurationError, match="operator 'per-kind': parallelism is 129, expected"):
                run.rescale({"per-kind": 129})
            assert run.lookup("per-kind.seen", "a").value == sum(event["kind"] == "a" for event in case.events)
        # Started again, what the program says of it counts, or else what it is stored with.
        case.add(1)
        with case.job(spark, settings={"parallelism": None}, kinds_parallelism=3).start(spark) as run:
            assert of(run) == (2, {"profile": 2, "per-kind": 3})
            case.finish(run)


@pytest.mark.parametrize("place", ["restore.keepers_opened", *soaking(["restore.claimed"])])
def test_what_fails_in_the_middle_of_rescaling_is_tried_again(spark: Any, case: Case, place: str) -> None:
    case.short = True
    case.add(2)
    with case.job(spark).start(spark) as run, ThreadPoolExecutor() as pool:
        settle(run)
        asked: list[Future[Any]] = []

        def fail() -> None:
            # Whoever wants something of it meanwhile waits until it works again.
            asked.append(pool.submit(run.checkpoint, 60))
            asked.append(pool.submit(run.savepoint, case.root / "saved", timeout=60))
            time.sleep(0.1)
            raise sl.errors.UnavailableError("struck")

        failpoints.arm(place, fail)
        try:
            run.rescale(3)
        finally:
            failpoints.disarm_all()
        case.add(1)
        status = settle(run)
        assert (status.parallelism, status.restarts) == (3, 1)
        assert [each.result(60).checkpoint > 0 for each in asked] == [True, True]
        case.finish(run)


def test_a_job_follows_its_executors(spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    room = [1]
    monkeypatch.setattr("strandline.spark.job.following.room_of", lambda _: room[0])
    follow = sl.FollowExecutors(min=2, max=4, after="300ms")
    case.add(1)
    with case.job(spark, settings={"parallelism": follow}, kinds_parallelism=1).start(spark) as run:
        status = settle(run)
        assert (status.parallelism, status.follows) == (2, True)
        room[0] = 9
        eventually(lambda: run.status().parallelism == 4, "followed")
        case.add(1)
        status = settle(run)
        assert [operator.parallelism for operator in status.operators] == [4, 1]
        # Who gives a number has the last word.
        run.rescale(1)
        room[0] = 3
        time.sleep(1)
        status = settle(run)
        assert (status.parallelism, status.follows, status.restarts) == (1, False, 0)
        case.finish(run)


def test_timers_and_windows_go_where_their_keys_go(spark: Any, case: Case) -> None:
    source = timed.Input(case.root, 3)
    source.add()
    with timed.build(spark, case.root, case.local_dir).start(spark) as run:
        source.add(60)
        settle(run)
        run.rescale(3)
        source.add(60)
        source.add()
        settle(run)
        run.rescale(2)
        source.add(60)
        source.end()
        settle(run)
        eventually(lambda: run.checkpoint(60), "a checkpoint")
        assert run.status().late_rows == 0
    shown, expected = timed.shown(case.root), source.expected()
    for sink in expected:
        assert shown[sink] == expected[sink], sink
