"""Time that tests run by hand."""

from __future__ import annotations

import threading


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = self._passed_ms = start_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return float(self._passed_ms)

    def advance(self, by_ms: int) -> None:
        """Move time forward."""
        with self._lock:
            self._now_ms += by_ms
            self._passed_ms += by_ms

    def set_by(self, by_ms: int) -> None:
        """Set the clock: no time passes."""
        with self._lock:
            self._now_ms += by_ms
