"""How many partitions a job's operators are to have; and a job that follows its executors, looked after."""

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

_LONGEST_LOOK_S = 1.0
_LOOKS = 10
_LONGEST_PAUSE_S = 3600.0


def parallelism_of(settings: Settings, spark: SparkSession, told: ParallelismOverride | None = None) -> Parallelism:
    """Return what is said of a job's parallelism, beside what the program says of its operators."""
    told = told or first_told(settings, spark)
    return Parallelism(
        default=spark.sparkContext.defaultParallelism,
        job=told.job or settings.fixed_parallelism,
        is_room=told.is_room,
        most=settings.follows.max or 0 if settings.follows else 0,
        overrides=told.operators,
    )


def first_told(settings: Settings, spark: SparkSession, *, wait: bool = False) -> ParallelismOverride:
    """Return what a run is told to begin with: the room that there is, if it is to follow; else nothing."""
    if settings.follows is None:
        return ParallelismOverride()
    if wait:
        if core_setting(spark, "spark.dynamicAllocation.enabled").lower() == "true":
            log.warning(
                "spark.dynamicAllocation.enabled is true, and the job is to follow its executors: Spark asks for more "
                "when tasks wait, and of a job that follows none does. Give a number as the parallelism"
            )
        await_executors(spark)
    return ParallelismOverride(settings.follows.within(task_slots(spark)), is_room=True)


class Followed(Protocol):
    """What is asked of a run that follows its executors."""

    @property
    def followed(self) -> tuple[int, int] | None:
        """How many partitions operators have that follow the executors, and may have at most: 0 while there are none.

        None: it follows them no more.
        """

    def follow(self, room: int) -> bool:
        """Go on with another number of partitions; False if somebody else is changing or stopping the job."""


class Follower(threading.Thread):
    """Rescales a run when its cluster has had other room for long enough. Ends with it, or when it follows no more."""

    def __init__(
        self, job: str, run: Followed, follow: FollowExecutors, spark: SparkSession, clock: Clock,
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
        """How many changes in a row."""

    def run(self) -> None:
        """Look until it is over."""
        look_s = min(_LONGEST_LOOK_S, self._follow.after_ms / 1000 / _LOOKS)
        while not self._ended.wait(look_s):
            followed = self._run.followed
            if followed is None:
                return
            now, most = followed
            if not most:
                # While the job restarts: an executor that it lost has time to be replaced from then on.
                self._autoscaler.reset()
                continue
            try:
                room = task_slots(self._spark)
            except Exception:
                # The session is gone, or going: the job will tell.
                self._autoscaler.reset()
                continue
            wanted = self._autoscaler.observe(room, int(self._clock.monotonic_ms()), now, most)
            if wanted is not None:
                self._change(now, wanted)

    def _change(self, now: int, wanted: int) -> None:
        try:
            if not self._run.follow(wanted):
                return
            self._failed = 0
            log.info("job '%s' follows its executors: parallelism %d, was %d", self._job, wanted, now)
        except Exception as error:
            if self._ended.is_set():
                return
            log.warning("job '%s' could not follow its executors to parallelism %d: %s", self._job, wanted, error)
            # Its epochs wait while it tries.
            self._ended.wait(min(_LONGEST_PAUSE_S, self._follow.after_ms / 1000 * 2**self._failed))
            self._failed += 1
        self._autoscaler.reset()
