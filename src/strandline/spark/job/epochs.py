"""Epoch driver: one call of foreachBatch is one epoch, and its end is the checkpoint barrier."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
from pyspark.sql import DataFrame

from strandline.checkpoint.coordinator import Coordinator
from strandline.control.events import Event, KeeperReplacement
from strandline.core import failpoints
from strandline.core.clock import Clock
from strandline.core.errors import CorruptionError, KeeperError, discreet
from strandline.core.ids import CheckpointId, Epoch, Generation
from strandline.core.times import END_US
from strandline.format.epochs import EpochRecord
from strandline.keeper.protocol import Ack, Instructions, Report
from strandline.plan.graph import FailedNode, MapNode, Node, OperatorNode, with_ancestors
from strandline.plan.pipeline import Operator
from strandline.runtime.reached import WatermarkStatus
from strandline.runtime.state.timers import is_due
from strandline.runtime.task.task import LONGEST_CHAIN
from strandline.runtime.watermarks import Watermarks
from strandline.spark.base.mapping import BatchFunction
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.base.task_errors import FIRST_FAILURE
from strandline.spark.base.templates import discard
from strandline.spark.job.epochlog import EpochLog
from strandline.spark.job.progress import JobProgress, Work
from strandline.spark.job.staging import Staging
from strandline.spark.keepers.fleet import Fleet
from strandline.spark.keepers.watch import Slot
from strandline.spark.lower.failedrows import FailedRows
from strandline.spark.lower.frames import EpochFrames, EpochWork, FrameBuilder
from strandline.spark.lower.nodes import function_of

log = logging.getLogger(__name__)

_PAUSE_POLL_S = 0.05


class SourcePositions(Protocol):
    """Adds the positions of the sources to checkpoints."""

    def begin(self, batch: int, is_over: Callable[[], bool]) -> None:
        """Note that a batch is about to be processed; raise UnavailableError if the run `is_over`."""

    def want(self, checkpoint: CheckpointId, batch: int) -> None:
        """Add the position after this batch to a checkpoint, now or later."""


class BatchHandler:
    """The function that Spark calls with each batch. The first batch waits for the driver, while keepers restore."""

    def __init__(self) -> None:
        self._driver: Future[EpochDriver] = Future()

    def begin(self, driver: EpochDriver) -> None:
        """Let the driver process the batches."""
        self._driver.set_result(driver)

    def give_up(self) -> None:
        """Refuse a batch that still waits: a query that is stopped waits for this function."""
        if not self._driver.done():
            self._driver.set_exception(KeeperError("the run did not start"))

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Process one epoch; called by Spark."""
        try:
            self._driver.result().process(df, batch)
        except BaseException as error:
            # Spark writes the message to its log, so it must be discreet. If it were no Exception, Py4J would send
            # no answer: the JVM would wait for ever, and also the thread that stops the query.
            raise KeeperError(discreet(error)) from None


@dataclass
class EpochDriver:
    """Runs epochs, and collects their acks and staged output. One epoch or poll at a time."""

    _frames: FrameBuilder
    _fleet: Fleet
    _coordinator: Coordinator
    _sources: SourcePositions
    _staging: Staging
    _generation: Generation
    progress: JobProgress
    _batch: int
    watermarks: Watermarks
    _clock: Clock
    failures: Path | None = None
    """The path prefix of files in which tasks record final failures, so that Spark's retries end at once."""
    paused: threading.Event = field(default_factory=threading.Event)
    """While set, no epoch begins, so that a last checkpoint covers all epochs."""
    started_us: int | None = None
    """The steady time before Spark's query was started; None: now."""
    epoch_log: EpochLog | None = None
    record_event: Callable[[Event], object] | None = None
    explain: Callable[[BaseException], BaseException] | None = None
    """Returns the reason of an epoch's error, if another is known than the error itself."""
    _stopped_us: int | None = field(default=None, init=False)
    """The time at which a drain stopped the clock: timers that are due by then fire, and no later ones."""

    def __post_init__(self) -> None:
        self._plan, self._operators = self._frames.plan, self._frames.operators
        self._looked_us = self.steady_us if self.started_us is None else self.started_us
        """When Spark last looked at the sources in this run, which it does not during epochs; at first, the start."""
        self._has_looked = False
        self._asked_us = self._looked_us
        """The end of Spark's last epoch: afterwards, it asks each source for the rows of the next one."""
        self._no_rows = self._frames.no_rows
        self._failed_rows = FailedRows(self._no_rows.sparkSession.sparkContext, self._plan.pipeline.nodes)
        self._done = self._batch
        self._lock = threading.Lock()
        self._findings: set[str] = set()
        self.error: BaseException | None = None
        self.failed = threading.Event()
        self.sealed = threading.Event()
        """Once set, no epoch begins and no output is staged: the run has ended, even if Spark's thread has not."""
        self.is_draining = False
        """Whether only the epoch that drains the run may begin."""
        self.drained = self.watermarks.reached_us == END_US
        """Whether event time has reached its end and all timers have fired: no epoch may follow."""
        self.epoch_carries_trigger = False
        self.last_contact = time.monotonic()
        self._planned_s = 0.0
        """When the Spark jobs of the newest epoch were planned, by `perf_counter`."""
        self._announced: CheckpointId | None = None
        """The newest published checkpoint that keepers have heard of."""

    @property
    def batch(self) -> int:
        """The last batch of the sources that was processed; -1 before the first."""
        return self._done

    @property
    def operators(self) -> Collection[Operator]:
        """The keyed operators of the run."""
        return self._operators.values()

    def process(self, df: DataFrame, batch: int) -> None:
        """Process one epoch; raise the cause of a failure."""
        # Rows that arrive during the wait for the turn belong to a later epoch.
        begun_us = self.steady_us
        with self._wait_for_turn():
            if self.failed.is_set() or self.sealed.is_set():
                raise KeeperError("the run has ended already")
            try:
                self._check_batch(batch)
                self._sources.begin(batch, self.sealed.is_set)
                self._batch = batch
                self._run(df, Epoch(self.progress.epoch + 1), begun_us)
                self._done = batch
                self._trigger_late()
            except BaseException as error:
                # At once: another thread may see it.
                cause = unwrap_error(error)
                self.error = cause if self.explain is None else self.explain(cause)
                self.failed.set()
                raise self.error from error
            finally:
                self.last_contact = time.monotonic()
                self._asked_us = self.steady_us

    @contextmanager
    def _wait_for_turn(self) -> Iterator[None]:
        """Wait until an epoch may begin, and hold the lock meanwhile.

        The check for a pause is under the lock: when the run is paused, each epoch either has begun before or waits, so
        that a later checkpoint covers all epochs.
        """
        while True:
            with self._lock:
                if not self._is_resting or self.sealed.is_set():
                    yield
                    return
            self.sealed.wait(_PAUSE_POLL_S)

    def _check_batch(self, batch: int) -> None:
        """Raise CorruptionError for a gap in batch numbers: a query without progress files would begin with 0."""
        if batch != self._batch + 1:
            raise CorruptionError(
                f"Spark began with batch {batch} of the sources, expected {self._batch + 1}: its progress files in "
                "local_dir are missing or are not those that were restored",
                hint="the job restores its last checkpoint; if another program deletes files in local_dir, set another "
                "one in Settings",
            )

    def tick(self, by_us: int | None = None) -> bool:
        """Run an epoch without events if timers are due; return whether it ran. For times without rows.

        With `by_us`, only timers that were due at that time count. While the run is paused, timers wait.
        """
        if self._is_resting or not self.has_due(by_us):
            return False
        return self._run_without_rows()

    def drain(self) -> bool:
        """Run the last epoch, without events, in which all timers of event time fire; return whether it ran.

        Later rows of the sources stay unread. While processing-time timers are due, it runs an epoch for them instead:
        rows with event times after these timers would be late otherwise.
        """
        if self._stopped_us is None:
            self._stopped_us = self.now_us
        if not self._run_without_rows(drains=True) or not self.drained:
            return False
        failpoints.hit("drain.epoch")
        for uid in sorted({uid for (uid, _), ack in self.progress.acks.items() if ack.next_event_us is not None}):
            log.warning(
                "operator '%s': its timers set others, more than %d in a row: the rest stays pending although the job "
                "is drained; check ctx.is_draining before on_timer sets the next one",
                uid, LONGEST_CHAIN,
            )  # fmt: skip
        return True

    def _run_without_rows(self, *, drains: bool = False) -> bool:
        """Run an epoch without rows, unless another one runs; with `drains`, the last epoch of the run.

        With due processing-time timers, the epoch is for them, and not the last.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self.failed.is_set() or self.sealed.is_set():
                # Another epoch has failed: its number must not be used again.
                return False
            if self.paused.is_set() or (self._is_resting and not drains):
                return False
            acks = self.progress.acks.values()
            ends = drains and not any(is_due(None, ack.next_processing_us, None, self.now_us) for ack in acks)
            if ends:
                self.watermarks.end()
            self._run(self._no_rows, Epoch(self.progress.epoch + 1))
            # Under the lock: all rows of another batch would be late.
            self.drained = self.drained or ends
        except BaseException as error:
            # Some keepers may have applied it: Spark's thread must not use its number again.
            self.error = unwrap_error(error)
            self.failed.set()
            raise self.error from error
        finally:
            self.last_contact = time.monotonic()
            self._lock.release()
        return True

    @property
    def _is_resting(self) -> bool:
        return self.paused.is_set() or self.is_draining or self.drained

    def are_standbys_behind(self, as_answered: bool) -> bool:
        """Whether keepers have not heard of the newest checkpoint, or, `as_answered`, standbys lacked files of it."""
        if (confirmed := self._coordinator.confirmed) is None:
            return False
        standbys = [each for ack in dict(self.progress.acks).values() for each in ack.standbys]
        is_unheard = bool(standbys) and self._announced != confirmed.checkpoint
        return is_unheard or (as_answered and any(each.checkpoint != confirmed.checkpoint for each in standbys))

    @property
    def is_running(self) -> bool:
        """Whether an epoch or a poll of the keepers runs."""
        return self._lock.locked()

    def has_due(self, by_us: int | None = None) -> bool:
        """Whether a timer is due by the watermark or by the clock; with `by_us`, by the clock at that time."""
        # After a step back of the clock, the current time counts.
        by_us = self.now_us if by_us is None else min(by_us, self.now_us)
        reached = self.watermarks.advance(self._looked_us)
        acks = list(self.progress.acks.values())
        return any(is_due(ack.next_event_us, ack.next_processing_us, reached, by_us) for ack in acks)

    def look(self, at_us: int, begun_us: int | None = None) -> None:
        """Note that Spark looked at the sources: all rows until then are in epochs; other sources were silent.

        `begun_us` is the begin of the epoch that has the rows of this look.
        """
        if not self._has_looked:
            self.watermarks.begin(at_us if begun_us is None else begun_us)
        self._looked_us, self._has_looked = max(at_us, self._looked_us), True

    @property
    def now_us(self) -> int:
        """The time of the clock, unless a drain has stopped it."""
        return self._clock.now_ms() * 1000 if self._stopped_us is None else self._stopped_us

    @property
    def steady_us(self) -> int:
        """The steady time, by which sources count as idle; a step of the clock would make active sources idle."""
        return int(self._clock.monotonic_ms() * 1000)

    def poll(self, *, may_trigger: bool) -> None:
        """Poll the keepers unless an epoch runs; with `may_trigger`, begin a checkpoint if one is due."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._poll(self._trigger(self.progress.epoch, idle=True) if may_trigger else None)
        except Exception as error:
            raise unwrap_error(error) from error
        finally:
            self.last_contact = time.monotonic()
            self._lock.release()

    def _trigger_late(self) -> None:
        """Begin a checkpoint that is due with the epoch that has just ended, and was not when it began.

        Mostly, the checkpoint before was in progress then: without this, each second epoch would wait for the next one.
        Where keepers are asked through a Spark job, that would take as long as a small epoch.
        """
        if self.sealed.is_set() or not self._fleet.is_local:
            return
        if (trigger := self._trigger(self.progress.epoch, has_ended=True)) is not None:
            self._poll(trigger)

    def _poll(self, trigger: CheckpointId | None, *, resume: bool = False, carried: CheckpointId | None = None) -> None:
        """Poll all keepers, and replace dead ones if that can be done; with `resume`, one has died.

        `carried` is the checkpoint that the epoch in progress has begun.
        """
        instructions = msgspec.structs.replace(
            self._instructions(self.progress.epoch, trigger),
            resume=self._fleet.can_resume and (resume or self._fleet.may_have_lost_one()),
        )
        acks = self._fleet.poll(instructions, start=instructions.resume or self._fleet.is_as_restored)
        if missing := self._fleet.slots - acks.keys():
            raise KeeperError(f"no answer from the keepers of {_names(missing)}: they died")
        self._apply_acks(acks, trigger or carried)

    def collect_reports(self) -> None:
        """Ask keepers, busy or not, for their snapshots of an earlier epoch, which the next epoch's acks would bring.

        The output of the earlier epoch must have been used, and be of the same keeper.
        """
        unreported = [(epoch, slot) for epoch, slots in self._coordinator.unreported for slot in slots]
        acks = {slot: ack for epoch, slot in unreported if (ack := self.progress.acks.get(slot)) and ack.epoch >= epoch}
        for answer in self._fleet.look(acks):
            slot = (answer.uid, answer.partition)
            # A keeper that was started in its place and is not open has no operator.
            if slot in acks and answer.keeper == acks[slot].keeper:
                self._report(slot, answer.reports)

    def look_at_watermarks(self) -> list[WatermarkStatus]:
        """Return the watermark of each source."""
        return self.watermarks.look(self._looked_us)

    @suppress_error_logs()
    def _run(self, df: DataFrame, epoch: Epoch, begun_us: int | None = None) -> None:
        started = time.perf_counter()
        if self._fleet.may_have_lost_one():
            # The epoch's tasks would detect a dead keeper, too, but later.
            self._poll(None)
        trigger = self._trigger(epoch)
        self.epoch_carries_trigger = trigger is not None
        instructions = self._instructions(epoch, trigger)
        if self.epoch_log is not None:
            self.epoch_log.add(self._record(instructions, self._batch if begun_us is not None else -1), self._confirmed)
        acks = self._process(df, instructions)
        missing = self._fleet.slots - acks.keys()
        if missing:
            raise KeeperError(f"epoch {epoch}: no ack from {_names(missing)}")
        failed_rows = self._failed_rows.take(epoch, instructions.now_us)
        took_ms = (time.perf_counter() - started) * 1000
        self._note(epoch, acks, failed_rows, took_ms)
        plan_ms = (self._planned_s - started) * 1000
        self.progress.note_times(acks.values(), self._clock.now_ms(), plan_ms, trigger)
        if begun_us is not None:
            # The time of the epoch does not count as silence, nor does the time in which Spark, which asks one source
            # after the other, waited for an answer: it may have asked the others before that.
            self.look(self._asked_us, begun_us)
        for (uid, _), ack in acks.items():
            for index, newest_us in self._plan.pipeline.moved(uid, ack.newest_us).items():
                self.watermarks.observe(index, newest_us, self.steady_us if begun_us is None else begun_us)
        self.watermarks.fired_us = instructions.watermark_us
        self.watermarks.advance(self._looked_us)
        if trigger is not None:
            self._add_sinks(trigger)
            self.epoch_carries_trigger = False
        self._apply_acks(acks, trigger)
        failpoints.hit("epoch.done")

    def _process(self, df: DataFrame, instructions: Instructions) -> dict[Slot, Ack]:
        """Run an epoch's Spark jobs, a second time if a keeper dies that can be replaced; return the keepers' acks."""
        epoch = instructions.epoch
        with self._record_failures(df, f"{epoch}"):
            frames = self._frames.build(df, self._work(instructions))
        if self.epoch_log is not None:
            self.epoch_log.note_reduced(epoch, frames.reduced)
        self._planned_s = time.perf_counter()
        try:
            try:
                with self._record_failures(df, f"{epoch}"):
                    return self._write(frames, epoch, {})
            except Exception as error:
                # Which keeper has died is known until others take their places.
                cause = self._fleet.explain(unwrap_error(error))
                if (applied := self._replace_dead(cause, instructions)) is None:
                    raise cause from error
            # Of the same pinned rows: keepers may have applied what functions gave for them.
            with self._record_failures(df, f"{epoch}-again"):
                return self._write(frames, epoch, applied)
        finally:
            frames.close()

    def _replace_dead(self, error: BaseException, instructions: Instructions) -> dict[Slot, Ack] | None:
        """Replace keepers whose death ended an epoch; return the acks of those that have applied it.

        All others keep their state: those that have applied the epoch give its output again. Returns None if no keeper
        has died, or if the epoch cannot be repeated with the new ones.
        """
        fleet, before = self._fleet, dict(self._fleet.last)
        if not fleet.can_resume or self.sealed.is_set() or not isinstance(error, KeeperError):
            return None
        if fleet.is_local and not fleet.may_have_lost_one():
            return None
        failpoints.hit("epoch.replace")
        applied = fleet.take_acks(instructions.epoch)
        try:
            self._poll(None, resume=True, carried=instructions.trigger)
        except Exception as refused:
            log.info("no keeper could take the place of one that died: %s", discreet(unwrap_error(refused)))
            return None
        replaced = {slot for slot, ack in fleet.last.items() if slot in before and ack.keeper != before[slot].keeper}
        if not replaced or self._have_output_used(replaced, applied):
            return None
        return applied

    def _have_output_used(self, replaced: set[Slot], applied: Collection[Slot]) -> bool:
        """Whether output of an epoch may have been used that replaced keepers will compute again, perhaps otherwise."""
        uids = {uid for uid, _ in replaced}
        ahead = {uid for (uid, _), ack in self._fleet.last.items() if ack.epoch > self.progress.epoch}
        later_uids = {
            node.uid
            for node in self._operators
            if any(isinstance(each, OperatorNode) and each.uid in uids for each in with_ancestors(*node.parents))
        }
        return bool(replaced.intersection(applied) or ahead & later_uids)

    @contextmanager
    def _record_failures(self, df: DataFrame, name: str) -> Iterator[None]:
        """Let this thread's tasks record final failures meanwhile, so that Spark does not repeat them."""
        context: Any = df.sparkSession.sparkContext
        if self.failures is not None:
            context.setLocalProperty(FIRST_FAILURE, f"{self.failures}-{name}")
        try:
            yield
        finally:
            with suppress(Exception):
                context.setLocalProperty(FIRST_FAILURE, None)

    def _write(self, frames: EpochFrames, epoch: Epoch, applied: dict[Slot, Ack]) -> dict[Slot, Ack]:
        """Write an epoch's rows to the sinks; return the acks of the keepers, all of which have applied it.

        `applied` are acks of an earlier try.
        """
        staged = self._staging.write(frames, epoch, self.sealed.is_set)
        acks = {**applied, **self._fleet.take_acks(epoch)}
        unread = {uid for uid, _ in self._fleet.slots - acks.keys()}
        if unread:
            # The epoch must reach every keeper, also if no sink reads its output.
            for node in self._operators:
                if node.uid in unread:
                    discard(frames.rows_of(node))
            acks = {**acks, **self._fleet.take_acks(epoch)}
            if self._plan.keep(unread):
                # A sink may have read a part of the output, after which the keeper discarded the epoch and applied it
                # again: write the output that belongs to the applied state.
                staged = self._staging.write(frames, epoch, self.sealed.is_set)
                acks = {**acks, **self._fleet.take_acks(epoch)}
        if len(acks) < len(self._fleet.slots):
            # If a task fails after Spark has its rows, its ack is lost and the task does not run again: ask the keepers
            # whether they have applied the epoch.
            acks = {**self._fleet.poll(self._instructions(epoch, None)), **acks}
        self._staging.keep(staged)
        return acks

    def _work(self, instructions: Instructions) -> EpochWork:
        functions: dict[Node, BatchFunction] = {}
        reports = self._failed_rows.reports(instructions.epoch)
        for node in self._plan.pipeline.nodes:
            if isinstance(node, OperatorNode):
                functions[node] = self._fleet.function(node.uid, instructions, node.raw_schema)
            elif isinstance(node, MapNode | FailedNode):
                functions[node] = function_of(node, reports.get(node))
        return EpochWork(functions, instructions.watermark_us, instructions.fired_us)

    def _trigger(self, epoch: Epoch, *, idle: bool = False, has_ended: bool = False) -> CheckpointId | None:
        trigger = self._coordinator.trigger(epoch, changed=not (idle or has_ended), has_ended=has_ended)
        if trigger is not None:
            self._sources.want(trigger, self._batch)
            if idle or has_ended:
                self._add_sinks(trigger)
        return trigger

    def _add_sinks(self, checkpoint: CheckpointId) -> None:
        """Add all staged output, which becomes visible with the checkpoint, and the watermarks."""
        epochs = self.epoch_log.pack(self._confirmed) if self.epoch_log is not None else b""
        self._coordinator.add_sinks(
            checkpoint, self._staging.pending(), self.watermarks.stored(), self.progress.totals(), epochs
        )

    def _record(self, instructions: Instructions, batch: int) -> EpochRecord:
        return EpochRecord(
            epoch=instructions.epoch, batch=batch, now_us=instructions.now_us,
            watermark_us=instructions.watermark_us, fired_us=instructions.fired_us,
            parallelism={each.uid: each.parallelism for each in self._operators.values()},
        )  # fmt: skip

    @property
    def _confirmed(self) -> Epoch:
        confirmed = self._coordinator.confirmed
        return Epoch(0) if confirmed is None else confirmed.epoch

    @property
    def failed_epoch(self) -> Epoch | None:
        """The epoch that failed; None if none did."""
        begun = Epoch(0) if self.epoch_log is None else self.epoch_log.newest
        return begun if self.failed.is_set() and begun > self.progress.epoch else None

    def _instructions(self, epoch: Epoch, trigger: CheckpointId | None) -> Instructions:
        # In this order: a checkpoint that completes in between is sent as both, and keepers use it as their base.
        in_flight = list(self._coordinator.in_flight)
        confirmed = self._coordinator.confirmed
        self._announced = None if confirmed is None else confirmed.checkpoint
        return Instructions(
            generation=self._generation,
            epoch=epoch,
            trigger=trigger,
            confirmed=None if confirmed is None else confirmed.checkpoint,
            in_flight=in_flight,
            watermark_us=self.watermarks.advance(self._looked_us),
            fired_us=self.watermarks.fired_us,
            now_us=self.now_us,
        )

    def _apply_acks(self, acks: dict[Slot, Ack], trigger: CheckpointId | None) -> None:
        """Process the keepers' acks; `trigger` is the checkpoint that the poll or epoch has begun, if any."""
        before = dict(self.progress.acks)
        self.progress.acks.update(acks)
        for slot, ack in acks.items():
            # First: a keeper in the place of another one may know what that one has uploaded.
            self._report(slot, ack.reports)
            if slot in before and ack.keeper != before[slot].keeper:
                self.progress.replaced += 1
                self._coordinator.retake(*slot, known=trigger)
                death = self._fleet.death_of(before[slot])
                another = f"operator '{ack.uid}', partition {ack.partition} has another keeper"
                cause = death.discreet if death else another
                log.warning("%s; process %d took its place, and the job goes on", cause, ack.pid)
                if self.record_event is not None:
                    replacement = KeeperReplacement(
                        operator=ack.uid, partition=ack.partition, pid=ack.pid, host=ack.host, cause=cause
                    )
                    self.record_event(replacement)

    def _report(self, slot: Slot, reports: Sequence[Report]) -> None:
        for report in reports:
            if report.info is not None:
                self._coordinator.report(*slot, report.checkpoint, report.info)
            else:
                self._coordinator.report_failure(*slot, report.checkpoint, report.failure)

    def _note(self, epoch: Epoch, acks: dict[Slot, Ack], failed_rows: int, took_ms: float) -> None:
        pipeline = self._plan.pipeline
        counted: dict[str, int] = {}
        for (uid, _), ack in acks.items():
            counted[uid] = counted.get(uid, 0) + (ack.source_rows or ack.rows_in)
        rows = sum(counted[uid] // copies for uid, copies in pipeline.counting.items() if uid in counted)
        progress = self.progress
        progress.epoch = epoch
        progress.epochs += 1
        progress.all_ms += took_ms
        progress.rows_in += rows
        progress.rate.note(rows, took_ms)
        progress.last_rows = rows
        progress.last_epoch_ms = took_ms
        progress.late_rows += sum(ack.late_rows for (uid, _), ack in acks.items() if uid in pipeline.measuring)
        progress.failed_events += failed_rows + sum(ack.failed_events for ack in acks.values())
        for slot, ack in acks.items():
            progress.work.setdefault(slot, Work()).add(ack)
        for finding in {text: None for ack in acks.values() for text in ack.findings if text not in self._findings}:
            # Once, although each partition reports it.
            self._findings.add(finding)
            log.warning("%s", finding)
        for uid, reduction in self._plan.reductions.items():
            of_operator = [ack for (of, _), ack in acks.items() if of == uid]
            reduction.observe(sum(ack.source_rows for ack in of_operator), sum(ack.rows_in for ack in of_operator))


def _names(slots: set[Slot]) -> str:
    return ", ".join(f"operator '{uid}' partition {partition}" for uid, partition in sorted(slots))
