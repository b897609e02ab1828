"""A driver's end, while it is asked."""

from __future__ import annotations

import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.control import server
from strandline.control.client import call, find_driver, find_drivers
from strandline.control.commands import CHECKPOINT, STOP, Stop, TakeCheckpoint
from strandline.control.server import ControlServer
from strandline.core.errors import (
    CheckpointError,
    UnavailableError,
)
from strandline.keeper.paths import Places
from tests.control.fake import FakeRun
from tests.control.serving import Serve
from tests.control.talking import connected, wait_until


def test_a_job_is_stopped_and_says_so_though_its_socket_has_gone(serve: Serve, local_dir: Path) -> None:
    run = FakeRun()
    control = serve(run)
    run.on_stop = lambda: (control.end(), control.join())  # type: ignore[func-returns-value]
    assert call(find_driver(local_dir, "alerts"), STOP, Stop(checkpoint=True, timeout_s=5)).state == "stopped"
    assert run.asked == [("stop", (True, 5))]
    control.join()
    assert find_drivers(local_dir) == []


def test_a_stop_during_a_checkpoint_answers_both(serve: Serve, local_dir: Path) -> None:
    run = FakeRun()
    control = serve(run)
    run.on_stop = control.end
    driver = find_driver(local_dir, "alerts")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(call, driver, CHECKPOINT, TakeCheckpoint())
        assert run.began.wait(10)
        assert call(driver, STOP, Stop()).state == "stopped"
        with pytest.raises(CheckpointError, match="the run ended"):
            asked.result(10)


def test_a_job_that_starts_is_not_stopped(serve: Serve, local_dir: Path) -> None:
    run = FakeRun(state="starting")
    serve(run)
    with pytest.raises(UnavailableError, match="job 'alerts' is starting"):
        call(find_driver(local_dir, "alerts"), STOP, Stop())
    assert run.asked == []


def test_a_request_that_outlives_the_run_keeps_nobody(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_SHUTDOWN_S", 0.05)
    run = FakeRun()
    control = serve(run)
    driver = find_driver(local_dir, "alerts")
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(call, driver, CHECKPOINT, TakeCheckpoint())
        assert run.began.wait(10)
        control.end()
        control.join()
        with pytest.raises(UnavailableError, match=r"ended before it answered to 'checkpoint'"):
            asked.result(10)
    run.finish.set()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "strandline-checkpoint"])


def test_the_end_waits_for_nobody_who_only_listens(serve: Serve, local_dir: Path) -> None:
    control = serve(FakeRun())
    with connected(find_driver(local_dir, "alerts")) as sock, sock.makefile("rb") as lines:
        assert json.loads(lines.readline())["job"] == "alerts"
        began = time.monotonic()
        control.end()
        control.join()
        assert time.monotonic() - began < 1
        assert lines.readline() == b""


def test_a_socket_that_was_removed_is_created_again(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As clean-up of /tmp does, or an administrator; the job needs nothing there while it has nothing to do."""
    monkeypatch.setattr(server, "_CHECK_S", 0.05)
    control = serve(FakeRun())
    for path in local_dir.iterdir():
        shutil.rmtree(path)
    wait_until(lambda: find_drivers(local_dir))
    assert find_driver(local_dir, "alerts").answers
    control.end()
    control.join()
    assert not control._path.parent.exists()


def test_ending_twice_or_before_the_start_is_fine(local_dir: Path) -> None:
    places = Places(local_dir, "file:///ck", "alerts")
    places.make()
    never = ControlServer(FakeRun(), places, 0)
    never.end()
    never.join()
    once = ControlServer(FakeRun(), places, 0)
    once.start()
    for _ in range(2):
        once.end()
        once.join()
    assert places.run_sockets() == []
