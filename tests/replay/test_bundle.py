"""Bundles and histories of a failed job: the command line, and a program whose sources are gone."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.cli.conftest import Command, strandline
from tests.replay.programs import totals, write

__all__ = ["strandline"]
pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pathlib import Path

import strandline as sl
from tests.replay.programs import totals

root = Path(sys.argv[1])
totals(sl.session("tests"), root, Path(sys.argv[2])).start().await_termination()
"""


@pytest.fixture
def app(spark: Any, tmp_path: Path, local_dir: Path) -> Path:
    """The program of a job that has failed in its fourth epoch, after a checkpoint of the second one."""
    run = totals(spark, tmp_path, local_dir).start(spark)
    for number in range(4):
        bad = 13 if number == 3 else -1
        rows = [{"card": f"card-{n % 5}", "amount": -1 if n == bad else n + number} for n in range(20)]
        write(tmp_path / "in", f"{number}.json", rows)
        if number == 3:
            with pytest.raises(sl.errors.UserCodeError):
                run.process_all_available()
        else:
            run.process_all_available()
        if number == 1:
            run.checkpoint()
    path = tmp_path / "app.py"
    path.write_text(PROGRAM)
    return path


def arguments(app: Path, local_dir: Path) -> list[object]:
    return ["--", app.parent, local_dir]


def test_replay_reports_each_epoch(app: Path, strandline: Command, local_dir: Path, tmp_path: Path) -> None:
    result = strandline(
        "replay", app, "--from", "start", "--json", "--output", tmp_path / "rows", *arguments(app, local_dir)
    )
    assert result.code == 0, result.stderr
    assert [(each["epoch"], each["rows_in"], each["differences"]) for each in result.json] == [
        (1, 20, None), (2, 20, []), (3, 20, None), (4, 20, None),
    ]  # fmt: skip
    assert result.json[-1]["failed_before"]
    rows = [json.loads(line) for line in (tmp_path / "rows" / "rows" / "epoch-1.jsonl").read_text().splitlines()]
    assert len(rows) == 20
    assert {"card": "card-3", "total": 3} in rows


def test_a_bundle_fails_again_without_the_jobs_files(
    app: Path, strandline: Command, local_dir: Path, tmp_path: Path
) -> None:
    path = tmp_path / "support.zip"
    result = strandline("bundle", app, "-o", path, *arguments(app, local_dir))
    assert result.code == 0, result.stderr
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
    assert {"bundle.json", "epochs", "failure.txt", "input/epoch-4/0.arrow", "program/app.py"} <= names
    assert any(name.startswith("logs/") for name in names)
    for gone in ("in", "ck", "out"):
        shutil.rmtree(tmp_path / gone)
    app.unlink()
    result = strandline("replay", path)
    assert result.code == 0, result.stderr
    assert re.search(
        r"epoch 4: 20 rows\n  failed, as in the job: .*a negative amount after 155", result.stdout, re.DOTALL
    )


def test_a_bundle_hides_values_and_other_keys(app: Path, strandline: Command, local_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "c3.zip"
    result = strandline("bundle", app, "-o", path, "--key", "card-3", "--hash-values", *arguments(app, local_dir))
    assert result.code == 0, result.stderr
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.startswith(("input/", "snapshot/")):
                assert b"card-3" not in archive.read(name), name
    result = strandline("replay", path)
    assert result.code == 0, result.stderr
    assert "epoch 4: 4 rows" in result.stdout
    assert "a negative amount after 155" in result.stdout


def test_the_history_of_a_key(app: Path, strandline: Command, local_dir: Path) -> None:
    result = strandline(
        "history", app, "totals.total", "card-3", "--from", "start", "--json", *arguments(app, local_dir)
    )
    assert result.code == 0, result.stderr
    changes = result.json
    assert [(each["epoch"], each["before"], each["after"]) for each in changes[:2]] == [(1, 0, 3), (1, 3, 11)]
    assert changes[1]["event"] == {"card": "card-3", "amount": 8}
    assert changes[1]["rows"] == [["card-3", 11]]
    assert len(changes) == 12
    result = strandline("history", app, "total", "card-3", *arguments(app, local_dir))
    assert result.stdout.count("on_event") == 4
    result = strandline("history", app, "sum", "card-3", *arguments(app, local_dir))
    assert (result.code, "its states are totals.total, totals.seen" in result.stderr) == (1, True)


def test_the_history_of_all_states_of_an_operator(app: Path, strandline: Command, local_dir: Path) -> None:
    options = ("--from", "start", "--last", "2", *arguments(app, local_dir))
    result = strandline("history", app, "totals", "card-3", "--json", "--progress", *options)
    assert result.code == 0, result.stderr
    progress = [each["progress"] for each in result.json if "progress" in each]
    assert progress == [{"done": n, "total": 4, "changes": 4 * n} for n in range(4)]
    before, last = result.json[len(progress) :]
    assert last["before"] == before["after"]
    assert last["after"]["total"] == last["before"]["total"] + last["event"]["amount"]
    assert last["after"]["seen"] == [*last["before"]["seen"], last["event"]["amount"]]
    assert (last["rows"], last["timers"], last["sides"]) == ([["card-3", last["after"]["total"]]], [], [])
    result = strandline("history", app, "totals", "card-3", *options)
    assert (result.stdout.count("on_event"), "10 earlier changes are left out" in result.stderr) == (2, True)
