"""Parallelism of a job, and the thread that rescales a job which follows its executors."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from pyspark.sql import SparkSession

from strandline.core.clock import Clock
from strandline.core.settings import FollowExecutors, Settings
from strandline.plan.autoscaler import Autoscaler
from strandline.plan.parallelism import Parallelism, ParallelismOverride
from strandline.spark.base.session import await_executors, core_setting, task_slots

log = logging.getLogger(__name__)

_LONGEST_CHECK_S = 1.0
_CHECKS = 10
_LONGEST_PAUSE_S = 3600.0


def parallelism_of(settings: Settings, spark: SparkSession, override: ParallelismOverride | None = None) -> Parallelism:
    """Return the job's parallelism; the program may define others for its operators."""
    override = override or initial_override(settings, spark)
    return Parallelism(
        default=spark.sparkContext.defaultParallelism,
        job=override.job or settings.fixed_parallelism,
        is_room=override.is_room,
        most=settings.follows.max or 0 if settings.follows else 0,
        max_parallelism=settings.max_parallelism,
        overrides=override.operators,
    )


def initial_override(settings: Settings, spark: SparkSession, *, wait: bool = False) -> ParallelismOverride:
    """Return the override at a run's start: the task slots of the executors if the job follows them, else none."""
    if settings.follows is None:
        return ParallelismOverride()
    if wait:
        if core_setting(spark, "spark.dynamicAllocation.enabled").lower() == "true":
            log.warning(
                "spark.dynamicAllocation.enabled is true, and the job follows its executors: Spark requests executors "
                "when tasks wait, and no task of such a job waits. Give a number as the parallelism"
            )
        await_executors(spark)
    return ParallelismOverride(settings.follows.within(task_slots(spark)), is_room=True)


class RescalableRun(Protocol):
    """A run that `Follower` rescales."""

    @property
    def followed(self) -> tuple[int, int] | None:
        """The parallelism of operators that follow the executors, and the greatest possible one; 0 while none run.

        None if the run does not follow the executors any more.
        """

    def follow(self, room: int) -> bool:
        """Rescale to another number of partitions; False if another request is changing or stopping the job."""


class Follower(threading.Thread):
    """Rescales a run after its executors have had another number of task slots for long enough."""

    def __init__(
        self, job: str, run: RescalableRun, follow: FollowExecutors, spark: SparkSession, clock: Clock,
        ended: threading.Event,
    ) -> None:  # fmt: skip
        super().__init__(name=f"strandline-follow-{job}", daemon=True)
        self._job = job
        self._run = run
        self._follow = follow
        self._spark = spark
        self._clock = clock
        self._ended = ended
        self._autoscaler = Autoscaler(follow)
        self._failed = 0
        """The number of failed changes in a row."""

    def run(self) -> None:
        """Check until the run ends or does not follow any more."""
        check_s = min(_LONGEST_CHECK_S, self._follow.after_ms / 1000 / _CHECKS)
        while not self._ended.wait(check_s):
            followed = self._run.followed
            if followed is None:
                return
            parallelism, most = followed
            if not most:
                # The job restarts: the time to replace a lost executor begins when it runs again.
                self._autoscaler.reset()
                continue
            try:
                slots = task_slots(self._spark)
            except Exception:
                # The session has been stopped: the job reports it.
                self._autoscaler.reset()
                continue
            wanted = self._autoscaler.observe(slots, int(self._clock.monotonic_ms()), parallelism, most)
            if wanted is not None:
                self._change(parallelism, wanted)

    def _change(self, parallelism: int, wanted: int) -> None:
        try:
            if not self._run.follow(wanted):
                return
            self._failed = 0
            log.info("job '%s' follows its executors: parallelism %d, was %d", self._job, wanted, parallelism)
        except Exception as error:
            if self._ended.is_set():
                return
            log.warning("job '%s' could not follow its executors to parallelism %d: %s", self._job, wanted, error)
            # A longer pause after each failure: epochs wait during an attempt to rescale.
            self._ended.wait(min(_LONGEST_PAUSE_S, self._follow.after_ms / 1000 * 2**self._failed))
            self._failed += 1
        self._autoscaler.reset()
