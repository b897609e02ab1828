"""Decides whether rows are aggregated in Spark's JVM before they are sent to their keepers."""

from __future__ import annotations

from pyspark.sql import SparkSession

_MAX_RATIO = 0.6
_DEFAULT_SHUFFLE_PARTITIONS = "200"
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256
BY_TASK, TOGETHER, OFF = range(3)
"""What Spark aggregates: the rows of each task, those of all tasks, none."""


class Reduction:
    """Lets Spark aggregate rows while that leaves few enough: those of each task, those of all tasks together, or none.

    It begins with each task's rows, which takes no shuffle of its own. After one that leaves too many rows comes the
    next, for a pause, and then it begins again; pauses become longer.
    """

    def __init__(self, *, possible: bool = True) -> None:
        self._possible = possible
        self.level = BY_TASK if possible else OFF
        self._pause = _FIRST_PAUSE
        self._epochs = 0
        """Since this level began."""

    @property
    def on(self) -> bool:
        """Whether rows are aggregated."""
        return self.level < OFF

    @property
    def by_task(self) -> bool:
        """Whether each task's rows are aggregated by themselves."""
        return self.level == BY_TASK

    def observe(self, source_rows: int, sent_rows: int) -> None:
        """Note the number of an epoch's rows, and of the rows that were sent."""
        if not source_rows or not self._possible:
            return
        if self.level > BY_TASK:
            self._epochs += 1
            if self._epochs >= self._pause:
                # If this level is left again, it is for longer.
                self.level, self._pause = BY_TASK, min(2 * self._pause, _LONGEST_PAUSE)
                return
        if self.level == OFF:
            return
        if sent_rows <= _MAX_RATIO * source_rows:
            if self.level == BY_TASK:
                self._pause = _FIRST_PAUSE
            return
        self.level, self._epochs = self.level + 1, 0


def limit_shuffle(session: SparkSession, parallelism: int) -> None:
    """Set the partitions of an epoch's aggregations to the parallelism, unless the user has set them."""
    name = "spark.sql.shuffle.partitions"
    if session.conf.get(name) == _DEFAULT_SHUFFLE_PARTITIONS:
        session.conf.set(name, str(parallelism))
