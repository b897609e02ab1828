"""A job goes on with more or fewer partitions, while it runs and from one start to the next: exact, and seen as such."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

import strandline as sl
from strandline.core import failpoints
from tests.soak import soaking
from tests.spark import small
from tests.spark.harness import Case, Reader, eventually, keepers, settle

pytestmark = pytest.mark.spark


def keepers_of(status: sl.Status) -> set[tuple[str, int]]:
    return {(keeper.uid, keeper.partition) for keeper in status.keepers}


def looked_up(run: sl.Run) -> tuple[Counter[str], Counter[str]]:
    """Return how many events the operators have seen of each user and of each kind."""
    users, kinds = [f"u{n}" for n in range(25)], list("abcd")
    return tuple(
        Counter({key: n for key, n in zip(keys, run.lookup(f"{uid}.seen", keys).value, strict=True) if n})
        for uid, keys in (("profile", users), ("per-kind", kinds))
    )  # type: ignore[return-value]


def counted(case: Case) -> tuple[Counter[str], Counter[str]]:
    return Counter(event["user"] for event in case.events), Counter(event["kind"] for event in case.events)


@pytest.mark.long
def test_a_running_job_is_rescaled_each_operator_by_itself_and_its_keepers_are_killed(
    spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And follows its executors until somebody gives a number, who has the last word."""
    room = [1]
    monkeypatch.setattr("strandline.spark.job.following.task_slots", lambda _: room[0])

    def of(run: sl.Run) -> tuple[int, dict[str, int]]:
        status = settle(run)
        per_operator = {operator.uid: operator.parallelism for operator in status.operators}
        expected = {(uid, partition) for uid, number in per_operator.items() for partition in range(number)}
        assert keepers_of(status) == expected
        return status.parallelism, per_operator

    def followed(run: sl.Run) -> bool:
        status = run.status()
        return status.parallelism == 2 and status.state == "running"

    on_demand: dict[str, Any] = {"checkpoints": case.checkpoints(None, local_log=False)}
    follow = sl.FollowExecutors(min=1, max=2, after="300ms")
    with Reader(case):
        case.add(1)
        with case.job(spark, settings={"parallelism": follow}, kinds_parallelism=1, **on_demand).start(spark) as run:
            assert of(run) == (1, {"profile": 1, "per-kind": 1})
            run.rescale({"per-kind": 3})
            assert run.status().follows
            room[0] = 9
            eventually(lambda: followed(run), "followed")
            assert of(run) == (2, {"profile": 2, "per-kind": 3})
            causes = [(each.kind, each.cause, each.repeated_rows) for each in run.recent().interruptions]
            assert causes[0] == ("rescale", "a rescale to per-kind=3", 0)
            assert looked_up(run) == counted(case)
            # A number is for those that have none of their own.
            run.rescale(1)
            room[0] = 3
            case.add(1)
            time.sleep(1)
            assert of(run) == (1, {"profile": 1, "per-kind": 3})
            assert (run.status().follows, run.status().restarts) == (False, 0)
            os.kill(run.status().keepers[0].pid, signal.SIGKILL)
            case.add(1)
            # What was told survives a restart.
            assert of(run) == (1, {"profile": 1, "per-kind": 3})
            assert run.status().restarts == 1
            with pytest.raises(sl.errors.ConfigurationError, match="operator 'profile': parallelism is 4096"):
                run.rescale(4096)
            with pytest.raises(sl.errors.ConfigurationError, match="no operator 'kinds', it has per-kind, profile"):
                run.rescale({"kinds": 2})
            with pytest.raises(sl.errors.ConfigurationError, match="operator 'per-kind': parallelism is 129, expected"):
                run.rescale({"per-kind": 129})
            assert looked_up(run) == counted(case)
        # Keepers of before are gone. Started again, what the program says of it counts, or else what it is stored
        # with; on another backend, and both with the same rows.
        assert not keepers(case.local_dir)
        settings = {"parallelism": None, "backend": "filesystem"}
        with case.job(spark, settings=settings, kinds_parallelism=2, **on_demand).start(spark) as run:
            assert run.status().restored_from is not None
            assert of(run) == (1, {"profile": 1, "per-kind": 2})
            assert looked_up(run) == counted(case)
    case.check()


@pytest.mark.parametrize("place", ["restore.keepers_opened", *soaking(["restore.claimed"])])
def test_what_fails_in_the_middle_of_rescaling_is_tried_again(spark: Any, case: Case, place: str) -> None:
    case.short = True
    case.add(1)
    with case.job(spark, checkpoints=case.checkpoints(None)).start(spark) as run, ThreadPoolExecutor() as pool:
        settle(run)
        asked: list[Future[Any]] = []

        def fail() -> None:
            # Whoever wants something of it meanwhile waits until it works again.
            asked.append(pool.submit(run.checkpoint, 60))
            asked.append(pool.submit(run.savepoint, case.root / "saved", format="native", timeout=60))
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
        case.check()
        run.stop()


@pytest.mark.long
def test_a_job_is_rescaled_and_loses_a_keeper_while_a_database_is_away(spark: Any, case: Case) -> None:
    """Neither needs the database: rows go on waiting, through all attempts, and come once each when it is back."""
    path = case.root / "results.db"
    sink = sl.sinks.sqlite(path, "results", create=True, timeout="100ms")
    sink.patience_s = sink.start_patience_s = 0.2
    stream = sl.stream(small.source(spark, case.root / "in"))
    again = sl.Restart(attempts=1, delay="10ms")
    with small.job(stream, case.root, case.local_dir, sink=sink, restart=again).start(spark) as run:
        case.add(1)
        settle(run)
        with closing(sqlite3.connect(path, isolation_level=None)) as lock:
            lock.execute("begin exclusive")
            case.add(1)
            settle(run)
            run.rescale(3)
            assert run.status().sinks[0].waiting_rows == 40
            case.add(1)
            run.process_all_available(60)
            os.kill(run.status().keepers[0].pid, signal.SIGKILL)
            eventually(lambda: run.status().restarts == 1 and run.status().state == "running", "it restarts")
            settle(run)
            assert run.status().sinks[0].waiting_rows == 80
            # No checkpoint follows, since nothing changes any more: what waits is tried again without one.
            run._supervisor.attempt.driver.error = sl.errors.KeeperError("lost")
            run._supervisor.attempt.driver.failed.set()
            eventually(lambda: run.status().restarts == 2 and run.status().state == "running", "it restarts")
        eventually(lambda: not run.status().sinks[0].waiting_rows, "rows that waited come")
        with closing(sqlite3.connect(path)) as db:
            rows = db.execute("select user, n from results").fetchall()
    assert Counter(rows) == small.counted([event["user"] for event in case.events])
