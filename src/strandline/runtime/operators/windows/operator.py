"""Windows at work: each key's events by window, results when a window is complete, nothing left when it is done.

A window's state is an entry of the map `windows`, and what its contents keep beside it. A timer at the window's end
gives the result; with lateness it sets another one, at the end plus the lateness, which removes the window. An event
that comes in between sets the first one again: the result comes once more, with the next epoch's timers. So an epoch
gives one result a window, however many late events it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strandline.api.process import KeyedProcess
from strandline.api.states import Map, State, Value
from strandline.api.windows import Global, Sliding, Tumbling, Window, WindowKind
from strandline.core.errors import StateTypeError
from strandline.core.times import within
from strandline.runtime.operators.windows.contents import Contents, Row
from strandline.runtime.own import OwnOperator, windows_info

_VALUE = ".value"
"""Where what a function gave is in a window's entry."""


@dataclass(frozen=True)
class Rules:
    """When windows give results, and what becomes of late events."""

    lateness_us: int = 0
    early_us: int = 0
    """How often to give the result so far, by the clock; 0 for never."""
    late: str | None = None
    """The side output of events that are too late for every window."""
    processing: bool = False
    """Whether windows follow the clock, not the events' times."""
    several_keys: bool = False
    """Whether the key is a tuple of columns."""


def next_multiple(now_us: int, every_us: int) -> int:
    """Return when the next full interval of the clock begins: many changes before it, one result so far."""
    return now_us - now_us % every_us + every_us


class WindowOperator(OwnOperator, KeyedProcess):
    """What all windows share."""

    windows: Any

    def __init__(self, kind: WindowKind, contents: Contents, rules: Rules) -> None:
        self.own_windows = windows_info(kind, processing=rules.processing)
        self._contents = contents
        self._rules = rules
        self._early_us = rules.early_us
        self._processing = rules.processing
        self.own_states = {"windows": self._declared(contents.value_type), **contents.states}
        self.own_metrics: dict[str, int] = {"late_dropped": 0}
        """Events that were too late and went nowhere."""

    def shown(self, key: Any) -> Iterator[Row]:
        """Give what the windows of a key that are kept would give now, for tests to look at."""
        raise NotImplementedError

    def _declared(self, value_type: str) -> State:
        """Return the state that holds each window's entry."""
        return Map("bigint", f"struct<fresh: boolean, value: {value_type}>")

    def open(self) -> None:
        """Give the contents their states."""
        self._contents.open(self)

    def explained(self, error: BaseException) -> BaseException:
        """Return what a function is told whose value does not fit: it knows nothing of the state that it is kept in."""
        if not isinstance(error, StateTypeError) or not error.fields.get("path", "").startswith(_VALUE):
            return error
        inner = error.path.removeprefix(_VALUE)
        why = error.why.replace(f" at {error.path}", f" at {inner}" if inner else "")
        return StateTypeError(
            f"what it gave does not fit {self._contents.value_type}: {why}",
            hint="return what fits, or declare another type",
        )

    def _times(self, ctx: Any) -> tuple[int | None, int | None]:
        """Return the event's time, and how far time has come: nothing before it can still be expected."""
        return (ctx.now_us, ctx.now_us) if self._processing else (ctx.time_us, ctx.watermark_us)

    def _set_timer(self, at_us: int, ctx: Any) -> None:
        """Have `_complete` called once time has come this far."""
        if self._processing:
            ctx.timers.set_processing_us(at_us)
        else:
            # It fires once the watermark has passed it: once that is here.
            ctx.timers.set_us(at_us - 1)

    def _set_early_timer(self, ctx: Any) -> None:
        """Ask for the result so far, at the next whole multiple of the interval: many events, one timer."""
        ctx.timers.set_processing_us(next_multiple(ctx.now_us, self._early_us))

    def _refuse(self, event: Any, ctx: Any) -> None:
        """An event that is too late for every window, or has no time."""
        if self._rules.late is None:
            self.own_metrics["late_dropped"] += 1
        else:
            ctx.emit(self._rules.late, event)

    def _results(self, window: Window, at: int, value: Any, ctx: Any) -> Iterator[Row]:
        """Give a window's rows. Their time is the last one in the window."""
        ctx.time_us = within(window.end_us - 1)
        return self._rows(ctx.key, window, at, value)

    def _rows(self, key: Any, window: Window, at: int, value: Any) -> Iterator[Row]:
        """Give a window's rows: the key, the window, the result."""
        first = (*key, window.start, window.end) if self._rules.several_keys else (key, window.start, window.end)
        for row in self._contents.rows(key, window, at, value):
            yield first + row


class EndingWindows(WindowOperator):
    """What windows that end at some time share."""

    def on_timer(self, timer: Any, ctx: Any) -> Iterator[Row]:
        """Give the result of the window that ends now, remove the one whose lateness is over, show what is open."""
        if timer.is_processing_time is self._processing:
            yield from self._complete(timer.time_us if self._processing else timer.time_us + 1, ctx)
        # Windows by the clock have other timers of processing time, at their ends.
        if timer.is_processing_time and self._early_us and timer.time_us % self._early_us == 0:
            yield from self._so_far(ctx)

    def _complete(self, now_us: int, ctx: Any) -> Iterator[Row]:
        """Give what ends at this time, and remove what is over with it."""
        raise NotImplementedError

    def _so_far(self, ctx: Any) -> Iterator[Row]:
        """Give the results of windows that are open and have changed since their last one."""
        raise NotImplementedError

    def _remove(self, at: int) -> None:
        self._contents.clear(at)
        del self.windows[at]


class TimeWindows(EndingWindows):
    """Tumbling and sliding windows: a window is named by its end."""

    def __init__(self, kind: Tumbling | Sliding, contents: Contents, rules: Rules) -> None:
        super().__init__(kind, contents, rules)
        self._size, self._every, self._offset = kind.size_us, kind.every_us, kind.offset_us

    def on_event(self, event: Any, ctx: Any) -> None:
        """Put the event into each of its windows that is not too old."""
        time, reached = self._times(ctx)
        if time is None:
            self._refuse(event, ctx)
            return
        size, lateness = self._size, self._rules.lateness_us
        last = time - (time - self._offset) % self._every
        if reached is not None and last + size + lateness <= reached:
            # Its newest window is done. (With gaps between windows it may be in none: that is not late.)
            if last + size > time:
                self._refuse(event, ctx)
            return
        for start in range(last, time - size, -self._every):
            end = start + size
            if reached is not None and end + lateness <= reached:
                return
            self._add(end, event, reached, ctx)

    def shown(self, key: Any) -> Iterator[Row]:
        for end in sorted(self.windows):
            yield from self._rows(key, Window(end - self._size, end), end, self.windows[end].value)

    def _add(self, end: int, event: Any, reached: int | None, ctx: Any) -> None:
        entry = self.windows.get(end)
        is_late = reached is not None and end <= reached
        if entry is None:
            fresh, value = False, self._contents.start()
        else:
            fresh, value = entry
        if entry is None or is_late:
            self._set_timer(end, ctx)
        if self._early_us and not fresh and not is_late:
            self._set_early_timer(ctx)
        added = self._contents.add(end, value, event)
        if not fresh or self._contents.is_value:
            self.windows[end] = (True, added)

    def _complete(self, now_us: int, ctx: Any) -> Iterator[Row]:
        lateness = self._rules.lateness_us
        entry = self.windows.get(now_us)
        if entry is not None:
            yield from self._results(Window(now_us - self._size, now_us), now_us, entry.value, ctx)
            if lateness:
                self._set_timer(now_us + lateness, ctx)
            else:
                self._remove(now_us)
        if lateness and self.windows.get(now_us - lateness) is not None:
            self._remove(now_us - lateness)

    def _so_far(self, ctx: Any) -> Iterator[Row]:
        _, reached = self._times(ctx)
        for end in sorted(self.windows):
            entry = self.windows[end]
            if entry.fresh and (reached is None or end > reached):
                yield from self._results(Window(end - self._size, end), end, entry.value, ctx)
                self.windows[end] = (False, entry.value)


class GlobalWindows(WindowOperator):
    """One window a key, which a count or a function ends; the next event begins a new one."""

    def __init__(self, kind: Global, contents: Contents, rules: Rules) -> None:
        super().__init__(kind, contents, rules)
        self._count, self._when = kind.count, kind.when

    def _declared(self, value_type: str) -> State:
        # A plain value: those of a batch's keys are read together.
        return Value(f"struct<n: bigint, fresh: boolean, value: {value_type}>")

    def on_event(self, event: Any, ctx: Any) -> list[Row] | None:
        """Take the event in; give the result if it ends the window."""
        entry = self.windows.value
        n, fresh, value = (0, False, self._contents.start()) if entry is None else entry
        n += 1
        self.windows.value = (n, True, self._contents.add(0, value, event))
        if n == self._count or (self._when is not None and self._when(event, n)):
            rows = list(self.shown(ctx.key))
            self._contents.clear(0)
            self.windows.clear()
            return rows
        if self._early_us and not fresh:
            self._set_early_timer(ctx)
        return None

    def on_timer(self, timer: Any, ctx: Any) -> Iterator[Row]:
        """Give the result so far."""
        entry = self.windows.value
        if entry is not None and entry.fresh:
            yield from self.shown(ctx.key)
            self.windows.value = (entry.n, False, entry.value)

    def shown(self, key: Any) -> Iterator[Row]:
        entry = self.windows.value
        first = tuple(key) if self._rules.several_keys else (key,)
        for row in () if entry is None else self._contents.rows(key, None, 0, entry.value):
            yield first + row
