"""What `strandline run` shows of its jobs: on a terminal, elsewhere, and when it is to be quiet."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from strandline.cli import liveline
from strandline.cli.liveline import status_line
from strandline.control.summary import progress_text
from tests.cli.conftest import Command
from tests.cli.terminal import on_terminal, screen
from tests.control.fake import FakeRun

PROGRAM = """
import logging, sys, time, types

from strandline.cli import liveline
from strandline.control.announcements import tell
from tests.control.fake import FakeRun

run = FakeRun("alerts")
made = types.ModuleType("strandline.spark.job.run")
# It is being imported.
sys.modules["strandline.spark.job.run"] = made
tell("starting Spark")
time.sleep(0.8)
made.live_runs = lambda: [run]
tell("job 'alerts' runs")
time.sleep(0.8)
logging.getLogger("strandline.spark").warning("look\\n  at that")
print("a row", flush=True)
print("half a ", end="", flush=True)
time.sleep(0.8)
print("line")
run.state = "restarting"
time.sleep(0.8)
tell("checkpoint 8 is complete", detail=True)
del sys.modules["strandline.spark.job.run"]
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.long
def test_on_a_terminal_the_last_line_lives(program: Path) -> None:
    code, _, seen = on_terminal("run", program, whole=True)
    assert code == 0, seen.decode()
    told = ["strandline: starting Spark", "strandline: job 'alerts' runs", "strandline: WARNING: look"]
    # What was written is there, whole and in order, and nothing else.
    assert screen(seen) == [*told, "a row", "half a line"]
    states = [screen(seen[:at])[-1] for at in range(len(seen)) if seen[at - 1 : at] == b"\n" and screen(seen[:at])]
    lived = list(dict.fromkeys(line for line in states if line.startswith(("alerts  ", "starting Spark · "))))
    assert lived[0].startswith("starting Spark · ")
    assert any(line.startswith("alerts  running  epoch 12 · 1,000 rows, 2.5/s · checkpoint 7, ") for line in lived)
    assert any(line.startswith("alerts  restarting  ") for line in lived)
    # While somebody's line is not ended, it is let alone.
    half = seen.index(b"half a ")
    assert seen[half:].startswith(b"half a line")


def test_what_is_printed_elsewhere_is_let_alone(program: Path) -> None:
    code, printed, seen = on_terminal("run", program)
    assert (code, printed) == (0, "a row\nhalf a line\n")
    assert screen(seen)[-1] == "strandline: WARNING: look"
    assert b"alerts" in seen


@pytest.mark.parametrize("width", [20, 60])
@pytest.mark.long
def test_no_line_is_wider_than_the_terminal(program: Path, width: int) -> None:
    _, _, seen = on_terminal("run", program, COLUMNS=str(width), NO_COLOR="1")
    plain = re.sub(r"\x1b\[[\d;]*m", "", seen.decode())
    painted = [line for line in re.split(r"\r|\n|\x1b\[J", plain) if line.startswith("alerts  r")]
    assert painted
    assert max(map(len, painted)) == width - 1


@pytest.mark.parametrize("quietly", ["-q", "--quiet"])
@pytest.mark.long
def test_quietly_only_warnings_are_said(program: Path, process: Command, quietly: str) -> None:
    found = process("run", quietly, program)
    assert (found.code, found.stdout, found.stderr) == (0, "a row\nhalf a line\n", "strandline: WARNING: look\n")


@pytest.mark.long
def test_without_a_terminal_there_are_lines(program: Path, process: Command, tmp_path: Path) -> None:
    found = process("run", program)
    told = ["strandline: starting Spark", "strandline: job 'alerts' runs", "strandline: WARNING: look"]
    assert (found.code, found.stderr.splitlines()) == (0, told)
    # A dumb terminal is none.
    code, _, seen = on_terminal("run", program, TERM="dumb")
    assert (code, seen.decode().splitlines()) == (0, told)


def test_now_and_then_a_line_says_how_far_it_is_unless_nothing_has_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = replace(FakeRun().status(), epochs=3)
    monkeypatch.setattr(liveline, "_POLL_S", 0.01)
    monkeypatch.setattr(liveline, "_FIRST_S", 0.05)
    monkeypatch.setattr(liveline, "_EVERY_S", 0.05)
    monkeypatch.setattr(liveline, "_statuses", lambda: [status])
    with liveline.showing_progress(quiet=False):
        time.sleep(0.5)
        status = replace(status, epoch=13)
        time.sleep(0.5)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("strandline: job 'alerts' is running: epoch 12 · 1,000 rows, 2.5/s · checkpoint 7, ")
    assert "epoch 13" in second


def test_what_a_job_does_in_a_line() -> None:
    now = datetime.now(UTC)
    status = FakeRun().status()
    assert status.last_checkpoint is not None
    taken = replace(status.last_checkpoint, triggered_ms=round(now.timestamp() * 1000) - 61_000)
    status = replace(status, last_checkpoint=taken, restarts=0)
    assert progress_text(status) == ("job 'alerts' is running: epoch 12 · 1,000 rows, 2.5/s · checkpoint 7, 61 s old")
    # Nothing has happened since: it is as good as new, however old it is.
    idle = replace(status, uncovered_ms=0, rows_per_s=0.0)
    assert progress_text(idle).endswith("1,000 rows, 0/s · checkpoint 7 has everything")
    new = replace(status, last_checkpoint=None, epoch=0, rows_in=0, rows_per_s=12345.6)
    assert progress_text(new).endswith("epoch 0 · 0 rows, 12,346/s · no checkpoint yet")
    timed = replace(status, watermark=(now - timedelta(seconds=9)).isoformat(), restarts=1, state="restarting")
    assert " s behind · checkpoint 7, " in progress_text(timed)
    assert progress_text(timed).endswith("· 1 restart")
    # Of a stream of last year nobody wants to know how far behind the clock it is.
    old = replace(status, watermark="2020-01-01T00:00:00+00:00", restarts=2)
    assert "watermark 2020-01-01T00:00:00Z · " in progress_text(old)
    assert progress_text(old).endswith("2 restarts")
    assert status_line(old).plain.startswith("alerts  running  epoch 12")
