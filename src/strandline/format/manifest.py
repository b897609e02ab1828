"""The manifest: everything a checkpoint is, in one object that is published by one conditional create."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from strandline.core.errors import ConfigurationError
from strandline.core.ids import CheckpointId, Epoch, Generation, Partition
from strandline.core.keygroups import BROADCAST_GROUP, MAX_MAX_PARALLELISM
from strandline.format.frame import RecordFormat
from strandline.types.datatypes import parse_schema, parse_type

Mode = Literal["full", "incremental"]
_NAME_CHARS = 80


class FileRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of a snapshot: what the backend calls it, where it is, and what its bytes must be."""

    name: str
    size: int
    sha256: str
    path: str = ""
    """Below the job's directory; empty when the bytes are `inline`."""
    inline: bytes | None = None
    shared: bool = False
    """True: other checkpoints may reference the same path; it is deleted by reachability alone."""


def stored_once(files: Iterable[FileRef]) -> list[FileRef]:
    """Return which of some files lie in storage, each path once: operators and sources may reference the same."""
    return list({file.path: file for file in files if file.inline is None}.values())


def size_of(files: Iterable[FileRef]) -> int:
    """Return how many bytes some files are: after a rescale, several partitions have parts of the same one."""
    found = list(files)
    return sum(file.size for file in stored_once(found)) + sum(f.size for f in found if f.inline is not None)


class TTLInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How long what a state holds lives after it was written."""

    duration_ms: int
    refresh: str
    """"write", or "read": reading prolongs it too."""
    time: str
    """"processing" or "event": the time that its expiry is in."""


class FixedWindows(msgspec.Struct, frozen=True, kw_only=True, tag="fixed", tag_field="kind", omit_defaults=True):
    """Windows of one length that begin at fixed times: tumbling and sliding ones."""

    size_ms: int
    every_ms: int
    start_ms: int
    """Behind a multiple of `every_ms` since 1970: where one begins."""
    time: Literal["event", "processing"]
    lateness_ms: int = 0
    """For how long windows are kept once they are complete."""

    def __str__(self) -> str:
        return f"{self.size_ms} ms every {self.every_ms} ms from {self.start_ms} ms{_by(self.time)}"


class SessionWindows(msgspec.Struct, frozen=True, kw_only=True, tag="session", tag_field="kind", omit_defaults=True):
    """Sessions: those in state have their ends, so that the gap may change."""

    time: Literal["event", "processing"]
    lateness_ms: int = 0
    """For how long sessions are kept once they are complete."""

    def __str__(self) -> str:
        return f"sessions{_by(self.time)}"


class CountWindows(msgspec.Struct, frozen=True, kw_only=True, tag="count", tag_field="kind"):
    """Windows of so many events of a key."""

    events: int

    def __str__(self) -> str:
        return f"{self.events} events"


class Interval(msgspec.Struct, frozen=True, kw_only=True, tag="interval", tag_field="kind", omit_defaults=True):
    """What a join within an interval matches: how much later than the left row the right one may be."""

    lower_ms: int
    upper_ms: int
    how: str
    bounds: str = "[]"
    """Which of both are included: `[`, `]`."""

    def __str__(self) -> str:
        excluded = "" if self.bounds == "[]" else f", {self.bounds}"
        return f"{self.lower_ms} ms to {self.upper_ms} ms apart{excluded}, {self.how}"


Windows = FixedWindows | SessionWindows | CountWindows | Interval


def _by(time: str) -> str:
    return " by the clock" if time == "processing" else ""


class OlderSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A type that a state's values had, and how they become those of the next higher schema id."""

    value_type: str
    renamed: dict[str, str] = {}
    """By path in the next type: what a field was called in this one."""
    fill: dict[str, bytes] = {}
    """By path in the next type: what a field has that this one lacks, encoded as a value of its type; else null."""


class AggregateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A result of built-in aggregation, by which its state is found."""

    function: str
    """As in `sl.agg`; `first_valid` and `last_valid` are those of values only."""
    type: str
    """Spark DDL of the result."""
    columns: list[str]
    """Those of the accumulator, which others may share."""


class StateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A declared state: enough to read its bytes without the program."""

    name: str
    kind: str
    value_type: str
    """Spark DDL of the value; of a list, of its elements."""
    key_type: str = ""
    """Spark DDL of a map's keys; empty for other kinds."""
    schema_id: int = 0
    """What values of `value_type` are stored with."""
    older: dict[int, OlderSchema] | msgspec.UnsetType = msgspec.UNSET
    """By schema id: what values may still be stored with; left out when none are."""
    ttl: TTLInfo | msgspec.UnsetType = msgspec.UNSET
    """Left out for a state that does not expire."""
    windows: Windows | msgspec.UnsetType = msgspec.UNSET
    """How the windows are cut that the state is of; left out where it can be read without knowing that."""
    merge: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Of accumulators of built-in aggregates: how two become one, by their columns."""
    aggregates: dict[str, AggregateInfo] | msgspec.UnsetType = msgspec.UNSET
    """Of the first state of such an operator: the results, by name."""


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot of one operator partition."""

    index: Partition
    first_key_group: int
    last_key_group: int
    files: list[FileRef]
    sync_ms: float = 0.0
    async_ms: float = 0.0
    uploaded_bytes: int = 0


class TableFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of a canonical savepoint: rows of one state, of a range of key groups."""

    first_key_group: int
    last_key_group: int
    rows: int
    file: FileRef


def table_path(uid: str, state: str, sha256: str) -> str:
    """Return where, in a savepoint's folder, the table's file with these bytes is.

    Of the names is there what any file system and any url can have, so that `data/detect.seen-*.parquet` are the files
    of one state; the whole names are inside the file.

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
    """Only in a canonical savepoint: by state, its rows, in order of key groups."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a source-progress file that checkpoints share: bytes are named by their content."""

    size: int
    sha256: str
    path: str


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the source progress: shared segments first, the rest inside the blob."""

    name: str
    segments: list[Segment]


class SourceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What rewinds the sources: Spark's own progress files, opaque to us."""

    batch: int
    """The last batch that was read; -1: none yet, and the files say where the sources begin."""
    blob: FileRef
    """A compressed archive of every small file and of the tails of large ones."""
    large: list[SourceFile] = []
    names: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The sources' names, in the order in which Spark's files number them; left out when there is one without."""
    directory: str | msgspec.UnsetType = msgspec.UNSET
    """The directory, as a url, of the job that read them: its later checkpoints say what was read since."""

    def files(self) -> list[FileRef]:
        """Return every file that the source progress needs."""
        return [self.blob] + [
            FileRef(name=large.name, size=s.size, sha256=s.sha256, path=s.path, shared=True)
            for large in self.large
            for s in large.segments
        ]


class SinkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink has staged up to this checkpoint's epoch and commits once the checkpoint is published."""

    name: str
    pending: list[str]
    """Committables, opaque to us, oldest first."""
    kind: str | msgspec.UnsetType = msgspec.UNSET
    destination: str | msgspec.UnsetType = msgspec.UNSET
    """Where its rows go, in words that are the same at each start; left out where only the sink knows."""
    reached: str | msgspec.UnsetType = msgspec.UNSET
    """How far it had come in what it writes to, opaque to us; left out where nothing was written, or nobody counts."""


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
    """Names the job's life, from its very first start on: sinks are known by it."""
    operators: list[OperatorInfo]
    source: SourceInfo | None = None
    sinks: list[SinkInfo] = []
    watermarks: dict[str, int] = {}
    triggered_ms: int = 0
    duration_ms: int = 0
    uploaded_bytes: int = 0
    total_bytes: int = 0
    totals: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """What the job has counted in its life up to the epoch, by name; left out where nobody counted."""
    savepoint: Literal["canonical", "native"] | msgspec.UnsetType = msgspec.UNSET
    """Left out in a checkpoint. The files of a savepoint are relative to its own folder, and no one else's."""

    def files(self) -> list[FileRef]:
        """Return every file the checkpoint needs, shared ones and its own; inline ones have no path."""
        found = [f for operator in self.operators for p in operator.partitions for f in p.files]
        found += [t.file for operator in self.operators for tables in (operator.tables or {}).values() for t in tables]
        return found + (self.source.files() if self.source else [])

    def stored(self) -> list[FileRef]:
        """Return every file that lies in storage, each path once."""
        return stored_once(self.files())


STATE_KINDS = frozenset(("value", "reducing", "aggregating", "map", "broadcast", "list", "timers", "panes", "ttl"))
BACKENDS = frozenset(("memory", "filesystem", "rocksdb"))


def _misfit(manifest: Manifest) -> str:
    """Return what of a manifest's operators does not fit together, or is nothing that this release knows."""
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
            # A large key group has several files; no other file begins where one ends.
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
