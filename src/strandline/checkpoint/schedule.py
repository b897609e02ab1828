"""The schedule of a job's checkpoints: when the next one is due, and which changes no checkpoint covers."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.api.config import Checkpoints
from strandline.core.clock import Clock

_EARLY = 0.1
"""The part of the interval by which an epoch may take a checkpoint early."""


@dataclass
class Schedule:
    """Not thread-safe. Times are of the steady clock."""

    _config: Checkpoints
    _clock: Clock
    _has_changed: bool
    """Whether anything has changed for which no checkpoint was triggered."""

    def __post_init__(self) -> None:
        self._changed_ms: float | None = None
        """The time of the first of these changes."""
        self._last_trigger_ms = self._last_epoch_ms = self._covered_ms = self._clock.monotonic_ms()
        self._ended_ms = self._covered_ms
        """The end of the newest epoch that a checkpoint covers."""
        self._last_end_ms = -float("inf")

    @property
    def changed_ms(self) -> float | None:
        """The time of the first change for which no checkpoint was triggered; None if there is none."""
        return self._changed_ms

    def change(self) -> None:
        """Note that an epoch begins that may change state."""
        self._has_changed = True
        self._last_epoch_ms = self._clock.monotonic_ms()
        self._changed_ms = self._last_epoch_ms if self._changed_ms is None else self._changed_ms

    def trigger(self) -> float | None:
        """Note that a checkpoint is triggered; return the time of the first change that it covers, if any."""
        changed_ms, self._changed_ms, self._has_changed = self._changed_ms, None, False
        self._last_trigger_ms, self._covered_ms = self._clock.monotonic_ms(), self._last_epoch_ms
        return changed_ms

    def end_epoch(self) -> None:
        """Note the end of an epoch that the newest checkpoint covers."""
        self._ended_ms = self._clock.monotonic_ms()

    def end(self) -> None:
        """Note the end of a checkpoint."""
        self._last_end_ms = self._clock.monotonic_ms()

    def fail(self) -> None:
        """Note that a checkpoint was given up: the next one waits for the interval, also with an epoch."""
        self.end()
        self._covered_ms = max(self._covered_ms, self._last_trigger_ms)
        self._ended_ms = max(self._ended_ms, self._last_trigger_ms)

    def uncover(self, changed_ms: float | None) -> None:
        """Note that changes since this time are in no checkpoint, published or in flight."""
        self._has_changed = True
        if changed_ms is not None:
            self._changed_ms = changed_ms if self._changed_ms is None else min(self._changed_ms, changed_ms)

    def is_due(self, *, with_epoch: bool = False, has_ended: bool = False) -> bool:
        """Whether a checkpoint is due now, or with the epoch that begins now or has just ended.

        With an epoch, the interval counts from the newest epoch that the last one covers: after a checkpoint between
        epochs, which are as far apart as the interval, the next one would come between epochs, too. And it may be
        shorter, since epochs that begin once in an interval would miss each second checkpoint.
        """
        interval_ms, now_ms = self._config.interval_ms, self._clock.monotonic_ms()
        if interval_ms is None or not self._has_changed:
            return False
        since_ms, least_ms = self._last_trigger_ms, float(interval_ms)
        if with_epoch or has_ended:
            since_ms = self._ended_ms if has_ended else self._covered_ms
            least_ms = interval_ms * (1 - _EARLY)
        return now_ms - since_ms >= least_ms and now_ms - self._last_end_ms >= self._config.min_pause_ms
