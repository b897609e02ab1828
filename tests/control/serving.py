"""Fixtures: fake runs that answer on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.control.server import ControlServer
from strandline.keeper.paths import Places
from tests.control.fake import FakeRun

Serve = Callable[..., ControlServer]


@pytest.fixture
def serve(local_dir: Path) -> Iterator[Serve]:
    """Have fake runs answer; afterwards neither a thread nor a socket of theirs is left."""
    servers: list[ControlServer] = []
    before = set(threading.enumerate())

    def start(
        run: FakeRun | None = None, url: str = "file:///ck", since_ms: int = 1_000, **more: object
    ) -> ControlServer:
        run = run or FakeRun()
        places = Places(local_dir, url, run.job)
        places.make()
        server = ControlServer(run, places, since_ms, **more)  # type: ignore[arg-type]
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.end()
    for server in servers:
        server.join()
    deadline = time.monotonic() + 10
    # Who has answered may not be quite gone.
    while left := [thread.name for thread in set(threading.enumerate()) - before if "strandline" in thread.name]:
        assert time.monotonic() < deadline, left
        time.sleep(0.005)
    assert list(local_dir.glob("*/run.*")) == []
