"""Two drivers of one job: one is stopped before any call of the storage, and goes on when the other has taken over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.checkpoint import parallel
from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import FencedError, NotFoundError
from strandline.format.manifest import Manifest
from strandline.snapshot.opening.origin import rollback
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import Run, assert_restorable, every_epoch
from tests.clock import ManualClock
from tests.storage.faulty import FaultyStore


class Job:
    """A storage, the drivers that ran on it, and what their sinks were told."""

    def __init__(self, tmp: Path, clock: ManualClock, retain: int) -> None:
        self.store = FaultyStore(open_store("memory://"), clock=clock)
        self.shown: list[tuple[int, int]] = []
        """What was committed, as generation and checkpoint, in order."""
        self.taken_over = 0
        """How much had been committed when another driver took over."""
        self._tmp, self._clock = tmp, clock
        self._config = every_epoch(retain=retain, tolerable_failures=None)
        self._seeds = 0

    def run(self, checkpoints: int) -> Run:
        """Let a driver start, and take checkpoints."""
        job = self

        class Told(Run):
            def commit_sinks(self, manifest: Manifest) -> None:
                job.shown.append((manifest.generation, manifest.checkpoint))

        self._seeds += 1
        run = Told(self.store, self._tmp, self._clock, config=self._config, seed=self._seeds, source_bytes=3000)
        for _ in range(checkpoints):
            self._clock.advance(1)
            run.checkpoint()
        return run


@pytest.mark.parametrize("retain", [1, 2])
def test_a_driver_that_is_stopped_anywhere_and_goes_on_as_its_successor_runs(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, retain: int
) -> None:
    monkeypatch.setattr(parallel, "_THREADS", 1)
    # What looks again before each deletion takes what a successor has subsumed meanwhile for a fault.
    monkeypatch.delenv("STRANDLINE_VERIFY", raising=False)
    at = 0
    while True:
        at += 1
        job = Job(tmp_path / str(at), clock, retain)
        job.run(retain)
        successor = stopped_at(job, at)
        if successor is None:
            break
        restored, found = key(successor.choice.manifest), job.run(0).choice
        before, since = job.shown[: job.taken_over], job.shown[job.taken_over :]
        # It went on from the newest that was shown, or from one that was published after that and not shown yet.
        assert restored >= before[-1], at
        # Since then, nobody but it has shown anything that it did not go on from.
        own = [shown for shown in since if shown != restored]
        assert [generation for generation, _ in own] == [successor.claim.generation] * 2, at
        assert key(found.manifest) == own[-1], at
        assert not [skipped for skipped in found.skipped if skipped.lost], at
        assert_restorable(successor.jobdir, found.manifest)  # type: ignore[arg-type]
    assert at > 40


def key(manifest: Manifest | None) -> tuple[int, int]:
    """Tell a checkpoint from one of another driver under the same number."""
    return manifest.generation, manifest.checkpoint


def stopped_at(job: Job, at: int) -> Run | None:
    """Run a driver that is stopped before its call of this number, while another runs; None if it made fewer calls."""
    others: list[Run] = []

    def take_over(operation: str, path: str) -> None:
        job.taken_over = len(job.shown)
        others.append(job.run(2))

    run_stopped(job, at, take_over)
    return others[0] if others else None


def run_stopped(job: Job, at: int, meanwhile: Callable[[str, str], None]) -> None:
    """Run a driver, and something before its call of this number, if it makes so many.

    They count from its claim on: before, it would itself be the successor.
    """
    calls = 0

    def step(operation: str, path: str) -> None:
        nonlocal calls
        calls += 1 if calls or (operation, path) == ("get", "job/generations/2") else 0
        if calls == at:
            job.store.before = lambda operation, path: None
            meanwhile(operation, path)

    job.store.before = step
    try:
        job.run(2)
    except FencedError:
        assert calls >= at
    job.store.before = lambda operation, path: None


def test_a_driver_that_is_stopped_anywhere_and_goes_on_as_the_job_goes_back(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes away what the job has gone back to only if it is stopped between its claim and the very deletion."""
    monkeypatch.setattr(parallel, "_THREADS", 1)
    monkeypatch.delenv("STRANDLINE_VERIFY", raising=False)
    stopped: list[tuple[str, str]] = []
    refused = at = 0

    def go_back(operation: str, path: str) -> None:
        nonlocal refused
        stopped.append((operation, path))
        try:
            rollback(jobdir, min(read_catalog(jobdir).live), clock)
        except NotFoundError:
            refused += 1

    while len(stopped) == at:
        at += 1
        job = Job(tmp_path / str(at), clock, retain=2)
        job.run(2)
        jobdir = JobDirectory(job.store, "job")
        run_stopped(job, at, go_back)
        found = job.run(0).choice.manifest
        if found is None:
            assert stopped[-1] == ("get", "job/generations/2") or stopped[-1][0] == "delete", at
        else:
            assert_restorable(jobdir, found)
    assert at - refused > 40
