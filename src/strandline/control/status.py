"""What a job is doing, for people and programs to look at, in the driver and outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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
    all_rows_in: int = 0
    """In all epochs since the job's last start or restart, as are the next two: skewed keys show here."""
    all_rows_out: int = 0
    all_ms: float = 0.0
    state_bytes: int | None = None
    """What the backend holds, on disk or, where it is in memory, there; None if it has not said yet."""
    memory_bytes: int | None = None
    """What the process has in memory."""


@dataclass(frozen=True)
class SourceStatus:
    """One source: how far it was read, and what waits there."""

    name: str
    """As in `stream(…, name=…)`; empty where there is one without."""
    what: str
    """What it is, as Spark says it: `FileStreamSource[file:/in]`."""
    read_to: Any = None
    """The offsets up to which it was read, as the source has them."""
    latest: Any = None
    """The offsets that there were when Spark looked last; None if the source does not say."""
    offsets_behind: int | None = None
    """How many offsets are between these; None if that is not known."""
    files_behind: int | None = None
    """Of a source of files: how many wait that no epoch has processed; None if that is not known."""
    bytes_behind: int | None = None
    waiting_ms: int | None = None
    """For how long the oldest of these files has been there; 0 if none waits."""


@dataclass(frozen=True)
class SinkStatus:
    """One sink that writes to another system: what is there, and what waits for it."""

    name: str
    rows: int = 0
    """How many this run has delivered, since its last start or restart."""
    refused_rows: int = 0
    """How many of those the target refused, where `on_error` lets the job go on."""
    waiting_rows: int = 0
    """How many a checkpoint has listed that are not delivered: what they go to did not take them."""
    waiting_bytes: int = 0
    waiting_ms: int = 0
    """For how long the oldest of them has waited."""
    failure: str = ""
    """Why they wait."""


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
    """Why the job was restarted last, or has failed; "" if it was not."""
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
    last_failure_ms: int | None = None
    """When that was."""
    uncovered_ms: int = 0
    """For how long something has happened that no complete checkpoint covers: so much would be done again after a
    failure now. 0 if the newest covers everything, however old it is."""
    epoch: int = 0
    rows_in: int = 0
    """Events of the job's whole life, each counted once: a checkpoint has the number, and a restart goes on from it."""
    rows_per_s: float = 0.0
    """Of the last ten seconds."""
    epochs: int = 0
    """Since the run, or its last restart, began."""
    last_epoch_ms: float = 0.0
    last_epoch_rows: int = 0
    watermark: str | None = None
    """How far event time has come, in ISO 8601; None without a watermark, or before the first event."""
    watermarks: list[WatermarkStatus] = field(default_factory=list)
    """How far each watermark() is: who holds up the job shows here."""
    late_rows: int = 0
    """Events older than the watermark, in the job's whole life."""
    failed_events: int = 0
    """Events that functions failed for, and that `on_error` has left out, in the job's whole life."""
    source_progress: list[SourceStatus] = field(default_factory=list)
    """How far each source was read."""
    sinks: list[SinkStatus] = field(default_factory=list)
    """What waits in sinks that write to other systems."""
    keepers: list[KeeperStatus] = field(default_factory=list)
