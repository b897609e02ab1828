"""`strandline run` with real Spark: a job is stopped by a signal; a function that raises ends it with a message."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command, environment
from tests.cli.terminal import screen
from tests.spark.harness import eventually

pytestmark = pytest.mark.spark

PROCESS = """
import strandline as sl

class Count(sl.KeyedProcess):
    seen = sl.Value("bigint", default=0)

    def on_event(self, event, ctx):
        if event.v < 0:
            raise ValueError("a negative payment")
        self.seen.value += 1
        yield (ctx.key, self.seen.value)
"""

APP = """
import sys
from pathlib import Path

import strandline as sl
from counting import Count  # beside this program: keepers must find it, too

base = Path(sys.argv[1])
spark = sl.session("app", "local[1,4]", **{"spark.driver.memory": "512m"})
source = spark.readStream.schema("user string, v bigint").json(str(base / "in"))
counts = sl.stream(source).key_by("user").process(Count(), output="user string, n bigint", uid="count")
job = sl.Job(
    "counts",
    sinks=[counts.to(sl.sinks.files(str(base / "out"), format="json"))],
    checkpoints=sl.Checkpoints(base / "ck", every="200ms"),
    settings=sl.Settings(parallelism=1, local_dir=base / "l", state_memory="64MB"),
)
job.start(spark).await_termination()
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "counting.py").write_text(PROCESS)
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    add(tmp_path, "a", [("ann", 1), ("bob", 1), ("ann", 1)])
    return tmp_path


def add(base: Path, name: str, events: list[tuple[str, int]]) -> None:
    (base / "in").mkdir(exist_ok=True)
    hidden = base / "in" / f".{name}"
    hidden.write_text("".join(json.dumps({"user": user, "v": v}) + "\n" for user, v in events))
    hidden.rename(base / "in" / f"{name}.json")


def start(base: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "strandline.cli.main", "run", str(base / "app.py"), *options, str(base)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip


def visible(base: Path) -> list[tuple[str, int]]:
    rows = [json.loads(line) for file in (base / "out").glob("[!._]*") for line in file.read_text().splitlines()]
    return sorted((row["user"], row["n"]) for row in rows)


def keepers_of(base: Path) -> list[str]:
    """Command lines of living keepers that work below a directory."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if "strandline.keeper.process" in words and str(base) in words:
            found.append(words)
    return found


def wait_until_visible(base: Path, driver: subprocess.Popen[str], rows: list[tuple[str, int]]) -> None:
    deadline = time.monotonic() + 120
    while visible(base) != rows:
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < deadline, visible(base)
        time.sleep(0.1)


def test_a_job_is_stopped_by_sigterm_and_goes_on_with_the_same_command(base: Path, strandline: Command) -> None:
    rows = [("ann", 1), ("ann", 2), ("bob", 1)]
    driver = start(base)
    wait_until_visible(base, driver, rows)
    assert keepers_of(base)
    # While it runs, it answers.
    (found,) = strandline("jobs", "--local-dir", base / "l", "--json").json
    assert (found["job"], found["state"], found["pid"]) == ("counts", "running", driver.pid)
    assert found["directory"] == (base / "ck").as_uri()
    (status,) = strandline("status", "counts", "--local-dir", base / "l", "--json").json
    assert (status["rows_in"], status["keepers"][0]["uid"]) == (3, "count")
    assert [(one["files_behind"], one["bytes_behind"]) for one in status["source_progress"]] == [(0, 0)]
    (taken,) = strandline("checkpoint", "counts", "--local-dir", base / "l", "--json").json
    assert (taken["status"], taken["epoch"]) == ("completed", status["epoch"])
    driver.terminate()
    _, said = driver.communicate(timeout=90)
    assert driver.returncode == 143, said
    assert "strandline: stopping job 'counts'\n" in said
    assert "Traceback" not in said
    assert keepers_of(base) == []
    assert strandline("stop", "counts", "--local-dir", base / "l").code == 1
    # It has said what it did, and what became of it outlives it.
    told = [line for line in said.splitlines() if line.startswith("strandline: ")]
    assert told[0] == "strandline: starting Spark"
    assert f"strandline: job 'counts' is starting: its checkpoints are in {(base / 'ck').as_uri()}" in told
    # Where it begins is said once, as everything.
    assert told.count(f"strandline: job 'counts' starts afresh in {(base / 'ck').as_uri()}/counts") == 1
    assert len(told) == len(set(told))
    assert any(line.startswith("strandline: job 'counts': epoch 1 is the first to be done, 3 rows in") for line in told)
    after = strandline("status", "counts", "--local-dir", base / "l")
    assert (after.code, after.stdout) == (1, "")
    assert f"error: job 'counts' does not run here: its driver (process {driver.pid}, since" in after.stderr
    assert "has been stopped at" in after.stderr
    logged = strandline("logs", "counts", "--driver", "-n", 100, "--local-dir", base / "l").stdout
    assert "checkpoint 1 is complete" in logged
    assert "job 'counts' has ended after epoch" in logged.splitlines()[-1]
    # What it left can be looked at.
    (checkpoint, *_) = strandline("checkpoints", "list", base / "ck", "--json").json
    assert (checkpoint["job"], checkpoint["state"]) == ("counts", "complete")
    (shown,) = strandline("checkpoints", "show", base / "ck", "latest", "--json").json
    assert shown["operators"][0]["states"][0]["name"] == "seen"
    assert shown["source"]["total_bytes"] > 0
    assert strandline("checkpoints", "verify", base / "ck", "--all").code == 0
    assert "the job was stopped" in strandline("logs", "counts", "--local-dir", base / "l", "-n", 1).stdout
    # From a copy of its checkpoint it goes on as well; an event that its function cannot take ends it with what a user
    # must know.
    (copied,) = strandline("snapshots", "copy", base / "ck/counts", base / "copy", "--native", "--json").json
    (base / "ck").rename(base / "gone")
    shutil.rmtree(base / "out")
    add(base, "b", [("ann", 1)])
    rows = []
    driver = start(base, "--restore", copied["url"])
    wait_until_visible(base, driver, sorted([*rows, ("ann", 3)]))
    add(base, "c", [("bob", -5)])
    _, said = driver.communicate(timeout=120)
    assert driver.returncode == 1
    assert "error: operator 'count'" in said
    assert "'bob'" in said
    assert "ValueError: a negative payment" in said
    assert "next step: " in said
    assert "runpy" not in said
    assert keepers_of(base) == []
    after = strandline("status", "counts", "--local-dir", base / "l", "--json")
    assert (after.code, after.json[0]["state"], after.json[0]["pid"]) == (1, "failed", driver.pid)
    # What an error says may be somebody's data: it is in the terminal alone.
    assert "on_event of Count raised ValueError" in after.json[0]["last_failure"]
    assert "counting.py, line 9" in after.json[0]["last_failure"]
    assert "counts" in strandline("jobs", "--local-dir", base / "l").stdout
    logged = strandline("logs", "--driver", "--local-dir", base / "l", "-n", 100).stdout
    assert "on_event of Count raised ValueError" in logged
    assert "a negative payment" not in logged + str(after.json)


def test_what_new_makes_shows_results_and_of_a_killed_driver_word_is_left(
    tmp_path: Path, local_dir: Path, strandline: Command
) -> None:
    """As it is pasted: in its own directory, on a terminal. The line that lives stands below the rows."""
    home = tmp_path / "visits"
    assert strandline("new", home).code == 0
    below = local_dir / "t"
    below.mkdir()
    ours, theirs = pty.openpty()
    # Pseudo-terminals have no size of their own.
    given = environment(TERM="xterm-256color", COLUMNS="120", TMPDIR=str(below))
    command = [sys.executable, "-m", "strandline.cli.main", "run", "app.py"]
    with subprocess.Popen(command, cwd=home, stdout=theirs, stderr=theirs, stdin=theirs, env=given) as driver:
        os.close(theirs)
        seen, deadline = b"", time.monotonic() + 120
        try:
            while b"user='user-" not in seen or b"/s \xc2\xb7 checkpoint " not in seen:
                assert time.monotonic() < deadline, seen.decode()
                if select.select([ours], [], [], 1.0)[0]:
                    seen += os.read(ours, 65536)
            (root,) = below.glob("strandline-*")

            def rows() -> int:
                (status,) = strandline("status", "visits", "--local-dir", root, "--json").json
                return int(status["rows_in"])

            # They are printed before their epoch has ended.
            assert eventually(rows, "an epoch with rows") > 0
        finally:
            driver.kill()
            driver.wait()
            os.close(ours)
    shown = screen(seen)
    assert shown[0] == "strandline: starting Spark"
    assert any(line.startswith("epoch ") and line.endswith(" rows") for line in shown)
    assert any(line.startswith("  user='user-") for line in shown)
    assert b"visits\x1b[0m  \x1b[32mrunning" in seen
    assert "Traceback" not in seen.decode()
    after = strandline("status", "visits", "--local-dir", root, "--json")
    assert (after.code, after.json[0]["state"], after.json[0]["ended_ms"]) == (1, "killed", None)
    assert f"its driver (process {driver.pid}, since " in after.stderr
    assert "is gone without a word: killed" in after.stderr
    eventually(lambda: not keepers_of(root), "its keepers are gone, too")
