"""The log of a job's events: one JSON object a line, for programs, beside the drivers' log. It outlives the job.

Names and meanings of fields never change within a version of the schema; new fields and events may come.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec

from strandline.checkpoint.history import CheckpointStats, Phases
from strandline.control.recent import Interruption
from strandline.control.rotated import RotatedFile
from strandline.control.status import State
from strandline.core.clock import Clock

SCHEMA = 1


class StateChange(msgspec.Struct, frozen=True, kw_only=True, tag="state", tag_field="event"):
    """The job has entered a state: starting, running, restarting, rescaling, finished, stopped or failed."""

    state: State
    failure: str = ""
    """The reason of the last failure, if there was one."""


class RunKilled(msgspec.Struct, frozen=True, kw_only=True, tag="killed", tag_field="event"):
    """The driver before this one was killed, or its machine was lost. The next start of the job writes it, once."""

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

    @classmethod
    def of(cls, stats: CheckpointStats) -> CheckpointEnd:
        """Return the event of a checkpoint that has ended."""
        return cls(
            checkpoint=stats.checkpoint, status=stats.status, mode=stats.mode, epoch=stats.epoch,
            triggered_ms=stats.triggered_ms, duration_ms=stats.end_to_end_ms or 0, uploaded_bytes=stats.uploaded_bytes,
            total_bytes=stats.total_bytes, phases=stats.phases, failure=stats.failure,
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


Event = StateChange | RunKilled | AttemptBegin | CheckpointEnd | InterruptionEnd | KeeperReplacement | SavepointEnd


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


def read_events(path: Path) -> list[Event]:
    """Return the events of a log, oldest first, without what is common to all."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Event) for line in lines]


def as_markdown() -> str:
    """Return the events as a table for the documentation."""
    rows = ["| event | when | fields |", "|---|---|---|"]
    for kind in get_args(Event):
        names = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
        config: Any = kind.__struct_config__
        rows.append(f"| `{config.tag}` | {kind.__doc__} | {names} |")
    return "\n".join(rows) + "\n"
