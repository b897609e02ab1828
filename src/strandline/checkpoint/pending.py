"""A checkpoint in progress, and what it still waits for."""

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
    """The operators, with no partitions yet."""
    waiting: list[Future[CheckpointId]]
    partitions: dict[tuple[str, Partition], PartitionInfo] = field(default_factory=dict)
    source: SourceInfo | None = None
    source_added: bool = False
    watermarks: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    sinks: list[SinkInfo] | None = None
    failure: CheckpointError | None = None
    manifest: Manifest | None = None
    """Made once, so that publishing again writes the same bytes."""
    changed_ms: float | None = None
    """Since when something has happened that it is the first to cover."""
    tolerated: bool = False
    """True: ending it says nothing about the health of checkpoints."""

    def add(self, uid: str, partition: Partition, info: PartitionInfo) -> bool:
        """Take a partition's snapshot; False if that is there already, or of no partition of the job."""
        parallelism = next((plan.parallelism for plan in self.plans if plan.uid == uid), 0)
        if (uid, partition) in self.partitions or not 0 <= partition < parallelism:
            return False
        self.partitions[uid, partition] = info
        return True

    def fail(self, why: str) -> None:
        """Have it fail, unless it does so already."""
        if self.failure is None:
            self.failure = CheckpointError(f"checkpoint {self.checkpoint} {why}")

    def waits_for(self) -> list[str]:
        """Name all that is still missing; empty once the checkpoint can be published."""
        missing = [
            f"operator '{plan.uid}' partition {i}"
            for plan in self.plans
            for i in map(Partition, range(plan.parallelism))
            if (plan.uid, i) not in self.partitions
        ]
        missing += [] if self.source_added else ["the source"]
        missing += [] if self.sinks is not None else ["the sinks"]
        return missing

    def operators(self) -> list[OperatorInfo]:
        """Return what the manifest lists, of a checkpoint that waits for nothing."""
        return [
            structs.replace(plan, partitions=[self.partitions[plan.uid, Partition(i)] for i in range(plan.parallelism)])
            for plan in self.plans
        ]

    def files(self) -> list[FileRef]:
        """Return every file that was reported for it."""
        found = [f for partition in self.partitions.values() for f in partition.files]
        return found + (self.source.files() if self.source else [])


def resolve(waiting: Iterable[Future[CheckpointId]], outcome: CheckpointId | Exception) -> None:
    """Tell those who asked for a checkpoint which one they got, or why there is none."""
    for future in waiting:
        if not future.set_running_or_notify_cancel():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
