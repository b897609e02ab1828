"""The manifest of a checkpoint: one object that describes all of it, and whose conditional create publishes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from strandline.core.errors import ConfigurationError
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition
from strandline.core.keygroups import BROADCAST_GROUP, MAX_MAX_PARALLELISM
from strandline.core.settings import Mode
from strandline.format.frame import RecordFormat
from strandline.types.datatypes import parse_schema, parse_type

_NAME_CHARS = 80


class FileRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a snapshot: its name in the backend, its path, and the size and hash of its bytes."""

    name: str
    size: int
    sha256: str
    path: str = ""
    """The path below the job's directory; empty when the bytes are `inline`."""
    inline: bytes | None = None
    shared: bool = False
    """True: other checkpoints may reference the same path; it is deleted once no checkpoint does."""


def stored_once(files: Iterable[FileRef]) -> list[FileRef]:
    """Return the files that are objects in storage, each path once: operators and sources may reference the same."""
    return list({file.path: file for file in files if file.inline is None}.values())


def size_of(files: Iterable[FileRef]) -> int:
    """Return the total size of files, each counted once: after a rescale, several partitions share a file."""
    refs = list(files)
    return sum(file.size for file in stored_once(refs)) + sum(f.size for f in refs if f.inline is not None)


class TTLInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The expiry of a state's values: `duration_ms` after they were written."""

    duration_ms: int
    refresh: str
    """"write", or "read": a read prolongs it too."""
    time: str
    """"processing" or "event": the time in which it is measured."""


class FixedWindows(msgspec.Struct, frozen=True, kw_only=True, tag="fixed", tag_field="kind", omit_defaults=True):
    """Windows of one length that begin at fixed times: tumbling and sliding windows."""

    size_ms: int
    every_ms: int
    start_ms: int
    """The offset of their starts from the multiples of `every_ms` since 1970."""
    time: Literal["event", "processing"]
    lateness_ms: int = 0
    """The time for which complete windows are kept."""

    def __str__(self) -> str:
        return f"{self.size_ms} ms every {self.every_ms} ms from {self.start_ms} ms{_by(self.time)}"


class SessionWindows(msgspec.Struct, frozen=True, kw_only=True, tag="session", tag_field="kind", omit_defaults=True):
    """Sessions. State has the end of each, so that the gap may change."""

    time: Literal["event", "processing"]
    lateness_ms: int = 0
    """The time for which complete sessions are kept."""

    def __str__(self) -> str:
        return f"sessions{_by(self.time)}"


class CountWindows(msgspec.Struct, frozen=True, kw_only=True, tag="count", tag_field="kind"):
    """Windows of a fixed number of events of a key."""

    events: int

    def __str__(self) -> str:
        return f"{self.events} events"


class Interval(msgspec.Struct, frozen=True, kw_only=True, tag="interval", tag_field="kind", omit_defaults=True):
    """The condition of an interval join: the bounds of the right row's time minus the left row's."""

    lower_ms: int
    upper_ms: int
    how: str
    bounds: str = "[]"
    """`[` includes the lower bound, `]` the upper one."""

    def __str__(self) -> str:
        excluded = "" if self.bounds == "[]" else f", {self.bounds}"
        return f"{self.lower_ms} ms to {self.upper_ms} ms apart{excluded}, {self.how}"


Windows = FixedWindows | SessionWindows | CountWindows | Interval


def _by(time: str) -> str:
    return " by the clock" if time == "processing" else ""


class OlderSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A former type of a state's values, and their conversion into those of the next higher schema id."""

    value_type: str
    renamed: dict[str, str] = {}
    """By path in the next type: the field's name in this one."""
    fill: dict[str, bytes] = {}
    """By path in the next type: the encoded value of a field that this type lacks; null for others."""


class AggregateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A result of built-in aggregation, and the columns of its state."""

    function: str
    """Its name in `sl.agg`; `first_valid` and `last_valid` ignore nulls."""
    type: str
    """Spark DDL of the result."""
    columns: list[str]
    """The columns of the accumulator, which other results may share."""


class StateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A declared state, with all that is needed to read its bytes without the program."""

    name: str
    kind: str
    value_type: str
    """Spark DDL of the value; of a list, of its elements."""
    key_type: str = ""
    """Spark DDL of a map's keys; empty for other kinds."""
    schema_id: int = 0
    """The schema id of stored values of `value_type`."""
    older: dict[int, OlderSchema] | msgspec.UnsetType = msgspec.UNSET
    """By schema id: the former types that stored values may still have; left out if there are none."""
    ttl: TTLInfo | msgspec.UnsetType = msgspec.UNSET
    """Left out for a state that does not expire."""
    windows: Windows | msgspec.UnsetType = msgspec.UNSET
    """The windows of the state; left out if it can be read without them."""
    merge: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """For accumulators of built-in aggregates: by column, the function that merges two of them."""
    aggregates: dict[str, AggregateInfo] | msgspec.UnsetType = msgspec.UNSET
    """In the first state of such an operator: its results, by name."""


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot of one operator partition."""

    index: Partition
    first_key_group: int
    last_key_group: int
    files: list[FileRef]
    sync_ms: float = 0.0
    async_ms: float = 0.0
    uploaded_bytes: int = 0
    planned: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Paths of files that are being uploaded for a later checkpoint: nothing reads or deletes them; mostly left out."""


class TableFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of a canonical savepoint: rows of one state, of a range of key groups."""

    first_key_group: int
    last_key_group: int
    rows: int
    file: FileRef


def table_path(uid: str, state: str, sha256: str) -> str:
    """Return the path, in a savepoint's folder, of the table's file with these bytes.

    It has the characters of the names that any file system and url allows, so that `data/detect.seen-*.parquet` are
    the files of one state; the full names are inside the file.

    >>> table_path("late orders", "timers.event", "8c…")
    'data/late_orders.timers.event-8c….parquet'
    """
    operator = re.sub("[^A-Za-z0-9_-]", "_", uid).lstrip("_-")[:_NAME_CHARS] or "operator"
    table = re.sub("[^A-Za-z0-9_.]", "_", state)[:_NAME_CHARS]
    return f"data/{operator}.{table}-{sha256}.parquet"


class OperatorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot of one keyed operator."""

    uid: str
    backend: str
    parallelism: int
    max_parallelism: int
    key_schema: str
    """Spark DDL of the key columns: 'name type, …'."""
    states: list[StateInfo]
    partitions: list[PartitionInfo]
    """Empty in a canonical savepoint."""
    tables: dict[str, list[TableFile]] | msgspec.UnsetType = msgspec.UNSET
    """Only in a canonical savepoint: by state, the files of its rows, in order of key groups."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a source-progress file that checkpoints share; its path contains its hash."""

    size: int
    sha256: str
    path: str


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the source progress: shared segments first, the rest inside the blob."""

    name: str
    segments: list[Segment]


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The position of the sources at the checkpoint: Spark's own progress files, opaque to us."""

    batch: int
    """The last batch that was read; -1: none yet, and the files have the positions at which the sources begin."""
    blob: FileRef
    """A compressed archive of every small file and of the tails of large ones."""
    large: list[SourceFile] = []
    names: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The sources' names, in the order in which Spark's files number them; left out if one has no name."""
    directory: str | msgspec.UnsetType = msgspec.UNSET
    """The url of the directory of the job that read them, whose later checkpoints have its later positions."""
    life: str | msgspec.UnsetType = msgspec.UNSET
    """In a savepoint of history: the life of the job that read them, if it is known. Else it is the manifest's."""
    epoch: Epoch | msgspec.UnsetType = msgspec.UNSET
    """With `life`: that job's epoch at this position."""

    def files(self) -> list[FileRef]:
        """Return every file that the source progress needs."""
        return [self.blob] + [
            FileRef(name=large.name, size=s.size, sha256=s.sha256, path=s.path, shared=True)
            for large in self.large
            for s in large.segments
        ]


class SinkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sink's staged output up to this checkpoint's epoch, which it commits once the checkpoint is published."""

    name: str
    pending: list[str]
    """Committables, opaque to us, oldest first."""
    kind: str | msgspec.UnsetType = msgspec.UNSET
    destination: str | msgspec.UnsetType = msgspec.UNSET
    """The target of its rows, as text that is the same at each start; left out if the sink does not name one."""
    reached: str | msgspec.UnsetType = msgspec.UNSET
    """Its position in the target, opaque to us; left out if nothing was written, or the sink has no positions."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One complete checkpoint."""

    job: str
    generation: Generation
    checkpoint: CheckpointId
    epoch: Epoch
    mode: Mode
    created_ms: int
    engine_version: str
    life: str
    """A name that the job keeps from its first start on, by which its sinks are identified."""
    operators: list[OperatorInfo]
    source: SourceInfo | None = None
    sinks: list[SinkInfo] = []
    watermarks: dict[str, int] = {}
    triggered_ms: int = 0
    duration_ms: int = 0
    uploaded_bytes: int = 0
    total_bytes: int = 0
    totals: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """The job's counters since its first start up to the epoch, by name; left out if there are none."""
    turns: list[tuple[int, int]] | msgspec.UnsetType = msgspec.UNSET
    """The runs in its history that went back, each with the epoch to which; left out if there are none."""
    epochs: bytes | msgspec.UnsetType = msgspec.UNSET
    """The packed records of the last epochs (`format/epochs.py`), for replays; left out if there are none."""
    savepoint: Literal["canonical", "native"] | msgspec.UnsetType = msgspec.UNSET
    """Left out in a checkpoint. The paths of a savepoint's files are relative to its folder, and it owns them."""

    def files(self) -> list[FileRef]:
        """Return every file that the checkpoint needs, also shared ones; inline ones have no path."""
        refs = [f for operator in self.operators for p in operator.partitions for f in p.files]
        refs += [t.file for operator in self.operators for tables in (operator.tables or {}).values() for t in tables]
        return refs + (self.source.files() if self.source else [])

    @property
    def output_position(self) -> tuple[str, Epoch]:
        """The life and the epoch up to which rows were shown that a job which continues from here does not repeat."""
        source = self.source
        return (source.life, source.epoch or Epoch(0)) if source and source.life else (self.life, self.epoch)

    def stored(self) -> list[FileRef]:
        """Return every file that is an object in storage, each path once."""
        return stored_once(self.files())

    def planned(self) -> set[str]:
        """Return the paths of files that are being uploaded for a later checkpoint."""
        return {path for operator in self.operators for p in operator.partitions for path in p.planned or ()}

    def paths(self) -> set[str]:
        """Return every path in storage that must stay as long as the checkpoint."""
        return {file.path for file in self.stored()} | self.planned()


STATE_KINDS = frozenset(("value", "reducing", "aggregating", "map", "broadcast", "list", "timers", "panes", "ttl"))
BACKENDS = frozenset(("memory", "filesystem", "rocksdb"))


def _misfit(manifest: Manifest) -> str:
    """Return the part of a manifest's operators that is inconsistent, or unknown to this release; "" if none is."""
    uids = [operator.uid for operator in manifest.operators]
    for operator in manifest.operators:
        where = f"operator '{operator.uid}'"
        if uids.count(operator.uid) > 1:
            return f"{where} is there twice"
        if operator.backend not in BACKENDS:
            return f"{where} is of the backend '{operator.backend}', expected one of {', '.join(sorted(BACKENDS))}"
        if not 1 <= operator.max_parallelism <= MAX_MAX_PARALLELISM:
            return f"{where}: max_parallelism is {operator.max_parallelism}, expected 1 to {MAX_MAX_PARALLELISM}"
        if problem := _no_type(parse_schema, operator.key_schema):
            return f"{where} has a key of an unknown type: {problem}"
        names = [state.name for state in operator.states]
        for name in (operator.uid, *names):
            if not name or "\0" in name:
                return f"{where}: {name!r} is no name"
            if names.count(name) > 1:
                return f"{where}: state '{name}' is there twice"
        if problem := next(filter(None, map(_misfit_of_state, operator.states)), _misfit_of_groups(operator)):
            return f"{where}{problem}"
    return ""


def _misfit_of_state(state: StateInfo) -> str:
    where = f", state '{state.name}'"
    if state.kind not in STATE_KINDS:
        return f"{where} is of the kind '{state.kind}', expected one of {', '.join(sorted(STATE_KINDS))}"
    if state.ttl and state.ttl.time not in ("event", "processing"):
        return f"{where} expires by the time '{state.ttl.time}', expected event or processing"
    older = [each.value_type for each in (state.older or {}).values()]
    for text in filter(None, (state.value_type, state.key_type, *older)):
        if problem := _no_type(parse_type, text):
            return f"{where} is of an unknown type: {problem}"
    return ""


def _misfit_of_groups(operator: OperatorInfo) -> str:
    if operator.tables is not msgspec.UNSET:
        return _misfit_of_tables(operator, operator.tables)
    group = 0
    for part in sorted(operator.partitions, key=lambda part: (part.first_key_group, part.last_key_group)):
        if part.first_key_group != group or part.last_key_group < group:
            return (
                f": partition {part.index} has key groups {part.first_key_group} to {part.last_key_group}, expected "
                f"one that begins with {group}"
            )
        group = part.last_key_group + 1
    if group != operator.max_parallelism:
        return f": no partition has the key groups from {group} on, of {operator.max_parallelism}"
    return ""


def _misfit_of_tables(operator: OperatorInfo, tables: dict[str, list[TableFile]]) -> str:
    if operator.partitions:
        return f": has {len(operator.partitions)} partitions, expected tables only"
    for state, files in tables.items():
        if state not in {info.name for info in operator.states}:
            return f": has a table '{state}', and no state of that name"
        for number, file in enumerate(files):
            first, last = file.first_key_group, file.last_key_group
            here = f": table '{state}', file {number}"
            if not (0 <= first <= last < operator.max_parallelism or first == last == BROADCAST_GROUP):
                return f"{here}: key groups {first} to {last} of {operator.max_parallelism}"
            # Only the files of one large key group begin with the group that the file before ends with.
            before = files[number - 1].last_key_group if number else -1
            if before > first or (before == first and not files[number - 1].first_key_group == first == last):
                return f"{here}: begins with key group {first}, and the one before ends with {before}"
    return ""


def _no_type(parse: Callable[[str], object], text: str) -> str:
    try:
        parse(text)
    except ConfigurationError as error:
        return error.message
    return ""


MANIFEST = RecordFormat(b"SLMANIF1", 1, Manifest, "the manifest", _misfit)
