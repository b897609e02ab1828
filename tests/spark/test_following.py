"""A run that follows its executors, as who follows sees it. Needs no JVM."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import strandline as sl
from strandline.core.clock import SystemClock
from strandline.plan.parallelism import ParallelismOverride
from strandline.spark.job import following
from strandline.spark.job.following import Follower, initial_override
from tests.spark.harness import eventually

NO_SESSION: Any = None


class Job:
    """A run that is told to follow: what happens then is taken from a list."""

    def __init__(self, *outcomes: bool | Exception) -> None:
        self.outcomes = list(outcomes)
        self.now, self.most = 2, 128
        self.asked: list[int] = []
        self.ended = threading.Event()
        self.over = False

    @property
    def followed(self) -> tuple[int, int] | None:
        return None if self.over else (self.now, self.most)

    def follow(self, room: int) -> bool:
        self.asked.append(room)
        outcome = self.outcomes.pop(0) if self.outcomes else True
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            self.now = room
        return outcome


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = [2]

    def look(_: Any) -> int:
        if isinstance(found[0], Exception):
            raise found[0]
        return int(found[0])

    monkeypatch.setattr(following, "task_slots", look)
    return found


def follow(job: Job) -> Follower:
    made = Follower("job", job, sl.FollowExecutors(after="50ms"), NO_SESSION, SystemClock(), job.ended)
    made.start()
    return made


def test_who_is_to_follow_with_executors_that_come_when_tasks_wait_is_warned(
    room: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    conf = {"spark.dynamicAllocation.enabled": "true"}
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_conf=conf, master="local[2]"))
    follows = sl.Settings(parallelism=sl.FollowExecutors(min=3))
    for settings, warned in ((sl.Settings(parallelism=2), False), (follows, True)):
        told = initial_override(settings, session, wait=True)
        assert told == (ParallelismOverride(3, is_room=True) if warned else ParallelismOverride())
        assert ("spark.dynamicAllocation.enabled is true" in caplog.text) is warned


def test_what_fails_or_has_to_wait_is_tried_again(room: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    job = Job(False, sl.errors.CheckpointError("struck"), RuntimeError("the session is gone"))
    room[0] = 5
    follower = follow(job)
    eventually(lambda: job.now == 5, "followed", 10)
    assert job.asked == [5] * 4
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [message.partition(": ")[0] for message in said] == [
        "job 'job' could not follow its executors to parallelism 5"
    ] * 2
    room[0] = 3
    eventually(lambda: job.now == 3, "followed", 10)
    job.over = True
    follower.join(10)
    assert not follower.is_alive()


def test_while_the_job_restarts_or_the_session_does_not_answer_nothing_is_decided(room: list[Any]) -> None:
    job = Job()
    job.most = 0
    room[0] = 5
    follower = follow(job)
    follower.join(0.3)
    room[0], job.most = OSError("gone"), 128
    follower.join(0.3)
    assert (job.asked, follower.is_alive()) == ([], True)
    job.ended.set()
    follower.join(10)
    assert not follower.is_alive()
