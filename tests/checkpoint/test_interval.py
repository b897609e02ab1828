"""When checkpoints are due: by the interval, with epochs and between them, and on demand."""

from __future__ import annotations

from pathlib import Path

from strandline.api.config import Checkpoints
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.generation import claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.ids import CheckpointId, Epoch
from tests.checkpoint.helpers import Run
from tests.clock import ManualClock
from tests.storage.faulty import FaultyStore


def test_interval_pause_and_change(jobdir: JobDirectory, clock: ManualClock) -> None:
    config = Checkpoints("unused", every="1s", min_pause="700ms", tolerable_failures=None)
    mine = claim(jobdir, clock)
    mine.set_base(None)
    c = Coordinator(jobdir, mine, config, clock, CheckpointId(1), None, [], lambda m: None)

    def complete() -> None:
        assert c.pending is not None
        c.add_source(c.pending, None)
        c.add_sinks(c.pending, [])
        assert c.advance() is not None

    assert c.trigger(Epoch(1)) is None, "the first interval has not passed"
    clock.advance(1000)
    assert c.trigger(Epoch(2)) is not None
    clock.advance(5000)
    assert c.trigger(Epoch(3)) is None, "one is pending"
    complete()
    assert c.trigger(Epoch(4)) is None, "min pause"
    clock.advance(700)
    assert c.trigger(Epoch(5)) is not None
    complete()
    clock.advance(5000)
    assert c.trigger(Epoch(6), changed=False) is None, "nothing changed"
    wanted = c.request()
    trigger = c.trigger(Epoch(7), changed=False)
    assert trigger is not None
    assert not wanted.done()
    complete()
    assert wanted.result(0) == trigger
    assert [s.epoch for s in c.history] == [2, 5, 7]
    clock.advance(5000)
    assert c.trigger(Epoch(8), changed=True) is not None
    c.close("the run ended")
    c.advance()
    clock.advance(5000)
    assert c.trigger(Epoch(9), changed=False) is not None, "what an aborted checkpoint covered still counts as changed"


def test_an_epoch_that_begins_just_before_a_checkpoint_is_due_takes_it(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    """Epochs of a source that has rows once a second must not miss each second checkpoint of an interval of a second."""
    run = Run(store, tmp_path, clock, config=Checkpoints("unused", every="1s"))
    clock.advance(1000)
    assert run.checkpoint()
    for _ in range(5):
        clock.advance(995)
        assert not run.coordinator.is_due
        assert run.coordinator.trigger(Epoch(1), changed=False) is None, "without an epoch, it waits"
        assert run.checkpoint()
    clock.advance(800)
    assert run.trigger() is None


def test_after_a_checkpoint_between_epochs_the_next_comes_with_an_epoch(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    """Else each row would wait for its checkpoint from the end of its epoch until the same part of the interval."""
    run = Run(store, tmp_path, clock, config=Checkpoints("unused", every="1s"))
    clock.advance(600)
    assert run.trigger() is None
    clock.advance(400)
    between = run.coordinator.trigger(Epoch(run.epoch), changed=False)
    assert between is not None
    run.deliver(between)
    assert run.coordinator.advance() == between
    clock.advance(600)
    assert not run.coordinator.is_due
    assert run.trigger() is not None


def test_a_checkpoint_between_epochs_that_failed_is_not_repeated_at_once(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    """An outage of the storage would use up the tolerable failures of an idle job within a second."""
    run = Run(store, tmp_path, clock, config=Checkpoints("unused", every="1s", tolerable_failures=3))
    clock.advance(1000)
    assert run.checkpoint()
    assert run.trigger() is None
    clock.advance(60_000)
    checkpoint = run.coordinator.trigger(Epoch(2), changed=False)
    assert checkpoint is not None
    run.coordinator.fail(checkpoint, "the storage is away")
    assert run.coordinator.advance() is None
    assert not run.coordinator.is_due
    assert run.trigger() is None, "nor with an epoch"
    clock.advance(1000)
    assert run.coordinator.is_due


def test_on_demand_only(store: FaultyStore, tmp_path: Path, clock: ManualClock) -> None:
    run = Run(store, tmp_path, clock, config=Checkpoints("unused"))
    clock.advance(10**9)
    assert run.trigger() is None
    wanted = [run.coordinator.request(), run.coordinator.request()]
    assert run.checkpoint() == 1
    assert [w.result(0) for w in wanted] == [1, 1]


def test_an_epoch_ends_with_a_checkpoint_that_could_not_begin_with_it(
    store: FaultyStore, tmp_path: Path, clock: ManualClock
) -> None:
    """The one before was in progress when it began."""
    run = Run(store, tmp_path, clock, config=Checkpoints("unused", every="400ms"))

    def end_epoch() -> CheckpointId | None:
        return run.coordinator.trigger(Epoch(run.epoch), changed=False, has_ended=True)

    clock.advance(400)
    first = run.begin()
    clock.advance(250)
    run.deliver(first)
    assert run.trigger() is None, "the first one is in progress"
    clock.advance(100)
    assert run.coordinator.advance() == first
    clock.advance(150)
    assert end_epoch() is None, "250 ms after the end of the epoch that the first one covers"
    assert run.trigger() is not None, "650 ms after its begin"
    clock.advance(250)
    run.deliver(CheckpointId(2))
    assert run.trigger() is None
    assert run.coordinator.advance() == 2
    clock.advance(370)
    assert end_epoch() == 3
    assert run.coordinator.unreported[0][0] == run.epoch
    run.deliver(CheckpointId(3))
    assert run.trigger() is None, "it covers an epoch that began 370 ms ago, and is in progress"
    assert run.coordinator.advance() == 3
    assert end_epoch() is None, "nothing has ended since"
