"""Where the age of a checkpoint's rows comes from: the phases from the begin of their epoch until a sink shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.api.config import Checkpoints
from strandline.checkpoint import coordinator as coordinator_module
from strandline.checkpoint.history import Phases, SinkStats
from strandline.core.ids import CheckpointId, Epoch
from strandline.format.manifest import Manifest, SinkInfo
from tests.checkpoint.helpers import Run
from tests.clock import ManualClock
from tests.storage.faulty import FaultyStore


class Sinks:
    """Sinks of a run: each takes some time to show its rows, unless its target is away."""

    def __init__(self, run: Run, clock: ManualClock, **took_ms: int) -> None:
        self._run, self._clock, self._took_ms = run, clock, took_ms
        self.away: set[str] = set()
        self.meanwhile: Callable[[], object] = lambda: None
        run.coordinator._commit_sinks = self.commit

    def commit(self, manifest: Manifest) -> bool:
        self.meanwhile()
        for name, took_ms in self._took_ms.items():
            self._clock.advance(took_ms)
            if name not in self.away and any(sink.pending for sink in manifest.sinks if sink.name == name):
                self._run.coordinator.note_visible(name)
        return bool(self.away)


@pytest.fixture
def run(store: FaultyStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Run:
    run = Run(store, tmp_path, clock, config=Checkpoints("unused", every="1s", tolerable_failures=None))
    publish = coordinator_module.publish

    def publish_slowly(*args: object) -> None:
        publish(*args)  # type: ignore[arg-type]
        clock.advance(20)

    monkeypatch.setattr(coordinator_module, "publish", publish_slowly)
    return run


def deliver(run: Run, clock: ManualClock, checkpoint: CheckpointId, *rows: str) -> None:
    """Let an epoch end after 300 ms, and its checkpoint's parts come until 400 ms later."""
    clock.advance(300)
    sinks = [SinkInfo(name=name, pending=[f"{name}-{checkpoint}"] * (name in rows)) for name in ("out", "other")]
    run.coordinator.add_sinks(checkpoint, sinks)
    clock.advance(150)
    run.coordinator.add_source(checkpoint, None)
    for partition in (0, 1):
        clock.advance(125)
        run.coordinator.report("detect", partition, checkpoint, run.snapshot("detect", partition, checkpoint))
    # The coordinator looks for the parts a moment later.
    clock.advance(5)


def test_phases_of_a_checkpoint(run: Run, clock: ManualClock) -> None:
    Sinks(run, clock, out=40, other=60)
    clock.advance(600)
    assert run.trigger() is None, "the first epoch that the checkpoint covers"
    clock.advance(500)
    checkpoint = run.begin()
    # A step of the clock changes nothing.
    clock.set_by(-3_600_000)
    deliver(run, clock, checkpoint, "out", "other")
    (stats,) = run.coordinator.history
    assert (stats.phases, stats.sinks) == (None, ())
    assert run.coordinator.advance() == checkpoint
    (stats,) = run.coordinator.history
    assert stats.phases == Phases(waits_ms=500, epoch_ms=300, durable_ms=400, published_ms=25)
    assert stats.sinks == (SinkStats("out", 40, 1265), SinkStats("other", 100, 1325))


def test_a_checkpoint_between_epochs_waits_and_has_no_epoch(run: Run, clock: ManualClock) -> None:
    Sinks(run, clock, out=40)
    clock.advance(600)
    assert run.trigger() is None
    clock.advance(2000)
    checkpoint = run.coordinator.trigger(Epoch(1), changed=False)
    assert checkpoint is not None
    run.deliver(checkpoint)
    assert run.coordinator.advance() == checkpoint
    (stats,) = run.coordinator.history
    assert stats.phases == Phases(waits_ms=2000, epoch_ms=0, durable_ms=0, published_ms=20)
    assert stats.sinks == (SinkStats("out", 40, 2060),)


def test_a_sink_without_rows_shows_none_and_a_checkpoint_without_changes_has_waited_for_none(
    run: Run, clock: ManualClock
) -> None:
    Sinks(run, clock, out=40, other=60)
    clock.advance(1000)
    checkpoint = run.begin()
    deliver(run, clock, checkpoint, "other")
    run.coordinator.advance()
    clock.advance(60_000)
    wanted = run.coordinator.request()
    checkpoint = run.coordinator.trigger(Epoch(1), changed=False)
    assert checkpoint is not None
    deliver(run, clock, checkpoint)
    run.coordinator.advance()
    assert wanted.result(0) == checkpoint
    first, second = run.coordinator.history
    assert [sink.name for sink in first.sinks] == ["other"]
    assert (second.phases, second.sinks) == (Phases(0, 300, 400, 25), ())


def test_rows_of_a_failed_checkpoint_have_waited_since_their_epoch(run: Run, clock: ManualClock) -> None:
    Sinks(run, clock, out=40)
    clock.advance(1000)
    failed = run.begin()
    run.coordinator.fail(failed, "the storage is away")
    assert run.coordinator.advance() is None
    clock.advance(5000)
    checkpoint = run.begin()
    deliver(run, clock, checkpoint, "out")
    run.coordinator.advance()
    first, second = run.coordinator.history
    assert first.phases is None
    assert second.phases == Phases(waits_ms=5000, epoch_ms=300, durable_ms=400, published_ms=25)
    assert second.sinks == (SinkStats("out", 40, 5765),)


def test_rows_that_waited_for_their_target_are_as_old_as_the_oldest_of_them(run: Run, clock: ManualClock) -> None:
    sinks = Sinks(run, clock, out=40, other=60)
    sinks.away.add("other")
    for _ in range(2):
        clock.advance(1000)
        checkpoint = run.begin()
        deliver(run, clock, checkpoint, "out", "other")
        assert run.coordinator.advance() == checkpoint
    sinks.away.clear()
    clock.advance(10_000)
    run.coordinator.advance()
    first, second = run.coordinator.history
    assert [sink.name for sink in first.sinks] == ["out"]
    # 825 ms for the first checkpoint, then 1000 and 825 ms, and for the second attempt 10,000 and 100 ms.
    assert [sink for sink in second.sinks if sink.name == "other"] == [SinkStats("other", 10_200, 12_750)]


def test_a_checkpoint_that_is_triggered_meanwhile_gets_none_of_the_times(run: Run, clock: ManualClock) -> None:
    sinks = Sinks(run, clock, out=40)

    def begin_next() -> None:
        following = run.begin()
        run.coordinator.report("detect", 0, following, run.snapshot("detect", 0, following))

    sinks.meanwhile = begin_next
    clock.advance(1000)
    checkpoint = run.begin()
    deliver(run, clock, checkpoint, "out")
    clock.advance(1000)
    assert run.coordinator.advance() == checkpoint
    first, second = run.coordinator.history
    assert first.sinks == (SinkStats("out", 40, 1765),)
    assert (second.status, second.acknowledged, second.sinks) == ("in_progress", 1, ())
