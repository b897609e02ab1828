"""Calls of the user's function: for each event of a batch, and for each timer that is due."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from strandline.api.process import KeyedProcess
from strandline.core.errors import StrandlineError, UserCodeError
from strandline.runtime.operators.joins import called
from strandline.runtime.own import OwnOperator
from strandline.runtime.program import Process
from strandline.runtime.state.scope import Scope, Timer
from strandline.runtime.state.timers import TimerTable
from strandline.runtime.task.outputs import RawOutput

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_OUTPUT_ROWS = 20_000


class EventCalls:
    """One operator partition's calls of a KeyedProcess, and the rows they give."""

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
        """Call on_event for each event; give what it gave."""
        event = key = None
        rows, scope = self._rows, self._scope
        on_event: Callable[[Any, Any], Any] = self._process.on_event
        if times is not None:
            on_event = self._with_time(on_event, times)
        # The hot loop: nothing in here that is not needed for every event.
        extend = rows.extend
        try:
            for key, event in zip(keys, events, strict=True):
                scope.key = key
                out = on_event(event, scope)
                if out is not None:
                    extend(out)
        except (Exception, SystemExit) as error:
            raise user_error(self._scope.uid, self._process, error, "on_event", key, event) from error
        return self._take()

    def on_timers(
        self, timers: TimerTable, until_us: int, *, processing: bool, prepare: Callable[[list[bytes]], list[Any]]
    ) -> Iterator[pa.RecordBatch]:
        """Call on_timer for each timer that is due, in the order of their times; give what it gave."""
        scope, rows, times, on_timer = self._scope, self._rows, self._times, self._process.on_timer
        timer = Timer(processing)
        scope.in_timer = True
        for at_us, key in timers.fire(until_us, prepare):
            scope.key = key
            timer.time_us = at_us
            scope.time_us = None if processing else at_us
            try:
                out = on_timer(timer, scope)
                if out is not None:
                    # One by one: an operator of ours may give each row a time of its own.
                    for row in out:
                        rows.append(row)
                        times.append(scope.time_us)
            except (Exception, SystemExit) as error:
                raise user_error(scope.uid, self._process, error, "on_timer", key, timer.timestamp) from error
            if len(rows) + self._outputs.waiting >= _OUTPUT_ROWS:
                yield from self._take()
        scope.in_timer = False
        yield from self._take()

    def _with_time(self, on_event: Callable[[Any, Any], Any], times: Sequence[int | None]) -> Callable[[Any, Any], Any]:
        """Tell the scope each event's time, and give it to the rows that come of the event."""
        each, rows, stamps = iter(times), self._rows, self._times

        def call(event: Any, scope: Any) -> None:
            scope.time_us = next(each)
            out = on_event(event, scope)
            if out is not None:
                # One by one, as those of timers.
                for row in out:
                    rows.append(row)
                    stamps.append(scope.time_us)

        return call

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
        """Forget rows of an epoch that failed."""
        self._rows.clear()
        self._times.clear()
        self._scope.in_timer = False


def user_error(
    uid: str, process: Process, error: BaseException, method: str, key: Any = None, event: Any = None
) -> StrandlineError:
    """Return the error that says whose function raised, for which key and event, with the user's own traceback."""
    method, event = called(process, method, event)
    # The first frame is ours; what comes after it is the user's.
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    text = _users_trace(error, trace)
    what = "for the timer" if method == "on_timer" else "in the event"
    where = f" for key {key!r}, {what} {event!r}" if event is not None else ""
    if isinstance(process, OwnOperator) and process.own_function:
        whose, error = process.own_function, process.explained(error)
    else:
        whose = f"{method} of {type(process).__name__}"
    kind = type(error) if isinstance(error, UserCodeError) else UserCodeError
    said = error.message if isinstance(error, StrandlineError) else f"{type(error).__name__}: {error}"
    return kind(
        f"operator '{uid}': {whose} raised{where}: {said}\n{text}".rstrip(),
        hint=getattr(error, "hint", "") or "fix the function and start again: the job goes on from its last checkpoint",
        operator=uid,
        key=repr(key),
        event=repr(event),
        traceback=text,
    )


def _users_trace(error: BaseException, trace: TracebackType | None) -> str:
    """Format a traceback without the frames of this package: a handle that refuses a value is no help to look at.

    What an error of ours says is said beside it.
    """
    said = traceback.TracebackException(type(error), error, trace)
    said.stack = traceback.StackSummary.from_list([f for f in said.stack if not f.filename.startswith(_PACKAGE)])
    if isinstance(error, StrandlineError):
        return "".join(["Traceback (most recent call last):\n", *said.stack.format()]).rstrip() if said.stack else ""
    return "".join(said.format()).rstrip()
