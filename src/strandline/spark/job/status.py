"""What a job is doing, for people and programs to look at."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from strandline.checkpoint.history import CheckpointStats
from strandline.keeper.protocol import Ack
from strandline.runtime.state.scope import as_datetime
from strandline.runtime.watermarks import Reached
from strandline.spark.job.epochs import EpochDriver

State = Literal["starting", "running", "restarting", "finished", "stopped", "failed"]


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
class WatermarkStatus:
    """One watermark(): how far its events are, and which of them it is waiting for. The job's is the least of all."""

    column: str
    source: str
    """The source's name; empty where there is one without."""
    time: str | None
    """In ISO 8601, the delay taken off; None before the first event."""
    slowest: str
    """With `per`, the value of that column whose events are the furthest behind; empty if all are idle."""
    origins: int
    """With `per`, how many values of that column are known."""
    idle: int
    """How many of these are idle."""


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
        "epoch": progress.epoch,
        "rows_in": progress.rows_in,
        "last_epoch_ms": progress.last_epoch_ms,
        "last_epoch_rows": progress.last_rows,
        "late_rows": progress.late_rows,
        "watermark": _text(driver.watermark_us),
        "watermarks": [_of_watermark(reached) for reached in driver.look_at_watermarks()],
        "keepers": [_of_keeper(ack) for _, ack in sorted(progress.acks.items())],
    }


def _of_watermark(reached: Reached) -> WatermarkStatus:
    spec = reached.spec
    return WatermarkStatus(
        spec.column, spec.name, _text(reached.time_us), reached.slowest, reached.origins, reached.idle
    )


def _of_keeper(ack: Ack) -> KeeperStatus:
    return KeeperStatus(**{field.name: getattr(ack, field.name) for field in fields(KeeperStatus)})


def _text(at_us: int | None) -> str | None:
    return None if at_us is None else as_datetime(at_us).isoformat()
