"""Built-in aggregates of sessions: an epoch's events are spans of time, merged with the sessions that they touch.

A row of the input has the key's columns, the number of events that it stands for, the first and the last of their
times, and the accumulator's columns. Spark may have aggregated events that are less than the gap apart: they are in
one session whatever events follow. So an epoch's events are one set: which are late does not depend on their order.

As in windows of Python functions, a session's end in the state is a microsecond after its window's end: an event at the
very end of the window belongs to it.

State is the newest session of each key, and a list of older ones if there are any. A session that is not complete has a
timer at some time up to its end; one that waits for late events has it at the end of its lateness. When a timer fires,
all sessions of the key are read, and those that stay get a timer again. So an event that extends a session sets none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.api.states import Value
from strandline.api.windows import Session
from strandline.backends.base import Backend
from strandline.format.keys import KeyCodec
from strandline.format.manifest import StateInfo
from strandline.format.schemas import Schemas
from strandline.runtime.builtin import windows_info
from strandline.runtime.operators.aggregates.accumulators import Accumulators, results_of
from strandline.runtime.operators.aggregates.grouping import Groups, Numbers, lengths, offsets, overlapping, valid_rows
from strandline.runtime.operators.windows.operator import Rules, next_multiple
from strandline.runtime.state.columnar import BatchKeys, ColumnarProcess, InputRows, TimedRows
from strandline.runtime.state.panes import settle
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.table import StateTable
from strandline.runtime.state.timers import TimerTable, earliest
from strandline.types.columns import arrow_schema, conform
from strandline.types.datatypes import StructType, parse_schema

NEWEST, OLDER = "newest", "older"
ENDS, EARLY = "timers.ends", "timers.early"
_SPAN = "start bigint, end bigint, given boolean, fresh boolean"
_SPAN_COLUMNS = 4
"""The number of columns in _SPAN; a session's other columns are the accumulator."""
_KEYS_AT_ONCE = 50_000
_BEFORE_ALL_US = -(1 << 63)


@dataclass
class Sessions:
    """Sessions, or spans of events that will become sessions."""

    columns: Sequence[pa.Array]
    """The accumulators."""
    of_key: Numbers
    """The key of each: its index in a list of keys."""
    start: Numbers
    end: Numbers
    emitted: Numbers
    """Whether its final result was emitted, and it has not changed since."""
    fresh: Numbers
    """Whether it has changed since its last result, final or not."""

    @property
    def numbers(self) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
        """The columns that describe them, in the order of the fields."""
        return self.of_key, self.start, self.end, self.emitted, self.fresh

    def __len__(self) -> int:
        return len(self.start)

    def complete(self, reached_us: int) -> Numbers:
        """Return the mask of those that have ended and whose final result was not emitted yet."""
        mask: Numbers = ~self.emitted & (self.end <= reached_us)
        return mask

    def select(self, chosen: Numbers) -> Sessions:
        """Return the sessions at these indices, or of this mask."""
        at = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        columns = [column.take(pa.array(at)) for column in self.columns]
        return Sessions(columns, *(numbers[at] for numbers in self.numbers))

    def concat(self, more: Sessions) -> Sessions:
        """Return these sessions, followed by others."""
        columns = [pa.concat_arrays(pair) for pair in zip(self.columns, more.columns, strict=True)]
        return Sessions(columns, *map(np.append, self.numbers, more.numbers))


class SessionAggregation(ColumnarProcess):
    """Aggregates of each key's events in each session."""

    newest: Any
    older: Any

    def __init__(self, key_schema: str, accumulators: Accumulators, kind: Session, rules: Rules) -> None:
        self._keys = parse_schema(key_schema)
        self._accumulators = accumulators
        self._length, self._rules = kind.gap_us + 1, rules
        self.own_windows = windows_info(kind, processing=rules.processing, lateness_us=rules.lateness_us)
        self.own_is_whole = rules.are_whole
        session = parse_schema(f"{_SPAN}, {accumulators.ddl}")
        self._fields = list(arrow_schema(session))
        self.own_states = {
            NEWEST: Value(StructType((*parse_schema("more boolean").fields, *session.fields)).ddl),
            OLDER: Value(f"array<{session.ddl}>"),
        }
        self.own_aggregated = accumulators.aggregated
        self.own_tables = [StateInfo(name=name, kind="timers", value_type="") for name in (ENDS, EARLY)]
        self._spans: list[pa.RecordBatch] = []
        """The epoch's events: key group, keys, number of events, start, end, accumulator."""

    def bind(
        self, backend: Backend, groups: range, schemas: Mapping[str, Schemas], cache_bytes: int
    ) -> Sequence[StateTable[Any]]:
        self._codec = KeyCodec([field.type for field in self._keys.fields])
        self._ends, self._early = TimerTable(ENDS, backend, groups), TimerTable(EARLY, backend, groups)
        return [self._ends, self._early]

    def on_rows(self, rows: InputRows, scope: Scope) -> None:
        """Hold back a batch until the end of the epoch."""
        width = len(self._keys.fields)
        counts, *more = rows.columns[width:]
        self.source_rows += int(counts.to_numpy().sum())
        if self._rules.processing:
            start = last = np.full(len(counts), scope.now_us)
        else:
            start, last = (column.to_numpy() for column in (more.pop(0), more.pop(0)))
        keys = [conform(c, f.type) for c, f in zip(rows.columns[:width], self._keys.fields, strict=True)]
        columns = [rows.keys.groups.cast(pa.int32()), *keys, counts, pa.array(start), pa.array(last + self._length)]
        columns += self._accumulators.conform(more)
        self._spans.append(pa.RecordBatch.from_arrays(columns, names=list(map(str, range(len(columns))))))
        settle(self._spans, self._merge_batches)

    def on_fired(self, scope: Scope) -> Iterator[TimedRows]:
        yield from self._merge_spans(scope)

    def on_watermark(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the sessions that are complete, and delete those whose lateness is over."""
        if not self._rules.processing:
            yield from self._complete(scope)

    def on_clock(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the sessions that the clock has completed, and results so far."""
        if self._rules.processing:
            yield from self._complete(scope)
        for keys in self._fired(self._early, scope.now_us):
            if not self._rules.early_us:
                # These timers are from an earlier run.
                continue
            sessions = self._load(keys)
            is_due = sessions.fresh & ~sessions.emitted
            yield from self._results(keys, sessions.select(is_due))
            self._store(keys, sessions, replace(sessions, fresh=sessions.fresh & ~is_due))

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Merge the epoch's events; yield the sessions again that late ones have changed."""
        yield from self._merge_spans(scope)

    def forget(self) -> None:
        self._spans = []

    @property
    def next_due_us(self) -> int | None:
        """The time that the watermark has to pass before there is work."""
        end_us = None if self._rules.processing else self._ends.next_us()
        return None if end_us is None else end_us - 1

    @property
    def next_due_clock_us(self) -> int | None:
        """The time that the clock has to reach before there is work."""
        return earliest((self._early.next_us(), self._ends.next_us() if self._rules.processing else None))

    # -- events of an epoch

    def _merge_batches(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Merge batches into one in which spans of a key do not touch."""
        batch = pa.concat_batches(batches)
        spans, _, counts = self._sessions_in(batch)
        order, begins = overlapping(spans.of_key, spans.start, spans.end)
        groups = _groups(order, begins)
        width = 1 + len(self._keys.fields)
        columns = [column.take(pa.array(groups.first)) for column in batch.columns[:width]]
        columns.append(pa.array(np.add.reduceat(counts[order], begins)))
        columns.append(pa.array(spans.start[order][begins]))
        columns.append(pa.array(np.maximum.reduceat(spans.end[order], begins)))
        columns += self._accumulators.merge(spans.columns, groups)
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _sessions_in(self, batch: pa.RecordBatch) -> tuple[Sessions, BatchKeys, Numbers]:
        """Return a batch's spans as sessions, the distinct keys of all, and the number of events of each span."""
        width = 1 + len(self._keys.fields)
        groups, *key_columns = batch.columns[:width]
        counts, start, end = (column.to_numpy() for column in batch.columns[width : width + 3])
        keys, of_key = BatchKeys(key_columns, groups, self._codec).unique()
        all_false, all_true = np.zeros(len(start), bool), np.ones(len(start), bool)
        return Sessions(batch.columns[width + 3 :], of_key, start, end, all_false, all_true), keys, counts

    def _merge_spans(self, scope: Scope) -> Iterator[TimedRows]:
        """Merge the epoch's spans and the sessions that they touch; yield those that are complete, perhaps again."""
        if not self._spans:
            return
        spans, keys, counts = self._sessions_in(pa.concat_batches(self._spans))
        self._spans = []
        stored = self._load(keys)
        both = stored.concat(spans)
        order, begins = overlapping(both.of_key, both.start, both.end)
        is_new = (np.arange(len(both)) >= len(stored))[order]
        changed = np.logical_or.reduceat(is_new, begins)
        # A cluster has a timer if one of its stored sessions is not complete.
        has_timer = np.logical_or.reduceat(~is_new & ~both.emitted[order], begins)
        merged = Sessions(
            self._accumulators.merge(both.columns, _groups(order, begins)),
            both.of_key[order][begins],
            both.start[order][begins],
            np.maximum.reduceat(both.end[order], begins),
            ~changed & ~has_timer,
            np.logical_or.reduceat(both.fresh[order], begins),
        )
        reached = self._reached(scope)
        late = np.logical_and.reduceat(is_new, begins) & (merged.end + self._rules.lateness_us <= reached)
        if late.any():
            events = np.append(np.zeros(len(stored), np.int64), counts)[order]
            self.late_rows += int(np.add.reduceat(events, begins)[late].sum())
            merged, changed, has_timer = merged.select(~late), changed[~late], has_timer[~late]
        is_complete = merged.complete(reached)
        yield from self._results(keys, merged.select(is_complete))
        after = replace(merged, emitted=merged.emitted | is_complete, fresh=merged.fresh & ~is_complete)
        self._set_timers(keys, after, changed & ~has_timer)
        if self._rules.early_us:
            encoded, at_us = keys.encoded, next_multiple(scope.now_us, self._rules.early_us)
            for key in after.of_key[changed & ~after.emitted].tolist():
                self._early.set(encoded[key], at_us)
        self._store(keys, stored, after)

    # -- time

    def _reached(self, scope: Scope) -> int:
        """Return the watermark or the clock; before any watermark, a time before all sessions."""
        reached = scope.now_us if self._rules.processing else scope.watermark_us
        return _BEFORE_ALL_US if reached is None else reached

    def _complete(self, scope: Scope) -> Iterator[TimedRows]:
        reached = self._reached(scope)
        for keys in self._fired(self._ends, reached):
            stored = self._load(keys)
            complete = stored.complete(reached)
            yield from self._results(keys, stored.select(complete))
            after = replace(stored, emitted=stored.emitted | complete, fresh=stored.fresh & ~complete)
            after = after.select(~after.emitted | (after.end + self._rules.lateness_us > reached))
            self._set_timers(keys, after, np.ones(len(after), bool))
            self._store(keys, stored, after)

    def _fired(self, timers: TimerTable, until_us: int) -> Iterator[BatchKeys]:
        """Yield the keys of timers that are due, many at a time, and delete the timers."""
        fired = timers.fire(until_us, lambda encoded: None)
        while due := list(islice(fired, _KEYS_AT_ONCE)):
            yield BatchKeys.decoded(list(dict.fromkeys(key for _, key in due)), self._codec)

    def _set_timers(self, keys: BatchKeys, sessions: Sessions, wanted: Numbers) -> None:
        encoded = keys.encoded
        at_us = np.where(sessions.emitted, sessions.end + self._rules.lateness_us, sessions.end)[wanted].tolist()
        for key, at in zip(sessions.of_key[wanted].tolist(), at_us, strict=True):
            self._ends.set(encoded[key], at)

    def _results(self, keys: BatchKeys, sessions: Sessions) -> Iterator[TimedRows]:
        """Yield results, those with the earliest ends first."""
        if not len(sessions):
            return
        ordered = sessions.select(np.argsort(sessions.end, kind="stable"))
        of_key = pa.array(ordered.of_key)
        owners = {name: column.take(of_key) for name, column in zip(self._keys.names, keys.columns, strict=True)}
        # An event at the window's very end belongs to it, and the watermark may have been there before.
        end = ordered.end - 1
        yield results_of(owners, ordered.start, end, end, self._accumulators, ordered.columns)

    # -- state

    def current_results(self, keys: BatchKeys) -> Iterator[TimedRows]:
        return self._results(keys, self._load(keys))

    def _load(self, keys: BatchKeys) -> Sessions:
        """Return all sessions of some keys, in the order of keys and starts."""
        newest = self.newest.get_many(keys)
        of_key = valid_rows(newest)
        has_more, *columns = newest.take(pa.array(of_key)).flatten()
        with_older = of_key[has_more.to_numpy(zero_copy_only=False)]
        if len(with_older):
            older = self.older.get_many(keys.take(with_older))
            key_of_each = np.append(np.repeat(with_older, lengths(older)), of_key)
            order = np.argsort(key_of_each, kind="stable")
            pairs = zip(older.flatten().flatten(), columns, strict=True)
            columns = [pa.concat_arrays(pair).take(pa.array(order)) for pair in pairs]
            of_key = key_of_each[order]
        numbers = (column.to_numpy(zero_copy_only=False) for column in columns[:_SPAN_COLUMNS])
        return Sessions(columns[_SPAN_COLUMNS:], of_key, *numbers)

    def _store(self, keys: BatchKeys, before: Sessions, after: Sessions) -> None:
        """Replace the sessions of some keys; both are in the order of keys and starts."""
        count_before, count_after = (np.bincount(sessions.of_key, minlength=len(keys)) for sessions in (before, after))
        last = np.cumsum(count_after) - 1
        columns = [*map(pa.array, after.numbers[1:]), *after.columns]
        touched = np.flatnonzero(count_before + count_after)
        none = count_after[touched] == 0
        at = pa.array(last[touched], mask=none)
        newest = [pa.array(count_after[touched] > 1), *(column.take(at) for column in columns)]
        fields = [pa.field("more", pa.bool_()), *self._fields]
        self.newest.put_many(keys.take(touched), pa.StructArray.from_arrays(newest, fields=fields, mask=pa.array(none)))
        with_older = np.flatnonzero((count_before > 1) | (count_after > 1))
        if len(with_older):
            is_last = np.zeros(len(after), bool)
            is_last[last[count_after > 0]] = True
            rest = pa.array(np.flatnonzero(~is_last))
            values = pa.StructArray.from_arrays([column.take(rest) for column in columns], fields=self._fields)
            counts = np.maximum(count_after[with_older] - 1, 0)
            lists = pa.ListArray.from_arrays(offsets(counts), values, mask=pa.array(counts == 0))
            self.older.put_many(keys.take(with_older), lists)


def _groups(order: Numbers, begins: Numbers) -> Groups:
    """Return the clusters of rows as groups."""
    of_row = np.empty(len(order), np.int64)
    of_row[order] = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(order))))
    return Groups(of_row, len(begins))
