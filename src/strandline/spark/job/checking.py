"""Whether a job could go on from a snapshot, without starting it and without touching anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NoReturn

from strandline.control.status import Savepoint
from strandline.core.errors import ConfigurationError, IncompatibleStateError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.plan.upgrade import Upgrade
from strandline.snapshot.opening.snapshot import open_folder
from strandline.spark.job.attempt import Wanted
from strandline.spark.job.compat import differences, to_regroup, watermark_changes
from strandline.spark.job.following import parallelism_of
from strandline.spark.job.job import Job
from strandline.spark.job.preparation import Preparation
from strandline.spark.job.program_jobs import Named
from strandline.spark.job.run import Run
from strandline.storage.base import ObjectStore
from strandline.storage.remote import open_store


@dataclass(frozen=True)
class Check:
    """What would become of a snapshot in a job."""

    job: str
    url: str
    """Of the snapshot."""
    upgrade: Upgrade
    notes: tuple[str, ...]
    """What else is to be known: of watermarks, and of what a start would do with the snapshot."""
    refusals: tuple[str, ...]
    """Everything that stands against it; empty if the job can go on."""
    regroup: str
    """What to do first where the program wants another max_parallelism than the snapshot has; else ""."""


def check_upgrade(job: Job, url: str, drop: Collection[str] = (), *, reopen: bool = False) -> Check:
    """Say what would become of each operator and state of a snapshot if the job were started with it.

    What a start looks at before it touches anything is looked at, all of it. Raises what `open_snapshot` does for a
    snapshot that cannot be restored at all, and ConfigurationError for one that the job has gone back behind.
    """
    spark = job._plan.sources.session
    blueprint = job._blueprint(spark, Wanted(url, drop=tuple(drop), reopen=reopen), store=_store_of(job))
    preparation = Preparation(blueprint, frozenset(), CheckpointId(0), None)
    origin, notes = preparation.decide(), []
    if not origin.is_new:
        notes.append(
            "the job has restored this snapshot before: to restore it once more, a start needs again=, --again"
        )
        blueprint = replace(blueprint, wanted=replace(blueprint.wanted, again="check-upgrade"))
        preparation = Preparation(blueprint, frozenset(), CheckpointId(0), None)
        origin = preparation.decide()
    manifest, pipeline = origin.manifest, job._plan.pipeline
    assert manifest is not None
    refusals: list[str] = []
    for check in [*job._checks(spark), *preparation.checks(origin)]:
        try:
            check()
        except IncompatibleStateError as error:
            refusals += error.fields.get("differences", [error.message])
        except ConfigurationError as error:
            refusals.append(f"{error.message}: {error.hint}" if error.hint else error.message)
    operators = pipeline.settle(parallelism_of(job.settings, spark), manifest.operators)
    sinks = {name: sink for name, sink, _ in job._plan.sinks}
    upgrade, _ = differences(manifest, operators, sinks, job._plan.sources.names, drop, fork=origin.is_fork)
    notes += watermark_changes(manifest, pipeline.watermarks)
    return Check(
        job.name, origin.url, upgrade, tuple(notes), tuple(refusals), to_regroup(upgrade, operators, origin.url)
    )


def _store_of(job: Job) -> ObjectStore:
    """Open where a job's checkpoints are; where there is no directory yet, none is made."""
    try:
        return open_folder(str(job.checkpoints.directory), job.checkpoints.storage_options, fsync=False).store
    except NotFoundError:
        return open_store("memory://")


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
