"""Who asks something of a running job waits for the attempt that can give it: others end, and are followed."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for

from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.history import CheckpointStats
from strandline.control.status import State
from strandline.core.errors import CheckpointError, StrandlineError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.spark.job.attempt import Attempt
from strandline.spark.job.supervision import Desired, Supervised

ON_THE_WAY: tuple[State, ...] = ("starting", "restarting", "rescaling")
"""Who asks something of the job then waits until it works."""
_LOOK_S = 0.02
_TELL_S = 0.2


class Waiting(Supervised):
    """A job's attempts, waited for, paused and replaced."""

    def _checkpoint_of(
        self, attempt: Attempt, deadline: float, progress: Callable[[CheckpointStats], object] | None = None
    ) -> CheckpointStats:
        """Take a checkpoint of an attempt, and of no other one."""
        coordinator, started = attempt.coordinator, time.monotonic()
        asked = coordinator.request()
        try:
            if progress is not None:
                _tell(asked, deadline, coordinator, progress)
            number = asked.result(None if deadline == math.inf else max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            within = f"{max(0.0, deadline - started):.0f} s"
            raise CheckpointError(f"job '{self._b.name}': the checkpoint was not complete within {within}") from None
        except StrandlineError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"job '{self._b.name}': the checkpoint was taken, but a sink failed to commit it: "
                f"{type(error).__name__}: {error}",
                hint="the job restarts by itself and commits it again",
            ) from error
        return next(stats for stats in coordinator.history if stats.checkpoint == number)

    def _no_checkpoint(self, timeout: float | None) -> CheckpointError:
        name, state = self._b.name, self._state
        if state in ON_THE_WAY and timeout is not None and not self._is_ending():
            return CheckpointError(
                f"job '{name}' is still {state} after {timeout:g} s: no checkpoint was taken",
                hint="ask again, with a longer timeout; run.status() tells when it works",
            )
        return CheckpointError(f"job '{name}' is {state}: no checkpoint can be taken")

    def _is_followed(self, attempt: Attempt, deadline: float) -> bool:
        """Wait until an attempt that ends is over; return whether another one is to come, or there is one."""
        while self._attempt is attempt and not self._is_ending() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return self._attempt is not attempt and not self._is_ending()

    @contextlib.contextmanager
    def _alone(self, deadline: float) -> Iterator[None]:
        """One at a time: of two with the same checkpoint, one would be told that it has what the other one wanted."""
        if not self._changing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise UnavailableError(f"job '{self._b.name}' is still being changed by somebody else")
        try:
            yield
        finally:
            self._changing.release()

    def _change(self, desired: Desired, what: str, deadline: float) -> None:
        """Set what the run is to go on with, and wait until an attempt works that has begun with it."""
        self._desired = desired
        while self._begun_with is not desired or not self._is_at_work():
            self._raise_if_failed()
            if self._ended.is_set():
                raise UnavailableError(f"job '{self._b.name}' was {self._state} before {what} was complete")
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"job '{self._b.name}': {what} is not complete yet",
                    hint="it goes on; run.status() tells when the job is running again",
                )
            time.sleep(_LOOK_S)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """Begin no epochs within, in whatever attempt; nor from then on, if the run is being stopped."""
        self._b.paused.set()
        try:
            yield
        finally:
            if not self._stopping.is_set():
                self._b.paused.clear()

    def _await_attempt(self, deadline: float) -> Attempt | None:
        """Wait while the job restarts; return what is at work then, if anything is."""
        while self._state in ON_THE_WAY and not self._is_ending() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return self._attempt if self._is_at_work() else None


def _tell(
    asked: Future[CheckpointId],
    deadline: float,
    coordinator: Coordinator,
    progress: Callable[[CheckpointStats], object],
) -> None:
    """Tell how far a checkpoint is until it has ended or time is up."""
    while (left := deadline - time.monotonic()) > 0:
        done, _ = wait_for([asked], min(_TELL_S, left))
        if done:
            return
        under_way = [stats for stats in coordinator.history if stats.status in ("triggered", "in_progress")]
        if under_way:
            progress(under_way[-1])
