"""While a checkpoint's sinks commit or older ones are deleted, epochs go on: what they bring for the next one counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.checkpoint.catalog import read_catalog
from strandline.core import failpoints
from strandline.core.errors import CheckpointError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import Manifest
from tests.checkpoint.helpers import Run, assert_restorable, every_epoch
from tests.clock import ManualClock
from tests.storage.faulty import FaultyStore

WHILE = ["commit", "subsume", "fail"]


@pytest.fixture
def run(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> Run:
    run = Run(store, tmp_path, clock, config=every_epoch(tolerable_failures=None))
    run.checkpoint()
    return run


def end_second(run: Run, when: str, meanwhile: Callable[[CheckpointId], None]) -> CheckpointId:
    """Let checkpoint 2 end; in the middle of that, checkpoint 3 is triggered and `meanwhile` happens."""
    second = run.trigger()
    assert second == 2
    triggered: list[CheckpointId] = []

    def go_on() -> None:
        if not triggered:
            third = run.trigger()
            assert third == 3
            triggered.append(third)
            meanwhile(third)

    commit = run.coordinator._commit_sinks

    def commit_and_go_on(manifest: Manifest) -> None:
        commit(manifest)
        go_on()

    if when == "commit":
        run.coordinator._commit_sinks = commit_and_go_on
    elif when == "subsume":
        failpoints.arm("checkpoint.subsume.before", go_on)
    else:
        asked = run.coordinator.request()
        run.coordinator.close("checkpoint 2 fails")
        assert asked.done()
        # The files of a failed checkpoint are let go of when it is no longer the pending one.
        abandon = run.coordinator._retention.abandon

        def abandon_and_go_on(*args: object, **options: object) -> None:
            abandon(*args, **options)  # type: ignore[arg-type]
            go_on()

        run.coordinator._retention.abandon = abandon_and_go_on  # type: ignore[method-assign, assignment]
    if when != "fail":
        run.deliver(second)
    assert run.coordinator.advance() != (2 if when == "fail" else None)
    assert triggered
    return triggered[0]


@pytest.mark.parametrize("when", WHILE)
def test_everything_delivered_meanwhile_counts(run: Run, when: str) -> None:
    third = end_second(run, when, run.deliver)
    run.coordinator.advance()
    assert run.coordinator.pending is None
    assert run.committed[-1] == third
    newest = read_catalog(run.jobdir).live[third]
    assert newest.sinks[0].pending == [f"epoch-{run.epoch}"]
    assert_restorable(run.jobdir, newest)


@pytest.mark.parametrize("when", WHILE)
def test_failures_meanwhile_count(run: Run, when: str) -> None:
    end_second(run, when, lambda third: run.coordinator.report_failure("detect", 1, third, "disk full"))
    assert run.coordinator.advance() is None
    assert run.coordinator.pending is None
    assert "partition 1: disk full" in run.coordinator.history[-1].failure


@pytest.mark.parametrize("when", WHILE)
def test_other_failures_meanwhile_count(run: Run, when: str) -> None:
    end_second(run, when, lambda third: run.coordinator.fail(third, "no progress of the source"))
    run.coordinator.advance()
    assert "no progress of the source" in run.coordinator.history[-1].failure


@pytest.mark.parametrize("when", WHILE)
def test_a_new_keeper_meanwhile_counts(run: Run, when: str) -> None:
    end_second(run, when, lambda third: run.coordinator.retake("detect", 0))
    run.coordinator.advance()
    assert "has a new keeper" in run.coordinator.history[-1].failure


@pytest.mark.parametrize("when", WHILE)
def test_an_abort_meanwhile_counts(run: Run, when: str) -> None:
    end_second(run, when, lambda third: run.coordinator.close("the run ended"))
    run.coordinator.advance()
    assert run.coordinator.pending is None
    assert "aborted: the run ended" in run.coordinator.history[-1].failure
    with pytest.raises(CheckpointError, match="the run ended"):
        run.coordinator.request().result(0)


def test_what_is_said_of_the_checkpoint_that_completes_changes_nothing(run: Run) -> None:
    """Its sinks commit: it is published, whatever a keeper or a caller says of it now."""
    second = run.begin()
    info = {}

    def repeat(manifest: Manifest) -> None:
        for (uid, partition), part in info.items():
            run.coordinator.report(uid, partition, second, part)
        run.coordinator.report_failure("detect", 0, second, "too late")
        run.coordinator.retake("detect", 0)
        run.coordinator.close("too late")

    failpoints.arm("checkpoint.publish.before", lambda: repeat(None))  # type: ignore[arg-type]
    run.coordinator._commit_sinks = repeat
    for uid, partition in run.files:
        run.change(uid, partition)
        info[uid, partition] = run.snapshot(uid, partition, second)
        run.coordinator.report(uid, partition, second, info[uid, partition])
    run.deliver_rest(second)
    assert run.coordinator.advance() == second
    run.coordinator.advance()
    assert run.coordinator.counts.failed == 0
    assert_restorable(run.jobdir, read_catalog(run.jobdir).live[second])
