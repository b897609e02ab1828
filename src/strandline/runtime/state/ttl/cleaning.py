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

_MOST = 100_000
_WAKE_US = 60_000_000


class Expiry:
    """The lifetimes of one operator partition's states, and the timers of the cleaning."""

    def __init__(self, scope: Scope, backend: Backend, groups: range, keys: LiveKeys) -> None:
        self._scope = scope
        self._keys = keys
        self.tables = [TimerTable(EVENT_TTL, backend, groups), TimerTable(PROCESSING_TTL, backend, groups)]
        """The timers, which are a state like any other."""
        self._lifetimes: list[Lifetime] = []
        self._states: dict[bytes, Callable[[list[bytes]], None]] = {}

    def lifetime(self, name: str, ttl: TTL) -> Lifetime:
        """Return the lifetime of a state's entries."""
        event, processing = self.tables
        kind, timers = (EventLifetime, event) if ttl.time == "event" else (Lifetime, processing)
        self._lifetimes.append(kind(self._scope, name, ttl, timers, self._keys))
        return self._lifetimes[-1]

    def add(self, name: str, clean: Callable[[list[bytes]], None]) -> None:
        """Register a state: `clean` deletes those of some entries that have expired, and sets timers for the others."""
        self._states[name.encode()] = clean

    def clean(self, evict: Callable[[], None]) -> None:
        """Delete entries that have expired by now, or a part if there are very many. At the beginning of an epoch.

        The part is larger than the number of new entries since the last call, so that cleaning keeps pace. At the end
        of event time it is everything: event time may begin anew afterwards, and entries that were left would be alive
        again. `evict` is called before many entries are read.
        """
        most = None if self._scope.is_draining else _MOST + 2 * sum(lifetime.watched for lifetime in self._lifetimes)
        for lifetime in self._lifetimes:
            lifetime.watched = 0

        def look_at(timers: list[bytes]) -> None:
            evict()
            waiting: dict[bytes, list[bytes]] = {}
            for timer in set(timers):
                end = timer.index(0, 2)
                waiting.setdefault(timer[2:end], []).append(timer[:2] + timer[end + 1 :])
            for name, entries in waiting.items():
                # The program may have removed the TTL of a state.
                if name in self._states:
                    self._states[name](entries)

        for table, until_us in zip(self.tables, (self._scope.watermark_us, self._scope.now_us), strict=True):
            if until_us is not None:
                for _ in table.fire(until_us, look_at, most):
                    pass

    def next_us(self) -> tuple[int | None, int | None]:
        """Return when cleaning is worth an epoch of its own, in event time and in processing time: at full minutes."""
        event, processing = (_wake_us(table.next_us()) for table in self.tables)
        return event, processing


def _wake_us(due_us: int | None) -> int | None:
    return None if due_us is None else -(-due_us // _WAKE_US) * _WAKE_US
