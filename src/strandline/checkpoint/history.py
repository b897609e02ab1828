"""Statistics of a job's checkpoints in this run, for users."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.format.manifest import Mode

Status = Literal["triggered", "in_progress", "completed", "failed"]

_KEPT = 100


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition's part in a checkpoint."""

    uid: str
    partition: Partition
    sync_ms: float
    async_ms: float
    uploaded_bytes: int


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of a completed checkpoint up to its publication, in ms of the steady clock.

    They begin with the oldest epoch that the checkpoint covers and no older one does.
    """

    waits_ms: float
    """From the begin of that epoch to the trigger."""
    epoch_ms: float
    """From the trigger to the end of the epoch that the checkpoint ends with; 0 for a checkpoint between epochs."""
    durable_ms: float
    """From there until all parts were in storage and reported: of the partitions, the sources and the sinks."""
    published_ms: float
    """From there until the manifest was created."""


@dataclass(frozen=True, slots=True)
class SinkStats:
    """The rows that a sink has shown with a checkpoint, in ms of the steady clock."""

    name: str
    shown_ms: float
    """From the creation of the manifest until the rows were visible, after those of the job's sinks before this one."""
    age_ms: float
    """From the begin of the epoch of the oldest of the rows until they were visible."""


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """Statistics of one checkpoint. `uploaded_bytes` is the increment, `total_bytes` the size of all its files."""

    checkpoint: CheckpointId
    mode: Mode
    epoch: Epoch
    status: Status
    triggered_ms: int
    total_partitions: int
    completed_ms: int | None = None
    end_to_end_ms: int | None = None
    partitions: tuple[PartitionStats, ...] = ()
    """One for each partition that has acknowledged."""
    uploaded_bytes: int = 0
    total_bytes: int = 0
    path: str = ""
    frees: str = ""
    """The restored snapshot that the job does not need any more since this checkpoint."""
    failure: str = ""
    phases: Phases | None = None
    """None until the checkpoint is complete, and if an earlier run took it."""
    sinks: tuple[SinkStats, ...] = ()
    """One for each sink that has shown rows with this checkpoint."""

    @property
    def acknowledged(self) -> int:
        """The number of partitions that have delivered their snapshot."""
        return len(self.partitions)


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of this run's checkpoints by their state."""

    triggered: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0


@dataclass
class CheckpointHistory:
    """The last checkpoints, oldest first, and counts over all. Not thread-safe."""

    counts: Counts = field(default_factory=Counts)
    _entries: deque[CheckpointStats] = field(default_factory=lambda: deque(maxlen=_KEPT), init=False)
    _parts: list[PartitionStats] = field(default_factory=list, init=False)
    """The parts of the newest entry, until it ends: a tuple for each new part would cost much with many partitions."""

    def entries(self) -> list[CheckpointStats]:
        """Return the kept entries, oldest first."""
        return [*list(self._entries)[:-1], self._newest()] if self._entries else []

    def start(self, stats: CheckpointStats) -> None:
        """Add a triggered checkpoint; at most one has not ended."""
        self._entries.append(stats)
        self._parts = []
        self.counts = replace(self.counts, triggered=self.counts.triggered + 1, in_progress=1)

    def acknowledge(self, stats: PartitionStats) -> None:
        """Add a partition's part to the newest entry."""
        self._parts.append(stats)

    def end(self, status: Literal["completed", "failed"], at_ms: int, **changes: Any) -> None:
        """Close the newest entry."""
        newest = self._newest()
        self._entries[-1] = replace(
            newest, status=status, completed_ms=at_ms, end_to_end_ms=at_ms - newest.triggered_ms, **changes
        )
        self._parts = []
        self.counts = replace(self.counts, in_progress=0, **{status: getattr(self.counts, status) + 1})

    def show(self, checkpoint: CheckpointId, stats: SinkStats) -> None:
        """Add a sink to a completed checkpoint; a newer one may have been triggered since."""
        for number, entry in enumerate(self._entries):
            if entry.checkpoint == checkpoint:
                self._entries[number] = replace(entry, sinks=(*entry.sinks, stats))

    def _newest(self) -> CheckpointStats:
        newest = self._entries[-1]
        if not self._parts:
            return newest
        uploaded_bytes = sum(part.uploaded_bytes for part in self._parts)
        return replace(newest, status="in_progress", partitions=tuple(self._parts), uploaded_bytes=uploaded_bytes)
