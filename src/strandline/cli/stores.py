"""Options of the command line that name a store and the jobs in it, and the functions that open them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from strandline.checkpoint.folder import Folder
from strandline.checkpoint.jobdir import GENERATIONS, JobDirectory
from strandline.cli.output import say
from strandline.core.errors import ConfigurationError, NotFoundError, StrandlineError
from strandline.core.settings import default_local_dir
from strandline.snapshot.opening.snapshot import METADATA, job_paths, open_folder

if TYPE_CHECKING:
    from strandline.ui.jobs import Jobs

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
JobsOrDirectories = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DIRECTORY | JOB]...",
        help="Directories of checkpoints, or names of jobs; without one, all jobs of this machine.",
        show_default=False,
    ),
]
LocalDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The job's Settings.local_dir, if it was given one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only: one object a line.")]


def root_of(local_dir: Path | None) -> Path:
    """Return the directory of drivers and keepers: `local_dir`, or the default."""
    return (local_dir or default_local_dir()).absolute()


def jobs_of(
    what: Sequence[str] | None, local_dir: Path | None, option: Sequence[str] | None, *, may_come: bool = False
) -> Jobs:
    """Return the jobs with these names and in these directories, or all of this machine.

    Each must be there. If names `may_come`, one that is not is only warned of.
    """
    from strandline.ui.jobs import Jobs

    jobs = Jobs(root_of(local_dir), tuple(what or ()), parse_options(option))
    known = {job.name for job in jobs.all()}
    if missing := [name for name in jobs.names if name not in known]:
        there = sorted({job.name for job in Jobs(jobs.local_dir).all()})
        error = NotFoundError(
            f"{', '.join(missing)}: there is no such job on this machine, with the local_dir {jobs.local_dir}",
            hint=f"the jobs there are: {', '.join(there)}; a directory of checkpoints has a slash, as in ./{missing[0]}"
            if there
            else "give the job's Settings.local_dir with --local-dir; a job is there from its first start on",
        )
        if not may_come:
            raise error
        say(f"strandline: WARNING: {error}")
    return jobs


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


def job_directory(directory: str, job: str, options: Sequence[str] | None) -> JobDirectory:
    """Return a job's directory in a checkpoint directory. A local directory must exist: none is created."""
    folder = open_folder(directory, parse_options(options))
    jobdir = JobDirectory(folder.store, job)
    if next(jobdir.list(), None) is None:
        jobs = job_paths(info.path for info in folder.list())
        raise no_job_error(folder, job, [path for path in jobs if "/" not in path])
    return jobdir


def no_job_error(folder: Folder, job: str, names: Collection[str]) -> StrandlineError:
    """Return the error of a folder without this job, but with those of these names; "" is the folder itself."""
    if "" in names:
        return ConfigurationError(
            f"{folder.url} is one job's own folder, not a checkpoint directory",
            hint=f"give the directory above it, and --job {folder.url.rpartition('/')[2]}",
        )
    return NotFoundError(
        f"{folder.url}: no job '{job}' there",
        hint=f"the jobs there are: {', '.join(sorted(names))}"
        if names
        else "give the directory that the job's Checkpoints(…) names; a job is there from its first start on",
    )


def snapshot_url(place: str, options: Mapping[str, str]) -> str:
    """Return the url of the snapshot at a place: of a directory with one job that is no snapshot, that job's folder."""
    folder = open_folder(place, options, fsync=False)
    is_job = next(folder.list(GENERATIONS), None) is not None
    paths = [] if is_job else [info.path for info in folder.list()]
    jobs = [] if METADATA in paths else job_paths(paths)
    return f"{folder.url}/{quote(jobs[0])}" if len(jobs) == 1 and jobs[0] else place
