"""The task of one operator partition: runs the user's function, or a built-in operator, on batches of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.backends.base import Backend
from strandline.core.errors import StateTypeError, UserCodeError
from strandline.core.failure import shortened
from strandline.core.ids import Epoch, Partition
from strandline.core.times import END_US
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.heavykeys import HeavyKeys
from strandline.runtime.operators.joins import user_event
from strandline.runtime.program import Process, Program
from strandline.runtime.rowlayout import ROWS
from strandline.runtime.state.columnar import BatchKeys, ColumnarProcess, InputRows, TimedRows
from strandline.runtime.state.lookups import LookupEntries, LookupRequest, Lookups
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.store import Store
from strandline.runtime.state.timers import passed_us
from strandline.runtime.task.badrows import BadRow, bad_rows, values_at, without_bad
from strandline.runtime.task.calls import EventCalls
from strandline.runtime.task.guarded import Failures, GuardedCalls
from strandline.runtime.task.heldrows import HeldRows
from strandline.runtime.task.outputs import RawOutput
from strandline.runtime.task.unsaved import Finding, UnsavedState
from strandline.runtime.task.usererrors import user_error
from strandline.types.columns import to_python
from strandline.types.datatypes import parse_schema
from strandline.types.records import record_type

_GATHER_ROWS = 262_144
_GATHER_BYTES = 64 << 20
_RESULT_ROWS = 50_000
"""The most rows in an output batch of a built-in operator on columns."""
_EMPTY_EPOCH_WEIGHT = 0.05
"""How much an epoch without rows counts, relative to one with rows, when the search for unsaved data ends."""
_RULE_COLUMN = 1
"""The index of the column of broadcast rules: the right one of a pair."""
LONGEST_CHAIN = 1000
"""The longest chain of timers that set timers at the end of event time: all fire at once, and it might never end."""


@dataclass(frozen=True, slots=True)
class EpochTimes:
    """The times of an epoch. Timers are due that the watermark has passed, or the clock has reached."""

    watermark_us: int | None = None
    now_us: int = 0
    fired_us: int | None = None
    """The watermark of the epoch before, which a restored task does not know."""


class Task:
    """Runs the user's function on the state of one partition, epoch by epoch, in one thread at a time."""

    def __init__(
        self,
        program: Program,
        process: Process,
        partition: Partition,
        backend: Backend,
        cache_bytes: int,
        scratch: Path | None = None,
    ) -> None:
        """`scratch` is a local directory for rows that wait, and that do not fit into memory."""
        self._program = program
        self._schema = parse_schema(program.input_schema)
        names = list(self._schema.names)
        self._key_at = [names.index(column) for column in program.key_columns]
        self._layout = program.layout
        self._make_event = record_type(names)._make
        self._outputs = RawOutput(program.uid, program.output_schema, program.sides, timed=program.layout.timed)
        self._process = process
        self._columnar = process if isinstance(process, ColumnarProcess) else None
        self.scope = Scope(program.uid, partition)
        self.store = Store(program, process, self.scope, backend, cache_bytes)
        self._calls: EventCalls | None = None
        self.failures: Failures | None = None
        """The failed events, if they do not end the job."""
        if isinstance(process, KeyedProcess):
            self._calls = self._make_calls(process)
        elif program.sides:
            self.scope._emit = self._outputs.add_side_batch
        if self._columnar is not None and not program.on_error.fails:
            self.failures = Failures(process, self.scope, self._outputs, program.on_error, None)
        self._keyless_rows = 0
        """The number of the stream's rows in bad accumulators of this epoch, which the aggregates leave out."""
        self._lookups = Lookups(program, process, self.store)
        # Events wait for the end of the epoch if timers or the rules of a broadcast come first.
        self._at_end = program.layout.has_fired or self.store.broadcasts is not None
        self._next_watermark_us: int | None = None
        self._committed_watermark_us: int | None = None
        self.newest_us: dict[str, int] = {}
        """The newest event times of this epoch, by the origin whose watermark they move."""
        self.late_rows = 0
        self.heavy_keys = HeavyKeys(program.key_columns, partition)
        self.source_rows = 0
        """Rows of the stream that this epoch's rows were made of, if Spark aggregated them before; else 0."""
        self._held = HeldRows(scratch)
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = self._gathered_bytes = 0
        self._fired = HeldRows(scratch)
        """Rows of upstream timers, held for a vectorised function."""
        self.unsaved = None if isinstance(process, BuiltinOperator) else UnsavedState(process, program.uid)
        """Looks for data that the function keeps outside of its states; None once the search has ended."""
        self.findings: list[Finding] = []
        """The findings of this epoch."""
        self._has_rows = False
        self._run_user(process.open, "open")
        if self.unsaved is not None:
            self.unsaved.opened()
            self.scope.unsaved = self.unsaved

    def _make_calls(self, process: KeyedProcess) -> EventCalls:
        journal = self.store.journal
        if journal is None:
            return EventCalls(process, self.scope, self._outputs)
        self.failures = Failures(process, self.scope, self._outputs, self._program.on_error, journal)
        return GuardedCalls(process, self.scope, self._outputs, journal, self.failures)

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the output of `process`."""
        return self._outputs.schema

    def begin(self, epoch: Epoch, times: EpochTimes) -> None:
        """Start an epoch."""
        self.scope.epoch, self.scope.now_us = epoch, times.now_us
        self.heavy_keys.begin(times.now_us)
        if self.scope.watermark_us is None:
            self.scope.watermark_us = self._committed_watermark_us = times.fired_us
        self._next_watermark_us = times.watermark_us
        self.newest_us, self.late_rows, self.source_rows, self._keyless_rows = {}, 0, 0, 0
        self.findings, self._has_rows = [], False
        if self.unsaved is not None:
            self.unsaved.begin()
        if self.failures is not None:
            self.failures.begin()
        if self._columnar is not None:
            self._columnar.late_rows = self._columnar.source_rows = 0

    def fire(self) -> Iterator[pa.RecordBatch]:
        """Call on_timer before the epoch's events, unless rows of upstream timers must come first."""
        if not self._layout.has_fired:
            yield from self._fire()

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Run the user's function on a batch in the program's layout, and yield its output.

        Iterate to the end before the next call.
        """
        if batch.num_rows == 0:
            return
        self._has_rows = True
        if self._program.measured:
            self._measure_newest(batch)
        if self.store.broadcasts is not None:
            batch = self.store.broadcasts.take(self._drop_bad_rules(batch), self._layout)
        if self.failures is None:
            self._raise_bad_row(self._layout.columns(batch))
        elif self._columnar is not None:
            batch = self._drop_bad_accumulators(batch, self.failures)
        fired = self._layout.fired(batch)
        if fired is not None:
            fired = pc.fill_null(fired, False)
            yield from self._run_fired(batch.filter(fired))
            batch = batch.filter(pc.invert(fired))
        if not batch.num_rows:
            return
        if self._at_end:
            self._held.append(batch)
        elif self._calls is not None:
            yield from self._run_events(batch)
        else:
            yield from self._gather(batch)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Process the batches that `process` has only held or gathered, since the epoch has no more events."""
        if self._layout.has_fired:
            if self._columnar is not None:
                yield from self._emit_fired(self._columnar.on_fired(self.scope))
            with self._marked_as_fired():
                yield from self._run_gathered(self._fired.take())
            yield from self._fire()
        if self.store.broadcasts is not None:
            failed = partial(user_error, self.scope.uid, self._process)
            self.store.broadcasts.apply(self._calls.on_rule if isinstance(self._calls, GuardedCalls) else failed)
        if self._calls is not None:
            for batch in self._held.take():
                yield from self._run_events(batch)
                self.store.evict()
            # The output of on_broadcast.
            yield from self._outputs.take_sides()
        else:
            yield from self._run_gathered(self._held.take())
        if self._columnar is not None:
            yield from self._emit_results(self._columnar.on_end(self.scope))
            self.late_rows = self._columnar.late_rows
            self.source_rows = self._columnar.source_rows + self._keyless_rows

    def look_for_unsaved(self) -> None:
        """Find data that the function has kept in this epoch outside of its states, as long as this is enabled."""
        if self.unsaved is None:
            return
        self.findings = self.unsaved.find()
        # An epoch without rows counts little: there is little to find in it.
        self.unsaved.epochs_left -= 1 if self._has_rows else _EMPTY_EPOCH_WEIGHT
        if self.unsaved.epochs_left <= 0:
            self.unsaved = self.scope.unsaved = None

    @property
    def failed_events(self) -> int:
        """The number of events of this epoch that failed without ending the job."""
        return self.failures.in_epoch if self.failures is not None else 0

    def commit(self) -> None:
        """Commit the epoch's writes. If this raises, the state mixes epochs."""
        self._committed_watermark_us = self.scope.watermark_us
        if self._columnar is not None:
            self._columnar.commit()
        self.store.commit()

    def abort(self) -> None:
        """Discard the epoch's writes."""
        if self._calls is not None:
            self._calls.forget()
        if self._columnar is not None:
            self._columnar.forget()
        if self.unsaved is not None:
            self.unsaved.forget()
        self._outputs.forget()
        self._take_gathered()
        self._held.clear()
        self._fired.clear()
        self.scope.watermark_us = self._committed_watermark_us
        self.store.abort()

    def look_up(self, request: LookupRequest, epoch: Epoch) -> LookupEntries:
        """Return the committed entries of some keys. Any thread may call it: see OperatorPartition.look_up."""
        return self._lookups.find(request, epoch, self._committed_watermark_us)

    def close(self) -> None:
        """Close the user's function."""
        self._run_user(self._process.close, "close")

    @property
    def next_timers_us(self) -> tuple[int | None, int | None]:
        """The times before which no timer is due: in event time, and in processing time."""
        if self._columnar is not None:
            return self._columnar.next_due_us, self._columnar.next_due_clock_us
        return self.store.next_timers_us

    # -- timers

    def _fire(self) -> Iterator[pa.RecordBatch]:
        """Move the watermark on: fire the due timers, and delete expired entries."""
        scope, watermark_us = self.scope, self._next_watermark_us
        scope.before_us = scope.watermark_us
        moved = watermark_us is not None and (scope.watermark_us is None or scope.watermark_us < watermark_us)
        if moved:
            if watermark_us == END_US:
                # Fire these before the watermark moves and state expires: there is no later epoch for them.
                yield from self._fire_by_clock()
            scope.watermark_us = watermark_us
        if self._columnar is not None:
            if moved:
                yield from self._emit_fired(self._columnar.on_watermark(scope))
            yield from self._emit_fired(self._columnar.on_clock(scope))
        if self._calls is not None and self.store.timers is not None and watermark_us is not None:
            event, _ = self.store.timers
            longest = LONGEST_CHAIN if scope.is_draining else None
            with self._marked_as_fired():
                yield from self._calls.on_timers(
                    event, passed_us(watermark_us), processing=False, prepare=self.store.prepare, longest=longest
                )
        yield from self._fire_by_clock()
        # Clean after the timers, which may read entries that have expired since their times.
        if self.store.expiry is not None:
            self.store.expiry.clean(self.store.evict)

    def _fire_by_clock(self) -> Iterator[pa.RecordBatch]:
        if self._calls is not None and self.store.timers is not None:
            _, processing = self.store.timers
            now_us, prepare = self.scope.now_us, self.store.prepare
            with self._marked_as_fired():
                yield from self._calls.on_timers(processing, now_us, processing=True, prepare=prepare)

    def _run_fired(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process rows of upstream timers, before the watermark moves on. Their output counts as timers' rows, too."""
        if not batch.num_rows:
            return
        if self._columnar is not None:
            self._take_rows(self._columnar, batch)
        elif self._calls is None:
            # Hold them: few large batches cost less than many small ones.
            self._fired.append(batch)
        else:
            with self._marked_as_fired():
                yield from self._run_events(batch)

    def _emit_fired(self, results: Iterator[TimedRows]) -> Iterator[pa.RecordBatch]:
        with self._marked_as_fired():
            yield from self._emit_results(results)

    @contextmanager
    def _marked_as_fired(self) -> Iterator[None]:
        """Mark the output rows of the `with` block as timers' rows."""
        self._outputs.fired = True
        try:
            yield
        finally:
            self._outputs.fired = False

    # -- events

    def _run_events(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        assert self._calls is not None
        self._count_late(batch)
        if self.failures is not None:
            batch = self._drop_bad_events(batch, self.failures)
        groups, values = self._layout.groups(batch), self._values_of(batch)
        at = self._key_at
        keys = values[at[0]] if len(at) == 1 else list(zip(*(values[i] for i in at), strict=True))
        keys = self.store.keys.codec.normalise(keys)
        self.heavy_keys.add([keys[at] for at in self.heavy_keys.sample(len(keys))])
        self.store.keys.learn(keys, groups.to_pylist())
        self.store.load(set(keys))
        time_column = self._layout.times(batch)
        times = None if time_column is None else time_column.to_pylist()
        # With a broadcast, rules, the right halves of pairs, were removed before, and each event is a left half.
        has_rules = self.store.broadcasts is not None
        events = iter(values[0]) if has_rules else map(self._make_event, zip(*values, strict=True))
        return self._calls.on_events(keys, events, times)

    def _values_of(self, batch: pa.RecordBatch) -> list[list[Any]]:
        columns = self._layout.columns(batch)
        try:
            return [to_python(column, field.type) for column, field in zip(columns, self._schema.fields, strict=True)]
        except UserCodeError:
            self._raise_first(columns, bad_rows(columns, self._schema, self._key_at, self._program.uid))
            raise

    def _drop_bad_events(self, batch: pa.RecordBatch, failures: Failures) -> pa.RecordBatch:
        """Return a batch's rows that the function can be called with; record the others as failed."""
        columns = self._layout.columns(batch)
        bad = bad_rows(columns, self._schema, self._key_at, self._program.uid)
        self._record_bad_rows(batch, bad, failures)
        return without_bad(batch, bad) if bad else batch

    def _drop_bad_rules(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch without unreadable rules. Every partition gets them: only the first one records them."""
        columns = self._layout.columns(batch)
        if columns[_RULE_COLUMN].null_count == batch.num_rows:
            return batch
        bad = bad_rows(columns, self._schema, (), self._program.uid, {_RULE_COLUMN})
        if self.failures is None:
            self._raise_first(columns, bad)
        elif not self.scope.partition:
            self._record_bad_rows(batch, bad, self.failures)
        return without_bad(batch, bad) if bad else batch

    def _record_bad_rows(self, batch: pa.RecordBatch, bad: Sequence[BadRow], failures: Failures) -> None:
        columns, names, time_column = self._layout.columns(batch), self._schema.names, self._layout.times(batch)
        for each in bad:
            values = values_at(columns, self._schema, each.at)
            key = tuple(values[at] for at in self._key_at)
            event = user_event(record_type(names)._make(values), names)
            time_us = None if time_column is None else time_column[each.at].as_py()
            failures.record_bad_row(each.error, each.step, key[0] if len(key) == 1 else key, event, time_us)

    def _drop_bad_accumulators(self, batch: pa.RecordBatch, failures: Failures) -> pa.RecordBatch:
        """Return a batch's accumulators with a key and readable values; record the rows of the others as failed."""
        columns = self._layout.columns(batch)
        bad = bad_rows(columns, self._schema, self._key_at, self._program.uid)
        if not bad:
            return batch
        rows = columns[self._schema.names.index(ROWS)]
        count = pc.sum(rows.take(pa.array([each.at for each in bad]))).as_py()
        self._keyless_rows += count
        failures.record_bad_rows(bad[-1].error, count)
        return without_bad(batch, bad)

    # -- columns

    def _run_gathered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run a vectorised function on held batches, and on those that were gathered before."""
        for batch in batches:
            yield from self._gather(batch)
            self.store.evict()
        if gathered := self._take_gathered():
            yield from self._run_batch(gathered)

    def _gather(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Gather batches for a vectorised function, and run it when they are enough."""
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        self._gathered_bytes += batch.nbytes
        if self._gathered_rows >= _GATHER_ROWS or self._gathered_bytes >= _GATHER_BYTES:
            yield from self._run_batch(self._take_gathered())

    def _take_gathered(self) -> list[pa.RecordBatch]:
        """Return the gathered batches, and forget them."""
        gathered = self._gathered
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0
        return gathered

    def _run_batch(self, gathered: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run a vectorised function on gathered batches as one: each call has a cost per distinct key."""
        assert isinstance(self._process, KeyedBatchProcess)
        batch = pa.concat_batches(gathered) if len(gathered) > 1 else gathered[0]
        if self._columnar is not None:
            self._take_rows(self._columnar, batch)
            return
        self._count_late(batch)
        columns = self._layout.columns(batch)
        if self.store.expiry is not None and self._layout.timed:
            self.scope.time_us = pc.max(self._layout.times(batch)).as_py()
        self.scope.keys = self._keys_of(batch, columns)
        events = pa.RecordBatch.from_arrays(columns, names=batch.schema.names[self._layout.columns_at :])
        try:
            result = self._process.on_batch(events, self.scope)
        except BaseException as error:
            raise user_error(self.scope.uid, self._process, error, "on_batch") from error
        output = self._outputs.from_arrow(result)
        if output is not None:
            yield output
        yield from self._outputs.take_sides()

    def _take_rows(self, columnar: ColumnarProcess, batch: pa.RecordBatch) -> None:
        columns = self._layout.columns(batch)
        rows = InputRows(self._keys_of(batch, columns), self._layout.times(batch), columns)
        with self._naming_operator():
            columnar.on_rows(rows, self.scope)

    def _keys_of(self, batch: pa.RecordBatch, columns: Sequence[pa.Array]) -> BatchKeys:
        """Return the keys of a batch, and count a sample of them."""
        keys = BatchKeys([columns[i] for i in self._key_at], self._layout.groups(batch), self.store.keys.codec)
        if sample := self.heavy_keys.sample(len(keys)):
            self.heavy_keys.add(keys.take(sample).values())
        return keys

    def _emit_results(self, results: Iterator[TimedRows]) -> Iterator[pa.RecordBatch]:
        while True:
            with self._naming_operator():
                batch, times = next(results, (None, None))
            if batch is None:
                return
            for start in range(0, batch.num_rows, _RESULT_ROWS):
                piece = None if times is None else times.slice(start, _RESULT_ROWS)
                output = self._outputs.from_arrow(batch.slice(start, _RESULT_ROWS), piece)
                if output is not None:
                    yield output

    @contextmanager
    def _naming_operator(self) -> Iterator[None]:
        """Add the operator's uid to errors: a built-in operator does not know it."""
        try:
            yield
        except StateTypeError as error:
            message = f"operator '{self.scope.uid}': {error.message}"
            raise StateTypeError(message, hint=error.hint, **error.fields) from None

    # -- checks and figures

    def _count_late(self, batch: pa.RecordBatch) -> None:
        """Count the late events in a batch."""
        if self._layout.timed and self.scope.watermark_us is not None:
            self.late_rows += pc.sum(pc.less(self._layout.times(batch), self.scope.watermark_us)).as_py() or 0

    def _measure_newest(self, batch: pa.RecordBatch) -> None:
        """Update `newest_us` with the times of events that come straight from a watermark."""
        times, origins = self._layout.times(batch), self._layout.origins(batch)
        if origins is not None:
            newest = pa.table([origins, times], ["origin", "time"]).group_by("origin").aggregate([("time", "max")])
            encoded_names = newest["origin"].cast(pa.binary()).to_pylist()
            # An origin may be a string that is not UTF-8.
            names = [None if name is None else name.decode(errors="backslashreplace") for name in encoded_names]
            newest_of = list(zip(names, newest["time_max"].to_pylist(), strict=True))
        else:
            newest_of = [("", pc.max(times).as_py())]
        for origin, time in newest_of:
            if time is not None:
                # Rows without an origin share the origin "".
                name = origin or ""
                self.newest_us[name] = max(time, self.newest_us.get(name, time))

    def _raise_bad_row(self, columns: Sequence[pa.Array]) -> None:
        """Raise the error of the first bad row of a batch, unless a later conversion to Python's values finds it."""
        if self._calls is None:
            # A user's vectorised function gets columns as they are: only keys are read. Built-in operators read all.
            read = None if self._columnar is not None else self._key_at
            self._raise_first(columns, bad_rows(columns, self._schema, self._key_at, self._program.uid, read))
        elif any(columns[at].null_count for at in self._key_at):
            self._raise_first(columns, bad_rows(columns, self._schema, self._key_at, self._program.uid))

    def _raise_first(self, columns: Sequence[pa.Array], bad: Sequence[BadRow]) -> None:
        """Raise the error of the first of these bad rows, with its event."""
        if not bad:
            return
        # Built-in operators have columns that users do not know: show the key only.
        is_ours = isinstance(self._process, BuiltinOperator) and self._process.own_hides_events
        visible = self._key_at if is_ours or self._columnar is not None else range(len(columns))
        names = [self._schema.names[at] for at in visible]
        values = values_at(columns, self._schema, bad[0].at)
        event = user_event(record_type(names)._make([values[at] for at in visible]), names)
        error, uid = bad[0].error, self._program.uid
        message = error.message + ("," if bad[0].step == "read" else "")
        raise type(error)(
            f"operator '{uid}': {message} in the event {shortened(repr(event))}",
            discreet=f"operator '{uid}': {error.discreet} in an event",
            hint=error.hint,
            operator=uid,
        )

    def _run_user(self, method: Callable[[], None], name: str) -> None:
        try:
            method()
        except BaseException as error:
            raise user_error(self.scope.uid, self._process, error, name) from error
