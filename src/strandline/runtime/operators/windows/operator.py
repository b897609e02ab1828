"""Operators of windows: they collect each key's events by window, emit complete windows, and delete expired ones.

A window's state is an entry of the map `windows`, and the states of its contents. A timer at the window's end emits the
result. With lateness, it sets a second timer at the end plus the lateness, which deletes the window. A late event
between the two sets the first timer again, and the next epoch's timers emit the result once more. So an epoch emits one
result a window, however many late events it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from strandline.api.process import KeyedProcess
from strandline.api.states import Map, State, Value
from strandline.api.windows import Global, Sliding, Tumbling, Window, WindowKind
from strandline.core.times import within
from strandline.runtime.builtin import BuiltinOperator, explained_value, windows_info
from strandline.runtime.operators.windows.contents import Contents, Row
from strandline.types.hints import Hints


@dataclass(frozen=True)
class Rules:
    """The options of windows: the times of results, and the output of late events."""

    lateness_us: int = 0
    early_us: int = 0
    """The interval of results so far; 0 for never."""
    late: str | None = None
    """The side output of events that are too late for every window."""
    processing: bool = False
    """Whether windows follow the clock in place of the events' times."""
    several_keys: bool = False
    """Whether the key is a tuple of columns."""
    early_by_event_time: bool = False
    """Whether `early_us` is in event time, not of the clock."""
    early_events: int = 0
    """The number of events after which an early result is due; 0 for never."""
    accumulate: bool = True
    """Whether a result is of all of a window's events, or of those since its last result."""

    @property
    def are_whole(self) -> bool:
        """Whether results are whole, as `BuiltinOperator.own_is_whole` says."""
        return self.accumulate and not self.early_events and not (self.processing and self.early_us)


def next_multiple(now_us: int, every_us: int) -> int:
    """Return the next multiple of an interval: all changes before it share one early result."""
    return now_us - now_us % every_us + every_us


class WindowOperator(BuiltinOperator, KeyedProcess):
    """Base of all window operators."""

    windows: Any
    own_function = "the function of windows"
    own_step = "window"

    def __init__(self, kind: WindowKind, contents: Contents, rules: Rules) -> None:
        self.own_windows = windows_info(kind, processing=rules.processing, lateness_us=rules.lateness_us)
        self.own_is_whole = rules.are_whole
        self._contents = contents
        self._rules = rules
        self._early_us = rules.early_us
        self._early_events = rules.early_events
        self._purges = not rules.accumulate
        self._processing = rules.processing
        windows = self._windows_state(contents.value_type)
        # A program may change the times of its results at any start, and with them this field.
        windows.hints = Hints(droppable=("events",))
        self.own_states = {"windows": windows, **contents.states}
        self.own_metrics: dict[str, int] = {"late_dropped": 0}
        """Events that were dropped because they were too late."""

    def current_results(self, key: Any) -> Iterator[Row]:
        """Yield results of a key's present windows, for tests."""
        raise NotImplementedError

    def _windows_state(self, value_type: str) -> State:
        """Return the state that holds each window's entry."""
        return Map("bigint", f"struct<fresh: boolean, value: {value_type}{self._count_ddl}>")

    @property
    def _count_ddl(self) -> str:
        """DDL of the number of events since the last result, the last field of an entry if it is needed."""
        return ", events: bigint" if self._rules.early_events else ""

    def _entry(self, *parts: Any, events: int = 0) -> tuple[Any, ...]:
        return (*parts, events) if self._early_events else parts

    def _count_events(self, stored_events: list[int | None]) -> int:
        """Return the number of events since the last result, including the present one."""
        return 1 + ((stored_events[0] or 0) if stored_events else 0)

    def open(self) -> None:
        """Prepare the contents."""
        self._contents.open(self)

    def explained(self, error: BaseException) -> BaseException:
        """Return the error for the function, if its value does not fit."""
        return explained_value(error, self._contents.value_type)

    def _purge(self, at: int) -> Any:
        """Delete the events of a window after its result; return its initial value."""
        self._contents.clear(at)
        return self._contents.start()

    def _times(self, ctx: Any) -> tuple[int | None, int | None]:
        """Return the event's time, and the present time: that of the watermark or the clock."""
        return (ctx.now_us, ctx.now_us) if self._processing else (ctx.time_us, ctx.watermark_us)

    def _set_timer(self, at_us: int, ctx: Any) -> None:
        """Set a timer that calls `_complete` once the watermark or the clock is at this time."""
        if self._processing:
            ctx.timers.set_processing_us(at_us)
        else:
            # A timer fires once the watermark has passed it, not when the watermark is at it.
            ctx.timers.set_us(at_us - 1)

    def _set_early_timer(self, ctx: Any) -> None:
        """Set a timer for the early result, at the next multiple of the interval: many events share one timer."""
        if not self._rules.early_by_event_time:
            ctx.timers.set_processing_us(next_multiple(ctx.now_us, self._early_us))
            return
        # Before the first watermark, use the event's time.
        now_us = ctx.time_us if ctx.watermark_us is None else ctx.watermark_us
        if now_us is not None:
            self._set_timer(next_multiple(now_us, self._early_us), ctx)

    def _is_early(self, timer: Any) -> bool:
        """Whether a timer may be for the early result; another timer may have the same time."""
        has_early_kind = timer.is_processing_time is not self._rules.early_by_event_time
        at_us = timer.time_us if timer.is_processing_time else timer.time_us + 1
        return has_early_kind and self._early_us > 0 and at_us % self._early_us == 0

    def _reject(self, event: Any, ctx: Any) -> None:
        """Emit an event that is too late for every window, or has no time, to the side output, or drop and count it."""
        if self._rules.late is None:
            self.own_metrics["late_dropped"] += 1
        else:
            ctx.emit(self._rules.late, event)

    def _results(self, window: Window, at: int, value: Any, ctx: Any) -> Iterable[Row]:
        """Yield a window's rows, whose time is the last moment in the window."""
        ctx.time_us = within(self._last_us(window))
        return self._guarded(self._rows(ctx.key, window, at, value), window, ctx)

    def _last_us(self, window: Window) -> int:
        """Return the last moment in a window: a window ends once that has passed, so no result is late downstream."""
        return window.end_us - 1

    def _guarded(self, rows: Iterator[Row], window: Window | None, ctx: Any) -> Iterable[Row]:
        """Return a window's rows; none if its function fails and errors do not end the job: the window ends."""
        return rows if ctx.guard is None else ctx.guard.rows_of(rows, window)

    def _rows(self, key: Any, window: Window, at: int, value: Any) -> Iterator[Row]:
        """Yield a window's rows: the key, the window, the result."""
        prefix = (*key, window.start, window.end) if self._rules.several_keys else (key, window.start, window.end)
        for row in self._contents.rows(key, window, at, value):
            yield prefix + row


class EndingWindows(WindowOperator):
    """Base of windows that end at some time."""

    def on_timer(self, timer: Any, ctx: Any) -> Iterator[Row]:
        """Emit the window that ends now, delete the one whose lateness is over, and emit early results that are due."""
        if timer.is_processing_time is self._processing:
            yield from self._complete(timer.time_us if self._processing else timer.time_us + 1, ctx)
        # A timer at this time may also be for a window's end.
        if self._is_early(timer):
            yield from self._so_far(ctx)

    def _complete(self, now_us: int, ctx: Any) -> Iterator[Row]:
        """Yield the windows that end at this time, and delete those whose lateness is over."""
        raise NotImplementedError

    def _so_far(self, ctx: Any) -> Iterator[Row]:
        """Yield early results of the open windows that have changed since their last result."""
        raise NotImplementedError

    def _remove(self, at: int) -> None:
        self._contents.clear(at)
        del self.windows[at]


class TimeWindows(EndingWindows):
    """Tumbling and sliding windows: a window is identified by its end."""

    def __init__(self, kind: Tumbling | Sliding, contents: Contents, rules: Rules) -> None:
        super().__init__(kind, contents, rules)
        self._size, self._every, self._offset = kind.size_us, kind.every_us, kind.offset_us
        # The delay from a window's end to its removal is more than the lateness, and depends on it: no window ends at
        # such a time, and a later run with another lateness, or none, recognises a timer that is not its own.
        self._removed_after = rules.lateness_us + 1 + rules.lateness_us // self._every % 1000

    def on_event(self, event: Any, ctx: Any) -> Iterator[Row] | None:
        """Add the event to each of its windows that is not too old."""
        time, reached = self._times(ctx)
        if time is None:
            self._reject(event, ctx)
            return None
        size, lateness = self._size, self._rules.lateness_us
        last = time - (time - self._offset) % self._every
        if reached is not None and last + size + lateness <= reached:
            # The event's newest window is deleted. In a gap between windows, the event is in no window, and not late.
            if last + size > time:
                self._reject(event, ctx)
            return None
        due: list[int] = []
        for start in range(last, time - size, -self._every):
            end = start + size
            if reached is not None and end + lateness <= reached:
                break
            if self._add(end, event, reached, ctx):
                due.append(end)
        return chain.from_iterable(self._emit_so_far(end, ctx) for end in due[::-1]) if due else None

    def current_results(self, key: Any) -> Iterator[Row]:
        for end in sorted(self.windows):
            yield from self._rows(key, Window(end - self._size, end), end, self.windows[end].value)

    def _add(self, end: int, event: Any, reached: int | None, ctx: Any) -> bool:
        """Add an event to a window; return whether the number of events makes a result due."""
        entry = self.windows.get(end)
        is_late = reached is not None and end <= reached
        stored_events: list[int | None] = []
        if entry is None:
            fresh, value = False, self._contents.start()
        else:
            fresh, value, *stored_events = entry
            if self._purges and not fresh:
                value = self._purge(end)
        if entry is None or is_late:
            self._set_timer(end, ctx)
        if self._early_us and not is_late:
            self._set_early_timer(ctx)
        added = self._contents.add(end, value, event)
        if self._early_events:
            events = self._count_events(stored_events)
            self.windows[end] = (True, added, events)
            return events >= self._early_events and not is_late
        if not fresh or self._contents.is_value:
            self.windows[end] = (True, added)
        return False

    def _complete(self, now_us: int, ctx: Any) -> Iterator[Row]:
        lateness = self._rules.lateness_us
        entry = self.windows.get(now_us)
        if entry is not None:
            if entry.fresh or not self._purges:
                yield from self._results(Window(now_us - self._size, now_us), now_us, entry.value, ctx)
            if lateness and not self._purges:
                self._set_timer(now_us + self._removed_after, ctx)
            else:
                self._remove(now_us)
        over = now_us - (self._removed_after if entry is None else lateness)
        if lateness and self.windows.get(over) is not None:
            self._remove(over)
        elif entry is None:
            self._sweep(now_us, ctx)

    def _sweep(self, now_us: int, ctx: Any) -> None:
        """Delete windows that an earlier run kept with another lateness; set timers for those that are not due yet."""
        lateness = self._rules.lateness_us
        for end in list(self.windows):
            if end + lateness <= now_us:
                self._remove(end)
            elif end <= now_us:
                self._set_timer(end + self._removed_after, ctx)

    def _emit_so_far(self, end: int, ctx: Any) -> Iterator[Row]:
        """Yield the result so far of a window, which stays open."""
        value = self.windows[end].value
        yield from self._results(Window(end - self._size, end), end, value, ctx)
        if self._purges:
            # The next event starts the window again. The timer at its end remains.
            self._remove(end)
        else:
            self.windows[end] = self._entry(False, value)

    def _so_far(self, ctx: Any) -> Iterator[Row]:
        _, reached = self._times(ctx)
        for end in sorted(self.windows):
            if self.windows[end].fresh and (reached is None or end > reached):
                yield from self._emit_so_far(end, ctx)


class GlobalWindows(WindowOperator):
    """One window a key, which a number of events or a function ends; the next event begins a new one."""

    def __init__(self, kind: Global, contents: Contents, rules: Rules) -> None:
        super().__init__(kind, contents, rules)
        self._count, self._when = kind.count, kind.when

    def _windows_state(self, value_type: str) -> State:
        # A Value, since the values of all keys in a batch are read together.
        return Value(f"struct<n: bigint, fresh: boolean, value: {value_type}{self._count_ddl}>")

    def on_event(self, event: Any, ctx: Any) -> list[Row] | None:
        """Add the event; return the result if it ends the window, or the number of events makes one due."""
        entry = self.windows.value
        stored_events: list[int | None] = []
        n, fresh, value, *stored_events = (0, False, self._contents.start()) if entry is None else entry
        n += 1
        if self._purges and not fresh:
            value = self._purge(0)
        events = self._count_events(stored_events) if self._early_events else 0
        self.windows.value = self._entry(n, True, self._contents.add(0, value, event), events=events)
        if (self._count is not None and n >= self._count) or (self._when is not None and self._when(event, n)):
            rows = list(self._guarded(self.current_results(ctx.key), None, ctx))
            self._contents.clear(0)
            self.windows.clear()
            return rows
        if self._early_events and events >= self._early_events:
            return self._so_far(ctx)
        if self._early_us:
            self._set_early_timer(ctx)
        return None

    def on_timer(self, timer: Any, ctx: Any) -> list[Row] | None:
        """Return the result so far."""
        entry = self.windows.value
        # Without `early_us`, the timer is from an earlier run.
        return self._so_far(ctx) if self._early_us and entry is not None and entry.fresh else None

    def _so_far(self, ctx: Any) -> list[Row]:
        rows = list(self._guarded(self.current_results(ctx.key), None, ctx))
        n, _, value, *_ = self.windows.value
        if self._purges:
            value = self._purge(0)
        self.windows.value = self._entry(n, False, value)
        return rows

    def current_results(self, key: Any) -> Iterator[Row]:
        entry = self.windows.value
        prefix = tuple(key) if self._rules.several_keys else (key,)
        is_empty = entry is None or (self._purges and not entry.fresh)
        for row in () if is_empty else self._contents.rows(key, None, 0, entry.value):
            yield prefix + row
