"""`strandline profile`: where the time of a running job's keepers goes, by function."""

from __future__ import annotations

import json as jsons
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.jobs import OfDirectory, RunningJob
from strandline.cli.output import Table, print_json, say
from strandline.cli.stores import AsJson, LocalDir, root_of
from strandline.control.client import call, find_driver
from strandline.control.commands import PROFILE, TakeProfile
from strandline.control.profile import Profile
from strandline.core.errors import ConfigurationError, NotFoundError

_FORMS = (".folded", ".json")
_MOST_FUNCTIONS = 15


def profile(
    job: RunningJob,
    seconds: Annotated[float, typer.Option(help="How long to take samples; a minute at most.")] = 5.0,
    operator: Annotated[str, typer.Option(metavar="UID", help="Only that operator.")] = "",
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the stacks: .folded for flame graphs, .json for speedscope."),
    ] = None,
    directory: OfDirectory = None,
    local_dir: LocalDir = None,
    json: AsJson = False,
) -> None:
    """Show in which functions a running job's time goes.

    Each keeper looks a hundred times a second at what its program's functions and its state do. No values are seen.
    """
    if output is not None and output.suffix not in _FORMS:
        raise ConfigurationError(f"--output {output}: expected a file's name that ends in {' or '.join(_FORMS)}")
    profiled = call(
        find_driver(root_of(local_dir), job, directory), PROFILE, TakeProfile(seconds), timeout_s=seconds + 30
    )
    if operator:
        if operator not in profiled.operators:
            raise NotFoundError(
                f"job '{profiled.job}' has no operator '{operator}'",
                hint=f"its operators are {', '.join(profiled.operators)}",
            )
        profiled = profiled.of(operator)
    if output is not None:
        text = profiled.folded() if output.suffix == ".folded" else jsons.dumps(profiled.speedscope())
        output.write_text(text)
        say(f"written: {output}")
    if json:
        for uid in profiled.operators:
            _print_json(uid, profiled.of(uid))
    elif output is None:
        for uid in profiled.operators:
            _print(uid, profiled.of(uid))


def _print(uid: str, profile: Profile) -> None:
    work, waiting, idle = profile.shares
    table = Table("function", "itself", "with what it calls", right=("itself", "with what it calls"))
    for name, itself, total in _function_rows(profile):
        table.add(name, itself, total)
    program = f" ({profile.program:.0%} of it in the program's functions)" if work else ""
    say(f"{uid}: at work {work:.0%} of the time{program}, waiting for rows {waiting:.0%}, idle {idle:.0%}")
    table.print()


def _print_json(uid: str, profile: Profile) -> None:
    work, waiting, idle = profile.shares
    print_json({
        "operator": uid, "work": round(work, 4), "program": round(profile.program, 4), "waiting": round(waiting, 4),
        "idle": round(idle, 4),
        "functions": [
            {"function": name, "itself": itself, "total": total} for name, itself, total in profile.functions()
        ],
    })  # fmt: skip


def _function_rows(profile: Profile) -> list[tuple[str, str, str]]:
    whole = sum(profile.stacks.values()) or 1
    return [
        (name, f"{itself / whole:.0%}", f"{total / whole:.0%}")
        for name, itself, total in profile.functions()[:_MOST_FUNCTIONS]
    ]
