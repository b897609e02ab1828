"""Statistics of a job's checkpoints in this run, for users."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from strandline.core.html import BAD, GOOD, QUIET, UNSURE, Rows, mark
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.core.settings import Mode
from strandline.core.texts import duration_text, size_text, time_text

Status = Literal["triggered", "in_progress", "completed", "failed", "subsumed"]
"""Subsumed: given up, since a later checkpoint was complete before it."""

_KEPT = 100
_COLOURS = {"triggered": UNSURE, "in_progress": UNSURE, "completed": GOOD, "failed": BAD, "subsumed": QUIET}


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
    waits_for: tuple[str, ...] = ()
    """Of one in progress: its missing parts, as text. With none missing, it is being published."""

    @property
    def acknowledged(self) -> int:
        """The number of partitions that have delivered their snapshot."""
        return len(self.partitions)

    def html_cells(self) -> dict[str, object]:
        """Return what a notebook shows of it."""
        took_ms, age_ms = self.end_to_end_ms, max((sink.age_ms for sink in self.sinks), default=None)
        note = self.failure.partition("\n")[0] or ", ".join(self.waits_for)
        return {
            "checkpoint": self.checkpoint, "state": mark(_COLOURS[self.status], self.status.replace("_", " ")),
            "epoch": self.epoch, "mode": self.mode, "triggered": time_text(self.triggered_ms),
            "took": "" if took_ms is None else duration_text(took_ms),
            "new": size_text(self.uploaded_bytes), "size": size_text(self.total_bytes),
            "rows shown after": "" if age_ms is None else duration_text(age_ms), "": note,
        }  # fmt: skip

    def _repr_html_(self) -> str:
        return Rows([self])._repr_html_()


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of this run's checkpoints by their state."""

    triggered: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0
    subsumed: int = 0
    """Those that were given up, since a later one was complete before them."""


@dataclass
class CheckpointHistory:
    """The last checkpoints, oldest first, and counts over all. Not thread-safe."""

    counts: Counts = field(default_factory=Counts)
    took_ms: int = 0
    """The time of all completed checkpoints, from trigger to completion."""
    uploaded_bytes: int = 0
    """By all completed checkpoints."""
    _entries: deque[CheckpointStats] = field(default_factory=lambda: deque(maxlen=_KEPT), init=False)
    _ended: deque[CheckpointStats] = field(default_factory=lambda: deque(maxlen=_KEPT), init=False)
    """Those that `take_ended` has not returned."""
    _parts: dict[CheckpointId, list[PartitionStats]] = field(default_factory=dict, init=False)
    """The parts of checkpoints in flight: a tuple for each new part would cost much with many partitions."""

    def entries(self, missing: Mapping[CheckpointId, Sequence[str]] | None = None) -> list[CheckpointStats]:
        """Return the kept entries, oldest first; `missing` are the parts that those in flight wait for."""
        entries = map(self._with_parts, self._entries)
        return [
            replace(entry, waits_for=tuple(missing[entry.checkpoint]))
            if missing and entry.checkpoint in missing
            else entry
            for entry in entries
        ]

    def start(self, stats: CheckpointStats) -> None:
        """Add a triggered checkpoint."""
        self._entries.append(stats)
        self._parts[stats.checkpoint] = []
        self.counts = replace(self.counts, triggered=self.counts.triggered + 1, in_progress=len(self._parts))

    def acknowledge(self, checkpoint: CheckpointId, stats: PartitionStats) -> None:
        """Add a partition's part to a checkpoint in flight."""
        self._parts[checkpoint].append(stats)

    def end(
        self, checkpoint: CheckpointId, status: Literal["completed", "failed", "subsumed"], at_ms: int, **changes: Any
    ) -> None:
        """Close the entry of a checkpoint in flight."""

        def close(entry: CheckpointStats) -> CheckpointStats:
            entry = self._with_parts(entry)
            took_ms = at_ms - entry.triggered_ms
            ended = replace(entry, status=status, completed_ms=at_ms, end_to_end_ms=took_ms, **changes)
            if status == "completed":
                self.took_ms += took_ms
                self.uploaded_bytes += ended.uploaded_bytes
            self._ended.append(ended)
            return ended

        self._change(checkpoint, close)
        del self._parts[checkpoint]
        ended = {status: getattr(self.counts, status) + 1}
        self.counts = replace(self.counts, in_progress=len(self._parts), **ended)

    def take_ended(self) -> list[CheckpointStats]:
        """Return the entries that have been closed since the last call."""
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def show(self, checkpoint: CheckpointId, stats: SinkStats) -> None:
        """Add a sink to a completed checkpoint; a newer one may have been triggered since."""
        self._change(checkpoint, lambda entry: replace(entry, sinks=(*entry.sinks, stats)))

    def _change(self, checkpoint: CheckpointId, change: Callable[[CheckpointStats], CheckpointStats]) -> None:
        for number, entry in enumerate(self._entries):
            if entry.checkpoint == checkpoint:
                self._entries[number] = change(entry)

    def _with_parts(self, entry: CheckpointStats) -> CheckpointStats:
        if not (parts := self._parts.get(entry.checkpoint)):
            return entry
        uploaded_bytes = sum(part.uploaded_bytes for part in parts)
        return replace(entry, status="in_progress", partitions=tuple(parts), uploaded_bytes=uploaded_bytes)
