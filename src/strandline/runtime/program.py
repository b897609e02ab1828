"""The program of an operator partition, as data: everything that a keeper is sent once."""

from __future__ import annotations

import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

import cloudpickle
import msgspec

from strandline.api.badrecords import OnError
from strandline.api.config import Changelog, Continuous
from strandline.api.joins import Broadcast, KeyedBroadcastProcess
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import Aggregating, List, Map, Reducing, State, Value, declared_states
from strandline.backends.options import Grouping
from strandline.core.errors import ConfigurationError, StateTypeError
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition
from strandline.core.settings import BackendName, Mode
from strandline.format.keys import KeyCodec
from strandline.format.manifest import (
    OperatorInfo,
    PartitionInfo,
    StateInfo,
    TTLInfo,
)
from strandline.format.schemas import Schemas
from strandline.format.values import ValueCodec
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.rowlayout import RowLayout
from strandline.storage.place import Place
from strandline.types.datatypes import parse_schema, parse_type
from strandline.types.evolution import validate_hints

# Of keys that hold text: those of ten letters or more are told apart, by the key group and their first twelve.
_TOLD_APART_BYTES = 14

Process = KeyedProcess | KeyedBatchProcess

EVENT_TIMERS, PROCESSING_TIMERS = "timers.event", "timers.processing"
EVENT_TTL, PROCESSING_TTL = "ttl.event", "ttl.processing"
"""States that no attribute can be named after."""


def has_timers(process: Process) -> bool:
    """Whether the function handles timers."""
    return isinstance(process, KeyedProcess) and type(process).on_timer is not KeyedProcess.on_timer


def has_ttl(process: Process) -> bool:
    """Whether any of the function's states expires."""
    return any(state.ttl is not None for state in declared_states(process).values())


def check_ttl(process: Process, uid: str, *, timed: bool) -> None:
    """Refuse state that expires by event time where there is none."""
    for name, state in declared_states(process).items():
        if state.ttl is not None and state.ttl.time == "event" and not timed:
            raise ConfigurationError(
                f"operator '{uid}': state '{name}' of {type(process).__name__} expires by event time, and the "
                "stream has none",
                hint='call watermark("column") before key_by, or use a TTL with time="processing"',
            )


def groupings(program: Program, process: Process) -> dict[str, Grouping]:
    """Return, of states that keep several entries a key, how their entries begin: with the key."""
    size_bytes = KeyCodec(parse_schema(program.input_schema).types_of(program.key_columns)).size_bytes
    grouping = Grouping(size_bytes or _TOLD_APART_BYTES, exact=size_bytes is not None)
    return {name: grouping for name, state in declared_states(process).items() if isinstance(state, List | Map)}


class Restore(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that a run started from, and one operator in it, at any parallelism."""

    checkpoint: CheckpointId
    epoch: Epoch
    stored: OperatorInfo | None = None
    """The operator as the snapshot has it; None: it begins empty."""
    place: Place | None = None
    """The place of a foreign snapshot's files; None: they are the job's own."""

    @property
    def own_checkpoint(self) -> CheckpointId | None:
        """The checkpoint, if it is the job's own."""
        return self.checkpoint if self.place is None else None

    def parts_of(self, groups: range) -> list[PartitionInfo]:
        """Return the parts that hold some of these key groups, that which holds most of them first."""
        parts = self.stored.partitions if self.stored else []
        overlapping = [part for part in parts if _shared(part, groups) > 0]
        return sorted(overlapping, key=lambda part: (-_shared(part, groups), part.index))


def _shared(part: PartitionInfo, groups: range) -> int:
    """Return how many of these key groups a part holds."""
    return min(part.last_key_group + 1, groups.stop) - max(part.first_key_group, groups.start)


class Followed(msgspec.Struct, frozen=True):
    """A partition of another machine, of which a keeper is the standby."""

    uid: str
    partition: Partition


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """One keyed operator of one run of a job. `process` is the pickled user function; it never reaches a disk."""

    job: str
    generation: Generation
    uid: str
    name: str
    process: bytes
    key_columns: list[str]
    input_schema: str
    output_schema: str
    parallelism: int
    max_parallelism: int
    backend: BackendName
    mode: Mode
    changelog: Changelog = Changelog()
    """The limits of the log, in the mode `changelog`, and its place."""
    life: str = ""
    """The name of the job's life, which owns its records in Kafka."""
    continuous: Continuous = Continuous()
    """The limits of the log, in the mode `continuous`."""
    local_log: bool = False
    """Whether each epoch's changes are in a log on this machine, so that another keeper can go on after a kill."""
    max_concurrent: int = 1
    """How many checkpoints may be in flight."""
    store_url: str
    store_options: dict[str, str] = {}
    fsync: bool = True
    partition_memory_bytes: int
    limit_bytes: int
    lease_ms: int
    restore: Restore | None = None
    followed: dict[Partition, list[Followed]] = {}
    """By partition of the operator: the partitions of which its keeper is the standby."""
    layout: RowLayout = RowLayout()
    """What rows come with."""
    measured: bool = False
    """Events come straight from a watermark, so that their times are what moves it."""
    broadcast_order: list[str] = []
    """Columns of the broadcast stream that say in which order the rules of an epoch apply."""
    sides: dict[str, str] = {}
    """DDL of the side outputs, by name."""
    on_error: OnError = OnError("fail")
    """What becomes of an event that the function fails for."""
    schemas: dict[str, Schemas] = {}
    """By state whose type was changed: what values may be stored with beside the declared type."""
    was: dict[str, str] = {}
    """By state: what it is called in what is restored, where that is something else."""
    dropped: list[str] = []
    """States in what is restored that are to be forgotten."""
    python_path: list[str] = []
    """The driver's: modules that lie beside the main script are found on the same machine."""
    log_values: bool = False
    """Whether keys, events and other values may stand in the keepers' logs."""
    max_row_bytes: int = 64 << 20
    """How large a row may be that the function gives."""

    def __repr__(self) -> str:
        return f"Program(uid={self.uid!r}, job={self.job!r}, generation={self.generation})"

    def load(self) -> Process:
        """Unpickle the user's function."""
        sys.path += [entry for entry in self.python_path if entry not in sys.path and Path(entry).exists()]
        try:
            process: Process = pickle.loads(self.process)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"operator '{self.uid}': the process function's module '{error.name}' is not there where keepers run",
                hint="install it on every executor, or ship it with spark.sparkContext.addPyFile",
            ) from error
        return process


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    build, args, *_ = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _build_code, (code.co_filename, build, args)


def _build_code(filename: str, build: Callable[..., CodeType], args: tuple[Any, ...]) -> CodeType:
    return build(*args).replace(co_filename=filename)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps file names, which error messages quote: cloudpickle 3.1.3 replaces them by "<dynamic-code>"."""

    dispatch_table: ClassVar[Any] = ChainMap({CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)


def pickle_process(process: Process, uid: str) -> bytes:
    """Pickle the user's function for the keepers; classes of the main script travel by value."""
    try:
        file = io.BytesIO()
        _Pickler(file).dump(process)
        return file.getvalue()
    except Exception as error:
        what = "its function" if isinstance(process, BuiltinOperator) else type(process).__name__
        reason, hint = pickling_error(error)
        raise ConfigurationError(
            f"operator '{uid}': {what} cannot be shipped to other processes: {reason}",
            hint=hint
            or "keep connections, locks and open files out of __init__ and class attributes; make them in open()",
        ) from error


def pickling_error(error: Exception) -> tuple[str, str]:
    """Return the reason why a function cannot be pickled, in a line, and the next step if it is Spark; else ""."""
    text = str(error).strip() or type(error).__name__
    if "CONTEXT_ONLY_VALID_ON_DRIVER" in text or "py4j" in text:
        return (
            "it uses a SparkSession, a DataFrame or another object of Spark, which only the driver has",
            "collect a small table into a dict before, and use that, or send it as a stream with broadcast(); "
            "expressions of Spark go into select(), where() or with_column(), before key_by()",
        )
    # Spark's messages are pages.
    return text.splitlines()[0][:300], ""


def state_infos(process: Process) -> list[StateInfo]:
    """Return the declared states as they are written into manifests, with canonical types."""
    infos = []
    for name, state in declared_states(process).items():
        check_state(process, name, state)
        value_type = parse_type(state.value_type).ddl
        key_type = parse_type(state.key_type).ddl if isinstance(state, Map | Broadcast) else ""
        ttl: TTLInfo | msgspec.UnsetType = msgspec.UNSET
        if state.ttl is not None:
            ttl = TTLInfo(duration_ms=state.ttl.duration_ms, refresh=state.ttl.refresh, time=state.ttl.time)
        infos.append(StateInfo(name=name, kind=state.kind, value_type=value_type, key_type=key_type, ttl=ttl))
    if has_timers(process):
        infos += [StateInfo(name=name, kind="timers", value_type="") for name in (EVENT_TIMERS, PROCESSING_TIMERS)]
    if has_ttl(process):
        infos += [StateInfo(name=name, kind="ttl", value_type="") for name in (EVENT_TTL, PROCESSING_TTL)]
    if isinstance(process, BuiltinOperator):
        infos += process.own_tables
        windows = msgspec.UNSET if process.own_windows is None else process.own_windows
        infos[0] = msgspec.structs.replace(infos[0], windows=windows)
        if of := process.own_aggregated:
            infos[0] = msgspec.structs.replace(infos[0], merge=dict(of.merges), aggregates=dict(of.infos))
    return infos


def check_state(process: Process, name: str, state: State) -> None:
    """Refuse a declaration that cannot work, naming class and attribute."""
    where = f"state '{name}' of {type(process).__name__}"
    declared = declared_states(process)
    if state.was in declared:
        raise ConfigurationError(
            f"{where} was '{state.was}', and '{state.was}' is declared too",
            hint="a state has one name: leave was= out, or give the other one another name",
        )
    rivals = [other for other, its in declared.items() if state.was and its.was == state.was]
    if len(rivals) > 1:
        raise ConfigurationError(
            f"{where} was '{state.was}', and so was '{rivals[rivals[0] == name]}'",
            hint="one state goes on from it, and the other begins empty: leave was= out there",
        )
    if isinstance(process, KeyedBatchProcess) and not isinstance(state, Value):
        raise ConfigurationError(
            f"{where} is a {type(state).__name__}, but a KeyedBatchProcess can only have Value states",
            hint="use Value with a struct, or write the function as a KeyedProcess",
        )
    if isinstance(state, Broadcast) and not isinstance(process, KeyedBroadcastProcess):
        raise ConfigurationError(
            f"{where} is a Broadcast, which only a KeyedBroadcastProcess has",
            hint="write a.key_by(…).broadcast(rules).process(…) with such a function",
        )
    if not isinstance(state, Value | List | Map | Reducing | Aggregating | Broadcast):
        raise ConfigurationError(f"{where} is a {type(state).__name__}, not a state that this release knows")
    try:
        value_type = parse_type(state.value_type)
        if isinstance(state, Map | Broadcast):
            KeyCodec([parse_type(state.key_type)])
        default = getattr(state, "default", None)
        if default is not None:
            ValueCodec(value_type).coerce(default)
        validate_hints(state.hints, value_type)
    except (ConfigurationError, StateTypeError) as error:
        raise ConfigurationError(f"{where}: {error.message}", hint=error.hint) from None
