"""A keeper that dies while the job has local logs: another goes on with its state, and nothing else is restarted."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import strandline as sl
from tests.spark import small
from tests.spark.harness import Case, eventually, settle

pytestmark = pytest.mark.spark


def pids(run: sl.Run) -> set[int]:
    return {keeper.pid for keeper in run.status().keepers}


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
            before = pids(run)
            dead = min(before)
            os.kill(dead, signal.SIGKILL)
            eventually(lambda dead=dead: dead not in pids(run), "another keeper", 10)
            assert len(pids(run) & before) == 1
        small.write_rows(case.root / "in", 4, [(user, "a", 1) for user in users])
        settle(run)
        assert run.status().restarts == 0
        assert small.rows_of(sink) == small.counted(users * 5)
