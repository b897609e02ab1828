"""A job: a pipeline with a name, sinks and checkpoints, ready to be started."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from strandline.api.config import Checkpoints, Restart
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core import failpoints
from strandline.core.clock import SystemClock
from strandline.core.errors import ConfigurationError
from strandline.core.settings import Settings, parse_duration_ms
from strandline.format.manifest import OperatorInfo
from strandline.keeper.paths import Places
from strandline.spark.base.session import check_session, session_warnings
from strandline.spark.job import watched
from strandline.spark.job.attempt import Blueprint, Wanted
from strandline.spark.job.following import parallelism_of
from strandline.spark.job.run import Run
from strandline.spark.lower.plan import Plan
from strandline.spark.sources.checks import relations_of, source_warnings
from strandline.spark.streams.filesource import check_not_shared
from strandline.spark.streams.stream import Output
from strandline.storage.remote import open_store
from strandline.storage.retrying import RetryingStore

log = logging.getLogger(__name__)


class Job:
    """A streaming job. Its name and checkpoint directory are its identity: started again, it continues.

    `trigger` is the time between epochs ("1s"), "available-now" to process what is there and end, or None for as
    fast as possible.

    >>> job = Job("alerts", sinks=[alerts.to(sinks.files("out/"))], checkpoints=Checkpoints("ck/", every="10s"))
    """

    def __init__(
        self,
        name: str,
        *,
        sinks: Sequence[Output],
        checkpoints: Checkpoints,
        restart: Restart | None = None,
        trigger: str | int | float | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.name = name
        self.checkpoints = checkpoints
        self.restart = restart or Restart()
        self.settings = settings or Settings()
        self._trigger = _trigger(trigger)
        self._plan = Plan(sinks)
        self._run: Run | None = None
        if not isinstance(checkpoints, Checkpoints):
            raise ConfigurationError(
                f"job '{name}': checkpoints is {checkpoints!r}", hint="write checkpoints=Checkpoints('…', every='10s')"
            )
        watched.made(self)

    def start(
        self,
        spark: SparkSession | None = None,
        *,
        restore: str | Path | None = None,
        claim: bool = False,
        drop: Sequence[str] = (),
    ) -> Run:
        """Start the job, or continue it from its newest complete checkpoint. Return the run once state is restored.

        `restore` names a snapshot to begin with instead: a savepoint, a checkpoint (`…/job/chk-17`) or a job's folder
        (its newest), of this job or another one, wherever it lies. It is restored once: started again with the same
        `restore`, the job goes on from its own newest checkpoint. A snapshot of somebody else stays as it is, and is
        needed until the job's first own checkpoint; with `claim`, a savepoint is the job's, which deletes it then. An
        older checkpoint of its own sets the job back: sinks take back what came later.

        `drop` names stored operators, as "uid", states, as "uid.state", and results of `agg()`, as "uid.result", that
        the program does not have any more and that may be lost.

        Errors in the program and its environment are raised here; nothing has been touched then.
        """
        wanted = watched.about_to_start(self, Wanted(str(restore or ""), claim, tuple(drop)))
        if not isinstance(wanted, Wanted):
            return wanted
        if self._run is not None and self._run.status().state in ("starting", "running", "restarting", "rescaling"):
            raise ConfigurationError(f"job '{self.name}' is running already", hint="stop that run first: run.stop()")
        spark = spark or self._plan.sources.session
        check_session(spark)
        check_not_shared(self._plan.sources.nodes)
        read = [relation for node in self._plan.sources.nodes for relation in relations_of(node.df)]
        for warning in [*session_warnings(spark), *source_warnings(read)]:
            log.warning("%s", warning)
        failpoints.arm_from_environment()
        run = self._run = Run(self._blueprint(spark, wanted), self.restart)
        try:
            run.start()
        except BaseException:
            self._run = None
            raise
        return run

    def operators(self) -> list[OperatorInfo]:
        """Return what snapshots of the job say of its operators, without rows: as of its very first start."""
        said = parallelism_of(self.settings, self._plan.sources.session)
        return [operator.info(self.settings.backend) for operator in self._plan.pipeline.settle(said)]

    def _blueprint(self, spark: SparkSession, wanted: Wanted) -> Blueprint:
        ck = self.checkpoints
        if str(ck.directory).startswith("memory:"):
            raise ConfigurationError(
                "checkpoints: memory:// is a store of one process, and a job has several", hint="give a directory"
            )
        store = RetryingStore(open_store(str(ck.directory), ck.storage_options, fsync=self.settings.fsync))
        places = Places(Path(self.settings.local_dir).absolute(), store.url, self.name)
        places.make()
        return Blueprint(
            name=self.name,
            spark=spark,
            plan=self._plan,
            checkpoints=ck,
            settings=self.settings,
            jobdir=JobDirectory(store, self.name),
            places=places,
            trigger=self._trigger,
            clock=SystemClock(),
            wanted=wanted,
        )


def _trigger(trigger: str | int | float | None) -> dict[str, Any]:
    if trigger is None:
        return {}
    if trigger == "available-now":
        return {"availableNow": True}
    return {"processingTime": f"{parse_duration_ms(trigger, 'trigger')} milliseconds"}
