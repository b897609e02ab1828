"""A job: a pipeline with a name, sinks and checkpoints, ready to be started."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

from pyspark.sql import SparkSession

from strandline.api.config import Checkpoints, Restart
from strandline.api.telemetry import Telemetry
from strandline.checkpoint.jobdir import JobDirectory, check_job_name
from strandline.control.events import EventLog
from strandline.control.html import graph_html
from strandline.control.status import Savepoint
from strandline.core import failpoints
from strandline.core.clock import SystemClock
from strandline.core.errors import ConfigurationError
from strandline.core.html import card, facts, strong
from strandline.core.settings import Duration, Settings, parse_duration_ms
from strandline.format.manifest import OperatorInfo
from strandline.keeper.paths import Places
from strandline.plan.checks import missing_yield
from strandline.snapshot.opening.snapshot import check_checkpoints_place, open_snapshot, plain_url, savepoint_place
from strandline.snapshot.savepoints.take import FORMS, Form
from strandline.spark.base.filesystem import absolute
from strandline.spark.base.session import check_session, session_warnings
from strandline.spark.job.attempt import Blueprint, Check, StartOptions
from strandline.spark.job.attending import attend
from strandline.spark.job.bootstrapping import BootstrapOptions, Report, bootstrap, private_checkpoints
from strandline.spark.job.compat import place_in_sources
from strandline.spark.job.draining import Draining
from strandline.spark.job.following import parallelism_of
from strandline.spark.job.history import Frames, Order, history_of
from strandline.spark.job.outline import outline
from strandline.spark.job.program_jobs import intercept_bootstrap, intercept_job, intercept_start
from strandline.spark.job.run import Run
from strandline.spark.job.skipping import files_of_history
from strandline.spark.lower.plan import Plan
from strandline.spark.lower.unused import find_unused, mark_used
from strandline.spark.sources.checks import relations_of, source_warnings
from strandline.spark.streams.filesource import check_disjoint, check_not_shared
from strandline.spark.streams.stream import Output
from strandline.storage.base import ObjectStore
from strandline.storage.kafkaparts import topics_at
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore

log = logging.getLogger(__name__)

_SPARK_TRIGGERS = ("once", "availablenow", "continuous")


class StartArguments(TypedDict, total=False):
    """The options of `Job.start`."""

    restore: str | Path | None
    claim: bool
    drop: Sequence[str]
    again: str
    reopen: bool
    from_now: Sequence[str]


class Job:
    """A streaming job. Its name and checkpoint directory are its identity: a second start continues it.

    `trigger` is the time between epochs ("1s"), "available-now" to process the present rows and end, or None for as
    fast as possible. With `drain`, event time advances to its end when the job ends: windows and event-time timers
    output their results, as after `run.stop(drain=True)`. `telemetry` is where its driver reports metrics and lineage.

    >>> job = Job("alerts", sinks=[alerts.to(sinks.files("out/"))], checkpoints=Checkpoints("ck/", every="10s"))
    """

    def __init__(
        self,
        name: str,
        *,
        sinks: Sequence[Output],
        checkpoints: Checkpoints,
        restart: Restart | None = None,
        trigger: Duration | None = None,
        drain: bool = False,
        settings: Settings | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        _check_types(name, checkpoints, restart, settings, telemetry)
        self.name = name
        self.checkpoints = checkpoints
        self.restart = restart or Restart()
        self.settings = settings or Settings()
        self.telemetry = telemetry
        if checkpoints.local_log and self.settings.backend != "rocksdb":
            raise ConfigurationError(
                f"job '{name}': local_log=True is for the backend 'rocksdb', and the backend is "
                f"'{self.settings.backend}'",
                hint='leave it out of Checkpoints(…), or write settings=sl.Settings(backend="rocksdb")',
            )
        self._trigger = _trigger(trigger)
        self._drain = drain
        if drain and trigger != "available-now":
            raise ConfigurationError(
                f"job '{name}': drain=True is for sources that end, and trigger is {trigger!r}",
                hint='write trigger="available-now"; to drain a job that runs on, call run.stop(drain=True)',
            )
        self._plan = Plan(sinks)
        mark_used(sinks)
        self._run: Run | None = None
        intercept_job(self)

    def start(
        self,
        spark: SparkSession | None = None,
        *,
        restore: str | Path | None = None,
        claim: bool = False,
        drop: Sequence[str] = (),
        again: str = "",
        reopen: bool = False,
        from_now: Sequence[str] = (),
    ) -> Run:
        """Start the job, or continue it from its newest complete checkpoint. Return the run once state is restored.

        `restore` is the URL of a snapshot to restore in place of it: a savepoint, a checkpoint (`…/job/chk-17`) or a
        job's folder (its newest checkpoint), of this job or another one. It is restored once: a later start with the
        same `restore`, also after others, continues from the job's own newest checkpoint. To restore it once more, pass
        any new name as `again`. The job's own checkpoints become void only after every byte of the snapshot was read.
        Another job's snapshot stays unchanged, and is needed until the job's first own checkpoint. With `claim`, a
        savepoint then belongs to the job, which deletes it, and no other job can restore it. An older checkpoint of
        its own sets the job back: sinks remove the output that came later.

        `drop` names stored operators, as "uid", states, as "uid.state", fields of their types, as "uid.state.field",
        and results of `agg()`, as "uid.result", that the program does not have any more and that may be lost.

        `from_now` names aggregations of views, by their uids, whose new aggregates may begin empty: of groups that are
        stored, they then have the rows from now on alone.

        A drained job is refused, because every event would be late. With `reopen`, it continues with its state, and
        event time restarts with the next events: a window that was cut short is output again, with its new events only.

        Errors in the program and its environment are raised here, before any change.
        """
        options = _options(restore, claim, drop, again, reopen, from_now)
        return self._begin(spark, options, Run.start)

    def run(self, spark: SparkSession | None = None, **options: Unpack[StartArguments]) -> None:
        """Start the job and wait until it ends, as start() and await_termination() of its run; raises its error.

        The options are those of start(). Ctrl-C, or "interrupt the kernel" in a notebook, has the job take a last
        checkpoint and stop; a second one, meanwhile, stops it at once. Then KeyboardInterrupt is raised, which a
        notebook shows as one line: its kernel can run the job again. A notebook also shows the job live.

        >>> job.run(spark)                                                          # doctest: +SKIP
        """
        self._begin(spark, _options(**options), partial(attend, name=self.name))

    def _begin(self, spark: SparkSession | None, options: StartOptions, begin: Callable[[Run], None]) -> Run:
        """Begin a run of this job, after all checks; return it, or what a program receives in its place."""
        intercepted = intercept_start(self, options)
        if not isinstance(intercepted, StartOptions):
            return intercepted
        if self._run is not None and self._run.status().state in ("starting", "running", "restarting", "rescaling"):
            raise ConfigurationError(f"job '{self.name}' is running already", hint="stop that run first: run.stop()")
        spark = spark or self._plan.sources.session
        for check in self._checks(spark):
            check()
        sources = self._plan.sources.nodes
        read = [relation for node in sources for relation in relations_of(node.df)]
        silent = [missing_yield(node.process, node.uid) for node in self._plan.pipeline.operators]
        for warning in [*session_warnings(spark), *source_warnings(read), *find_unused(sources), *filter(None, silent)]:
            log.warning("%s", warning)
        failpoints.arm_from_environment()
        blueprint = self._blueprint(spark, intercepted)
        blueprint.places.make()
        run = self._run = Run(blueprint, self.restart)
        try:
            begin(run)
        except BaseException:
            self._run = None
            raise
        return run

    def bootstrap(
        self,
        spark: SparkSession | None = None,
        *,
        savepoint: str | Path,
        history: Frames,
        order_by: Order = None,
        parallelism: int | None = None,
        format: Form = "canonical",
        rows_per_epoch: int = 100_000,
        time_per_epoch: Duration | None = None,
        starting_from: str | Path | None = None,
        skip_files: bool = False,
        scratch: str | Path | None = None,
        progress: Report | None = None,
    ) -> Savepoint:
        """Process bounded history with the pipeline, and save its state as a savepoint, for `start(restore=…)`.

        `history` is a DataFrame with the columns of the job's source, or a dict with one for each source by its name;
        the other sources have no history. Rows are processed in the order of event time, in epochs of about
        `rows_per_epoch` rows or at most `time_per_epoch` ("1h"), so that none is late, and timers and windows fire as
        in a running job; the clock shows the rows' time, too. `order_by` is a column or an SQL expression of the
        history, or one for each source. It is needed if a step creates the watermark's column, and for an order without
        a watermark. Windows that are open at the end stay open.

        The job then reads its sources from their configured beginning: they must exclude the rows of the history. Or it
        reads them from the position of the snapshot `starting_from`: then the history is what that job had read. Or,
        with `skip_files`, file sources skip the files of the history.

        There is no output: sinks are not opened. The job itself may run meanwhile. The sorted history is written to
        `scratch`, a directory that Spark reaches, by default beside the checkpoints. `progress` is called after each
        epoch.

        Raises ConfigurationError for columns that differ, before any change, and ConflictError if the folder
        `savepoint` is not empty. It appears when it is complete; the next bootstrap deletes the files of a killed one.

        >>> job.bootstrap(spark, savepoint="sp/begin", history=spark.read.parquet("history/"), progress=print)
        >>> run = job.start(spark, restore="sp/begin")
        """
        if (instead := intercept_bootstrap(self)) is not None:
            return instead
        spark = spark or self._plan.sources.session
        check_session(spark)
        if format not in FORMS:
            raise ConfigurationError(f"format is {format!r}, expected one of {', '.join(FORMS)}")
        if not isinstance(rows_per_epoch, int) or rows_per_epoch < 1:
            raise ConfigurationError(f"rows_per_epoch is {rows_per_epoch!r}, expected 1 or more")
        time_us = None if time_per_epoch is None else parse_duration_ms(time_per_epoch, "time_per_epoch") * 1000
        if time_us == 0:
            raise ConfigurationError(f"time_per_epoch is {time_per_epoch!r}, expected more than 0")
        target = savepoint_place(str(savepoint), self.checkpoints.storage_options, fsync=self.settings.fsync)
        plan = self._plan.without_sinks()
        if not plan.pipeline.operators:
            raise ConfigurationError(
                f"job '{self.name}' has no keyed operator: there is no state that history could leave",
                hint="start it: it needs no savepoint",
            )
        rows = history_of(plan.sources, plan.pipeline, history, order_by)
        if time_us is not None and not rows.is_timed:
            raise ConfigurationError(
                "time_per_epoch is given, and the history has no times",
                hint="give the column that has them: order_by=…",
            )
        start = None
        if starting_from is not None and skip_files:
            raise ConfigurationError(
                "starting_from and skip_files exclude each other: each sets where the sources continue", hint="give one"
            )
        if starting_from is not None:
            start = open_snapshot(str(starting_from), self.checkpoints.storage_options, fsync=self.settings.fsync)
            place_in_sources(start.manifest, start.url, plan.sources.names)
        skipped = files_of_history(plan.sources, rows.frames) if skip_files else None
        failpoints.arm_from_environment()
        settings = self.settings if parallelism is None else replace(self.settings, parallelism=parallelism)
        checkpoints, name_here = private_checkpoints(self.checkpoints), f"{self.name}.bootstrap"
        blueprint = self._blueprint(spark, StartOptions(), checkpoints, name_here)
        blueprint.places.make()
        blueprint = replace(blueprint, plan=plan, settings=settings)
        spool, report = None if scratch is None else absolute(scratch), progress or (lambda _: None)
        options = BootstrapOptions(rows, target, format, rows_per_epoch, time_us, spool, report, start, skipped)
        return bootstrap(blueprint, self.restart, options)

    def _repr_html_(self) -> str:
        ck = self.checkpoints
        values = {
            "checkpoints": plain_url(str(ck.directory)), "every": ck.every, "mode": ck.mode,
            "backend": self.settings.backend, "trigger": self._trigger.get("processingTime"),
        }  # fmt: skip
        return card(strong(f"job {self.name}"), facts(values), graph_html(outline(self._plan)))

    def operators(self) -> list[OperatorInfo]:
        """Return the operators as the manifests of a new job list them, without partitions."""
        parallelism = parallelism_of(self.settings, self._plan.sources.session)
        return [operator.info(self.settings.backend) for operator in self._plan.pipeline.settle(parallelism)]

    def _checks(self, spark: SparkSession) -> list[Check]:
        """Return the checks before any start; each raises an error if the job cannot start."""
        sources, sinks, ck = self._plan.sources.nodes, [sink for _, sink, _ in self._plan.sinks], self.checkpoints
        return [
            partial(check_session, spark),
            partial(check_not_shared, sources),
            partial(check_checkpoints_place, str(ck.directory), ck.storage_options),
            partial(_check_log, ck),
            partial(check_disjoint, sources, sinks, f"{plain_url(str(ck.directory))}/{self.name}"),
            self._plan.check_sinks,
        ]

    def _blueprint(
        self,
        spark: SparkSession,
        options: StartOptions,
        checkpoints: Checkpoints | None = None,
        name_here: str = "",
        store: ObjectStore | None = None,
    ) -> Blueprint:
        """Return what attempts need. `name_here` is the name of the job's local directories, by default its name.

        `store` is the store of checkpoints; by default, it is opened, which creates its directory.
        """
        ck = checkpoints or self.checkpoints
        if str(ck.directory).startswith("memory:"):
            raise ConfigurationError(
                "checkpoints: memory:// is a store of one process, and a job has several", hint="give a directory"
            )
        if store is None:
            store = RetryingStore(open_store(str(ck.directory), ck.storage_options, fsync=self.settings.fsync))
        places = Places(Path(self.settings.local_dir).absolute(), store.url, name_here or self.name)
        clock = SystemClock()
        return Blueprint(
            name=self.name,
            spark=spark,
            plan=self._plan,
            checkpoints=ck,
            settings=self.settings,
            jobdir=JobDirectory(store, self.name),
            places=places,
            trigger=self._trigger,
            clock=clock,
            telemetry=self.telemetry,
            events=EventLog(places.event_log, self.name, store.url, clock),
            options=options,
            draining=Draining(at_end=self._drain),
        )


def _check_log(checkpoints: Checkpoints) -> None:
    """Raise ConfigurationError if the topic for the logs of checkpoints would lose some of them."""
    log = checkpoints.changelog.log
    if log is not None and checkpoints.mode == "changelog":
        topics_at(log.servers, log.cluster.options).check(log.topic)


def _options(
    restore: str | Path | None = None,
    claim: bool = False,
    drop: Sequence[str] = (),
    again: str = "",
    reopen: bool = False,
    from_now: Sequence[str] = (),
) -> StartOptions:
    return StartOptions(str(restore or ""), claim, tuple(drop), again, reopen, tuple(from_now))


def _check_types(name: Any, checkpoints: Any, restart: Any, settings: Any, telemetry: Any) -> None:
    """Raise ConfigurationError for a value of a wrong type."""
    check_job_name(name)
    for what, value, kind, example in (
        ("checkpoints", checkpoints, Checkpoints, 'sl.Checkpoints("…", every="10s")'),
        ("restart", restart, Restart, "sl.Restart(attempts=5)"),
        ("settings", settings, Settings, "sl.Settings(parallelism=4)"),
        ("telemetry", telemetry, Telemetry, "sl.Telemetry(prometheus=9464)"),
    ):
        if not isinstance(value, kind) and not (value is None and what != "checkpoints"):
            raise ConfigurationError(
                f"job '{name}': {what} is {value!r:.200}, expected {kind.__name__}(…)",
                hint=f"write {what}={example}",
            )


def _trigger(trigger: Duration | None) -> dict[str, Any]:
    if trigger is None:
        return {}
    if trigger == "available-now":
        return {"availableNow": True}
    if isinstance(trigger, dict) or (isinstance(trigger, str) and trigger.lower().replace("_", "") in _SPARK_TRIGGERS):
        raise ConfigurationError(
            f"trigger is {trigger!r}, expected a duration or 'available-now'",
            hint='write trigger="available-now" to process what is there and end, trigger="10s" for the time between '
            "epochs",
        )
    return {"processingTime": f"{parse_duration_ms(trigger, 'trigger')} milliseconds"}
