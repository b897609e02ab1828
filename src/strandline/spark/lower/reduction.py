"""Whether rows are aggregated in Spark's JVM before they are sent to their keepers."""

from __future__ import annotations

from pyspark.sql import SparkSession

_WORTHWHILE = 0.6
_DEFAULT_SHUFFLE_PARTITIONS = "200"
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256


class Reduction:
    """Whether to aggregate an epoch's rows before they are sent: as long as that makes them notably fewer.

    Where it does not, it is tried again after a while, and ever more rarely.
    """

    def __init__(self, *, possible: bool = True) -> None:
        self.on = self._possible = possible
        self._pause = _FIRST_PAUSE
        self._epochs_off = 0

    def observe(self, source_rows: int, sent_rows: int) -> None:
        """Take in how many rows an epoch had, and how many of them were sent."""
        if not source_rows or not self._possible:
            return
        if not self.on:
            self._epochs_off += 1
            self.on = self._epochs_off >= self._pause
            return
        if sent_rows <= _WORTHWHILE * source_rows:
            self._pause = _FIRST_PAUSE
            return
        if self._epochs_off:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self.on, self._epochs_off = False, 0


def limit_shuffle(session: SparkSession, parallelism: int) -> None:
    """Have group-bys of an epoch's session give few partitions, unless the user has said how many."""
    name = "spark.sql.shuffle.partitions"
    if session.conf.get(name) == _DEFAULT_SHUFFLE_PARTITIONS:
        session.conf.set(name, str(parallelism))
