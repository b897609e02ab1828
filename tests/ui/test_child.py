"""The process that runs a command for the page: it ends with the server, also by a kill, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from strandline.ui.changes import Changes, Run
from strandline.ui.child import INPUT_CLOSED, TIME_IS_UP
from tests.cli.conftest import environment
from tests.control.talking import wait_until

# A command with a process of its own, which both leave a file behind, and say where they are.
COMMAND = """
import os, subprocess, sys, tempfile, time
tempfile.mkdtemp()
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), other.pid, os.environ["TMPDIR"], flush=True)
time.sleep(600)
"""
# As the server does, and as a kill of it finds it.
SERVER = """
import subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
process.wait()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes = []

    def begin(limit_s: float, command: str = COMMAND, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        child = [sys.executable, "-m", "strandline.ui.child", str(limit_s), sys.executable, "-c", command]
        process = subprocess.Popen(
            [*before, *child], env=environment(TMPDIR=str(tmp_path)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def told(process: subprocess.Popen[str]) -> tuple[list[int], Path]:
    assert process.stdout is not None
    *pids, place = process.stdout.readline().split()
    return [*map(int, pids)], Path(place)


def is_over(pids: list[int], place: Path) -> bool:
    return not place.exists() and not any(map(is_alive, pids))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_ends_when_its_input_is_closed(start: Start, tmp_path: Path) -> None:
    process = start(600)
    pids, place = told(process)
    assert place.parent == tmp_path
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == INPUT_CLOSED
    assert is_over(pids, place)


def test_it_ends_when_the_server_is_killed(start: Start) -> None:
    server = start(600, before=(sys.executable, "-c", SERVER))
    pids, place = told(server)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: is_over(pids, place))


def test_it_ends_by_a_signal(start: Start) -> None:
    process = start(600)
    pids, place = told(process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == INPUT_CLOSED
    assert is_over(pids, place)


def test_its_time_is_bounded(start: Start) -> None:
    process = start(3)
    pids, place = told(process)
    assert process.wait(60) == TIME_IS_UP
    assert is_over(pids, place)


def test_it_has_the_exit_code_of_its_command(start: Start, tmp_path: Path) -> None:
    assert start(600, "raise SystemExit(7)").wait(60) == 7
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_none_of_ours_fails_the_run_and_another_can_begin(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", """print('{"progress": {"done": 7}}')"""],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = Run("id", "tills", "seen", ["a"], 1, 1, process)
    with pytest.raises(KeyError, match="total"):
        Changes(tmp_path, {}, may_run=True)._follow(run, ExitStack())
    assert (run.state, run.steps) == ("failed", deque())
