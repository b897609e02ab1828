"""Looking after a job that runs, in a thread of its own: attempts, one after another, until there is no more."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from strandline.api.config import Restart
from strandline.checkpoint.generation import Claim
from strandline.control import journal
from strandline.control.announcements import tell
from strandline.control.driverlog import DriverLog
from strandline.control.server import ControlServer
from strandline.control.status import State
from strandline.core.errors import (
    AccessError,
    ConfigurationError,
    CorruptionError,
    FencedError,
    NotFoundError,
    StateLimitError,
    StrandlineError,
    UserCodeError,
    discreet,
)
from strandline.core.ids import CheckpointId
from strandline.plan.parallelism import ParallelismOverride
from strandline.snapshot.opening.origin import go_back
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.job.attempt import Attempt, Blueprint
from strandline.spark.job.failure_reporter import FailureReporter
from strandline.spark.job.starting import Starting, warn_of_sinks
from strandline.spark.job.status import NOTHING, status_after

log = logging.getLogger(__name__)

_FINAL = (FencedError, ConfigurationError, StateLimitError)


@dataclass(eq=False)
class Rollback:
    """A command to go back to an older checkpoint. It is in force until a record of the job says that it has."""

    checkpoint: CheckpointId
    is_recorded: bool = False
    refusal: StrandlineError | None = None
    """Why the job cannot go back, and goes on from its newest checkpoint."""


@dataclass(frozen=True, eq=False)
class Desired:
    """What a run is to go on with. Commands replace it; the supervisor starts attempts until one has begun with it.

    Only commands write it, and only the supervisor writes what became of it: an attempt that fails on the way, before
    or after a command was carried out, loses nothing of it.
    """

    parallelism: ParallelismOverride = field(default_factory=ParallelismOverride)
    """What `rescale` was told; where nothing, what the program, the settings or the checkpoint say counts."""
    rollback: Rollback | None = None
    """The last one, whether it was carried out or not."""


class Supervised:
    """A job's attempts: begun, restarted after failures, ended. What can be asked of it meanwhile is `Run`'s."""

    def __init__(self, blueprint: Blueprint, restart: Restart) -> None:
        self._b = blueprint
        self._restart = restart
        self._starting: Starting | None = None
        self._known: Mapping[str, Any] = NOTHING
        """What a status says while there is no attempt."""
        self._attempt: Attempt | None = None
        self._state: State = "starting"
        self._since_ms = blueprint.clock.now_ms()
        self._log = DriverLog(blueprint.places.driver_log)
        self._desired = self._begun_with = Desired()
        """As commands want the run, and as the newest attempt has begun: while they differ, another one is due."""
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._last_failure = ""
        self._last_failure_ms: int | None = None
        self._restarts = 0
        self._in_a_row = 0
        self._failed_at = 0.0
        """When it failed, while it does not go on again."""
        self._has_done_epochs = False
        """Whether an epoch was done in some attempt that is over."""
        self._telling = FailureReporter(blueprint.settings, blueprint.places, blueprint.spark)
        self._excluded: frozenset[CheckpointId] = frozenset()
        self._least_id = CheckpointId(1)
        self._claim: Claim | None = None
        self._held: IO[str]
        """Keeps others from taking the job's directories away."""
        self._control: ControlServer
        self._thread = threading.Thread(target=self._supervise, name=f"strandline-{blueprint.name}", daemon=True)

    def _begin_first(self) -> None:
        while self._attempt is None:
            try:
                self._begin()
            except BaseException as error:
                found = unwrap_error(error)
                if self._pass_over(found):
                    continue
                found = self._telling.to_program(self._telling.complete(found))
                if found is error:
                    raise
                raise found from None

    def _is_at_work(self) -> bool:
        # Another thread changes it: what was true a moment ago need not be any more.
        return self._state == "running"

    def _is_ending(self) -> bool:
        return self._stopping.is_set() or self._ended.is_set()

    def _supervise(self) -> None:
        try:
            finished = self._run_attempts()
            # A newer driver on this machine has its working state in the same place.
            owned = not self._is_fenced()
            self._end_attempt(forget=owned)
            if owned:
                self._b.places.remove(self._held)
            self._enter("finished" if finished else "stopped")
        except BaseException as error:
            self._error = self._telling.to_program(error)
            self._note_failure(error)
            self._end_attempt()
            self._enter("failed")
        finally:
            try:
                self._control.end()
                self._tell_end()
                self._log.close()
                self._held.close()
            finally:
                # Whatever a disk refuses now: somebody waits for the end.
                self._ended.set()

    def _run_attempts(self) -> bool:
        """Go on until the source is finished, and return True, or until somebody stops the job."""
        while not self._stopping.is_set():
            try:
                if self._attempt is None:
                    self._begin()
                assert self._attempt is not None
                if self._attempt.watch(self._is_over):
                    return True
                if not self._stopping.is_set():
                    self._begin_again()
            except BaseException as error:
                if not self._stopping.is_set():
                    self._recover(unwrap_error(error))
        return False

    def _is_over(self) -> bool:
        """Whether the attempt at work is to end, since the job is, or since another attempt is to take its place."""
        return self._stopping.is_set() or self._begun_with is not self._desired

    def _begin_again(self) -> None:
        """End an attempt that works, so that the next one goes on from its last checkpoint in another way."""
        assert self._attempt is not None
        self._enter("rescaling")
        self._least_id = self._attempt.coordinator.next_id
        self._end_attempt()
        self._forget_attempt()

    def _begin(self) -> None:
        desired = self._desired
        if desired.rollback is not None:
            self._go_back(desired.rollback)
        starting = self._starting = Starting(
            self._b, self._excluded, self._least_id, self._claim, desired.parallelism
        )  # fmt: skip
        try:
            self._attempt = starting.start()
        finally:
            self._claim = starting.claim
            self._starting = None
        self._begun_with = desired
        self._enter("running")
        self._tell_begin(self._attempt)
        if self._failed_at:
            restored = self._attempt.restored
            log.warning(
                "job '%s' goes on %s, %.1f s after it failed", self._b.name,
                f"from checkpoint {restored.checkpoint}" if restored else "from its beginning",
                time.monotonic() - self._failed_at,
            )  # fmt: skip
            self._failed_at = 0.0

    def _go_back(self, rollback: Rollback) -> None:
        """Carry out a rollback, unless that was done; storage that is away leaves it to the next attempt."""
        if rollback.is_recorded or rollback.refusal is not None:
            return
        try:
            self._claim = go_back(self._b.jobdir, rollback.checkpoint, self._b.clock, self._claim)
        except (NotFoundError, CorruptionError) as error:
            rollback.refusal = error
            log.warning("job '%s' does not go back to checkpoint %d: %s", self._b.name, rollback.checkpoint, error)
            return
        rollback.is_recorded = True
        # Every byte of it was read: it is whole now if it was found damaged before.
        self._excluded -= {rollback.checkpoint}
        warn_of_sinks(self._b, rollback.checkpoint)

    def _recover(self, error: BaseException) -> None:
        """End the failed attempt and wait for the next; raise the error if there is none."""
        attempt = self._attempt
        error = self._telling.complete(error if attempt is None else attempt.explained(error))
        said = self._note_failure(error)
        completed = attempt.coordinator.counts.completed if attempt else 0
        self._least_id = attempt.coordinator.next_id if attempt else self._least_id
        self._in_a_row = 1 if completed else self._in_a_row + 1
        if not self._may_restart(error) or self._in_a_row > self._restart.attempts:
            raise error
        self._enter("restarting")
        delay_ms = self._restart.delay_ms(self._in_a_row)
        self._failed_at = self._failed_at or time.monotonic()
        log.warning("job '%s' is restarted in %d ms: %s", self._b.name, delay_ms, said)
        again = time.monotonic() + delay_ms / 1000
        self._end_attempt()
        self._forget_attempt()
        self._restarts += 1
        self._stopping.wait(max(0.0, again - time.monotonic()))

    def _enter(self, state: State) -> None:
        """Be in a state, and leave word of it for those who ask when nobody answers."""
        self._state = state
        b, pid = self._b, os.getpid()
        journal.write(b.places, journal.JournalEntry(
            job=b.name, directory=b.jobdir.store.url, pid=pid, born=journal.process_start(pid), since_ms=self._since_ms,
            state=state, at_ms=b.clock.now_ms(), failure=self._last_failure, failure_ms=self._last_failure_ms,
        ))  # fmt: skip

    def _tell_begin(self, attempt: Attempt) -> None:
        # From where, everybody has been told.
        operators, epoch = attempt.driver.operators, attempt.driver.progress.epoch
        after = f", after epoch {epoch}" if epoch else ""
        keepers = sum(operator.parallelism for operator in operators)
        tell(f"job '{self._b.name}' runs{after}; operators: {len(operators)}, keepers: {keepers}")

    def _tell_end(self) -> None:
        done = self._attempt.driver.progress if self._attempt is not None else None
        after = f" after epoch {done.epoch}; rows in its life: {done.rows_in:,}" if done is not None else ""
        if self._state == "failed":
            # Whoever runs the program hears it as an error.
            self._log.note(self._last_failure)
        tell(f"job '{self._b.name}' has {'failed' if self._state == 'failed' else 'ended'}{after}")

    def _note_failure(self, error: BaseException) -> str:
        self._last_failure, self._last_failure_ms = self._telling.in_logs(error), self._b.clock.now_ms()
        return self._last_failure

    def _may_restart(self, error: BaseException) -> bool:
        if isinstance(error, CorruptionError):
            # What breaks while a job runs is whole in its checkpoint; what is broken there ends the job.
            return self._pass_over(error) or (self._state == "running" and "checkpoint" not in error.fields)
        if isinstance(error, UserCodeError):
            return self._restart.on_user_error
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return False
        if isinstance(error, StrandlineError) and "is_final" in error.fields:
            # No restart helps: Spark is gone, or the job is done but for what it writes to.
            return False
        # Only a job that has begun comes here: what refuses it now has let it in before, and may do so again.
        if isinstance(error, ConfigurationError) and "is_sparks" in error.fields:
            # A step or a sink's function may read what another program is replacing: a directory, a table.
            return self._has_done_epochs or (self._attempt is not None and self._attempt.driver.progress.epochs > 0)
        if isinstance(error, ConfigurationError) and "is_targets" in error.fields:
            return True
        return isinstance(error, AccessError) or not isinstance(error, _FINAL)

    def _pass_over(self, error: BaseException) -> bool:
        """Leave out a checkpoint in which restoring found damage; return False if that is not what happened."""
        damaged = error.fields.get("checkpoint") if isinstance(error, CorruptionError) else None
        if damaged is None or CheckpointId(damaged) in self._excluded:
            return False
        log.warning("checkpoint %s is damaged and is passed over: %s", damaged, self._telling.in_logs(error))
        self._excluded |= {CheckpointId(damaged)}
        return True

    def _end_attempt(self, *, forget: bool = False) -> None:
        if self._attempt is not None:
            self._attempt.close(forget=forget)

    def _forget_attempt(self) -> None:
        if self._attempt is not None:
            self._known = status_after(self._attempt)
            self._has_done_epochs |= self._attempt.driver.progress.epochs > 0
        self._attempt = None

    def _is_fenced(self) -> bool:
        try:
            if self._claim is not None:
                self._claim.check()
        except FencedError:
            return True
        except StrandlineError as error:
            log.warning("job '%s': whether another driver owns it is not known: %s", self._b.name, error)
            return True
        return False

    def _raise_if_failed(self) -> None:
        if self._ended.is_set() and self._error is not None:
            if isinstance(self._error, StrandlineError):
                raise self._error
            raise StrandlineError(
                f"job '{self._b.name}' failed: {type(self._error).__name__}: {self._error}",
                discreet=f"job '{self._b.name}' failed: {discreet(self._error)}",
            ) from self._error
