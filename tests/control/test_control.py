"""What is asked of a driver, and what it answers."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.checkpoint.history import PartitionStats
from strandline.control import commands, server, wire
from strandline.control.client import call, find_driver, find_drivers
from strandline.control.commands import CHECKPOINT, COMMANDS, PING, RECENT, STATUS, Command, NoArguments, TakeCheckpoint
from strandline.control.server import ControlServer
from strandline.control.wire import Hello, ProgressMessage
from strandline.core.errors import (
    CheckpointError,
    StrandlineError,
    UnavailableError,
)
from strandline.core.ids import CheckpointId, Partition
from strandline.core.version import VERSION
from strandline.keeper.paths import Places
from tests.control import fake
from tests.control.fake import KEEPER, REACHED, STATS, FakeRun
from tests.control.serving import Serve
from tests.control.talking import wait_until


def test_a_driver_is_found_by_its_jobs_name_and_answers(serve: Serve, local_dir: Path) -> None:
    serve(FakeRun())
    (driver,) = find_drivers(local_dir)
    assert driver == find_driver(local_dir, "alerts")
    assert (driver.job, driver.directory, driver.pid, driver.since_ms, driver.engine) == (
        "alerts", "file:///ck", os.getpid(), 1_000, VERSION,
    )  # fmt: skip
    assert call(driver, PING, NoArguments()).state == "running"
    status = call(driver, STATUS, NoArguments())
    assert status == FakeRun().status()
    assert (status.last_checkpoint, status.watermarks, status.keepers[0]) == (STATS, [REACHED], KEEPER)


def test_the_recent_past_is_asked_for_and_old_checkpoints_lack_their_parts_where_there_are_many(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FakeRun()
    serve(run)
    driver = find_driver(local_dir, "alerts")
    assert call(driver, RECENT, NoArguments()) == fake.RECENT
    parts = tuple(PartitionStats("detect", Partition(n), 1.0, 2.0, 3) for n in range(3))
    checkpoints = [replace(STATS, checkpoint=CheckpointId(n), partitions=parts) for n in (1, 2, 3)]
    monkeypatch.setattr(run, "recent", lambda: replace(fake.RECENT, checkpoints=checkpoints))
    monkeypatch.setattr(commands, "_MOST_PARTS", 6)
    answer = call(driver, RECENT, NoArguments())
    assert [(each.checkpoint, len(each.partitions)) for each in answer.checkpoints] == [(1, 0), (2, 3), (3, 3)]


def test_a_checkpoint_tells_of_its_progress_and_others_are_answered_meanwhile(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEARTBEAT_S", 0.01)
    run = FakeRun()
    serve(run)
    driver = find_driver(local_dir, "alerts")
    heard: list[ProgressMessage] = []
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(call, driver, CHECKPOINT, TakeCheckpoint(9.0), on_progress=heard.append)
        wait_until(lambda: len(heard) > 3)
        assert call(driver, PING, NoArguments()).state == "running"
        run.finish.set()
        stats = asked.result(10)
    assert (stats.checkpoint, stats.status, stats.total_bytes) == (7, "completed", 2048)
    assert heard[-1] == ProgressMessage("checkpoint 7", 0, 2, "partitions")
    assert run.asked == [("checkpoint", 9.0)]


def test_many_ask_at_once(serve: Serve, local_dir: Path) -> None:
    serve(FakeRun())
    driver = find_driver(local_dir, "alerts")
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: call(driver, STATUS, NoArguments()).epoch, range(200)))
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
            call(find_driver(local_dir, "alerts"), PING, NoArguments())
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
            call(driver, PING, NoArguments())
    assert not control._workers
    assert call(driver, PING, NoArguments()).job == "alerts"


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
    def fail(run: object, arguments: NoArguments, report: object) -> NoArguments:
        raise CheckpointError("checkpoint 7 failed: the disk is full", hint="make room", checkpoint=7)

    def break_(run: object, arguments: NoArguments, report: object) -> NoArguments:
        raise ZeroDivisionError("by zero")

    failing, breaking = (
        Command("fail", NoArguments, NoArguments, fail),
        Command("break", NoArguments, NoArguments, break_),
    )
    serve(FakeRun(), commands={"fail": failing, "break": breaking})
    driver = find_driver(local_dir, "alerts")
    with pytest.raises(CheckpointError, match="the disk is full") as caught:
        call(driver, failing, NoArguments())
    assert (caught.value.hint, caught.value.checkpoint) == ("make room", 7)
    with pytest.raises(StrandlineError, match="'break' failed: ZeroDivisionError: by zero"):
        call(driver, breaking, NoArguments())
    with pytest.raises(StrandlineError, match="no command 'ping', only fail, break"):
        call(driver, PING, NoArguments())


def test_each_command_is_in_the_table_under_its_own_name() -> None:
    assert {name: command.name for name, command in COMMANDS.items()} == {name: name for name in COMMANDS}
