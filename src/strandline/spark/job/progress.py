"""Counters of a job's epochs, for its status and for checkpoints, which store the totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.core.ids import Epoch
from strandline.keeper.protocol import Ack
from strandline.spark.job.rate import Rate
from strandline.spark.keepers.watch import Slot

_ROWS_IN = "rows_in"
_LATE_ROWS = "late_rows"
_FAILED_EVENTS = "failed_events"


@dataclass
class Work:
    """The work of one partition in this attempt."""

    rows_in: int = 0
    rows_out: int = 0
    took_ms: float = 0.0


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
    """Of this attempt."""
    acks: dict[Slot, Ack] = field(default_factory=dict)
    work: dict[Slot, Work] = field(default_factory=dict)
    rate: Rate = field(default_factory=Rate)

    @classmethod
    def after(cls, epoch: Epoch, totals: Mapping[str, int]) -> JobProgress:
        """Return the progress after a checkpoint with this epoch and these totals."""
        counted = totals.get(_ROWS_IN, 0), totals.get(_LATE_ROWS, 0)
        return cls(epoch, *counted, failed_events=totals.get(_FAILED_EVENTS, 0))

    def totals(self) -> dict[str, int]:
        """Return the totals that a checkpoint of the last epoch stores."""
        failed = {_FAILED_EVENTS: self.failed_events} if self.failed_events else {}
        return {_ROWS_IN: self.rows_in, _LATE_ROWS: self.late_rows, **failed}
