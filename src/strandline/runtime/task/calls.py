"""Calls of the user's function: for each event of a batch, and for each timer that is due."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from types import GeneratorType
from typing import Any

import pyarrow as pa

from strandline.api.process import KeyedProcess
from strandline.runtime.output_rows import rows_in, rows_of
from strandline.runtime.state.scope import Scope, Timer
from strandline.runtime.state.timers import TimerTable
from strandline.runtime.task.outputs import RawOutput
from strandline.runtime.task.usererrors import user_error

OUTPUT_ROWS = 20_000
"""The number of rows of timers in a batch."""


class EventCalls:
    """Calls the KeyedProcess of one operator partition, and collects its rows."""

    def __init__(self, process: KeyedProcess, scope: Scope, outputs: RawOutput) -> None:
        self._process = process
        self._scope = scope
        self._outputs = outputs
        self._rows: list[Any] = []
        self._times: list[int | None] = []
        if outputs.sides:
            scope._emit = self._emit

    def on_events(
        self, keys: Sequence[Any], events: Iterator[Any], times: Sequence[int | None] | None
    ) -> Iterator[pa.RecordBatch]:
        """Call on_event for each event; yield its rows."""
        rows = self._rows_of_events(keys, events, repeat(None, len(keys)) if times is None else times)
        append, plain, copied = self._rows.append, self._outputs.main.plain, self._outputs.main.copied
        if times is None:
            for row in rows:
                append(row if type(row) is plain else copied(row))
        else:
            scope, stamp = self._scope, self._times.append
            for row in rows:
                append(row if type(row) is plain else copied(row))
                # A row of a built-in operator may have its own time.
                stamp(scope.time_us)
        self._scope.leave_key()
        return self._take()

    def _rows_of_events(self, keys: Sequence[Any], events: Iterator[Any], times: Iterable[int | None]) -> Iterator[Any]:
        """Yield the rows of all events; a row is copied before the function continues."""
        event = key = None
        scope = self._scope
        on_event: Callable[[Any, Any], Any] = self._process.on_event
        # The hot loop: only what every event needs. The inner loop is rows_of(), inlined.
        try:
            for key, event, time_us in zip(keys, events, times, strict=True):
                scope.key = key
                scope.time_us = time_us
                out = on_event(event, scope)
                while out is not None:
                    kind = type(out)
                    out = yield from out if kind is GeneratorType or kind is list else rows_in(out)
        except BaseException as error:
            raise user_error(scope.uid, self._process, error, "on_event", key, event) from error

    def on_timers(
        self,
        timers: TimerTable,
        until_us: int,
        *,
        processing: bool,
        prepare: Callable[[list[bytes]], list[Any]],
        longest: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Call on_timer for each timer that is due, in the order of their times; yield its rows.

        `longest` limits a chain of timers, each set by the call of the one before.
        """
        scope, rows, times, on_timer = self._scope, self._rows, self._times, self._process.on_timer
        plain, copied = self._outputs.main.plain, self._outputs.main.copied
        timer = Timer(processing)
        scope.in_timer = True
        for at_us, key in timers.fire(until_us, prepare, longest=longest):
            scope.key = key
            timer.time_us = at_us
            scope.time_us = None if processing else at_us
            try:
                # One by one: a built-in operator may set another time for each row.
                for row in rows_of(on_timer(timer, scope)):
                    rows.append(row if type(row) is plain else copied(row))
                    times.append(scope.time_us)
            except BaseException as error:
                raise user_error(scope.uid, self._process, error, "on_timer", key, timer.timestamp) from error
            if len(rows) + self._outputs.waiting >= OUTPUT_ROWS:
                yield from self._take()
        scope.in_timer = False
        scope.leave_key()
        yield from self._take()

    def _emit(self, side: str, row: Any) -> None:
        self._outputs.add_side(side, row, self._scope.time_us)

    def _take(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            rows, times = list(self._rows), list(self._times)
            self._rows.clear()
            self._times.clear()
            yield self._outputs.from_rows(rows, times)
        yield from self._outputs.take_sides()

    def forget(self) -> None:
        """Discard the rows of an epoch that failed."""
        self._rows.clear()
        self._times.clear()
        self._scope.in_timer = False
        self._scope.leave_key()
