"""`strandline jobs`, `status`, `checkpoint`, `stop` and `lookup`, beside drivers whose runs are fakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from strandline.cli.output import iso_text
from strandline.cli.progress import _amount
from strandline.control import journal, server
from strandline.control.wire import ProgressMessage
from strandline.core.texts import time_text
from strandline.keeper.paths import Places
from tests.cli.conftest import Command, environment
from tests.cli.terminal import check_width, on_terminal
from tests.control.fake import FakeRun
from tests.control.serving import Serve


def test_jobs_are_listed_with_what_they_do(serve: Serve, local_dir: Path, strandline: Command) -> None:
    serve(FakeRun("alerts"), "file:///ck/a", since_ms=1_700_000_000_000)
    serve(FakeRun("payments", state="restarting"), "s3://bucket/b")
    found = strandline("jobs", "--local-dir", local_dir)
    assert (found.code, found.stderr) == (0, "")
    first, second = [line.split() for line in found.stdout.splitlines() if str(os.getpid()) in line]
    assert [first[0], first[1], first[-3], first[-1]] == ["alerts", "running", "12", "file:///ck/a"]
    assert [second[0], second[1], second[-1]] == ["payments", "restarting", "s3://bucket/b"]
    data = strandline("jobs", "--local-dir", local_dir, "--json").json
    assert [(one["job"], one["state"], one["pid"], one["epoch"], one["directory"]) for one in data] == [
        ("alerts", "running", os.getpid(), 12, "file:///ck/a"),
        ("payments", "restarting", os.getpid(), 12, "s3://bucket/b"),
    ]
    assert data[0]["since_ms"] == 1_700_000_000_000


def test_a_driver_of_another_version_is_listed(
    serve: Serve, local_dir: Path, strandline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with monkeypatch.context() as at_start:
        at_start.setattr(server, "VERSION", "9.8.7")
        serve(FakeRun())
    assert "of Strandline 9.8.7" in strandline("jobs", "--local-dir", local_dir).stdout
    (data,) = strandline("jobs", "--local-dir", local_dir, "--json").json
    assert (data["job"], data["engine"], data["state"]) == ("alerts", "9.8.7", None)
    refused = strandline("status", "alerts", "--local-dir", local_dir)
    assert refused.code == 1
    assert "the job's driver is Strandline 9.8.7" in refused.stderr


def test_keys_are_looked_up_and_shown_as_json(serve: Serve, local_dir: Path, strandline: Command) -> None:
    serve(FakeRun())
    asked = ("lookup", "alerts", "detect.last", '["ann", 7]', '{"card": "bob", "n": 1}', "--local-dir", local_dir)
    found = strandline(*asked)
    assert (found.code, found.stderr) == (0, "as of epoch 12\n")
    value = {"at": "2026-01-01T00:00:00+00:00", "sum": "7.50"}
    first, second = [line.strip() for line in found.stdout.splitlines() if "ann" in line or "bob" in line]
    assert first.split(maxsplit=2) == ['["ann",', "7]", json.dumps(value)]
    assert second.split() == ['{"card":', '"bob",', '"n":', "1}", "-"]
    assert [(one["epoch"], one["key"], one["value"]) for one in strandline(*asked, "--json").json] == [
        (12, '["ann", 7]', value),
        (12, '{"card": "bob", "n": 1}', None),
    ]
    listed = strandline("lookup", "alerts", "detect.last", "--local-dir", local_dir)
    assert (listed.code, listed.stderr) == (0, "as of epoch 12\n")
    assert [line.strip().split(maxsplit=2) for line in listed.stdout.splitlines() if "ann" in line] == [
        ["ann", "7", json.dumps(value)]
    ]
    assert strandline("lookup", "alerts", "detect.last", "--json", "--local-dir", local_dir).json == [
        {"table": "detect.last", "epoch": 12, "key": ["ann", 7], "value": value}
    ]
    refused = strandline("lookup", "alerts", "detect.last", "--partition", "2", "--local-dir", local_dir)
    assert refused.stderr.startswith("error: operator 'detect' has no partition 2\n  next step: it has 0 to 1")
    for keys, said in {
        ("detect.first", "x"): "error: there is no table 'detect.first' in this job",
        ("detect.last", "ann"): "error: table 'detect.last': a key is not (card string, n bigint): expected a struct",
        ("detect.last", '["ann"]'): "error: table 'detect.last': a key is not (card string, n bigint): ",
    }.items():
        refused = strandline("lookup", "alerts", *keys, "--local-dir", local_dir)
        assert (refused.code, refused.stdout) == (1, "")
        assert refused.stderr.startswith(said), refused.stderr


def test_a_profile_is_shown_by_operator_and_function(
    serve: Serve, local_dir: Path, strandline: Command, tmp_path: Path
) -> None:
    run = FakeRun()
    serve(run)
    asked = ("profile", "alerts", "--local-dir", local_dir, "--seconds", 2)
    shown = strandline(*asked)
    assert run.asked == [("profile", 2.0)]
    assert shown.stderr.splitlines() == [
        "detect: at work 25% of the time (100% of it in the program's functions), waiting for rows 20%, idle 55%",
        "top: at work 50% of the time (0% of it in the program's functions), waiting for rows 0%, idle 50%",
    ]
    rows = [line.split() for line in shown.stdout.splitlines() if "app." in line]
    assert rows == [
        ["app.score", "75%", "75%"], ["app.on_event", "25%", "100%"], ["app.rank", "100%", "100%"],
        ["app.on_event", "0%", "100%"],
    ]  # fmt: skip
    (only,) = strandline(*asked, "--operator", "top", "--json").json
    assert only["functions"][0] == {"function": "app.rank", "itself": 100, "total": 100}
    folded, speedscope = tmp_path / "a.folded", tmp_path / "a.json"
    assert strandline(*asked, "--output", folded).stdout == ""
    assert "top;app.on_event;app.rank 100\n" in folded.read_text()
    strandline(*asked, "--output", speedscope)
    assert [each["name"] for each in json.loads(speedscope.read_text())["profiles"]] == ["detect", "top"]
    for more, said in {
        ("--operator", "tap"): "error: job 'fraud' has no operator 'tap'\n  next step: its operators are detect, top\n",
        ("--output", "a.svg"): "error: --output a.svg: expected a file's name that ends in .folded or .json\n",
    }.items():
        refused = strandline(*asked, *more)
        assert (refused.code, refused.stdout, refused.stderr) == (1, "", said)


def test_without_a_driver_commands_say_so(local_dir: Path, strandline: Command) -> None:
    none = strandline("jobs", "--local-dir", local_dir)
    assert (none.code, none.stdout) == (0, "")
    assert none.stderr == f"no job runs on this machine with the local_dir {local_dir}\n"
    for command in ("status", "checkpoint", "stop"):
        found = strandline(command, "alerts", "--local-dir", local_dir, "--json")
        assert (found.code, found.stdout) == (1, "")
        first, second = found.stderr.splitlines()
        assert first == f"error: {local_dir}: no driver of job 'alerts' runs on this machine"
        assert second.startswith("  next step: ")


def test_status_shows_what_the_program_would_see(serve: Serve, local_dir: Path, strandline: Command) -> None:
    serve(FakeRun())
    (data,) = strandline("status", "alerts", "--local-dir", local_dir, "--json").json
    assert (data["state"], data["epoch"], data["pid"], data["directory"]) == ("running", 12, os.getpid(), "file:///ck")
    assert data["last_checkpoint"]["checkpoint"] == 7
    assert data["keepers"][0]["metrics"] == {"keys": 9}
    assert [(one["host"], one["checkpoint"], one["cpu_ms"]) for one in data["standbys"]] == [
        ("there", 7, 12.5),
        ("", None, 0),
    ]
    shown = strandline("status", "alerts", "--local-dir", local_dir).stdout
    assert data["operators"][1] == {
        "uid": "top",
        "name": "Top",
        "parallelism": 1,
        "max_parallelism": 128,
        "heaviest_keys": [],
    }
    for words in (
        "running", "checkpoint 5", "2 completed", "2 (top 1), follows the executors", "detect", "4711",
        f"{time_text(1_700_000_000_000)}: it broke", "1,000 in its life; now 2.5/s", "for 3 s",
        "3.0 MB, in keepers of 64.0 MB of memory", "90 %", "2 files, 2.0 KB, for 5 s", "4 offsets",
        "waits 1.2 s, epoch 480 ms, durable 95 ms, published 22 ms",
        "2.0 s old when visible; sink 'alerts' took 130 ms", "no second host", "there", "6.0 MB",
    ):  # fmt: skip
        assert words in shown, words
    assert "badly" not in shown
    assert data["last_failure_at"] == iso_text(1_700_000_000_000)
    assert data["last_failure_ms"] == 1_700_000_000_000
    assert [one["offsets_behind"] for one in data["source_progress"]] == [None, 4]


def left(local_dir: Path, job: str, **given: object) -> journal.JournalEntry:
    """Leave word of a job whose driver is gone."""
    places = Places(local_dir, f"file:///ck/{job}", job)
    places.make()
    record = journal.JournalEntry(**{  # type: ignore[arg-type]
        "job": job, "directory": places.store_url, "pid": os.getpid(), "born": "0", "since_ms": 1_700_000_000_000,
        "state": "running", "at_ms": 1_700_000_060_000, **given,
    })  # fmt: skip
    journal.write(places, record)
    return record


def test_jobs_that_failed_or_were_killed_are_listed(serve: Serve, local_dir: Path, strandline: Command) -> None:
    left(local_dir, "died")
    left(local_dir, "broke", state="failed", failure="no more room\n  next step: make some", failure_ms=1)
    left(local_dir, "done", state="finished")
    serve(FakeRun("alerts"), "file:///ck/alerts")
    # One that was started again is what it is now.
    left(local_dir, "alerts", state="failed")
    found = strandline("jobs", "--local-dir", local_dir)
    assert found.code == 0
    rows = {line.split()[0]: line.split()[1] for line in found.stdout.splitlines() if "file:///" in line}
    assert rows == {"alerts": "running", "died": "killed", "broke": "failed"}
    assert "strandline logs JOB --driver" in found.stderr
    data = strandline("jobs", "--all", "--local-dir", local_dir, "--json").json
    assert {one["job"]: one["state"] for one in data} == {**rows, "done": "finished"}
    assert next(one for one in data if one["job"] == "broke")["last_failure"].startswith("no more room")


def test_a_job_that_ended_has_a_status_of_its_end(local_dir: Path, strandline: Command) -> None:
    left(local_dir, "died", state="restarting")
    left(local_dir, "broke", state="failed", failure="no more room\n  next step: make some")
    found = strandline("status", "died", "--local-dir", local_dir)
    assert (found.code, found.stdout) == (1, "")
    assert "gone without a word while it was restarting: killed" in found.stderr
    assert "strandline logs died --driver" in found.stderr
    found = strandline("status", "broke", "--local-dir", local_dir, "--json")
    assert (found.code, found.json[0]["state"]) == (1, "failed")
    assert f"has failed at {time_text(1_700_000_060_000)}: no more room" in found.stderr
    assert found.json[0]["ended_at"] == iso_text(1_700_000_060_000)
    # Whatever else is asked for, one is told where to look.
    found = strandline("checkpoint", "broke", "--local-dir", local_dir)
    assert "next step: what became of it: `strandline status broke`; give the job's Settings.local_dir" in found.stderr
    # Of another directory nothing is known.
    other = strandline("status", "broke", "--local-dir", local_dir, "--directory", "/elsewhere")
    assert "no driver of job 'broke' with the checkpoint directory" in other.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_jobs(
    serve: Serve, local_dir: Path, tmp_path: Path, process: Command, shell: str
) -> None:
    serve(FakeRun("alerts"))
    serve(FakeRun("payments"))

    def complete(*words: str) -> str:
        line = " ".join(["strandline", *words])
        # As the scripts of the shells ask.
        asked = {
            "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words))},
            "zsh": {"_TYPER_COMPLETE_ARGS": line},
            "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }[shell]
        found = process(_STRANDLINE_COMPLETE=f"complete_{shell}", TMPDIR=str(tmp_path), **asked)
        assert found.code == 0
        return found.stdout

    offered = complete("sta")
    assert "status" in offered
    assert "doctor" not in offered
    found = complete("status", "--local-dir", str(local_dir), "pay")
    assert "payments" in found
    assert "alerts" not in found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_its_script(process: Command, shell: str) -> None:
    found = process(_STRANDLINE_COMPLETE=f"source_{shell}")
    assert (found.code, found.stderr) == (0, "")
    assert f"_STRANDLINE_COMPLETE=complete_{shell}" in found.stdout


def test_bash_offers_what_it_is_given(process: Command) -> None:
    script = process(_STRANDLINE_COMPLETE="source_bash").stdout
    command = Path(sys.executable).with_name("strandline")
    asked = f"COMP_WORDS=(strandline chec); COMP_CWORD=1; _strandline_completion {command}; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["check-upgrade", "checkpoint"]


def test_two_jobs_of_one_name_need_a_directory(
    serve: Serve, local_dir: Path, tmp_path: Path, strandline: Command
) -> None:
    serve(FakeRun(), "file:///ck/a")
    serve(FakeRun(state="restarting"), "file:///ck/b")
    (tmp_path / "link").symlink_to("/ck/b")
    found = strandline("status", "alerts", "--local-dir", local_dir)
    assert found.code == 1
    assert "next step: say which one with --directory" in found.stderr
    for spelling in ("/ck/b", "/ck/a/../b", "file:///ck/b/", tmp_path / "link"):
        (data,) = strandline("status", "alerts", "--local-dir", local_dir, "--directory", spelling, "--json").json
        assert data["state"] == "restarting"


def test_a_checkpoint_is_taken(serve: Serve, local_dir: Path, strandline: Command) -> None:
    run = FakeRun()
    serve(run)
    run.finish.set()
    found = strandline("checkpoint", "alerts", "--local-dir", local_dir, "--timeout", "5s")
    assert (found.code, found.stderr) == (0, "")
    assert found.stdout == "checkpoint 7 is complete: epoch 12, 2.0 KB, 0 B of them new, in 2.0 s\n"
    assert run.asked == [("checkpoint", 5.0)]
    (data,) = strandline("checkpoint", "alerts", "--local-dir", local_dir, "--json").json
    assert (data["checkpoint"], data["status"]) == (7, "completed")


def test_a_checkpoint_that_fails_is_exit_code_1(serve: Serve, local_dir: Path, strandline: Command) -> None:
    run = FakeRun()
    serve(run)
    run.stopped.set()
    found = strandline("checkpoint", "alerts", "--local-dir", local_dir)
    assert (found.code, found.stdout) == (1, "")
    assert found.stderr.startswith("error: the checkpoint that was asked for was not taken")


@pytest.mark.parametrize(("option", "last"), [((), False), (("--checkpoint",), True)])
def test_a_job_is_stopped(
    serve: Serve, local_dir: Path, strandline: Command, option: tuple[str, ...], last: bool
) -> None:  # fmt: skip
    run = FakeRun()
    control = serve(run)
    run.on_stop = control.end
    found = strandline("stop", "alerts", *option, "--local-dir", local_dir, "--timeout", "7s")
    assert (found.code, found.stdout, found.stderr) == (0, "job 'alerts' has ended: stopped\n", "")
    assert run.asked == [("stop", (last, 7.0))]
    assert strandline("stop", "alerts", "--local-dir", local_dir).code == 1


@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_into_the_terminal(serve: Serve, local_dir: Path, width: int) -> None:
    directory = "s3://a-bucket-of-the-company/streaming/production/checkpoints"
    serve(FakeRun("alerts"), directory, since_ms=1_700_000_000_000)
    lines = check_width(width, "jobs", "--local-dir", local_dir)
    assert any(line.endswith(directory) for line in lines) == (width == 160)
    assert any("rows" in line.split() for line in lines) == (width == 160)
    lines = check_width(width, "status", "alerts", "--local-dir", local_dir)
    (header,) = [line.split() for line in lines if line.startswith(" operator")]
    assert ("pid" in header, "memory" in header) == (width == 160, True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_no_longer_waits_takes_nothing_back(
    serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    monkeypatch.setattr(server, "_HEARTBEAT_S", 0.05)
    run = FakeRun()
    control = serve(run)
    command = [sys.executable, "-m", "strandline.cli.main", "checkpoint", "alerts", "--local-dir", str(local_dir)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as asking:
        assert run.began.wait(30)
        asking.send_signal(number)
        _, said = asking.communicate(timeout=30)
    assert asking.returncode == code
    assert said == "strandline: no longer waiting for 'checkpoint'; job 'alerts' goes on with it\n"
    assert control._workers
    run.finish.set()


def test_on_a_terminal_progress_is_shown(serve: Serve, local_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEARTBEAT_S", 0.05)
    run = FakeRun()
    serve(run)

    def finish() -> None:
        assert run.began.wait(60)
        time.sleep(2)
        run.finish.set()

    threading.Thread(target=finish).start()
    code, printed, seen = on_terminal("checkpoint", "alerts", "--local-dir", local_dir, "--json")
    assert (code, printed.startswith('{"checkpoint": 7, ')) == (0, True)
    assert b"checkpoint 7" in seen
    assert b"0 of 2 partitions" in seen


def test_progress_of_bytes_is_read_by_people() -> None:
    assert _amount(ProgressMessage("copying", 1 << 20, 3 << 20, "bytes")) == "1.0 MB of 3.0 MB"
    assert _amount(ProgressMessage("waiting")) == ""


def test_wrong_usage_is_exit_code_2(process: Command) -> None:
    for args in (["status"], ["stop", "a", "b"], ["jobs", "alerts"]):
        found = process(*args)
        assert (found.code, found.stdout) == (2, ""), args


def test_a_savepoint_is_taken(serve: Serve, local_dir: Path, strandline: Command, tmp_path: Path) -> None:
    run = FakeRun()
    serve(run)
    found = strandline("savepoint", "alerts", tmp_path / "a" / "../to", "--local-dir", local_dir, "--timeout", "5s")
    assert found.stdout.endswith("to is complete: checkpoint 7, epoch 12, 2.0 KB, in 1.5 s\n")
    (data,) = strandline("savepoint", "alerts", "s3://b/to", "--native", "--local-dir", local_dir, "--json").json
    assert (data["url"], data["form"]) == ("s3://b/to", "native")
    assert [what for what, _ in run.asked] == ["savepoint", "savepoint"]
    # A path is the one that is meant here, wherever the driver works.
    assert Path(run.asked[0][1][0]).is_absolute()  # type: ignore[index]
    assert run.asked[1] == ("savepoint", ("s3://b/to", "native", None))
    # An empty one is not the working directory: the driver refuses it.
    strandline("savepoint", "alerts", "", "--local-dir", local_dir)
    assert run.asked[2] == ("savepoint", ("", "canonical", None))


def test_a_job_is_rescaled(serve: Serve, local_dir: Path, strandline: Command) -> None:
    run = FakeRun()
    serve(run)
    found = strandline("rescale", "alerts", "4", "--local-dir", local_dir)
    assert found.stdout == "job 'alerts' goes on with parallelism 2 (top 1), from checkpoint 5\n"
    assert run.asked == [("rescale", (4, 300.0))]
    for wrong, said in (
        (["0"], "'0' is no parallelism"),
        (["4", "detect=2"], "'4' is no parallelism"),
        (["detect=x"], "'detect=x' is no"),
        (["=3"], "'=3' is no parallelism"),
        (["a=1", "a=2"], "the operator 'a' is given twice"),
    ):
        found = strandline("rescale", "alerts", *wrong, "--local-dir", local_dir)
        assert (found.code, said in found.stderr) == (2, True), found


def test_single_operators_are_rescaled(serve: Serve, local_dir: Path, strandline: Command) -> None:
    run = FakeRun()
    serve(run)
    found = strandline("rescale", "alerts", "detect=4", "a=b=2", "--local-dir", local_dir)
    assert found.stdout == "job 'alerts' goes on with parallelism 2 (top 1), from checkpoint 5\n"
    assert run.asked == [("rescale", ({"detect": 4, "a=b": 2}, 300.0))]


def test_a_job_is_stopped_with_a_savepoint(serve: Serve, local_dir: Path, strandline: Command) -> None:
    run = FakeRun()
    serve(run)
    found = strandline("stop", "alerts", "--savepoint", "s3://b/to", "--native", "--local-dir", local_dir)
    assert found.stdout == "job 'alerts' has ended: stopped\n"
    assert run.asked == [("stop", ("s3://b/to", "native", 60.0))]
