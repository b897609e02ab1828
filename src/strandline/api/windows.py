"""Kinds of windows. A window is `[start, end)`; times are in microseconds since 1970 (UTC)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from strandline.core.errors import ConfigurationError, UserCodeError
from strandline.core.settings import Duration, parse_duration_ms
from strandline.core.times import as_datetime

WINDOW_START, WINDOW_END = "window_start", "window_end"
"""Columns of results with the bounds of their window."""

_MICROSECOND = dt.timedelta(microseconds=1)


class Window(NamedTuple):
    """One window, from its start up to but not including its end.

    `start` and `end` are clamped to the years 1 to 9999.
    """

    start_us: int
    end_us: int

    @property
    def start(self) -> dt.datetime:
        """The first moment of the window."""
        return as_datetime(self.start_us)

    @property
    def end(self) -> dt.datetime:
        """The first moment after the window."""
        return as_datetime(self.end_us)


def _computed() -> Any:
    """Return a field that is computed once from the others, since every event reads it."""
    return field(init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, one after the other, aligned to 1970-01-01 UTC plus `offset`.

    >>> Tumbling("1h", offset="15 min")
    Tumbling(size='1h', offset='15 min')
    """

    size: Duration
    offset: Duration = "0s"
    size_us: int = _computed()
    every_us: int = _computed()
    """The distance of two starts: the size."""
    offset_us: int = _computed()
    """The start of the first window."""

    def __post_init__(self) -> None:
        _compute(self, "size", "offset")
        object.__setattr__(self, "every_us", self.size_us)


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of one size that start `every` so often: an event is in `size / every` of them.

    >>> Sliding("10 min", every="1 min")
    Sliding(size='10 min', every='1 min', offset='0s')
    """

    size: Duration
    every: Duration
    offset: Duration = "0s"
    size_us: int = _computed()
    every_us: int = _computed()
    """The distance of two starts."""
    offset_us: int = _computed()
    """The start of the first window."""

    def __post_init__(self) -> None:
        _compute(self, "size", "every", "offset")


@dataclass(frozen=True, slots=True)
class Session:
    """A window for each burst of a key's events: a silence longer than `gap` ends it.

    A function returns the gap after each event, as a duration or a timedelta.

    >>> Session("30 min")
    Session(gap='30 min')
    >>> by_device = Session(lambda event: "5 min" if event.device == "phone" else "1h")
    """

    gap: Duration | Callable[[Any], Duration]
    gap_us: int = _computed()
    """The silence that ends the window; 0 if a function returns it."""

    def __post_init__(self) -> None:
        if callable(self.gap):
            object.__setattr__(self, "gap_us", 0)
        else:
            _compute(self, "gap")

    def gap_after_us(self, event: Any) -> int:
        """Return the silence after an event that ends its session."""
        if not callable(self.gap):
            return self.gap_us
        gap = self.gap(event)
        try:
            gap_us = gap // _MICROSECOND if isinstance(gap, dt.timedelta) else _parse_us(gap)
        except (ConfigurationError, TypeError):
            gap_us = 0
        if gap_us <= 0:
            raise UserCodeError(
                f"the function of a session's gap gave {gap!r}, expected a duration of more than 0",
                hint='return it like "30 min", or as a timedelta',
            )
        return gap_us


@dataclass(frozen=True, slots=True)
class Global:
    """One window at a time for each key, without start and end: it ends after `count` events, or when `when` is true.

    `when(event, n)` is called for each event, the window's n-th. The event that ends a window is its last.

    >>> Global(count=100)
    Global(count=100, when=None)
    """

    count: int | None = None
    when: Callable[[Any, int], bool] | None = None

    def __post_init__(self) -> None:
        if self.count is None and self.when is None:
            raise ConfigurationError("a Global window never ends", hint="write Global(count=100), or give it `when`")
        if self.count is not None and (not isinstance(self.count, int) or self.count < 1):
            raise ConfigurationError(f"Global: count is {self.count!r}, expected a positive number")
        if self.when is not None and not callable(self.when):
            raise ConfigurationError(f"Global: when is {self.when!r}, expected a function of (event, n)")


@dataclass(frozen=True, slots=True)
class Early:
    """Results of a window before it is complete, if events have come since the last result.

    `every` is an interval of processing time, or with time="event" of the watermark; results come at its multiples.
    `events` is a number of events since the last result. With both, the first of the two counts.

    >>> Early("10s"), Early("1 min", time="event"), Early(events=100)
    (Early(every='10s'), Early(every='1 min', time='event'), Early(events=100))
    """

    every: Duration | None = None
    time: Literal["processing", "event"] = "processing"
    events: int | None = None
    every_us: int = _computed()
    """The interval; 0 if there is none."""

    def __post_init__(self) -> None:
        if self.every is None and self.events is None:
            raise ConfigurationError(
                "Early: neither every nor events is set", hint='write Early("10s"), or Early(events=100)'
            )
        if self.time not in ("processing", "event"):
            raise ConfigurationError(f"Early: time is {self.time!r}, expected 'processing' or 'event'")
        if self.events is not None and (type(self.events) is not int or self.events < 1):
            raise ConfigurationError(f"Early: events is {self.events!r}, expected a positive number")
        every_us = 0 if self.every is None else parse_duration_ms(self.every, "Early: every") * 1000
        if self.every is not None and not every_us:
            raise ConfigurationError(f"Early: every is {self.every!r}, expected more than 0")
        object.__setattr__(self, "every_us", every_us)

    def __repr__(self) -> str:
        options = {"every": self.every, "time": self.time, "events": self.events}
        defaults = {"every": None, "time": "processing", "events": None}
        return f"Early({', '.join(f'{name}={value!r}' for name, value in options.items() if value != defaults[name])})"


WindowKind = Tumbling | Sliding | Session | Global


def windows_of(kind: Tumbling | Sliding, time_us: int) -> list[Window]:
    """Return the windows that contain a time, the earliest first.

    >>> [(w.start_us, w.end_us) for w in windows_of(Sliding("2s", every="1s"), 5_500_000)]
    [(4000000, 6000000), (5000000, 7000000)]
    """
    size, every = kind.size_us, kind.every_us
    last = time_us - (time_us - kind.offset_us) % every
    windows = [Window(start, start + size) for start in range(last, time_us - size, -every)]
    return windows[::-1]


@lru_cache(256)
def _parse_us(duration: Duration) -> int:
    return parse_duration_ms(duration, "Session: gap") * 1000


def _compute(kind: Tumbling | Sliding | Session, *durations: str) -> None:
    for option in durations:
        value_ms = parse_duration_ms(getattr(kind, option), f"{type(kind).__name__}: {option}")
        if not value_ms and option != "offset":
            raise ConfigurationError(f"a window's {option} is 0 ms, expected more than 0")
        object.__setattr__(kind, f"{option}_us", value_ms * 1000)
