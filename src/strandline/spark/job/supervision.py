"""Supervision of a running job in a thread: start, attempts, failures, restarts, stop.

Requests of users are in requests.py; the steps of an attempt's start are in starting.py, its life in attempt.py.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Any, Literal

from pyspark import inheritable_thread_target

from strandline.api.config import Restart
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.history import CheckpointStats
from strandline.control import journal
from strandline.control.announcements import tell, tell_always
from strandline.control.driverlog import DriverLog
from strandline.control.events import AttemptBegin, InterruptionEnd, RunKilled, StateChange
from strandline.control.recent import EpochStats, Interruption
from strandline.control.server import ControlServer
from strandline.control.status import State, Totals
from strandline.core.errors import (
    AccessError,
    ConfigurationError,
    CorruptionError,
    FencedError,
    NotFoundError,
    StateLimitError,
    StrandlineError,
    UnavailableError,
    UserCodeError,
    discreet,
)
from strandline.core.ids import CheckpointId
from strandline.core.program import ProgramFile
from strandline.core.scratch import remove_abandoned
from strandline.keeper.paths import sweep
from strandline.plan.parallelism import ParallelismOverride
from strandline.snapshot.opening.origin import go_back
from strandline.spark.base.quiet import hide_errors_of
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.job.attempt import Attempt, Blueprint
from strandline.spark.job.epochs import BatchHandler
from strandline.spark.job.failure_reporter import FailureReporter
from strandline.spark.job.following import Follower, RescalableRun, initial_override
from strandline.spark.job.preparation import Preparation, warn_of_sinks
from strandline.spark.job.starting import Starting
from strandline.spark.job.status import INITIAL, status_after, totals_of
from strandline.storage.kafkaparts import end_clients

log = logging.getLogger(__name__)

_ABORT_AFTER_S = 10.0
"""How long a stop waits before it kills keepers, which may block the end."""
_ABORT_AGAIN_S = 1.0
_INTERRUPTIONS = 50
_BEFORE = 50
"""How many checkpoints and epochs of the attempt before are kept."""
_INTERRUPT_S = 15.0
"""How long an interrupt waits for the end of a start."""
_FINAL = (FencedError, ConfigurationError, StateLimitError)


@dataclass(eq=False)
class RequestedRollback:
    """A command to go back to an older checkpoint. It is in force until a record of the job contains it."""

    checkpoint: CheckpointId
    is_recorded: bool = False
    refusal: StrandlineError | None = None
    """The reason why the job cannot go back and continues from its newest checkpoint."""


@dataclass(frozen=True, eq=False)
class Desired:
    """The desired state of a run. Commands replace it; the supervisor starts attempts until one runs with it.

    Only commands replace it, and only the supervisor records the outcome: a failure of an attempt before or after the
    execution of a command loses nothing.
    """

    parallelism: ParallelismOverride = field(default_factory=ParallelismOverride)
    """The parallelism from `rescale`; without one, that of the program, the settings or the checkpoint applies."""
    rollback: RequestedRollback | None = None
    """The last rollback, executed or not."""


class Supervisor:
    """Runs a job's attempts: begins them, restarts after failures, ends them. One thread, until the job ends."""

    def __init__(self, blueprint: Blueprint, restart: Restart) -> None:
        self.blueprint = blueprint
        self._restart = restart
        self._starting: Starting | None = None
        self.known: Mapping[str, Any] = INITIAL
        """The fields of a status while there is no attempt."""
        self.attempt: Attempt | None = None
        self.state: State = "starting"
        self.since_ms = blueprint.clock.now_ms()
        self._program = ProgramFile.of_process()
        self._log = DriverLog(blueprint.places.driver_log)
        self.desired = self.begun_with = Desired()
        """The desired state and that of the newest attempt: while they differ, another attempt is due."""
        self.stopping = threading.Event()
        self.changing = threading.Lock()
        self.ended = threading.Event()
        self._error: BaseException | None = None
        self.last_failure = ""
        self.last_failure_ms: int | None = None
        self.restarts = 0
        self._in_a_row = 0
        self._failed_at = 0.0
        """The time of the failure, until the job runs again; else 0."""
        self.interruptions: deque[Interruption] = deque(maxlen=_INTERRUPTIONS)
        """The last ones of this run, oldest first."""
        self._interrupted: tuple[Interruption, float] | None = None
        """That in progress, with the steady time of its begin."""
        self.recent_before: tuple[list[CheckpointStats], list[EpochStats]] = [], []
        """The last checkpoints and epochs of the attempt before."""
        self.attempt_ms = 0
        """When the newest attempt began."""
        self._ended_totals = Totals()
        """The counts of the attempts that have ended, and of interruptions."""
        self._counting = threading.Lock()
        """Held while an attempt's counts become those of ended ones."""
        self._has_done_epochs = False
        """Whether an earlier attempt has completed an epoch."""
        self._reporter = FailureReporter(blueprint.settings, blueprint.places, blueprint.spark)
        self.excluded: frozenset[CheckpointId] = frozenset()
        self.least_id = CheckpointId(1)
        self.claim: Claim | None = None
        self._held: IO[str]
        """The lock that prevents the deletion of the job's local directories."""
        self._control: ControlServer
        self._has_begun: Future[None] = Future()
        """Done when the first attempt runs, or has failed to start."""
        self._inheriting: Callable[[Callable[[], None]], Callable[[], None]]
        """Gives a function of the supervising thread Spark's local properties of the start, such as a pool."""
        self.thread = threading.Thread(target=self._supervise, name=f"strandline-{blueprint.name}", daemon=True)

    def start(self, control: ControlServer, follow: RescalableRun) -> None:
        """Start the supervising thread, and wait until the first attempt runs. Raises errors of the program.

        The calling thread only waits: an interrupt (Ctrl-C) leaves no call of Spark half done.
        """
        b, self._control = self.blueprint, control
        self._held = b.places.lock_shared()
        sweep(b.places.local_dir)
        remove_abandoned(b.places.root)
        hide_errors_of(BatchHandler.__call__.__code__)
        self._log.open()
        self._enter("starting")
        tell(f"job '{b.name}' is starting: its checkpoints are in {b.jobdir.store.url}")
        try:
            # Commands that change `desired` wait until it is set.
            with self.changing:
                control.start()
                self.desired = Desired(initial_override(b.settings, b.spark, wait=True))
            self._inheriting = inheritable_thread_target(b.spark)
            self.thread.start()
            self._has_begun.result()
            if b.settings.follows is not None:
                Follower(b.name, follow, b.settings.follows, b.spark, b.clock, self.ended).start()
        except BaseException as error:
            if self.thread.ident is not None:
                # The error of the first attempt, which has ended; an interrupt; or no thread for the follower.
                with suppress(UnavailableError):
                    self.stop(_INTERRUPT_S, abort_after=0.0)
                raise
            cause = self._explain(error) if isinstance(error, Exception) else error
            self._end_unbegun(cause)
            control.join()
            if cause is error:
                raise
            raise cause from None

    @property
    def totals(self) -> Totals:
        """The counts since the run began, which never decrease."""
        with self._counting:
            return self._ended_totals if self.attempt is None else self._ended_totals.plus(totals_of(self.attempt))

    @property
    def is_live(self) -> bool:
        """Whether the job has begun and has not ended."""
        return self.thread.is_alive() and not self.ended.is_set()

    def stop(self, timeout: float, *, abort_after: float = _ABORT_AFTER_S) -> None:
        """End the job and its keepers. Raises UnavailableError after `timeout` seconds."""
        self.stopping.set()
        deadline, wait_s = time.monotonic() + timeout, abort_after
        while not self.ended.wait(min(wait_s, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    f"job '{self.blueprint.name}' has not ended within {timeout:g} s of being stopped",
                    hint="call stop() again to wait longer, or end the program: its keepers end with it",
                )
            wait_s = _ABORT_AGAIN_S
            if (current := self._starting or self.attempt) is not None:
                current.abort()
        self.thread.join(timeout)
        self._control.join()

    def _begin_first(self) -> None:
        while self.attempt is None:
            try:
                self._begin()
            except BaseException as error:
                if self._exclude_damaged(unwrap_error(error)):
                    continue
                cause = self._explain(error)
                if cause is error:
                    raise
                raise cause from None

    def _explain(self, error: BaseException) -> BaseException:
        return self._reporter.to_program(self._reporter.complete(unwrap_error(error)))

    def is_at_work(self) -> bool:
        # A method and not an inlined comparison: another thread changes the state.
        return self.state == "running"

    def is_ending(self) -> bool:
        return self.stopping.is_set() or self.ended.is_set()

    def _supervise(self) -> None:
        try:
            self._inheriting(self._begin_first)()
        except BaseException as error:
            try:
                self._end_unbegun(error)
            finally:
                # Whatever refuses: `start` waits for it.
                self._has_begun.set_exception(error)
            return
        self._has_begun.set_result(None)
        try:
            finished = self._run_attempts()
            # A newer driver on this machine uses the same local directories.
            owned = not self._is_fenced()
            self._end_attempt(forget=owned)
            if owned:
                self.blueprint.places.remove(self._held)
            self._enter("finished" if finished else "stopped")
        except BaseException as error:
            self._error = self._reporter.to_program(error)
            self._note_failure(error)
            self._end_attempt()
            self._enter("failed")
        finally:
            self._close(self._report_end)

    def _end_unbegun(self, error: BaseException) -> None:
        """End a run whose first attempt did not start."""

        def report() -> None:
            self._note_failure(error)
            self._enter("stopped" if self.stopping.is_set() else "failed")
            self._log.note(f"job '{self.blueprint.name}' did not start: {error}")

        self._close(report)

    def _close(self, report: Callable[[], None]) -> None:
        try:
            self._control.end()
            report()
            self._log.close()
            self._held.close()
            # Other runs of this program get new ones.
            end_clients()
        finally:
            # Even if a disk is full: other threads wait for this event.
            self.ended.set()

    def _run_attempts(self) -> bool:
        """Run attempts until the sources are finished, and return True, or until the job is stopped."""
        while not self.stopping.is_set():
            try:
                if self.attempt is None:
                    self._begin()
                assert self.attempt is not None
                if self.attempt.watch(self._is_over):
                    return True
                if not self.stopping.is_set():
                    self._begin_again()
            except BaseException as error:
                if not self.stopping.is_set():
                    self._recover(unwrap_error(error))
        return False

    def _is_over(self) -> bool:
        """Whether the current attempt must end, because of a stop or of a change of `desired`."""
        return self.stopping.is_set() or self.begun_with is not self.desired

    def _begin_again(self) -> None:
        """End a working attempt, so that the next one restores its last checkpoint with the new `desired`."""
        assert self.attempt is not None
        self._enter("rescaling")
        self._interrupt("rescale", _change_text(self.begun_with, self.desired), self.blueprint.clock.now_ms())
        self.least_id = self.attempt.coordinator.next_id
        self._end_attempt()
        self._forget_attempt()

    def _begin(self) -> None:
        desired = self.desired
        if desired.rollback is not None:
            self._go_back(desired.rollback)
        self._held = self.blueprint.places.lock_again(self._held)
        starting = self._starting = Starting(self.preparation(desired))
        try:
            self.attempt = starting.start()
        finally:
            self.claim = starting.claim
            self._starting = None
        self.begun_with = desired
        self.attempt_ms = self.blueprint.clock.now_ms()
        self._enter("running")
        self._report_begin(self.attempt)
        if self._failed_at:
            failed_s = time.monotonic() - self._failed_at
            tell_always(f"job '{self.blueprint.name}' works again, {failed_s:.1f} s after it failed")
            self._failed_at = 0.0
        self._resume(self.attempt)

    def _interrupt(self, kind: Literal["failure", "rescale"], cause: str, at_ms: int) -> None:
        """Note that the job does not work; a failure of a start belongs to the interruption in progress."""
        rows = self.attempt.driver.progress.rows_in if self.attempt is not None else 0
        if self._interrupted is None:
            self._interrupted = Interruption(kind, at_ms, 0, cause, None, rows), time.monotonic()

    def _resume(self, attempt: Attempt) -> None:
        if self._interrupted is not None:
            interruption, since_s = self._interrupted
            # Not the rows of now: epochs may have been processed since the restore.
            restored, (rows, *_) = attempt.restored, attempt.driver.progress.restored
            interruption = replace(
                interruption, down_ms=int((time.monotonic() - since_s) * 1000),
                checkpoint=restored.checkpoint if restored and attempt.restored_own else None,
                repeated_rows=max(0, interruption.repeated_rows - rows),
            )  # fmt: skip
            self.interruptions.append(interruption)
            self.blueprint.events.write(InterruptionEnd.of(interruption))
            rescales = 1 if interruption.kind == "rescale" else 0
            counts = Totals(rescales=rescales, down_ms=interruption.down_ms, repeated_rows=interruption.repeated_rows)
            with self._counting:
                self._ended_totals = self._ended_totals.plus(counts)
            self._interrupted = None

    def preparation(self, desired: Desired) -> Preparation:
        """Return the preparation of an attempt, without any of its steps."""
        return Preparation(self.blueprint, self.excluded, self.least_id, self.claim, desired.parallelism)

    def _go_back(self, rollback: RequestedRollback) -> None:
        """Execute a rollback, unless that is done; if storage is unavailable, the next attempt tries again."""
        if rollback.is_recorded or rollback.refusal is not None:
            return
        try:
            self.claim = go_back(self.blueprint.jobdir, rollback.checkpoint, self.blueprint.clock, self.claim)
        except (NotFoundError, CorruptionError) as error:
            rollback.refusal = error
            log.warning(
                "job '%s' does not go back to checkpoint %d: %s", self.blueprint.name, rollback.checkpoint, error
            )
            return
        rollback.is_recorded = True
        # Every byte of it was read: it is not damaged any more.
        self.excluded -= {rollback.checkpoint}
        warn_of_sinks(self.blueprint, rollback.checkpoint)

    def _recover(self, error: BaseException) -> None:
        """End the failed attempt and wait for the next; raise the error if there is none."""
        attempt = self.attempt
        error = self._reporter.complete(error if attempt is None else attempt.explain(error))
        reason = self._note_failure(error)
        completed = attempt.coordinator.counts.completed if attempt else 0
        self.least_id = attempt.coordinator.next_id if attempt else self.least_id
        self._in_a_row = 1 if completed else self._in_a_row + 1
        is_final = not self._may_restart(error) or self._in_a_row > self._restart.attempts
        # Other failures, such as keepers that die, are to delay restarts as little as can be.
        if attempt is not None and (is_final or isinstance(error, UserCodeError)):
            attempt.record_failure(reason)
        if is_final:
            raise error
        self._enter("restarting")
        is_urgent = self._in_a_row == 1 and attempt is not None and attempt.may_begin_again_at_once
        delay_ms = 0 if is_urgent else self._restart.delay_ms(self._in_a_row)
        self._failed_at = self._failed_at or time.monotonic()
        self._interrupt("failure", reason, self.last_failure_ms or 0)
        log.warning("job '%s' is restarted in %d ms: %s", self.blueprint.name, delay_ms, reason)
        restart_s = time.monotonic() + delay_ms / 1000
        self._end_attempt()
        self._forget_attempt()
        self.restarts += 1
        self.stopping.wait(max(0.0, restart_s - time.monotonic()))

    def _enter(self, state: State) -> None:
        """Enter a state, and write it to the journal, for readers after the end of this process."""
        self.state = state
        b, pid = self.blueprint, os.getpid()
        before = journal.write(b.places, journal.JournalEntry(
            job=b.name, directory=b.jobdir.store.url, pid=pid, born=journal.process_start(pid),
            since_ms=self.since_ms, state=state, at_ms=b.clock.now_ms(),
            failure=self.last_failure, failure_ms=self.last_failure_ms, program=self._program,
        ))  # fmt: skip
        if before is not None and before.fate == "killed":
            b.events.write(RunKilled(
                killed_pid=before.pid, began_ms=before.since_ms, last_state=before.state, last_state_ms=before.at_ms
            ))  # fmt: skip
        b.events.write(StateChange(state=state, failure=self.last_failure))

    def _report_begin(self, attempt: Attempt) -> None:
        # The preparation has announced the origin.
        operators, epoch, restored = attempt.driver.operators, attempt.driver.progress.epoch, attempt.restored
        self.blueprint.events.write(AttemptBegin(
            generation=attempt.claim.generation,
            checkpoint=restored.checkpoint if restored and attempt.restored_own else None,
            epoch=restored.epoch if restored else 0, parallelism={each.uid: each.parallelism for each in operators},
        ))  # fmt: skip
        after = f", after epoch {epoch}" if epoch else ""
        keepers = sum(operator.parallelism for operator in operators)
        tell(f"job '{self.blueprint.name}' runs{after}; operators: {len(operators)}, keepers: {keepers}")

    def _report_end(self) -> None:
        progress = self.attempt.driver.progress if self.attempt is not None else None
        after = f" after epoch {progress.epoch}; rows in its life: {progress.rows_in:,}" if progress is not None else ""
        if self.state == "failed":
            # Only for the log: the program receives the error.
            self._log.note(self.last_failure)
        tell(f"job '{self.blueprint.name}' has {'failed' if self.state == 'failed' else 'ended'}{after}")
        if self.state == "stopped" and self.attempt is not None:
            self._report_next_start(self.attempt)

    def _report_next_start(self, attempt: Attempt) -> None:
        """Announce from where the next start of a stopped job continues."""
        status = status_after(attempt)
        if (newest := status["last_checkpoint"]) is not None:
            begins = f"goes on from checkpoint {newest.checkpoint} in {self.blueprint.jobdir.url}"
            begins += ", and processes the rows after it again" if status["uncovered_ms"] else ", which has everything"
        else:
            begins = f"begins with {status['depends_on']} again" if status["depends_on"] else "begins afresh"
            begins = f"has no complete checkpoint, and {begins}"
        tell(f"job '{self.blueprint.name}' {begins} when the same command starts it")

    def _note_failure(self, error: BaseException) -> str:
        self.last_failure, self.last_failure_ms = self._reporter.in_logs(error), self.blueprint.clock.now_ms()
        return self.last_failure

    def _may_restart(self, error: BaseException) -> bool:
        if isinstance(error, CorruptionError):
            # Local damage is repaired from the checkpoint; damage of the checkpoint ends the job.
            is_local = self.state == "running" or "is_local" in error.fields
            return self._exclude_damaged(error) or (is_local and "checkpoint" not in error.fields)
        if isinstance(error, UserCodeError):
            return self._restart.on_user_error
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return False
        if isinstance(error, StrandlineError) and "is_final" in error.fields:
            # No restart helps: Spark has ended, or the job is done except for deliveries.
            return False
        # The job has begun before, so a refusal of these kinds may be temporary.
        if isinstance(error, ConfigurationError) and "is_sparks" in error.fields:
            # Another program may be replacing a directory or table that a step or a sink's function reads.
            return self._has_done_epochs or (self.attempt is not None and self.attempt.driver.progress.epochs > 0)
        if isinstance(error, ConfigurationError) and "may_pass" in error.fields:
            return True
        return isinstance(error, AccessError) or not isinstance(error, _FINAL)

    def _exclude_damaged(self, error: BaseException) -> bool:
        """Exclude the damaged checkpoint that the error names from restores; return False if it names none."""
        damaged = error.fields.get("checkpoint") if isinstance(error, CorruptionError) else None
        if damaged is None or CheckpointId(damaged) in self.excluded:
            return False
        log.warning("checkpoint %s is damaged and is passed over: %s", damaged, self._reporter.in_logs(error))
        self.excluded |= {CheckpointId(damaged)}
        return True

    def _end_attempt(self, *, forget: bool = False) -> None:
        if self.attempt is not None:
            self.attempt.close(forget=forget)

    def _forget_attempt(self) -> None:
        if self.attempt is not None:
            self.known = status_after(self.attempt)
            progress = self.attempt.driver.progress
            self._has_done_epochs |= progress.epochs > 0
            self.recent_before = self.attempt.coordinator.history[-_BEFORE:], list(progress.recent)[-_BEFORE:]
        with self._counting:
            if self.attempt is not None:
                self._ended_totals = self._ended_totals.plus(totals_of(self.attempt))
            self.attempt = None

    def _is_fenced(self) -> bool:
        try:
            if self.claim is not None:
                self.claim.check()
        except FencedError:
            return True
        except StrandlineError as error:
            log.warning("job '%s': whether another driver owns it is not known: %s", self.blueprint.name, error)
            return True
        return False

    def raise_if_failed(self) -> None:
        if self.ended.is_set() and self._error is not None:
            if isinstance(self._error, StrandlineError):
                raise self._error
            raise StrandlineError(
                f"job '{self.blueprint.name}' failed: {type(self._error).__name__}: {self._error}",
                discreet=f"job '{self.blueprint.name}' failed: {discreet(self._error)}",
            ) from self._error


def _change_text(before: Desired, after: Desired) -> str:
    """Return what a command has changed."""
    if after.rollback is not None and after.rollback is not before.rollback:
        return f"a rollback to checkpoint {after.rollback.checkpoint}"
    wanted = after.parallelism
    operators = ", ".join(f"{uid}={number}" for uid, number in wanted.operators.items())
    return f"a rescale to {operators or wanted.job}"
