"""What Spark's query does between epochs: whether it looks for rows, has some, rests, has ended, or was stopped."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from strandline.core.clock import Clock
from strandline.core.errors import SparkError
from strandline.spark.base.spark_errors import unwrap_error

_PATIENCE_S = 1.0
_NOTICE_S = 0.05
_STEP_US = 100_000
"""By how much the clock must be set back to count: its two parts are not read in the same moment."""
_LONGEST_WAIT_US = 60_000_000
"""For how much longer Spark may wait for its next trigger before the job is restarted instead."""


class SourceWatch:
    """Looks at a query. One thread at a time."""

    def __init__(
        self, query: StreamingQuery, between_ms: int, *, ends: bool = False, clock: Clock | None = None
    ) -> None:
        """`between_ms` is how long Spark rests between two looks for rows; `ends` says that it ends after the last.

        `clock` is the one by which Spark rests; None if it rests by no clock that can be set.
        """
        self.query = query
        self._ends = ends
        self._clock = clock
        self._ahead_us = 0 if clock is None else _ahead_us(clock)
        self._waits_until_us = 0
        """Until then Spark may wait for its trigger, as the clock was set back, by the steady clock."""
        self._between_us = between_ms * 1000
        self._asked = 0.0
        self._rested_us: int | None = None
        """When Spark was last seen to rest, without having been seen at work since."""

    def silent_since(self, now_us: int) -> int | None:
        """When Spark rests, having looked for rows and found none, return when it last did: who is silent was so then.

        That was after it was seen to rest the time before: where this machine has stood still in between, Spark looks
        again only when it goes on.
        """
        asked = time.monotonic()
        if asked - self._asked < _NOTICE_S:
            return None
        self._asked = asked
        if now_us < self._waits_until_us:
            self._rested_us = None
            return None
        status = self._status()
        if status.isTriggerActive() or status.isDataAvailable() or str(status.message()).startswith("Initializing"):
            self._rested_us = None
            return None
        rested_us, self._rested_us = self._rested_us, now_us
        return None if rested_us is None else rested_us - self._between_us

    def check_clock(self) -> None:
        """Note that the clock was set back. Raise SparkError where Spark would wait too long.

        It waits for its next trigger until the clock shows a time that it has computed before, and reads nothing until
        then: the sources are not silent.
        """
        if self._clock is None:
            return
        ahead_us = _ahead_us(self._clock)
        back_us, self._ahead_us = self._ahead_us - ahead_us, ahead_us
        if back_us < _STEP_US:
            return
        if back_us > _LONGEST_WAIT_US:
            raise SparkError(
                f"the clock of the driver's machine was set back by {back_us // 1_000_000} s: Spark would read nothing "
                "for so long",
                hint="the job restarts from its last checkpoint, and goes on by the clock as it is now",
            )
        now_us = round(self._clock.monotonic_ms() * 1000)
        self._waits_until_us = max(self._waits_until_us, now_us) + back_us + self._between_us

    def has_looked(self) -> bool:
        """Whether Spark has looked at the sources, so that it is written down where they begin."""
        if not self.query.isActive:
            # One that failed, or was stopped, may have done so before it had looked at all of them.
            return self.query.exception() is None and has_read_all(self.query)
        status = self._status()
        return not status.isTriggerActive() and not str(status.message()).startswith(("Initializing", "Terminated"))

    def is_batch_coming(self, idle_s: float) -> bool:
        """Whether Spark looks for rows or prepares an epoch with some: an epoch of the timers' own would delay it.

        Between two looks that found nothing it rests. To look may take long, so it is not waited for for ever.
        """
        return idle_s < _PATIENCE_S and bool(self._status().isTriggerActive())

    def has_ended(self) -> bool:
        """Whether the query has read all there is; raise what made it fail, and SparkError if it was stopped."""
        if self.query.isActive:
            return False
        error = self.query.exception()
        if error is not None:
            raise unwrap_error(error)
        if self._ends and has_read_all(self.query):
            return True
        raise SparkError(
            "Spark's streaming query of the job was stopped, and not by the job",
            hint="stop the job instead: run.stop() or `strandline stop`; where a program stops the queries in "
            "spark.streams.active, leave out run.query",
        )

    def _status(self) -> Any:
        return self.query._jsq.status()


def _ahead_us(clock: Clock) -> int:
    return round((clock.now_ms() - clock.monotonic_ms()) * 1000)


def has_read_all(query: StreamingQuery) -> bool:
    """Whether a query that has ended did so because its last look at the sources found nothing.

    Spark says the same of one that somebody stopped: no exception, and the message "Stopped".
    """
    return bool(query._jsq.streamingQuery().noNewData())
