"""The log of a job's events: one JSON object a line, for programs, beside the drivers' log. It outlives the job.

Names and meanings of fields never change within a version of the schema; new fields and events may come.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec

from strandline.checkpoint.history import CheckpointStats, Phases
from strandline.control.recent import EpochStats, Interruption, OperatorTime
from strandline.control.rotated import RotatedFile, older_file
from strandline.control.status import State
from strandline.core.clock import Clock

SCHEMA = 1


class StateChange(msgspec.Struct, frozen=True, kw_only=True, tag="state", tag_field="event"):
    """The job has entered a state: starting, running, restarting, rescaling, finished, stopped or failed."""

    state: State
    failure: str = ""
    """The reason of the last failure, if there was one."""


class RunKilled(msgspec.Struct, frozen=True, kw_only=True, tag="killed", tag_field="event"):
    """The driver before this one ended, but not the job: it was killed, mostly. The next start writes it, once."""

    killed_pid: int
    began_ms: int
    """In Unix time, as the others."""
    last_state: State
    last_state_ms: int
    """Since when it was in that state."""


class AttemptBegin(msgspec.Struct, frozen=True, kw_only=True, tag="begin", tag_field="event"):
    """The job works, after a start, a restart or a rescale."""

    generation: int
    checkpoint: int | None
    """The checkpoint that it goes on from; null: from its beginning, or another job's snapshot."""
    epoch: int
    """The last epoch before."""
    parallelism: dict[str, int]
    """The number of partitions of each operator."""


class CheckpointEnd(msgspec.Struct, frozen=True, kw_only=True, tag="checkpoint", tag_field="event"):
    """A checkpoint has ended."""

    checkpoint: int
    status: str
    """completed, failed, or subsumed: given up, since a later one was complete before."""
    mode: str
    epoch: int
    triggered_ms: int
    """In Unix time."""
    duration_ms: int
    uploaded_bytes: int
    total_bytes: int
    phases: Phases | None = None
    """Of a completed one: waits_ms, epoch_ms, durable_ms and published_ms."""
    failure: str = ""
    acknowledged: int = 0
    """The number of partitions that had delivered their snapshot."""
    total_partitions: int = 0

    @classmethod
    def of(cls, stats: CheckpointStats) -> CheckpointEnd:
        """Return the event of a checkpoint that has ended."""
        return cls(
            checkpoint=stats.checkpoint, status=stats.status, mode=stats.mode, epoch=stats.epoch,
            triggered_ms=stats.triggered_ms, duration_ms=stats.end_to_end_ms or 0, uploaded_bytes=stats.uploaded_bytes,
            total_bytes=stats.total_bytes, phases=stats.phases, failure=stats.failure,
            acknowledged=stats.acknowledged, total_partitions=stats.total_partitions,
        )  # fmt: skip


class EpochsEnd(msgspec.Struct, frozen=True, kw_only=True, tag="epochs", tag_field="event"):
    """Epochs have ended: the sum of those of ten seconds, or the figures of one that took longer."""

    first: int
    last: int
    """The numbers of the first and the last epoch. An epoch that a restart repeats counts again."""
    epochs: int
    began_ms: int
    """When the first began, in Unix time, and when the last ended."""
    ended_ms: int
    rows: int
    took_ms: float
    """Of all of them, as plan_ms and the times of operators: each epoch's slowest partition."""
    plan_ms: float
    slowest: int
    """The epoch that took longest."""
    slowest_ms: float
    pause_ms: float
    """The longest pause for a checkpoint's synchronous part."""
    operators: tuple[OperatorTime, ...]
    """Of each: uid, partition (the one that was slowest most of the time), busy_ms, wait_ms and mean_busy_ms."""

    @classmethod
    def of(cls, epochs: Iterable[EpochStats]) -> EpochsEnd:
        """Return the sum of epochs, of at least one."""
        return cls.sum([
            cls(
                first=each.epoch, last=each.epoch, epochs=1, began_ms=int(each.ended_ms - each.took_ms),
                ended_ms=each.ended_ms, rows=each.rows, took_ms=each.took_ms, plan_ms=each.plan_ms,
                slowest=each.epoch, slowest_ms=each.took_ms, pause_ms=each.pause_ms, operators=tuple(each.operators),
            )
            for each in epochs
        ])  # fmt: skip

    @classmethod
    def sum(cls, parts: Sequence[EpochsEnd]) -> EpochsEnd:
        """Return the sum of events, of at least one, oldest first."""
        slowest = max(parts, key=lambda each: each.slowest_ms)
        by_uid: dict[str, list[OperatorTime]] = {}
        for operator in (one for each in parts for one in each.operators):
            by_uid.setdefault(operator.uid, []).append(operator)
        return cls(
            first=parts[0].first, last=parts[-1].last, epochs=sum(each.epochs for each in parts),
            began_ms=min(each.began_ms for each in parts), ended_ms=max(each.ended_ms for each in parts),
            rows=sum(each.rows for each in parts), took_ms=_total(parts, lambda each: each.took_ms),
            plan_ms=_total(parts, lambda each: each.plan_ms), slowest=slowest.slowest, slowest_ms=slowest.slowest_ms,
            pause_ms=max(each.pause_ms for each in parts),
            operators=tuple(_time_of(uid, of_operator) for uid, of_operator in by_uid.items()),
        )  # fmt: skip


class InterruptionEnd(msgspec.Struct, frozen=True, kw_only=True, tag="interruption", tag_field="event"):
    """The job works again after a restart or a rescale."""

    kind: str
    """failure, or rescale; a rescale may also be a rollback that was asked for."""
    began_ms: int
    """In Unix time."""
    down_ms: int
    cause: str
    checkpoint: int | None
    """The checkpoint that it went on from."""
    repeated_rows: int
    """The rows after that checkpoint, which are processed again."""

    @classmethod
    def of(cls, interruption: Interruption) -> InterruptionEnd:
        """Return the event of an interruption that is over."""
        return cls(
            kind=interruption.kind, began_ms=interruption.at_ms, down_ms=interruption.down_ms,
            cause=interruption.cause, checkpoint=interruption.checkpoint, repeated_rows=interruption.repeated_rows,
        )  # fmt: skip


class KeeperReplacement(msgspec.Struct, frozen=True, kw_only=True, tag="keeper_replaced", tag_field="event"):
    """A keeper died, and another one took its place without a restart of the job."""

    operator: str
    partition: int
    pid: int
    """The new process."""
    host: str
    cause: str


class SavepointEnd(msgspec.Struct, frozen=True, kw_only=True, tag="savepoint", tag_field="event"):
    """A savepoint is complete."""

    url: str
    form: str
    """canonical or native."""
    checkpoint: int
    epoch: int
    total_bytes: int
    duration_ms: int


Event = (
    StateChange
    | RunKilled
    | AttemptBegin
    | CheckpointEnd
    | EpochsEnd
    | InterruptionEnd
    | KeeperReplacement
    | SavepointEnd
)


@dataclass
class EventLog:
    """The log of one job's drivers."""

    path: Path
    job: str
    directory: str
    """The checkpoint directory, as a url."""
    clock: Clock
    _file: RotatedFile = field(init=False)

    def __post_init__(self) -> None:
        self._file = RotatedFile(self.path)

    def write(self, event: Event) -> None:
        """Add an event. Never fails."""
        at = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        line = {
            "schema": SCHEMA, "at": at, "job": self.job, "directory": self.directory, "pid": os.getpid(),
            **msgspec.to_builtins(event),
        }  # fmt: skip
        self._file.append(msgspec.json.encode(line) + b"\n")


class _Owner(msgspec.Struct):
    """The fields of all events that say whose they are."""

    directory: str
    pid: int


def read_events(path: Path, is_wanted: Callable[[str], bool] = lambda directory: True) -> list[Event]:
    """Return the events of a log, also of its older file, oldest first, without what is common to all.

    With `is_wanted`, only those of jobs with such a checkpoint directory. What another version wrote, or a full disk
    cut off, is left out.
    """
    events: list[Event] = []
    for line, owner in _read(path):
        if is_wanted(owner.directory):
            with contextlib.suppress(msgspec.DecodeError):
                events.append(msgspec.json.decode(line, type=Event))
    return events


def drivers_of(path: Path) -> dict[int, set[str]]:
    """Return the checkpoint directories of the drivers that wrote events into a log, by their pids."""
    drivers: dict[int, set[str]] = {}
    for _, owner in _read(path):
        drivers.setdefault(owner.pid, set()).add(owner.directory)
    return drivers


def _read(path: Path) -> Iterator[tuple[bytes, _Owner]]:
    for each in (older_file(path), path):
        with contextlib.suppress(OSError), each.open("rb") as lines:
            for line in lines:
                with contextlib.suppress(msgspec.DecodeError):
                    yield line, msgspec.json.decode(line, type=_Owner)


def as_markdown() -> str:
    """Return the events as a table for the documentation."""
    rows = ["| event | when | fields |", "|---|---|---|"]
    for kind in get_args(Event):
        names = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
        config: Any = kind.__struct_config__
        rows.append(f"| `{config.tag}` | {kind.__doc__} | {names} |")
    return "\n".join(rows) + "\n"


def _total(parts: Iterable[Any], value: Callable[[Any], float]) -> float:
    return round(sum(map(value, parts)), 3)


def _time_of(uid: str, parts: Sequence[OperatorTime]) -> OperatorTime:
    by_partition: defaultdict[int, float] = defaultdict(float)
    for each in parts:
        by_partition[each.partition] += each.busy_ms
    return OperatorTime(
        uid, max(by_partition, key=lambda partition: by_partition[partition]),
        _total(parts, lambda each: each.busy_ms), _total(parts, lambda each: each.wait_ms),
        _total(parts, lambda each: each.mean_busy_ms),
    )  # fmt: skip
