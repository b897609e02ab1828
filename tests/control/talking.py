"""Speaking to a driver by hand."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from strandline.control.client import Driver


@contextmanager
def connected(driver: Driver) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(driver.socket))
        yield sock


def lines_of(sock: socket.socket) -> list[dict[str, object]]:
    """All that is said until the other side ends; it may have more to read then."""
    found = []
    with sock.makefile("rb") as file, suppress(ConnectionResetError):
        for line in file:
            found.append(json.loads(line))
    return found


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
