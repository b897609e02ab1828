from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.cli.logs import read_new_lines, tail
from strandline.control.events import EventLog, StateChange
from strandline.core.clock import SystemClock
from strandline.core.ids import Partition
from strandline.keeper.paths import Places
from tests.cli.conftest import Command, environment


@pytest.fixture
def local_dir(tmp_path: Path) -> Path:
    """What two jobs' keepers have written."""
    for job, operator, partitions in (("alerts", "detect/é", 2), ("alerts", "per-kind", 1), ("other", "detect", 1)):
        places = Places(tmp_path, "file:///ck", job)
        places.make()
        for n in range(partitions):
            lines = [f"{job} {operator} {n} line {i}\n" for i in range(30)]
            places.log(operator, Partition(n)).write_text("".join(lines))
    return tmp_path


def test_one_log_is_shown_as_it_is(strandline: Command, local_dir: Path) -> None:
    found = strandline("logs", "other", "--local-dir", local_dir, "-n", 2)
    assert found.stdout.splitlines() == ["other detect 0 line 28", "other detect 0 line 29"]


def test_several_logs_are_told_apart(strandline: Command, local_dir: Path) -> None:
    found = strandline("logs", "alerts", "--local-dir", local_dir, "-n", 1)
    assert found.stdout.splitlines() == [
        "detect__-m3lvb2fr[0] alerts detect/é 0 line 29",
        "detect__-m3lvb2fr[1] alerts detect/é 1 line 29",
        "per-kind[0] alerts per-kind 0 line 29",
    ]
    assert "other/detect[0] other detect 0 line 29" in strandline("logs", "--local-dir", local_dir).stdout


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--operator", "detect/é"], [("detect__-m3lvb2fr", 0), ("detect__-m3lvb2fr", 1)]),
        (["--partition", "1"], [("detect__-m3lvb2fr", 1)]),
        (["--operator", "per-kind", "--partition", "0"], [("per-kind", 0)]),
    ],
)
def test_logs_of_an_operator_and_a_partition(
    strandline: Command, local_dir: Path, given: list[str], wanted: list[tuple[str, int]]
) -> None:
    found = strandline("logs", "alerts", "--local-dir", local_dir, "-n", 1, "--json", *given)
    assert [(line["operator"], line["partition"]) for line in found.json] == wanted
    for line in found.json:
        assert line.keys() == {"file", "operator", "partition", "line"}
        assert Path(line["file"]).read_text().endswith(line["line"] + "\n")


def test_no_logs_names_where_and_what_there_is(strandline: Command, local_dir: Path, tmp_path: Path) -> None:
    found = strandline("logs", "alerts", "--local-dir", local_dir, "--operator", "nope", "--json")
    assert (found.code, found.stdout) == (1, "")
    assert "operator nope" in found.stderr
    assert "alerts (operator per-kind)" in found.stderr
    found = strandline("logs", "--local-dir", tmp_path / "nowhere")
    assert found.code == 1
    assert "--local-dir" in found.stderr


def test_tail_reads_as_much_as_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [f"line {i} " + "x" * (i % 500) for i in range(3000)]
    path.write_text("\n".join(lines))
    for wanted in (0, 1, 7, 1000, 3000, 5000):
        assert tail(path, wanted) == (lines[-wanted:] if wanted else [], path.stat().st_size)
    ended, at = tail(path, 2, whole=True)
    assert ended == lines[-3:-1]
    with path.open("a") as file:
        file.write(" and more\nhalf")
    assert read_new_lines(path, at)[0] == [lines[-1] + " and more"]


def test_a_log_that_is_deleted_after_it_was_found_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "log", 5) == ([], 0)
    assert tail(tmp_path / "log", 5, whole=True) == ([], 0)


def test_reading_on_after_a_file_was_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a long first line\nsecond\n")
    _, at = tail(path, 5, whole=True)
    assert read_new_lines(path, at) == ([], at)
    path.write_text("new\n")
    assert read_new_lines(path, at) == (["new"], 4)
    path.unlink()
    assert read_new_lines(path, 4) == ([], 0)


def test_following_shows_new_lines_and_new_logs_until_interrupted(local_dir: Path) -> None:
    places = Places(local_dir, "file:///ck", "other")
    command = [
        sys.executable,
        "-m",
        "strandline.cli.main",
        "logs",
        "other",
        "--local-dir",
        str(local_dir),
        "-f",
        "-n",
        "1",
    ]
    with subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), bufsize=0
    ) as follower:
        assert follower.stdout is not None

        def next_line() -> tuple[int, str]:
            assert select.select([follower.stdout], [], [], 60)[0], "nothing more was shown"
            shown = json.loads(follower.stdout.readline())
            return shown["partition"], shown["line"]

        assert next_line() == (0, "other detect 0 line 29")
        with places.log("detect", Partition(0)).open("a") as log:
            log.write("restarted\n")
        assert next_line() == (0, "restarted")
        places.log("detect", Partition(1)).write_text("born\n")
        assert next_line() == (1, "born")
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) == 0
        assert follower.stderr.read() == b""


def test_events_are_shown_as_the_json_that_they_are(strandline: Command, tmp_path: Path) -> None:
    for job in ("alerts", "other"):
        places = Places(tmp_path, "file:///ck", job)
        places.make()
        log = EventLog(places.event_log, job, "file:///ck", SystemClock())
        for state in ("starting", "running", "stopped"):
            log.write(StateChange(state=state))
    found = strandline("logs", "alerts", "--events", "-n", 2, "--local-dir", tmp_path)
    assert [(line["job"], line["event"], line["state"]) for line in found.json] == [
        ("alerts", "state", "running"), ("alerts", "state", "stopped"),
    ]  # fmt: skip
    assert len(strandline("logs", "--events", "--local-dir", tmp_path).json) == 6
    assert strandline("logs", "gone", "--events", "--local-dir", tmp_path).code == 1
    wrong = strandline("logs", "alerts", "--events", "--operator", "detect", "--local-dir", tmp_path)
    assert (wrong.code, "exclude each other" in wrong.stderr) == (2, True)
