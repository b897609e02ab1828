"""Answers in the middle of an epoch come fast: while somebody waits for one, threads take turns often.

Python lets a thread that computes go on for 5 ms before another has its turn, and to hear somebody and answer takes
five turns. To take turns often all the time would cost the epochs more.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

_TURN_S: Final = 0.0005


class Hurry:
    """From the first `begin` to the last `end` turns are short. In any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._usual_s = 0.0

    def begin(self) -> None:
        """Somebody has come."""
        with self._lock:
            self._waiting += 1
            if self._waiting == 1:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(_TURN_S)

    def end(self) -> None:
        """He has his answer, or need not have it at once."""
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                sys.setswitchinterval(self._usual_s)
