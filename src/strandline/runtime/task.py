"""One operator partition at work: batches of events in, batches of output out, state in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.joins import Broadcast, KeyedBroadcastProcess
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.api.states import List, Map, State, declared_states
from strandline.api.ttl import TTL
from strandline.backends.base import Backend, Changes, Entry
from strandline.core.errors import NullKeyError, StateLimitError, StateTypeError
from strandline.core.ids import Epoch, KeyGroup, Partition
from strandline.core.keygroups import KeyGroupRange, range_of
from strandline.format.columns import to_python
from strandline.format.expiry import ExpiringCodec
from strandline.format.keys import KeyCodec
from strandline.format.records import record_type
from strandline.format.types import ArrayType, DataType, LongType, StructType, parse_schema, parse_type
from strandline.format.values import ValueCodec
from strandline.runtime.broadcast import GROUP_BYTES, Broadcasts, BroadcastTable
from strandline.runtime.calls import EventCalls, user_error
from strandline.runtime.columnar import ColumnarProcess, Given, OwnTable, Place, Rows
from strandline.runtime.expiring import ExpiringListHandle, ExpiringMapHandle, ExpiringValueHandle, ExpiringVectorHandle
from strandline.runtime.expiry import Expiry
from strandline.runtime.handles import ListHandle, MapHandle, named, value_handle, wrapped
from strandline.runtime.maptable import MapTable
from strandline.runtime.outputs import RawOutput
from strandline.runtime.program import EVENT_TIMERS, PROCESSING_TIMERS, Process, Program, check_ttl, has_timers, has_ttl
from strandline.runtime.scope import Scope
from strandline.runtime.table import Table
from strandline.runtime.timers import TimerTable
from strandline.runtime.vectors import BatchKeys, VectorValueHandle

_GATHER_ROWS = 262_144
_GATHER_BYTES = 64 << 20
_GROUPS_KEPT = 200_000
_LAST_US = (1 << 63) - 1
_GIVEN_ROWS = 50_000


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
    """Values of the right Python type are not looked at before they are encoded: say whose was out of range."""
    try:
        yield from entries
    except StateTypeError as error:
        raise named(error, uid, state) from None


class Task:
    """The user's function bound to the state of one partition. One thread at a time."""

    def __init__(
        self, program: Program, process: Process, partition: Partition, backend: Backend, cache_bytes: int
    ) -> None:
        self._program = program
        self._backend = backend
        self._schema = parse_schema(program.input_schema)
        names = list(self._schema.names)
        self._key_at = [names.index(column) for column in program.key_columns]
        self._key_types = [self._schema.fields[i].type for i in self._key_at]
        self._make_event = record_type(names)._make
        self._keys = KeyCodec(self._key_types)
        self._groups: dict[Any, int] = {}
        self._outputs = RawOutput(program.uid, program.output_schema, program.sides, timed=program.gives_time)
        self._columns_at = 1 + program.timed + program.phased + program.origins
        self.scope = Scope(program.uid, partition)
        self._process = process
        self._vectorised = isinstance(process, KeyedBatchProcess)
        self._calls = EventCalls(process, self.scope, self._outputs) if isinstance(process, KeyedProcess) else None
        states = declared_states(process)
        self._tables: dict[str, Table] = {}
        self._maps: dict[str, MapTable] = {}
        groups = range_of(partition, program.max_parallelism, program.parallelism)
        self._broadcasts = self._bind_broadcasts(groups.first)
        self._timers = self._bind_timers(groups)
        self._expiry: Expiry | None = None
        if has_ttl(process):
            check_ttl(process, program.uid, timed=program.timed)
            self._expiry = Expiry(self.scope, backend, groups, self._encode_key)
        self._columnar = process if isinstance(process, ColumnarProcess) else None
        self._own: list[OwnTable] = []
        if self._columnar is not None:
            self._columnar.bind(Place(backend, groups, cache_bytes))
            self._own = self._columnar.tables
        self._watermark_us: int | None = None
        self._reached_us: int | None = None
        self.newest_us: dict[str, int] = {}
        """The newest event times of this epoch, by whose watermark they move."""
        self.late_rows = 0
        self.source_rows = 0
        """Rows of the stream that this epoch's rows were made of, if Spark aggregated them before; else 0."""
        for name, state in states.items():
            vars(self._process)[name] = self._bind(name, state, cache_bytes // max(1, len(states)))
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = self._gathered_bytes = 0
        self._sizes: dict[tuple[str, bytes], int] = {}
        self._size = 0
        if backend.keeps_all:
            self._adopt()
        self._run_user(self._process.open, "open")

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of what `process` gives."""
        return self._outputs.schema

    def begin(
        self, epoch: Epoch, watermark_us: int | None = None, now_us: int = 0, fired_us: int | None = None
    ) -> None:
        """Start an epoch: timers up to the watermark and the clock are due in it.

        `fired_us` is the watermark of the epoch before, which a task that was restored cannot know.
        """
        self.scope.epoch, self.scope.now_us = epoch, now_us
        if self.scope.watermark_us is None:
            self.scope.watermark_us = self._reached_us = fired_us
        self._watermark_us = watermark_us
        self.newest_us, self.late_rows, self.source_rows = {}, 0, 0
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0

    def fire(self) -> Iterator[pa.RecordBatch]:
        """Before the epoch's events: call on_timer, unless some events must come first."""
        if not self._program.phased:
            yield from self._fire()

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Run the user's function on a batch: the key group, hidden columns, then the event's. Give its output.

        Iterate to the end before the next call.
        """
        if batch.num_rows == 0:
            return
        if self._program.measured:
            self._find_newest(batch)
        if self._broadcasts is not None:
            batch = self._broadcasts.take(batch, self._columns_at + 1, timed=self._program.timed)
            if batch.num_rows == 0:
                return
        self._refuse_null_keys(batch.columns[self._columns_at :])
        if not self._vectorised:
            if not self._program.phased and self._broadcasts is None:
                yield from self._run_events(batch)
                return
            if self._program.phased:
                yield from self._run_fired(batch)
                batch = batch.filter(pc.invert(_fired(batch)))
            if not batch.num_rows:
                return
        elif self._columnar is not None and self._program.phased:
            fired = _fired(batch)
            first, batch = batch.filter(fired), batch.filter(pc.invert(fired))
            self._take_rows(first)
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        self._gathered_bytes += batch.nbytes
        enough = self._gathered_rows >= _GATHER_ROWS or self._gathered_bytes >= _GATHER_BYTES
        if enough and self._vectorised and not (self._columnar is not None and self._program.phased):
            yield from self._process_gathered()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Process what `process` has only gathered so far; the epoch has no more events."""
        if self._program.phased:
            if self._columnar is not None:
                yield from self._give_fired(self._columnar.on_fired(self.scope))
            yield from self._fire()
        if self._columnar is not None:
            if self._gathered:
                yield from self._process_gathered()
            yield from self._give(self._columnar.on_end(self.scope))
            self.late_rows, self.source_rows = self._columnar.late_rows, self._columnar.source_rows
            self._columnar.forget()
            return
        if self._broadcasts is not None:
            self._broadcasts.apply(self._broadcast_failed)
        if not self._gathered:
            return
        if self._vectorised:
            yield from self._process_gathered()
            return
        for batch in self._gathered:
            yield from self._run_events(batch)
            self.evict()
        self._gathered = []

    def check(self) -> None:
        """Raise StateLimitError, with nothing applied, if what the epoch wrote is too much. Before each commit."""
        if self._backend.limit_bytes is not None:
            self._check_limit(self._backend.limit_bytes)

    def commit(self) -> None:
        """Keep what the epoch wrote. If this raises, the state is of no epoch."""
        self._reached_us = self.scope.watermark_us
        for table in self._all():
            table.commit()

    def tidy(self) -> None:
        """Let go, after a commit, of what is not needed any more."""
        self.evict()
        self._forget_groups()

    def abort(self) -> None:
        """Forget what the epoch wrote."""
        if self._calls is not None:
            self._calls.forget()
        if self._columnar is not None:
            self._columnar.forget()
        if self._broadcasts is not None:
            self._broadcasts.forget()
        self.scope.watermark_us = self._reached_us
        for table in self._all():
            table.abort()

    def evict(self) -> None:
        """Keep the caches within their budget."""
        for table in self._all():
            table.evict()

    def freeze(self) -> Frozen:
        """Take the committed state for a snapshot, at once; writing it is the background's work."""
        tables = self._all()
        states = {table.name: table.freeze() for table in tables}

        def release() -> None:
            for table in tables:
                table.release()

        return Frozen(self.scope.uid, states, release)

    def close(self) -> None:
        """Let the user's function end."""
        self._run_user(self._process.close, "close")

    @property
    def next_timers_us(self) -> tuple[int | None, int | None]:
        """Times before which no event-time and no processing-time timer is due."""
        if self._columnar is not None:
            return self._columnar.next_due_us, None
        event, processing = (self._timers[0].next_us(), self._timers[1].next_us()) if self._timers else (None, None)
        if self._expiry is not None:
            event_ttl, processing_ttl = self._expiry.next_us()
            return _earlier(event, event_ttl), _earlier(processing, processing_ttl)
        return event, processing

    def turn_to(self, key_group: int, key: Any) -> None:
        """Make a key current, so that the states' handles are about it. For looking, between epochs; then `abort`."""
        self._groups[key] = key_group
        self.scope.key = key
        if not self._vectorised:
            for table in self._tables.values():
                table.load((key,))

    def timers_of(self, key_group: int, key: Any) -> list[tuple[int, bool]]:
        """Return the times of a key's timers, and whether they are processing times. Between epochs; reads them all."""
        encoded = self._keys.encode(key_group, key)
        found = []
        for timers in self._timers or ():
            fired = timers.fire(_LAST_US, lambda keys: None)
            found += [(at_us, timers.name == PROCESSING_TIMERS) for at_us, of in fired if of == encoded]
            timers.abort()
        return found

    @property
    def dirty_bytes(self) -> int:
        """About how much memory changes hold on to that the backend does not have yet."""
        return sum(table.dirty_bytes for table in self._all())

    def metrics(self) -> dict[str, int]:
        """Return figures for people to look at."""
        tables = self._all()
        return {
            "cached_bytes": sum(table.cached_bytes for table in tables),
            "cache_hits": sum(table.hits for table in tables),
            "cache_misses": sum(table.misses for table in tables),
            **getattr(self._process, "own_metrics", {}),
            **self._backend.metrics(),
        }

    # -- binding

    def _bind(self, name: str, state: State, cache_bytes: int) -> Any:
        if self._expiry is not None and state.ttl is not None:
            return self._bind_expiring(self._expiry, name, state, state.ttl, cache_bytes)
        if isinstance(state, Broadcast):
            assert self._broadcasts is not None
            self._maps[name], handle = self._broadcasts.bind(name, state, self._backend, cache_bytes)
            return handle
        element = parse_type(state.value_type)
        if isinstance(state, Map | List):
            sub_type: DataType = parse_type(state.key_type) if isinstance(state, Map) else LongType()
            sub = KeyCodec([sub_type])
            stored = ValueCodec(element if isinstance(state, Map) else ArrayType(element))
            table = MapTable(name, self._backend, self._encode_key, sub.encode_sub, sub.decode_sub, stored, cache_bytes)
            self._maps[name] = table
            if isinstance(state, Map):
                # A declaration of ours may have a handle of its own.
                return getattr(state, "handle", MapHandle)(self.scope, table, sub, stored, name)
            return ListHandle(self.scope, table, ValueCodec(element), name)
        codec = ValueCodec(element)
        if self._vectorised:
            values = Table(name, self._backend, list, list, list, cache_bytes)
            self._tables[name] = values
            return VectorValueHandle(self.scope, values, codec, name, state.value_type, getattr(state, "default", None))
        values = Table(name, self._backend, self._encode_keys, codec.encode_many, codec.decode_many, cache_bytes)
        self._tables[name] = values
        return value_handle(self.scope, values, codec, name, state)

    def _bind_expiring(self, expiry: Expiry, name: str, state: State, ttl: TTL, cache_bytes: int) -> Any:
        scope, life, element = self.scope, expiry.lifetime(name, ttl), parse_type(state.value_type)
        if isinstance(state, Map | List):
            sub = KeyCodec([parse_type(state.key_type) if isinstance(state, Map) else LongType()])
            stored = ValueCodec(element if isinstance(state, Map) else ArrayType(element))
            pairs = ExpiringCodec(stored)
            cells = MapTable(name, self._backend, self._encode_key, sub.encode_sub, sub.decode_sub, pairs, cache_bytes)
            self._maps[name] = cells
            if isinstance(state, Map):
                entries = ExpiringMapHandle(scope, cells, sub, stored, name, life, self._remember)
                expiry.add(name, entries)
                return entries
            elements = ExpiringListHandle(scope, cells, ValueCodec(element), name, life, self._remember)
            expiry.add(name, elements)
            return elements
        codec, default = ValueCodec(element), getattr(state, "default", None)
        if self._vectorised:
            table = Table(name, self._backend, list, list, list, cache_bytes)
            self._tables[name] = table
            columns = ExpiringVectorHandle(scope, table, codec, name, state.value_type, default, life)
            expiry.add(name, columns)
            return columns
        pairs = ExpiringCodec(codec)
        table = Table(name, self._backend, self._encode_keys, pairs.encode_many, pairs.decode_many, cache_bytes)
        self._tables[name] = table
        cell = ExpiringValueHandle(scope, table, codec, name, default, life, self._remember)
        expiry.add(name, cell)
        return wrapped(cell, state)

    def _bind_broadcasts(self, first: KeyGroup) -> Broadcasts | None:
        if not isinstance(self._process, KeyedBroadcastProcess):
            return None
        rule = self._schema.fields[1].type
        assert isinstance(rule, StructType)
        return Broadcasts(self._process, self.scope, rule, self._program.broadcast_order, first)

    def _broadcast_failed(self, error: BaseException, method: str, rule: Any) -> Exception:
        return user_error(self.scope.uid, self._process, error, method, None, rule)

    def _bind_timers(self, groups: KeyGroupRange) -> tuple[TimerTable, TimerTable] | None:
        why = f"{type(self._process).__name__} does not define on_timer"
        if not has_timers(self._process):
            self.scope.timers.bind(self._encode_key, None, None, why)
            return None
        event = TimerTable(EVENT_TIMERS, self._backend, groups)
        processing = TimerTable(PROCESSING_TIMERS, self._backend, groups)
        why = 'the stream has no event time: call watermark("column") before key_by'
        self.scope.timers.bind(self._encode_key, event if self._program.timed else None, processing, why)
        return event, processing

    def _adopt(self) -> None:
        """Take over what a backend that keeps nothing itself has read from its snapshot."""
        for timers in (*self._timer_tables(), *self._own):
            timers.adopt(self._watched(timers.name))
            self._backend.release(timers.name)
        for name, table in self._tables.items():
            stored = self._watched(name)
            if self._vectorised:
                table.adopt(stored)
            else:
                table.adopt((self._remember(entry)[0], value) for entry, value in stored)
            self._backend.release(name)
        for name, cells in self._maps.items():
            for entry, value in self._watched(name):
                key, end = (None, GROUP_BYTES) if isinstance(cells, BroadcastTable) else self._remember(entry)
                cells.adopt(key, entry, end, value)
            self._backend.release(name)

    def _watched(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        for entry, value in self._backend.scan(name):
            if self._backend.limit_bytes is not None:
                self._sizes[name, entry] = len(entry) + len(value)
                self._size += len(entry) + len(value)
            yield entry, value

    def _remember(self, entry: bytes) -> tuple[Any, int]:
        group, key, end = self._keys.decode(entry)
        self._groups[key] = group
        return key, end

    def _encode_key(self, key: Any) -> bytes:
        return self._keys.encode(self._groups[key], key)

    def _encode_keys(self, keys: Sequence[Any]) -> list[bytes]:
        return self._keys.encode_many(list(map(self._groups.__getitem__, keys)), keys)

    def _forget_groups(self) -> None:
        """Between epochs: keep the key groups of keys that are not written yet, and once in a while drop the others."""
        waiting = [layer for table in self._all() for layer in table.unwritten()]
        if len(self._groups) > _GROUPS_KEPT + 2 * sum(map(len, waiting)):
            groups = self._groups
            # A new dict: a background thread may be reading the old one.
            self._groups = {key: groups[key] for layer in waiting for key in tuple(layer)}

    def _all(self) -> list[Table | MapTable | TimerTable | OwnTable]:
        return [*self._tables.values(), *self._maps.values(), *self._timer_tables(), *self._own]

    def _timer_tables(self) -> list[TimerTable]:
        return [*(self._timers or ()), *(self._expiry.tables if self._expiry else ())]

    # -- processing

    def _run_fired(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take what timers gave further up: before the watermark moves on, and what comes of it likewise."""
        first = batch.filter(_fired(batch))
        if not first.num_rows:
            return
        self._outputs.fired = True
        try:
            yield from self._run_events(first)
        finally:
            self._outputs.fired = False

    def _run_events(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        assert self._calls is not None
        self._count_late(batch)
        groups, columns = batch.column(0), batch.columns[self._columns_at :]
        values = [to_python(c, f.type) for c, f in zip(columns, self._schema.fields, strict=True)]
        at = self._key_at
        keys = values[at[0]] if len(at) == 1 else list(zip(*(values[i] for i in at), strict=True))
        keys = self._keys.normalise(keys)
        self._groups.update(zip(keys, groups.to_pylist(), strict=True))
        distinct = set(keys)
        for table in self._tables.values():
            table.load(distinct)
        times = batch.column(1).to_pylist() if self._program.timed else None
        # Where the right half is for everybody, what is left are left ones.
        alone = self._broadcasts is not None
        events = iter(values[0]) if alone else map(self._make_event, zip(*values, strict=True))
        return self._calls.on_events(keys, events, times)

    def _fire(self) -> Iterator[pa.RecordBatch]:
        """Call on_timer for every timer that the watermark and the clock have made due."""
        scope, watermark_us = self.scope, self._watermark_us
        moved = watermark_us is not None and (scope.watermark_us is None or scope.watermark_us < watermark_us)
        if moved:
            scope.watermark_us = watermark_us
        if self._expiry is not None:
            self._expiry.clean(self.evict)
        if moved and self._columnar is not None:
            yield from self._give_fired(self._columnar.on_watermark(scope))
        if self._calls is None or self._timers is None:
            return
        self._calls.set_fired(True)
        try:
            if watermark_us is not None:
                yield from self._calls.on_timers(self._timers[0], watermark_us, processing=False, prepare=self._prepare)
            yield from self._calls.on_timers(self._timers[1], scope.now_us, processing=True, prepare=self._prepare)
        finally:
            self._calls.set_fired(False)

    def _prepare(self, encoded: list[bytes]) -> dict[bytes, Any]:
        """Make the keys of timers live, and let go of those before."""
        self.evict()
        entries = list(set(encoded))
        keys = dict(zip(entries, self._keys.decode_many(entries), strict=True))
        self._groups.update((key, entry[0] << 8 | entry[1]) for entry, key in keys.items())
        distinct = set(keys.values())
        for table in self._tables.values():
            table.load(distinct)
        return keys

    def _process_gathered(self) -> Iterator[pa.RecordBatch]:
        """Run a vectorised function on few large batches rather than many small ones: each costs per distinct key."""
        assert isinstance(self._process, KeyedBatchProcess)
        batch = pa.concat_batches(self._gathered) if len(self._gathered) > 1 else self._gathered[0]
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        if self._columnar is not None:
            self._take_rows(batch)
            return
        self._count_late(batch)
        groups, columns = batch.column(0), batch.columns[self._columns_at :]
        if self._expiry is not None and self._program.timed:
            self.scope.time_us = pc.max(batch.column(1)).as_py()
        self.scope.keys = BatchKeys([columns[i] for i in self._key_at], groups, self._keys)
        events = pa.RecordBatch.from_arrays(list(columns), names=batch.schema.names[self._columns_at :])
        try:
            result = self._process.on_batch(events, self.scope)
        except (Exception, SystemExit) as error:
            raise user_error(self.scope.uid, self._process, error, "on_batch") from error
        given = self._outputs.from_arrow(result)
        if given is not None:
            yield given

    def _take_rows(self, batch: pa.RecordBatch) -> None:
        assert self._columnar is not None
        if not batch.num_rows:
            return
        times = batch.column(1) if self._program.timed else None
        columns = list(batch.columns[self._columns_at :])
        with self._naming_operator():
            self._columnar.on_rows(Rows(batch.column(0), times, columns, self._key_at, self._keys), self.scope)

    def _give(self, given: Iterator[Given]) -> Iterator[pa.RecordBatch]:
        given = iter(given)
        while True:
            with self._naming_operator():
                batch, times = next(given, (None, None))
            if batch is None:
                return
            for start in range(0, batch.num_rows, _GIVEN_ROWS):
                piece = None if times is None else times.slice(start, _GIVEN_ROWS)
                output = self._outputs.from_arrow(batch.slice(start, _GIVEN_ROWS), piece)
                if output is not None:
                    yield output

    @contextmanager
    def _naming_operator(self) -> Iterator[None]:
        """Say whose value did not fit: an operator of ours does not know what it is called."""
        try:
            yield
        except StateTypeError as error:
            message = f"operator '{self.scope.uid}': {error.message}"
            raise StateTypeError(message, hint=error.hint, **error.fields) from None

    def _give_fired(self, given: Iterator[Given]) -> Iterator[pa.RecordBatch]:
        self._outputs.fired = True
        try:
            yield from self._give(given)
        finally:
            self._outputs.fired = False

    def _count_late(self, batch: pa.RecordBatch) -> None:
        """Count the events that the function is about to be told are late."""
        if self._program.timed and self.scope.watermark_us is not None:
            self.late_rows += pc.sum(pc.less(batch.column(1), self.scope.watermark_us)).as_py() or 0

    def _find_newest(self, batch: pa.RecordBatch) -> None:
        """Find the newest times among events that come straight from a watermark."""
        times = batch.column(1)
        if self._program.origins:
            newest = (
                pa.table([batch.column(2 + self._program.phased), times], ["origin", "time"])
                .group_by("origin")
                .aggregate([("time", "max")])
            )
            found = list(zip(newest["origin"].to_pylist(), newest["time_max"].to_pylist(), strict=True))
        else:
            found = [("", pc.max(times).as_py())]
        for origin, time in found:
            if time is not None:
                # Rows whose origin is null are an origin of their own.
                name = origin or ""
                self.newest_us[name] = max(time, self.newest_us.get(name, time))

    def _refuse_null_keys(self, columns: Sequence[pa.Array]) -> None:
        for at in self._key_at:
            if columns[at].null_count:
                row = columns[at].is_null().index(True).as_py()
                fields = self._schema.fields
                values = [to_python(c.slice(row, 1), f.type)[0] for c, f in zip(columns, fields, strict=True)]
                raise NullKeyError(
                    f"operator '{self._program.uid}': the key column '{self._schema.names[at]}' is null in the event "
                    f"{self._make_event(values)!r}",
                    hint='drop such events before key_by, as with where("key is not null"), or give them a key',
                    operator=self._program.uid,
                )

    def _run_user(self, method: Callable[[], None], name: str) -> None:
        try:
            method()
        except (Exception, SystemExit) as error:
            raise user_error(self.scope.uid, self._process, error, name) from error

    def _check_limit(self, limit: int) -> None:
        changed: dict[tuple[str, bytes], int] = {}
        for table in self._all():
            for entry, value in _naming(self.scope.uid, table.name, table.changed()):
                changed[table.name, entry] = 0 if value is None else len(entry) + len(value)
        size = self._size + sum(new - self._sizes.get(at, 0) for at, new in changed.items())
        if size > limit:
            raise StateLimitError(
                f"operator '{self._program.uid}', partition {self.scope.partition}: state would grow to {size} bytes, "
                f"and the memory backend's limit is {limit} bytes",
                hint="use backend='rocksdb' for large state, or raise memory_backend_limit in Settings",
                operator=self._program.uid,
                size_bytes=size,
                limit_bytes=limit,
            )
        self._size = size
        for at, new in changed.items():
            if new:
                self._sizes[at] = new
            else:
                self._sizes.pop(at, None)


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None or (other is not None and other < one) else one


def _fired(batch: pa.RecordBatch) -> pa.Array:
    """Return which rows of a phased operator were given by timers."""
    return pc.fill_null(batch.column(2), False)
