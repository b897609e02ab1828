"""Counters of a job's epochs, for its status and for checkpoints, which store the totals."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from strandline.control.recent import EpochStats, OperatorTime
from strandline.control.status import Totals
from strandline.core.ids import Epoch
from strandline.keeper.protocol import Ack
from strandline.spark.keepers.watch import Slot

_ROWS_IN = "rows_in"
_LATE_ROWS = "late_rows"
_FAILED_EVENTS = "failed_events"
_WINDOW_S = 10.0
_RECENT_EPOCHS = 300
_MOST_UNRECORDED = 10_000


class Rate:
    """The rate of rows, as a moving average over the last seconds. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._epochs: deque[tuple[float, float, int]] = deque()
        """The start, the end and the rows of each epoch."""
        self._lock = threading.Lock()

    def note(self, rows: int, took_ms: float) -> None:
        """Count the rows of an epoch that has just ended."""
        with self._lock:
            now_s = self._clock_s()
            self._epochs.append((now_s - took_ms / 1000, now_s, rows))
            self._forget(now_s)

    def per_s(self) -> float:
        """Return the rows a second of the epochs that ended in the last ten seconds, or since the beginning."""
        with self._lock:
            now_s = self._clock_s()
            self._forget(now_s)
            if not self._epochs:
                return 0.0
            # A longer epoch counts with its full time.
            since_s = min(max(self._began_s, now_s - _WINDOW_S), self._epochs[0][0])
            return sum(rows for *_, rows in self._epochs) / max(now_s - since_s, 0.001)

    def _forget(self, now_s: float) -> None:
        while self._epochs and self._epochs[0][1] < now_s - _WINDOW_S:
            self._epochs.popleft()


@dataclass
class Work:
    """The work of one partition in this attempt."""

    rows_in: int = 0
    rows_out: int = 0
    took_ms: float = 0.0
    busy_ms: float = 0.0
    """Without the time in which it waited for rows."""
    late_rows: int = 0
    failed_events: int = 0

    def add(self, ack: Ack) -> None:
        """Add an epoch's work."""
        self.rows_in += ack.rows_in
        self.rows_out += ack.rows_out
        self.took_ms += ack.process_ms
        self.busy_ms += _busy_ms(ack)
        self.late_rows += ack.late_rows
        self.failed_events += ack.failed_events


@dataclass
class JobProgress:
    """The progress of a job."""

    epoch: Epoch
    rows_in: int = 0
    """Like late rows and failed events, of the job's whole life: checkpoints store them, so that each counts once."""
    late_rows: int = 0
    last_epoch_ms: float = 0.0
    last_rows: int = 0
    failed_events: int = 0
    epochs: int = 0
    """Of this attempt, as the next two fields."""
    all_ms: float = 0.0
    """The time of these epochs."""
    restored: tuple[int, int, int] = (0, 0, 0)
    """The rows, late rows and failed events with which it began."""
    replaced: int = 0
    """The keepers that others have replaced in this attempt."""
    acks: dict[Slot, Ack] = field(default_factory=dict)
    work: dict[Slot, Work] = field(default_factory=dict)
    rate: Rate = field(default_factory=Rate)
    recent: deque[EpochStats] = field(default_factory=lambda: deque(maxlen=_RECENT_EPOCHS))
    """The last epochs, oldest first."""
    _unrecorded: deque[EpochStats] = field(default_factory=lambda: deque(maxlen=_MOST_UNRECORDED))
    """Those that `take_ended` has not returned."""

    @classmethod
    def after(cls, epoch: Epoch, totals: Mapping[str, int]) -> JobProgress:
        """Return the progress after a checkpoint with this epoch and these totals."""
        rows, late, failed = (totals.get(name, 0) for name in (_ROWS_IN, _LATE_ROWS, _FAILED_EVENTS))
        return cls(epoch, rows, late, failed_events=failed, restored=(rows, late, failed))

    def note_times(self, acks: Collection[Ack], now_ms: int, plan_ms: float, checkpoint: int | None) -> None:
        """Keep the times of the epoch that has just been counted."""
        by_uid: dict[str, list[Ack]] = {}
        for ack in acks:
            by_uid.setdefault(ack.uid, []).append(ack)
        stats = EpochStats(
            self.epoch, now_ms, self.last_rows, round(self.last_epoch_ms, 3), round(plan_ms, 3),
            max((ack.pause_ms for ack in acks), default=0.0), checkpoint,
            [_time_of(uid, of_operator) for uid, of_operator in by_uid.items()],
        )  # fmt: skip
        self.recent.append(stats)
        self._unrecorded.append(stats)

    def take_ended(self) -> list[EpochStats]:
        """Return the epochs that have ended since the last call, for another thread."""
        return [self._unrecorded.popleft() for _ in range(len(self._unrecorded))]

    def counted(self) -> Totals:
        """Return the counts of this attempt alone."""
        rows, late, failed = self.restored
        return Totals(
            self.epochs, self.all_ms, self.rows_in - rows, self.late_rows - late, self.failed_events - failed,
            self.replaced,
        )  # fmt: skip

    def totals(self) -> dict[str, int]:
        """Return the totals that a checkpoint of the last epoch stores."""
        failed = {_FAILED_EVENTS: self.failed_events} if self.failed_events else {}
        return {_ROWS_IN: self.rows_in, _LATE_ROWS: self.late_rows, **failed}


def _busy_ms(ack: Ack) -> float:
    return max(0.0, ack.process_ms - ack.wait_ms)


def _time_of(uid: str, acks: Collection[Ack]) -> OperatorTime:
    slowest = max(acks, key=_busy_ms)
    mean_ms = sum(map(_busy_ms, acks)) / len(acks)
    return OperatorTime(uid, slowest.partition, round(_busy_ms(slowest), 3), slowest.wait_ms, round(mean_ms, 3))
