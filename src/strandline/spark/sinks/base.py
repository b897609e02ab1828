"""What a sink is to the engine: it stages an epoch, commits with a checkpoint, and recovers after a restore."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch, Generation

Visibility = Literal["checkpoint", "epoch"]


@dataclass(frozen=True)
class SinkContext:
    """The run a sink works for."""

    spark: SparkSession
    job: str
    life: str
    """Names the job's life from its very first start: a job made anew in the same place has another."""
    generation: Generation
    sink: str
    fsync: bool = True
    """Whether what is staged and shown must outlast a power failure of this machine."""

    @property
    def identity(self) -> str:
        """Names this sink of this job among all that write to the same place."""
        return hashlib.sha256(f"{self.life}\n{self.job}\n{self.sink}".encode()).hexdigest()[:8]


class Sink(ABC):
    """A place for results. Derive from it to write your own; every step may be repeated and must be idempotent."""

    reads_once = True
    """False: `write` may read its DataFrame more than once, so the engine keeps the rows for it."""

    def __init__(self, *, name: str | None = None, visibility: Visibility = "epoch") -> None:
        if visibility not in ("checkpoint", "epoch"):
            raise ConfigurationError(f"visibility is {visibility!r}, expected 'checkpoint' or 'epoch'")
        self.name = name
        self.visibility: Visibility = visibility

    def open(self, context: SinkContext) -> None:  # noqa: B027
        """Get ready for a run, the first or one after a failure."""

    @abstractmethod
    def write(self, df: DataFrame, epoch: Epoch) -> str | None:
        """Write an epoch's rows; return what `commit` needs to make them visible, or None if they already are."""

    def commit(self, pending: Sequence[str]) -> None:
        """Make staged epochs visible, oldest first. Called once the checkpoint that lists them is published.

        Runs in another thread than `write`, and at the same time.
        """
        if pending:
            raise NotImplementedError(f"{type(self).__name__} stages rows and does not define commit")

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> None:
        """After a restore: commit what the checkpoint lists as pending, forget everything later than `epoch`.

        `fresh`: there was no checkpoint; the job begins, and nothing that is visible belongs to it.
        """
        self.commit(pending)

    def close(self) -> None:  # noqa: B027
        """Let go of what the run held."""
