"""`strandline snapshots`: commands for checkpoints and savepoints in any place, without a job and without Spark."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import typer

from strandline.checkpoint.folder import Folder, folder_at
from strandline.cli.output import add_row, console, print_json, say, size_text, table, time_text, with_times
from strandline.cli.progress import ByteCounter, progress_bar
from strandline.cli.stores import AsJson, StorageOptions, parse_options
from strandline.cli.verification import Reports
from strandline.control.wire import ProgressMessage
from strandline.core.errors import ConfigurationError
from strandline.snapshot.opening.snapshot import (
    Snapshot,
    check_outside_jobs,
    find_snapshot,
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
    help="Look at checkpoints and savepoints, check, copy, compare and delete them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_STYLES = {"complete": "green", "void": "dim", "damaged": "red"}

SnapshotUrl = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="A savepoint, a checkpoint (…/JOB/chk-17) or a job's folder (its newest one): a path or a URL.",
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


@app.command("list")
def list_(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to look: a path or a URL; all below it is found.")],
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """List the checkpoints and savepoints at a place and everywhere below it; newest first.

    Each is complete (it can be restored, if its bytes are intact), damaged (a file is missing or has the wrong size, or
    a record cannot be read) or void (written beside the history that its job went on with).
    """
    from strandline.snapshot.opening.listing import list_snapshots

    snapshots = list_snapshots(url, parse_options(option))
    if json:
        for summary in snapshots:
            print_json(with_times(asdict(summary)))
        return
    from rich.text import Text

    here = f"{plain_url(url)}/"
    output = table("snapshot", "state", "form", "job", "taken", "epoch", "size", "reason", right=("epoch", "size"))
    for summary in snapshots:
        columns: tuple[object, ...] = ("-",) * 5
        if summary.form:
            taken_at, size = time_text(summary.created_ms), size_text(summary.total_bytes)
            columns = (summary.form, summary.job, taken_at, summary.epoch, size)
        state = Text(summary.state, style=_STYLES[summary.state])
        add_row(output, unquote(summary.url.removeprefix(here)), state, *columns, summary.reason)
    if snapshots:
        console().print(output)
    else:
        say("there is no snapshot")


@app.command("show")
def show(snapshot: SnapshotUrl, option: StorageOptions = None, json: AsJson = False) -> None:
    """Show one snapshot: operators, states with their types, partitions or tables, source progress, pending sinks."""
    result = find_snapshot(snapshot, parse_options(option), fsync=False)
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
    snapshots: Annotated[
        list[str], typer.Argument(metavar="SNAPSHOT...", help="As of `show`; several may be given.", show_default=False)
    ],
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Read every byte of snapshots again; name what is missing or damaged. Exit code 1 if anything is."""
    from strandline.snapshot.opening.listing import verify_snapshot

    options = parse_options(option)
    reports = Reports("snapshot", json=json)
    with progress_bar() as report:
        for number, url in enumerate(snapshots):
            report(ProgressMessage(f"reading {url}", number, len(snapshots), "snapshots"))
            reports.add({"url": url}, verify_snapshot(url, options))
    reports.end("bring these files back from a copy, or use another snapshot that is intact")


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
    """Copy a snapshot to another folder or store, every file checked on its way.

    Files that are there are not sent again: one that broke off goes on where it was, and several checkpoints of a job
    share files in one target. With --canonical or --native, a checkpoint becomes a savepoint that needs nothing beside
    its folder; the target must be empty then.
    """
    if canonical and native:
        raise typer.BadParameter("give --canonical or --native, not both")
    options = parse_options(option)
    to_options = parse_options(to_option) if to_option else options
    with pinned_snapshot(snapshot, options) as source:
        form = _form(source, "canonical" if canonical else "native" if native else None)
        check_outside_jobs(target, to_options)
        place = place_of(target, to_options)
        url = plain_url(target)
        if form is not None:
            copied = _take_savepoint(source, place, form, options)
        else:
            copied = _copy_files(source, folder_at(place))
            url += "" if source.kind == "savepoint" else f"/chk-{source.manifest.checkpoint}"
    if json:
        print_json({"url": url, "form": form or source.manifest.savepoint or source.manifest.mode, **asdict(copied)})
    else:
        sent = f"{copied.sent_files} files, {size_text(copied.sent_bytes)}"
        whole = f"{copied.files} files, {size_text(copied.bytes)}"
        print(f"{url}: {whole}; sent: {sent if copied.sent_files else 'none, all were there'}")


@app.command("diff")
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A snapshot, as of `show`.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="Another one.")],
    sample: Annotated[
        str | None, typer.Option(metavar="P%", help="Read only this part of the key groups, and estimate the rest.")
    ] = None,
    keys: Annotated[int, typer.Option(metavar="N", min=0, help="Show so many keys of each state that differ.")] = 0,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="End with 1 if anything differs.")] = False,
    option: StorageOptions = None,
    to_option: TargetOptions = None,
    json: AsJson = False,
) -> None:
    """Compare the state in two snapshots: keys added, changed and removed, by operator and state.

    Backend, form and parallelism do not matter, nor what had expired when they were taken. Of two canonical
    savepoints, files with the same name are equal and not read. --to-option is for the storage of AFTER.
    """
    part = _part(sample)
    options = parse_options(option)
    to_options = parse_options(to_option) if to_option else options
    from strandline.cli.differences import as_data, print_diff
    from strandline.snapshot.tools.diff import diff_snapshots

    with (
        pinned_snapshot(before, options) as old, pinned_snapshot(after, to_options) as new, progress_bar() as report
    ):  # fmt: skip

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    option: StorageOptions = None,
    json: AsJson = False,
) -> None:
    """Delete a savepoint. A job that has restored it must have a checkpoint of its own by now.

    A deletion that was broken off is ended by another one. Checkpoints are refused: their jobs delete them, and
    `strandline checkpoints gc` what no one needs.
    """
    from strandline.snapshot.opening.deletion import delete_snapshot, find_deletable

    options = parse_options(option)
    target = find_deletable(snapshot, options) if dry_run else delete_snapshot(snapshot, options)
    files = target.manifest.stored()
    size_bytes = sum(file.size for file in files)
    if json:
        print_json({"url": target.url, "files": len(files), "bytes": size_bytes, "dry_run": dry_run})
    else:
        done = "nothing was deleted, this was a dry run; it has" if dry_run else "deleted:"
        print(f"{target.url}: {done} {len(files)} files, {size_text(size_bytes)}")


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
