"""A keeper that dies while the job has local logs: another goes on with its state, and nothing else is restarted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.spark import small
from tests.spark.harness import Case, eventually, settle

pytestmark = pytest.mark.spark


def pids(run: sl.Run) -> set[int]:
    return {keeper.pid for keeper in run.status().keepers}


def wait_for_the_logs(case: Case, run: sl.Run) -> None:
    """Wait until the local log of each keeper has the last epoch: one that dies before that restarts the job."""

    def have_all() -> bool:
        marks = [int.from_bytes(path.read_bytes()[:8], "little") for path in case.local_dir.rglob("db-*-live/mark")]
        return marks == [run.status().epoch] * 2

    eventually(have_all, "the logs have the last epoch", 30)


@pytest.mark.parametrize("mode", ["changelog", "incremental"])
def test_a_keeper_that_dies_between_epochs_is_replaced_alone(spark: Any, case: Case, mode: Any) -> None:
    sink = sl.sinks.memory()
    users = [str(n) for n in range(50)]
    stream = sl.stream(small.source(spark, case.root / "in"))
    checkpoints = sl.Checkpoints(case.root / "ck", mode=mode, local_log=True)
    job = small.job(stream, case.root, case.local_dir, sink=sink, checkpoints=checkpoints)
    with job.start(spark) as run:
        small.write_rows(case.root / "in", 0, [(user, "a", 1) for user in users])
        settle(run)
        for file in range(1, 4):
            # No checkpoint has what came since: it is in the local log alone.
            small.write_rows(case.root / "in", file, [(user, "a", 1) for user in users])
            run.process_all_available()
            wait_for_the_logs(case, run)
            before = pids(run)
            dead = min(before)
            os.kill(dead, signal.SIGKILL)
            eventually(lambda dead=dead: dead not in pids(run), "another keeper", 10)
            assert len(pids(run) & before) == 1
        small.write_rows(case.root / "in", 4, [(user, "a", 1) for user in users])
        settle(run)
        status = run.status()
        assert (status.restarts, status.replaced_keepers) == (0, 3)
        assert small.rows_of(sink) == small.counted(users * 5)


class Dying(sl.KeyedProcess):
    """Counts the events of a key, and ends its process at some: the first time, or each time."""

    count = sl.Value("bigint", default=0)

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def on_event(self, event: Any, ctx: Any) -> Iterator[Any]:
        note = Path(self.notes) / f"{event.user}-{event.v}"
        if event.kind == "always" or (event.kind == "once" and not note.exists()):
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.count.value += 1
        yield ctx.key, self.count.value


def test_an_epoch_in_which_a_keeper_dies_comes_again(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    users = [str(n) for n in range(50)]
    stream = sl.stream(small.source(spark, case.root / "in"))
    job = small.job(
        stream, case.root, case.local_dir, sink=sink, process=Dying(str(case.root)),
        checkpoints=sl.Checkpoints(case.root / "ck", every="300ms", mode="changelog"),
    )  # fmt: skip
    with job.start(spark) as run:
        for file in range(5):
            # In the middle of an epoch.
            rows = [(user, "once" if file and user == str(7 * file) else "a", file) for user in users]
            small.write_rows(case.root / "in", file, rows)
            run.process_all_available()
            wait_for_the_logs(case, run)
        settle(run)
        assert run.status().replaced_keepers == 4
        assert small.rows_of(sink) == small.counted(users * 5)
        # One that dies again in the same epoch is not replaced any more, and this job is not restarted.
        small.write_rows(case.root / "in", 5, [("1", "always", 1)])
        with pytest.raises(sl.errors.KeeperError, match="died"):
            run.await_termination(60)
        assert run.status().replaced_keepers == 5
