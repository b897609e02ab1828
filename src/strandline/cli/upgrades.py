"""`strandline check-upgrade`: what would become of a snapshot in a program, before anything starts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.driver import outcome, prepare
from strandline.cli.orders import Drop, Restore, drops, restores
from strandline.cli.output import add_row, console, print_json, say, table
from strandline.cli.stores import AsJson
from strandline.core.errors import ConfigurationError

if TYPE_CHECKING:
    from strandline.spark.job.checking import Check, Looker

_STYLES = {"refused": "red", "dropped": "yellow", "migrated": "cyan", "renamed": "cyan", "new": "green"}


def check_upgrade(
    program: Annotated[
        Path, typer.Argument(metavar="APP.PY", exists=True, dir_okay=False, readable=True, help="The program.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]...", help="Its arguments, behind a `--`.")
    ] = None,
    restore: Restore = None,
    drop: Drop = None,
    reopen: Annotated[
        bool, typer.Option("--reopen", help="Of a job that was drained, as if it were started with --reopen.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Say of each operator, state and aggregate in a snapshot what a program would make of it, and why not.

    The program is run up to where it uses a job that it has started: no job starts, and nothing is written, but what
    the program itself does before is done. Each state would be kept, migrated (its values are read as they were
    written), renamed, new, dropped or refused. Sources and sinks are asked what a start asks them before it touches
    anything. Exit code 1 if a job cannot go on.
    """
    if not restore:
        raise typer.BadParameter("say with --restore which snapshot")
    to_restore, to_drop = restores(restore), drops(drop)
    prepare(program, args or [])
    from strandline.spark.job.checking import Looker

    looker = Looker()
    # What the program prints is not ours.
    with contextlib.redirect_stdout(sys.stderr):
        code = look_into(program, looker)
    if code:
        raise typer.Exit(code)
    checks = check_all(program, looker, to_restore, to_drop, reopen=reopen)
    for found in checks:
        if json:
            print_json(as_data(found))
        else:
            _print(found)
    if any(found.refusals for found in checks):
        raise typer.Exit(1)


def look_into(program: Path, looker: Looker) -> int:
    """Run a program as far as it needs no run of a job; return its exit code if it ended before."""
    from strandline.spark.job.program_jobs import watching

    with watching(looker):
        try:
            return outcome(program)
        except looker.Enough:
            return 0


def check_all(
    program: Path,
    looker: Looker,
    restore: Mapping[str, str],
    drop: Mapping[str, Sequence[str]],
    *,
    reopen: bool = False,
) -> list[Check]:
    """Return what each job that is to restore something would make of it."""
    from strandline.spark.job.attempt import Wanted
    from strandline.spark.job.checking import check_upgrade as check_job
    from strandline.spark.job.program_jobs import ONLY, check_named

    names = sorted(looker.jobs)
    check_named({*restore, *drop}, set(names))
    unknown = sorted({*restore, *drop} - {ONLY, *names})
    if unknown or not names:
        raise ConfigurationError(
            f"{program}: the program makes no job{f' {unknown[0]!r}' if unknown else ''}",
            hint=f"its jobs are {', '.join(names)}" if names else "it must come to its Job(…) without waiting for one",
        )
    found = []
    for name in names:
        if url := restore.get(name) or restore.get(ONLY):
            own = looker.wanted.get(name, Wanted())
            dropped = {*own.drop, *drop.get(name, ()), *drop.get(ONLY, ())}
            found.append(check_job(looker.jobs[name], url, dropped, reopen=reopen or own.reopen))
    return found


def as_data(found: Check) -> dict[str, Any]:
    """Return all that was found of one job."""
    return {
        "job": found.job,
        "snapshot": found.url,
        "fits": not found.refusals,
        "changes": found.upgrade.to_rows(),
        "notes": list(found.notes),
        "refusals": list(found.refusals),
        "drop": list(found.upgrade.drop),
        "unused": list(found.upgrade.unused),
        "hint": found.upgrade.hint,
    }


def _print(found: Check) -> None:
    from rich.text import Text

    print(f"job {found.job}, from {found.url}")
    made = table("operator", "state or aggregate", "what becomes of it", "was", "details")
    for change in found.upgrade.changes:
        action = Text(change.action, style=_STYLES.get(change.action, ""))
        name = f"{change.aggregate} (aggregate)" if change.aggregate else change.state or "-"
        add_row(made, change.uid, name, action, change.was, "; ".join(change.details))
    console().print(made)
    for name in found.upgrade.unused:
        say(f"--drop {name}: the snapshot has nothing of that name")
    for note in found.notes:
        print(f"note: {note}")
    if not found.refusals:
        print("the job can go on")
        return
    print("the job cannot go on:")
    for refusal in found.refusals:
        print(f"  {refusal}")
    if found.upgrade.hint:
        say(f"next step: {found.upgrade.hint}")
    if found.upgrade.drop:
        missing = " ".join(f"--drop {quote(name)}" for name in found.upgrade.drop)
        say(f"next step: to go on without what is gone, add {missing}")
    if found.regroup:
        say(f"next step: {found.regroup}")
