"""The GIL's switch interval, shorter while a client waits, so that a keeper answers fast in the middle of an epoch.

Python lets a thread that computes run for 5 ms before it switches to another, and an answer takes five switches. A
short interval all the time would slow down epochs.
"""

from __future__ import annotations

import sys
import threading
from typing import Final

_SHORT_S: Final = 0.0005


class SwitchInterval:
    """Shortens the interval from the first `shorten` to the last `restore`. Any thread may call both."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._usual_s = 0.0

    def shorten(self) -> None:
        """Use the short interval: a client waits."""
        with self._lock:
            self._waiting += 1
            if self._waiting == 1:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(_SHORT_S)

    def restore(self) -> None:
        """Use the usual interval again, unless other clients wait."""
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                sys.setswitchinterval(self._usual_s)
