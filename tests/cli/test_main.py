from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

from typer.main import get_command

from strandline.cli.doctor import SUPPORTED
from strandline.cli.main import app
from strandline.core.texts import duration_text, moment_text, size_text, time_text
from tests.cli.conftest import ROOT, Command, environment
from tests.cli.fabricate import FabricatedJob
from tests.cli.terminal import on_terminal


def test_version(strandline: Command) -> None:
    (found,) = strandline("version", "--json").json
    assert found["strandline"] == "0.1.0"
    assert found["python"] == sys.version.split()[0]
    assert found.keys() == {"strandline", "python", *SUPPORTED}
    assert strandline("version").stdout.startswith("strandline 0.1.0 python ")


def test_the_entry_point_is_the_one_that_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"strandline": "strandline.cli.main:main"}
    asked = dict(item.split(">=", 1) for item in project["dependencies"])
    assert {name: asked[name] for name in SUPPORTED} == {name: s.removeprefix(">=") for name, s in SUPPORTED.items()}


def test_wrong_usage_is_exit_code_2(strandline: Command, process: Command) -> None:
    for command, args in (
        (process, ["fly"]),
        (strandline, ["snapshots", "list"]),
        (strandline, ["logs", "--nope"]),
        (strandline, ["run", "no-such-program.py"]),
        (strandline, ["logs", "-n", "x"]),
    ):
        found = command(*args)
        assert (found.code, found.stdout) == (2, ""), args
        assert "Error: " in found.stderr
        assert "Traceback" not in found.stderr


def test_help_names_each_command_in_a_sentence_that_fits(process: Command) -> None:
    lines = {
        args: process(*args, "--help", COLUMNS="80").stdout.splitlines() for args in ((), ("snapshots",), ("state",))
    }
    for args, shown in lines.items():
        assert max(map(len, shown)) <= 80, args
        begin = next(number for number, line in enumerate(shown) if line in ("Commands:", "Projects and programs:"))
        of_commands = [line for line in shown[begin:] if line.startswith("  ")]
        assert all(re.fullmatch(r"  [\w-]+ +[A-Z].*[a-z]\.", line) for line in of_commands), of_commands
    titles = [line for line in lines[()] if line.endswith(":")]
    assert titles == ["Options:", "Projects and programs:", "Running jobs:", "Snapshots and state:"]
    commands = {line.split()[0] for line in lines[()] if line.startswith("  ") and not line.startswith("   ")}
    assert commands >= {*get_command(app).commands}, "each is below a title"  # type: ignore[attr-defined]
    assert lines[()][lines[()].index(titles[1]) + 1].split()[0] == "new"


def test_only_run_imports_spark(alerts: FabricatedJob, tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import json, sys
        from strandline.cli.main import main
        for args in json.loads(sys.argv[1]):
            sys.argv = ["strandline", *args]
            try: main()
            except SystemExit: pass
            heavy = {"pyspark", "py4j", "pandas", "pyarrow", "numpy", "rocksdict", "strandline.spark"} & set(sys.modules)
            assert not heavy, (args, heavy)
        print("all are light")
        """
    )
    stored = str(alerts.directory)
    commands = [
        ["snapshots", "list", stored], ["snapshots", "verify", stored], ["logs"], ["jobs"], ["version"], ["doctor"],
        ["run", "--help"], ["plan", stored, "--changes", "1MB"],
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)], capture_output=True, text=True,
        env=environment(TMPDIR=str(tmp_path)), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["all are light"]), done.stderr


def test_no_colours_and_nothing_cut_off_when_not_a_terminal(process: Command, alerts: FabricatedJob) -> None:
    alerts.path_of(3, 0).unlink()  # type: ignore[arg-type]
    found = process("snapshots", "list", alerts.directory, TERM="xterm-256color", FORCE_COLOR="1", COLUMNS="40")
    assert "\x1b" not in found.stdout + found.stderr
    (row, reason) = [line for line in found.stdout.splitlines() if "damaged" in line]
    assert len(row.split()) == 12
    assert reason.split()[-2] == f"shared/{alerts.path_of(3, 0).parent.name}/{alerts.path_of(3, 0).name}:"  # type: ignore[arg-type]


def test_on_a_terminal_there_are_colours_and_a_progress_bar_apart_from_the_data(alerts: FabricatedJob) -> None:
    code, printed, seen = on_terminal("snapshots", "verify", alerts.directory, "--all", "--json")
    assert [json.loads(line)["ok"] for line in printed.splitlines()] == [True, True]
    assert code == 0
    assert b"alerts/chk-2" in seen
    assert b"\x1b[" in seen
    # What is printed while the bar is there is data, too.
    one = alerts.directory / "alerts/chk-2"
    code, printed, seen = on_terminal("snapshots", "verify", one, "--json")
    assert (code, json.loads(printed)["url"]) == (0, one.as_uri())
    assert b"{" not in seen


def test_a_reader_that_leaves_is_no_error(alerts: FabricatedJob) -> None:
    command = f'"{sys.executable}" -m strandline.cli.main snapshots list "{alerts.directory}" --json'
    done = subprocess.run(
        ["sh", "-c", f"{command} | true"], capture_output=True, text=True, env=environment(), check=False
    )
    assert "Traceback" not in done.stderr


def test_figures_as_people_read_them() -> None:
    assert [size_text(n) for n in (0, 1023, 1536, 5 << 20, 3 << 40)] == ["0 B", "1023 B", "1.5 KB", "5.0 MB", "3.0 TB"]
    assert [duration_text(ms) for ms in (0.25, 42, 1500, 130_000, 7_260_000)] == [
        "0.2 ms", "42 ms", "1.5 s", "2 min", "2 h 1 min",
    ]  # fmt: skip
    assert time_text(0) == "-"
    assert time_text(1_700_000_000_000).startswith("2023-11-1")


def test_event_times_may_be_any_that_a_timestamp_can_be() -> None:
    assert moment_text(1_700_000_000_123_456) == time_text(1_700_000_000_123)
    assert moment_text(0) == moment_text(999_999) != time_text(0)
    assert moment_text(1_700_000_000_000_000_000) == "after the year 9999"
    assert moment_text(-(1 << 63)) == "before the year 1"
