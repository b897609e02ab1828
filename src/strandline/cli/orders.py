"""What is said on the command line of a program's jobs: which snapshot each restores, and what may be lost."""

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

_NAMED = re.compile(r"([^=/:]+)=(.+)")


def restores(given: Sequence[str] | None) -> dict[str, str]:
    """Return snapshots by job; without a name, by ""."""
    found: dict[str, str] = {}
    for job, url in map(_named, given or ()):
        if not url.strip():
            # As of a variable that is not set: the job would go on from its own checkpoint, or begin empty.
            raise ConfigurationError("--restore names no snapshot: it is empty", hint="give its path or url")
        if job in found:
            raise ConfigurationError(
                f"--restore names two snapshots for {f'job {job!r}' if job else 'one job'}: {found[job]} and {url}",
                hint="write --restore JOB=URL for each job",
            )
        found[job] = url
    return found


def drops(given: Sequence[str] | None) -> dict[str, list[str]]:
    """Return what may be lost by job; without a name, by ""."""
    found: dict[str, list[str]] = {}
    for job, name in map(_named, given or ()):
        found.setdefault(job, []).append(name)
    return found


def _named(given: str) -> tuple[str, str]:
    match = _NAMED.fullmatch(given)
    return (match[1], match[2]) if match else ("", given)


def split(args: Sequence[str]) -> tuple[dict[str, list[str]], set[str], list[str]]:
    """Return what of a program's arguments is ours, as options with their values and as flags, and the rest.

    Ours are --restore, --claim, --again, --drop and --reopen directly behind the program; `--` ends them.
    """
    ours: dict[str, list[str]] = {"--restore": [], "--drop": [], "--again": []}
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
