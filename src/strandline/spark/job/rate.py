"""Rate of rows, as a moving average over the last seconds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

_WINDOW_S = 10.0


class Rate:
    """Counts the rows of epochs. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._epochs: deque[tuple[float, float, int]] = deque()
        """The start, the end and the rows of each epoch."""
        self._lock = threading.Lock()

    def note(self, rows: int, took_ms: float) -> None:
        """Count the rows of an epoch that has just ended."""
        with self._lock:
            now_s = self._clock_s()
            self._epochs.append((now_s - took_ms / 1000, now_s, rows))
            self._forget(now_s)

    def per_s(self) -> float:
        """Return the rows a second of the epochs that ended in the last ten seconds, or since the beginning."""
        with self._lock:
            now_s = self._clock_s()
            self._forget(now_s)
            if not self._epochs:
                return 0.0
            # A longer epoch counts with its full time.
            since_s = min(max(self._began_s, now_s - _WINDOW_S), self._epochs[0][0])
            return sum(rows for *_, rows in self._epochs) / max(now_s - since_s, 0.001)

    def _forget(self, now_s: float) -> None:
        while self._epochs and self._epochs[0][1] < now_s - _WINDOW_S:
            self._epochs.popleft()
