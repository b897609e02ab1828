"""A job's figures, of which metrics and spans are made: its status and recent past, as a driver or record has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal, get_args

from strandline.control.recent import Recent
from strandline.control.status import KeeperStatus, State, Status

MOST_PARTITIONS = 200
"""By default, for how many partitions a job has metrics of each; of a larger job, of each operator."""
JobState = Literal[State, "killed", "no answer", "other version"]
"""The last: its driver is of another version of Strandline, so that it cannot be asked for its status."""
JOB_STATES: tuple[str, ...] = (*get_args(State), "killed", "no answer", "other version")
ALL = "all"
"""The label `partition` of an operator whose partitions are summed up."""


@dataclass(frozen=True)
class Figures:
    """A job at one moment."""

    job: str
    directory: str
    """The checkpoint directory, as a url."""
    state: JobState
    since_ms: int
    """When its driver began; 0 if that is not known."""
    at_ms: int
    version: str = ""
    """Strandline's, of the driver."""
    status: Status | None = None
    """None: no driver answers."""
    recent: Recent | None = None
    most_partitions: int = MOST_PARTITIONS

    @cached_property
    def keepers(self) -> Sequence[tuple[str, KeeperStatus]]:
        """The partitions, each with its label; with more of them than `most_partitions`, one for each operator."""
        keepers = self.status.keepers if self.status is not None else []
        if len(keepers) <= self.most_partitions:
            return [(str(keeper.partition), keeper) for keeper in keepers]
        by_uid: dict[str, KeeperStatus] = {}
        for keeper in keepers:
            by_uid[keeper.uid] = _sum(by_uid[keeper.uid], keeper) if keeper.uid in by_uid else keeper
        return [(ALL, keeper) for keeper in by_uid.values()]


def _sum(one: KeeperStatus, other: KeeperStatus) -> KeeperStatus:
    """Return the sums of two partitions; of the times of one event, such as a restore, the longer one."""
    changes: dict[str, object] = {
        "metrics": {
            name: one.metrics.get(name, 0) + other.metrics.get(name, 0)
            for name in {**one.metrics, **other.metrics}
            if name not in _OF_PROCESS
        },
        "restore_ms": max(one.restore_ms, other.restore_ms),
        "pause_ms": max(one.pause_ms, other.pause_ms),
    }
    for name in (each.name for each in fields(KeeperStatus) if each.name in _SUMMED):
        values = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        changes[name] = sum(values) if values else None
    return replace(one, **changes)  # type: ignore[arg-type]


_OF_PROCESS = frozenset(("cache_hits", "cache_misses"))
"""Counters that begin again with each keeper: a sum of them would fall when one is replaced, as no counter may."""
_SUMMED = frozenset((
    "all_rows_in", "all_rows_out", "all_ms", "all_busy_ms", "late_rows", "failed_events", "state_bytes", "memory_bytes",
))  # fmt: skip
