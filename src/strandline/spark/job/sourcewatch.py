"""State of Spark's query between epochs: whether it looks for rows, has some, rests, has ended, or was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from strandline.core.clock import Clock
from strandline.core.errors import SparkError, UnavailableError
from strandline.spark.base.spark_errors import unwrap_error

_LOOK_TIMEOUT_S = 1.0
_CHECK_INTERVAL_S = 0.05
_STEP_US = 100_000
"""Smaller steps of the clock are ignored: the two clocks are not read at the same moment."""
_LONGEST_WAIT_US = 60_000_000
"""The most that a step of the clock may delay Spark's next trigger; after a larger one, the job restarts."""


class SourceWatch:
    """Observes a query. Not thread-safe."""

    def __init__(
        self,
        query: StreamingQuery,
        between_ms: int,
        *,
        ends: bool = False,
        has_read: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        """`between_ms` is Spark's pause between two looks for rows; `ends` says that the query ends after the last.

        `has_read` returns whether a batch of the query was processed.
        `clock` is the clock of Spark's trigger; None if it has no trigger, so that the clock does not matter.
        """
        self.query = query
        self._ends = ends
        self._has_read = has_read
        self._clock = clock
        self._ahead_us = 0 if clock is None else _ahead_us(clock)
        self._waits_until_us = 0
        """The steady time until which Spark may wait for its trigger because the clock was set back."""
        self._between_us = between_ms * 1000
        self._checked_s = 0.0
        self._rested_us: int | None = None
        """When Spark was last seen at rest, unless it has been seen at work since."""
        self._rests_from_us: int | None = 0
        """When Spark was first seen at rest since it was seen at work; None while it works."""
        self._asked_us: int | None = None
        """When Spark was last seen at rest before it was seen at work: it has asked all sources for rows since then."""

    def silent_since(self, now_us: int) -> int | None:
        """Return a time up to which Spark has looked for rows and found none; None if it is not at rest.

        It is computed from the call before, at which Spark was at rest, too: after a suspend of this machine, Spark
        looks for rows only when it runs again. If Spark has worked since that time, it may have asked a source long
        before it came to rest: another one may have been slow to answer.
        """
        checked_s = time.monotonic()
        if checked_s - self._checked_s < _CHECK_INTERVAL_S:
            return None
        self._checked_s = checked_s
        if now_us < self._waits_until_us:
            self._rested_us = None
            return None
        status = self._status()
        if status.isTriggerActive() or status.isDataAvailable() or str(status.message()).startswith("Initializing"):
            if self._rested_us is not None:
                self._asked_us = self._rested_us
            self._rested_us = self._rests_from_us = None
            return None
        rested_us, self._rested_us = self._rested_us, now_us
        if self._rests_from_us is None:
            self._rests_from_us = now_us
        if rested_us is None:
            return None
        looked_us = rested_us - self._between_us
        return looked_us if looked_us >= self._rests_from_us else self._asked_us

    def check_clock(self) -> None:
        """Detect that the clock was set back. Raise SparkError if Spark would wait too long.

        Spark computes the time of its next trigger in advance, and reads nothing until the clock shows it: meanwhile,
        the sources must not count as silent.
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
                "until it has caught up",
                hint="the job restarts from its last checkpoint, with the new time",
            )
        now_us = round(self._clock.monotonic_ms() * 1000)
        self._waits_until_us = max(self._waits_until_us, now_us) + back_us + self._between_us

    def check_logs(self) -> None:
        """Raise UnavailableError if another thread of Spark could not write the query's logs.

        Spark raises that error only before its next batch, and a batch or a checkpoint may wait for the logs.
        """
        # A query that writes its logs itself, and one of another version of Spark, may not have it.
        with suppress(Py4JError):
            if (error := self._log_errors.getError()).isDefined():
                raise UnavailableError(
                    f"Spark could not write its log of the sources' progress: {error.get().toString()}",
                    hint="see whether the disk of local_dir is full",
                )

    @cached_property
    def _log_errors(self) -> Any:
        return self.query._jsq.streamingQuery().errorNotifier()

    def has_looked(self) -> bool:
        """Whether Spark has looked at the sources, and so has written down where they begin."""
        if not self.query.isActive:
            # A query that failed or was stopped may not have looked at all of them.
            return self.query.exception() is None and has_read_all(self.query)
        status = self._status()
        return not status.isTriggerActive() and not str(status.message()).startswith(("Initializing", "Terminated"))

    def is_batch_coming(self, idle_s: float) -> bool:
        """Whether Spark looks for rows or prepares an epoch with some: an epoch for timers alone would delay that.

        False after a while, because Spark may look for rows for long.
        """
        return idle_s < _LOOK_TIMEOUT_S and bool(self._status().isTriggerActive())

    def has_ended(self) -> bool:
        """Whether the query has read all rows; raise its error if it failed, and SparkError if it was stopped."""
        if self.query.isActive:
            return False
        error = self.query.exception()
        if error is not None:
            raise unwrap_error(error)
        if self._ends and (has_read_all(self.query) or self._has_read_only_batch()):
            return True
        raise _stopped()

    def explain(self, error: BaseException) -> BaseException:
        """Return the reason of an epoch's error: if Spark failed because the query was stopped, that it was.

        A query is active until the function of its epoch returns, unless it was stopped: Spark interrupts its thread
        and cancels its jobs.
        """
        if not isinstance(error, SparkError):
            return error
        try:
            return error if self.query.isActive else _stopped()
        except (Py4JError, OSError):
            # Spark has ended.
            return error

    def _has_read_only_batch(self) -> bool:
        """Whether the query has read all rows in one batch, as Spark does if a source has no support for more."""
        executor = self.query._jsq.streamingQuery().triggerExecutor()
        return self._has_read() and executor.getClass().getSimpleName() == "SingleBatchExecutor"

    def _status(self) -> Any:
        return self.query._jsq.status()


def _stopped() -> SparkError:
    return SparkError(
        "Spark's streaming query of the job was stopped, and not by the job",
        hint="stop the job instead: run.stop() or `strandline stop`; if a program stops the queries in "
        "spark.streams.active, let it leave out run.query",
    )


def _ahead_us(clock: Clock) -> int:
    return round((clock.now_ms() - clock.monotonic_ms()) * 1000)


def has_read_all(query: StreamingQuery) -> bool:
    """Whether a query that has ended did so because its last look at the sources found nothing.

    Spark's status of a query that was stopped is the same: no exception, and the message "Stopped".
    """
    return bool(query._jsq.streamingQuery().noNewData())
