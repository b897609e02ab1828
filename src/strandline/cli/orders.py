"""Options of the command line for a program's jobs: the snapshot that each restores, and the state that it may lose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from strandline.core.errors import ConfigurationError

Restore = Annotated[
    list[str] | None,
    typer.Option(
        "--restore",
        metavar="[JOB=]URL",
        show_default=False,
        help="A snapshot: a savepoint, a checkpoint (…/JOB/chk-17) or a job's folder; with the name of the job that "
        "is to restore it if the program has several.",
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        "--drop",
        metavar="[JOB=]UID[.NAME]",
        show_default=False,
        help="A stored operator, or a state, field or aggregate of it, that the program does not have any more, and "
        "that may be lost; repeated.",
    ),
]
FromNow = Annotated[
    list[str] | None,
    typer.Option(
        "--from-now",
        metavar="[JOB=]UID",
        show_default=False,
        help="An aggregation of a view whose new aggregates may begin empty: of groups that are stored, they have the "
        "rows from now on alone; repeated.",
    ),
]

_NAMED = re.compile(r"([^=/:]+)=(.+)")


def restores(options: Sequence[str] | None) -> dict[str, str]:
    """Return the snapshot of each job; "" stands for an option without a name."""
    snapshots: dict[str, str] = {}
    for job, url in map(_split_job, options or ()):
        if not url.strip():
            # Perhaps an unset variable: the job would restore its own checkpoint, or start empty.
            raise ConfigurationError("--restore names no snapshot: it is empty", hint="give its path or url")
        if job in snapshots:
            raise ConfigurationError(
                f"--restore names two snapshots for {f'job {job!r}' if job else 'one job'}: {snapshots[job]} and {url}",
                hint="write --restore JOB=URL for each job",
            )
        snapshots[job] = url
    return snapshots


def by_job(options: Sequence[str] | None) -> dict[str, list[str]]:
    """Return the names that an option gives for each job; "" stands for an option without a job's name."""
    names: dict[str, list[str]] = {}
    for job, name in map(_split_job, options or ()):
        names.setdefault(job, []).append(name)
    return names


def _split_job(option: str) -> tuple[str, str]:
    match = _NAMED.fullmatch(option)
    return (match[1], match[2]) if match else ("", option)


def split(args: Sequence[str]) -> tuple[dict[str, list[str]], set[str], list[str]]:
    """Split a program's arguments into our options with their values, our flags, and the program's own arguments.

    Ours are --restore, --claim, --again, --drop, --from-now and --reopen directly behind the program; `--` ends them.
    """
    ours: dict[str, list[str]] = {"--restore": [], "--drop": [], "--from-now": [], "--again": []}
    flags: set[str] = set()
    rest = list(args)
    while rest:
        name, sign, value = rest[0].partition("=")
        if rest[0] in ("--claim", "--reopen"):
            flags.add(rest[0])
        elif name in ours and sign:
            ours[name].append(value)
        elif name in ours:
            if len(rest) < 2:
                raise typer.BadParameter(f"Option '{name}' requires an argument.")
            ours[name].append(rest.pop(1))
        else:
            break
        rest.pop(0)
    return ours, flags, rest[1:] if rest[:1] == ["--"] else rest
