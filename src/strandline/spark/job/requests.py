"""Blocking requests to a running job; retried on the next attempt after a restart.

A request waits while the job starts, restarts or is rescaled. If the attempt that serves it ends, the next one serves
it again. Requests that replace `Supervisor.desired` or stop the run hold `Supervisor.changing`: one at a time.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.history import CheckpointStats
from strandline.control.status import Savepoint, State
from strandline.core.errors import CheckpointError, StrandlineError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.plan.parallelism import ParallelismOverride, check_wanted
from strandline.snapshot.opening.origin import verify_own
from strandline.snapshot.savepoints.progress import SavepointProgress
from strandline.spark.job.attempt import Attempt
from strandline.spark.job.following import parallelism_of
from strandline.spark.job.saving import save, target_of
from strandline.spark.job.supervision import Desired, RequestedRollback, Supervisor

ON_THE_WAY: tuple[State, ...] = ("starting", "restarting", "rescaling")
"""States in which requests wait for the next attempt."""
_POLL_S = 0.02
_REPORT_S = 0.2
_FOLLOW_TIMEOUT_S = 300.0
_SIGNAL_S = 0.5

CheckpointReport = Callable[[CheckpointStats], object]
SavepointReport = Callable[[SavepointProgress], object]


class Requests:
    """The requests of `Run` to a supervised job."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._b = supervisor.blueprint

    def checkpoint(self, timeout: float | None = None, progress: CheckpointReport | None = None) -> CheckpointStats:
        """Take a checkpoint of the current attempt, or of the next one; see `Run.checkpoint`."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            attempt = self._await_attempt(deadline)
            if attempt is None:
                raise self._no_checkpoint(timeout)
            try:
                return self._checkpoint_of(attempt, deadline, progress)
            except CheckpointError as error:
                if "attempt_ended" not in error.fields or not self._is_followed(attempt, deadline):
                    raise

    def savepoint(
        self, url: str | Path, format: str, timeout: float | None = None, progress: SavepointReport | None = None
    ) -> Savepoint:
        """Take a checkpoint and make it a savepoint; see `Run.savepoint`."""
        target_of(self._b, url, format)
        state = self._supervisor.state
        if state not in (*ON_THE_WAY, "running"):
            raise CheckpointError(f"job '{self._b.name}' is {state}: no savepoint can be taken")
        return self._save(lambda: self.checkpoint(timeout), url, format, progress)

    def stop(
        self,
        timeout: float,
        savepoint: str | Path | None = None,
        format: str = "canonical",
        progress: SavepointReport | None = None,
    ) -> None:
        """Take a last checkpoint or savepoint, and stop the job: no later output becomes visible."""
        deadline = time.monotonic() + timeout
        with self._serialized(deadline), self._epochs_paused():
            if savepoint is not None:
                self.savepoint(savepoint, format, timeout, progress)
            else:
                self._take_last_checkpoint(deadline)
            self._supervisor.stopping.set()

    def drain(
        self, timeout: float, savepoint: str | Path | None, format: str, progress: SavepointReport | None
    ) -> None:
        """Let the current attempt, or the next one, drain the job, and wait for the job's end."""
        deadline, draining, ended = time.monotonic() + timeout, self._b.draining, self._supervisor.ended
        with self._serialized(deadline):
            if savepoint is not None:
                # Refuse a wrong URL or format before the drain.
                target_of(self._b, savepoint, format)
                draining.held.set()
            draining.requested.set()
            try:
                if savepoint is not None:
                    self._save_drained(deadline, savepoint, format, progress)
            finally:
                draining.held.clear()
            while not ended.wait(min(_SIGNAL_S, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    break
        self._supervisor.raise_if_failed()
        if not ended.is_set():
            raise self._not_drained("is being drained, and has not ended yet", "it ends as soon as it is")

    def rescale(self, parallelism: int | Mapping[str, int], timeout: float) -> None:
        """Change the parallelism; see `Run.rescale`."""
        check_wanted(parallelism, [node.uid for node in self._b.plan.pipeline.operators])
        deadline = time.monotonic() + timeout
        with self._serialized(deadline):
            override = self._supervisor.desired.parallelism.merge(parallelism)
            self._rescale(override, f"the rescale to {_number_text(parallelism)}", deadline)

    def rollback(self, checkpoint: int, timeout: float) -> None:
        """Go back to an older checkpoint; see `Run.rollback`."""
        supervisor, deadline = self._supervisor, time.monotonic() + timeout
        rollback = RequestedRollback(CheckpointId(checkpoint))
        # Held, so that the checkpoint is not subsumed between its verification and its restore.
        with self._serialized(deadline), self._b.holds:
            manifest = verify_own(self._b.jobdir, rollback.checkpoint)
            self._b.draining.refuse_rollback(self._b.name, manifest)
            supervisor.preparation(supervisor.desired).check_rollback(manifest)
            with self._epochs_paused():
                desired = replace(supervisor.desired, rollback=rollback)
                self._change(desired, f"the rollback to checkpoint {checkpoint}", deadline)
        if rollback.refusal is not None:
            raise rollback.refusal

    @property
    def followed(self) -> tuple[int, int] | None:
        """The current and the greatest parallelism of operators that follow the executors; 0 while none run.

        None if the run does not follow the executors any more.
        """
        supervisor = self._supervisor
        override = supervisor.desired.parallelism
        if supervisor.stopping.is_set() or not override.is_room or override.job is None:
            return None
        attempt = supervisor.attempt
        operators = attempt.driver.operators if attempt is not None and supervisor.is_at_work() else ()
        most = max((operator.max_parallelism for operator in operators if not operator.is_explicit), default=0)
        return min(override.job, most), most

    def follow(self, room: int) -> bool:
        """Rescale to the task slots of the executors; False while another request changes or stops the job."""
        supervisor = self._supervisor
        if not supervisor.changing.acquire(blocking=False):
            return False
        try:
            override = supervisor.desired.parallelism
            is_busy = not supervisor.is_at_work() or supervisor.stopping.is_set() or self._b.draining.requested.is_set()
            if is_busy or not override.is_room:
                return False
            what = f"the rescale to {room}, which its executors have room for,"
            self._rescale(replace(override, job=room), what, time.monotonic() + _FOLLOW_TIMEOUT_S)
            return True
        finally:
            supervisor.changing.release()

    def _rescale(self, override: ParallelismOverride, what: str, deadline: float) -> None:
        """Take a checkpoint, and let the next attempt restore it with another parallelism."""
        b, supervisor = self._b, self._supervisor
        if (attempt := self._await_attempt(deadline)) is None:
            if supervisor.state in ON_THE_WAY and not supervisor.is_ending():
                raise UnavailableError(
                    f"job '{b.name}' is still {supervisor.state}: {what} did not begin",
                    hint="try again with a longer timeout; run.status() shows when the job runs",
                )
            raise UnavailableError(f"job '{b.name}' is {supervisor.state}: it cannot be rescaled")
        parallelism = parallelism_of(b.settings, b.spark, override)
        b.plan.pipeline.settle(parallelism, [o.info(b.settings.backend) for o in attempt.driver.operators])
        with self._epochs_paused():
            self.checkpoint(max(0.0, deadline - time.monotonic()))
            self._change(replace(supervisor.desired, parallelism=override), what, deadline)

    def _change(self, desired: Desired, what: str, deadline: float) -> None:
        """Set the desired state of the run, and wait until an attempt runs with it."""
        supervisor = self._supervisor
        supervisor.desired = desired
        while supervisor.begun_with is not desired or not supervisor.is_at_work():
            supervisor.raise_if_failed()
            if supervisor.ended.is_set():
                raise UnavailableError(f"job '{self._b.name}' was {supervisor.state} before {what} was complete")
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"job '{self._b.name}': {what} is not complete yet",
                    hint="it continues; run.status() shows when the job runs again",
                )
            time.sleep(_POLL_S)

    def _checkpoint_of(
        self, attempt: Attempt, deadline: float, progress: CheckpointReport | None = None
    ) -> CheckpointStats:
        """Take a checkpoint of this attempt only."""
        coordinator, started = attempt.coordinator, time.monotonic()
        request = coordinator.request()
        try:
            if progress is not None:
                _report(request, deadline, coordinator, progress)
            number = request.result(None if deadline == math.inf else max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            left = deadline - started
            reason = (
                f"the checkpoint was not complete within {left:.3g} s"
                if left > 0
                else "no time was left for the checkpoint"
            )
            raise CheckpointError(f"job '{self._b.name}': {reason}") from None
        except StrandlineError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"job '{self._b.name}': the checkpoint was taken, but a sink failed to commit it: "
                f"{type(error).__name__}: {error}",
                hint="the job restarts by itself and commits it again",
            ) from error
        return next(stats for stats in coordinator.history if stats.checkpoint == number)

    def _take_last_checkpoint(self, deadline: float) -> None:
        self._await_attempt(deadline)
        try:
            if not self._supervisor.ended.is_set():
                self.checkpoint(max(0.0, deadline - time.monotonic()))
        except CheckpointError:
            # A job that has finished meanwhile has a checkpoint of everything.
            if self._supervisor.state != "finished":
                raise

    def _no_checkpoint(self, timeout: float | None) -> CheckpointError:
        name, state = self._b.name, self._supervisor.state
        if state in ON_THE_WAY and timeout is not None and not self._supervisor.is_ending():
            return CheckpointError(
                f"job '{name}' is still {state} after {timeout:g} s: no checkpoint was taken",
                hint="try again with a longer timeout; run.status() shows when the job runs",
            )
        return CheckpointError(f"job '{name}' is {state}: no checkpoint can be taken")

    def _save(
        self,
        take_checkpoint: Callable[[], CheckpointStats],
        url: str | Path,
        format: str,
        progress: SavepointReport | None,
    ) -> Savepoint:
        report: Any = progress or (lambda _: None)
        form: Any = format
        target = target_of(self._b, url, format)
        return save(self._b, take_checkpoint, target, form, report, self._supervisor.is_ending, self._shows_all)

    def _shows_all(self) -> bool:
        # During a restart or rescale, the next attempt tries to show the rest.
        attempt = self._supervisor.attempt or self._await_attempt(math.inf)
        return attempt is None or attempt.coordinator.shows_all

    def _save_drained(
        self, deadline: float, savepoint: str | Path, format: str, progress: SavepointReport | None
    ) -> None:
        """Make a savepoint of the drained job. If that fails, the job is drained nevertheless."""
        while (attempt := self._await_drained(deadline)) is not None:
            try:
                # Of this attempt only: the next one must drain first.
                self._save(partial(self._checkpoint_of, attempt, deadline), savepoint, format, progress)
                return
            except CheckpointError as error:
                if "attempt_ended" not in error.fields or not self._is_followed(attempt, deadline):
                    raise
        self._supervisor.raise_if_failed()
        raise CheckpointError(
            f"job '{self._b.name}' had ended before its savepoint {savepoint} was begun",
            hint="`strandline snapshots copy … --canonical` makes one of the job's last checkpoint",
        )

    def _await_drained(self, deadline: float) -> Attempt | None:
        """Wait until an attempt has drained the job; return None if the job has ended before."""
        supervisor = self._supervisor
        while not ((attempt := supervisor.attempt) is not None and supervisor.is_at_work() and attempt.driver.drained):
            if supervisor.ended.wait(_POLL_S):
                return None
            if time.monotonic() > deadline:
                raise self._not_drained("is being drained, and there is no savepoint yet", "it ends as soon as it is")
        return attempt

    def _not_drained(self, what: str, then: str) -> UnavailableError:
        return UnavailableError(f"job '{self._b.name}' {what}", hint=then)

    def check_drained(self) -> None:
        """Raise UnavailableError if the job ended before it was drained."""
        if not self._b.draining.done.is_set():
            raise self._not_drained("had ended before it was drained", "start it, and drain it while it runs")

    def _await_attempt(self, deadline: float) -> Attempt | None:
        """Wait while the job restarts; return the running attempt, if any."""
        supervisor = self._supervisor
        while supervisor.state in ON_THE_WAY and not supervisor.is_ending() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return supervisor.attempt if supervisor.is_at_work() else None

    def _is_followed(self, attempt: Attempt, deadline: float) -> bool:
        """Wait until this attempt has ended; return whether another one follows."""
        supervisor = self._supervisor
        while supervisor.attempt is attempt and not supervisor.is_ending() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return supervisor.attempt is not attempt and not supervisor.is_ending()

    @contextlib.contextmanager
    def _serialized(self, deadline: float) -> Iterator[None]:
        """Serialize requests that change the run: two must not share a checkpoint."""
        changing = self._supervisor.changing
        if not changing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise UnavailableError(f"job '{self._b.name}' is still being changed by another request")
        try:
            yield
        finally:
            changing.release()

    @contextlib.contextmanager
    def _epochs_paused(self) -> Iterator[None]:
        """Let no attempt begin an epoch meanwhile, nor afterwards if the run is being stopped."""
        self._b.paused.set()
        try:
            yield
        finally:
            if not self._supervisor.stopping.is_set():
                self._b.paused.clear()


def _report(request: Future[CheckpointId], deadline: float, coordinator: Coordinator, report: CheckpointReport) -> None:
    """Report the progress of a checkpoint until it has ended or the deadline has passed."""
    while (left := deadline - time.monotonic()) > 0:
        done, _ = wait_for([request], min(_REPORT_S, left))
        if done:
            return
        pending = [stats for stats in coordinator.history if stats.status in ("triggered", "in_progress")]
        if pending:
            report(pending[-1])


def _number_text(parallelism: int | Mapping[str, int]) -> str:
    if not isinstance(parallelism, Mapping):
        return str(parallelism)
    return ", ".join(f"{uid}={number}" for uid, number in parallelism.items())
