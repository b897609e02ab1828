"""What takes long or comes at the wrong time: storage in each phase of a checkpoint, a supervisor that stalls, clocks that jump.

The job goes on meanwhile, and nobody can tell from its results.
`pytest tests/spark/test_faults_slow.py -m "soak or not soak" -k seed017` repeats a seed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.core.clock import SystemClock
from tests.soak import seeds
from tests.spark import timed
from tests.spark.harness import Case, Reader, eventually, fired, keepers_armed, settle

pytestmark = pytest.mark.spark

DRIVERS = [
    "start.save.before",
    "upload.source",
    "checkpoint.publish.before",
    "checkpoint.publish.after",
    "checkpoint.commit_sinks.before",
    "sink.intent_written",
    "sink.file_shown",
    "sink.shown_recorded",
    "checkpoint.commit_sinks.after",
    "checkpoint.subsume.before",
    "checkpoint.subsume.manifest_deleted",
    "checkpoint.subsume.after",
    "sink.staged",
    "epoch.done",
]
KEEPERS = ["keeper.persist.before", "keeper.upload.before", "upload.file", "keeper.upload.after"]
SLOW_S = 1.5


@pytest.mark.parametrize("seed", seeds(range(1), soak=range(1, 31)))
@pytest.mark.long
def test_storage_that_is_slow_in_any_phase(spark: Any, case: Case, seed: int) -> None:
    """Slower than a checkpoint may take, in two cases of three: then checkpoints fail, and others come."""
    case.seed, case.short, rng = seed, not seed, random.Random(seed)
    driver, keeper = rng.sample(DRIVERS, 3), rng.sample(KEEPERS, 1)
    limits: dict[str, Any] = rng.choice(
        [{}, {"timeout": "1s", "tolerable_failures": None}, {"timeout": "1s", "tolerable_failures": 1}]
    )
    been: set[str] = set()

    def slow(name: str) -> None:
        been.add(name)
        time.sleep(SLOW_S)

    for name in driver:
        # A job's start is kept once.
        at = 1 if name.startswith("start") else rng.randint(1, 3)
        failpoints.arm(name, lambda name=name: slow(name), at=at)  # type: ignore[misc]
    armed = ";".join(f"{name}=sleep:{SLOW_S}@{rng.randint(1, 3)}" for name in keeper)
    checkpoints = case.checkpoints("200ms", retain=rng.randint(1, 2), max_concurrent=rng.randint(1, 3), **limits)
    job = case.job(spark, checkpoints=checkpoints)
    directory = case.root / "fired"
    case.add(2)
    with Reader(case), keepers_armed(spark, directory, armed), job.start(spark) as run:

        def all_were_slow() -> bool:
            case.add(1)
            run.process_all_available(120)
            return been == set(driver) and fired(directory) == set(keeper)

        eventually(all_were_slow, f"seed {seed}: all of {driver + keeper} were slow")
        status = settle(run)
        case.check()
        if limits.get("tolerable_failures", 0) is None or not limits:
            assert status.restarts == 0, f"seed {seed}: {status.last_failure}"


@pytest.mark.parametrize("seed", seeds([], soak=range(9)))
def test_a_supervisor_that_stalls_until_spark_has_forgotten(spark: Any, case: Case, seed: int) -> None:
    """Spark deletes its log of a batch that a checkpoint needs: the checkpoint has it, and completes."""
    case.seed, rng = seed, random.Random(seed)
    retained, stalls = rng.randint(3, 10), []
    run: sl.Run

    def stall() -> None:
        """Runs in the supervisor's thread, until a checkpoint that waits for it is older than Spark's log."""
        coordinator = run._supervisor.attempt.coordinator  # type: ignore[union-attr]

        def is_forgotten() -> bool:
            pending = coordinator._in_flight.newest
            return pending is not None and run.status().epoch > pending.epoch + retained + 2

        eventually(is_forgotten, f"seed {seed}: a checkpoint waits for what Spark has deleted")
        stalls.append(coordinator.pending)

    spark.conf.set("spark.sql.streaming.minBatchesToRetain", str(retained))
    try:
        case.add(1)
        checkpoints = case.checkpoints("100ms")
        with Reader(case), case.job(spark, checkpoints=checkpoints, restart=sl.Restart.never()).start(spark) as run:
            settle(run)
            failpoints.arm("checkpoint.subsume.before", stall, at=rng.randint(1, 3))

            def has_stalled() -> bool:
                case.add(2)
                run.process_all_available(120)
                return bool(stalls)

            eventually(has_stalled, f"seed {seed}: the supervisor stalled")
            assert settle(run).restarts == 0
            (stalled,) = stalls
            done = {c.checkpoint: c.status for c in run.checkpoints()}
            assert done[stalled] == "completed"
            case.check()
    finally:
        spark.conf.unset("spark.sql.streaming.minBatchesToRetain")


class Jumping:
    """A clock that jumps by hours, forwards and back, at every tenth look or so."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._lock = threading.Lock()
        self._offset_ms = 0
        self.forwards = self.backwards = 0

    def __call__(self, clock: SystemClock) -> int:
        with self._lock:
            if self._rng.random() < 0.1:
                before, self._offset_ms = self._offset_ms, self._rng.randint(-10, 10) * 3_600_000
                self.forwards += self._offset_ms > before
                self.backwards += self._offset_ms < before
            return time.time_ns() // 1_000_000 + self._offset_ms


@pytest.fixture
def jumping(monkeypatch: Any, request: Any) -> Iterator[Jumping]:
    """The driver's clock, which the keepers have their time from."""
    clock = Jumping(random.Random(request.node.name))
    monkeypatch.setattr(SystemClock, "now_ms", lambda self: clock(self))
    yield clock
    assert clock.forwards
    assert clock.backwards


@pytest.mark.parametrize("seed", seeds([], soak=range(13)))
def test_clocks_that_jump_change_nothing_in_event_time(spark: Any, case: Case, jumping: Jumping, seed: int) -> None:
    source, rng = timed.Input(case.root, seed), random.Random(seed)
    source.add()
    with timed.build(spark, case.root, case.local_dir).start(spark) as run:
        source.add(rng.choice([5, 60]))
        settle(run)
        os.kill(rng.choice(run.status().keepers).pid, signal.SIGKILL)
        source.add()
        assert settle(run).restarts >= 1
    source.end()
    with timed.build(spark, case.root, case.local_dir).start(spark) as run:
        settle(run)
        assert run.status().late_rows == 0
    shown, expected = timed.shown(case.root), source.expected()
    for sink in expected:
        assert shown[sink] == expected[sink], f"seed {seed}: {sink}"


@pytest.mark.parametrize("seed", seeds([], soak=range(1, 9)))
def test_clocks_that_jump_change_nothing_in_a_chain(spark: Any, case: Case, jumping: Jumping, seed: int) -> None:
    case.seed, rng = seed, random.Random(seed)
    case.add(2)
    with Reader(case):
        for _ in range(2):
            with case.job(spark, checkpoints=case.checkpoints(retain=rng.randint(1, 2))).start(spark) as run:
                settle(run)
                case.add(rng.randint(1, 4))
                os.kill(rng.choice(run.status().keepers).pid, signal.SIGKILL)
                case.add(1)
                case.finish(run)
