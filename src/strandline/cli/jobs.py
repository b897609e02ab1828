"""`strandline jobs`, and what a job that runs on this machine is asked for, through its driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import msgspec
import typer

from strandline.cli.output import (
    add_row,
    console,
    duration_text,
    print_json,
    say,
    size_text,
    table,
    time_text,
    with_times,
)
from strandline.cli.progress import progress_bar
from strandline.cli.status_view import ended_as_data, ended_text, parallelism_text, print_status, state_text
from strandline.cli.stores import AsJson, LocalDir, root_of
from strandline.control.client import Driver, as_url, call, find_driver, find_drivers
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
from strandline.core.urls import check_url


def running_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs that a shell may offer."""
    root = root_of(ctx.params.get("local_dir"))
    return sorted({one.job for one in find_drivers(root, _OFFER_S) if one.job.startswith(incomplete) and one.job})


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
_OFFER_S = 1.0
_TROUBLE = ("failed", "killed")
LOOK_S = 10.0
"""How long a look may take."""


def jobs(
    local_dir: LocalDir = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that were stopped or came to their end.")] = False,
    json: AsJson = False,
) -> None:
    """List the jobs that run on this machine, and those that failed or were killed since.

    They are those of this user whose Settings.local_dir this is.
    """
    root = root_of(local_dir)
    drivers = find_drivers(root)
    found = [(driver, *_look(driver)) for driver in drivers]
    ended = [record for record in records(root) if _is_over(record, drivers) and (every or record.fate in _TROUBLE)]
    columns = ("job", "state", "pid", "since", "epoch", "rows", "checkpoint directory")
    made = table(*columns, right=("pid", "epoch", "rows"))
    for driver, status, trouble in found:
        if json:
            figures = {name: status and getattr(status, name) for name in ("state", "epoch", "rows_in", "rows_per_s")}
            print_json(with_times({**_identity(driver), **figures}))
            continue
        does = (state_text(status.state), status.epoch, f"{status.rows_in:,}") if status else (trouble, "-", "-")
        since = time_text(driver.since_ms)
        add_row(made, driver.job or "-", does[0], driver.pid, since, *does[1:], driver.directory or "-")
    for record in ended:
        if json:
            print_json(with_times(ended_as_data(record)))
            continue
        add_row(
            made, record.job, state_text(record.fate), record.pid, time_text(record.since_ms), "-", "-",
            record.directory,
        )  # fmt: skip
    if not found and not (ended and every):
        say(f"no job runs on this machine with the local_dir {root}")
    if made.row_count:
        console().print(made)
    if not json and any(record.fate in _TROUBLE for record in ended):
        say("why a job has ended: `strandline status JOB`, and `strandline logs JOB --driver`")


def status(job: RunningJob, directory: OfDirectory = None, local_dir: LocalDir = None, json: AsJson = False) -> None:
    """Show what a running job is doing: state, rows, event time, checkpoints, what waits in its sources, keepers.

    Of a job that runs no more, say what became of it; exit code 1.
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
            f"`strandline checkpoints list {quote(record.directory)} --job {quote(job)}`",
        ) from error
    found = call(driver, STATUS, NoArguments(), timeout_s=LOOK_S)
    if json:
        print_json(with_times({**_identity(driver), **asdict(found)}))
    else:
        print_status(driver, found)


def checkpoint(
    job: RunningJob,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long to wait for it; by default, until it has ended.")
    ] = None,
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Have a running job take a checkpoint now, and wait for it. Exit code 1 if it fails."""
    timeout_s = None if timeout is None else parse_duration_ms(timeout, "--timeout") / 1000
    driver = find_driver(root_of(local_dir), job, directory)
    stats = ask(driver, CHECKPOINT, TakeCheckpoint(timeout_s))
    if json:
        print_json(asdict(stats))
    else:
        print(
            f"checkpoint {stats.checkpoint} is complete: epoch {stats.epoch}, {size_text(stats.total_bytes)}, "
            f"{size_text(stats.uploaded_bytes)} of them new, in {duration_text(stats.end_to_end_ms or 0)}"
        )


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
    """Have a running job take a savepoint: a snapshot that belongs to nobody, and stays. Exit code 1 if it fails."""
    timeout_s = None if timeout is None else parse_duration_ms(timeout, "--timeout") / 1000
    driver = find_driver(root_of(local_dir), job, directory)
    made = ask(driver, SAVEPOINT, TakeSavepoint(_here(url), _form(native), timeout_s))
    if json:
        print_json(asdict(made))
    else:
        print(
            f"savepoint {made.url} is complete: checkpoint {made.checkpoint}, epoch {made.epoch}, "
            f"{size_text(made.total_bytes)}, in {duration_text(made.duration_ms)}"
        )


def _form(native: bool) -> str:
    return "native" if native else "canonical"


def _here(url: str) -> str:
    """Return a path as the driver, which may be elsewhere, has to be told it."""
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
    """Have a running job go on with another number of partitions, from a checkpoint that it takes for that."""
    wanted = _wanted(parallelism)
    timeout_s = parse_duration_ms(timeout, "--timeout") / 1000
    driver = find_driver(root_of(local_dir), job, directory)
    found = ask(driver, RESCALE, Rescale(wanted, timeout_s))
    if json:
        print_json(asdict(found))
    else:
        print(f"job '{job}' goes on with parallelism {parallelism_text(found)}, from checkpoint {found.restored_from}")


def _wanted(given: Sequence[str]) -> int | dict[str, int]:
    """Return one number of a job, or several by uid."""
    if len(given) == 1 and given[0].isdecimal() and int(given[0]) > 0:
        return int(given[0])
    found: dict[str, int] = {}
    for each in given:
        uid, _, number = each.rpartition("=")
        if not uid or not number.isdecimal() or int(number) < 1:
            raise typer.BadParameter(f"'{each}' is no parallelism: write N for the job, or UID=N for each operator")
        if uid in found:
            raise typer.BadParameter(f"the operator '{uid}' is given twice")
        found[uid] = int(number)
    return found


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
    """Stop a running job and end its keepers, as run.stop() in its program would; the program goes on.

    Without --checkpoint, rows after the last checkpoint stay invisible, and are processed again by the next start. If
    the last checkpoint fails, the job goes on.
    """
    timeout_s = parse_duration_ms(timeout, "--timeout") / 1000
    driver = find_driver(root_of(local_dir), job, directory)
    to = None if savepoint is None else _here(savepoint)
    wanted = Stop(checkpoint=checkpoint, savepoint=to, drain=drain, form=_form(native), timeout_s=timeout_s)
    ended = ask(driver, STOP, wanted)
    if json:
        print_json(msgspec.to_builtins(ended))
    else:
        print(f"job '{job}' is drained, and has ended" if drain else f"job '{job}' has ended: {ended.state}")


def ask(driver: Driver, command: Command[Any, Any], arguments: msgspec.Struct) -> Any:
    """Ask for what may take long: on a terminal, progress is shown on standard error."""
    with progress_bar() as tell:
        try:
            return call(driver, command, arguments, on_progress=tell)
        except KeyboardInterrupt:
            say(f"strandline: nobody waits for '{command.name}' any more; job '{driver.job}' goes on with it")
            raise typer.Exit(130) from None


def _identity(driver: Driver) -> dict[str, Any]:
    return {
        "job": driver.job or None,
        "pid": driver.pid,
        "since_ms": driver.since_ms or None,
        "directory": driver.directory or None,
        "engine": driver.engine or None,
    }


def _is_over(record: JournalEntry, drivers: Sequence[Driver]) -> bool:
    """Whether nobody answers for the job any more, and nobody will."""
    answered = any((driver.job, driver.directory) == (record.job, record.directory) for driver in drivers)
    return bool(record.fate) and not answered


def _last_record(root: Path, job: str, directory: str | None) -> JournalEntry | None:
    url = None if directory is None else as_url(directory)
    return next((r for r in records(root, job) if r.fate and url in (None, r.directory)), None)


def _look(driver: Driver) -> tuple[Status | None, str]:
    """Return a job's status, or why there is none."""
    if not driver.answers:
        return None, "does not answer"
    try:
        return call(driver, STATUS, NoArguments(), silence_s=LOOK_S, timeout_s=LOOK_S), ""
    except ConfigurationError:
        return None, f"of Strandline {driver.engine}"
    except UnavailableError:
        return None, "does not answer"
    except StrandlineError as error:
        return None, error.message
