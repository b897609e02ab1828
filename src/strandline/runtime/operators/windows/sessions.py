"""Session windows: each event is a window as long as the gap, and windows of a key that overlap or touch are merged.

A session is named by a number that stays while it grows: the time of its first event, or the name of the oldest session
that was merged into it. That time is in it, so no other session of the key can have the same name, and sessions in the
order of their names are in the order of their times.

The state has a session's end a microsecond after its window's end: up to there it merges with others, and its result
comes when no event at the window's very end can come any more. So the events of a session do not depend on how far the
watermark was when they came.

A session that is not complete has a timer at some time up to its end. If the session has grown when it fires, it is set
again, at the end: so an event that extends a session sets no timer. A session is `fresh` if events came since its last
result; one that is not has a timer at its end, or has emitted its result there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strandline.api.states import Map, State
from strandline.api.windows import Session, Window
from strandline.core.times import END_US
from strandline.runtime.operators.windows.contents import Contents, Row
from strandline.runtime.operators.windows.operator import EndingWindows, Rules
from strandline.runtime.state.handles import MapHandle

_FEW_SESSIONS = 32
_MOST_ORDERED = 1000
"""The number of keys whose sessions are kept in order at a time."""


@dataclass(slots=True)
class _Order:
    """The sessions of one key, in order."""

    names: list[int]
    timed_to: int = -END_US
    """The name of the last session up to which all that have ended have a timer."""


class SessionMapHandle(MapHandle):
    """The sessions of the current key. A search of all for each event and timer would take the square of their number.

    So the sessions of keys with many are put in order, once an epoch.
    """

    __slots__ = ("_as_of", "_orders")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._orders: dict[Any, _Order] = {}
        self._as_of = (0, 0)
        """The epoch, and the number of undone writes, that the orders are of."""

    def __setitem__(self, at: Any, session: Any) -> None:
        super().__setitem__(at, session)
        if (order := self._kept_order()) is not None:
            place = bisect_left(order.names, at)
            if order.names[place : place + 1] != [at]:
                order.names.insert(place, at)
            order.timed_to = min(order.timed_to, at - 1)

    def __delitem__(self, at: Any) -> None:
        super().__delitem__(at)
        if (order := self._kept_order()) is not None:
            order.names.pop(bisect_left(order.names, at))

    def overlapping(self, start: int, end: int) -> list[int]:
        """Return the names of the sessions that overlap a span, in order."""
        stored = self.table.entries(self._scope.key)
        if len(stored) < _FEW_SESSIONS:
            return sorted([at for at, one in stored.items() if one is not None and start < one.end and one.start < end])
        names = self._order(stored).names
        first = bisect_left(names, start)
        if first and start < stored[names[first - 1]].end:
            first -= 1
        last = bisect_left(names, end, first)
        if last < len(names) and stored[names[last]].start < end:
            last += 1
        return names[first:last]

    def due(self, now_us: int, lateness_us: int) -> list[int]:
        """Return the names of the sessions, of those that began before now, that a timer may concern, in order.

        Of those that wait for late events, these are the ones that have not been returned in this epoch before.
        """
        names, stored = self.overlapping(-END_US, now_us), self.table.entries(self._scope.key)
        if len(stored) < _FEW_SESSIONS:
            return names
        order = self._order(stored)
        over = bisect_right(names, now_us - lateness_us, key=lambda at: stored[at].end)
        due = names[:over] + names[max(over, bisect_right(names, order.timed_to)) :]
        ended = bisect_right(names, now_us, key=lambda at: stored[at].end)
        if ended:
            if self.table.journal is not None:
                self.table.journal.note((self._orders.pop, self._scope.key, None))
            order.timed_to = max(order.timed_to, names[ended - 1])
        return due

    def _order(self, stored: dict[int, Any]) -> _Order:
        order = self._kept_order()
        if order is None:
            if len(self._orders) >= _MOST_ORDERED:
                self._orders.clear()
            names = sorted([at for at, one in stored.items() if one is not None])
            order = self._orders[self._scope.key] = _Order(names)
        return order

    def _kept_order(self) -> _Order | None:
        as_of = (self._scope.epoch, self.table.undone)
        if self._as_of != as_of:
            self._orders.clear()
            self._as_of = as_of
        return self._orders.get(self._scope.key) if self._orders else None


class SessionMap(Map):
    """The sessions of a key, by name. They are stored as a map."""

    handle = SessionMapHandle
    """The class of the handle that replaces the declaration while the function runs."""


class SessionWindows(EndingWindows):
    """Sessions of each key. An event at the very end of one is the last that can belong to it."""

    def __init__(self, kind: Session, contents: Contents, rules: Rules) -> None:
        super().__init__(kind, contents, rules)
        self._length_after = kind.gap_after_us
        self._length = 0 if callable(kind.gap) else kind.gap_us + 1
        """The length of a session of one event; 0: it depends on the event."""

    def _windows_state(self, value_type: str) -> State:
        fields = f"start: bigint, end: bigint, fresh: boolean, value: {value_type}{self._count_ddl}"
        return SessionMap("bigint", f"struct<{fields}>")

    def on_event(self, event: Any, ctx: Any) -> Iterator[Row] | None:
        """Merge the sessions that the event touches and add it, or begin a new session."""
        time, reached = self._times(ctx)
        if time is None:
            self._reject(event, ctx)
            return None
        start, end = time, time + (self._length or self._length_after(event) + 1)
        touched = [(at, self.windows[at]) for at in self.windows.overlapping(start, end)]
        if not touched:
            if reached is not None and end + self._rules.lateness_us <= reached:
                self._reject(event, ctx)
                return None
            at, fresh, value = time, False, self._contents.start()
        else:
            at, fresh, value = self._merge(touched)
            start, end = min(start, touched[0][1].start), max(end, max(session.end for _, session in touched))
        # The timer of a session that is complete has fired at its end.
        if not touched or (reached is not None and any(session.end <= reached for _, session in touched)):
            self._set_timer(end, ctx)
        if self._early_us:
            self._set_early_timer(ctx)
        added = self._contents.add(at, value, event)
        if self._early_events:
            events = 1 + sum(session.events or 0 for _, session in touched)
            self.windows[at] = (start, end, True, added, events)
            if events >= self._early_events and (reached is None or end > reached):
                return self._emit_so_far(at, ctx)
        elif not fresh or self._contents.is_value or (start, end) != touched[0][1][:2]:
            self.windows[at] = (start, end, True, added)
        return None

    def current_results(self, key: Any) -> Iterator[Row]:
        for at, session in sorted(self.windows.items()):
            if session.fresh or not self._purges:
                yield from self._rows(key, _window(session), at, session.value)

    def _last_us(self, window: Window) -> int:
        return window.end_us

    def _merge(self, touched: list[Any]) -> tuple[int, bool, Any]:
        """Merge sessions, named as the oldest; return its name, whether it can stay as it is, and its value."""
        at, first = touched[0]
        value, is_empty = first.value, self._purges and not first.fresh
        if is_empty:
            value = self._purge(at)
        for other, session in touched[1:]:
            if not self._purges or session.fresh:
                take = self._contents.take if is_empty else self._contents.merge
                value, is_empty = take(at, value, other, session.value), False
            del self.windows[other]
        return at, first.fresh and len(touched) == 1, value

    def _complete(self, now_us: int, ctx: Any) -> Iterator[Row]:
        lateness = self._rules.lateness_us
        # The timers of a session are after its start: those that begin later are not concerned.
        for at in self.windows.due(now_us, lateness):
            session = self.windows[at]
            if session.end > now_us:
                # Sessions that have emitted their result, and wait for late events, need no timer here.
                if session.fresh:
                    self._set_timer(session.end, ctx)
            elif session.end == now_us:
                if session.fresh or not self._purges:
                    yield from self._results(_window(session), at, session.value, ctx)
                if lateness:
                    self._keep(at, session)
                    self._set_timer(now_us + lateness, ctx)
                else:
                    self._remove(at)
            elif session.end + lateness <= now_us:
                # The timer may also be from an earlier run with a longer lateness.
                self._remove(at)
            elif not session.fresh:
                # The timer may be from an earlier run with a shorter lateness.
                self._set_timer(session.end + lateness, ctx)

    def _so_far(self, ctx: Any) -> Iterator[Row]:
        _, reached = self._times(ctx)
        for at, session in sorted(self.windows.items()):
            if session.fresh and (reached is None or session.end > reached):
                yield from self._emit_so_far(at, ctx)

    def _emit_so_far(self, at: int, ctx: Any) -> Iterator[Row]:
        """Yield the result so far of a session, which stays open."""
        session = self.windows[at]
        yield from self._results(_window(session), at, session.value, ctx)
        self._keep(at, session)
        self._set_timer(session.end, ctx)

    def _keep(self, at: int, session: Any) -> None:
        """Store a session after its result: its bounds, and its events if they count for the next result."""
        value = self._purge(at) if self._purges else session.value
        self.windows[at] = self._entry(session.start, session.end, False, value)


def _window(session: Any) -> Window:
    return Window(session.start, session.end - 1)
