"""`strandline jobs`, and the commands that a running job of this machine executes through its driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import msgspec
import typer

from strandline.cli.output import Table, print_json, print_result, say, with_times
from strandline.cli.progress import progress_bar
from strandline.cli.status_view import ended_as_data, ended_text, parallelism_text, print_status, state_text
from strandline.cli.stores import AsJson, LocalDir, root_of
from strandline.control.client import Driver, call, find_driver, find_drivers, is_directory
from strandline.control.commands import (
    CHECKPOINT,
    RESCALE,
    SAVEPOINT,
    STATUS,
    STOP,
    Command,
    NoArguments,
    Rescale,
    Stop,
    TakeCheckpoint,
    TakeSavepoint,
)
from strandline.control.journal import JournalEntry, records
from strandline.control.status import Status
from strandline.core.errors import ConfigurationError, NotFoundError, StrandlineError, UnavailableError
from strandline.core.settings import parse_duration_ms
from strandline.core.texts import duration_text, size_text, time_text
from strandline.core.urls import check_url


def running_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the job names that complete a shell's input."""
    root = root_of(ctx.params.get("local_dir"))
    names = {driver.job for driver in find_drivers(root, _COMPLETION_TIMEOUT_S)}
    return sorted(name for name in names if name and name.startswith(incomplete))


RunningJob = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's name.", show_default=False, autocompletion=running_jobs),
]
OfDirectory = Annotated[
    str | None,
    typer.Option(
        "--directory", metavar="DIRECTORY", help="Its checkpoint directory; needed where several jobs have its name."
    ),
]
_COMPLETION_TIMEOUT_S = 1.0
_TROUBLE = ("failed", "killed")
STATUS_TIMEOUT_S = 10.0
"""How long a request that only reads may take."""


def jobs(
    local_dir: LocalDir = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that were stopped or came to their end.")] = False,
    json: AsJson = False,
) -> None:
    """List the jobs on this machine, and those that have failed.

    They are the jobs of this user with this Settings.local_dir: those that run, and those that failed or were killed.
    """
    root = root_of(local_dir)
    drivers = find_drivers(root)
    running = [(driver, *request_status(driver)) for driver in drivers]
    ended = [record for record in records(root) if _is_over(record, drivers) and (every or record.fate in _TROUBLE)]
    columns = ("job", "state", "pid", "since", "epoch", "rows", "checkpoint directory")
    output = Table(*columns, right=("pid", "epoch", "rows"), whole=("since",), spare=("pid", "rows"))
    for driver, status, trouble in running:
        if json:
            data = {name: status and getattr(status, name) for name in ("state", "epoch", "rows_in", "rows_per_s")}
            print_json(with_times({**_identity(driver), **data}))
            continue
        figures = (state_text(status.state), status.epoch, f"{status.rows_in:,}") if status else (trouble, "-", "-")
        since = time_text(driver.since_ms)
        output.add(driver.job or "-", figures[0], driver.pid, since, *figures[1:], driver.directory or "-")
    for record in ended:
        if json:
            print_json(with_times(ended_as_data(record)))
            continue
        since = time_text(record.since_ms)
        output.add(record.job, state_text(record.fate), record.pid, since, "-", "-", record.directory)
    if not running and not (ended and every):
        say(f"no job runs on this machine with the local_dir {root}")
    if output.rows:
        output.print()
    if not json and any(record.fate in _TROUBLE for record in ended):
        say("why a job has ended: `strandline status JOB`, and `strandline logs JOB --driver`")


def status(job: RunningJob, directory: OfDirectory = None, local_dir: LocalDir = None, json: AsJson = False) -> None:
    """Show what a running job does.

    That is its state, rows, event time and checkpoints, what waits in its sources, and its keepers. Of a job that runs
    no more, say what became of it; exit code 1.
    """
    root = root_of(local_dir)
    try:
        driver = find_driver(root, job, directory)
    except NotFoundError as error:
        if (record := _last_record(root, job, directory)) is None:
            raise
        if json:
            print_json(with_times(ended_as_data(record)))
        raise NotFoundError(
            f"job '{job}' does not run here: {ended_text(record)}",
            hint=f"`strandline logs {quote(job)} --driver` has more; what it has left: "
            f"`strandline snapshots list {quote(f'{record.directory}/{job}')}`",
        ) from error
    current = call(driver, STATUS, NoArguments(), timeout_s=STATUS_TIMEOUT_S)
    if json:
        print_json(with_times({**_identity(driver), **asdict(current)}))
    else:
        print_status(driver, current)


def checkpoint(
    job: RunningJob,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long to wait for it; by default, until it has ended.")
    ] = None,
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Have a running job take a checkpoint now, and wait for it.

    Exit code 1 if it fails.
    """
    timeout_s = None if timeout is None else parse_duration_ms(timeout, "--timeout") / 1000
    driver = find_driver(root_of(local_dir), job, directory)
    stats = call_with_progress(driver, CHECKPOINT, TakeCheckpoint(timeout_s))
    text = (
        f"checkpoint {stats.checkpoint} is complete: epoch {stats.epoch}, {size_text(stats.total_bytes)}, "
        f"{size_text(stats.uploaded_bytes)} of them new, in {duration_text(stats.end_to_end_ms or 0)}"
    )
    print_result(asdict(stats), text, json=json)


Native = Annotated[
    bool,
    typer.Option("--native", help="The backend's own files, at once; else tables, to be restored on any backend."),
]


def savepoint(
    job: RunningJob,
    url: Annotated[str, typer.Argument(metavar="URL", help="A folder that is not there yet.", show_default=False)],
    native: Native = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long its checkpoint may take; by default, as it likes.")
    ] = None,
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Have a running job take a savepoint, and wait for it.

    A savepoint is a snapshot that no job owns or deletes. Exit code 1 if it fails.
    """
    timeout_s = None if timeout is None else parse_duration_ms(timeout, "--timeout") / 1000
    driver = find_driver(root_of(local_dir), job, directory)
    result = call_with_progress(driver, SAVEPOINT, TakeSavepoint(_absolute(url), _form(native), timeout_s))
    text = (
        f"savepoint {result.url} is complete: checkpoint {result.checkpoint}, epoch {result.epoch}, "
        f"{size_text(result.total_bytes)}, in {duration_text(result.duration_ms)}"
    )
    print_result(asdict(result), text, json=json)


def _form(native: bool) -> str:
    return "native" if native else "canonical"


def _absolute(url: str) -> str:
    """Return a path as an absolute one, since the driver's working directory may be another."""
    return url if "://" in check_url(url) or not url.strip() else str(Path(url).expanduser().absolute())


def rescale(
    job: RunningJob,
    parallelism: Annotated[
        list[str],
        typer.Argument(
            metavar="N | UID=N...",
            help="Partitions of each operator without a parallelism of its own; or of single operators.",
            show_default=False,
        ),
    ],
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long that may take.")] = "5 min",
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Change the number of partitions of a running job.

    The job goes on from a checkpoint that it takes for that.
    """
    target = _parse_parallelism(parallelism)
    timeout_s = parse_duration_ms(timeout, "--timeout") / 1000
    driver = find_driver(root_of(local_dir), job, directory)
    now = call_with_progress(driver, RESCALE, Rescale(target, timeout_s))
    text = f"job '{job}' goes on with parallelism {parallelism_text(now)}, from checkpoint {now.restored_from}"
    print_result(asdict(now), text, json=json)


def _parse_parallelism(arguments: Sequence[str]) -> int | dict[str, int]:
    """Return the parallelism of the job, or of operators by uid."""
    if len(arguments) == 1 and arguments[0].isdecimal() and int(arguments[0]) > 0:
        return int(arguments[0])
    numbers: dict[str, int] = {}
    for argument in arguments:
        uid, _, number = argument.rpartition("=")
        if not uid or not number.isdecimal() or int(number) < 1:
            raise typer.BadParameter(f"'{argument}' is no parallelism: write N for the job, or UID=N for each operator")
        if uid in numbers:
            raise typer.BadParameter(f"the operator '{uid}' is given twice")
        numbers[uid] = int(number)
    return numbers


def stop(
    job: RunningJob,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Take a last checkpoint before, so that nothing is repeated later.")
    ] = False,
    savepoint: Annotated[
        str | None, typer.Option("--savepoint", metavar="URL", help="Make the last checkpoint a savepoint, too.")
    ] = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain", help="End it for good: windows and event-time timers give what they hold, and sinks show it."
        ),
    ] = False,
    native: Native = False,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long that may take.")] = "60s",
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Stop a running job, and end its keepers.

    That is what run.stop() in its program would do; the program goes on.
    Without --checkpoint, rows after the last checkpoint stay invisible, and are processed again by the next start. If
    the last checkpoint fails, the job goes on.
    """
    timeout_s = parse_duration_ms(timeout, "--timeout") / 1000
    driver = find_driver(root_of(local_dir), job, directory)
    to = None if savepoint is None else _absolute(savepoint)
    arguments = Stop(checkpoint=checkpoint, savepoint=to, drain=drain, form=_form(native), timeout_s=timeout_s)
    ended = call_with_progress(driver, STOP, arguments)
    text = f"job '{job}' is drained, and has ended" if drain else f"job '{job}' has ended: {ended.state}"
    print_result(msgspec.to_builtins(ended), text, json=json)


def call_with_progress(driver: Driver, command: Command[Any, Any], arguments: msgspec.Struct) -> Any:
    """Call a command that may take long: on a terminal, show its progress on standard error."""
    with progress_bar() as on_progress:
        try:
            return call(driver, command, arguments, on_progress=on_progress)
        except KeyboardInterrupt:
            say(f"strandline: no longer waiting for '{command.name}'; job '{driver.job}' goes on with it")
            raise


def _identity(driver: Driver) -> dict[str, Any]:
    return {
        "job": driver.job or None,
        "pid": driver.pid,
        "since_ms": driver.since_ms or None,
        "directory": driver.directory or None,
        "engine": driver.engine or None,
    }


def _is_over(record: JournalEntry, drivers: Sequence[Driver]) -> bool:
    """Whether the job has ended, and no newer driver of it answers."""
    answered = any((driver.job, driver.directory) == (record.job, record.directory) for driver in drivers)
    return bool(record.fate) and not answered


def _last_record(root: Path, job: str, directory: str | None) -> JournalEntry | None:
    return next((r for r in records(root, job) if r.fate and is_directory(r.directory, directory)), None)


def request_status(driver: Driver) -> tuple[Status | None, str]:
    """Return a job's status, or the reason why there is none."""
    if not driver.answers:
        return None, "does not answer"
    try:
        return call(driver, STATUS, NoArguments(), silence_s=STATUS_TIMEOUT_S, timeout_s=STATUS_TIMEOUT_S), ""
    except ConfigurationError:
        return None, f"of Strandline {driver.engine}"
    except UnavailableError:
        return None, "does not answer"
    except StrandlineError as error:
        return None, error.message
