"""What a job is doing, for people and programs to look at, in the driver and outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from strandline.checkpoint.history import CheckpointStats
from strandline.core.ids import CheckpointId, Epoch
from strandline.runtime.reached import WatermarkStatus

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
class OperatorStatus:
    """One keyed operator, as it runs."""

    uid: str
    name: str
    parallelism: int
    """How many partitions, and so keepers, it has."""
    max_parallelism: int
    """How many it may have."""


@dataclass(frozen=True)
class Savepoint:
    """A savepoint that was taken."""

    url: str
    form: str
    """"canonical" or "native"."""
    checkpoint: CheckpointId
    """The checkpoint that it is of."""
    epoch: Epoch
    total_bytes: int
    duration_ms: int


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
    depends_on: str = ""
    """The snapshot of somebody else that the job needs until its first own checkpoint; "" once it stands on its own."""
    sources: list[str] = field(default_factory=list)
    """Names of the sources; empty if there is one without."""
    parallelism: int = 0
    """How many partitions operators have, at most, that have no parallelism of their own; or all, if each has one."""
    follows: bool = False
    """Whether this number follows the cluster's executors."""
    operators: list[OperatorStatus] = field(default_factory=list)
    """The keyed operators, each with its parallelism."""
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
    failed_events: int = 0
    """Events that functions failed for, and that `on_error` has left out, since the run, or its last restart, began."""
    keepers: list[KeeperStatus] = field(default_factory=list)
