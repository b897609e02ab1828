"""Whoever asks for a checkpoint while the job restarts or is rescaled gets one of what it goes on as: without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.control.status import State
from strandline.core.errors import CheckpointError, StrandlineError
from strandline.spark.job.run import Run
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import Run as Keepers
from tests.checkpoint.helpers import every_epoch, late_clock


class Asked:
    """A run whose attempts are coordinators that a test drives by hand, and what came of asking it for a checkpoint."""

    def __init__(self, tmp: Path) -> None:
        self.run: Any = Run.__new__(Run)
        self.run._b = SimpleNamespace(name="job")
        self.run._stopping, self.run._ended = threading.Event(), threading.Event()
        self.store, self.tmp = open_store("memory://"), tmp
        self.answer: Any = None
        self.become("starting")

    def begin(self) -> Keepers:
        keepers = Keepers(self.store, self.tmp, late_clock(), config=every_epoch(tolerable_failures=None))
        driver = SimpleNamespace(paused=threading.Event())
        self.run._attempt = SimpleNamespace(coordinator=keepers.coordinator, driver=driver)
        self.run._state = "running"
        return keepers

    def become(self, state: State) -> None:
        self.run._state, self.run._attempt = state, None

    def ask(self, timeout: float | None = 30.0, *, last: bool = False, **given: Any) -> threading.Thread:
        def ask() -> None:
            try:
                if last:
                    # As stop(checkpoint=True) and rescale() do: of this attempt, and nothing comes after it.
                    attempt = self.run._pause_with_checkpoint(time.monotonic() + (timeout or 30.0))
                    assert attempt is self.run._attempt
                    assert attempt.driver.paused.is_set()
                    self.answer = attempt.coordinator.history[-1]
                else:
                    self.answer = self.run.checkpoint(timeout, **given)
            except StrandlineError as error:
                self.answer = error

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        return asking


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("state", ["starting", "restarting", "rescaling"])
def test_asked_before_the_job_works(asked: Asked, state: State) -> None:
    asked.become(state)
    asking = asked.ask()
    time.sleep(0.1)
    assert asking.is_alive(), asked.answer
    keepers = asked.begin()
    until(lambda: keepers.coordinator._requests)
    keepers.checkpoint()
    asking.join(20)
    assert asked.answer.status == "completed"


@pytest.mark.parametrize("is_triggered", [False, True])
@pytest.mark.parametrize(
    "given", [{}, {"progress": lambda stats: None}, {"last": True}], ids=lambda given: next(iter(given), "plain")
)
def test_asked_of_an_attempt_that_ends(asked: Asked, is_triggered: bool, given: dict[str, Any]) -> None:
    keepers = asked.begin()
    asking = asked.ask(**given)
    until(lambda: keepers.coordinator._requests)
    if is_triggered:
        assert keepers.trigger() is not None
    keepers.coordinator.close("the run ended")
    keepers.coordinator.advance()
    time.sleep(0.05)
    asked.become("restarting")
    time.sleep(0.05)
    assert asking.is_alive(), asked.answer
    keepers = asked.begin()
    until(lambda: keepers.coordinator._requests)
    keepers.checkpoint()
    asking.join(20)
    assert asked.answer.status == "completed"


def test_a_checkpoint_that_fails_is_no_reason_to_wait(asked: Asked) -> None:
    keepers = asked.begin()
    asking = asked.ask()
    until(lambda: keepers.coordinator._requests)
    checkpoint = keepers.trigger()
    assert checkpoint is not None
    keepers.coordinator.fail(checkpoint, "no space")
    keepers.coordinator.advance()
    asking.join(20)
    assert "no space" in str(asked.answer)


@pytest.mark.parametrize("state", ["restarting", "running"])
def test_a_job_that_ends_is_not_waited_for(asked: Asked, state: State) -> None:
    keepers = asked.begin() if state == "running" else None
    if keepers is None:
        asked.become(state)
    asking = asked.ask(None)
    time.sleep(0.05)
    asked.run._ended.set()
    asked.run._state = "failed"
    if keepers is not None:
        keepers.coordinator.close("the run ended")
    asking.join(20)
    assert isinstance(asked.answer, CheckpointError)


def test_who_has_no_time_is_told_what_the_job_is_at(asked: Asked) -> None:
    asked.become("rescaling")
    asked.ask(0.05).join(20)
    assert str(asked.answer).startswith("job 'job' is still rescaling after 0.05 s: no checkpoint was taken")
