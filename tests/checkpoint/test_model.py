"""Whatever happens, the newest published manifest that counts can be restored in full, byte for byte.

A Hypothesis state machine over drivers (also replaced ones that go on), uploads, reports, time-outs, crashes,
garbage collection and a store that fails before, after and in the middle of its work. A second one has its store in a
local directory, where processes are killed between any two changes of the disk, and the power is cut.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.checkpoint import parallel
from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.gc import execute, plan
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import choose
from strandline.core import failpoints, ids
from strandline.core.errors import FencedError, StrandlineError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.format.manifest import PartitionInfo
from strandline.storage.base import ObjectStore
from strandline.storage.local import LocalStore
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore
from tests.checkpoint.helpers import HOUR_MS, Run, assert_restorable, every_epoch
from tests.clock import ManualClock
from tests.crashing import Crash, crash
from tests.soak import examples
from tests.storage.faulty import FaultyStore
from tests.storage.forgetful import ForgetfulDisk, Killed

TIMEOUT_MS = 10_000
STEPS = (
    "checkpoint.publish.before", "checkpoint.publish.after", "checkpoint.subsume.in_flight", "checkpoint.commit_sinks.before",
    "checkpoint.commit_sinks.after", "checkpoint.subsume.before", "checkpoint.subsume.manifest_deleted",
    "checkpoint.subsume.after",
)  # fmt: skip
Report = tuple[Run, str, int, CheckpointId, PartitionInfo]


class Checkpoints(RuleBasedStateMachine):
    """`zombie` is a driver that was replaced and does not know it."""

    @initialize(
        seed=st.integers(0, 2**32),
        rate=st.sampled_from([0.0, 0.1, 0.3]),
        retain=st.integers(1, 3),
        max_concurrent=st.integers(1, 3),
    )
    def start(self, seed: int, rate: float, retain: int, max_concurrent: int) -> None:
        # One thread and seeded names: the same steps must always do the same.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(parallel, "_THREADS", 1)
        self.patch.setattr(ids, "_random", random.Random(seed))
        self.scratch = tempfile.TemporaryDirectory()
        self.tmp = Path(self.scratch.name)
        self.clock = ManualClock()
        self.faulty = FaultyStore(self._open(), seed=seed, rate=rate, clock=self.clock)
        self.store = RetryingStore(self.faulty, attempts=2, sleep=lambda s: None, rng=random.Random(seed))
        self.truth = JobDirectory(self._look(), "job")
        self.config = every_epoch(
            timeout=f"{TIMEOUT_MS}ms", retain=retain, tolerable_failures=None, max_concurrent=max_concurrent
        )
        self.seed = seed
        self.runs = 0
        self.everyone: list[Run] = []
        self.zombie: Run | None = None
        self.run = self._start()
        self.late: list[Report] = []

    def _open(self) -> ObjectStore:
        self.opened = open_store("memory://")
        return self.opened

    def _look(self) -> ObjectStore:
        """Return a store in which looking changes nothing."""
        return self.opened

    def _start(self, first_id: int = 0) -> Run:
        # A restart is tried again, each time with a new claim; what fails for ever is no whim of the store: where a third
        # of its answers are missing, most starts fail, and thirty in a row have.
        for last in [False] * 300 + [True]:
            self.runs += 1
            try:
                run = Run(
                    self.store, self.tmp, self.clock, config=self.config, seed=self.seed + self.runs, first_id=first_id,
                    source_bytes=66_000,
                )  # fmt: skip
            except StrandlineError:
                if last:
                    raise
            else:
                self.everyone.append(run)
                break
        return run

    def _driver(self, zombie: bool) -> Run:
        return self.zombie if zombie and self.zombie else self.run

    @rule(zombie=st.booleans())
    def trigger(self, zombie: bool) -> None:
        self._driver(zombie).trigger()

    @rule(
        zombie=st.booleans(),
        which=st.integers(0, 2),
        partition=st.integers(0, 1),
        deliver=st.sampled_from(["now", "late", "twice", "fail"]),
    )
    def snapshot(self, zombie: bool, which: int, partition: int, deliver: str) -> None:
        run = self._driver(zombie)
        if not run.coordinator.in_flight:
            return
        checkpoint = run.coordinator.in_flight[which % len(run.coordinator.in_flight)]
        run.change("detect", partition)
        try:
            info = run.snapshot("detect", partition, checkpoint)
        except StrandlineError as error:
            if deliver == "fail":
                run.coordinator.report_failure("detect", partition, checkpoint, str(error))
            return
        report = (run, "detect", partition, checkpoint, info)
        if deliver in ("late", "twice"):
            self.late.append(report)
        if deliver != "late":
            self._deliver(report)

    @precondition(lambda self: self.late)
    @rule(which=st.integers(0, 99))
    def late_report(self, which: int) -> None:
        self._deliver(self.late.pop(which % len(self.late)))

    def _deliver(self, report: Report) -> None:
        run, uid, partition, checkpoint, info = report
        run.coordinator.report(uid, partition, checkpoint, info)

    @rule(zombie=st.booleans(), which=st.integers(0, 2))
    def rest(self, zombie: bool, which: int) -> None:
        run = self._driver(zombie)
        if run.coordinator.in_flight:
            try:
                run.deliver_rest(run.coordinator.in_flight[which % len(run.coordinator.in_flight)])
            except StrandlineError:
                pass

    @rule(zombie=st.booleans())
    def close(self, zombie: bool) -> None:
        self._driver(zombie).coordinator.close("because")

    @rule(zombie=st.booleans(), by_ms=st.sampled_from([100, TIMEOUT_MS]))
    def advance(self, zombie: bool, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self._advance(self._driver(zombie))

    @rule()
    def whole_checkpoint(self) -> None:
        """The usual course of things, so that histories get long."""
        run = self.run
        self._advance(run)
        checkpoint = run.trigger() or run.coordinator.pending
        if checkpoint is None:
            return
        try:
            run.deliver(checkpoint)
        except StrandlineError:
            return
        self._advance(run)

    def _advance(self, run: Run) -> None:
        before = len(run.committed)
        try:
            run.coordinator.advance()
        except FencedError:
            assert run is not self.run, "only a driver that was replaced is fenced"
            self.zombie = None if run is self.zombie else self.zombie
        except StrandlineError:
            if run is self.run:
                self.restart()
        if run is not self.run and self.run.choice.manifest is not None:
            late = [c for c in run.committed[before:] if c > self.run.restored.checkpoint]
            assert not late, "a replaced driver committed what its successor does not go on from"

    @rule(step=st.sampled_from(STEPS), at=st.integers(1, 2))
    def crash_while_advancing(self, step: str, at: int) -> None:
        failpoints.arm(step, crash, at=at)
        try:
            self.whole_checkpoint()
        except Crash:
            self.late = [r for r in self.late if r[0] is not self.run]
            self.run = self._start()
        finally:
            failpoints.disarm_all()

    @rule(step=st.sampled_from(STEPS[:3]))
    def replaced_while_advancing(self, step: str) -> None:
        """The worst moment to be replaced: the checks are passed, the write is on its way."""
        old = self.run

        def replace() -> None:
            self.run = self._start()

        failpoints.arm(step, replace)
        try:
            self.whole_checkpoint()
        finally:
            failpoints.disarm_all()
        if self.run is not old:
            self.zombie = old

    @rule()
    def restart(self) -> None:
        """A restart in the same process: late reports of the old run reach the new one."""
        old = self.run
        self.run = self._start(old.coordinator.next_id)
        self.late = [(self.run if r[0] is old else r[0], *r[1:]) for r in self.late]

    @rule()
    def replaced(self) -> None:
        self.zombie, self.run = self.run, self._start()

    @rule(grace_ms=st.sampled_from([TIMEOUT_MS * 100, HOUR_MS]))
    def collect_garbage(self, grace_ms: int) -> None:
        try:
            execute(plan(JobDirectory(self.store, "job"), self.clock, grace_ms))
        except UnavailableError:
            pass  # Any other error says that a live checkpoint lost something.

    @rule()
    def long_pause(self) -> None:
        """Longer than the grace age; what was pending by then has timed out."""
        self.clock.advance(TIMEOUT_MS)
        for run in filter(None, (self.zombie, self.run)):
            self._advance(run)
        self.late.clear()
        self.clock.advance(2 * HOUR_MS)

    @invariant()
    def newest_manifest_is_restorable(self) -> None:
        if not hasattr(self, "run"):
            return
        catalog = read_catalog(self.truth)
        for manifest in catalog.live.values():
            assert_restorable(self.truth, manifest)
        found = choose(self.truth).manifest
        assert (found.checkpoint if found else None) == max(catalog.live, default=None)
        confirmed = self.run.coordinator.confirmed
        if confirmed is not None:
            assert found is not None, "a confirmed checkpoint is gone"
            assert found.checkpoint >= confirmed.checkpoint
        # Of drivers that are no more, too.
        committed = max((checkpoint for run in self.everyone for checkpoint in run.committed), default=0)
        assert (found.checkpoint if found else 0) >= committed, "what sinks have made visible must not be forgotten"

    def teardown(self) -> None:
        failpoints.disarm_all()
        if hasattr(self, "scratch"):
            self.scratch.cleanup()
            self.patch.undo()


TestCheckpoints = Checkpoints.TestCase
TestCheckpoints.settings = examples(30, stateful_step_count=40, suppress_health_check=list(HealthCheck))


class CheckpointsOnDisk(Checkpoints):
    """In a local directory. What was not synced is lost with the power, as far as chance wants."""

    def _open(self) -> ObjectStore:
        root = self.tmp / "disk"
        root.mkdir()
        self.disk = ForgetfulDisk(root)
        return LocalStore(root / "store", disk=self.disk)

    def _look(self) -> ObjectStore:
        return LocalStore(self.tmp / "disk" / "store", fsync=False)

    @rule(seed=st.integers(0, 2**32))
    def power_cut(self, seed: int) -> None:
        """Nobody survives, and nothing that was not synced."""
        self.disk.power_cut(random.Random(seed))
        self.zombie = None
        self.late.clear()
        self.run = self._start()

    @rule(step=st.sampled_from(("upload.file", "upload.source", *STEPS)), seed=st.integers(0, 2**32))
    def power_cut_while_advancing(self, step: str, seed: int) -> None:
        failpoints.arm(step, crash)
        try:
            self.whole_checkpoint()
        except Crash:
            self.power_cut(seed)
        finally:
            failpoints.disarm_all()

    @rule(
        who=st.sampled_from(["driver", "successor", "collector"]),
        kill_in=st.integers(1, 100),
        seed=st.one_of(st.none(), st.integers(0, 2**32)),
    )
    def killed_while_writing(self, who: str, kill_in: int, seed: int | None) -> None:
        """Somebody is killed between two changes of the disk, or in the middle of one; maybe the power is cut then."""
        self.disk.kill_in(kill_in)
        try:
            {"driver": self.whole_checkpoint, "successor": self.restart, "collector": self._collect}[who]()
        except Killed:
            self.disk.revive()
            if seed is not None:
                self.power_cut(seed)
            elif who != "collector":
                self.late = [r for r in self.late if r[0] is not self.run]
                self.run = self._start()
        self.disk.revive()

    def _collect(self) -> None:
        self.collect_garbage(HOUR_MS)


TestCheckpointsOnDisk = CheckpointsOnDisk.TestCase
TestCheckpointsOnDisk.settings = examples(15, stateful_step_count=40, suppress_health_check=list(HealthCheck))
