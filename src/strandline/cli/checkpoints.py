"""`strandline checkpoints`: list, show, verify and collect garbage, without a running job and without Spark."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

from strandline.checkpoint import check, gc
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
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
from strandline.cli.progress import ByteCounter, progress_bar
from strandline.cli.stores import AsJson, Directory, JobName, StorageOptions, job_directories, job_directory
from strandline.cli.verification import Reports
from strandline.core.clock import SystemClock
from strandline.core.errors import ConfigurationError, NotFoundError, StrandlineError
from strandline.core.ids import CheckpointId
from strandline.core.settings import parse_duration_ms
from strandline.format.manifest import MANIFEST

app = typer.Typer(
    help="Look at checkpoints, check every byte of them, remove what none needs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_STYLES = {"complete": "green", "void": "dim", "damaged": "red"}


@app.command("list")
def list_(directory: Directory, job: JobName = None, option: StorageOptions = None, json: AsJson = False) -> None:
    """List the checkpoints of a job, or of every job in the directory; newest first.

    A checkpoint is complete (it can be restored, if its bytes are intact), damaged (a file is missing or has the wrong
    size, or a record is damaged that says whether the checkpoint counts) or void (written by a driver that was
    replaced, and ignored).
    """
    jobdirs = job_directories(directory, job, option)
    checkpoints = [(jobdir.job, summary) for jobdir in jobdirs for summary in check.summaries(jobdir)]
    if json:
        for name, summary in checkpoints:
            print_json(with_times({"job": name, **asdict(summary)}))
        return
    from rich.text import Text

    numbers = ("epoch", "size", "increment", "duration")
    output = table("job", "checkpoint", "state", "taken", "mode", *numbers, "reason", right=("checkpoint", *numbers))
    for name, summary in checkpoints:
        figures: tuple[object, ...] = ("-", "-", "-", "-", "-", "-")
        if summary.mode:
            figures = (
                time_text(summary.created_ms), summary.mode, summary.epoch, size_text(summary.total_bytes),
                size_text(summary.uploaded_bytes), duration_text(summary.duration_ms),
            )  # fmt: skip
        state = Text(summary.state, style=_STYLES[summary.state])
        add_row(output, name, summary.checkpoint, state, *figures, summary.reason)
    console().print(output)
    if not checkpoints:
        say("no checkpoint is complete yet")


Which = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Its number, or 'latest'.")]


@app.command("show")
def show(
    directory: Directory, checkpoint: Which, job: JobName = None, option: StorageOptions = None, json: AsJson = False
) -> None:
    """Show one checkpoint: operators, states with their types, partitions, source progress, pending sinks."""
    jobdir = job_directory(directory, job, option)
    number = _all(jobdir)[0] if checkpoint == "latest" else checkpoint_number(checkpoint)
    try:
        manifest = jobdir.read(manifest_path(number), MANIFEST.decode)
    except NotFoundError as error:
        there = [str(summary.checkpoint) for summary in check.summaries(jobdir)]
        raise NotFoundError(
            f"{jobdir.url}: there is no checkpoint {number}",
            hint=f"the checkpoints there are: {', '.join(there)}" if there else "none is complete yet",
        ) from error
    from strandline.cli import describe

    if json:
        print_json(with_times(describe.as_data(manifest)))
    else:
        describe.print_tables(manifest)


@app.command("verify")
def verify(
    directory: Directory,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="[CHECKPOINT]", help="Its number; without it, the newest of each job.", show_default=False
        ),
    ] = "latest",
    every: Annotated[bool, typer.Option("--all", help="Every checkpoint that is not void.")] = False,
    job: JobName = None,
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Read every byte of checkpoints again; name what is missing or damaged. Exit code 1 if anything is."""
    if every and checkpoint != "latest":
        raise typer.BadParameter("give a checkpoint or --all, not both")
    if checkpoint == "latest":
        jobdirs = job_directories(directory, job, option)
        targets = [(jobdir, number) for jobdir in jobdirs for number in (_all(jobdir) if every else _all(jobdir)[:1])]
    else:
        targets = [(job_directory(directory, job, option), checkpoint_number(checkpoint))]
    reports = Reports("job", "checkpoint", right=("checkpoint",), json=json)
    with progress_bar() as tell:
        counter = ByteCounter(tell, sum(_bytes_to_read(*target) for target in targets))
        for jobdir, number in targets:
            counter.step = f"reading {jobdir.job} checkpoint {number}"
            report = check.verify(jobdir, number, counter.add)
            reports.add({"job": jobdir.job, "checkpoint": number}, report)
    reports.end("bring these files back from a backup, or go back to an older, intact checkpoint")


@app.command("gc")
def gc_(
    directory: Directory,
    job: Annotated[str, typer.Option("--job", metavar="NAME", help="The job whose garbage is collected.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    grace: Annotated[
        str, typer.Option(help="Younger files stay, and those younger than the newest checkpoint.")
    ] = "1h",
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Delete what no live checkpoint needs: left-overs of failed checkpoints and of drivers that were killed.

    Prints the plan, then executes it. Refuses to delete anything while a live checkpoint misses a file, or while a
    damaged record leaves unclear which checkpoints are live.
    """
    grace_ms = parse_duration_ms(grace, "--grace")
    jobdir = job_directory(directory, job, option)
    plan = gc.plan(jobdir, SystemClock(), grace_ms)
    if not json:
        output = table("delete", "size", "because", right=("size",))
        for item in plan.garbage:
            add_row(output, item.path, size_text(item.size_bytes), item.reason)
        if plan.garbage:
            console().print(output)
        print(
            f"{len(plan.garbage)} objects, {size_text(plan.total_bytes)} to delete; {plan.too_young} stay, younger "
            f"than {grace} or than the newest checkpoint; live checkpoints: {', '.join(map(str, plan.live)) or 'none'}"
        )
    deleted = 0 if dry_run else gc.execute(plan)
    if json:
        print_json(
            {
                "job": job,
                "garbage": [asdict(item) for item in plan.garbage],
                "total_bytes": plan.total_bytes,
                "too_young": plan.too_young,
                "live": plan.live,
                "dry_run": dry_run,
                "deleted": deleted,
            }
        )
    else:
        print("nothing was deleted: this was a dry run" if dry_run else f"{deleted} objects deleted")


def _bytes_to_read(jobdir: JobDirectory, checkpoint: CheckpointId) -> int:
    """Return how many bytes a verification reads; 0 if the manifest cannot be read."""
    try:
        manifest = jobdir.read(manifest_path(checkpoint), MANIFEST.decode)
    except StrandlineError:
        return 0
    return sum(file.size for file in manifest.stored())


def checkpoint_number(text: str) -> CheckpointId:
    """Return a checkpoint's number from 17 or chk-17."""
    match = re.fullmatch(r"(?:chk-)?(\d+)", text)
    if not match:
        raise ConfigurationError(f"checkpoint is {text!r}, expected a number or 'latest'")
    return CheckpointId(int(match[1]))


def _all(jobdir: JobDirectory) -> list[CheckpointId]:
    """Return the checkpoints that are not void, damaged ones too, newest first. Raises NotFoundError if none is."""
    numbers = [summary.checkpoint for summary in check.summaries(jobdir) if summary.state != "void"]
    if not numbers:
        raise NotFoundError(
            f"{jobdir.url}: job '{jobdir.job}' has no checkpoint",
            hint="it has one after its first checkpoint interval; `strandline logs` shows what its keepers do",
        )
    return numbers
