"""Lifetimes of entries of a state with a TTL: their expiry times, and the timers of the cleaning.

Each read decides from the stored expiry time whether an entry has expired. Cleaning only follows: each stored entry has
a timer no later than its expiry, rounded up to a sixteenth of the duration. It is set when the entry is created and
again, when it fires, for an entry whose lifetime was renewed meanwhile.
"""

from __future__ import annotations

from typing import Any

from strandline.api.states import TTL
from strandline.core.times import END_US
from strandline.runtime.state.livekeys import LiveKeys
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.timers import TimerTable

_PARTS = 16
_LEAST_STEP_US = 1_000_000


def step_us(duration_us: int) -> int:
    """Return the unit that the cleaning's times are rounded up to, for entries of this lifetime."""
    return max(duration_us // _PARTS, _LEAST_STEP_US)


def tag_of(name: str) -> bytes:
    """Return the bytes of a state's name in the cleaning's timers: after the key group, before the entry's key."""
    return name.encode() + b"\0"


class Lifetime:
    """The TTL of one state of an operator partition, by the driver's clock."""

    __slots__ = ("_duration_us", "_scope", "_step_us", "_tag", "_timers", "keys", "on_read", "watched")

    def __init__(self, scope: Scope, name: str, ttl: TTL, timers: TimerTable, keys: LiveKeys) -> None:
        self._scope = scope
        self._tag = tag_of(name)
        self._timers = timers
        self.keys = keys
        self._duration_us = ttl.duration_ms * 1000
        self._step_us = step_us(self._duration_us)
        self.on_read = ttl.refresh == "read"
        self.watched = 0
        """How many entries were created since the cleaning last reset this."""

    def is_over(self, expires_us: int | None) -> bool:
        """Whether an entry with this expiry time has expired."""
        return expires_us is not None and self._scope.now_us >= expires_us

    def renewed(self, expires_us: int | None) -> int:
        """Return when an entry that is written now expires; `expires_us` was its expiry before, if it existed."""
        return self._scope.now_us + self._duration_us

    def after_reading(self, expires_us: int | None) -> int | None:
        """Return when an entry that is read now expires, if reads renew it; None if that hardly differs."""
        renewed = self.renewed(expires_us)
        # Otherwise each read would be a write.
        return renewed if expires_us is None or (renewed - expires_us) * _PARTS > self._duration_us else None

    def watch(self, key: Any, expires_us: int, sub: bytes = b"") -> None:
        """Set a timer of the cleaning for an entry's expiry."""
        self.watch_encoded(self.keys.encode(key) + sub, expires_us)

    def watch_encoded(self, entry: bytes, expires_us: int) -> None:
        """Set a timer of the cleaning for an entry, by the bytes of its key."""
        self.watched += 1
        step = self._step_us
        self._timers.set(entry[:2] + self._tag + entry[2:], -(-expires_us // step) * step)

    def has_ended(self, entry: bytes, expires_us: int | None) -> bool:
        """Whether an entry has expired, for the cleaning. If not, set another timer, if it ever expires."""
        if self.is_over(expires_us):
            return True
        if expires_us is not None:
            self.watch_encoded(entry, expires_us)
        return False


class EventLifetime(Lifetime):
    """The TTL of one state of an operator partition, by event time.

    An entry lives from the time of the event that wrote it, or from the watermark if that is later: a new entry can
    always be read at first. An event that is out of order shortens no lifetime. A timer reads the state as of its own
    time, however far the watermark moves with the epoch in which it fires, even to the end of time.
    """

    __slots__ = ()

    def is_over(self, expires_us: int | None) -> bool:
        scope = self._scope
        reached_us = scope.watermark_us
        if scope.in_timer and scope.time_us is not None:
            # Entries that expired before this epoch are gone, also for a timer with a much earlier time.
            reached_us = scope.time_us if scope.before_us is None else max(scope.time_us, scope.before_us)
        return expires_us is not None and reached_us is not None and reached_us >= expires_us

    def renewed(self, expires_us: int | None) -> int:
        time_us, reached_us = self._scope.time_us, self._scope.watermark_us
        if reached_us == END_US:
            # If the job ever continues, time begins anew.
            reached_us = None
        if time_us is None or (reached_us is not None and reached_us > time_us):
            # In a processing-time timer before the first watermark, there is only the clock.
            time_us = self._scope.now_us if reached_us is None else reached_us
        renewed = time_us + self._duration_us
        return renewed if expires_us is None or expires_us < renewed else expires_us
