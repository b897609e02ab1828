"""The recent past of a run: its last epochs, checkpoints and interruptions, kept in the driver's memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from strandline.checkpoint.history import CheckpointStats


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """The part of one operator in an epoch: that of its slowest partition, and the mean of all."""

    uid: str
    partition: int
    """The one that worked longest."""
    busy_ms: float
    """Of that partition, without the time in which it waited for rows."""
    wait_ms: float
    mean_busy_ms: float


@dataclass(frozen=True, slots=True)
class EpochStats:
    """The time of one epoch."""

    epoch: int
    ended_ms: int
    """When it ended, in Unix time."""
    rows: int
    took_ms: float
    plan_ms: float
    """Until its Spark jobs began: the plan of its rows, and the check of the keepers. The rest is their run."""
    pause_ms: float
    """For how long a checkpoint's synchronous part held up the slowest partition."""
    checkpoint: int | None
    """The checkpoint that was taken with it."""
    operators: list[OperatorTime] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Interruption:
    """A time in which the job did not work."""

    kind: Literal["failure", "rescale"]
    """A rescale may also be a rollback that was asked for."""
    at_ms: int
    """When it began, in Unix time."""
    down_ms: int
    """Until the job worked again."""
    cause: str
    checkpoint: int | None
    """From which checkpoint the job went on; None: from its beginning, or another job's snapshot."""
    repeated_rows: int
    """The rows that had been processed after that checkpoint: they were processed again."""


@dataclass(frozen=True, slots=True)
class Recent:
    """The recent past of a run."""

    checkpoints: list[CheckpointStats]
    """Of the newest attempt, oldest first."""
    epochs: list[EpochStats]
    """Of the newest attempt, oldest first."""
    interruptions: list[Interruption]
    """Of the whole run, oldest first."""
    earlier_checkpoints: list[CheckpointStats] = field(default_factory=list)
    """The last ones of the attempt before it, as the next field: a reader may not have looked before it ended."""
    earlier_epochs: list[EpochStats] = field(default_factory=list)
