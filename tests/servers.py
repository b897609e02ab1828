"""What the servers of tests share: ports that nobody has, and an end with the process that started them."""

from __future__ import annotations

import ctypes
import fcntl
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that nobody listens on, each another."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]


def end_with_parent() -> None:
    """Have this process be killed when its parent is gone: for `preexec_fn`."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Let one process at a time run the block."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
