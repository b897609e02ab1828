"""Several executors: state stays where it is, and a dead executor takes nothing with it."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from strandline.types.datatypes import StringType
from strandline.types.murmur import spark_hash
from tests.soak import seeds
from tests.spark import pipeline, small, strikes
from tests.spark.harness import App, Case, Reader, eventually, processes
from tests.spark.wide import Wide

pytestmark = pytest.mark.spark


def executor_of(keeper: int) -> int:
    """Return the process that a keeper watches."""
    command = Path(f"/proc/{keeper}/cmdline").read_text().split("\0")
    return int(command[command.index("strandline.keeper.process") + 3])


def reached(app: App, case: Case) -> dict[str, Any]:
    """Wait until everything that is there was processed and shown; return what the driver says then."""
    eventually(lambda: app.status() and case.is_complete(), "complete", every_s=0.2)
    return eventually(
        lambda: (s := app.status())["state"] == "running" and len(s["keepers"]) == 3 and s, "running", every_s=0.2
    )


@pytest.mark.timeout(300)
@pytest.mark.long
def test_an_executor_of_two_is_killed(case: Case) -> None:
    with Reader(case):
        case.add(1)
        app = App(case, master="local-cluster[2,1,1024]", follow="1s", kinds="1")
        first = reached(app, case)
        executors = {name: executor_of(pid) for name, pid in first["keepers"].items()}
        assert executors.keys() == {"profile/0", "profile/1", "per-kind/0"}
        assert len(set(executors.values())) == 2
        assert all("CoarseGrainedExecutorBackend" in processes()[pid] for pid in executors.values())
        # Partitions stay on their executor, with data or without: of this row, one gets nothing.
        case.add(1, rows=1)
        later = reached(app, case)
        assert later["epoch"] > first["epoch"]
        assert later["keepers"] == first["keepers"]
        assert later["restarts"] == 0

        # One executor less, and nobody brings it back: the job goes on where the other one is, and follows.
        (case.root / "limit").touch()
        eventually(lambda: not (case.root / "limit").exists(), "Spark wants no more than one executor")
        os.kill(executors["profile/0"], signal.SIGKILL)
        case.add(1)
        eventually(lambda: app.status()["parallelism"] == 1 and case.is_complete(), "complete", every_s=0.2)
        after = eventually(
            lambda: (s := app.status())["state"] == "running" and len(s["keepers"]) == 2 and s, "running"
        )
        assert after["restarts"] > 0
        assert after["restored_from"] is not None
        assert after["keepers"].keys() == {"profile/0", "per-kind/0"}
        assert {executor_of(pid) for pid in after["keepers"].values()} == {executors["profile/1"]}
        app.finish()
        eventually(lambda: not app.relatives(), "nothing left of the driver", 15)
    case.check()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_an_executor_that_has_more_to_do_keeps_its_partitions(case: Case) -> None:
    """One partition takes long, and another one of the same executor waits: the other executor has nothing to do."""
    users = [f"u{number}" for number in range(40)]
    slow = next(user for user in users if spark_hash([user], [StringType()]) % 128 < 32)
    app = App(case, master="local-cluster[2,1,1024]", job="uneven")
    small.write_rows(case.root / "in", 0, [(user, "x", 1) for user in users])
    eventually(lambda: app.status().get("epoch") == 1, "the first epoch")
    small.write_rows(case.root / "in", 1, [(user, "slow" if user == slow else "x", 1) for user in users])
    eventually(lambda: app.status()["epoch"] == 2, "the second epoch")
    app.finish()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", seeds([], soak=range(11)))
def test_executors_without_keepers_are_killed_in_the_middle_of_an_epoch(case: Case, seed: int) -> None:
    """With them go shuffled rows that are being read: Spark makes them again, and the task that read them runs again."""
    rng, wide, wanted = random.Random(seed), Wide(case.root, seed), 2 if seed else 1
    # One has the keeper; two others lose more, and cost a JVM more.
    app = App(case, master=f"local-cluster[{3 if seed else 2},1,1024]", job="wide")
    wide.add()
    eventually(lambda: app.status() and wide.is_complete(), "complete")
    noticed = 0
    for within in (60, 40, 20, 0, 0, 0, 0):
        before = wide.given_up(case.local_dir)
        hit = strikes.plan(
            wide.strikes, "a", rng.randint(0, within), "executors", belongs=f"SPARK_LOCAL_DIRS={app.temporary}"
        )
        wide.add()
        eventually(lambda: app.status() and wide.is_complete(), "complete")
        assert json.loads(hit.read_text()), f"seed {seed}: no executor was killed"
        noticed += wide.given_up(case.local_dir) > before
        if noticed == wanted:
            break
    assert noticed == wanted, f"seed {seed}: executors were killed, and somebody noticed {noticed} times"
    app.finish()
    wide.check()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_an_executor_without_keepers_is_killed_while_tasks_wait_for_it(case: Case) -> None:
    """They were to read there what is cached. Spark would let them wait for an hour, as for one that is busy."""
    users = [f"u{number}" for number in range(18)]
    app = App(case, master="local-cluster[3,1,1024]", job="joined")
    small.write_rows(case.root / "in", 0, [(user, "x", 1) for user in users])
    first = eventually(lambda: (s := app.status()).get("epoch") == 1 and s, "the first epoch")
    (case.root / "slow").mkdir()
    small.write_rows(case.root / "in", 1, [(user, "x", 1) for user in users])
    eventually(lambda: len(list((case.root / "slow").iterdir())) > 3, "the second epoch is being processed")
    others = app.relatives().keys() - {executor_of(first["keepers"]["count/0"])}
    os.kill(min(pid for pid in others if "CoarseGrainedExecutorBackend" in processes()[pid]), signal.SIGKILL)
    eventually(lambda: app.status().get("epoch") == 2, "the second epoch")
    app.finish()
    rows = pipeline.read_json(case.root / "out")
    assert Counter((row["user"], row["n"]) for row in rows) == small.counted(users * 2)
