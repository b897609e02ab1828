"""Closes a keeper's files and sockets in processes that the user's function forks.

A fork inherits every open file of its keeper, and may outlive it. A lock, a connection and a listening socket end only
when the last process closes them: Spark tasks would not notice that the keeper died, and no other could take over.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from pathlib import Path
from typing import IO


class CloseOnFork:
    """Files and sockets that forks of this process close. This process keeps them open.

    Forks also close connections of the listening socket `bound`, since one may be accepted but not added yet.
    """

    def __init__(self, bound: Path) -> None:
        self._bound = str(bound)
        self._files: weakref.WeakSet[IO[str] | socket.socket] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._close_all)

    def add(self, file: IO[str] | socket.socket) -> None:
        """Close this one in forks, too, as long as it is open here."""
        self._files.add(file)

    def _close_all(self) -> None:
        for file in list(self._files):
            with contextlib.suppress(OSError):
                file.close()
        # With a default time-out, socket() below would make each socket non-blocking, in the parent process too.
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(None)
        try:
            for entry in list(Path("/proc/self/fd").iterdir()):
                with contextlib.suppress(OSError):
                    self._close_if_bound(int(entry.name))
        finally:
            socket.setdefaulttimeout(before)

    def _close_if_bound(self, descriptor: int) -> None:
        # Wrap the descriptor itself: a duplicate would be another open file.
        sock = socket.socket(fileno=descriptor)
        try:
            is_bound = sock.getsockname() == self._bound
        finally:
            sock.detach()
        if is_bound:
            os.close(descriptor)
