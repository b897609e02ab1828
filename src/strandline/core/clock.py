"""Time comes through here, so that a test can run it by hand."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock and monotonic time."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> float:
        """Return milliseconds that never run backwards; only differences mean something."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return float(self._now_ms)

    def advance(self, by_ms: int) -> None:
        """Move time forward."""
        with self._lock:
            self._now_ms += by_ms
