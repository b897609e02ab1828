"""Checkpoints in flight, and the parts that each still waits for.

Several may be in flight. Each covers all that older ones cover: state is complete, positions of sources are later, and
sinks list all rows that are not visible. So the one that is complete first is published, and subsumes the older ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from msgspec import structs

from strandline.core.errors import CheckpointError
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.format.manifest import FileRef, Manifest, OperatorInfo, PartitionInfo, SinkInfo, SourceInfo


@dataclass
class Pending:
    """A checkpoint that was triggered and has not ended."""

    checkpoint: CheckpointId
    base: CheckpointId
    """The newest published checkpoint at the trigger, 0 if there was none: its parts build on this or a later one."""
    epoch: Epoch
    triggered_ms: int
    deadline_ms: float
    plans: Sequence[OperatorInfo]
    """The operators, still without partitions."""
    waiting: list[Future[CheckpointId]]
    changed_ms: float | None
    """The time of the first change that it covers and older checkpoints do not."""
    began_ms: float
    """The steady time of the trigger."""
    partitions: dict[tuple[str, Partition], PartitionInfo] = field(default_factory=dict)
    source: SourceInfo | None = None
    source_added: bool = False
    watermarks: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    epochs: bytes = b""
    sinks: list[SinkInfo] | None = None
    failure: CheckpointError | None = None
    manifest: Manifest | None = None
    """Created once, so that a repeated publication writes the same bytes."""
    epoch_end_ms: float = 0.0
    """The steady time at which the sinks were added, which is the end of the epoch."""
    last_part_ms: float = 0.0
    """The steady time at which the newest part was added."""
    tolerated: bool = False
    """Whether its failure does not count as one in a row."""

    def add(self, uid: str, partition: Partition, info: PartitionInfo) -> bool:
        """Add a partition's snapshot; False if it was added before, or is of no partition of the job."""
        parallelism = next((plan.parallelism for plan in self.plans if plan.uid == uid), 0)
        if (uid, partition) in self.partitions or not 0 <= partition < parallelism:
            return False
        self.partitions[uid, partition] = info
        return True

    def fail(self, why: str) -> None:
        """Set the failure, unless there is one."""
        if self.failure is None:
            self.failure = CheckpointError(f"checkpoint {self.checkpoint} {why}")

    @property
    def unreported(self) -> list[tuple[str, Partition]]:
        """The partitions without a snapshot."""
        slots = [(plan.uid, i) for plan in self.plans for i in map(Partition, range(plan.parallelism))]
        return [slot for slot in slots if slot not in self.partitions]

    def waits_for(self) -> list[str]:
        """Name the missing parts; empty once the checkpoint can be published."""
        missing = [f"operator '{uid}' partition {i}" for uid, i in self.unreported]
        missing += [] if self.source_added else ["the source"]
        missing += [] if self.sinks is not None else ["the sinks"]
        return missing

    def operators(self) -> list[OperatorInfo]:
        """Return the operators for the manifest of a checkpoint with all parts."""
        return [
            structs.replace(plan, partitions=[self.partitions[plan.uid, Partition(i)] for i in range(plan.parallelism)])
            for plan in self.plans
        ]

    def files(self) -> list[FileRef]:
        """Return all reported files."""
        files = [f for partition in self.partitions.values() for f in partition.files]
        return files + (self.source.files() if self.source else [])


class InFlight:
    """The checkpoints that were triggered and have not ended, oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._pending: dict[CheckpointId, Pending] = {}
        self._ending: CheckpointId | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._pending.values())

    @property
    def numbers(self) -> tuple[CheckpointId, ...]:
        """The numbers of all."""
        return tuple(self._pending)

    @property
    def newest(self) -> Pending | None:
        """The one that was triggered last."""
        return next(reversed(self._pending.values()), None)

    @property
    def oldest_base(self) -> CheckpointId | None:
        """The oldest checkpoint on which one of them may build; None if there are none."""
        return min((pending.base for pending in self), default=None)

    @property
    def undecided(self) -> list[Pending]:
        """All but the one that is ending: nothing changes that any more."""
        return [pending for pending in self if pending.checkpoint != self._ending]

    def waiting_for(self, checkpoint: CheckpointId) -> Pending | None:
        """Return an undecided one by its number."""
        return None if checkpoint == self._ending else self._pending.get(checkpoint)

    def paths(self, *, without: Pending | None = None) -> set[str]:
        """Return the paths of all reported files, except those of one checkpoint."""
        return {file.path for pending in self if pending is not without for file in pending.files() if file.path}

    def add(self, pending: Pending) -> None:
        """Add a triggered checkpoint."""
        self._pending[pending.checkpoint] = pending

    def begin_end(self, now_ms: float) -> Pending | None:
        """Return one that is to end now: the newest that is complete, else the oldest that failed or is late."""
        complete = (p for p in reversed(self._pending.values()) if p.failure is None and not p.waits_for())
        failed = (p for p in self if p.failure is not None or now_ms >= p.deadline_ms)
        pending = next(complete, None) or next(failed, None)
        self._ending = pending.checkpoint if pending else None
        return pending

    def stop_end(self) -> None:
        """Note that the end of the checkpoint is over."""
        self._ending = None

    def older(self, pending: Pending) -> list[Pending]:
        """Return those that were triggered before another one."""
        return [each for each in self if each.checkpoint < pending.checkpoint]

    def remove(self, pending: Pending) -> None:
        """Remove one that has ended."""
        del self._pending[pending.checkpoint]

    def hand_over(self, pending: Pending) -> bool:
        """Give the changes of one that was given up to the next later one, which covers them; False without one."""
        later = next((each for each in self if each.checkpoint > pending.checkpoint), None)
        if later is not None and pending.changed_ms is not None:
            times = (pending.changed_ms, later.changed_ms)
            later.changed_ms = min(time for time in times if time is not None)
        return later is not None


def name_parts(parts: Sequence[str]) -> str:
    """Return the first of the missing parts as a text."""
    return ", ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")


def resolve(waiting: Iterable[Future[CheckpointId]], outcome: CheckpointId | Exception) -> None:
    """Resolve the requests for a checkpoint with its number, or an error."""
    for future in waiting:
        if not future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
