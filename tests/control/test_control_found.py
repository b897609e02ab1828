"""Who may ask a driver, and what is found where several are, or were."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from strandline.control import client, server, wire
from strandline.control.client import call, find_driver, find_drivers
from strandline.control.commands import CHECKPOINT, PING, NoArguments, TakeCheckpoint
from strandline.control.server import ControlServer
from strandline.control.wire import Hello
from strandline.core.errors import (
    ConfigurationError,
    NotFoundError,
    UnavailableError,
)
from strandline.core.version import VERSION
from strandline.keeper.paths import Places, sweep
from tests.control.fake import FakeRun
from tests.control.serving import Serve
from tests.control.talking import connected, lines_of, wait_until


def test_sockets_are_for_their_user_alone(serve: Serve, local_dir: Path) -> None:
    serve(FakeRun())
    path = find_driver(local_dir, "alerts").socket
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(str(path.name)) <= len("abcdef-0-1.sock")


def test_another_user_hears_nothing(serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(FakeRun())
    driver = find_driver(local_dir, "alerts")
    monkeypatch.setattr(server, "is_our_user", lambda sock: False)
    with connected(driver) as sock:
        assert lines_of(sock) == []


def test_our_user_is_who_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = socket.socketpair()
    with ours, other:
        assert wire.peer(ours) == (os.getpid(), os.getuid())
        assert wire.is_our_user(ours)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not wire.is_our_user(ours)


def test_the_socket_of_another_user_is_not_spoken_to(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(FakeRun())
    driver = find_driver(local_dir, "alerts")
    monkeypatch.setattr(client, "is_our_user", lambda sock: False)
    assert find_drivers(local_dir) == []
    with pytest.raises(PermissionError):
        call(driver, PING, NoArguments())


def test_two_jobs_of_one_name_are_told_apart_by_their_directory(serve: Serve, local_dir: Path) -> None:
    serve(FakeRun(), "file:///ck/a")
    serve(FakeRun(), "s3://bucket/b")
    with pytest.raises(ConfigurationError, match=r"2 jobs .* file:///ck/a, s3://bucket/b") as caught:
        find_driver(local_dir, "alerts")
    assert "--directory" in caught.value.hint
    for given_, found in [
        ("/ck/a", "file:///ck/a"),
        ("file:///ck/a", "file:///ck/a"),
        ("s3://key@bucket/b/", "s3://bucket/b"),
    ]:
        assert find_driver(local_dir, "alerts", given_).directory == found
    with pytest.raises(NotFoundError, match="no driver of job 'alerts' with the checkpoint directory file:///ck/c"):
        find_driver(local_dir, "alerts", "/ck/c")


def test_of_two_drivers_of_one_job_the_newer_is_asked(serve: Serve, local_dir: Path) -> None:
    old, new = FakeRun(), FakeRun()
    serve(new, since_ms=2_000)
    serve(old, since_ms=1_000)
    assert [driver.since_ms for driver in find_drivers(local_dir)] == [1_000, 2_000]
    new.finish.set()
    assert call(find_driver(local_dir, "alerts"), CHECKPOINT, TakeCheckpoint()).checkpoint == 7
    assert (old.asked, new.asked) == ([], [("checkpoint", None)])


def test_without_a_driver_it_is_said_what_there_is(serve: Serve, local_dir: Path) -> None:
    with pytest.raises(NotFoundError, match=f"{local_dir}: no driver of job 'alerts' runs on this machine") as caught:
        find_driver(local_dir, "alerts")
    assert "--local-dir" in caught.value.hint
    serve(FakeRun("other"))
    with pytest.raises(NotFoundError) as caught:
        find_driver(local_dir, "alerts")
    assert "'other' (file:///ck)" in caught.value.hint
    assert find_drivers(local_dir / "nowhere") == []


DRIVER = """
import sys, time
from pathlib import Path
from strandline.control.server import ControlServer
from strandline.keeper.paths import Places
from tests.control.fake import FakeRun
places = Places(Path(sys.argv[1]), "file:///ck", "alerts")
places.make()
ControlServer(FakeRun(), places, 1000).start()
print("ready", flush=True)
time.sleep(120)
"""


@contextmanager
def driver_process(local_dir: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(local_dir)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_what_a_killed_driver_left_is_passed_over_and_removed_by_the_next(serve: Serve, local_dir: Path) -> None:
    with driver_process(local_dir) as process:
        driver = find_driver(local_dir, "alerts")
        assert driver.pid == process.pid
        process.kill()
        process.wait()
        assert driver.socket.exists()
        assert find_drivers(local_dir) == []
        with pytest.raises(UnavailableError, match="ended before it answered"):
            call(driver, PING, NoArguments())
        serve(FakeRun())
        assert not driver.socket.exists()
        assert find_driver(local_dir, "alerts").pid == os.getpid()


def test_a_driver_that_is_stopped_does_not_answer_in_time(local_dir: Path) -> None:
    with driver_process(local_dir) as process:
        driver = find_driver(local_dir, "alerts")
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError, match=rf"process {process.pid}\) has not answered within 0.2 s"):
            call(driver, PING, NoArguments(), silence_s=0.2)
        (silent,) = find_drivers(local_dir, timeout_s=0.2)
        assert (silent.answers, silent.pid, silent.job) == (False, process.pid, "")
        # It is alive, whatever it does.
        server.clear_stale(Places(local_dir, "file:///ck", "alerts"))
        assert driver.socket.exists()


def test_a_silent_driver_keeps_no_other_from_being_found(serve: Serve, local_dir: Path) -> None:
    serve(FakeRun())
    place = Places(local_dir, "file:///other", "other")
    place.make()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.run_socket()))
        listener.listen(4)
        found = find_drivers(local_dir, timeout_s=0.2)
        assert [(driver.job, driver.answers) for driver in found] == [("alerts", True), ("", False)]
        with pytest.raises(NotFoundError, match=f"process {os.getpid()} listens there and does not answer"):
            find_driver(local_dir, "third", timeout_s=0.2)
    for path in place.run_sockets():
        path.unlink()


def test_a_driver_of_another_version_is_found_and_not_asked(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as at_start:
        at_start.setattr(server, "VERSION", "9.8.7")
        serve(FakeRun())
    driver = find_driver(local_dir, "alerts")
    assert driver.engine == "9.8.7"
    with pytest.raises(ConfigurationError, match=f"driver is Strandline 9.8.7, and this is Strandline {VERSION}"):
        call(driver, PING, NoArguments())


def test_a_command_of_another_version_is_refused(serve: Serve, local_dir: Path) -> None:
    run = FakeRun()
    serve(run)
    with connected(find_driver(local_dir, "alerts")) as sock:
        sock.sendall(wire.line(wire.Request(command="stop", engine="9.8.7")))
        _, refused = lines_of(sock)
    assert "this is Strandline 9.8.7" in json.dumps(refused)
    assert run.asked == []


def test_a_hello_of_a_later_engine_may_say_less_and_more() -> None:
    assert msgspec.json.decode(b'{"engine": "2", "moon": "full"}', type=Hello) == Hello(engine="2")


def test_a_process_that_the_program_forks_does_not_stand_in_for_the_driver(serve: Serve, local_dir: Path) -> None:
    control = serve(FakeRun())
    forking = multiprocessing.get_context("fork")
    runs, go_on = forking.Event(), forking.Event()
    driver = find_driver(local_dir, "alerts")
    with connected(driver) as sock:
        wait_until(lambda: control._conversations)
        child = forking.Process(target=lambda: (runs.set(), go_on.wait(30)))
        child.start()
        try:
            assert runs.wait(10)
            assert call(driver, PING, NoArguments()).job == "alerts"
            path = driver.socket.rename(driver.socket.with_name("kept"))  # As kill -9 leaves it.
            control.end()
            control.join()
            assert [line["job"] for line in lines_of(sock)] == ["alerts"]
            with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
                late.connect(str(path))
        finally:
            go_on.set()
            child.join(10)


def test_a_time_out_for_new_sockets_changes_nothing(serve: Serve, local_dir: Path) -> None:
    socket.setdefaulttimeout(0.001)
    try:
        run = FakeRun()
        serve(run)
        driver = find_driver(local_dir, "alerts")
        threading.Timer(0.1, run.finish.set).start()
        assert call(driver, CHECKPOINT, TakeCheckpoint()).checkpoint == 7
    finally:
        socket.setdefaulttimeout(None)


def test_a_killed_drivers_socket_keeps_no_directory_from_being_swept(local_dir: Path) -> None:
    with driver_process(local_dir) as process:
        process.kill()
        process.wait()
    (root,) = local_dir.glob("????????????")
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1, 1))
    sweep(local_dir)
    assert not root.exists()


def test_a_path_that_the_system_cannot_take_is_refused(local_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        ControlServer(FakeRun(), Places(local_dir / ("d" * 90), "file:///ck", "alerts"), 0)


def test_credentials_are_laid_out_as_the_system_does() -> None:
    assert wire._CREDENTIALS.size == struct.calcsize("iII")
