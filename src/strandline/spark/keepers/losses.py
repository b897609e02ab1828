"""Watch over the executors of an attempt: one that is lost with its keepers, or that is silent, ends the attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from strandline.keeper.spawning import Beat
from strandline.spark.keepers.exchange import Exchanges, executor_of, host_of
from strandline.spark.keepers.heartbeats import Heartbeats
from strandline.spark.keepers.watch import ExecutorWatch, JobWatch

_LOOK_S = 0.1
"""A look takes a millisecond."""
_DROP_S = 2.0
"""How long Spark may take to drop the places of an executor that it has lost."""
_STALL_CHECK_S = 1.0


class LossWatch:
    """Cancels the job's Spark jobs after a loss: Spark may let tasks wait for the executor like for a busy one."""

    def __init__(
        self, spark: SparkSession, exchanges: Exchanges, silent: set[str] | None, suspect: Callable[[], None]
    ) -> None:
        """`silent` gets the numbers of executors whose hosts send no heartbeats any more; None: hosts send none.

        `suspect` is called when keepers may have ended with an executor.
        """
        self._spark = spark
        self._exchanges = exchanges
        self._silent = set[str]() if silent is None else silent
        self._suspect = suspect
        context: Any = spark.sparkContext
        self._context = context
        self._executors = ExecutorWatch(context)
        self._heartbeats: Heartbeats | None = None
        if silent is not None:
            # Without a socket, hosts send none.
            with suppress(OSError):
                self._heartbeats = Heartbeats(spark)
        self.beat = None if silent is None else self._heartbeats.beat if self._heartbeats else Beat("", 0, "")
        """What nurseries of executors send; None: executors have no nurseries."""
        self._placed: list[list[str]] = []
        """The executor of each partition at first, by exchange."""
        self.loss = ""
        """What was lost."""

    def watch(self, over: threading.Event) -> None:
        """Watch until the event is set."""
        jobs, lost_s, checked_s = None, -_DROP_S, 0.0
        while not over.is_set():
            # The session may have been stopped.
            with suppress(Exception):
                self._placed = self._placed or self._exchanges.places
                now_s = time.monotonic()
                if self._executors.has_lost_one():
                    lost_s = now_s
                    self._suspect()
                    jobs = jobs or JobWatch(self._spark)
                if now_s - lost_s < _DROP_S and self._exchanges.places != self._placed:
                    self.loss = "an executor was lost with its keepers"
                if jobs is not None and now_s - checked_s >= _STALL_CHECK_S:
                    checked_s = now_s
                    if jobs.are_stalled():
                        self.loss = self.loss or "an executor was lost, and tasks wait for it"
                if not self.loss and self._heartbeats is not None and (names := self._heartbeats.silent()):
                    self._give_up(names)
                if self.loss:
                    self._context.cancelJobGroup(self._exchanges.job_group)
            over.wait(_LOOK_S)

    @property
    def has_lost_keepers(self) -> bool:
        """Whether keepers were lost with their executor, also if that has not been noticed yet."""
        # The session may have been stopped.
        with suppress(Exception):
            return bool(self.loss) or (bool(self._placed) and self._exchanges.places != self._placed)
        return False

    def _give_up(self, keepers: Iterable[str]) -> None:
        """Have Spark use the executors of silent hosts no more, which have these keepers."""
        slots = [name.rpartition("/") for name in keepers]
        places = {self._exchanges.of(uid).places[int(partition)] for uid, _, partition in slots} - {""}
        for executor in map(executor_of, places):
            self._silent.add(executor)
            # The cluster starts another one in its place. If it cannot be asked, Spark waits for this one.
            with suppress(Exception):
                self._context._jsc.sc().killAndReplaceExecutor(executor)
        hosts = ", ".join(sorted(map(host_of, places)))
        self.loss = f"no heartbeats come from {hosts}: the host is lost, hangs or is cut off"

    def close(self) -> None:
        """Close the socket of the heartbeats."""
        if self._heartbeats is not None:
            self._heartbeats.close()
