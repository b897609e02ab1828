"""Whether a job could go on from a snapshot, without starting it and without touching anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.jobdir import JobDirectory
from strandline.control.status import Savepoint
from strandline.core.errors import NotFoundError
from strandline.plan.upgrade import Upgrade
from strandline.snapshot.opened import Snapshot, open_folder, open_snapshot
from strandline.spark.job.attempt import Wanted
from strandline.spark.job.compat import differences, to_regroup
from strandline.spark.job.following import parallelism_of
from strandline.spark.job.job import Job
from strandline.spark.job.run import Run
from strandline.spark.job.watched import Named


@dataclass(frozen=True)
class Check:
    """What would become of a snapshot in a job."""

    job: str
    snapshot: Snapshot
    upgrade: Upgrade
    refusals: tuple[str, ...]
    """Everything that stands against it; empty if the job can go on."""
    regroup: str
    """What to do first where the program wants another max_parallelism than the snapshot has; else ""."""


def check_upgrade(job: Job, url: str, drop: Collection[str] = ()) -> Check:
    """Say what would become of each operator and state of a snapshot if the job were started with it.

    Raises what `open_snapshot` does for a snapshot that cannot be restored at all.
    """
    snapshot = open_snapshot(url, job.checkpoints.storage_options, fsync=False)
    manifest, plan = snapshot.manifest, job._plan
    operators = plan.pipeline.settle(parallelism_of(job.settings, plan.sources.session), manifest.operators)
    sinks = {name: sink for name, sink, _ in plan.sinks}
    fork = _life_of(job) != manifest.life
    upgrade, refusals = differences(manifest, operators, sinks, plan.sources.names, drop, fork=fork)
    return Check(job.name, snapshot, upgrade, tuple(refusals), to_regroup(upgrade, operators, snapshot.url))


def _life_of(job: Job) -> str:
    """Return the life of which the job's checkpoints are; "" if it has none yet."""
    try:
        directory = open_folder(str(job.checkpoints.directory), job.checkpoints.storage_options, fsync=False)
    except NotFoundError:
        return ""
    return read_catalog(JobDirectory(directory.store, job.name)).life


class Looker:
    """Collects jobs that a program makes, and starts none: the program ends where it asks anything of a run."""

    class Enough(BaseException):
        """Ends the program: there is no run that it could use."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.wanted: dict[str, Wanted] = {}
        """What the program itself wants those to begin with that it would start."""

    def made(self, job: Named) -> None:
        """Keep a job; of two with one name, the later one."""
        assert isinstance(job, Job)
        self.jobs[job.name] = job

    def start(self, job: Named, wanted: Wanted) -> Run:
        """Keep what would be started, and let the program go on to its next job."""
        self.made(job)
        self.wanted[job.name] = wanted
        no_run: Run = _NoRun()  # type: ignore[assignment]
        return no_run

    def bootstrap(self, job: Named) -> Savepoint:
        """Make nothing, and let the program go on."""
        self.made(job)
        nothing: Savepoint = _NoRun()  # type: ignore[assignment]
        return nothing


class _NoRun:
    def __getattr__(self, name: str) -> NoReturn:
        raise Looker.Enough

    def __enter__(self) -> NoReturn:
        raise Looker.Enough

    def __exit__(self, *error: object) -> None:
        pass
