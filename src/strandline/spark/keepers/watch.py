"""Detection of keepers and executors that die between requests, and of Spark jobs that wait for lost executors."""

from __future__ import annotations

import os
import select
import socket
import threading
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

_STALLED_CHECKS = 20
"""Plus one for each second between heartbeats: before a heartbeat, Spark's driver may not know a running task."""


@dataclass
class _Watched:
    """A keeper with the first ack that was received from it."""

    ack: Ack
    fd: int
    """The pidfd of its process; -1 if the system has no pidfds or no such process."""

    def close(self, poll: select.poll) -> None:
        if self.fd >= 0:
            poll.unregister(self.fd)
            os.close(self.fd)

    def is_gone(self, ended: set[int], newest: Ack) -> bool:
        if self.fd >= 0:
            return self.fd in ended
        # A keeper that answers although its pid is unknown here is in a container with its own process ids.
        return newest is self.ack and not process_start(self.ack.pid)


class KeeperWatch:
    """Watches the keepers of this machine that have sent acks. Thread-safe; a check costs a system call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._watched: dict[Slot, _Watched] = {}

    def has_lost_one(self, last: Mapping[Slot, Ack]) -> bool:
        """Whether a keeper that has sent one of these acks is dead. Keepers of other machines are not checked."""
        with self._lock:
            for slot, ack in last.items():
                known = self._watched.get(slot)
                if known is None or known.ack.keeper != ack.keeper:
                    self._watch(slot, ack, known)
            ended = {fd for fd, _ in self._poll.poll(0)}
            return any(one.is_gone(ended, last[slot]) for slot, one in self._watched.items())

    def close(self) -> None:
        """Stop watching and close the descriptors."""
        with self._lock:
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
    """Detects lost executors, whose keepers end with them. It asks only Spark's driver."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._known = self._executors()

    def has_lost_one(self) -> bool:
        """Whether an executor has been lost since the last call."""
        before, self._known = self._known, self._executors()
        return bool(before - self._known)

    def _executors(self) -> set[str]:
        return set(self._context._jsc.sc().getExecutorMemoryStatus().keys().mkString(",").split(","))


class JobWatch:
    """Detects Spark jobs that stall because their tasks wait for a lost executor. It asks only Spark's driver.

    Spark treats the lost executor like a busy one: it runs the tasks elsewhere after `spark.locality.wait.process`,
    or at once if no other executor was to run tasks of the stage.
    """

    def __init__(self, spark: SparkSession) -> None:
        sc: Any = spark.sparkContext
        self._spark = spark
        heartbeat_ms = int(sc._jsc.getConf().getTimeAsMs("spark.executor.heartbeatInterval", "10s"))
        self._limit = _STALLED_CHECKS + heartbeat_ms / 1000
        self._idle_checks: dict[int, int] = {}
        """By Spark job: the number of checks in a row in which it ran no task although each executor had room."""

    def are_stalled(self) -> bool:
        """Whether a job has run no task in too many checks in a row."""
        tracker = self._spark.sparkContext.statusTracker()
        stages = {number: tracker.getStageInfo(number) for number in tracker.getActiveStageIds()}
        tasks = {number: stage.numActiveTasks for number, stage in stages.items() if stage is not None}
        jobs = [(number, tracker.getJobInfo(number)) for number in tracker.getActiveJobsIds()]
        active = {number: tasks.keys() & set(job.stageIds) for number, job in jobs if job is not None}
        idle = [number for number, those in active.items() if those and not any(tasks[stage] for stage in those)]
        # Tasks may wait for a busy executor, like pings and lookups while it runs an epoch's tasks.
        if idle and not has_free_slots(self._spark):
            idle = []
        self._idle_checks = {number: self._idle_checks.get(number, 0) + 1 for number in idle}
        return max(self._idle_checks.values(), default=0) >= self._limit
