"""What a job says about its checkpoints: when they are taken, and of which operators they consist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.core.errors import ConfigurationError
from strandline.format.manifest import Mode, StateInfo


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are taken, how many stay, and how many may fail.

    `interval_ms` None: only on demand. `tolerable_failures` is how many may fail in a row before the job does;
    None: any number.
    """

    mode: Mode = "incremental"
    interval_ms: int | None = 10_000
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    retain: int = 1
    tolerable_failures: int | None = 0

    def __post_init__(self) -> None:
        if self.mode not in ("full", "incremental"):
            raise ConfigurationError(f"checkpoint mode is {self.mode!r}, expected 'full' or 'incremental'")
        if self.retain < 1:
            raise ConfigurationError(f"retain is {self.retain}, expected 1 or more: the newest checkpoint must stay")
        if self.timeout_ms <= 0 or self.min_pause_ms < 0 or (self.interval_ms is not None and self.interval_ms < 0):
            raise ConfigurationError("checkpoint interval, time-out and pause must not be negative, nor the time-out 0")
        if self.tolerable_failures is not None and self.tolerable_failures < 0:
            raise ConfigurationError(f"tolerable_failures is {self.tolerable_failures}, expected 0 or more, or None")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPlan:
    """What the coordinator must know of a keyed operator."""

    uid: str
    backend: str
    parallelism: int
    max_parallelism: int
    key_schema: str
    states: Sequence[StateInfo] = ()
