"""`strandline top` as a process: live on a terminal with keys, once elsewhere, and how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.cli import main
from strandline.cli import top as module
from strandline.control import journal
from strandline.control.status import Status
from strandline.keeper.paths import Places
from strandline.ui.jobs import Jobs
from tests.cli.conftest import Command, environment
from tests.cli.fabricate import FabricatedJob
from tests.control.fake import KEEPER, FakeRun
from tests.control.serving import Serve

LEFT = b"\x1b[?1049l"


class Working(FakeRun):
    """It gets on with each look."""

    looks = 0

    def status(self) -> Status:
        self.looks += 1
        keeper = replace(KEEPER, all_rows_in=1000 * self.looks, all_busy_ms=10.0 * self.looks)
        return replace(super().status(), epoch=12 + self.looks, keepers=[keeper])


class Terminal:
    """A terminal in which `strandline top` runs, and what it has shown."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int, theirs: int) -> None:
        self.process, self._ours, self._theirs = process, ours, theirs
        self.seen = b""

    @property
    def mode(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def press(self, keys: str) -> None:
        self.seen = b""
        os.write(self._ours, keys.encode())

    def read(self, is_there: Callable[[str], bool], what: object = "") -> str:
        """Read until a whole screen is so, and return it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._ours, 65536)
                except OSError:
                    break
            for screen in reversed(re.sub(rb"\x1b\[[\d;?]*[A-GI-Za-z]", b"", self.seen).split(b"\x1b[H")):
                if is_there(text := screen.decode(errors="replace")):
                    return text
        raise AssertionError(f"{what}: {self.seen.decode(errors='replace')}")

    def read_until(self, *parts: str) -> str:
        return self.read(lambda text: all(part in text for part in parts), parts)


@contextmanager
def top(*args: object, width: int = 80, height: int = 24, shell: Sequence[str] = ()) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    command = [*shell, sys.executable, "-m", "strandline.cli.main", "top", *map(str, args)]
    env = {k: v for k, v in environment(TERM="xterm-256color").items() if k != "LINES"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        try:
            yield Terminal(process, ours, theirs)
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)


@pytest.mark.long
def test_keys_lead_through_the_jobs_and_q_leaves_the_terminal_as_it_was(serve: Serve, local_dir: Path) -> None:
    serve(Working("alerts"), "file:///ck/a")
    serve(Working("payments"), "file:///ck/b")
    with top("--local-dir", local_dir) as terminal:
        before = terminal.mode
        terminal.read_until("▸ alerts", "payments")
        assert terminal.mode != before
        terminal.press("j\r")
        terminal.read_until("payments  running", "▸ ●─╯ detect", "MB", "/s")
        terminal.press("\x1b[B")
        terminal.read_until("▸ ├─● top")
        terminal.press("\x1b[A\r")
        terminal.read_until("detect: 1 partition", "4711")
        terminal.press("\x1b")
        terminal.read_until("▸ ●─╯ detect")
        terminal.press("\x1b")
        terminal.read_until("▸ alerts")
        terminal.press("q")
        terminal.read(lambda _: LEFT in terminal.seen)
        assert terminal.process.wait(20) == 0
        assert terminal.mode == before
        assert b"Traceback" not in terminal.seen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.long
def test_a_signal_ends_it_and_restores_the_terminal(
    serve: Serve, local_dir: Path, number: signal.Signals, code: int
) -> None:
    serve(Working("alerts"))
    with top("alerts", "--local-dir", local_dir) as terminal:
        before = terminal.mode
        terminal.read_until("alerts  running")
        if number == signal.SIGINT:
            terminal.press("\x03")
        else:
            terminal.process.send_signal(number)
        terminal.read(lambda _: LEFT in terminal.seen)
        assert terminal.process.wait(20) == code
        assert terminal.mode == before
        assert b"Traceback" not in terminal.seen


@pytest.mark.long
def test_a_shell_suspends_it_and_continues_it(serve: Serve, local_dir: Path) -> None:
    serve(Working("alerts"))
    shell = ("bash", "-mc", '"$@"; echo "it is stopped"; read -r line; fg', "bash")
    with top("alerts", "--local-dir", local_dir, shell=shell) as terminal:
        terminal.read_until("alerts  running")
        terminal.press("\x1a")
        terminal.read(lambda _: LEFT in terminal.seen and b"it is stopped" in terminal.seen, "it is stopped")
        terminal.press("\n")
        terminal.read_until("alerts  running")
        terminal.press("q")
        assert terminal.process.wait(20) == 0


@pytest.mark.long
def test_where_no_shell_could_continue_it_it_is_not_suspended(serve: Serve, local_dir: Path) -> None:
    serve(Working("alerts"))
    with top("alerts", "--local-dir", local_dir) as terminal:
        terminal.read_until("alerts  running")
        terminal.press("\x1a")
        terminal.read_until("alerts  running")
        terminal.press("q")
        assert terminal.process.wait(20) == 0


@pytest.mark.long
def test_it_follows_the_size_of_the_terminal_and_says_when_the_driver_is_gone(serve: Serve, local_dir: Path) -> None:
    server = serve(Working("alerts"))
    with top("alerts", "--local-dir", local_dir, width=120) as terminal:
        wide = terminal.read_until("alerts  running", "2 files wait")
        assert max(map(len, wide.splitlines())) > 100
        terminal.seen = b""
        fcntl.ioctl(terminal._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 50, 0, 0))
        terminal.read(lambda text: "detect" in text and max(map(len, text.splitlines())) <= 50)
        server.end()
        server.join()
        terminal.read_until("there is no such job any more")


def test_without_a_terminal_it_prints_once(serve: Serve, local_dir: Path, strandline: Command) -> None:
    serve(Working("alerts"))
    outcome = strandline("top", "alerts", "--local-dir", local_dir)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "\x1b" not in outcome.stdout
    (detect,) = (line for line in outcome.stdout.splitlines() if "detect" in line)
    # A look before has made the rates known.
    assert "/s" in detect
    assert "q quit" not in outcome.stdout
    assert outcome.stdout.startswith("alerts  running")


def test_several_jobs_are_a_list(serve: Serve, local_dir: Path, strandline: Command) -> None:
    serve(FakeRun("alerts"), "file:///ck/a")
    serve(FakeRun("payments", state="restarting"), "file:///ck/b")
    outcome = strandline("top", "--once", "--local-dir", local_dir)
    rows = {line.split()[0]: line.split()[1:4] for line in outcome.stdout.splitlines() if "ck/" in line}
    assert rows == {"alerts": ["running", "2.5/s", "12"], "payments": ["restarting", "2.5/s", "12"]}


def test_a_job_that_ran_here_or_elsewhere(alerts: FabricatedJob, local_dir: Path, strandline: Command) -> None:
    newest = alerts.checkpoint()
    outcome = strandline("top", alerts.directory, "--local-dir", local_dir)
    assert outcome.code == 0
    assert outcome.stdout.startswith(f"alerts  not here\nits newest checkpoint is {newest}, in file://")
    assert re.search(r"detect +2 .* rocksdb +user string", outcome.stdout)
    places = Places(local_dir, alerts.directory.as_uri(), "alerts")
    places.make()
    record = journal.JournalEntry(
        job="alerts", directory=alerts.directory.as_uri(), pid=1, born="", since_ms=1_700_000_000_000, state="failed",
        at_ms=1_700_000_009_000, failure="it broke\nbadly", failure_ms=1_700_000_009_000,
    )  # fmt: skip
    journal.write(places, record)
    ended = strandline("top", "alerts", "--local-dir", local_dir).stdout
    assert ended.startswith("alerts  failed\nits driver (process 1, since ")
    assert ": it broke\n" in ended


def test_what_a_job_has_left_is_not_read_with_each_look(
    alerts: FabricatedJob, local_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []
    monkeypatch.setattr(module, "read_past", lambda jobdir: reads.append(jobdir) or {"newest": {"checkpoint": 1}})
    jobs = Jobs(local_dir, (str(alerts.directory),))
    looker = module.Looker(jobs)
    looks = [looker.look(jobs.all()[0].id) for _ in range(5)]
    assert {look.newest["checkpoint"] for look in looks if look.newest} == {1}
    assert len(reads) == 1


@pytest.mark.parametrize("command", [("top",), ("metrics", "--once"), ("ui",)])
def test_a_job_that_is_not_there_is_an_error(
    serve: Serve, local_dir: Path, strandline: Command, command: tuple[str, ...]
) -> None:
    def refused() -> str:
        outcome = strandline(*command, "nothing", "--local-dir", local_dir)
        assert (outcome.code, outcome.stdout) == (1, "")
        assert outcome.stderr.startswith("error: nothing: there is no such job on this machine")
        return " ".join(outcome.stderr.partition("next step: ")[2].split())

    assert refused().startswith("give the job's Settings.local_dir with --local-dir")
    serve(FakeRun("alerts"))
    assert refused().startswith("the jobs there are: alerts; a directory of checkpoints has a slash, as in ./nothing")


def test_without_a_name_there_may_be_a_job_later(local_dir: Path, strandline: Command) -> None:
    assert "no job runs here" in strandline("top", "--local-dir", local_dir).stdout


def test_it_needs_nothing_of_the_page(serve: Serve, local_dir: Path) -> None:
    serve(FakeRun("alerts"))
    code = (
        "import sys\nfor name in ('starlette', 'uvicorn', 'anyio', 'duckdb', 'pyspark'): sys.modules[name] = None\n"
        f"sys.argv = ['strandline', 'top', 'alerts', '--local-dir', {str(local_dir)!r}]\n"
        f"from {main.__name__} import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "alerts  running" in done.stdout
