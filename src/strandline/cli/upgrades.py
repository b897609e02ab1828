"""`strandline check-upgrade`: checks that a program can restore a snapshot, before any job starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.driver import outcome, prepare
from strandline.cli.orders import Drop, FromNow, Restore, by_job, restores
from strandline.cli.output import Table, print_json, programs_on_stderr, say
from strandline.cli.stores import AsJson
from strandline.core.errors import ConfigurationError

if TYPE_CHECKING:
    from strandline.spark.job.checking import JobCollector, SnapshotCheck

_STYLES = {
    "refused": "red",
    "dropped": "yellow",
    "extended": "cyan",
    "migrated": "cyan",
    "renamed": "cyan",
    "new": "green",
}


def check_upgrade(
    program: Annotated[
        Path, typer.Argument(metavar="PROGRAM", exists=True, dir_okay=False, readable=True, help="APP.PY, or FILE.SQL.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]...", help="Its arguments, behind a `--`.")
    ] = None,
    restore: Restore = None,
    drop: Drop = None,
    from_now: FromNow = None,
    reopen: Annotated[
        bool, typer.Option("--reopen", help="Of a job that was drained, as if it were started with --reopen.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Check that a program can go on from a snapshot.

    The result says of each operator, state and aggregate in the snapshot what becomes of it, and why not.
    The program is run up to where it uses a job that it has started: no job starts, and nothing is written, but what
    the program itself does before is done. Each state would be kept, migrated (its values are read as they were
    written), renamed, new, dropped or refused. Sources and sinks are asked what a start asks them before it touches
    anything. Exit code 1 if a job cannot go on.
    """
    if not restore:
        raise typer.BadParameter("say with --restore which snapshot")
    to_restore, to_drop = restores(restore), by_job(drop)
    prepare(program, args or [])
    from strandline.spark.job.checking import JobCollector

    collector = JobCollector()
    with programs_on_stderr():
        code = run_until_job(program, collector)
    if code:
        raise typer.Exit(code)
    checks = check_all(program, collector, to_restore, to_drop, by_job(from_now), reopen=reopen)
    for check in checks:
        if json:
            print_json(as_data(check))
        else:
            _print(check)
    if any(check.refusals for check in checks):
        raise typer.Exit(1)


def run_until_job(program: Path, collector: JobCollector) -> int:
    """Run a program until it uses the run of a job; return its exit code if it ended before."""
    from strandline.spark.job.program_jobs import intercept_jobs

    with intercept_jobs(collector):
        try:
            return outcome(program)
        except collector.RunUsedError:
            return 0


def check_all(
    program: Path,
    collector: JobCollector,
    restore: Mapping[str, str],
    drop: Mapping[str, Sequence[str]],
    from_now: Mapping[str, Sequence[str]],
    *,
    reopen: bool = False,
) -> list[SnapshotCheck]:
    """Return the check of each job that has a snapshot to restore."""
    from strandline.spark.job.attempt import StartOptions
    from strandline.spark.job.checking import check_upgrade as check_job
    from strandline.spark.job.program_jobs import ONLY, check_named

    names = sorted(collector.jobs)
    check_named({*restore, *drop, *from_now}, set(names))
    unknown = sorted({*restore, *drop, *from_now} - {ONLY, *names})
    if unknown or not names:
        raise ConfigurationError(
            f"{program}: the program makes no job{f' {unknown[0]!r}' if unknown else ''}",
            hint=f"its jobs are {', '.join(names)}" if names else "it must come to its Job(…) without waiting for one",
        )
    checks = []
    for name in names:
        if url := restore.get(name) or restore.get(ONLY):
            options = collector.options.get(name, StartOptions())
            dropped = {*options.drop, *drop.get(name, ()), *drop.get(ONLY, ())}
            begin = {*options.from_now, *from_now.get(name, ()), *from_now.get(ONLY, ())}
            checks.append(
                check_job(collector.jobs[name], url, dropped, reopen=reopen or options.reopen, from_now=begin)
            )
    return checks


def as_data(check: SnapshotCheck) -> dict[str, Any]:
    """Return a check as data for JSON."""
    return {
        "job": check.job,
        "snapshot": check.url,
        "fits": not check.refusals,
        "changes": [{**row, "name": check.names.get(row["operator"], "")} for row in check.upgrade.to_rows()],
        "notes": list(check.notes),
        "refusals": list(check.refusals),
        "drop": list(check.upgrade.drop),
        "from_now": list(check.upgrade.from_now),
        "unused": list(check.upgrade.unused),
        "hint": check.upgrade.hint,
    }


def _print(check: SnapshotCheck) -> None:
    from rich.text import Text

    print(f"job {check.job}, from {check.url}")
    output = Table("operator", "name", "state or aggregate", "what becomes of it", "was", "details")
    for change in check.upgrade.changes:
        action = Text(change.action, style=_STYLES.get(change.action, ""))
        name = f"{change.aggregate} (aggregate)" if change.aggregate else change.state or "-"
        what = check.names.get(change.uid, "") if not (change.state or change.aggregate) else ""
        output.add(change.uid, what, name, action, change.was, "; ".join(change.details))
    output.print()
    for name in check.upgrade.unused:
        say(f"--drop {name}: the snapshot has nothing of that name")
    for note in check.notes:
        print(f"note: {note}")
    if not check.refusals:
        print("the job can go on")
        return
    print("the job cannot go on:")
    for refusal in check.refusals:
        print(f"  {refusal}")
    if check.upgrade.hint:
        say(f"next step: {check.upgrade.hint}")
    if check.upgrade.drop:
        missing = " ".join(f"--drop {quote(name)}" for name in check.upgrade.drop)
        say(f"next step: to go on without what is gone, add {missing}")
    if check.upgrade.from_now:
        begin = " ".join(f"--from-now {uid}" for uid in check.upgrade.from_now)
        say(f"next step: to have new aggregates of views count from now on, add {begin}")
    if check.regroup:
        say(f"next step: {check.regroup}")
