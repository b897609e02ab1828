"""Watches of keepers and executors: those that die while nobody asks them anything, and what waits for them."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from strandline.core.ids import Partition
from strandline.keeper.protocol import Ack
from strandline.keeper.watchdog import process_start
from strandline.spark.base.session import has_free_slots

Slot = tuple[str, Partition]
"""An operator's uid and a partition."""

_STALLED_LOOKS = 20
"""And one for each second between heartbeats: until these come, Spark's driver may say that a running task is none."""


@dataclass
class _Watched:
    """A keeper, by the answer that it was first seen in."""

    ack: Ack
    fd: int
    """Of its process; -1 where the system knows no such thing, or no such process."""

    def close(self, poll: select.poll) -> None:
        if self.fd >= 0:
            poll.unregister(self.fd)
            os.close(self.fd)

    def is_gone(self, ended: set[int], newest: Ack) -> bool:
        if self.fd >= 0:
            return self.fd in ended
        # Who answers though he is not there is in a container, with processes of its own.
        return newest is self.ack and not process_start(self.ack.pid)


class KeeperWatch:
    """Watches the processes of this machine that have answered. For one thread; a look costs a system call."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[Slot, _Watched] = {}

    def has_lost_one(self, last: Mapping[Slot, Ack]) -> bool:
        """Whether one of the keepers that have answered so is gone. Of those of other machines nothing is known."""
        for slot, ack in last.items():
            known = self._watched.get(slot)
            if known is None or known.ack.keeper != ack.keeper:
                self._watch(slot, ack, known)
        ended = {fd for fd, _ in self._poll.poll(0)}
        return any(one.is_gone(ended, last[slot]) for slot, one in self._watched.items())

    def close(self) -> None:
        """Watch nobody any more."""
        while self._watched:
            _, one = self._watched.popitem()
            one.close(self._poll)

    def _watch(self, slot: Slot, ack: Ack, known: _Watched | None) -> None:
        if known is not None:
            known.close(self._poll)
            del self._watched[slot]
        if ack.host != socket.gethostname():
            return
        try:
            fd = os.pidfd_open(ack.pid)
        except (OSError, AttributeError):
            fd = -1
        else:
            self._poll.register(fd, select.POLLIN)
        self._watched[slot] = _Watched(ack, fd)


class ExecutorWatch:
    """Notices that executors have gone, and their keepers with them; asks Spark's driver, and no executor."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._known = self._executors()

    def has_lost_one(self) -> bool:
        """Whether one that was there at the last look is not there any more."""
        there, self._known = self._known, self._executors()
        return bool(there - self._known)

    def _executors(self) -> set[str]:
        return set(self._context._jsc.sc().getExecutorMemoryStatus().keys().mkString(",").split(","))


class JobWatch:
    """Notices that Spark's jobs stand still, since their tasks wait for an executor that has gone; asks Spark's driver.

    Spark runs such tasks elsewhere only after `spark.locality.wait.process`, as if the executor were busy, unless no
    other executor that is there was to run tasks of the stage.
    """

    def __init__(self, spark: SparkSession) -> None:
        sc: Any = spark.sparkContext
        self._spark = spark
        heartbeat_ms = int(sc._jsc.getConf().getTimeAsMs("spark.executor.heartbeatInterval", "10s"))
        self._most = _STALLED_LOOKS + heartbeat_ms / 1000
        self._idle_looks: dict[int, int] = {}
        """Of each of Spark's jobs that runs no task, though each executor has room."""

    def are_stalled(self) -> bool:
        """Whether a job has run no task in so many looks."""
        tracker = self._spark.sparkContext.statusTracker()
        stages = {number: tracker.getStageInfo(number) for number in tracker.getActiveStageIds()}
        tasks = {number: stage.numActiveTasks for number, stage in stages.items() if stage is not None}
        jobs = [(number, tracker.getJobInfo(number)) for number in tracker.getActiveJobsIds()]
        active = {number: tasks.keys() & set(job.stageIds) for number, job in jobs if job is not None}
        idle = [number for number, those in active.items() if those and not any(tasks[stage] for stage in those)]
        # Tasks may wait for one that is busy: pings and lookups do while it has an epoch's.
        if idle and not has_free_slots(self._spark):
            idle = []
        self._idle_looks = {number: self._idle_looks.get(number, 0) + 1 for number in idle}
        return max(self._idle_looks.values(), default=0) >= self._most
