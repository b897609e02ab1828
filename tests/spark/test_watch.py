"""Keepers whose death is seen though nobody asks them anything: without Spark."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from strandline.core.ids import Epoch, Partition
from strandline.keeper.protocol import Ack
from strandline.spark.keepers import watch as watches
from strandline.spark.keepers.watch import ExecutorWatch, JobWatch, KeeperWatch, Slot


@pytest.fixture
def watch() -> Iterator[KeeperWatch]:
    made = KeeperWatch()
    yield made
    made.close()


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    made = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    yield made
    for child in made:
        child.kill()
        child.wait()


def acks_of(children: list[subprocess.Popen[bytes]], host: str = socket.gethostname()) -> dict[Slot, Ack]:
    return {
        ("op", Partition(i)): Ack(
            uid="op", partition=Partition(i), epoch=Epoch(3), pid=child.pid, host=host, keeper=f"keeper-{child.pid}"
        )
        for i, child in enumerate(children)
    }


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_one_that_dies_is_missed_until_another_answers(
    watch: KeeperWatch, children: Any, monkeypatch: pytest.MonkeyPatch, has_pidfd: bool
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    acks = acks_of(children)
    assert not watch.has_lost_one(acks)
    children[1].kill()
    deadline = time.monotonic() + 10
    while not watch.has_lost_one(acks):
        assert time.monotonic() < deadline
    assert watch.has_lost_one(acks), "until somebody has done something about it"
    again = subprocess.Popen(["sleep", "60"])
    children.append(again)
    acks = acks_of([children[0], again, children[2]])
    assert not watch.has_lost_one(acks)
    again.kill()
    again.wait()
    assert watch.has_lost_one(acks)


def test_one_that_has_died_before_it_was_looked_at(watch: KeeperWatch, children: Any) -> None:
    acks = acks_of(children)
    children[0].kill()
    children[0].wait()
    assert watch.has_lost_one(acks)
    # Unless it answers all the same: it is in a container, with processes of its own.
    assert not watch.has_lost_one({slot: msgspec.structs.replace(ack) for slot, ack in acks.items()})


def test_of_other_machines_nothing_is_known(watch: KeeperWatch, children: Any) -> None:
    acks = acks_of(children, host="elsewhere")
    for child in children:
        child.kill()
        child.wait()
    assert not watch.has_lost_one(acks)


def test_no_descriptors_are_left(children: Any) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    watch = KeeperWatch()
    watch.has_lost_one(acks_of(children))
    assert len(list(Path("/proc/self/fd").iterdir())) == before + len(children)
    watch.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_executor_that_goes_is_missed_once() -> None:
    there = ["a:1", "b:1"]
    core = SimpleNamespace(
        getExecutorMemoryStatus=lambda: SimpleNamespace(
            keys=lambda: SimpleNamespace(mkString=lambda _: ",".join(there))
        )
    )
    watch = ExecutorWatch(SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: core)))
    assert not watch.has_lost_one()
    there.append("c:1")
    assert not watch.has_lost_one()
    there.remove("b:1")
    assert watch.has_lost_one()
    assert not watch.has_lost_one()


class Tracked:
    """Stands for Spark's status tracker: the running tasks of each stage, and the stages of each job."""

    def __init__(self, stages: dict[int, int], jobs: dict[int, list[int]]) -> None:
        self.stages = stages
        self.jobs = jobs

    def getActiveStageIds(self) -> list[int]:
        return [*self.stages, 99]

    def getStageInfo(self, number: int) -> Any:
        """Of one that has just ended, nothing is known."""
        return SimpleNamespace(numActiveTasks=self.stages[number]) if number in self.stages else None

    def getActiveJobsIds(self) -> list[int]:
        return [*self.jobs, 99]

    def getJobInfo(self, number: int) -> Any:
        return SimpleNamespace(stageIds=self.jobs[number]) if number in self.jobs else None


class Executors:
    """Stands for what Spark's driver knows of executors: of each, how many tasks it runs, and may run; of itself none."""

    def __init__(self, *running: int, most: int) -> None:
        self._found = [("driver", 0, 0), *((str(number), count, most) for number, count in enumerate(running))]

    def executorList(self, active: bool) -> Executors:
        assert active
        return self

    def size(self) -> int:
        return len(self._found)

    def apply(self, at: int) -> Any:
        name, running, most = self._found[at]
        return SimpleNamespace(id=lambda: name, activeTasks=lambda: running, maxTasks=lambda: most)


def test_a_job_is_stalled_that_runs_no_task_for_long_though_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_STALLED_CHECKS", 1)
    tracked, there = Tracked({1: 1, 2: 0, 3: 0}, {0: [1, 2], 1: [3]}), [Executors(1, 0, most=2)]
    core = SimpleNamespace(statusStore=lambda: there[0])
    conf = SimpleNamespace(getTimeAsMs=lambda name, default: {"spark.executor.heartbeatInterval": 2000}[name])
    context = SimpleNamespace(
        statusTracker=lambda: tracked, _jsc=SimpleNamespace(sc=lambda: core, getConf=lambda: conf)
    )
    watch = JobWatch(SimpleNamespace(sparkContext=context))  # type: ignore[arg-type]
    assert [watch.are_stalled() for _ in range(4)] == [False, False, True, True], "job 1"
    tracked.stages[3] = 1
    assert not watch.are_stalled()
    tracked.stages[3] = 0
    for there[0] in (Executors(2, 0, most=2), Executors(most=2)):
        assert [watch.are_stalled() for _ in range(4)] == [False] * 4, "it may wait for the one that is busy"
    there[0] = Executors(1, 1, most=2)
    del tracked.jobs[1], tracked.stages[3]
    assert [watch.are_stalled() for _ in range(4)] == [False] * 4, "stage 2 of job 0 waits for its turn"
    tracked.stages[1] = 0
    assert [watch.are_stalled() for _ in range(3)] == [False, False, True]
    tracked.stages.clear()
    assert not watch.are_stalled()
