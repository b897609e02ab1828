"""Ends a keeper that nobody needs: when its executor dies, or when its lease runs out."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_LOOK_MS = 500


def process_start(pid: int) -> str:
    """Return when a process started, in the kernel's words: with the pid, that names it for good. Empty if gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # One that has ended stays until its parent, or who stands in for it, has looked.
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


@dataclass
class Watchdog:
    """Watches one process and one lease in a thread of its own."""

    _pid: int
    _started: str
    lease_ms: int
    _end: Callable[[str], None]
    _asked: float = field(default_factory=time.monotonic, init=False)
    _held: bool = field(default=False, init=False)

    def start(self) -> None:
        """Begin watching."""
        threading.Thread(target=self._watch, name="strandline-watchdog", daemon=True).start()

    def renew(self) -> None:
        """Somebody asked: the lease begins anew."""
        self._asked = time.monotonic()

    def hold(self) -> None:
        """Somebody is being served, however long that takes: the lease stands still until `release`."""
        self._held = True

    def release(self) -> None:
        """Nobody is being served any more: the lease begins anew."""
        self._asked = time.monotonic()
        self._held = False

    def _watch(self) -> None:
        # Opened before the start time is compared: a pid that was given to another process is not taken for ours.
        try:
            fd = os.pidfd_open(self._pid)
        except (OSError, AttributeError):
            fd = -1
        poll = select.poll()
        if fd >= 0:
            poll.register(fd, select.POLLIN)
        gone = not self._started or process_start(self._pid) != self._started
        while not gone:
            # With nothing to poll it waits.
            gone = bool(poll.poll(_LOOK_MS)) or (fd < 0 and process_start(self._pid) != self._started)
            if not gone and not self._held and (time.monotonic() - self._asked) * 1000 > self.lease_ms:
                self._end("nobody asked for it within its lease")
                return
        self._end("its executor is gone")
