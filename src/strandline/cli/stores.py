"""Options of the command line that name a store and the jobs in it, and the functions that open them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import ConfigurationError, NotFoundError
from strandline.core.settings import default_local_dir
from strandline.core.urls import check_url
from strandline.storage.base import ObjectStore

Directory = Annotated[
    str, typer.Argument(metavar="DIRECTORY", help="The checkpoint directory: a path or a URL, as given to Checkpoints.")
]
JobName = Annotated[str | None, typer.Option("--job", metavar="NAME", help="The job; needed where there are several.")]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        envvar="STRANDLINE_STORAGE_OPTIONS",
        show_default=False,
        help="A setting of the storage client (credentials, endpoint, …); may be repeated. Never shown.",
    ),
]
LocalDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The job's Settings.local_dir, if it was given one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only: one object a line.")]

_IN_A_JOB = re.compile(r"([^/]+)/(generations|chk-\d+)/.+")
_IS_A_JOB = re.compile(r"(generations|chk-\d+)/[^/]+")


def root_of(local_dir: Path | None) -> Path:
    """Return the directory of drivers and keepers: `local_dir`, or the default."""
    return (local_dir or default_local_dir()).absolute()


def open_directory(directory: str, options: Sequence[str] | None) -> ObjectStore:
    """Open the storage of a checkpoint directory. A local directory must exist: none is created."""
    from strandline.storage.remote import open_store
    from strandline.storage.retrying import RetryingStore

    parts = urlsplit(check_url(directory))
    if "://" not in directory or parts.scheme == "file":
        path = Path(unquote(parts.path) if parts.scheme == "file" else directory).expanduser()
        if not path.is_dir():
            raise NotFoundError(
                f"{path.absolute()}: no such directory", hint="give the directory that the job's Checkpoints(…) names"
            )
    return RetryingStore(open_store(directory, parse_options(options)))


def parse_options(options: Sequence[str] | None) -> dict[str, str]:
    """Return storage options by name. An error does not quote the option: it may be a secret."""
    parsed: dict[str, str] = {}
    for number, option in enumerate(options or (), 1):
        name, sign, value = option.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z][\w.-]*", name):
            raise ConfigurationError(
                f"--option number {number} is not of the form key=value", hint="write it like --option region=eu-west-1"
            )
        parsed[name] = value
    return parsed


def job_names(store: ObjectStore) -> list[str]:
    """Return the jobs: folders of the first level that hold a generation or a checkpoint. Lists the whole store."""
    names = set()
    for info in store.list(""):
        if _IS_A_JOB.fullmatch(info.path):
            raise ConfigurationError(
                f"{store.url} is one job's own folder, not a checkpoint directory",
                hint=f"give the directory above it, and --job {store.url.rpartition('/')[2]}",
            )
        match = _IN_A_JOB.fullmatch(info.path)
        if match:
            names.add(match[1])
    return sorted(names)


def job_directories(directory: str, job: str | None, options: Sequence[str] | None) -> list[JobDirectory]:
    """Return the job's directory, or those of all jobs when none is named."""
    store = open_directory(directory, options)
    if job is not None:
        jobdir = JobDirectory(store, job)
        if next(jobdir.list(), None) is None:
            raise _not_found_error(store, f"no job '{job}'", job_names(store))
        return [jobdir]
    names = job_names(store)
    if not names:
        raise _not_found_error(store, "no job", names)
    return [JobDirectory(store, name) for name in names]


def job_directory(directory: str, job: str | None, options: Sequence[str] | None) -> JobDirectory:
    """Return one job's directory; without a name, the directory must hold exactly one job."""
    directories = job_directories(directory, job, options)
    if len(directories) > 1:
        raise ConfigurationError(
            f"{directories[0].store.url} holds {len(directories)} jobs: {', '.join(each.job for each in directories)}",
            hint="say which one with --job NAME",
        )
    return directories[0]


def _not_found_error(store: ObjectStore, what: str, names: Sequence[str]) -> NotFoundError:
    others = f"the jobs there are: {', '.join(names)}"
    none = "give the directory that the job's Checkpoints(…) names; a job is there from its first start on"
    return NotFoundError(f"{store.url}: {what} there", hint=others if names else none)
