"""The commands that a running job accepts. A new command is an entry of COMMANDS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from strandline.checkpoint.history import CheckpointStats
from strandline.control.profile import Profile
from strandline.control.recent import Recent
from strandline.control.status import Savepoint, State, Status
from strandline.control.wire import ProgressMessage
from strandline.core.decoding import decodable
from strandline.core.errors import UnavailableError
from strandline.snapshot.savepoints.progress import SavepointProgress

if TYPE_CHECKING:
    from strandline.keeper.lookups import FirstKeys, LookupResult, LookupTable

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R")
Report = Callable[[ProgressMessage], None]
_MOST_PARTS = 5000
"""How many parts of checkpoints are in the answer to `recent`."""


class RunningJob(Protocol):
    """The methods of a run that commands call, from other threads."""

    def status(self) -> Status: ...

    def recent(self) -> Recent: ...

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

    def lookup_tables(self) -> dict[str, LookupTable]: ...

    def first_keys(self, table: str, most: int = 100, *, partition: int | None = None) -> FirstKeys: ...

    def profile(self, seconds: float = 5.0) -> Profile: ...

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
    """A command: its name, the types of its arguments and result, and the handler that the driver runs.

    The handler may take long, and may raise: the client raises a StrandlineError again, with its fields. It may call
    `Report` as often as it likes: the client receives the newest report, and older ones are dropped.
    """

    name: str
    arguments: type[A]
    result: type[R]
    handler: Callable[[RunningJob, A, Report], R]

    def __post_init__(self) -> None:
        decodable(self.arguments)
        decodable(self.result)


class NoArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No arguments."""


class Pong(msgspec.Struct, frozen=True):
    """A sign of life of the driver."""

    job: str
    state: State


class TakeCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take a checkpoint now."""

    timeout_s: float | None = None


class TakeSavepoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take a savepoint now, in a folder."""

    url: str
    form: str = "canonical"
    timeout_s: float | None = None


class Rescale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Change the parallelism: of the job, or by uid of single operators."""

    parallelism: int | dict[str, int]
    timeout_s: float = 300.0


class Rollback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Return to an older checkpoint."""

    checkpoint: int
    timeout_s: float = 300.0


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stop the job; if the options say so, after a last checkpoint, after a savepoint, or at the end of event time."""

    checkpoint: bool = False
    savepoint: str | None = None
    drain: bool = False
    form: str = "canonical"
    timeout_s: float = 60.0


class TakeProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take samples of what the keepers do, for some seconds."""

    seconds: float = 5.0


class LookUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Look up keys, each as text: JSON or, if the key is one column, plain."""

    table: str
    keys: list[str]


class LookupValues(msgspec.Struct, frozen=True):
    """The value of each key, as JSON."""

    table: str
    epoch: int
    values: list[Any]


class ListKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """List the first keys of a state: of all partitions, or of one."""

    table: str
    most: int = 100
    partition: int | None = None


class ListedKeys(msgspec.Struct, frozen=True):
    """Some keys of a state, each with its value, as JSON."""

    table: str
    epoch: int
    columns: dict[str, str]
    """The types of the columns of a key, by name."""
    keys: list[list[Any]]
    values: list[Any]
    has_more: bool


class StateTable(msgspec.Struct, frozen=True):
    """A state that keys can be looked up in."""

    table: str
    kind: str
    partitions: int
    columns: dict[str, str]
    """The types of the columns of a key, by name."""


class StateTables(msgspec.Struct, frozen=True):
    """All states of a job that keys can be looked up in."""

    tables: list[StateTable]


def _ping(run: RunningJob, _: NoArguments, report: Report) -> Pong:
    status = run.status()
    return Pong(status.job, status.state)


def _status(run: RunningJob, _: NoArguments, report: Report) -> Status:
    return run.status()


def _recent(run: RunningJob, _: NoArguments, report: Report) -> Recent:
    recent, left = run.recent(), _MOST_PARTS
    checkpoints: list[CheckpointStats] = []
    for stats in reversed(recent.checkpoints):
        # Of a job with many partitions, only the newest checkpoints have theirs: a client asks often.
        left -= len(stats.partitions)
        checkpoints.append(stats if left >= 0 else replace(stats, partitions=()))
    return replace(recent, checkpoints=checkpoints[::-1])


def _checkpoint(run: RunningJob, arguments: TakeCheckpoint, report: Report) -> CheckpointStats:
    def send(stats: CheckpointStats) -> None:
        report(
            ProgressMessage(f"checkpoint {stats.checkpoint}", stats.acknowledged, stats.total_partitions, "partitions")
        )

    return run.checkpoint(arguments.timeout_s, progress=send)


def _savepoint(run: RunningJob, arguments: TakeSavepoint, report: Report) -> Savepoint:
    report(ProgressMessage("taking a checkpoint"))
    return run.savepoint(arguments.url, format=arguments.form, timeout=arguments.timeout_s, progress=_reporter(report))


def _reporter(report: Report) -> Callable[[SavepointProgress], object]:
    def send(progress: SavepointProgress) -> None:
        report(ProgressMessage(f"{progress.rows:,} rows of state", progress.done, progress.partitions, "partitions"))

    return send


def _rescale(run: RunningJob, arguments: Rescale, report: Report) -> Status:
    report(ProgressMessage("taking a checkpoint, and restoring it"))
    run.rescale(arguments.parallelism, timeout=arguments.timeout_s)
    return run.status()


def _rollback(run: RunningJob, arguments: Rollback, report: Report) -> Status:
    report(ProgressMessage(f"going back to checkpoint {arguments.checkpoint}"))
    run.rollback(arguments.checkpoint, timeout=arguments.timeout_s)
    return run.status()


def _stop(run: RunningJob, arguments: Stop, report: Report) -> Pong:
    if run.status().state == "starting":
        # The program is inside start(), which would have to raise an error.
        raise UnavailableError(
            f"job '{run.status().job}' is starting: it cannot be stopped yet",
            hint="ask again once it runs, or end its program with SIGTERM or Ctrl-C",
        )
    step = "taking a last checkpoint" if arguments.checkpoint or arguments.savepoint else "stopping"
    report(ProgressMessage("draining" if arguments.drain else step))
    run.stop(
        checkpoint=arguments.checkpoint, savepoint=arguments.savepoint, drain=arguments.drain, format=arguments.form,
        timeout=arguments.timeout_s, progress=_reporter(report),
    )  # fmt: skip
    status = run.status()
    return Pong(status.job, status.state)


def _lookup(run: RunningJob, arguments: LookUp, report: Report) -> LookupValues:
    # Imported here because only drivers need numpy: the command line starts without it.
    from strandline.types.jsonforms import to_json

    table = run.lookup_table(arguments.table)
    result = run.lookup(arguments.table, [table.key_of(text) for text in arguments.keys])
    return LookupValues(result.table, result.epoch, to_json(result.value))


def _list_keys(run: RunningJob, arguments: ListKeys, report: Report) -> ListedKeys:
    from strandline.types.jsonforms import to_json

    table = run.lookup_table(arguments.table)
    first = run.first_keys(arguments.table, arguments.most, partition=arguments.partition)
    keys, values = [[*map(to_json, key)] for key in first.keys], [*map(to_json, first.values)]
    return ListedKeys(first.table, first.epoch, _types(table), keys, values, first.has_more)


def _tables(run: RunningJob, _: NoArguments, report: Report) -> StateTables:
    tables = run.lookup_tables()
    return StateTables([
        StateTable(name, each.kind, each.partitions, _types(each)) for name, each in tables.items()
    ])  # fmt: skip


def _types(table: LookupTable) -> dict[str, str]:
    return {field.name: field.type.ddl for field in table.key_columns}


def _profile(run: RunningJob, arguments: TakeProfile, report: Report) -> Profile:
    report(ProgressMessage(f"taking samples for {arguments.seconds:g} s"))
    return run.profile(arguments.seconds)


PING = Command("ping", NoArguments, Pong, _ping)
STATUS = Command("status", NoArguments, Status, _status)
RECENT = Command("recent", NoArguments, Recent, _recent)
CHECKPOINT = Command("checkpoint", TakeCheckpoint, CheckpointStats, _checkpoint)
SAVEPOINT = Command("savepoint", TakeSavepoint, Savepoint, _savepoint)
RESCALE = Command("rescale", Rescale, Status, _rescale)
ROLLBACK = Command("rollback", Rollback, Status, _rollback)
STOP = Command("stop", Stop, Pong, _stop)
LOOKUP = Command("lookup", LookUp, LookupValues, _lookup)
LIST_KEYS = Command("list keys", ListKeys, ListedKeys, _list_keys)
TABLES = Command("tables", NoArguments, StateTables, _tables)
PROFILE = Command("profile", TakeProfile, Profile, _profile)

COMMANDS: dict[str, Command[Any, Any]] = {
    command.name: command
    for command in (
        PING,
        STATUS,
        RECENT,
        CHECKPOINT,
        SAVEPOINT,
        RESCALE,
        ROLLBACK,
        STOP,
        LOOKUP,
        LIST_KEYS,
        TABLES,
        PROFILE,
    )
}
