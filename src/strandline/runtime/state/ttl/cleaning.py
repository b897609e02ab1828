"""Deletes expired entries, a part in each epoch, without a scan of the state."""

from __future__ import annotations

from collections.abc import Callable

from strandline.api.states import TTL
from strandline.backends.base import Backend
from strandline.runtime.program import EVENT_TTL, PROCESSING_TTL
from strandline.runtime.state.livekeys import LiveKeys
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.timers import TimerTable
from strandline.runtime.state.ttl.lifetimes import EventLifetime, Lifetime

_FIRED_AT_ONCE = 100_000
_WAKE_INTERVAL_US = 60_000_000


class Expiry:
    """The lifetimes of one operator partition's states, and the timers of the cleaning."""

    def __init__(self, scope: Scope, backend: Backend, groups: range, keys: LiveKeys) -> None:
        self._scope = scope
        self._keys = keys
        self.tables = [TimerTable(EVENT_TTL, backend, groups), TimerTable(PROCESSING_TTL, backend, groups)]
        """The tables of timers, which are states like any other."""
        self._lifetimes: list[Lifetime] = []
        self._states: dict[bytes, Callable[[list[bytes]], None]] = {}

    def lifetime(self, name: str, ttl: TTL) -> Lifetime:
        """Return the lifetime of a state's entries."""
        event, processing = self.tables
        lifetime_class, timers = (EventLifetime, event) if ttl.time == "event" else (Lifetime, processing)
        self._lifetimes.append(lifetime_class(self._scope, name, ttl, timers, self._keys))
        return self._lifetimes[-1]

    def add(self, name: str, clean: Callable[[list[bytes]], None]) -> None:
        """Register a state. Its `clean` gets entries, deletes expired ones, and sets timers for the others."""
        self._states[name.encode()] = clean

    def clean(self, evict: Callable[[], None]) -> None:
        """Delete entries that have expired by now, or some of them if there are very many. An epoch begins with it.

        It deletes more entries than were added since the last call, so that cleaning keeps pace. At the end of event
        time it deletes all: event time may begin again afterwards, and the rest would be alive again. `evict` is called
        before many entries are read.
        """
        added = sum(lifetime.watched for lifetime in self._lifetimes)
        limit = None if self._scope.is_draining else _FIRED_AT_ONCE + 2 * added
        for lifetime in self._lifetimes:
            lifetime.watched = 0

        def clean_entries(timers: list[bytes]) -> None:
            evict()
            entries_by_state: dict[bytes, list[bytes]] = {}
            for timer in set(timers):
                end = timer.index(0, 2)
                entries_by_state.setdefault(timer[2:end], []).append(timer[:2] + timer[end + 1 :])
            for name, entries in entries_by_state.items():
                # The program may have removed the TTL of a state.
                if name in self._states:
                    self._states[name](entries)

        for table, until_us in zip(self.tables, (self._scope.watermark_us, self._scope.now_us), strict=True):
            if until_us is not None:
                for _ in table.fire(until_us, clean_entries, limit):
                    pass

    def next_us(self) -> tuple[int | None, int | None]:
        """Return the event time and the processing time at which cleaning needs an epoch without rows: full minutes."""
        event, processing = (_wake_us(table.next_us()) for table in self.tables)
        return event, processing


def _wake_us(due_us: int | None) -> int | None:
    return None if due_us is None else -(-due_us // _WAKE_INTERVAL_US) * _WAKE_INTERVAL_US
