"""Where a call of the user's function happens: the current key, its time, its timers and its side outputs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strandline.core.errors import ConfigurationError, StateTypeError, UserCodeError
from strandline.core.times import END_US, as_datetime
from strandline.runtime.state.timers import TimerTable
from strandline.types.scalars import timestamp_to_us


@dataclass(slots=True, eq=False, repr=False)
class Scope:
    """The context of one operator partition. Users know it as `ctx`; times are kept in microseconds since 1970."""

    uid: str
    partition: int
    timers: Timers = field(init=False)
    key: Any = None
    keys: Any = None
    epoch: int = 0
    time_us: int | None = None
    watermark_us: int | None = None
    before_us: int | None = None
    """The watermark that the epoch began with; this one's moves on when timers fire."""
    now_us: int = 0
    in_broadcast: bool = False
    in_timer: bool = False
    guard: Any = None
    """Where errors do not end the job: what operators of ours ask for rows whose function may fail."""
    _emit: Callable[[str, Any], None] | None = None

    @property
    def timestamp(self) -> dt.datetime | None:
        return None if self.time_us is None else as_datetime(self.time_us)

    @property
    def watermark(self) -> dt.datetime | None:
        return None if self.watermark_us is None else as_datetime(self.watermark_us)

    @property
    def is_draining(self) -> bool:
        """Whether event time has come to its end: every event-time timer fires now, also one that is set now."""
        return self.watermark_us == END_US

    @property
    def now(self) -> dt.datetime:
        """The processing time: when the driver began the epoch, the same everywhere."""
        return as_datetime(self.now_us)

    @property
    def is_late(self) -> bool:
        """Whether the event is older than the watermark; a timer's time is always past, and that is not late."""
        if self.in_timer or self.time_us is None or self.watermark_us is None:
            return False
        return self.time_us < self.watermark_us

    def emit(self, side: str, row: Any) -> None:
        if self.in_broadcast:
            raise UserCodeError(
                f"operator '{self.uid}': on_broadcast cannot emit, as it runs in every partition",
                hint="give rows in on_event or on_timer",
            )
        if self._emit is None:
            raise UserCodeError(
                f"operator '{self.uid}' has no side output '{side}'",
                hint=f'declare it: process(…, sides={{"{side}": "the schema"}})',
            )
        self._emit(side, row)


@dataclass(slots=True, eq=False, repr=False)
class Timer:
    """What on_timer is told."""

    is_processing_time: bool
    time_us: int = 0

    @property
    def timestamp(self) -> dt.datetime:
        return as_datetime(self.time_us)


@dataclass(slots=True, eq=False, repr=False)
class Timers:
    """The timers of the current key. A key has at most one timer of each kind for a time."""

    _scope: Scope
    _encode: Callable[[Any], bytes]
    _event: TimerTable | None
    _processing: TimerTable | None
    _why_none: str
    _key: Any = field(default_factory=object)
    """Which one was encoded last: at first no key at all."""
    _encoded: bytes = b""

    def set(self, at: dt.datetime) -> None:
        self._of(self._event).set(self._current(), _us(at))

    def delete(self, at: dt.datetime) -> None:
        self._of(self._event).delete(self._current(), _us(at))

    def set_processing(self, at: dt.datetime) -> None:
        self._of(self._processing).set(self._current(), _us(at))

    def delete_processing(self, at: dt.datetime) -> None:
        self._of(self._processing).delete(self._current(), _us(at))

    def set_us(self, at_us: int) -> None:
        """Set an event-time timer, for operators of ours: without a datetime."""
        self._of(self._event).set(self._current(), at_us)

    def set_processing_us(self, at_us: int) -> None:
        """Set a processing-time timer, for operators of ours."""
        self._of(self._processing).set(self._current(), at_us)

    def _of(self, table: TimerTable | None) -> TimerTable:
        if table is None:
            raise ConfigurationError(f"operator '{self._scope.uid}' cannot set this timer: {self._why_none}")
        return table

    def _current(self) -> bytes:
        key = self._scope.key
        if self._scope.in_broadcast:
            raise UserCodeError(
                f"operator '{self._scope.uid}': on_broadcast cannot set a timer, as there is no key",
                hint="set timers in on_event or on_timer",
            )
        if key is not self._key:
            self._key, self._encoded = key, self._encode(key)
        return self._encoded


def _us(at: Any) -> int:
    if not isinstance(at, dt.datetime) or at.tzinfo is None:
        raise StateTypeError(
            f"a timer's time is {at!r}, expected a datetime with a time zone",
            hint="compute it from ctx.timestamp or ctx.now, as in ctx.timestamp + timedelta(seconds=10)",
        )
    return timestamp_to_us(at)
