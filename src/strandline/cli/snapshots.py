"""`strandline snapshots`: commands for checkpoints and savepoints in any place, without a job and without Spark."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import typer

from strandline.checkpoint import gc
from strandline.checkpoint.check import Problem, SnapshotSummary, VerifyReport
from strandline.checkpoint.folder import Folder, folder_at
from strandline.cli.output import Table, print_json, print_result, say, with_times
from strandline.cli.progress import ByteCounter, progress_bar
from strandline.cli.stores import AsJson, StorageOptions, job_directory, no_job_error, parse_options, snapshot_url
from strandline.control.wire import ProgressMessage
from strandline.core.clock import SystemClock
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.core.settings import parse_duration_ms
from strandline.core.texts import duration_text, size_text, time_text
from strandline.snapshot.opening.snapshot import (
    Snapshot,
    check_outside_jobs,
    find_snapshot,
    job_paths,
    nothing_error,
    open_folder,
    pinned_snapshot,
    place_of,
    plain_url,
)
from strandline.storage.place import Place

# Modules that need Arrow are imported where they are used: importing it takes longer than most commands.
if TYPE_CHECKING:
    from strandline.snapshot.savepoints.progress import SavepointProgress
    from strandline.snapshot.savepoints.take import Form
    from strandline.snapshot.tools.copy import CopyResult

app = typer.Typer(
    help="List, show, verify, copy, compare and delete snapshots.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_STYLES = {"complete": "green", "void": "dim", "damaged": "red"}

SnapshotUrl = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A savepoint, a checkpoint (…/JOB/chk-17), or a job: its newest one. A path or a URL.",
        show_default=False,
    ),
]
TargetOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--to-option",
        metavar="KEY=VALUE",
        show_default=False,
        help="A setting of the target's storage client; without any, those of --option. Never shown.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")]


@app.command("list")
def list_(
    url: Annotated[str, typer.Argument(metavar="URL", help="A checkpoint directory, or any folder: a path or a URL.")],
    job: Annotated[str | None, typer.Option("--job", metavar="NAME", help="Only the snapshots of this job.")] = None,
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """List the checkpoints and savepoints at a place and below it.

    The newest is the first. Each is complete (it can be restored, if its bytes are intact), damaged (a file is missing
    or has the wrong size, or a record cannot be read) or void (written by a driver that was replaced, and ignored).
    """
    from strandline.snapshot.opening.listing import list_snapshots

    options = parse_options(option)
    summaries = list_snapshots(url, options)
    snapshots = [summary for summary in summaries if job in (None, summary.job)]
    if not snapshots:
        folder = open_folder(url, options, fsync=False)
        paths = job_paths(info.path for info in folder.list())
        if not paths and not summaries:
            raise nothing_error(folder)
        if job is not None and job not in {path.rpartition("/")[2] for path in paths}:
            raise no_job_error(folder, job, {*paths, *(summary.job for summary in summaries if summary.job)})
        say("no checkpoint is complete yet")
    if json:
        for summary in snapshots:
            print_json(with_times(asdict(summary)))
    elif snapshots:
        _print_list(snapshots, f"{plain_url(url)}/")


def _print_list(snapshots: list[SnapshotSummary], here: str) -> None:
    from rich.text import Text

    numbers = ("epoch", "size", "increment", "duration")
    columns = ("snapshot", "state", "form", "job", "taken", *numbers)
    output = Table(*columns, right=numbers, whole=("state", "taken"), spare=("duration", "increment", "epoch"))
    # A checkpoint's path names its job.
    paths_suffice = all(f"/{summary.job}/chk-" in summary.url for summary in snapshots)
    reasons = []
    for summary in snapshots:
        figures: tuple[object, ...] = ("-",) * len(numbers)
        if summary.form:
            figures = (
                summary.epoch, size_text(summary.total_bytes),
                size_text(summary.uploaded_bytes) if summary.kind == "checkpoint" else "-",
                duration_text(summary.duration_ms) if summary.duration_ms else "-",
            )  # fmt: skip
        name, state = unquote(summary.url.removeprefix(here)), Text(summary.state, style=_STYLES[summary.state])
        output.add(
            name, state, summary.form, "" if paths_suffice else summary.job, time_text(summary.created_ms), *figures
        )
        if summary.reason:
            reasons.append(f"{name}: {summary.state}: {summary.reason.removeprefix('void: ')}")
    output.print()
    for reason in reasons:
        print(reason)


@app.command("show")
def show(snapshot: SnapshotUrl, option: StorageOptions = None, json: AsJson = False) -> None:
    """Show the operators, states, sources and sinks of a snapshot."""
    options = parse_options(option)
    result = find_snapshot(snapshot_url(snapshot, options), options, fsync=False)
    from strandline.cli import describe

    if json:
        data = {"url": result.url, "kind": result.kind, "refused": result.refused, **describe.as_data(result.manifest)}
        print_json(with_times(data))
        return
    describe.print_tables(result.manifest, result.url)
    if result.refused:
        say(f"it cannot be restored: {result.refused}")


@app.command("verify")
def verify(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="SNAPSHOT...",
            help="Snapshots, or folders: of each job in one the newest checkpoint is read, and each savepoint.",
            show_default=False,
        ),
    ],
    every: Annotated[bool, typer.Option("--all", help="Also the older checkpoints that are not void.")] = False,
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Read every byte of snapshots again, and name damaged files.

    Exit code 1 if any file is missing or damaged.
    """
    from strandline.snapshot.opening.listing import current, list_snapshots, verify_snapshot

    options = parse_options(option)
    targets: list[SnapshotSummary] = []
    for place in places:
        summaries = list_snapshots(place, options)
        chosen = [summary for summary in summaries if summary.state != "void"] if every else current(summaries)
        if not summaries:
            # This raises the error that says what is there instead.
            find_snapshot(snapshot_url(place, options), options, fsync=False)
        # One that is void is read if it is all there is: it was named.
        targets += chosen or summaries
    summary_table = Table("snapshot", "files", "size", "result", right=("files", "size"))
    problems = []
    with progress_bar() as report:
        counter = ByteCounter(report, sum(target.total_bytes for target in targets))
        for target in targets:
            name = unquote("/".join(target.url.split("/")[-2:]))
            counter.step = f"reading {name}"
            try:
                result = verify_snapshot(target.url, options, counter.add)
            except NotFoundError as error:
                result = VerifyReport(0, 0, [Problem("_metadata", target.reason or error.message)])
            if json:
                about = {"url": target.url, "job": target.job, "checkpoint": target.checkpoint}
                print_json({**about, "ok": result.ok, **asdict(result)})
            outcome = "intact" if result.ok else f"problems: {len(result.problems)}"
            summary_table.add(target.url, result.files, size_text(result.bytes), outcome)
            problems += [f"{name}: {problem.path}: {problem.problem}" for problem in result.problems]
    if not json:
        summary_table.print()
        for line in problems:
            print(line)
    if problems:
        say("next step: bring these files back from a copy, or use another snapshot that is intact")
        raise typer.Exit(1)


@app.command("copy")
def copy(
    snapshot: SnapshotUrl,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The folder that becomes the copy.")],
    canonical: Annotated[
        bool, typer.Option("--canonical", help="Make a savepoint of tables of it, which any backend restores.")
    ] = False,
    native: Annotated[
        bool, typer.Option("--native", help="Make a savepoint of it as it is: a checkpoint's files, in one folder.")
    ] = False,
    option: StorageOptions = None,
    to_option: TargetOptions = None,
    json: AsJson = False,
) -> None:
    """Copy a snapshot to another folder or store.

    Every file is checked on its way. Files that are there are not sent again: one that broke off goes on where it was,
    and several checkpoints of a job share files in one target. With --canonical or --native, a checkpoint becomes a
    savepoint that needs nothing beside its folder; the target must be empty then.
    """
    if canonical and native:
        raise typer.BadParameter("give --canonical or --native, not both")
    options = parse_options(option)
    to_options = parse_options(to_option) if to_option else options
    with pinned_snapshot(snapshot_url(snapshot, options), options) as source:
        form = _form(source, "canonical" if canonical else "native" if native else None)
        check_outside_jobs(target, to_options)
        place = place_of(target, to_options)
        url = plain_url(target)
        if form is not None:
            copied = _take_savepoint(source, place, form, options)
        else:
            copied = _copy_files(source, folder_at(place))
            url += "" if source.kind == "savepoint" else f"/chk-{source.manifest.checkpoint}"
    sent = f"{copied.sent_files} files, {size_text(copied.sent_bytes)}" if copied.sent_files else "none, all were there"
    data = {"url": url, "form": form or source.manifest.savepoint or source.manifest.mode, **asdict(copied)}
    print_result(data, f"{url}: {copied.files} files, {size_text(copied.bytes)}; sent: {sent}", json=json)


@app.command("diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A snapshot, as of `show`.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="Another one.")],
    sample: Annotated[str | None, typer.Option(metavar="P%", help="Read only this part of the key groups.")] = None,
    keys: Annotated[int, typer.Option(metavar="N", min=0, help="Show so many keys of each state that differ.")] = 0,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 1 if anything differs.")] = False,
    option: StorageOptions = None,
    to_option: TargetOptions = None,
    json: AsJson = False,
) -> None:
    """Compare the state in two snapshots, key by key.

    The result is the number of keys added, changed and removed, by operator and state. Backend, form and parallelism do
    not matter, nor what had expired when they were taken. Of two canonical savepoints, files with the same name are
    equal and not read. --to-option is for the storage of AFTER.
    """
    part = _part(sample)
    options = parse_options(option)
    to_options = parse_options(to_option) if to_option else options
    from strandline.cli.differences import as_data, print_diff
    from strandline.snapshot.tools.diff import diff_snapshots

    with (
        pinned_snapshot(snapshot_url(before, options), options) as old,
        pinned_snapshot(snapshot_url(after, to_options), to_options) as new,
        progress_bar() as report,
    ):

        def report_groups(done: int, total: int) -> None:
            report(ProgressMessage("comparing", done, total, "key groups"))

        differences = diff_snapshots(old, new, sample=part, most_keys=keys, progress=report_groups)
    if json:
        print_json(as_data(differences))
    else:
        print_diff(differences)
    if exit_code and not differences.is_equal:
        raise typer.Exit(1)


@app.command("delete")
def delete(
    snapshot: SnapshotUrl,
    dry_run: DryRun = False,
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Delete a savepoint, but no checkpoint.

    A job that has restored it must have a checkpoint of its own by now. A deletion that was broken off is ended by
    another one. Checkpoints are refused: their jobs delete them, and `strandline snapshots gc` what none needs.
    """
    from strandline.snapshot.opening.deletion import delete_snapshot, find_deletable

    options = parse_options(option)
    target = find_deletable(snapshot, options) if dry_run else delete_snapshot(snapshot, options)
    files = target.manifest.stored()
    size_bytes = sum(file.size for file in files)
    done = "nothing was deleted, this was a dry run; it has" if dry_run else "deleted:"
    data = {"url": target.url, "files": len(files), "bytes": size_bytes, "dry_run": dry_run}
    print_result(data, f"{target.url}: {done} {len(files)} files, {size_text(size_bytes)}", json=json)


@app.command("gc")
def gc_(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="What the job gave to Checkpoints(…).")],
    job: Annotated[str, typer.Option("--job", metavar="NAME", help="The job whose garbage is collected.")],
    dry_run: DryRun = False,
    grace: Annotated[
        str, typer.Option(help="Younger files stay, and those younger than the newest checkpoint.")
    ] = "1h",
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Delete what failed checkpoints and killed drivers of a job left.

    Prints the plan, then executes it. Refuses to delete anything while the newest checkpoint misses a file, or while a
    damaged record leaves unclear which checkpoints are live.
    """
    grace_ms = parse_duration_ms(grace, "--grace")
    plan = gc.plan(job_directory(directory, job, option), SystemClock(), grace_ms)
    if not json:
        output = Table("delete", "size", "because", right=("size",))
        for item in plan.garbage:
            output.add(item.path, size_text(item.size_bytes), item.reason)
        if plan.garbage:
            output.print()
        print(
            f"{len(plan.garbage)} objects, {size_text(plan.total_bytes)} to delete; {plan.too_young} stay, younger "
            f"than {grace} or than the newest checkpoint; live checkpoints: {', '.join(map(str, plan.live)) or 'none'}"
        )
    deleted = 0 if dry_run else gc.execute(plan)
    data = {
        "job": job, "garbage": [asdict(item) for item in plan.garbage], "total_bytes": plan.total_bytes,
        "too_young": plan.too_young, "live": plan.live, "dry_run": dry_run, "deleted": deleted,
    }  # fmt: skip
    done = "nothing was deleted: this was a dry run" if dry_run else f"{deleted} objects deleted"
    print_result(data, done, json=json)


def _part(sample: str | None) -> float:
    """Return the fraction of the key groups to read."""
    if sample is None:
        return 1.0
    try:
        part = float(sample.removesuffix("%")) / 100
    except ValueError:
        part = math.nan
    if not 0 < part <= 1:
        raise ConfigurationError(f"--sample is {sample!r}, expected a percentage", hint="write it like --sample 5%")
    return part


def _form(snapshot: Snapshot, form: Form | None) -> Form | None:
    """Return the form of the savepoint to make; None for a copy without a change."""
    if form is None or form == snapshot.manifest.savepoint:
        return None
    if snapshot.manifest.savepoint == "canonical":
        raise ConfigurationError(
            f"{snapshot.url}: a canonical savepoint cannot be made native: a native one holds a backend's own files",
            hint="copy it as it is, or restore it in a job and take a native savepoint of that",
        )
    return form


def _copy_files(snapshot: Snapshot, folder: Folder) -> CopyResult:
    from strandline.snapshot.tools.copy import copy_snapshot

    with progress_bar() as report:
        counter = ByteCounter(report, sum(file.size for file in snapshot.manifest.stored()))
        counter.step = "copying"
        return copy_snapshot(snapshot, folder, counter.add)


def _take_savepoint(snapshot: Snapshot, target: Place, form: Form, options: dict[str, str]) -> CopyResult:
    from strandline.snapshot.savepoints.take import take_savepoint
    from strandline.snapshot.tools.copy import CopyResult

    with progress_bar() as report:

        def report_rows(progress: SavepointProgress) -> None:
            step = f"writing tables, {progress.rows} rows"
            report(ProgressMessage(step, progress.done, progress.partitions, "partitions"))

        manifest = take_savepoint(snapshot.manifest, snapshot.folder.place(options), target, form, report=report_rows)
    files = manifest.stored()
    size_bytes = sum(file.size for file in files)
    return CopyResult(len(files), size_bytes, len(files), size_bytes)
