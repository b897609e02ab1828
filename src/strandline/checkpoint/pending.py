"""A checkpoint in progress, and what it still waits for."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from strandline.core.errors import CheckpointError
from strandline.core.ids import CheckpointId, Epoch
from strandline.format.manifest import FileRef, Manifest, PartitionInfo, SinkInfo, SourceInfo, source_files


@dataclass
class Pending:
    """A checkpoint that was triggered and has not ended."""

    checkpoint: CheckpointId
    epoch: Epoch
    triggered_ms: int
    deadline_ms: float
    waiting: list[Future[CheckpointId]]
    partitions: dict[tuple[str, int], PartitionInfo] = field(default_factory=dict)
    source: SourceInfo | None = None
    source_added: bool = False
    watermarks: Mapping[str, int] = field(default_factory=dict)
    sinks: list[SinkInfo] | None = None
    failure: CheckpointError | None = None
    manifest: Manifest | None = None
    """Made once, so that publishing again writes the same bytes."""
    tolerated: bool = False
    """True: ending it says nothing about the health of checkpoints."""

    def files(self) -> list[FileRef]:
        found = [f for partition in self.partitions.values() for f in partition.files]
        if self.source is not None:
            found += source_files(self.source)
        return found
