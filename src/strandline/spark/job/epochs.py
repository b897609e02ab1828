"""The epoch driver: one call of foreachBatch is one epoch, and its end is the checkpoint barrier."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame

from strandline.checkpoint.coordinator import Coordinator
from strandline.core import failpoints
from strandline.core.clock import Clock
from strandline.core.errors import CorruptionError, KeeperError, discreet
from strandline.core.ids import CheckpointId, Epoch, Generation
from strandline.core.times import END_US
from strandline.keeper.protocol import Ack, Instructions
from strandline.plan.graph import LateNode, OperatorNode
from strandline.plan.pipeline import Operator
from strandline.runtime.reached import WatermarkStatus
from strandline.runtime.rowlayout import TIME
from strandline.runtime.state.timers import is_due
from strandline.runtime.task.task import LONGEST_CHAIN
from strandline.runtime.watermarks import Watermarks
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.base.task_errors import FIRST_FAILURE
from strandline.spark.job.progress import JobProgress, Work
from strandline.spark.job.staging import Staging
from strandline.spark.keepers.exchange import Exchanges, clone_session, empty_frame, prepare_session
from strandline.spark.keepers.fleet import Fleet
from strandline.spark.keepers.watch import Slot
from strandline.spark.lower.failedrows import FailedRows
from strandline.spark.lower.limits import row_limit
from strandline.spark.lower.nodes import TO, late_rows
from strandline.spark.lower.plan import EpochFrames, Plan
from strandline.spark.lower.reduction import limit_shuffle

log = logging.getLogger(__name__)

_PAUSE_LOOK_S = 0.05


class Progressing(Protocol):
    """Whoever knows how far the sources are."""

    def begin(self, batch: int) -> None:
        """Hear that a batch is about to be processed."""

    def want(self, checkpoint: CheckpointId, batch: int) -> None:
        """Give a checkpoint the progress after this batch, now or later."""


@dataclass
class EpochDriver:
    """Runs epochs and answers for their acks and staged output. One epoch or poll at a time."""

    _plan: Plan
    _source: DataFrame
    _operators: Mapping[OperatorNode, Operator]
    _exchanges: Exchanges
    _fleet: Fleet
    _coordinator: Coordinator
    _sources: Progressing
    _staging: Staging
    _generation: Generation
    progress: JobProgress
    _batch: int
    watermarks: Watermarks
    _clock: Clock
    _by_time: bool = False
    """Whether rows of a key come in the order of their times, where the program says no other."""
    failures: Path | None = None
    """Where tasks note what has failed, and need not be tried again."""
    max_row_bytes: int = 0
    """How large a row may be on its way to an operator; 0: any."""
    paused: threading.Event = field(default_factory=threading.Event)
    """Begin no more epochs for now: a last checkpoint is to cover everything there is."""
    _stands_us: int | None = field(default=None, init=False)
    """Where the clock stands while the run is drained: what is due by then comes before the end, and nothing later."""

    def __post_init__(self) -> None:
        self._looked_us = self.steady_us
        """When the sources were last looked at, in this run: nobody does while an epoch runs. At first: its start."""
        self._has_looked = False
        # As Spark does for the query: what the program sets on its session later is not meant for the job's epochs.
        self._session = clone_session(self._source.sparkSession)
        self._nothing: DataFrame | None = None
        self._failed_rows = FailedRows(self._source.sparkSession.sparkContext, self._plan.pipeline.nodes)
        self._done = self._batch
        self._lock = threading.Lock()
        self._findings: set[str] = set()
        self.error: BaseException | None = None
        self.failed = threading.Event()
        self.sealed = threading.Event()
        """Begin no more epochs and stage nothing more: the run is over, though Spark's thread may not know yet."""
        self.is_draining = False
        """Begin no more epochs but the one that drains the run."""
        self.drained = self.watermarks.reached_us == END_US
        """Event time has come to its end, and everything has fired that does: there are no more epochs."""
        self.epoch_carries_trigger = False
        self.last_contact = time.monotonic()

    @property
    def batch(self) -> int:
        """The last batch of the sources that was processed; -1 before the first."""
        return self._done

    @property
    def operators(self) -> Collection[Operator]:
        """The keyed operators, as they run."""
        return self._operators.values()

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Process one epoch; called by Spark."""
        try:
            self.process(df, batch)
        except BaseException as error:
            # Spark writes what this says into its log, which need not be the one that leaves words out. And where it is
            # no Exception, Py4J has no answer: the JVM would wait for it for ever, and who stops the query with it.
            raise KeeperError(discreet(error)) from None

    def process(self, df: DataFrame, batch: int) -> None:
        """Process one epoch; raise what it fails at."""
        # Its rows are all that had come by now: those that come while it waits for its turn are in a later one.
        looked_us = self.steady_us
        with self._turn():
            if self.failed.is_set() or self.sealed.is_set():
                raise KeeperError("the run has ended already")
            try:
                self._refuse_other_batch(batch)
                self._sources.begin(batch)
                self._batch = batch
                self._run(df, Epoch(self.progress.epoch + 1), looked_us)
                self._done = batch
            except BaseException as error:
                self.error = unwrap_error(error)
                self.failed.set()
                raise self.error from error
            finally:
                self.last_contact = time.monotonic()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until an epoch may begin, and hold the lock within.

        Whether the run is paused is looked at under the lock: who pauses it can rely on it that each epoch has begun
        before, and that a checkpoint requested from then on covers it.
        """
        while True:
            with self._lock:
                if not self._is_resting or self.sealed.is_set():
                    yield
                    return
            self.sealed.wait(_PAUSE_LOOK_S)

    def _refuse_other_batch(self, batch: int) -> None:
        """Batches are numbered without gaps: a query that finds no progress begins with 0, and all comes again."""
        if batch != self._batch + 1:
            raise CorruptionError(
                f"Spark began with batch {batch} of the sources, expected {self._batch + 1}: its progress below "
                "local_dir is gone or is not what was restored",
                hint="the job restores from its last checkpoint; if something cleans up below local_dir, give another "
                "one in Settings",
            )

    def tick(self, by_us: int | None = None) -> bool:
        """While the source gives nothing: run an epoch without events if timers are due. Return whether it ran.

        With `by_us`, only those count that the clock had passed then. While the run is paused, they wait.
        """
        if self._is_resting or not self.has_due(by_us):
            return False
        return self._run_without_rows()

    def drain(self) -> bool:
        """Bring event time to its end: run an epoch without events in which all its timers fire. Return whether it ran.

        No other epoch comes after it. What the sources have in the meantime stays unread. As long as timers of the
        clock are due, it runs an epoch for them instead: rows that get their event time behind them would be late.
        """
        if self._stands_us is None:
            self._stands_us = self.now_us
        if not self._run_without_rows(drains=True) or not self.drained:
            return False
        failpoints.hit("drain.epoch")
        for uid in sorted({uid for (uid, _), ack in self.progress.acks.items() if ack.next_event_us is not None}):
            log.warning(
                "operator '%s': its timers set others, and more than %d in a row: they are left pending as the job is "
                "drained; where on_timer sets the next one, look at ctx.is_draining",
                uid, LONGEST_CHAIN,
            )  # fmt: skip
        return True

    def _run_without_rows(self, *, drains: bool = False) -> bool:
        """Run an epoch that no rows come with, unless another one runs; one that `drains` is the last of all.

        Or one of the last, if the clock has made timers due.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self.failed.is_set() or self.sealed.is_set():
                # The epoch that was running: its number must not be given again.
                return False
            if self.paused.is_set() or (self._is_resting and not drains):
                return False
            if self._nothing is None:
                self._nothing = empty_frame(self._source, self._session)
            acks = self.progress.acks.values()
            ends = drains and not any(is_due(None, ack.next_processing_us, None, self.now_us) for ack in acks)
            if ends:
                self.watermarks.end()
            self._run(self._nothing, Epoch(self.progress.epoch + 1))
            # Before the lock is free: the next batch would be late as a whole.
            self.drained = self.drained or ends
        except BaseException as error:
            # Some keepers may have applied it: Spark's thread, which may be waiting, must not give its number again.
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

    @property
    def is_running(self) -> bool:
        """Whether an epoch, or a conversation with the keepers, is under way."""
        return self._lock.locked()

    def has_due(self, by_us: int | None = None) -> bool:
        """Whether the watermark or the clock have passed some timer that has not fired; the clock by now, or then."""
        # The clock may have been set back: what it has not reached now does not fire.
        by_us = self.now_us if by_us is None else min(by_us, self.now_us)
        reached = self.watermarks.advance(self._looked_us)
        acks = list(self.progress.acks.values())
        return any(is_due(ack.next_event_us, ack.next_processing_us, reached, by_us) for ack in acks)

    def look(self, at_us: int) -> None:
        """The sources were looked at: what had come until then is in an epoch, and whoever is in none was silent."""
        if not self._has_looked:
            self.watermarks.begin(at_us)
        self._looked_us, self._has_looked = max(at_us, self._looked_us), True

    @property
    def now_us(self) -> int:
        """The clock."""
        return self._clock.now_ms() * 1000 if self._stands_us is None else self._stands_us

    @property
    def steady_us(self) -> int:
        """What silence is measured by: were it the clock, its being set would make sources idle that are not."""
        return int(self._clock.monotonic_ms() * 1000)

    def poll(self, *, may_trigger: bool) -> None:
        """Hear from the keepers unless an epoch is being processed; perhaps begin a checkpoint of the epoch before."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            epoch = self.progress.epoch
            trigger = self._trigger(epoch, idle=True) if may_trigger else None
            # One that died before any epoch is started anew, as the next epoch would have it.
            acks = self._fleet.poll(self._instructions(epoch, trigger), start=self._fleet.is_as_restored)
            missing = self._fleet.slots - acks.keys()
            if missing:
                raise KeeperError(f"no answer from the keepers of {_named(missing)}: they died")
            self._apply_acks(acks, trigger)
        except Exception as error:
            raise unwrap_error(error) from error
        finally:
            self.last_contact = time.monotonic()
            self._lock.release()

    def look_at_watermarks(self) -> list[WatermarkStatus]:
        """Return how far each source is."""
        return self.watermarks.look(self._looked_us)

    @suppress_error_logs()
    def _run(self, df: DataFrame, epoch: Epoch, looked_us: int | None = None) -> None:
        started = time.perf_counter()
        prepare_session(df.sparkSession)
        if self._plan.reductions:
            limit_shuffle(df.sparkSession, max(operator.parallelism for operator in self.operators))
        trigger = self._trigger(epoch)
        self.epoch_carries_trigger = trigger is not None
        instructions = self._instructions(epoch, trigger)
        operate = lambda node, rows: self._operate(node, rows, instructions)  # noqa: E731
        with self._noting_failures(df, epoch):
            built = self._plan.build(df, operate, self._operators, self._failed_rows.reports(epoch))
            try:
                acks = self._write(built, epoch)
            finally:
                built.close()
        missing = self._fleet.slots - acks.keys()
        if missing:
            raise KeeperError(f"epoch {epoch}: no ack from {_named(missing)}")
        failed_rows = self._failed_rows.take(epoch, instructions.now_us)
        self._note(epoch, acks, failed_rows, (time.perf_counter() - started) * 1000)
        if looked_us is not None:
            # How long it took is nobody's silence.
            self.look(looked_us)
        for (uid, _), ack in acks.items():
            for index, newest_us in self._plan.pipeline.moved(uid, ack.newest_us).items():
                self.watermarks.observe(index, newest_us, self.steady_us if looked_us is None else looked_us)
        self.watermarks.fired_us = instructions.watermark_us
        self.watermarks.advance(self._looked_us)
        if trigger is not None:
            self._add_sinks(trigger)
            self.epoch_carries_trigger = False
        self._apply_acks(acks, trigger)
        failpoints.hit("epoch.done")

    @contextmanager
    def _noting_failures(self, df: DataFrame, epoch: Epoch) -> Iterator[None]:
        """Meanwhile, tasks that this thread starts note what has failed for good, and are not run again for it."""
        context: Any = df.sparkSession.sparkContext
        if self.failures is not None:
            context.setLocalProperty(FIRST_FAILURE, f"{self.failures}-{epoch}")
        try:
            yield
        finally:
            with suppress(Exception):
                context.setLocalProperty(FIRST_FAILURE, None)

    def _write(self, built: EpochFrames, epoch: Epoch) -> dict[Slot, Ack]:
        """Give an epoch's rows to the sinks; return the acks of all keepers that have applied it."""
        staged = self._staging.write(built, epoch, self.sealed.is_set)
        acks = self._fleet.take_acks(epoch)
        unread = {uid for uid, _ in self._fleet.slots - acks.keys()}
        if unread:
            # The epoch must reach every keeper, also where nobody reads what it gives.
            for uid in unread:
                built.operators[uid].write.format("noop").mode("overwrite").save()
            acks = {**acks, **self._fleet.take_acks(epoch)}
            if self._plan.keep(unread):
                # Part of it may have been read, from an attempt that the keeper then forgot, since its output was not
                # read to the end: what is shown must be from the one that it has applied.
                staged = self._staging.write(built, epoch, self.sealed.is_set)
                acks = {**acks, **self._fleet.take_acks(epoch)}
        if len(acks) < len(self._fleet.slots):
            # The ack of a task that failed after its rows were kept is lost, and the task does not come again:
            # the keepers know whether they have applied the epoch.
            acks = {**self._fleet.poll(self._instructions(epoch, None)), **acks}
        self._staging.keep(staged)
        return acks

    def _operate(self, node: OperatorNode | LateNode, rows: DataFrame, instructions: Instructions) -> DataFrame:
        if isinstance(node, LateNode):
            return late_rows(node, rows, instructions.watermark_us, instructions.fired_us)
        operator = self._operators[node]
        to = None if node.broadcast_order is None else TO
        order = node.order_by or ((TIME,) if self._by_time and TIME in node.hidden else ())
        exchange = self._exchanges.of(node.uid)
        too_large = row_limit(node, self.max_row_bytes)
        routed = exchange.route(rows, node.keys, operator.max_parallelism, order, node.hidden, to, too_large)
        return self._fleet.run(node.uid, routed, instructions, node.raw_schema)

    def _trigger(self, epoch: Epoch, *, idle: bool = False) -> CheckpointId | None:
        trigger = self._coordinator.trigger(epoch, changed=not idle)
        if trigger is not None:
            self._sources.want(trigger, self._batch)
            if idle:
                self._add_sinks(trigger)
        return trigger

    def _add_sinks(self, checkpoint: CheckpointId) -> None:
        """Everything staged up to the checkpoint's epoch becomes visible with it."""
        self._coordinator.add_sinks(
            checkpoint, self._staging.pending(), self.watermarks.stored(), self.progress.totals()
        )

    def _instructions(self, epoch: Epoch, trigger: CheckpointId | None) -> Instructions:
        # In this order: a checkpoint that completes in between is told as both, and keepers take it as their base.
        pending = self._coordinator.pending
        confirmed = self._coordinator.confirmed
        return Instructions(
            generation=self._generation,
            epoch=epoch,
            trigger=trigger,
            confirmed=None if confirmed is None else confirmed.checkpoint,
            pending=pending,
            watermark_us=self.watermarks.advance(self._looked_us),
            fired_us=self.watermarks.fired_us,
            now_us=self.now_us,
        )

    def _apply_acks(self, acks: dict[Slot, Ack], trigger: CheckpointId | None) -> None:
        """Take in what keepers say, who have just been told of the trigger, if there is one."""
        before = dict(self.progress.acks)
        self.progress.acks.update(acks)
        for slot, ack in acks.items():
            if slot in before and ack.keeper != before[slot].keeper:
                # One that died before any epoch since its restore is started anew, without a restart of the job.
                if trigger is None:
                    self._coordinator.retake(*slot)
                died = self._fleet.death_of(before[slot])
                log.warning(
                    "%s; process %d took its place, and the job goes on",
                    died.discreet if died else f"operator '{ack.uid}', partition {ack.partition} has another keeper",
                    ack.pid,
                )
            for report in ack.reports:
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
        progress.rows_in += rows
        progress.rate.note(rows, took_ms)
        progress.last_rows = rows
        progress.last_epoch_ms = took_ms
        progress.late_rows += sum(ack.late_rows for (uid, _), ack in acks.items() if uid in pipeline.measuring)
        progress.failed_events += failed_rows + sum(ack.failed_events for ack in acks.values())
        for slot, ack in acks.items():
            work = progress.work.setdefault(slot, Work())
            work.rows_in += ack.rows_in
            work.rows_out += ack.rows_out
            work.took_ms += ack.process_ms
        for finding in {text: None for ack in acks.values() for text in ack.findings if text not in self._findings}:
            # Each partition finds the same.
            self._findings.add(finding)
            log.warning("%s", finding)
        for uid, reduction in self._plan.reductions.items():
            mine = [ack for (of, _), ack in acks.items() if of == uid]
            reduction.observe(sum(ack.source_rows for ack in mine), sum(ack.rows_in for ack in mine))


def _named(slots: set[Slot]) -> str:
    return ", ".join(f"operator '{uid}' partition {partition}" for uid, partition in sorted(slots))
