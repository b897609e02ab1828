"""The command line, and snapshots looked at without a job: what is not there, or not so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from typer.testing import CliRunner

import strandline as sl
from strandline.cli.main import app
from strandline.core.errors import ConfigurationError, ConflictError, NotFoundError
from strandline.core.times import END_US
from strandline.replay.breaks import Condition
from strandline.replay.bundle import Bundle
from strandline.replay.recorded import find_recorded
from strandline.runtime.watermarks import REACHED
from strandline.spark.job.draining import Draining
from tests.checkpoint.helpers import late_clock
from tests.cli.fabricate import FabricatedJob
from tests.mistakes.table import Mistake, Stage, mistake
from tests.snapshot.helpers import Job, write_savepoint


class CommandFailedError(Exception):
    """A command has ended with another exit code than 0, and has said this."""


def command(name: str, args: str, *said: str, job: bool = False) -> Mistake:
    """Return the mistake of a command; `{}` in its arguments is the directory, with checkpoints of a job if wanted."""

    def program(stage: Stage) -> None:
        if job:
            FabricatedJob(stage.directory / "ck").checkpoint()
        stage.place = "run"
        given = [arg.format(stage.directory) for arg in args.split()]
        done = CliRunner().invoke(app, given, prog_name="strandline", env={"COLUMNS": "200"})
        assert done.exit_code in (1, 2), done
        raise CommandFailedError(done.stderr)

    return mistake(name, "run", program, *said, error=CommandFailedError)


def asked(name: str, ask: Callable[[Any], Any], *said: str) -> Mistake:
    """Return the mistake of what is asked of snapshots in Python."""

    def program(stage: Stage) -> None:
        stage.place = "run"
        ask(stage.directory)

    return mistake(name, "run", program, *said, error=NotFoundError)


def running(stage: Stage, do: Callable[[], Any]) -> None:
    """Do what a running program does."""
    stage.place = "run"
    do()


def replayed(name: str, start: str, *said: str) -> Mistake:
    """Return the mistake of a replay of a job with one checkpoint."""

    def program(stage: Stage) -> None:
        job = FabricatedJob(stage.directory / "ck")
        job.checkpoint()
        running(stage, lambda: find_recorded(job.jobdir, start, None, {}))

    return mistake(name, "run", program, *said, error=NotFoundError if start == "77" else ConfigurationError)


def claim_twice(stage: Stage) -> None:
    """Start two jobs with one savepoint, which the first one has claimed."""
    savepoint = stage.directory / "sp"
    write_savepoint(savepoint)
    stage.place = "start"
    for name in ("first", "second"):
        Job(stage.directory, late_clock(), savepoint.as_uri(), claimed=True, name=name)


def go_back_to_drained(stage: Stage) -> None:
    """Have a job that runs go back to the checkpoint with which it was drained before it was reopened."""
    job = FabricatedJob(stage.directory / "ck")
    job.checkpoint()
    manifest = job.coordinator.confirmed
    assert manifest is not None
    stage.place = "run"
    Draining().refuse_rollback("payments", replace(manifest, watermarks={REACHED: END_US}))


LOCAL = "--local-dir {}/l"

MISTAKES = [
    command(
        "a page of a directory that is not there", "ui {}/nowhere", "nowhere: expected a directory, and it is not there"
    ),
    command("a page at a port that no machine has", "ui --port 70000", "--port", "65535"),
    command("a page that shows some values", "ui --values some", "--values", "hidden", "shown"),
    mistake(
        "a rollback to a checkpoint with which the job was drained",
        "run",
        go_back_to_drained,
        "job 'payments' does not go back to checkpoint 1: it was drained with that one",
        "start it with restore='…/payments/chk-1' and reopen=True",
    ),
    mistake(
        "a savepoint that another job has claimed",
        "start",
        claim_twice,
        "job 'first' in",
        "has claimed this savepoint",
        "next step: restore a copy (`strandline snapshots copy`)",
        "/_claim",
        error=ConflictError,
    ),
    command("snapshots of another job", "snapshots list {}/ck --job alert", "alert", "next step:", job=True),
    command("garbage of another job", "snapshots gc {}/ck --job alert", "alert", "next step:", job=True),
    command("a checkpoint that is no number", "rollback alerts last", "expected a number"),
    command("a checkpoint that is not there", "snapshots show {}/ck/alerts/chk-77", "chk-77", "chk-1", job=True),
    command("a folder without snapshots", "snapshots list {}", "no snapshot there", "next step:"),
    command("a url with one slash", "snapshots show s3:/b/sp", "'s3:/b/sp'", "write 's3://b/sp'"),
    command("checkpoints with one slash", "snapshots list gs:/b/ck", "'gs:/b/ck'", "write 'gs://b/ck'"),
    command(
        "snapshots of nowhere", "snapshots list {}/nowhere", "expected a directory, and it is not there", "next step:"
    ),
    command("a snapshot of nowhere", "snapshots show {}/nowhere", "expected a directory, and it is not there"),
    command("a copy of nothing", "snapshots copy {}/nowhere {}/to", "expected a directory, and it is not there"),
    command("state of nowhere", "state tables {}/nowhere", "expected a directory, and it is not there"),
    command("a table of nowhere", "state show {}/nowhere count.n", "expected a directory, and it is not there"),
    command(
        "a job that does not run",
        f"status visits {LOCAL}",
        "no driver of job 'visits' runs on this machine",
        "next step:",
    ),
    command("a stop of what does not run", f"stop visits {LOCAL}", "no driver of job 'visits' runs on this machine"),
    command("a checkpoint of what does not run", f"checkpoint visits {LOCAL}", "no driver of job 'visits'"),
    command("a savepoint of what does not run", f"savepoint visits {{}}/sp {LOCAL}", "no driver of job 'visits'"),
    command("a look-up in what does not run", f"lookup visits count.n ann {LOCAL}", "no driver of job 'visits'"),
    command("a plan for what does not run", f"plan visits {LOCAL}", "no driver of job 'visits'", "as ./visits"),
    command("a plan of one checkpoint", "plan {}/ck", "how much of its state changes", "--changes 5MB", job=True),
    command("a program that is not there", "run {}/app.py", "app.py"),
    command(
        "the cause of a row of a job that was never here",
        f"why visits rows true {LOCAL}",
        "'visits' is no file, and no job of this name was started on this machine",
        "give the job's program, APP.PY or FILE.SQL, or its local_dir with --local-dir",
    ),
    command("the cause of a row of no program", "why {}/app.py rows true", "app.py: there is no such program"),
    asked(
        "tables of nowhere in Python", lambda at: sl.state.tables(at / "nowhere"), "expected a directory", "next step:"
    ),
    replayed("a replay from no checkpoint of the job", "77", "there is none of this number", "it can begin with 1"),
    replayed(
        "a replay of epochs that are not recorded", "1", "no epoch after epoch 10 is recorded", "an older checkpoint"
    ),
    mistake(
        "a bundle that is none",
        "run",
        lambda stage: running(stage, lambda: Bundle(Path(__file__))),
        "is not a bundle",
        "`strandline bundle`",
    ),
    mistake(
        "a replay that stops at what is no condition",
        "run",
        lambda stage: running(stage, lambda: Condition.parse("state.total >")),
        "--break-on 'state.total >'",
        "write error, key=KEY, or a Python expression",
    ),
    mistake(
        "a replay that stops by an unknown name",
        "run",
        lambda stage: running(stage, lambda: Condition.parse("total > 100")),
        "total is unknown",
        "an expression may use state, key, event",
    ),
    asked("a look-up in nowhere", lambda at: sl.state.lookup(at / "nowhere", "count.n", "ann"), "expected a directory"),
]
