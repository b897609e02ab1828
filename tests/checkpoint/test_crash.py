"""A crash at every numbered step, then a new driver: what it finds is restorable, and nothing committed is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.checkpoint.check import summaries
from strandline.checkpoint.gc import execute, plan
from strandline.core import failpoints
from strandline.core.errors import FencedError, UnavailableError
from strandline.format.manifest import MANIFEST
from strandline.storage.remote import open_store
from tests.checkpoint.helpers import HOUR_MS, Run, assert_restorable, every_epoch, manifest, stored
from tests.clock import ManualClock
from tests.crashing import Crash, crash
from tests.storage.faulty import FaultyStore

STEPS = [  # failpoint, checkpoint that the next driver finds, checkpoints whose sinks were committed before the crash
    ("upload.file", 1, [1]),
    ("upload.source", 1, [1]),
    ("checkpoint.publish.before", 1, [1]),
    ("checkpoint.publish.after", 2, [1]),
    ("checkpoint.commit_sinks.before", 2, [1]),
    ("checkpoint.commit_sinks.after", 2, [1, 2]),
    ("checkpoint.subsume.before", 2, [1, 2]),
    ("checkpoint.subsume.manifest_deleted", 2, [1, 2]),
    ("checkpoint.subsume.after", 2, [1, 2]),
]


@pytest.mark.parametrize(("step", "found", "committed"), STEPS, ids=[s[0] for s in STEPS])
def test_crash_at_each_step(tmp_path: Path, clock: ManualClock, step: str, found: int, committed: list[int]) -> None:
    store = FaultyStore(open_store("memory://"), clock=clock)
    run = Run(store, tmp_path, clock)
    run.checkpoint()
    failpoints.arm(step, crash)
    with pytest.raises(Crash):
        run.checkpoint()
    failpoints.disarm_all()
    assert run.committed == committed

    after = Run(store, tmp_path, clock, seed=1)
    assert after.restored.checkpoint == found
    assert after.restored.sinks[0].pending == [f"epoch-{found}"]
    assert_restorable(run.jobdir, after.choice.manifest)
    clock.advance(1)
    published = after.checkpoint()
    clock.advance(2 * HOUR_MS)
    assert published > found
    assert [s.checkpoint for s in summaries(run.jobdir) if s.state == "complete"] == [published], "older ones are gone"
    execute(plan(run.jobdir, clock))
    newest = after.confirmed
    assert_restorable(run.jobdir, newest)
    assert stored(run.jobdir) == {f.path for f in newest.files() if f.path} | {f"chk-{published}/_metadata"}


@pytest.mark.parametrize("step", ["generation.base.before", "generation.base.after"])
def test_crash_around_the_base_record(store: FaultyStore, tmp_path: Path, clock: ManualClock, step: str) -> None:
    Run(store, tmp_path, clock).checkpoint()
    failpoints.arm(step, crash)
    with pytest.raises(Crash):
        Run(store, tmp_path, clock, seed=1)
    failpoints.disarm_all()
    after = Run(store, tmp_path, clock, seed=2)
    assert after.restored.checkpoint == 1


@pytest.mark.parametrize("step", ["checkpoint.publish.before", "checkpoint.publish.after"])
def test_a_driver_that_is_replaced_while_publishing(
    store: FaultyStore, tmp_path: Path, clock: ManualClock, step: str
) -> None:
    run = Run(store, tmp_path, clock)
    run.checkpoint()
    successors: list[Run] = []
    failpoints.arm(step, lambda: successors.append(Run(store, tmp_path, clock, seed=1)))
    with pytest.raises(FencedError):
        run.checkpoint()
    (successor,) = successors
    # Published before the successor chose: it restores that one and commits it. After: void.
    expected = 1 if step.endswith("before") else 2
    assert successor.restored.checkpoint == expected
    assert run.committed == [1], "a fenced driver commits nothing"
    assert [s.state for s in summaries(run.jobdir)] == (["void", "complete"] if expected == 1 else ["complete"] * 2)
    with pytest.raises(FencedError):
        run.checkpoint()
    successor.checkpoint()
    assert_restorable(run.jobdir, successor.confirmed)


def test_the_successor_of_a_zombie_moves_past_its_number(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    zombie = Run(store, tmp_path, clock)
    zombie.checkpoint()
    successor = Run(store, tmp_path, clock, seed=1)
    wanted = successor.coordinator.request()
    number = successor.trigger()
    assert number == 2
    successor.deliver(number)
    # The zombie's create was on its way all the time.
    zombie.jobdir.create("chk-2/_metadata", MANIFEST.encode(manifest(2, generation=1)))
    assert successor.coordinator.advance() is None
    assert not wanted.done(), "the request is served under the next number"
    assert successor.coordinator.counts.failed == 1
    following = successor.checkpoint()
    assert following == 3
    assert wanted.result(0) == 3
    assert_restorable(zombie.jobdir, successor.confirmed)


def test_a_failing_step_after_publishing_may_be_called_again(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    run = Run(store, tmp_path, clock, config=every_epoch(tolerable_failures=None))

    def fail() -> None:
        raise UnavailableError("step failed")

    failpoints.arm("checkpoint.publish.after", fail)
    with pytest.raises(UnavailableError):
        run.checkpoint()
    assert run.coordinator.advance() == 1
    assert_restorable(run.jobdir, run.confirmed)
