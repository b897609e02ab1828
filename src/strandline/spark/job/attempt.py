"""One run of a job under one generation, from its query's start to its end. A restart is a new attempt."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strandline.api.config import Checkpoints
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.retention import Holds
from strandline.control.announcements import tell
from strandline.control.status import SinkStatus, SourceStatus
from strandline.core.clock import Clock
from strandline.core.errors import SparkError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.core.settings import Settings
from strandline.format.manifest import Manifest, OperatorInfo
from strandline.keeper.lookups import LookupResult, LookupTable, look_up, table_of
from strandline.keeper.paths import Places
from strandline.snapshot.opening.deletion import release
from strandline.spark.base import auto_warmup
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.job.draining import Draining
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.job.failure_reporter import is_alive
from strandline.spark.job.sourcewatch import SourceWatch
from strandline.spark.job.timewatch import TimeWatch
from strandline.spark.keepers.fleet import Fleet
from strandline.spark.lower.plan import Plan
from strandline.spark.sources.cleaning import SourceCleaner
from strandline.spark.sources.kafka import KafkaCommits
from strandline.spark.sources.lag import SourceLag
from strandline.spark.sources.progress import SourceProgress

_LOOK_S = 0.01
_QUERY_LOOK_S = 0.2
_IDLE_S = 0.15
_FENCE_LOOK_S = 5.0
_UNSHOWN_S = 60.0
"""For how long a job that has come to its end waits for what it writes to."""


Check = Callable[[], object]
"""Looks at something and touches nothing; raises what stands against a start."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of a start: the snapshot to restore in place of the newest checkpoint, and what may be dropped."""

    url: str = field(default="", repr=False)
    """The URL of the snapshot to restore, which may contain a password; "" for the job's newest checkpoint."""
    claim: bool = False
    drop: tuple[str, ...] = ()
    again: str = ""
    """The name under which to restore a snapshot that was restored before."""
    reopen: bool = False
    """Whether a drained job may continue, with a restart of event time."""


@dataclass(frozen=True)
class Blueprint:
    """Everything an attempt needs that does not change between attempts."""

    name: str
    spark: SparkSession
    plan: Plan
    checkpoints: Checkpoints
    settings: Settings
    jobdir: JobDirectory
    places: Places
    trigger: dict[str, Any]
    clock: Clock
    options: StartOptions = StartOptions()
    holds: Holds = field(default_factory=Holds)
    """While it is held, no checkpoint of the job is subsumed: one is made a savepoint."""
    draining: Draining = field(default_factory=Draining)
    paused: threading.Event = field(default_factory=threading.Event)
    """Whether the run begins no epochs, in whatever attempt: it is about to go on in another way, or to end."""


@dataclass
class Attempt:
    """Watches and ends one run, which `Starting` has begun."""

    _b: Blueprint
    claim: Claim
    restored: Manifest | None
    restored_own: bool
    """Whether that is a checkpoint of the job's own, and nobody else's snapshot."""
    driver: EpochDriver
    coordinator: Coordinator
    _fleet: Fleet
    _sources: SourceProgress
    _cleaner: SourceCleaner
    _commits: KafkaCommits
    _watch: SourceWatch
    _cleanup: contextlib.ExitStack
    _lag: SourceLag
    _final: Future[CheckpointId] | None = field(default=None, init=False)
    _times: TimeWatch = field(init=False)
    _has_told: bool = field(default=False, init=False)
    _has_released: bool = field(default=False, init=False)
    _unshown_since: float = field(default=0.0, init=False)
    _finished_us: int | None = field(default=None, init=False)
    """When the source was found to have ended: timers that are set for later do not fire any more."""

    def __post_init__(self) -> None:
        driver = self.driver
        self._times = TimeWatch(
            self._b.name, driver.progress.late_rows, driver.watermarks.reached_us, driver.now_us
        )  # fmt: skip

    @property
    def query(self) -> StreamingQuery:
        """Spark's own query."""
        return self._watch.query

    @suppress_error_logs()
    def watch(self, is_over: Callable[[], bool]) -> bool:
        """Look after the run until it ends; return True if the source is finished, False if `is_over`."""
        with self._fleet.cancellable():
            return self._look_after(is_over)

    def _look_after(self, is_over: Callable[[], bool]) -> bool:
        looked, checked = 0.0, time.monotonic()
        while not is_over():
            if self.driver.failed.wait(_LOOK_S):
                assert self.driver.error is not None
                raise self.driver.error
            if self.driver.epoch_carries_trigger:
                self.coordinator.postpone()
            if (completed := self.coordinator.advance()) is not None:
                self._tell_checkpoint(completed)
                self._commits.completed(completed)
                self._cleaner.completed(self.coordinator.oldest_live, self.claim.check)
                self._release_claimed()
            self._sources.deliver(self._watch.has_looked)
            self._watch.check_clock()
            self._poll_if_idle()
            self._tell_first_epoch()
            now = time.monotonic()
            if now - checked > _FENCE_LOOK_S:
                checked = now
                # Without checkpoints, nothing else would tell that a newer driver has taken over.
                with contextlib.suppress(UnavailableError):
                    self.claim.check()
            if now - looked > _QUERY_LOOK_S:
                looked = now
                if not is_alive(self._b.spark.sparkContext):
                    # A query that waits for rows does not notice: it would wait for ever.
                    raise SparkError("Spark's session has been stopped")
                # Spark's thread may wait for tasks that wait for the executor.
                self._fleet.check_executors()
                self._times.check(self.driver.progress.late_rows, self.driver.watermarks.reached_us, self.driver.now_us)
                if self._finished_us is None and self._query_finished():
                    self._finished_us = self.driver.now_us
                is_at_rest = not self.driver.is_running and not self.driver.sealed.is_set()
                if is_at_rest and self._fleet.may_have_lost_one():
                    # Nobody else would ask it anything before the next epoch or checkpoint, which may be far.
                    self.driver.poll(may_trigger=False)
            if self._is_to_drain():
                if self._is_drained():
                    return True
                continue
            # While it is paused, timers wait that are to fire before the end.
            if self._finished_us is None or self.driver.paused.is_set():
                continue
            if not self.driver.tick(self._finished_us) and self._final_checkpoint_done():
                return True
        return False

    def _is_to_drain(self) -> bool:
        """Whether event time is to come to its end now, or has already: asked to, or since the sources have ended."""
        draining, driver, finished_us = self._b.draining, self.driver, self._finished_us
        if driver.drained:
            return True
        if draining.requested.is_set():
            # Else Spark's next epoch might come before it, again and again.
            driver.is_draining = True
            return True
        has_ended = draining.at_end and finished_us is not None and not driver.paused.is_set()
        return has_ended and not driver.has_due(finished_us)

    def _is_drained(self) -> bool:
        """Drain, unless that is done; return whether the run may end with what its last checkpoint has."""
        draining, restored = self._b.draining, self.restored
        if not self.driver.drained and not self.driver.drain():
            return False
        is_saved = restored is not None and restored.epoch == self.driver.progress.epoch
        is_done = self._is_all_shown if is_saved else self._final_checkpoint_done
        if draining.held.is_set() or not is_done():
            return False
        draining.done.set()
        return True

    def look_at_sources(self) -> list[SourceStatus]:
        """Return how far each source is, and what waits there."""
        return self._lag.look(self.query)

    def look_at_sinks(self) -> list[SinkStatus]:
        """Return what waits in sinks that write to other systems."""
        return [said for _, sink, _ in self._b.plan.sinks if (said := sink.status()) is not None]

    def table(self, name: str) -> LookupTable:
        """Return a table of state that can be looked into; raise NotFoundError, with what there is."""
        return table_of(self._operators, name)

    @cached_property
    def _operators(self) -> list[OperatorInfo]:
        return [operator.info(self._b.settings.backend) for operator in self.driver.operators]

    def look_up(self, table: LookupTable, key: Any) -> LookupResult:
        """Look up keys of a table with the keepers, in any thread."""
        return look_up(table, key, self._b.clock.now_ms() * 1000, self._fleet.look_up)

    def explain(self, error: BaseException) -> BaseException:
        """Return why the run failed, as far as its keepers can tell more of it than the error does."""
        return self._fleet.explain(error)

    def abort(self) -> None:
        """Have the thread that looks after the run wait for keepers no more: it is to end, and one may never answer."""
        if self.driver.is_running:
            self.driver.sealed.set()
            self._fleet.abort()

    @suppress_error_logs()
    def close(self, *, forget: bool) -> None:
        """End the run and its keepers; with `forget`, remove their local copies too."""
        end(self._b, "the run ended", self.driver, self.query, self.coordinator, self._fleet, self._cleanup, forget)
        self._b.places.forget_failures(self.claim.generation)

    # -- watching

    def _tell_first_epoch(self) -> None:
        done = self.driver.progress
        if not self._has_told and done.epochs:
            self._has_told = True
            auto_warmup.note_epoch()
            took = f"{done.last_rows:,} rows in {done.last_epoch_ms / 1000:.1f} s"
            tell(f"job '{self._b.name}': epoch {done.epoch} is the first to be done, {took}")

    def _tell_checkpoint(self, number: CheckpointId) -> None:
        for stats in self.coordinator.history:
            if stats.checkpoint == number:
                size = f"{stats.total_bytes:,} bytes, {stats.uploaded_bytes:,} of them new"
                what = f"checkpoint {number} is complete, of epoch {stats.epoch}: {size}"
                tell(f"job '{self._b.name}': {what}, in {stats.end_to_end_ms} ms", detail=True)
                if stats.frees:
                    what = f"stands on its own with checkpoint {number}: it needs nothing of {stats.frees} any more"
                    tell(f"job '{self._b.name}' {what}")

    def _poll_if_idle(self) -> None:
        """While no epoch runs, hear how a checkpoint goes, and begin one that is due."""
        idle_s = time.monotonic() - self.driver.last_contact
        if idle_s < _IDLE_S or self.driver.is_running:
            return
        if self.driver.watermarks.may_be_idle:
            silent_us = self._watch.silent_since(self.driver.steady_us)
            if silent_us is not None:
                self.driver.look(silent_us)
        by_us = self._finished_us
        if self.driver.has_due(by_us) and not self._watch.is_batch_coming(idle_s) and self.driver.tick(by_us):
            return
        due = self.coordinator.is_due
        if due or self.coordinator.pending is not None:
            self.driver.poll(may_trigger=due)

    def _release_claimed(self) -> None:
        """A savepoint that was given to the job goes, now that the job has a checkpoint of its own."""
        if not self._has_released:
            b = self._b
            self._has_released = release(b.jobdir, self.claim, b.checkpoints.storage_options, fsync=b.settings.fsync)

    def _query_finished(self) -> bool:
        if self.query.isActive:
            return False
        if self.driver.error is not None:
            raise self.driver.error
        return self._watch.has_ended()

    def _final_checkpoint_done(self) -> bool:
        """A source that has ended leaves a checkpoint of everything, so that sinks show all."""
        if self._final is None:
            self._final = self.coordinator.request()
        if not self._final.done():
            return False
        final = self._final.result()
        if not self._is_all_shown():
            return False
        self._final = None
        # A timer may have fired since it was triggered: when a source is idle for long enough, its watermark moves.
        return any(c.checkpoint == final and c.epoch == self.driver.progress.epoch for c in self.coordinator.history)

    def _is_all_shown(self) -> bool:
        """Whether the sinks show what there is; where one cannot, the run does not end as if it had."""
        if self.coordinator.shows_all:
            return True
        now = time.monotonic()
        self._unshown_since = self._unshown_since or now
        if now - self._unshown_since > _UNSHOWN_S:
            raise UnavailableError(
                f"job '{self._b.name}' has come to its end, and what it writes to does not take its last rows",
                hint="they wait in the checkpoints' storage, and are written when the job is started again",
                is_final=True,
            )
        return False


def end(
    blueprint: Blueprint,
    why: str,
    driver: EpochDriver | None,
    query: StreamingQuery | None,
    coordinator: Coordinator | None,
    fleet: Fleet | None,
    cleanup: contextlib.ExitStack,
    forget: bool = False,
) -> None:
    """End what there is of a run, whatever its parts are doing: what came after its last checkpoint is forgotten.

    What fails on the way does not hold up the rest.
    """
    if driver is not None:
        # Before anything else: whatever Spark's thread still does, it begins no epoch and stages nothing more. Spark
        # may have begun though whoever asked it to was interrupted before there was a query.
        driver.sealed.set()
    if query is not None:
        with _passing_over():
            query.stop()
    if coordinator is not None:
        with _passing_over():
            coordinator.close(why)
            coordinator.advance()
    if fleet is not None:
        fleet.stop(forget=forget)
    for _, sink, _ in blueprint.plan.sinks:
        with _passing_over():
            sink.close()
    with _passing_over():
        cleanup.close()


@contextlib.contextmanager
def _passing_over() -> Iterator[None]:
    """Pass over what fails within, be it a Rust library's panic, which is no Exception."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass
