"""Calls a function whose errors do not end the job: a failed call is undone alone, and its event is a dead letter.

Rows of many events are checked together, when a batch is built of them. If one does not fit, all of these calls are
undone and repeated, with a check of each row at once: so the event of the row is known, and rows that fit are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

import pyarrow as pa

from strandline.api.badrecords import DEAD_LETTERS, OnError
from strandline.api.process import KeyedProcess
from strandline.api.windows import Window
from strandline.core.errors import OutputError, StrandlineError, UserCodeError
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.operators.joins import user_call
from strandline.runtime.output_rows import rows_of
from strandline.runtime.program import Process
from strandline.runtime.state.journal import Journal
from strandline.runtime.state.scope import Scope, Timer
from strandline.runtime.state.timers import TimerTable
from strandline.runtime.task.calls import OUTPUT_ROWS, EventCalls
from strandline.runtime.task.deadletters import dead_letter_row, is_event_error, kind_and_place, reason_of
from strandline.runtime.task.outputs import RawOutput
from strandline.runtime.task.usererrors import user_error

_TOGETHER = 5_000
"""The number of events whose rows are checked together."""


class Failures:
    """The failed events of one operator partition: counts them, and emits them as dead letters if configured."""

    def __init__(
        self, process: Process, scope: Scope, outputs: RawOutput, on_error: OnError, journal: Journal | None
    ) -> None:
        self._process = process
        self._journal = journal
        self._scope = scope
        self._outputs = outputs
        self._on_error = on_error
        self._at_most = on_error.at_most
        self._per_us = on_error.per_ms * 1000
        self.in_epoch = 0
        """The number of events of this epoch that failed."""
        self.last = ""
        """The last one's error, without anything of the event itself."""
        self._counted = self._counted_before = (0, 0)
        """The interval of the clock, and the number of events that failed in it: now, and at the epoch's begin."""

    def begin(self) -> None:
        """Begin an epoch."""
        self.in_epoch, self._counted_before = 0, self._counted

    def mark(self) -> tuple[Any, ...]:
        """Return a mark for `go_back`. The journal undoes dead letters."""
        return self.in_epoch, self._counted, self.last

    def go_back(self, mark: tuple[Any, ...]) -> None:
        """Discard the failures since a mark: the calls are repeated."""
        self.in_epoch, self._counted, self.last = mark

    def forget(self) -> None:
        """Discard the failures of the epoch."""
        self.in_epoch, self._counted = 0, self._counted_before

    def record(self, error: BaseException, step: str, key: Any, event: Any, time_us: int | None) -> None:
        """Count an event that failed and emit it as a dead letter; raise the user's error if too many failed."""
        scope, process = self._scope, self._process
        if not is_event_error(error):
            raise user_error(scope.uid, process, error, step, key, event) from error
        if self._is_too_much():
            raise self._too_much(user_error(scope.uid, process, error, step, key, event)) from error
        self.last = kind_and_place(error)
        if not self._on_error.has_dead_letters:
            return
        trace = user_error(scope.uid, process, error, step, key, event).fields["traceback"] or None
        step, event = user_call(process, step, event)
        if isinstance(process, BuiltinOperator):
            step, error = process.own_step, process.explained(error)
        self._give(step, reason_of(error), key, event, time_us, trace)

    def record_bad_row(self, error: UserCodeError, step: str, key: Any, event: Any, time_us: int | None) -> None:
        """Count an event that cannot reach the function and emit it as a dead letter; raise the error if too many."""
        if self._is_too_much():
            raise self._too_much(error)
        self.last = error.discreet
        if self._on_error.has_dead_letters:
            self._give(step, error.message, key, event, time_us, None)

    def record_bad_rows(self, error: UserCodeError, count: int) -> None:
        """Count rows whose dead letters come from another operator; raise the error if too many failed."""
        if self._is_too_much(count):
            raise self._too_much(error)
        self.last = error.discreet

    def _is_too_much(self, more: int = 1) -> bool:
        """Count more failures; return whether there are too many."""
        stretch, count = self._counted
        now = self._scope.now_us // self._per_us
        self._counted = now, (count if stretch == now else 0) + more
        self.in_epoch += more
        return self._at_most is not None and self._counted[1] > self._at_most

    def _too_much(self, last: StrandlineError) -> StrandlineError:
        return type(last)(
            f"operator '{self._scope.uid}', partition {self._scope.partition}: {self._counted[1]} events failed within "
            f"{self._on_error.per}, and at most {self._at_most} may; the last one: {last.message}",
            hint="this may be an outage, not a bad record: look at what fails, or give OnError a larger at_most",
            **last.fields,
        )

    def _give(self, step: str, reason: str, key: Any, event: Any, time_us: int | None, trace: str | None) -> None:
        uid = self._scope.uid
        # The operator has its own column in a dead letter.
        row = dead_letter_row(uid, step, reason.removeprefix(f"operator '{uid}': "), key, event, time_us, trace)
        self._outputs.add_side(DEAD_LETTERS, row, time_us)
        if self._journal is not None:
            self._journal.note((self._outputs.take_back, DEAD_LETTERS))


class GuardedCalls(EventCalls):
    """Calls the KeyedProcess of one operator partition, and undoes each call that fails."""

    def __init__(
        self, process: KeyedProcess, scope: Scope, outputs: RawOutput, journal: Journal, failures: Failures
    ) -> None:
        super().__init__(process, scope, outputs)
        self._journal = journal
        self._failures = failures
        self._fitting: Callable[[Any], Any] = outputs.main.fitting
        scope.guard = self

    def on_events(
        self, keys: Sequence[Any], events: Iterator[Any], times: Sequence[int | None] | None
    ) -> Iterator[pa.RecordBatch]:
        """Call on_event for each event; yield its rows."""
        for start in range(0, len(keys), _TOGETHER):
            some = slice(start, start + _TOGETHER)
            calls = keys[some], list(islice(events, _TOGETHER)), None if times is None else times[some]
            before = self._failures.mark()
            self._journal.begin()
            self._call(*calls, None)
            built, is_fitting = self._built()
            if not is_fitting:
                self._journal.undo()
                self._failures.go_back(before)
                self._call(*calls, self._fitting)
                built, _ = self._built(fitting=True)
            if built is not None:
                yield built
            yield from self._outputs.take_sides()

    def _built(self, *, fitting: bool = False) -> tuple[pa.RecordBatch | None, bool]:
        """Return a batch of the rows so far, if any, and whether all fit; `fitting` rows were checked before."""
        rows, times = list(self._rows), list(self._times)
        self._rows.clear()
        self._times.clear()
        try:
            return (self._outputs.from_rows(rows, times) if rows else None), True
        except OutputError:
            if fitting:
                raise
            return None, False

    def _call(
        self,
        keys: Sequence[Any],
        events: Sequence[Any],
        times: Sequence[int | None] | None,
        fitting: Callable[[Any], Any] | None,
    ) -> None:
        """Call on_event for each event; with `fitting`, check each row at once."""
        scope, journal, rows, stamps = self._scope, self._journal, self._rows, self._times
        entries, on_event, plain = journal.entries, self._process.on_event, self._outputs.main.plain
        copied, is_stamped = self._outputs.main.copied, times is not None or fitting is not None
        each = repeat(None, len(keys)) if times is None else times
        # A hot loop: only what every event needs.
        for key, event, time_us in zip(keys, events, each, strict=False):
            scope.key = key
            row_count, mark = len(rows), len(entries)
            try:
                scope.time_us = time_us
                for row in rows_of(on_event(event, scope)):
                    if fitting is None:
                        rows.append(row if type(row) is plain else copied(row))
                    else:
                        rows.append(fitting(row))
                    if is_stamped:
                        stamps.append(scope.time_us)
            except BaseException as error:
                del rows[row_count:], stamps[row_count:]
                journal.undo(mark)
                self._failures.record(error, "on_event", key, event, time_us)
        scope.leave_key()

    def on_timers(
        self,
        timers: TimerTable,
        until_us: int,
        *,
        processing: bool,
        prepare: Callable[[list[bytes]], list[Any]],
        longest: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Call on_timer for each timer that is due, in the order of their times; yield its rows."""
        scope, journal, rows, stamps = self._scope, self._journal, self._rows, self._times
        on_timer, fitting = self._process.on_timer, self._fitting
        timer = Timer(processing)
        scope.in_timer = True
        for at_us, key in timers.fire(until_us, prepare, longest=longest):
            scope.key = key
            timer.time_us = at_us
            scope.time_us = None if processing else at_us
            row_count = len(rows)
            journal.begin()
            try:
                for row in rows_of(on_timer(timer, scope)):
                    rows.append(fitting(row))
                    stamps.append(scope.time_us)
            except BaseException as error:
                del rows[row_count:], stamps[row_count:]
                # The timer stays deleted: it would fail again, and hold up all later ones.
                journal.undo()
                fired = {"timer": timer.timestamp, "is_processing_time": processing}
                self._failures.record(error, "on_timer", key, fired, None if processing else at_us)
            if len(rows) + self._outputs.waiting >= OUTPUT_ROWS:
                yield from self._take()
        scope.in_timer = False
        scope.leave_key()
        yield from self._take()

    def rows_of(self, rows: Iterator[Any], window: Window | None) -> Iterable[Any]:
        """Return a window's rows, or none if its function fails: the dead letter names the window, which ends."""
        scope = self._scope
        try:
            return [self._fitting(row) for row in rows]
        except BaseException as error:
            ended = None if window is None else {"window_start": window.start, "window_end": window.end}
            self._failures.record(error, "on_timer" if scope.in_timer else "on_event", scope.key, ended, scope.time_us)
            return []

    def on_rule(self, error: BaseException, step: str, key: Any = None, event: Any = None) -> None:
        """Undo a call of on_broadcast, which fails alike in every partition: only the first one counts it."""
        self._journal.undo()
        if self._scope.partition:
            if not is_event_error(error):
                raise user_error(self._scope.uid, self._process, error, step, key, event) from error
            return
        self._failures.record(error, step, None, event, self._scope.time_us)

    def forget(self) -> None:
        """Discard the rows of an epoch that failed."""
        super().forget()
        self._failures.forget()

    def _emit(self, side: str, row: Any) -> None:
        self._outputs.add_side(side, self._outputs.fitting(side, row), self._scope.time_us)
        self._journal.note((self._outputs.take_back, side))
