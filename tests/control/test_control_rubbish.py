"""What a driver makes of those who do not behave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.control import client, server, wire
from strandline.control.client import call, find_driver, find_drivers
from strandline.control.commands import CHECKPOINT, COMMANDS, PING, Command, NoArguments, TakeCheckpoint
from strandline.control.wire import ProgressMessage
from strandline.core.errors import (
    ConfigurationError,
    StrandlineError,
    UnavailableError,
)
from strandline.core.version import VERSION
from tests.control.fake import FakeRun
from tests.control.serving import Serve
from tests.control.talking import connected, lines_of, wait_until

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
    b'{"a":' * 9_000 + b"\n",
    b"x" * (wire.MAX_REQUEST_BYTES + 100_000),
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
    assert call(driver, PING, NoArguments()).job == "alerts"


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
    assert call(driver, PING, NoArguments()).job == "alerts"


def test_one_who_sends_no_more_is_answered(serve: Serve, local_dir: Path) -> None:
    """As a shell's `nc` does."""
    serve(FakeRun())
    with connected(find_driver(local_dir, "alerts")) as sock:
        sock.sendall(wire.line(wire.Request(command="ping")))
        sock.shutdown(socket.SHUT_WR)
        said = lines_of(sock)
    assert said[-1] == {"type": "result", "value": {"job": "alerts", "state": "running"}}


def test_one_who_says_nothing_is_parted_from(serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REQUEST_TIMEOUT_S", 0.05)
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
            silent.enter_context(client._connect(driver.socket, 10))
        assert call(driver, PING, NoArguments()).job == "alerts"
        wait_until(lambda: len(control._conversations) <= server._MAX_CONVERSATIONS)


def test_a_request_that_no_driver_would_take_is_not_sent(serve: Serve, local_dir: Path) -> None:
    class Much(msgspec.Struct):
        keys: str

    serve(FakeRun())
    much = Command("much", Much, NoArguments, lambda run, arguments, report: NoArguments())
    with pytest.raises(ConfigurationError, match="a driver takes 1048576 at most"):
        call(find_driver(local_dir, "alerts"), much, Much("x" * wire.MAX_REQUEST_BYTES))


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
    assert call(driver, PING, NoArguments()).job == "alerts"
    run.finish.set()
    wait_until(lambda: not control._workers)


def test_one_who_does_not_read_costs_others_nothing(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_SEND_TIMEOUT_S", 0.2)
    much = Command("much", NoArguments, str, lambda run, arguments, report: "x" * (8 << 20))
    control = serve(FakeRun(), commands={**COMMANDS, "much": much})
    driver = find_driver(local_dir, "alerts")
    with connected(driver) as sock:
        sock.sendall(wire.line(wire.Request(command="much")))
        wait_until(lambda: any(conversation.is_at_work for conversation in control._conversations))
        for _ in range(20):
            assert call(driver, PING, NoArguments()).job == "alerts"
        wait_until(lambda: not control._conversations)
    # Who reads has all the time that he needs.
    monkeypatch.setattr(server, "_SEND_TIMEOUT_S", 30.0)
    assert len(call(driver, much, NoArguments())) == 8 << 20


def test_a_slow_reader_hears_the_newest_progress_and_no_heap_of_it(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEARTBEAT_S", 0.001)
    finish = threading.Event()

    def work(run: object, arguments: NoArguments, report: Callable[[ProgressMessage], None]) -> str:
        while not finish.wait(0.001):
            report(ProgressMessage("x" * 50_000))
        return "done"

    slow = Command("slow", NoArguments, str, work)
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
    monkeypatch.setattr(server, "_MAX_AT_WORK", 4)
    run = FakeRun()
    control = serve(run)
    driver = find_driver(local_dir, "alerts")
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(call, driver, CHECKPOINT, TakeCheckpoint()) for _ in range(2)]
        wait_until(lambda: len(control._workers) == 2)
        with pytest.raises(UnavailableError, match="works on 2 requests already"):
            call(driver, CHECKPOINT, TakeCheckpoint())
        # What waits for checkpoints leaves threads for other requests, as to stop the job.
        assert call(driver, PING, NoArguments()).job == "alerts"
        run.finish.set()
        assert [done.result(10).checkpoint for done in asked] == [7, 7]
    assert call(driver, CHECKPOINT, TakeCheckpoint()).checkpoint == 7


@pytest.mark.parametrize("shown", ["errors", "nowhere", "logs"])
def test_what_a_command_fails_at_quotes_values_only_where_they_may_stand(
    serve: Serve, local_dir: Path, caplog: pytest.LogCaptureFixture, shown: str
) -> None:
    def fail(run: object, arguments: NoArguments, report: object) -> NoArguments:
        raise KeyError("ann@example.org")

    failing = Command("fail", NoArguments, NoArguments, fail)
    serve(FakeRun(), commands={**COMMANDS, "fail": failing}, show_values=shown)
    with pytest.raises(StrandlineError, match="'fail' failed: KeyError") as caught:
        call(find_driver(local_dir, "alerts"), failing, NoArguments())
    assert ("ann@" in str(caught.value)) == (shown != "nowhere")
    assert "ann@" not in caught.value.discreet
    assert "'fail' failed" in caplog.text
    assert "test_control_rubbish.py" in caplog.text
    assert ("ann@" in caplog.text) == (shown == "logs")
