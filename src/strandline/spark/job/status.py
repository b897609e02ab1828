"""What a job is doing, for people and programs to look at."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from strandline.checkpoint.history import CheckpointStats
from strandline.keeper.protocol import Ack
from strandline.runtime.watermarks import WatermarkStatus, time_text
from strandline.spark.job.epochs import EpochDriver

State = Literal["starting", "running", "restarting", "rescaling", "finished", "stopped", "failed"]


@dataclass(frozen=True)
class KeeperStatus:
    """One keeper, as it last answered."""

    uid: str
    partition: int
    pid: int
    host: str
    epoch: int
    rows_in: int
    rows_out: int
    process_ms: float
    pause_ms: float
    restore_ms: float
    metrics: dict[str, int]


@dataclass(frozen=True)
class Status:
    """What a job is doing."""

    job: str
    state: State
    generation: int
    restored_from: int | None
    restarts: int
    checkpoints: dict[str, int]
    """Counts: triggered, in_progress, completed, failed, restored."""
    last_checkpoint: CheckpointStats | None
    """The newest completed checkpoint's figures, or None."""
    last_failure: str
    sources: list[str] = field(default_factory=list)
    """Names of the sources; empty if there is one without."""
    parallelism: int = 0
    """Of the operators: how many partitions each has."""
    epoch: int = 0
    rows_in: int = 0
    """Events since the run, or its last restart, began."""
    last_epoch_ms: float = 0.0
    last_epoch_rows: int = 0
    watermark: str | None = None
    """How far event time has come, in ISO 8601; None without a watermark, or before the first event."""
    watermarks: list[WatermarkStatus] = field(default_factory=list)
    """How far each watermark() is: who holds up the job shows here."""
    late_rows: int = 0
    """Events older than the watermark, since the run, or its last restart, began."""
    keepers: list[KeeperStatus] = field(default_factory=list)


def status_of_epochs(driver: EpochDriver) -> dict[str, Any]:
    """Return the fields of a Status that epochs change."""
    progress = driver.progress
    return {
        "parallelism": max((operator.parallelism for operator in driver.operators), default=0),
        "epoch": progress.epoch,
        "rows_in": progress.rows_in,
        "last_epoch_ms": progress.last_epoch_ms,
        "last_epoch_rows": progress.last_rows,
        "late_rows": progress.late_rows,
        "watermark": time_text(driver.watermarks.reached_us),
        "watermarks": driver.look_at_watermarks(),
        "keepers": [_of_keeper(ack) for _, ack in sorted(progress.acks.items())],
    }


def _of_keeper(ack: Ack) -> KeeperStatus:
    return KeeperStatus(**{field.name: getattr(ack, field.name) for field in fields(KeeperStatus)})
