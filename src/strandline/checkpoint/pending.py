"""A checkpoint in progress, and the parts it still waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    epoch: Epoch
    triggered_ms: int
    deadline_ms: float
    plans: Sequence[OperatorInfo]
    """The operators, still without partitions."""
    waiting: list[Future[CheckpointId]]
    partitions: dict[tuple[str, Partition], PartitionInfo] = field(default_factory=dict)
    source: SourceInfo | None = None
    source_added: bool = False
    watermarks: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    sinks: list[SinkInfo] | None = None
    failure: CheckpointError | None = None
    manifest: Manifest | None = None
    """Created once, so that a repeated publication writes the same bytes."""
    changed_ms: float | None = None
    """The time of the first change that it covers and older checkpoints do not."""
    began_ms: float = 0.0
    """The steady time of the trigger."""
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


def resolve(waiting: Iterable[Future[CheckpointId]], outcome: CheckpointId | Exception) -> None:
    """Resolve the requests for a checkpoint with its number, or an error."""
    for future in waiting:
        if not future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
