"""What a driver answers to whom, and what it makes of those who do not behave."""

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
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.control import client, server, wire
from strandline.control.client import Driver, call, find_driver, find_drivers
from strandline.control.commands import CHECKPOINT, COMMANDS, PING, STATUS, STOP, Command, Nothing, Stop, TakeCheckpoint
from strandline.control.server import ControlServer
from strandline.control.wire import Hello, Progress
from strandline.core.errors import (
    CheckpointError,
    ConfigurationError,
    NotFoundError,
    StrandlineError,
    UnavailableError,
)
from strandline.core.version import VERSION
from strandline.keeper.paths import Places, sweep
from tests.control.fake import KEEPER, REACHED, STATS, FakeRun
from tests.control.serving import Serve


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


# -- what is asked for


def test_a_driver_is_found_by_its_jobs_name_and_answers(serve: Serve, local_dir: Path) -> None:
    serve(FakeRun())
    (driver,) = find_drivers(local_dir)
    assert driver == find_driver(local_dir, "alerts")
    assert (driver.job, driver.directory, driver.pid, driver.since_ms, driver.engine) == (
        "alerts", "file:///ck", os.getpid(), 1_000, VERSION,
    )  # fmt: skip
    assert call(driver, PING, Nothing()).state == "running"
    status = call(driver, STATUS, Nothing())
    assert status == FakeRun().status()
    assert (status.last_checkpoint, status.watermarks, status.keepers) == (STATS, [REACHED], [KEEPER])


def test_a_checkpoint_tells_of_its_progress_and_others_are_answered_meanwhile(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEARTBEAT_S", 0.01)
    run = FakeRun()
    serve(run)
    driver = find_driver(local_dir, "alerts")
    heard: list[Progress] = []
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(call, driver, CHECKPOINT, TakeCheckpoint(9.0), on_progress=heard.append)
        wait_until(lambda: len(heard) > 3)
        assert call(driver, PING, Nothing()).state == "running"
        run.finish.set()
        stats = asked.result(10)
    assert (stats.checkpoint, stats.status, stats.total_bytes) == (7, "completed", 2048)
    assert heard[-1] == Progress("checkpoint 7", 0, 2, "partitions")
    assert run.asked == [("checkpoint", 9.0)]


def test_many_ask_at_once(serve: Serve, local_dir: Path) -> None:
    serve(FakeRun())
    driver = find_driver(local_dir, "alerts")
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: call(driver, STATUS, Nothing()).epoch, range(200)))
    assert found == [12] * 200


def test_a_look_has_a_time_limit_though_the_driver_is_at_work(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEARTBEAT_S", 0.01)
    run = FakeRun()
    serve(run)
    with pytest.raises(UnavailableError, match=r"has not answered within 0\.1 s"):
        call(find_driver(local_dir, "alerts"), CHECKPOINT, TakeCheckpoint(), timeout_s=0.1)
    run.finish.set()


@pytest.mark.parametrize("said", [b"moo\n", b'{"type": "moo"}\n', b'{"type": "result", "value": {"state": 7}}\n', b"{"])
def test_answers_that_nobody_understands_are_an_error(local_dir: Path, said: bytes) -> None:
    def answer() -> None:
        for _ in range(2):
            sock, _ = listener.accept()
            with sock, suppress(OSError):
                sock.sendall(wire.line(Hello(engine=VERSION, job="alerts")))
                if sock.recv(1000):
                    sock.sendall(said)

    place = Places(local_dir, "file:///ck", "alerts")
    place.make()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.run_socket()))
        listener.listen(4)
        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(StrandlineError, match="answers in no known way"):
            call(find_driver(local_dir, "alerts"), PING, Nothing())
        answering.join(10)


def test_a_thread_that_cannot_be_started_leaves_no_socket(local_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    places = Places(local_dir, "file:///ck", "alerts")
    places.make()
    never = ControlServer(FakeRun(), places, 0)
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError):
        never.start()
    never.end()
    assert list(places.root.iterdir()) == []


def test_a_request_for_which_there_is_no_thread_is_refused(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = serve(FakeRun())
    driver = find_driver(local_dir, "alerts")

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(UnavailableError, match="the driver has no thread for it"):
            call(driver, PING, Nothing())
    assert not control._workers
    assert call(driver, PING, Nothing()).job == "alerts"


def test_a_driver_that_is_out_of_files_hears_what_comes_later(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, failed = socket.socket.accept, []

    def accept(listener: socket.socket) -> object:
        if len(failed) < 2:
            failed.append(True)
            raise OSError(24, "Too many open files")
        return real(listener)

    monkeypatch.setattr(server, "_PAUSE_S", 0.01)
    monkeypatch.setattr(socket.socket, "accept", accept)
    serve(FakeRun())
    assert find_driver(local_dir, "alerts").answers
    assert len(failed) == 2
    assert "Too many open files" in caplog.text


def test_what_the_driver_raises_is_raised(serve: Serve, local_dir: Path) -> None:
    def fail(run: object, arguments: Nothing, report: object) -> Nothing:
        raise CheckpointError("checkpoint 7 failed: the disk is full", hint="make room", checkpoint=7)

    def break_(run: object, arguments: Nothing, report: object) -> Nothing:
        raise ZeroDivisionError("by zero")

    failing, breaking = Command("fail", Nothing, Nothing, fail), Command("break", Nothing, Nothing, break_)
    serve(FakeRun(), commands={"fail": failing, "break": breaking})
    driver = find_driver(local_dir, "alerts")
    with pytest.raises(CheckpointError, match="the disk is full") as caught:
        call(driver, failing, Nothing())
    assert (caught.value.hint, caught.value.checkpoint) == ("make room", 7)
    with pytest.raises(StrandlineError, match="'break' failed: ZeroDivisionError: by zero"):
        call(driver, breaking, Nothing())
    with pytest.raises(StrandlineError, match="no command 'ping', only fail, break"):
        call(driver, PING, Nothing())


def test_each_command_is_in_the_table_under_its_own_name() -> None:
    assert {name: command.name for name, command in COMMANDS.items()} == {name: name for name in COMMANDS}


# -- the end


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
    monkeypatch.setattr(server, "_FAREWELL_S", 0.05)
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


# -- those who do not behave

RUBBISH = [
    b"\n",
    b"hello\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff\xfe\x00\n",
    b"{}\n",
    b'{"command": 7}\n',
    b'{"command": "fly", "engine": "%s"}\n' % VERSION.encode(),
    b'{"command": "stop", "engine": "%s", "arguments": {"checkpoint": "yes"}}\n' % VERSION.encode(),
    b'{"command": "stop", "engine": "%s", "arguments": {"chekpoint": true}}\n' % VERSION.encode(),
    b'{"command": "stop", "engine": "%s", "arguments": [[[]]]}\n' % VERSION.encode(),
    b"[" * 100_000 + b"\n",
    b"x" * (wire.MOST_REQUEST_BYTES + 100_000),
]


@pytest.mark.parametrize("sent", RUBBISH, ids=[str(sent[:40]) for sent in RUBBISH])
def test_rubbish_is_refused(serve: Serve, local_dir: Path, sent: bytes) -> None:
    run = FakeRun()
    serve(run)
    driver = find_driver(local_dir, "alerts")
    with connected(driver) as sock:
        with suppress(BrokenPipeError):  # It need not have heard it all.
            sock.sendall(sent)
        hello, refused = lines_of(sock)
    assert hello["engine"] == VERSION
    assert refused["type"] == "refused"
    assert run.asked == []
    assert call(driver, PING, Nothing()).job == "alerts"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.booleans())
def test_whatever_is_sent_others_are_answered(serve: Serve, local_dir: Path, sent: bytes, half_open: bool) -> None:
    if not find_drivers(local_dir):
        serve(FakeRun())
    driver = find_driver(local_dir, "alerts")
    with connected(driver) as sock:
        sock.sendall(sent)
        if half_open:
            sock.shutdown(socket.SHUT_WR)
            assert lines_of(sock)[0]["job"] == "alerts"
    assert call(driver, PING, Nothing()).job == "alerts"


def test_one_who_sends_no_more_is_answered(serve: Serve, local_dir: Path) -> None:
    """As a shell's `nc` does."""
    serve(FakeRun())
    with connected(find_driver(local_dir, "alerts")) as sock:
        sock.sendall(wire.line(wire.Request(command="ping")))
        sock.shutdown(socket.SHUT_WR)
        said = lines_of(sock)
    assert said[-1] == {"type": "result", "value": {"job": "alerts", "state": "running"}}


def test_one_who_says_nothing_is_parted_from(serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REQUEST_S", 0.05)
    control = serve(FakeRun())
    with connected(find_driver(local_dir, "alerts")) as silent:
        silent.sendall(b'{"command": "sto')
        assert [line["job"] for line in lines_of(silent)] == ["alerts"]
    wait_until(lambda: not control._conversations)


def test_hundreds_who_say_nothing_keep_nobody_out(serve: Serve, local_dir: Path) -> None:
    control = serve(FakeRun())
    driver = find_driver(local_dir, "alerts")
    with ExitStack() as silent:
        for _ in range(200):
            silent.enter_context(client._connected(driver.socket, 10))
        assert call(driver, PING, Nothing()).job == "alerts"
        wait_until(lambda: len(control._conversations) <= server._MOST_CONVERSATIONS)


def test_a_request_that_no_driver_would_take_is_not_sent(serve: Serve, local_dir: Path) -> None:
    class Much(msgspec.Struct):
        keys: str

    serve(FakeRun())
    much = Command("much", Much, Nothing, lambda run, arguments, report: Nothing())
    with pytest.raises(ConfigurationError, match="a driver takes 1048576 at most"):
        call(find_driver(local_dir, "alerts"), much, Much("x" * wire.MOST_REQUEST_BYTES))


def test_one_who_goes_while_his_checkpoint_is_taken(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEARTBEAT_S", 0.01)
    run = FakeRun()
    control = serve(run)
    driver = find_driver(local_dir, "alerts")
    with connected(driver) as sock:
        sock.sendall(wire.line(wire.Request(command="checkpoint")))
        assert run.began.wait(10)
    wait_until(lambda: not control._conversations)
    assert call(driver, PING, Nothing()).job == "alerts"
    run.finish.set()
    wait_until(lambda: not control._workers)


def test_one_who_does_not_read_costs_others_nothing(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_STALLED_S", 0.2)
    much = Command("much", Nothing, str, lambda run, arguments, report: "x" * (8 << 20))
    control = serve(FakeRun(), commands={**COMMANDS, "much": much})
    driver = find_driver(local_dir, "alerts")
    with connected(driver) as sock:
        sock.sendall(wire.line(wire.Request(command="much")))
        wait_until(lambda: any(conversation.is_at_work for conversation in control._conversations))
        for _ in range(20):
            assert call(driver, PING, Nothing()).job == "alerts"
        wait_until(lambda: not control._conversations)
    assert len(call(driver, much, Nothing())) == 8 << 20


def test_a_slow_reader_hears_the_newest_progress_and_no_heap_of_it(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEARTBEAT_S", 0.001)
    finish = threading.Event()

    def work(run: object, arguments: Nothing, report: Callable[[Progress], None]) -> str:
        while not finish.wait(0.001):
            report(Progress("x" * 50_000))
        return "done"

    slow = Command("slow", Nothing, str, work)
    control = serve(FakeRun(), commands={"slow": slow})
    with connected(find_driver(local_dir, "alerts")) as sock:
        sock.sendall(wire.line(wire.Request(command="slow")))
        wait_until(lambda: any(conversation.is_at_work for conversation in control._conversations))
        (conversation,) = [one for one in control._conversations if one.is_at_work]
        wait_until(lambda: conversation._writer.transport.get_write_buffer_size() > 0)
        time.sleep(0.1)
        assert conversation._writer.transport.get_write_buffer_size() < 60_000
        finish.set()
        assert lines_of(sock)[-1] == {"type": "result", "value": "done"}


def test_more_requests_than_there_are_threads_for_are_refused(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MOST_AT_WORK", 2)
    run = FakeRun()
    control = serve(run)
    driver = find_driver(local_dir, "alerts")
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(call, driver, CHECKPOINT, TakeCheckpoint()) for _ in range(2)]
        wait_until(lambda: len(control._workers) == 2)
        with pytest.raises(UnavailableError, match="works on 2 requests already"):
            call(driver, PING, Nothing())
        run.finish.set()
        assert [done.result(10).checkpoint for done in asked] == [7, 7]
    assert call(driver, PING, Nothing()).job == "alerts"


# -- who may ask, and what is found


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
        call(driver, PING, Nothing())


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
            assert process.stdout is not None
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
            call(driver, PING, Nothing())
        serve(FakeRun())
        assert not driver.socket.exists()
        assert find_driver(local_dir, "alerts").pid == os.getpid()


def test_a_driver_that_is_stopped_does_not_answer_in_time(local_dir: Path) -> None:
    with driver_process(local_dir) as process:
        driver = find_driver(local_dir, "alerts")
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError, match=rf"process {process.pid}\) has not answered within 0.2 s"):
            call(driver, PING, Nothing(), patience_s=0.2)
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
        call(driver, PING, Nothing())


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
            assert call(driver, PING, Nothing()).job == "alerts"
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
