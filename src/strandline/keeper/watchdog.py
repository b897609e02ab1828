"""Watchdog that ends a keeper when its executor dies, or when its lease expires."""

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
    """Return the kernel's start time of a process, or an empty text. With the pid, it identifies the process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # A zombie has ended: its parent has not waited for it yet.
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


@dataclass
class Watchdog:
    """Watches one process and one lease in a thread."""

    _pid: int
    _started: str
    lease_ms: int
    _end: Callable[[str], None]
    _renewed: float = field(default_factory=time.monotonic, init=False)
    _is_held: bool = field(default=False, init=False)

    def start(self) -> None:
        """Begin watching."""
        threading.Thread(target=self._watch, name="strandline-watchdog", daemon=True).start()

    def renew(self) -> None:
        """Restart the lease, at each request."""
        self._renewed = time.monotonic()

    def hold(self) -> None:
        """Suspend the lease until `release`, while the keeper serves a request."""
        self._is_held = True

    def release(self) -> None:
        """Restart the lease after a request."""
        self._renewed = time.monotonic()
        self._is_held = False

    def _watch(self) -> None:
        # Open the pidfd before comparing the start time, which detects that another process has the pid now.
        try:
            fd = os.pidfd_open(self._pid)
        except (OSError, AttributeError):
            fd = -1
        poll = select.poll()
        if fd >= 0:
            poll.register(fd, select.POLLIN)
        gone = not self._started or process_start(self._pid) != self._started
        while not gone:
            # Without a pidfd, poll() only waits.
            gone = bool(poll.poll(_LOOK_MS)) or (fd < 0 and process_start(self._pid) != self._started)
            if not gone and not self._is_held and (time.monotonic() - self._renewed) * 1000 > self.lease_ms:
                self._end("no request came within its lease")
                return
        self._end("its executor is gone")
