"""Check whether a job can continue from a snapshot, without a start and without any change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from strandline.control.status import Savepoint
from strandline.core.errors import ConfigurationError, IncompatibleStateError, NotFoundError
from strandline.core.ids import CheckpointId
from strandline.plan.upgrade import Upgrade
from strandline.snapshot.opening.snapshot import open_folder
from strandline.spark.job.attempt import StartOptions
from strandline.spark.job.compat import differences, to_regroup, watermark_changes
from strandline.spark.job.following import parallelism_of
from strandline.spark.job.job import Job
from strandline.spark.job.preparation import Preparation
from strandline.spark.job.program_jobs import NamedJob
from strandline.spark.job.run import Run
from strandline.storage.base import ObjectStore
from strandline.storage.remote import open_store


@dataclass(frozen=True)
class SnapshotCheck:
    """The result of the check of a job with a snapshot."""

    job: str
    url: str
    """The URL of the snapshot."""
    upgrade: Upgrade
    notes: tuple[str, ...]
    """Further facts about watermarks and about the start."""
    refusals: tuple[str, ...]
    """The reasons why the job cannot continue; empty if it can."""
    names: Mapping[str, str]
    """The names of the program's operators, by uid: of a view's, what they do."""
    regroup: str
    """The step to take first if the program has another max_parallelism than the snapshot; else ""."""


def check_upgrade(
    job: Job, url: str, drop: Collection[str] = (), *, reopen: bool = False, from_now: Collection[str] = ()
) -> SnapshotCheck:
    """Return what a start of the job with a snapshot would do with each stored operator and state.

    Runs all checks that a start makes before any change. Raises the errors of `open_snapshot` if the snapshot cannot be
    restored at all, and ConfigurationError for a checkpoint that a rollback has made void.
    """
    spark = job._plan.sources.session
    options = StartOptions(url, drop=tuple(drop), reopen=reopen, from_now=tuple(from_now))
    blueprint = job._blueprint(spark, options, store=_store_of(job))
    preparation = Preparation(blueprint, frozenset(), CheckpointId(0), None)
    origin, notes = preparation.decide(), []
    if not origin.is_new:
        notes.append(
            "the job has restored this snapshot before: to restore it once more, a start needs again=, --again"
        )
        blueprint = replace(blueprint, options=replace(blueprint.options, again="check-upgrade"))
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
    upgrade, _ = differences(
        manifest, operators, sinks, job._plan.sources.names, drop, fork=origin.is_fork, from_now=from_now
    )
    notes += watermark_changes(manifest, pipeline.watermarks)
    return SnapshotCheck(
        job.name,
        origin.url,
        upgrade,
        tuple(notes),
        tuple(refusals),
        {each.uid: each.node.name for each in operators},
        to_regroup(upgrade, operators, origin.url),
    )


def _store_of(job: Job) -> ObjectStore:
    """Open the store of a job's checkpoints, without creating its directory."""
    try:
        return open_folder(str(job.checkpoints.directory), job.checkpoints.storage_options, fsync=False).store
    except NotFoundError:
        return open_store("memory://")


class JobCollector:
    """Collects the jobs of a program and starts none: the program ends when it uses a run."""

    class RunUsedError(BaseException):
        """Ends the program when it uses a run, which does not exist."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.options: dict[str, StartOptions] = {}
        """The program's own options, for each job that it would start."""

    def add(self, job: NamedJob) -> None:
        """Keep a job; of two with the same name, the later one."""
        assert isinstance(job, Job)
        self.jobs[job.name] = job

    def start(self, job: NamedJob, options: StartOptions) -> Run:
        """Keep the job and its options, and let the program continue to its next job."""
        self.add(job)
        self.options[job.name] = options
        no_run: Run = _NoRun()  # type: ignore[assignment]
        return no_run

    def bootstrap(self, job: NamedJob) -> Savepoint:
        """Keep the job, and let the program continue."""
        self.add(job)
        no_savepoint: Savepoint = _NoRun()  # type: ignore[assignment]
        return no_savepoint


class _NoRun:
    def __getattr__(self, name: str) -> NoReturn:
        raise JobCollector.RunUsedError

    def __enter__(self) -> NoReturn:
        raise JobCollector.RunUsedError

    def __exit__(self, *error: object) -> None:
        pass
