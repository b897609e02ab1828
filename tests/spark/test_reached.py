"""A real job is reached from outside: asked for its status, for a checkpoint, and to stop."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import astuple, replace
from types import SimpleNamespace
from typing import Any

import pytest

import strandline as sl
from strandline.checkpoint.history import CheckpointStats
from strandline.control.client import call, find_driver, find_drivers
from strandline.control.commands import CHECKPOINT, STATUS, STOP, NoArguments, Stop, TakeCheckpoint
from strandline.core.ids import CheckpointId, Epoch
from strandline.spark.job.requests import _report
from tests.spark import small
from tests.spark.harness import Case

pytestmark = pytest.mark.spark


def test_who_waits_for_a_checkpoint_hears_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of one that is under way, whatever came before it; and no longer than he has time."""
    monkeypatch.setattr("strandline.spark.job.requests._REPORT_S", 0.005)
    asked: Future[CheckpointId] = Future()
    old = CheckpointStats(CheckpointId(1), "full", Epoch(1), "completed", 0, 2)
    new = replace(old, checkpoint=CheckpointId(2), status="in_progress")
    coordinator: Any = SimpleNamespace(history=[old])
    heard: list[CheckpointStats] = []
    _report(asked, time.monotonic() + 0.05, coordinator, heard.append)
    assert heard == []
    coordinator.history.append(new)

    def hear(stats: CheckpointStats) -> None:
        heard.append(stats)
        if len(heard) == 3:
            asked.set_exception(TimeoutError("of the sink that commits, not ours"))

    _report(asked, float("inf"), coordinator, hear)
    assert heard == [new, new, new]


def test_a_job_is_looked_at_and_stopped_from_outside(spark: Any, case: Case) -> None:
    sink = sl.sinks.memory()
    directory = case.root / "in"
    small.write_rows(directory, 0, [("ann", "x", 1), ("bob", "x", 1)])
    run = small.job(sl.stream(small.source(spark, directory)), case.root, case.local_dir, sink=sink).start(spark)
    with run, ThreadPoolExecutor(1) as pool:
        run.process_all_available(60)
        driver = find_driver(case.local_dir, "small", str(case.root / "ck"))
        status = call(driver, STATUS, NoArguments())
        assert (status.state, status.epoch, status.generation) == ("running", run.status().epoch, 1)
        assert {keeper.uid for keeper in status.keepers} == {"count"}
        taken = call(driver, CHECKPOINT, TakeCheckpoint(60))
        assert taken in run.checkpoints()
        (out,) = taken.sinks
        assert taken.phases.waits_ms > 0, "the rows' epoch was over"
        assert sum(astuple(taken.phases)) + out.shown_ms == pytest.approx(out.age_ms, abs=0.01)
        assert small.rows_of(sink) == small.counted(["ann", "bob"])
        # What comes after it is in the last checkpoint, which stopping takes.
        small.write_rows(directory, 1, [("ann", "x", 1)])
        run.process_all_available(60)
        waiting = pool.submit(run.await_termination, 60)
        assert call(driver, STOP, Stop(checkpoint=True)).state == "stopped"
        assert waiting.result(60)
    assert small.rows_of(sink) == small.counted(["ann", "ann", "bob"])
    assert find_drivers(case.local_dir) == []
    assert not [thread.name for thread in threading.enumerate() if thread.name == "strandline-control"]


def test_a_job_that_does_not_start_is_found_no_more(spark: Any, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    others = ThreadPoolExecutor(1)

    def fail(*_: Any, **__: Any) -> None:
        driver = find_driver(case.local_dir, "small")
        found.append(call(driver, STATUS, NoArguments()).state)
        with pytest.raises(sl.errors.UnavailableError, match="is starting"):
            call(driver, STOP, Stop())
        # A checkpoint is waited for, until the job has begun or failed.
        waiting.append(others.submit(call, driver, CHECKPOINT, TakeCheckpoint()))
        assert not wait_for(waiting, 0.3).done
        raise sl.errors.ConfigurationError("it does not fit")

    waiting: list[Future[Any]] = []

    job = small.job(sl.stream(small.source(spark, case.root / "in")), case.root, case.local_dir)
    with monkeypatch.context() as patch:
        patch.setattr("strandline.spark.job.preparation.decide", fail)
        with pytest.raises(sl.errors.ConfigurationError, match="it does not fit"):
            job.start(spark)
    assert found == ["starting"]
    with pytest.raises(sl.errors.StrandlineError):
        waiting[0].result(20)
    others.shutdown()
    assert find_drivers(case.local_dir) == []
