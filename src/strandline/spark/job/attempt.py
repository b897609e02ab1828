"""Attempt: one run of a job under one generation, from the start of its query to its end."""

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
from strandline.api.telemetry import Telemetry
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.retention import Holds
from strandline.control.announcements import tell
from strandline.control.events import CheckpointEnd, EpochsEnd, EventLog
from strandline.control.profile import PartitionProfile
from strandline.control.status import SinkStatus, SourceStatus
from strandline.core.clock import Clock
from strandline.core.errors import SparkError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.core.settings import Settings
from strandline.format.manifest import Manifest, OperatorInfo
from strandline.keeper.lookups import FirstKeys, LookupResult, LookupTable, list_first, look_up, table_of, tables_of
from strandline.keeper.paths import Places
from strandline.snapshot.opening.deletion import release
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.session import keep_accepting_calls
from strandline.spark.job.draining import Draining
from strandline.spark.job.epochlog import FailureRecorder
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.job.failure_reporter import is_alive
from strandline.spark.job.sourcewatch import SourceWatch
from strandline.spark.job.timewatch import TimeWatch
from strandline.spark.keepers.fleet import Fleet
from strandline.spark.keepers.placement import Placement
from strandline.spark.lower.plan import Plan
from strandline.spark.sources.cleaning import SourceCleaner
from strandline.spark.sources.kafka import KafkaCommits
from strandline.spark.sources.lag import SourceLag
from strandline.spark.sources.progress import SourceProgress
from strandline.spark.sources.tableerrors import explain_table_error

_POLL_S = 0.01
_QUERY_CHECK_S = 0.2
_IDLE_S = 0.15
_COLLECT_S = 0.02
_STANDBY_S = 2.0
"""The interval of polls that ask standbys whether they have the newest checkpoint."""
_FENCE_CHECK_S = 5.0
_EPOCHS_S = 10.0
"""The interval of events of epochs: what a kill leaves out."""
_DELIVERY_TIMEOUT_S = 60.0
"""How long a finished job waits for the targets of its sinks."""


Check = Callable[[], object]
"""A check before a start, which changes nothing; raises an error if the job cannot start."""


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
    from_now: tuple[str, ...] = ()
    """Uids of aggregations of views whose new aggregates may begin empty."""


@dataclass(frozen=True)
class Blueprint:
    """The configuration and components that all attempts of a run share."""

    name: str
    spark: SparkSession
    plan: Plan
    checkpoints: Checkpoints
    settings: Settings
    jobdir: JobDirectory
    places: Places
    trigger: dict[str, Any]
    clock: Clock
    events: EventLog
    telemetry: Telemetry | None = None
    options: StartOptions = StartOptions()
    placement: Placement = field(default_factory=Placement)
    """The hosts of partitions, from one attempt to the next."""
    holds: Holds = field(default_factory=Holds)
    """While held, no checkpoint of the job is subsumed, so that a savepoint can be made of it."""
    draining: Draining = field(default_factory=Draining)
    paused: threading.Event = field(default_factory=threading.Event)
    """While set, no attempt begins an epoch: the run is about to end, or to continue with other options."""


@dataclass
class Attempt:
    """Watches and ends an attempt, which `Starting` has begun."""

    _b: Blueprint
    claim: Claim
    restored: Manifest | None
    restored_own: bool
    """Whether `restored` is a checkpoint of this job."""
    driver: EpochDriver
    coordinator: Coordinator
    _fleet: Fleet
    _sources: SourceProgress
    _cleaner: SourceCleaner
    _commits: KafkaCommits
    _watch: SourceWatch
    _cleanup: contextlib.ExitStack
    _lag: SourceLag
    _failures: FailureRecorder
    _profiling: threading.Lock = field(default_factory=threading.Lock, init=False)
    _final: Future[CheckpointId] | None = field(default=None, init=False)
    _times: TimeWatch = field(init=False)
    _has_reported: bool = field(default=False, init=False)
    _recorded_s: float = field(default=0.0, init=False)
    """When the last event of epochs was written."""
    _has_released: bool = field(default=False, init=False)
    _undelivered_since: float = field(default=0.0, init=False)
    _finished_us: int | None = field(default=None, init=False)
    """The time at which the end of the sources was detected: timers for later do not fire."""

    def __post_init__(self) -> None:
        driver = self.driver
        self._times = TimeWatch(
            self._b.name, driver.progress.late_rows, driver.watermarks.reached_us, driver.now_us
        )  # fmt: skip

    @property
    def query(self) -> StreamingQuery:
        """Spark's own query."""
        return self._watch.query

    @property
    def has_standbys(self) -> bool:
        """Whether partitions are to have standbys."""
        return bool(self._b.checkpoints.standbys)

    @suppress_error_logs()
    def watch(self, is_over: Callable[[], bool]) -> bool:
        """Watch the run until it ends; return True if the source is finished, False if `is_over`."""
        with self._fleet.cancellable():
            return self._watch_until(is_over)

    def _watch_until(self, is_over: Callable[[], bool]) -> bool:
        looked, checked, collected = 0.0, time.monotonic(), 0.0
        while not is_over():
            # Spark's thread may be blocked by tasks that wait for a lost executor.
            self._fleet.check_executors()
            if self.driver.failed.wait(_POLL_S):
                assert self.driver.error is not None
                raise self.driver.error
            is_pending = self.coordinator.pending is not None
            # Timers may trigger a checkpoint before the sources have begun, and their first listing may take long.
            if self.driver.epoch_carries_trigger or (is_pending and not self._have_sources_begun()):
                self.coordinator.postpone()
            if is_pending and time.monotonic() - collected > _COLLECT_S:
                self.driver.collect_reports()
                collected = time.monotonic()
            if (completed := self.coordinator.advance()) is not None:
                self._report_checkpoint(completed)
                self._commits.completed(completed)
                self._cleaner.completed(self.coordinator.oldest_live, self.claim.check)
                self._release_claimed()
            self._record_ends()
            self._sources.deliver(self._watch.has_looked)
            self._watch.check_clock()
            self._poll_if_idle()
            self._report_first_epoch()
            now = time.monotonic()
            if now - checked > _FENCE_CHECK_S:
                checked = now
                # Without checkpoints, only this check detects that a newer driver owns the job.
                with contextlib.suppress(UnavailableError):
                    self.claim.check()
            if now - looked > _QUERY_CHECK_S:
                looked = now
                if not is_alive(self._b.spark.sparkContext):
                    # A query that waits for rows would wait for ever.
                    raise SparkError("Spark's session has been stopped")
                keep_accepting_calls(self._b.spark)
                self._watch.check_logs()
                self._times.check(self.driver.progress.late_rows, self.driver.watermarks.reached_us, self.driver.now_us)
                if self._finished_us is None and self._query_finished():
                    self._finished_us = self.driver.now_us
                is_at_rest = not self.driver.is_running and not self.driver.sealed.is_set()
                if is_at_rest and self._fleet.may_have_lost_one():
                    # The next epoch or checkpoint, which would detect it, may be far away.
                    self.driver.poll(may_trigger=False)
            if self._is_to_drain():
                if self._is_drained():
                    return True
                continue
            # While the run is paused, timers that must fire before the end wait.
            if self._finished_us is None or self.driver.paused.is_set():
                continue
            if not self.driver.tick(self._finished_us) and self._final_checkpoint_done():
                return True
        return False

    def _is_to_drain(self) -> bool:
        """Whether to drain: by request, at the end of the sources, or because the attempt has drained already."""
        draining, driver, finished_us = self._b.draining, self.driver, self._finished_us
        if driver.drained:
            return True
        if draining.requested.is_set():
            # Otherwise, Spark's epochs could delay the drain for ever.
            driver.is_draining = True
            return True
        has_ended = draining.at_end and finished_us is not None and not driver.paused.is_set()
        return has_ended and not driver.has_due(finished_us)

    def _is_drained(self) -> bool:
        """Drain, unless that is done; return whether the run may end with its last checkpoint."""
        draining, restored = self._b.draining, self.restored
        if not self.driver.drained and not self.driver.drain():
            return False
        is_saved = restored is not None and restored.epoch == self.driver.progress.epoch
        is_done = self._is_delivered if is_saved else self._final_checkpoint_done
        if draining.held.is_set() or not is_done():
            return False
        draining.done.set()
        return True

    @property
    def may_begin_again_at_once(self) -> bool:
        """Whether the next attempt need not wait: a host was lost, and others have its partitions' files."""
        return self.has_standbys and self._fleet.has_lost_host

    def look_at_sources(self) -> list[SourceStatus]:
        """Return the position and the backlog of each source."""
        return self._lag.look(self.query)

    def look_at_sinks(self) -> list[SinkStatus]:
        """Return the delivered and waiting rows of sinks that write to other systems."""
        return [status for _, sink, _ in self._b.plan.sinks if (status := sink.status()) is not None]

    def table(self, name: str) -> LookupTable:
        """Return a table for look-ups; raise NotFoundError, which lists all tables."""
        return table_of(self._operators, name)

    @cached_property
    def _operators(self) -> list[OperatorInfo]:
        return [operator.info(self._b.settings.backend) for operator in self.driver.operators]

    def look_up(self, table: LookupTable, key: Any) -> LookupResult:
        """Look up keys of a table in the keepers. Thread-safe."""
        return look_up(table, key, self._b.clock.now_ms() * 1000, self._fleet.look_up)

    def tables(self) -> dict[str, LookupTable]:
        """Return the tables for look-ups by their names."""
        return tables_of(self._operators)

    def first_keys(self, table: LookupTable, most: int, partition: int | None) -> FirstKeys:
        """List the first keys of a table with their values, from the keepers. Thread-safe."""
        return list_first(table, most, partition, self._b.clock.now_ms() * 1000, self._fleet.look_up)

    def profile(self, seconds: float) -> list[PartitionProfile]:
        """Take samples of all keepers for this time; raise UnavailableError if the attempt ends meanwhile."""
        with self._profiling:
            self._fleet.profile(seconds)
            self.driver.sealed.wait(seconds)
            samples_of = self._fleet.profile(None)
        missing = [slot for slot, samples in samples_of.items() if samples is None]
        if missing:
            uid, partition = missing[0]
            raise UnavailableError(
                f"operator '{uid}', partition {partition}: its keeper has started meanwhile", hint="profile it again"
            )
        return [PartitionProfile(*slot, samples) for slot, samples in sorted(samples_of.items()) if samples is not None]

    def explain(self, error: BaseException) -> BaseException:
        """Return the cause of an error if its keepers or a source's table know it, else the error itself."""
        sources = [(node.name, node.df) for node in self._b.plan.sources.nodes]
        return explain_table_error(self._fleet.explain(error), sources)

    def record_failure(self, reason: str) -> None:
        """Store what a replay needs of the epochs since the last checkpoint, up to the one that failed."""
        log, failed = self.driver.epoch_log, self.driver.failed_epoch
        if log is not None and failed is not None:
            self._failures.save(log, self.coordinator.confirmed or self.restored, failed, reason)

    def abort(self) -> None:
        """Stop the watching thread's wait for keepers, one of which may never answer. The run must end."""
        if self.driver.is_running:
            self.driver.sealed.set()
            self._fleet.abort()

    @suppress_error_logs()
    def close(self, *, forget: bool) -> None:
        """End the run and its keepers; with `forget`, delete their local copies too."""
        end(self._b, "the run ended", self.driver, self.query, self.coordinator, self._fleet, self._cleanup, forget)
        with _suppressed_errors():
            self._record_ends(is_last=True)
        with _suppressed_errors():
            self._b.places.forget_failures(self.claim.generation)

    # -- watching

    def _report_first_epoch(self) -> None:
        progress = self.driver.progress
        if not self._has_reported and progress.epochs:
            self._has_reported = True
            work = f"{progress.last_rows:,} rows in {progress.last_epoch_ms / 1000:.1f} s"
            tell(f"job '{self._b.name}': epoch {progress.epoch} is the first to be done, {work}")

    def _record_ends(self, *, is_last: bool = False) -> None:
        for stats in self.coordinator.take_ended():
            self._b.events.write(CheckpointEnd.of(stats))
        now_s = time.monotonic()
        if (is_last or now_s - self._recorded_s > _EPOCHS_S) and (epochs := self.driver.progress.take_ended()):
            self._recorded_s = now_s
            self._b.events.write(EpochsEnd.of(epochs))

    def _report_checkpoint(self, number: CheckpointId) -> None:
        for stats in self.coordinator.history:
            if stats.checkpoint == number:
                size = f"{stats.total_bytes:,} bytes, {stats.uploaded_bytes:,} of them new"
                text = f"checkpoint {number} is complete, of epoch {stats.epoch}: {size}"
                tell(f"job '{self._b.name}': {text}, in {stats.end_to_end_ms} ms", detail=True)
                if stats.frees:
                    text = f"stands on its own with checkpoint {number}: it needs nothing of {stats.frees} any more"
                    tell(f"job '{self._b.name}' {text}")

    def _poll_if_idle(self) -> None:
        """While no epoch runs, run due timers, poll a pending checkpoint, or begin one that is due."""
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
        # Before the sources have begun, a checkpoint would wait for them.
        due = self.coordinator.is_due and self._have_sources_begun()
        # The next epoch, by which standbys hear of the newest checkpoint, may be far away.
        follows = self.has_standbys and self.driver.are_standbys_behind(idle_s > _STANDBY_S)
        if due or follows or self.coordinator.pending is not None:
            self.driver.poll(may_trigger=due)

    def _have_sources_begun(self) -> bool:
        return self.driver.batch >= 0 or self._sources.has_begun(self._watch.has_looked)

    def _release_claimed(self) -> None:
        """Delete a claimed savepoint now that the job has a checkpoint of its own."""
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
        """Take the last checkpoint of a finished job; return whether it covers all, and sinks have delivered all."""
        if self._final is None:
            self._final = self.coordinator.request()
        if not self._final.done():
            return False
        final = self._final.result()
        if not self._is_delivered():
            return False
        self._final = None
        # A timer may have fired since its trigger, because the watermark of an idle source advances.
        return any(c.checkpoint == final and c.epoch == self.driver.progress.epoch for c in self.coordinator.history)

    def _is_delivered(self) -> bool:
        """Whether the sinks have delivered all rows; raise UnavailableError after a time-out."""
        if self.coordinator.shows_all:
            return True
        now = time.monotonic()
        self._undelivered_since = self._undelivered_since or now
        if now - self._undelivered_since > _DELIVERY_TIMEOUT_S:
            raise UnavailableError(
                f"job '{self._b.name}' has come to its end, and the target of a sink does not accept its last rows",
                hint="they wait in the checkpoints' storage, and are written after the next start of the job",
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
    """End the parts of a run, busy or not; its work after the last checkpoint is discarded.

    The failure of a part does not prevent the end of the others.
    """
    if driver is not None:
        # First, so that Spark's thread begins no epoch and stages nothing more.
        driver.sealed.set()
    if query is not None:
        with _suppressed_errors():
            query.stop()
    if coordinator is not None:
        with _suppressed_errors():
            coordinator.close(why)
            coordinator.advance()
    if fleet is not None:
        # Without free descriptors, keepers cannot be found: those of the next attempt end them, or their leases do.
        with _suppressed_errors():
            fleet.stop(forget=forget)
    if coordinator is not None:
        with _suppressed_errors():
            coordinator.delete_planned()
    for _, sink, _ in blueprint.plan.sinks:
        with _suppressed_errors():
            sink.close()
    with _suppressed_errors():
        cleanup.close()


@contextlib.contextmanager
def _suppressed_errors() -> Iterator[None]:
    """Suppress errors, also the panics of Rust libraries, which are not subclasses of Exception."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        pass
