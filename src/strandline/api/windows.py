"""How a stream is cut into windows. A window is `[start, end)`; times are in microseconds since 1970 (UTC)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.core.times import as_datetime

WINDOW_START, WINDOW_END = "window_start", "window_end"
"""Columns of results that say which window they are of."""


class Window(NamedTuple):
    """One window, from its start up to but not including its end.

    A start before the year 1, and an end after 9999, are shown as these ends of time.
    """

    start_us: int
    end_us: int

    @property
    def start(self) -> dt.datetime:
        """When it begins."""
        return as_datetime(self.start_us)

    @property
    def end(self) -> dt.datetime:
        """When it ends: the first moment that is not in it."""
        return as_datetime(self.end_us)


def _computed() -> Any:
    """A field that is computed from the others, once: windows are asked for their sizes with every event."""
    return field(init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, one after the other, aligned to 1970-01-01 UTC plus `offset`.

    >>> Tumbling("1h", offset="15 min")
    Tumbling(size='1h', offset='15 min')
    """

    size: str
    offset: str = "0s"
    size_us: int = _computed()
    every_us: int = _computed()
    """How far two beginnings are apart: the size."""
    offset_us: int = _computed()
    """Where the first one begins."""

    def __post_init__(self) -> None:
        _compute(self, "size", "offset")
        object.__setattr__(self, "every_us", self.size_us)


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of one size, of which one begins every so often: an event is in `size / every` of them.

    >>> Sliding("10 min", every="1 min")
    Sliding(size='10 min', every='1 min', offset='0s')
    """

    size: str
    every: str
    offset: str = "0s"
    size_us: int = _computed()
    every_us: int = _computed()
    """How far two beginnings are apart."""
    offset_us: int = _computed()
    """Where the first one begins."""

    def __post_init__(self) -> None:
        _compute(self, "size", "every", "offset")


@dataclass(frozen=True, slots=True)
class Session:
    """A window for each burst of a key's events: no two that follow each other are more than `gap` apart.

    >>> Session("30 min")
    Session(gap='30 min')
    """

    gap: str
    gap_us: int = _computed()
    """The silence that ends it."""

    def __post_init__(self) -> None:
        _compute(self, "gap")


@dataclass(frozen=True, slots=True)
class Global:
    """One window a key, without start and end: it ends after `count` events, or when a function says so.

    `when(event, n)` is asked after each event, the window's n-th. The event that ends a window is its last.

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


WindowKind = Tumbling | Sliding | Session | Global


def windows_of(kind: Tumbling | Sliding, time_us: int) -> list[Window]:
    """Return the windows that a time is in, the earliest first.

    >>> [(w.start_us, w.end_us) for w in windows_of(Sliding("2s", every="1s"), 5_500_000)]
    [(4000000, 6000000), (5000000, 7000000)]
    """
    size, every = kind.size_us, kind.every_us
    last = time_us - (time_us - kind.offset_us) % every
    found = [Window(start, start + size) for start in range(last, time_us - size, -every)]
    return found[::-1]


def _compute(kind: Tumbling | Sliding | Session, *durations: str) -> None:
    for what in durations:
        value_ms = parse_duration_ms(getattr(kind, what), f"{type(kind).__name__}: {what}")
        if not value_ms and what != "offset":
            raise ConfigurationError(f"a window's {what} is 0 ms, expected more than 0")
        object.__setattr__(kind, f"{what}_us", value_ms * 1000)
