"""A job that runs: supervised, restarted after failures, asked for its status, stopped."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import asdict
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from strandline.api.config import Restart
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.history import CheckpointStats
from strandline.control.server import ControlServer
from strandline.control.status import State, Status
from strandline.core.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptionError,
    FencedError,
    StateLimitError,
    StrandlineError,
    UnavailableError,
    UserCodeError,
)
from strandline.core.ids import CheckpointId
from strandline.core.keygroups import check_parallelism
from strandline.keeper.lookups import Found, Table
from strandline.keeper.paths import sweep
from strandline.spark.base.marks import find_error
from strandline.spark.base.quiet import hide_errors_of
from strandline.spark.job.attempt import Attempt, Blueprint
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.job.starting import Starting
from strandline.spark.job.status import status_of_epochs

log = logging.getLogger(__name__)

_live: weakref.WeakSet[Run] = weakref.WeakSet()
_PATIENCE_S = 10.0
"""How long a stop waits before it ends keepers that keep the job from ending."""
_AGAIN_S = 1.0
_LOOK_S = 0.02
_TELL_S = 0.2
_FINAL = (FencedError, ConfigurationError, StateLimitError)


class Run:
    """A started job. Also a context manager that stops it."""

    def __init__(self, blueprint: Blueprint, restart: Restart) -> None:
        self._b = blueprint
        self._restart = restart
        self._starting: Starting | None = None
        self._attempt: Attempt | None = None
        self._state: State = "starting"
        self._parallelism: int | None = None
        """What `rescale` was told; None: what the settings or the checkpoint say."""
        self._stopping = threading.Event()
        self._again = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._last_failure = ""
        self._restarts = 0
        self._in_a_row = 0
        self._excluded: frozenset[CheckpointId] = frozenset()
        self._least_id = CheckpointId(1)
        self._claim: Claim | None = None
        self._control = ControlServer(self, blueprint.places, blueprint.clock.now_ms())
        self._thread = threading.Thread(target=self._supervise, name=f"strandline-{blueprint.name}", daemon=True)

    def start(self) -> None:
        """Start for the first time; what is wrong with the program is raised here."""
        self._held = self._b.places.hold()
        sweep(self._b.places.local_dir)
        hide_errors_of(EpochDriver.__call__.__code__)
        try:
            self._control.start()
            self._begin_first()
            _live.add(self)
            self._thread.start()
        except BaseException:
            if not self._thread.is_alive():
                # Interrupted when the run was there, and nobody to look after it.
                self._end_attempt()
                self._control.end()
                self._control.join()
                self._held.close()
                _live.discard(self)
            raise

    def _begin_first(self) -> None:
        while self._attempt is None:
            try:
                self._begin()
            except BaseException as error:
                found = find_error(error)
                if self._pass_over(found):
                    continue
                if found is error:
                    raise
                raise found from None

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's own query of the current attempt, for its progress reports."""
        return self._attempt.query if self._attempt else None

    def status(self) -> Status:
        """Return what the job is doing now."""
        attempt = self._attempt
        history = attempt.coordinator.history if attempt else []
        return Status(
            job=self._b.name,
            state=self._state,
            generation=self._claim.generation if self._claim else 0,
            restored_from=attempt.restored.checkpoint if attempt and attempt.restored else None,
            restarts=self._restarts,
            checkpoints=asdict(attempt.coordinator.counts) if attempt else {},
            last_checkpoint=next((c for c in reversed(history) if c.status == "completed"), None),
            last_failure=self._last_failure,
            sources=self._b.plan.sources.names,
            **(status_of_epochs(attempt.driver) if attempt else {}),
        )

    def checkpoints(self) -> list[CheckpointStats]:
        """Return figures of this attempt's checkpoints, oldest first."""
        attempt = self._attempt
        return list(attempt.coordinator.history) if attempt else []

    def checkpoint(
        self, timeout: float | None = None, *, progress: Callable[[CheckpointStats], object] | None = None
    ) -> CheckpointStats:
        """Take a checkpoint now and wait for it; return its figures. Meanwhile, `progress` is called with them.

        It covers at least every epoch that was complete when this was called. Raises CheckpointError if it fails.
        """
        if self._state != "running" or self._attempt is None:
            raise CheckpointError(f"job '{self._b.name}' is {self._state}: no checkpoint can be taken")
        coordinator = self._attempt.coordinator
        asked = coordinator.request()
        try:
            if progress is not None:
                timeout = _tell(asked, timeout, coordinator, progress)
            number = asked.result(timeout)
        except TimeoutError:
            raise CheckpointError(f"job '{self._b.name}': the checkpoint was not complete within {timeout} s") from None
        except StrandlineError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"job '{self._b.name}': the checkpoint was taken, but a sink failed to commit it: "
                f"{type(error).__name__}: {error}",
                hint="the job restarts by itself and commits it again",
            ) from error
        return next(stats for stats in coordinator.history if stats.checkpoint == number)

    def lookup(self, table: str, key: Any) -> Found:
        """Return what the running job has of a key, or of each key of a list, as of the last epoch.

        `table` is an operator's uid and the name of one of its states: "detect.seen". A key is a value; of several
        columns, a tuple or a dict. The result has the `value` (None where nothing is stored; defaults are not) and the
        `epoch` whose writes it has. No epoch waits for it, and it waits for none. Raises NotFoundError for a table
        that is not there, StateTypeError for a key that is none, and UnavailableError while the job does not run.
        """
        attempt = self._looked_into()
        try:
            return attempt.look_up(attempt.table(table), key)
        except Exception as error:
            # What broke in a task of Spark's says what it was.
            found = find_error(error)
            if found is error:
                raise
            raise found from None

    def lookup_table(self, table: str) -> Table:
        """Return what a table that can be looked into is keyed by."""
        return self._looked_into().table(table)

    def _looked_into(self) -> Attempt:
        if not self._is_at_work() or (attempt := self._attempt) is None:
            raise UnavailableError(
                f"job '{self._b.name}' is {self._state}: its state cannot be looked up",
                hint="ask again once it runs; a checkpoint of it can be read at any time",
            )
        return attempt

    def process_all_available(self, timeout: float | None = None) -> None:
        """Wait until everything the source has now is processed, and timers that are due have fired.

        Rows are visible after the next checkpoint.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        exhausted_by: tuple[Attempt, int] | None = None
        while True:
            self._raise_if_failed()
            if self._ended.is_set():
                return
            if deadline is not None and time.monotonic() > deadline:
                raise UnavailableError(f"job '{self._b.name}': the source was not exhausted within {timeout} seconds")
            attempt = self._attempt
            if self._is_at_work() and attempt is not None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                exhausted = _exhausted(attempt.query, left)
                if exhausted and (exhausted_by is None or exhausted_by[0] is not attempt):
                    # Timers that fire may set others, for later, on and on.
                    exhausted_by = attempt, attempt.driver.now_us
                idle = exhausted_by is not None and exhausted and not attempt.driver.has_due(exhausted_by[1])
                # A query that is stopped, since the attempt failed, has not processed everything.
                if idle and self._attempt is attempt and self._is_at_work() and not attempt.driver.failed.is_set():
                    return
            time.sleep(0.02)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the job ends, and raise what made it fail. Return False if the time was up before."""
        ended = self._ended.wait(timeout)
        if ended:
            # The program may end with this: who has asked for that should hear of it.
            self._control.join()
        self._raise_if_failed()
        return ended

    def stop(self, *, checkpoint: bool = False, timeout: float = 60.0) -> None:
        """Stop the job and end its keepers. With `checkpoint`, take a last one, so that nothing is repeated later.

        Without it, rows after the last checkpoint stay invisible, and are processed again by the next start. If the
        last one fails, CheckpointError is raised and the job goes on; a job that restarts is waited for. Raises
        UnavailableError if the job has not ended within `timeout`; it ends as soon as it can.
        """
        if checkpoint:
            self._pause_with_checkpoint(timeout)
        self._stopping.set()
        deadline, patience = time.monotonic() + timeout, _PATIENCE_S
        while not self._ended.wait(min(patience, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    f"job '{self._b.name}' has not ended within {timeout:g} s of being stopped",
                    hint="call stop() again to wait longer, or end the program: its keepers end with it",
                )
            patience = _AGAIN_S
            if (at_work := self._starting or self._attempt) is not None:
                at_work.break_off()
        self._thread.join(timeout)
        self._control.join()

    def rescale(self, parallelism: int, *, timeout: float = 300.0) -> None:
        """Go on with another number of partitions: a checkpoint, and a new attempt that restores it so divided.

        Results are those of an undisturbed job. It holds until the job is started again: then `Settings(parallelism=…)`
        counts or, where that is not given, what the newest checkpoint has. Raises ConfigurationError if an operator
        cannot have so many, CheckpointError if the checkpoint fails: then the job goes on as it was.
        """
        if (attempt := self._attempt) is None:
            raise UnavailableError(f"job '{self._b.name}' is {self._state}: it cannot be rescaled")
        for operator in attempt.driver.operators:
            check_parallelism(operator.uid, parallelism, operator.max_parallelism)
        deadline = time.monotonic() + timeout
        self._pause_with_checkpoint(timeout)
        before, self._parallelism = self._attempt, parallelism
        self._again.set()
        while self._attempt is before or self._again.is_set() or not self._is_at_work():
            self._raise_if_failed()
            if self._ended.is_set():
                raise UnavailableError(f"job '{self._b.name}' was {self._state} while it was rescaled")
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"job '{self._b.name}' does not run with parallelism {parallelism} after {timeout:g} s",
                    hint="it goes on restoring; run.status() tells when it is done",
                )
            time.sleep(_LOOK_S)

    def _pause_with_checkpoint(self, timeout: float) -> None:
        """Take a checkpoint that no epoch comes after, unless the job has ended. If it fails, the job goes on."""
        deadline = time.monotonic() + timeout
        while self._state in ("restarting", "rescaling") and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        if self._ended.is_set():
            return
        if not self._is_at_work() or self._attempt is None:
            raise CheckpointError(f"job '{self._b.name}' is {self._state}: no last checkpoint can be taken")
        driver = self._attempt.driver
        driver.paused.set()
        try:
            self.checkpoint(timeout)
        except BaseException:
            driver.paused.clear()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _is_at_work(self) -> bool:
        # Another thread changes it: what was true a moment ago need not be any more.
        return self._state == "running"

    # -- supervision, in a thread of its own

    def _supervise(self) -> None:
        try:
            finished = self._run_attempts()
            # A newer driver on this machine has its working state in the same place.
            owned = not self._is_fenced()
            self._end_attempt(forget=owned)
            if owned:
                self._b.places.remove(self._held)
            self._state = "finished" if finished else "stopped"
        except BaseException as error:
            self._error = error
            self._last_failure = str(error)
            self._end_attempt()
            self._state = "failed"
        finally:
            self._control.end()
            self._held.close()
            self._ended.set()

    def _run_attempts(self) -> bool:
        """Go on until the source is finished, and return True, or until somebody stops the job."""
        while not self._stopping.is_set():
            try:
                if self._attempt is None:
                    self._begin()
                assert self._attempt is not None
                if self._attempt.watch(lambda: self._stopping.is_set() or self._again.is_set()):
                    return True
                if not self._stopping.is_set():
                    self._begin_again()
            except BaseException as error:
                if not self._stopping.is_set():
                    self._recover(find_error(error))
        return False

    def _begin_again(self) -> None:
        """End an attempt that works, so that the next one goes on from its last checkpoint in another way."""
        assert self._attempt is not None
        self._state = "rescaling"
        self._least_id = self._attempt.coordinator.next_id
        self._end_attempt()
        self._attempt = None
        self._again.clear()

    def _begin(self) -> None:
        starting = self._starting = Starting(self._b, self._excluded, self._least_id, self._claim, self._parallelism)
        try:
            self._attempt = starting.start()
        finally:
            self._claim = starting.claim
            self._starting = None
        self._state = "running"

    def _recover(self, error: BaseException) -> None:
        """End the failed attempt and wait for the next; raise the error if there is none."""
        self._last_failure = str(error)
        attempt = self._attempt
        completed = attempt.coordinator.counts.completed if attempt else 0
        self._least_id = attempt.coordinator.next_id if attempt else self._least_id
        self._in_a_row = 1 if completed else self._in_a_row + 1
        if not self._may_restart(error) or self._in_a_row > self._restart.attempts:
            raise error
        self._state = "restarting"
        delay_ms = self._restart.delay_ms(self._in_a_row)
        log.warning("job '%s' is restarted in %d ms: %s", self._b.name, delay_ms, error)
        again = time.monotonic() + delay_ms / 1000
        self._end_attempt()
        self._attempt = None
        self._restarts += 1
        self._stopping.wait(max(0.0, again - time.monotonic()))

    def _may_restart(self, error: BaseException) -> bool:
        if isinstance(error, CorruptionError):
            # What breaks while a job runs is whole in its checkpoint; what is broken there ends the job.
            return self._pass_over(error) or (self._state == "running" and "checkpoint" not in error.fields)
        if isinstance(error, UserCodeError):
            return self._restart.on_user_error
        if isinstance(error, KeyboardInterrupt | SystemExit):
            return False
        return not isinstance(error, _FINAL)

    def _pass_over(self, error: BaseException) -> bool:
        """Leave out a checkpoint in which restoring found damage; return False if that is not what happened."""
        damaged = error.fields.get("checkpoint") if isinstance(error, CorruptionError) else None
        if damaged is None or CheckpointId(damaged) in self._excluded:
            return False
        log.warning("checkpoint %s is damaged and is passed over: %s", damaged, error)
        self._excluded |= {CheckpointId(damaged)}
        return True

    def _end_attempt(self, *, forget: bool = False) -> None:
        if self._attempt is not None:
            self._attempt.close(forget=forget)

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
                f"job '{self._b.name}' failed: {type(self._error).__name__}: {self._error}"
            ) from self._error


def _tell(
    asked: Future[CheckpointId],
    timeout: float | None,
    coordinator: Coordinator,
    progress: Callable[[CheckpointStats], object],
) -> float | None:
    """Tell how far a checkpoint is until it has ended or time is up; return how much of that is left."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        done, _ = wait_for([asked], _TELL_S if left is None else min(_TELL_S, left))
        if done or left == 0.0:
            return left
        under_way = [stats for stats in coordinator.history if stats.status in ("triggered", "in_progress")]
        if under_way:
            progress(under_way[-1])


def _exhausted(query: StreamingQuery, timeout: float | None) -> bool:
    """Wait until a query has processed what there is; False if it failed or the time was up."""
    done = threading.Event()

    def wait() -> None:
        with contextlib.suppress(Exception):
            query.processAllAvailable()
            done.set()

    # In a thread of its own, because Spark's call knows no time-out; it ends with the query.
    waiting = threading.Thread(target=wait, name="strandline-wait", daemon=True)
    waiting.start()
    waiting.join(timeout)
    return done.is_set()


def live_runs() -> list[Run]:
    """Return the runs of this process that were started and have not ended."""
    return [run for run in _live if not run._ended.is_set()]
