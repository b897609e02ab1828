"""The state of one operator partition: all its tables, which commit or discard an epoch's writes together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.api.joins import KeyedBroadcastProcess
from strandline.api.process import KeyedBatchProcess
from strandline.api.states import declared_states
from strandline.backends.base import Backend, Changes, Entry
from strandline.core.errors import IncompatibleStateError, StateLimitError, StateTypeError
from strandline.core.ids import Partition
from strandline.core.keygroups import range_of
from strandline.core.times import as_datetime
from strandline.format.keys import KeyCodec
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.program import EVENT_TIMERS, PROCESSING_TIMERS, Process, Program, check_ttl, has_timers, has_ttl
from strandline.runtime.state.binding import Binder
from strandline.runtime.state.broadcast import Broadcasts, BroadcastTable
from strandline.runtime.state.columnar import ColumnarProcess
from strandline.runtime.state.handles import with_state_name
from strandline.runtime.state.journal import Journal
from strandline.runtime.state.livekeys import LiveKeys
from strandline.runtime.state.scope import Scope, Timers
from strandline.runtime.state.sequence_lock import SequenceLock
from strandline.runtime.state.table import KeyEntries, KeysToRead, ObjectTable, StateTable
from strandline.runtime.state.timers import TimerTable, earliest
from strandline.runtime.state.ttl.cleaning import Expiry
from strandline.runtime.state.values import ValueTable
from strandline.types.datatypes import StructType, parse_schema

_LAST_US = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Frozen:
    """State as it was at one epoch, to be encoded in a background thread and then released."""

    uid: str
    states: dict[str, Callable[[], Iterator[Entry]]]
    release: Callable[[], None]

    def changes(self) -> Changes:
        """Encode, lazily."""
        return {name: _naming(self.uid, name, encode()) for name, encode in self.states.items()}


def _naming(uid: str, state: str, entries: Iterator[Entry]) -> Iterator[Entry]:
    """Add the state's name to errors: values of the right Python type are checked only when they are encoded."""
    try:
        yield from entries
    except StateTypeError as error:
        raise with_state_name(error, uid, state) from None


class StateLimit:
    """The memory backend's limit: counts the sizes of one operator partition's stored entries."""

    def __init__(self, scope: Scope, limit_bytes: int) -> None:
        self._scope = scope
        self._limit = limit_bytes
        self._sizes: dict[tuple[str, bytes], int] = {}
        self._size = 0
        self._checked: dict[tuple[str, bytes], int] = {}

    def count(self, state: str, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Yield stored entries as they are read from a snapshot, and count their sizes."""
        for entry, value in entries:
            size = len(entry) + len(value)
            self._sizes[state, entry] = size
            self._size += size
            yield entry, value

    def check(self, changes: Changes) -> None:
        """Raise StateLimitError if an epoch's changes exceed the limit; else they count from `commit` on."""
        changed: dict[tuple[str, bytes], int] = {}
        for state, entries in changes.items():
            for entry, value in entries:
                changed[state, entry] = 0 if value is None else len(entry) + len(value)
        size = self._size + sum(new - self._sizes.get(at, 0) for at, new in changed.items())
        if size > self._limit:
            raise StateLimitError(
                f"operator '{self._scope.uid}', partition {self._scope.partition}: state would grow to {size} bytes, "
                f"and the memory backend's limit is {self._limit} bytes",
                hint="use backend='rocksdb' for large state, or raise memory_backend_limit in Settings",
                operator=self._scope.uid,
                size_bytes=size,
                limit_bytes=self._limit,
            )
        self._checked = changed

    def commit(self) -> None:
        """Count the changes that were checked."""
        for at, new in self._checked.items():
            self._size += new - self._sizes.pop(at, 0)
            if new:
                self._sizes[at] = new
        self._checked = {}

    def abort(self) -> None:
        """Discard the changes that were checked."""
        self._checked = {}


class Store:
    """One operator partition's tables, and the handles in `process` that work on them. One thread at a time.

    Only what `freeze` returns, `kept` and `some_keys` may be used in another thread.
    """

    def __init__(self, program: Program, process: Process, scope: Scope, backend: Backend, cache_bytes: int) -> None:
        self._scope = scope
        self._process = process
        self._backend = backend
        self._vectorised = isinstance(process, KeyedBatchProcess)
        self.turns = SequenceLock()
        """Lets `kept` read in other threads while commit, abort and freeze change the tables."""
        schema = parse_schema(program.input_schema)
        self.journal = None if program.on_error.fails or self._vectorised else Journal()
        """The changes of the present call of the function, if failed calls are undone."""
        self.keys = LiveKeys(KeyCodec(schema.types_of(program.key_columns)))
        groups = range_of(Partition(scope.partition), program.max_parallelism, program.parallelism)
        self.broadcasts: Broadcasts | None = None
        if isinstance(process, KeyedBroadcastProcess):
            rule = schema.fields[1].type
            assert isinstance(rule, StructType)
            self.broadcasts = Broadcasts(process, scope, rule, program.broadcast_order, self.journal)
        self.timers = self._bind_timers(groups, timed=program.layout.timed)
        """The timers of event time and of processing time, if the function handles timers."""
        self.expiry: Expiry | None = None
        if has_ttl(process):
            check_ttl(process, program.uid, timed=program.layout.timed)
            self.expiry = Expiry(scope, backend, groups, self.keys)
            for table in self.expiry.tables:
                table.journal = self.journal
        self._schemas = program.schemas
        process_tables: Sequence[StateTable[Any]] = ()
        if isinstance(process, ColumnarProcess):
            process_tables = process.bind(backend, groups, program.schemas, cache_bytes)
        bound = self._bind_states(cache_bytes)
        self._values = [table for table in bound if isinstance(table, ValueTable)]
        ttl = self.expiry.tables if self.expiry else ()
        self._tables: list[StateTable[Any]] = [*bound, *(self.timers or ()), *ttl, *process_tables]
        self._unread = backend.unread
        self._limit = None if backend.limit_bytes is None else StateLimit(scope, backend.limit_bytes)
        if backend.keeps_all:
            self._adopt()
        self._refuse_timers_for_ever(timed=program.layout.timed)

    # -- keys

    def load(self, keys: Iterable[Any]) -> None:
        """Load the values of keys: handles rely on it."""
        for table in self._values:
            table.load(keys)

    def prepare(self, encoded: Sequence[bytes]) -> list[Any]:
        """Load the keys of timers, and evict earlier ones. Return the keys, in order."""
        self.evict()
        keys = self.keys.decode_many(encoded)
        self.load(set(keys))
        return keys

    # -- epochs

    def check(self, *, in_full: bool = False) -> None:
        """Raise StateLimitError, with nothing applied, if the epoch's writes exceed the limit. Before each commit.

        `in_full`: raise StateTypeError if they cannot be encoded, which otherwise happens at the next snapshot.
        """
        self.check_reads()
        if self._limit is None and not in_full:
            # Do not even collect the changes: an epoch may have written a million values.
            return
        uid = self._scope.uid
        changes = {table.name: _naming(uid, table.name, table.changed()) for table in self._tables}
        if self._limit is not None:
            self._limit.check(changes)
        else:
            for entries in changes.values():
                deque(entries, maxlen=0)

    @property
    def has_unread(self) -> bool:
        """Whether the backend could not read some of the state."""
        return bool(self._unread)

    def check_reads(self) -> None:
        """Raise the error that the backend raised in this thread, if the user's function caught it."""
        if (unread := self._unread.get(threading.get_ident())) is not None:
            raise unread

    def commit(self) -> None:
        """Commit the epoch's writes. If this raises, the state mixes epochs."""
        if self.journal is not None:
            self.journal.begin()
        for table in self._tables:
            table.commit()
        if self._limit is not None:
            self._limit.commit()

    def tidy(self) -> None:
        """Free memory after a commit."""
        self.evict()
        self.keys.forget([layer for table in self._tables for layer in table.unwritten()])

    def abort(self) -> None:
        """Discard the epoch's writes."""
        if self.broadcasts is not None:
            self.broadcasts.forget()
        if self.journal is not None:
            self.journal.begin()
        for table in self._tables:
            table.abort()
        if self._limit is not None:
            self._limit.abort()

    def evict(self) -> None:
        """Keep the caches within their budget."""
        for table in self._tables:
            table.evict()

    # -- between epochs

    def freeze(self) -> Frozen:
        """Take the committed state for a snapshot, at once; a background thread encodes and writes it."""
        with self.turns.writing():
            states = {table.name: table.freeze() for table in self._tables}
        return Frozen(self._scope.uid, states, self._release)

    def kept(self, name: str, encoded: Sequence[bytes]) -> list[KeyEntries]:
        """Return the committed entries of some encoded keys of a state: see `StateTable.kept`."""
        (table,) = [table for table in self._tables if table.name == name]
        codec = self.keys.codec
        as_objects = isinstance(table, ObjectTable) and not isinstance(table, BroadcastTable)
        return table.kept(KeysToRead(codec.decode_many(encoded) if as_objects else encoded, encoded, codec))

    def some_keys(self, name: str, most: int) -> list[bytes]:
        """Return some encoded keys of a state: see `StateTable.some_keys`."""
        (table,) = [table for table in self._tables if table.name == name]
        return table.some_keys(self.keys.codec, most)

    @property
    def next_timers_us(self) -> tuple[int | None, int | None]:
        """Times before which no event-time and no processing-time timer is due, and no cleaning is worth an epoch."""
        event, processing = (self.timers[0].next_us(), self.timers[1].next_us()) if self.timers else (None, None)
        if self.expiry is None:
            return event, processing
        event_ttl, processing_ttl = self.expiry.next_us()
        return earliest((event, event_ttl)), earliest((processing, processing_ttl))

    def turn_to(self, key_group: int, key: Any) -> None:
        """Make a key current, so that the handles read its states. Read only, then call `abort`."""
        self.keys.learn((key,), (key_group,))
        self._scope.key = key
        self.load((key,))

    def timers_of(self, key_group: int, key: Any) -> list[tuple[int, bool]]:
        """Return the times of a key's timers, and whether they are processing times. Reads all timers."""
        encoded = self.keys.codec.encode(key_group, key)
        times = []
        for timers in self.timers or ():
            fired = timers.fire(_LAST_US, lambda keys: None)
            times += [(at_us, timers.name == PROCESSING_TIMERS) for at_us, of in fired if of == encoded]
            timers.abort()
        return times

    @property
    def dirty_bytes(self) -> int:
        """About how much memory the changes take that the backend does not have yet."""
        return sum(table.dirty_bytes for table in self._tables)

    def metrics(self) -> dict[str, int]:
        """Return figures for people to look at."""
        return {
            "cached_bytes": sum(table.cached_bytes for table in self._tables),
            "cache_hits": sum(table.hits for table in self._tables),
            "cache_misses": sum(table.misses for table in self._tables),
            **(self._process.own_metrics if isinstance(self._process, BuiltinOperator) else {}),
            **self._backend.metrics(),
        }

    def _release(self) -> None:
        for table in self._tables:
            table.release()

    # -- opening

    def _bind_timers(self, groups: range, *, timed: bool) -> tuple[TimerTable, TimerTable] | None:
        if not has_timers(self._process):
            why = f"{type(self._process).__name__} does not define on_timer: write def on_timer(self, timer, ctx): …"
            self._scope.timers = Timers(self._scope, self.keys.encode, None, None, why)
            return None
        event = TimerTable(EVENT_TIMERS, self._backend, groups)
        processing = TimerTable(PROCESSING_TIMERS, self._backend, groups)
        event.journal = processing.journal = self.journal
        why = 'the stream has no event time: call watermark("column") before key_by'
        self._scope.timers = Timers(self._scope, self.keys.encode, event if timed else None, processing, why)
        return event, processing

    def _refuse_timers_for_ever(self, *, timed: bool) -> None:
        """Refuse a snapshot's event-time timers if the stream has no event time any more: none would ever fire."""
        if timed or self.timers is None or (first_us := self.timers[0].next_us()) is None:
            return
        raise IncompatibleStateError(
            f"operator '{self._scope.uid}': the snapshot has timers of event time, the first for "
            f"{as_datetime(first_us).isoformat()}, and the stream has none any more: they would never fire",
            hint='call watermark("column") before key_by, as the program did that made the snapshot',
            operator=self._scope.uid,
        )

    def _bind_states(self, cache_bytes: int) -> list[StateTable[Any]]:
        """Replace each declaration by a handle; return the tables."""
        states = declared_states(self._process)
        binder = Binder(
            self._scope, self._backend, self.keys, self.expiry, self.broadcasts,
            cache_bytes // max(1, len(states)), self._vectorised, self._schemas, self.journal,
        )  # fmt: skip
        bound: list[StateTable[Any]] = []
        for name, state in states.items():
            table, vars(self._process)[name] = binder.bind(name, state)
            bound.append(table)
        vars(self._process)["_bound_states"] = states
        return bound

    def _adopt(self) -> None:
        """Load all entries from a backend that leaves state to the tables, as it has read them from its snapshot."""
        for table in self._tables:
            table.adopt(self._read(table.name))
            self._backend.release(table.name)

    def _read(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        stored = self._backend.scan(name)
        return stored if self._limit is None else self._limit.count(name, stored)
