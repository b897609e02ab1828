"""What a running job can be asked for. A new command is an entry of COMMANDS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from strandline.checkpoint.history import CheckpointStats
from strandline.control.status import Savepoint, State, Status
from strandline.control.wire import ProgressMessage
from strandline.core.decoding import decodable
from strandline.core.errors import UnavailableError
from strandline.snapshot.savepoints.progress import SavepointProgress

if TYPE_CHECKING:
    from strandline.keeper.lookups import LookupResult, LookupTable

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R")
Report = Callable[[ProgressMessage], None]


class RunningJob(Protocol):
    """What commands ask of a run, from threads of their own."""

    def status(self) -> Status: ...

    def checkpoint(
        self, timeout: float | None = None, *, progress: Callable[[CheckpointStats], object] | None = None
    ) -> CheckpointStats: ...

    def savepoint(
        self,
        url: str | Path,
        *,
        format: str = "canonical",
        timeout: float | None = None,
        progress: Callable[[SavepointProgress], object] | None = None,
    ) -> Savepoint: ...

    def rescale(self, parallelism: int | Mapping[str, int], *, timeout: float = 300.0) -> None: ...

    def rollback(self, checkpoint: int, *, timeout: float = 300.0) -> None: ...

    def lookup(self, table: str, key: Any) -> LookupResult: ...

    def lookup_table(self, table: str) -> LookupTable: ...

    def stop(
        self,
        *,
        checkpoint: bool = False,
        savepoint: str | Path | None = None,
        drain: bool = False,
        format: str = "canonical",
        timeout: float = 60.0,
        progress: Callable[[SavepointProgress], object] | None = None,
    ) -> None: ...


@dataclass(frozen=True)
class Command(Generic[A, R]):
    """A command: its name, the types of its arguments and result, and what the driver does.

    The handler may take its time, and may raise: errors of ours are the same where they are caught. `Report` is
    called as often as there is news: what nobody is ready for is left out.
    """

    name: str
    arguments: type[A]
    result: type[R]
    handler: Callable[[RunningJob, A, Report], R]

    def __post_init__(self) -> None:
        decodable(self.arguments)
        decodable(self.result)


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Pong(msgspec.Struct, frozen=True):
    """The driver is there."""

    job: str
    state: State


class TakeCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take a checkpoint now."""

    timeout_s: float | None = None


class TakeSavepoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take a savepoint now, into a folder."""

    url: str
    form: str = "canonical"
    timeout_s: float | None = None


class Rescale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Go on with another parallelism: of the job, or by uid of single operators."""

    parallelism: int | dict[str, int]
    timeout_s: float = 300.0


class Rollback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Go back to an older checkpoint."""

    checkpoint: int
    timeout_s: float = 300.0


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stop the job, perhaps after a last checkpoint, or a savepoint, or at the end of event time."""

    checkpoint: bool = False
    savepoint: str | None = None
    drain: bool = False
    form: str = "canonical"
    timeout_s: float = 60.0


class LookUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Look up keys, each as text: JSON or, of one column, plain."""

    table: str
    keys: list[str]


class Looked(msgspec.Struct, frozen=True):
    """What there is of each key, as JSON."""

    table: str
    epoch: int
    values: list[Any]


def _ping(run: RunningJob, _: Nothing, report: Report) -> Pong:
    status = run.status()
    return Pong(status.job, status.state)


def _status(run: RunningJob, _: Nothing, report: Report) -> Status:
    return run.status()


def _checkpoint(run: RunningJob, asked: TakeCheckpoint, report: Report) -> CheckpointStats:
    def tell(stats: CheckpointStats) -> None:
        report(
            ProgressMessage(f"checkpoint {stats.checkpoint}", stats.acknowledged, stats.total_partitions, "partitions")
        )

    return run.checkpoint(asked.timeout_s, progress=tell)


def _savepoint(run: RunningJob, asked: TakeSavepoint, report: Report) -> Savepoint:
    report(ProgressMessage("taking a checkpoint"))
    return run.savepoint(asked.url, format=asked.form, timeout=asked.timeout_s, progress=_teller(report))


def _teller(report: Report) -> Callable[[SavepointProgress], object]:
    def tell(taking: SavepointProgress) -> None:
        report(ProgressMessage(f"{taking.rows:,} rows of state", taking.done, taking.partitions, "partitions"))

    return tell


def _rescale(run: RunningJob, asked: Rescale, report: Report) -> Status:
    report(ProgressMessage("taking a checkpoint, and restoring it"))
    run.rescale(asked.parallelism, timeout=asked.timeout_s)
    return run.status()


def _rollback(run: RunningJob, asked: Rollback, report: Report) -> Status:
    report(ProgressMessage(f"going back to checkpoint {asked.checkpoint}"))
    run.rollback(asked.checkpoint, timeout=asked.timeout_s)
    return run.status()


def _stop(run: RunningJob, asked: Stop, report: Report) -> Pong:
    if run.status().state == "starting":
        # The program is inside of start(), which would have to raise something for it.
        raise UnavailableError(
            f"job '{run.status().job}' is starting: it cannot be stopped yet",
            hint="ask again once it runs, or end its program with SIGTERM or Ctrl-C",
        )
    what = "taking a last checkpoint" if asked.checkpoint or asked.savepoint else "stopping"
    report(ProgressMessage("draining" if asked.drain else what))
    run.stop(
        checkpoint=asked.checkpoint, savepoint=asked.savepoint, drain=asked.drain, format=asked.form,
        timeout=asked.timeout_s, progress=_teller(report),
    )  # fmt: skip
    status = run.status()
    return Pong(status.job, status.state)


def _lookup(run: RunningJob, asked: LookUp, report: Report) -> Looked:
    # Only drivers need them: the command starts without numpy.
    from strandline.types.jsonforms import to_json

    table = run.lookup_table(asked.table)
    found = run.lookup(asked.table, [table.key_of(text) for text in asked.keys])
    return Looked(found.table, found.epoch, to_json(found.value))


PING = Command("ping", Nothing, Pong, _ping)
STATUS = Command("status", Nothing, Status, _status)
CHECKPOINT = Command("checkpoint", TakeCheckpoint, CheckpointStats, _checkpoint)
SAVEPOINT = Command("savepoint", TakeSavepoint, Savepoint, _savepoint)
RESCALE = Command("rescale", Rescale, Status, _rescale)
ROLLBACK = Command("rollback", Rollback, Status, _rollback)
STOP = Command("stop", Stop, Pong, _stop)
LOOKUP = Command("lookup", LookUp, Looked, _lookup)

COMMANDS: dict[str, Command[Any, Any]] = {
    command.name: command for command in (PING, STATUS, CHECKPOINT, SAVEPOINT, RESCALE, ROLLBACK, STOP, LOOKUP)
}
