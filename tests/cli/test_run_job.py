"""`strandline run` with real Spark: what `strandline new` makes, from its first rows to the signal that stops it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import Command, environment
from tests.cli.terminal import screen
from tests.spark.harness import eventually, keepers
from tests.spark.pipeline import read_json

pytestmark = pytest.mark.spark


class Terminal:
    """A terminal, and all that it has got."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.seen = b""
        self._thread = threading.Thread(target=self._read, name="test-terminal")

    def begin(self) -> None:
        """Show what comes, until nobody holds the other end any more."""
        os.close(self.theirs)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                self.seen += os.read(self._ours, 65536)
            except OSError:
                return

    def end(self) -> None:
        self._thread.join()
        os.close(self._ours)


@pytest.mark.timeout(300)
@pytest.mark.long
def test_what_new_makes_shows_results_and_is_stopped_by_sigterm(
    tmp_path: Path, local_dir: Path, strandline: Command
) -> None:
    """As it is pasted: in its own directory, on a terminal. The line that lives stands below the rows."""
    home = tmp_path / "visits"
    assert strandline("new", home).code == 0
    below = local_dir / "t"
    below.mkdir()
    terminal = Terminal()
    # Pseudo-terminals have no size of their own.
    given = environment(TERM="xterm-256color", COLUMNS="120", TMPDIR=str(below))
    command = [sys.executable, "-m", "strandline.cli.main", "run", "app.py"]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    with subprocess.Popen(command, cwd=home, env=given, **streams) as driver:
        terminal.begin()
        try:
            eventually(lambda: b"user='user-" in terminal.seen or driver.poll() is not None, "rows are shown")
            assert driver.poll() is None, terminal.seen.decode()
            (root,) = below.glob("strandline-*")
            here = ("visits", "--local-dir", root, "--json")
            # While it runs, it answers. Rows are printed before their epoch has ended.
            eventually(lambda: strandline("status", *here).json[0]["rows_in"], "an epoch with rows")
            (found,) = strandline("jobs", "--local-dir", root, "--json").json
            assert (found["job"], found["state"], found["pid"]) == ("visits", "running", driver.pid)
            assert found["directory"] == (home / "checkpoints").as_uri()
            (status,) = strandline("status", *here).json
            assert status["keepers"][0]["uid"] == "visits"
            assert keepers(root)
            (taken,) = strandline("checkpoint", *here).json
            assert taken["status"] == "completed"
            assert taken["epoch"] >= found["epoch"] > 0
            told = re.compile(rb"/s \xc2\xb7 checkpoint (\d+)")
            eventually(
                lambda: any(int(number) >= taken["checkpoint"] for number in told.findall(terminal.seen)),
                "the line that lives knows of it",
            )
            driver.terminate()
            assert driver.wait(90) == 143, terminal.seen.decode()
        finally:
            driver.kill()
            driver.wait()
            terminal.end()
    assert keepers(root) == {}
    check_what_it_said(terminal.seen, home)
    check_what_it_left(strandline, driver.pid, root, home / "checkpoints")
    # What its sink shows is what the checkpoints hold: of each user, every fifth visit.
    shown = [row["visits"] for row in read_json(home / "out") if row["user"] == "user-1"]
    assert shown == list(range(5, 5 * len(shown) + 1, 5))


@pytest.mark.timeout(300)
@pytest.mark.long
def test_ctrl_c_while_a_job_is_run_takes_a_last_checkpoint(
    tmp_path: Path, local_dir: Path, strandline: Command
) -> None:
    """As a terminal sends it: to the program, to Spark's JVM, and to all their processes that did not leave the group."""
    home = tmp_path / "visits"
    assert strandline("new", home).code == 0
    app = home / "app.py"
    app.write_text(app.read_text().replace(".start(spark).await_termination()", ".run(spark)"))
    command = [sys.executable, "-m", "strandline.cli.main", "run", "app.py"]
    with subprocess.Popen(
        command, cwd=home, env=environment(TMPDIR=str(local_dir)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as driver:  # fmt: skip
        assert driver.stdout is not None
        try:
            seen = []
            for line in driver.stdout:
                seen.append(line)
                if line.startswith("  user='user-"):
                    break
            os.killpg(driver.pid, signal.SIGINT)
            seen += driver.stdout.readlines()
            assert driver.wait(90) == 130, seen
        finally:
            driver.kill()
    told = [line for line in seen if line.startswith("strandline: ")]
    assert "strandline: job 'visits' takes a last checkpoint and stops; a second interrupt stops it at once\n" in told
    assert "which has everything when the same command starts it" in told[-1], told
    assert "Traceback" not in "".join(seen)
    (root,) = local_dir.glob("strandline-*")
    assert keepers(root) == {}


def check_what_it_said(seen: bytes, home: Path) -> None:
    """Whatever it tells, it tells once."""
    shown = screen(seen)
    assert shown[0] == "strandline: starting Spark"
    assert any(line.startswith("epoch ") and line.endswith(" rows") for line in shown)
    assert any(line.startswith("  user='user-") for line in shown)
    assert b"visits\x1b[0m  \x1b[32mrunning" in seen
    assert "Traceback" not in seen.decode()
    told = [line for line in shown if line.startswith("strandline: ")]
    where = (home / "checkpoints").as_uri()
    assert f"strandline: job 'visits' is starting: its checkpoints are in {where}" in told
    assert told.count(f"strandline: job 'visits' starts afresh in {where}/visits") == 1
    assert any(
        line.startswith("strandline: job 'visits': epoch ") and "is the first to be done" in line for line in told
    )
    assert told.count("strandline: stopping job 'visits'") == 1
    assert told[-1].startswith("strandline: job 'visits' goes on from checkpoint ")
    assert len(told) == len(set(told))


def check_what_it_left(strandline: Command, pid: int, root: Path, checkpoints: Path) -> None:
    """What it did and what became of it outlives it."""
    assert strandline("stop", "visits", "--local-dir", root).code == 1
    after = strandline("status", "visits", "--local-dir", root)
    assert (after.code, after.stdout) == (1, "")
    assert f"error: job 'visits' does not run here: its driver (process {pid}, since" in after.stderr
    assert "has been stopped at" in after.stderr
    logged = strandline("logs", "visits", "--driver", "-n", 100, "--local-dir", root).stdout
    assert "checkpoint 1 is complete" in logged
    ended, goes_on = logged.splitlines()[-2:]
    assert "job 'visits' has ended after epoch" in ended
    (newest, *_) = strandline("snapshots", "list", checkpoints, "--json").json
    assert f"job 'visits' goes on from checkpoint {newest['checkpoint']} in {checkpoints.as_uri()}/visits, " in goes_on
    assert goes_on.endswith(" when the same command starts it")
    assert "the job was stopped" in strandline("logs", "visits", "--local-dir", root, "-n", 1).stdout
    (checkpoint, *_) = strandline("snapshots", "list", checkpoints, "--json").json
    assert (checkpoint["job"], checkpoint["state"]) == ("visits", "complete")
    (shown,) = strandline("snapshots", "show", checkpoints, "--json").json
    assert [state["name"] for state in shown["operators"][0]["states"]] == ["count", "pages"]
    assert shown["source"]["total_bytes"] > 0
    assert strandline("snapshots", "verify", checkpoints, "--all").code == 0
