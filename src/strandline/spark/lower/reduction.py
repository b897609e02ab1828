"""Decides whether rows are aggregated in Spark's JVM before they are sent to their keepers."""

from __future__ import annotations

from pyspark.sql import SparkSession

_MAX_RATIO = 0.6
_DEFAULT_SHUFFLE_PARTITIONS = "200"
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256


class Reduction:
    """Turns the aggregation on while it reduces the rows enough; else off, for pauses that become longer.

    It begins with the rows of each task, which needs no shuffle of its own. If few rows of a task have the same key,
    those of all tasks may.
    """

    def __init__(self, *, possible: bool = True) -> None:
        self.on = self._possible = possible
        self.by_task = True
        """Whether each task's rows are aggregated by themselves."""
        self._pause = _FIRST_PAUSE
        self._epochs_off = 0

    def observe(self, source_rows: int, sent_rows: int) -> None:
        """Note the number of an epoch's rows, and of the rows that were sent."""
        if not source_rows or not self._possible:
            return
        if not self.on:
            self._epochs_off += 1
            self.on = self._epochs_off >= self._pause
            return
        if sent_rows <= _MAX_RATIO * source_rows:
            self._pause = _FIRST_PAUSE
            return
        if self.by_task:
            self.by_task = False
            return
        if self._epochs_off:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self.on, self._epochs_off = False, 0


def limit_shuffle(session: SparkSession, parallelism: int) -> None:
    """Set the partitions of an epoch's aggregations to the parallelism, unless the user has set them."""
    name = "spark.sql.shuffle.partitions"
    if session.conf.get(name) == _DEFAULT_SHUFFLE_PARTITIONS:
        session.conf.set(name, str(parallelism))
