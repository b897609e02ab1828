"""What a keeper does not share with processes that the user's function forks.

A fork has every open file of its keeper, and may outlive it. A lock is held, and a connection or a socket that listens
is open, until the last process has closed it: nobody would notice that the keeper died, nor could another take over.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from pathlib import Path
from typing import IO


class Unshared:
    """Files and sockets that are closed in forks of this process; there, closing takes nothing from this one.

    Those of `bound`, the name of a socket that listens, are so without being added: one may just have been accepted.
    """

    def __init__(self, bound: Path) -> None:
        self._bound = str(bound)
        self._held: weakref.WeakSet[IO[str] | socket.socket] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._let_go)

    def add(self, held: IO[str] | socket.socket) -> None:
        """Keep this one from forks, as long as it is in use."""
        self._held.add(held)

    def _let_go(self) -> None:
        for held in list(self._held):
            with contextlib.suppress(OSError):
                held.close()
        # A time-out for new sockets would make each one found non-blocking, for this process's parent, too.
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(None)
        try:
            for entry in list(Path("/proc/self/fd").iterdir()):
                with contextlib.suppress(OSError):
                    self._let_go_if_ours(int(entry.name))
        finally:
            socket.setdefaulttimeout(before)

    def _let_go_if_ours(self, descriptor: int) -> None:
        # Not a copy of it: that would be the fork's, who could not close it.
        found = socket.socket(fileno=descriptor)
        try:
            is_ours = found.getsockname() == self._bound
        finally:
            found.detach()
        if is_ours:
            os.close(descriptor)
