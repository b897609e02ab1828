"""What the command line says of a program's jobs, without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.cli.orders import by_job, restores, split
from strandline.core.errors import ConfigurationError
from strandline.spark.job.attempt import StartOptions
from strandline.spark.job.program_jobs import StartOverrides, intercept_job, intercept_jobs, intercept_start
from tests.cli.conftest import Command


def job(name: str) -> Any:
    return SimpleNamespace(name=name)


@pytest.mark.parametrize(
    ("args", "restore", "drop", "claim", "rest"),
    [
        ([], [], [], False, []),
        (["in", "--restore", "x"], [], [], False, ["in", "--restore", "x"]),
        (["--restore", "ck/a", "--claim", "in"], ["ck/a"], [], True, ["in"]),
        (["--drop=a", "--drop", "b.c", "--restore=x=y", "--", "--drop"], ["x=y"], ["a", "b.c"], False, ["--drop"]),
        (["--restored", "x"], [], [], False, ["--restored", "x"]),
    ],
)
def test_what_is_ours_behind_the_program(
    args: list[str], restore: list[str], drop: list[str], claim: bool, rest: list[str]
) -> None:
    ours = {"--restore": restore, "--drop": drop, "--from-now": [], "--again": []}
    assert split(args) == (ours, {"--claim"} if claim else set(), rest)
    assert split(["--reopen", *args])[1:] == ({"--reopen", "--claim"} if claim else {"--reopen"}, rest)
    ours, _, left = split(["--again", "monday", "--from-now", "totals", *args])
    assert (ours["--again"], ours["--from-now"], left) == (["monday"], ["totals"], rest)


def test_what_is_said_of_which_job() -> None:
    assert restores(["ck/job/chk-1"]) == {"": "ck/job/chk-1"}
    assert restores(["a=s3://bucket/x=1", "b=/ck"]) == {"a": "s3://bucket/x=1", "b": "/ck"}
    assert restores(["s3://bucket/x=1"]) == {"": "s3://bucket/x=1"}
    assert restores(["./x=1"]) == {"": "./x=1"}
    assert by_job(["a=op", "a=op.x", "other"]) == {"a": ["op", "op.x"], "": ["other"]}
    with pytest.raises(ConfigurationError, match="two snapshots for job 'a': x and y"):
        restores(["a=x", "a=y"])


def test_an_order_to_restore_nothing_is_refused() -> None:
    for given in ("", " "):
        with pytest.raises(ConfigurationError, match="--restore names no snapshot"):
            restores([given])


def test_an_order_goes_before_what_the_program_says() -> None:
    own = StartOptions("own", True, ("own.state",))
    orders = StartOverrides({"": "url"}, {"": ["gone"]}, from_now={"only": ["totals"]})
    with intercept_jobs(orders):
        intercept_job(job("only"))
        assert intercept_start(job("only"), own) == StartOptions(
            "url", False, ("own.state", "gone"), from_now=("totals",)
        )
        again = StartOptions("url", False, ("gone",), from_now=("totals",))
        assert intercept_start(job("only"), StartOptions()) == again, "started again"
    assert orders.unused == []
    assert intercept_start(job("only"), own) == own, "nobody watches any more"


def test_several_jobs_need_names() -> None:
    with intercept_jobs(StartOverrides({"": "url"}, {})):
        intercept_job(job("a"))
        intercept_job(job("b"))
        with pytest.raises(ConfigurationError, match="has 2 jobs: a, b") as caught:
            intercept_start(job("a"), StartOptions())
        assert "--restore JOB=URL" in caught.value.hint
    orders = StartOverrides({"a": "url", "c": "other"}, {"b": ["x"]}, claim=True, again="x")
    with intercept_jobs(orders):
        assert intercept_start(job("a"), StartOptions()) == StartOptions("url", True, again="x")
        assert intercept_start(job("b"), StartOptions()) == StartOptions(drop=("x",))
    assert orders.unused == ["c"]


def test_a_program_that_starts_no_job(process: Command, tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text("import sys; print(sys.argv[1:])\n")
    found = process("run", program, "--restore", "/ck", "in", "--restore")
    assert (found.code, found.stdout) == (1, "['in', '--restore']\n")
    assert found.stderr.startswith("error: the program has not started a job: nothing was restored\n  next step: ")
    assert process("run", program, "--claim").code == 2
    found = process("check-upgrade", program, "--restore", "/ck", "--json", "--", "in", "--restore")
    assert (found.code, found.stdout) == (1, "")
    assert found.stderr.startswith("['in', '--restore']\nerror: ")
    assert "the program makes no job\n  next step: " in found.stderr
    found = process("test", program, "--from", "1")
    assert found.code == 2
    assert found.stderr.startswith(f"[]\nerror: {program}: the program makes no job\n  next step: ")
    program.write_text("raise SystemExit(3)")
    assert process("check-upgrade", program, "--restore", "/ck").code == 3
    assert process("check-upgrade", program).code == 2
