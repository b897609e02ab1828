"""A job that runs, as users see it: status, results of requests, stop. Supervised in supervision.py."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, overload

from pyspark.sql.streaming.query import StreamingQuery

from strandline.api.config import Restart
from strandline.checkpoint.history import CheckpointStats
from strandline.control.server import ControlServer
from strandline.control.status import Savepoint, Status
from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.core.settings import Duration, parse_duration_ms
from strandline.keeper.lookups import LookupResult, LookupTable
from strandline.snapshot.savepoints.progress import SavepointProgress
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.job.attempt import Attempt, Blueprint
from strandline.spark.job.requests import ON_THE_WAY, Requests
from strandline.spark.job.sourcewatch import has_read_all
from strandline.spark.job.status import status_of_attempt
from strandline.spark.job.supervision import Supervisor

_live: weakref.WeakSet[Run] = weakref.WeakSet()
_adding = threading.Lock()
_SIGNAL_S = 0.5


class Run:
    """A started job. Also a context manager that stops it."""

    def __init__(self, blueprint: Blueprint, restart: Restart) -> None:
        self._b = blueprint
        self._supervisor = Supervisor(blueprint, restart)
        self._requests = Requests(self._supervisor)
        self._control = ControlServer(
            self, blueprint.places, self._supervisor.since_ms, show_values=blueprint.settings.show_values
        )

    def start(self) -> None:
        """Start for the first time. Raises what is wrong with the program."""
        self._check_sinks_are_free()
        for _, sink, _ in self._b.plan.sinks:
            sink._begin_anew()
        with _adding:
            _live.add(self)
        self._supervisor.start(self._control, self._requests)

    def _check_sinks_are_free(self) -> None:
        """Refuse a sink object that a live run has: it knows one run, and takes rows of the other for its own."""
        mine = {id(sink): name for name, sink, _ in self._b.plan.sinks if sink.visibility == "checkpoint"}
        for other in live_runs():
            # One that has ended its last attempt has let go of them, and may take a moment to be gone.
            is_at_work = other._supervisor.state in (*ON_THE_WAY, "running")
            for _, sink, _ in other._b.plan.sinks if is_at_work else ():
                if id(sink) in mine:
                    raise ConfigurationError(
                        f"job '{self._b.name}': its sink '{mine[id(sink)]}' is the same object as a sink of job "
                        f"'{other._b.name}', which is running",
                        hint="make one sink for each job: two may write to the same place",
                    )

    @property
    def query(self) -> StreamingQuery | None:
        """Spark's own query of the current attempt, for its progress reports."""
        attempt = self._supervisor.attempt
        return attempt.query if attempt else None

    def status(self) -> Status:
        """Return what the job is doing now."""
        return self._look(sources=True)

    def glance(self) -> Status:
        """Return what `status` does without asking the sources, which may take a while."""
        return self._look(sources=False)

    def _look(self, *, sources: bool) -> Status:
        supervisor = self._supervisor
        attempt = supervisor.attempt
        return Status(
            job=self._b.name,
            state=supervisor.state,
            generation=supervisor.claim.generation if supervisor.claim else 0,
            restarts=supervisor.restarts,
            last_failure=supervisor.last_failure,
            last_failure_ms=supervisor.last_failure_ms,
            sources=self._b.plan.sources.names,
            follows=supervisor.desired.parallelism.is_room,
            **(
                status_of_attempt(attempt, sources=sources and supervisor.is_at_work()) if attempt else supervisor.known
            ),
        )

    def checkpoints(self) -> list[CheckpointStats]:
        """Return figures of this attempt's checkpoints, oldest first."""
        attempt = self._supervisor.attempt
        return list(attempt.coordinator.history) if attempt else []

    def checkpoint(
        self, timeout: Duration | None = None, *, progress: Callable[[CheckpointStats], object] | None = None
    ) -> CheckpointStats:
        """Take a checkpoint now and wait for it; return its figures. Meanwhile, `progress` is called with them.

        It covers at least every epoch that was complete when this was called. A job that restarts or is being rescaled,
        or does so meanwhile, is waited for: then it is of what the job has gone on from, and after. Raises
        CheckpointError if it fails, is not complete within `timeout`, or the job ends.
        """
        return self._requests.checkpoint(_seconds(timeout), progress)

    def lookup(self, table: str, key: Any) -> LookupResult:
        """Return what the running job has of a key, or of each key of a list, as of the last epoch.

        `table` is an operator's uid and the name of one of its states: "detect.seen". A key is a value; of several
        columns, a tuple or a dict. The result has the `value` (None where nothing is stored; defaults are not) and the
        `epoch` whose writes it has. No epoch waits for it, and it waits for none. Raises NotFoundError for a table
        that is not there, StateTypeError for a key that is none, and UnavailableError while the job does not run.
        """
        attempt = self._looked_into()
        try:
            return attempt.look_up(attempt.table(table), key)
        except Exception as error:
            # Of an error in one of Spark's tasks, the cause.
            if (cause := unwrap_error(error)) is error:
                raise
            raise cause from None

    def lookup_table(self, table: str) -> LookupTable:
        """Return what a table that can be looked into is keyed by."""
        return self._looked_into().table(table)

    def _looked_into(self) -> Attempt:
        supervisor = self._supervisor
        if not supervisor.is_at_work() or (attempt := supervisor.attempt) is None:
            raise UnavailableError(
                f"job '{self._b.name}' is {supervisor.state}: its state cannot be looked up",
                hint="ask again once it runs; a checkpoint of it can be read at any time",
            )
        return attempt

    def process_all_available(self, timeout: Duration | None = None) -> None:
        """Wait until everything the source has now is processed, and timers that are due have fired.

        Rows are visible after the next checkpoint.
        """
        deadline = None if timeout is None else time.monotonic() + _seconds(timeout)
        supervisor = self._supervisor
        exhausted_by: tuple[Attempt, int] | None = None
        while True:
            supervisor.raise_if_failed()
            if supervisor.ended.is_set():
                return
            if deadline is not None and time.monotonic() > deadline:
                raise UnavailableError(f"job '{self._b.name}': the source was not exhausted within {timeout!r}")
            attempt = supervisor.attempt
            if supervisor.is_at_work() and attempt is not None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                exhausted = _exhausted(attempt.query, left, ends="availableNow" in self._b.trigger)
                if exhausted and (exhausted_by is None or exhausted_by[0] is not attempt):
                    # Timers that fire may set others, for later, on and on.
                    exhausted_by = attempt, attempt.driver.now_us
                idle = exhausted_by is not None and exhausted and not attempt.driver.has_due(exhausted_by[1])
                # A query that is stopped, since the attempt failed, has not processed everything.
                if (
                    idle
                    and supervisor.attempt is attempt
                    and supervisor.is_at_work()
                    and not attempt.driver.failed.is_set()
                ):
                    return
            time.sleep(0.02)

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Wait until the job ends, and raise what made it fail. Return False if the time was up before."""
        supervisor = self._supervisor
        deadline = None if timeout is None else time.monotonic() + _seconds(timeout)
        # A look now and then: a signal that the system hands to another thread does not wake this one, which may be the
        # main thread, and has to heed it.
        while not (ended := supervisor.ended.wait(_SIGNAL_S if deadline is None else _left(deadline, _SIGNAL_S))):
            if deadline is not None and time.monotonic() >= deadline:
                break
        if ended:
            # The program may end with this: who has asked for that should hear of it.
            self._control.join()
        supervisor.raise_if_failed()
        return ended

    def stop(
        self,
        *,
        checkpoint: bool = False,
        savepoint: str | Path | None = None,
        drain: bool = False,
        format: str = "canonical",
        timeout: Duration = "1 min",
        progress: Callable[[SavepointProgress], object] | None = None,
    ) -> None:
        """Stop the job and end its keepers. With `checkpoint`, take a last one, so that nothing is repeated later.

        With `savepoint`, a url, the last checkpoint becomes a savepoint, too, as `savepoint()` makes it: no sink shows
        anything later, also if the job restarts meanwhile.

        With `drain`, the job ends for good: no more events are read, event time comes to its end, windows and
        event-time timers give what they hold, and a last checkpoint has sinks show it. Timers of processing time do not
        fire unless they are due. A failure on the way is recovered from, and the drain goes on; another stop() alone
        gives it up. Raises UnavailableError if the job has ended before, or is not drained within `timeout`.

        Without either, rows after the last checkpoint stay invisible, and are processed again by the next start. If the
        last one fails, CheckpointError is raised and the job goes on; a job that restarts or is being rescaled is
        waited for. Raises UnavailableError if the job has not ended within `timeout`; it ends as soon as it can.
        """
        timeout_s = _seconds(timeout)
        if drain:
            self._requests.drain(timeout_s, savepoint, format, progress)
            self._control.join()
            self._requests.check_drained()
            return
        if savepoint is not None or checkpoint:
            self._requests.stop(timeout_s, savepoint, format, progress)
        self._supervisor.stop(timeout_s)

    def rescale(self, parallelism: int | Mapping[str, int], *, timeout: Duration = "5 min") -> None:
        """Go on with another number of partitions: a checkpoint, and a new attempt that restores it so divided.

        A number is for all operators without a parallelism of their own; `{"uid": 4}` gives single operators theirs.
        Results are those of an undisturbed job. It holds until the job is started again: then what the program says
        of an operator counts, or `Settings(parallelism=…)` or, where that is not given, what the newest checkpoint has.
        Raises ConfigurationError if an operator cannot have so many, CheckpointError if the checkpoint fails: then the
        job goes on as it was. A job that restarts, or is being rescaled, is waited for.
        """
        self._requests.rescale(parallelism, _seconds(timeout))

    def savepoint(
        self,
        url: str | Path,
        *,
        format: str = "canonical",
        timeout: Duration | None = None,
        progress: Callable[[SavepointProgress], object] | None = None,
    ) -> Savepoint:
        """Take a checkpoint and make it a savepoint: a folder, not there yet, that belongs to nobody and stays.

        Canonical, its state is tables of typed columns, to be restored on any backend; native, the backend's own files,
        at once. Epochs go on meanwhile. It can be copied anywhere and restored with `start(restore=…)`. Raises
        CheckpointError if the checkpoint fails or is not complete within `timeout`, or the job ends before the
        savepoint is complete, and ConflictError if there is anything in the folder; nothing that could be taken for a
        savepoint is left then. A job that restarts, or is rescaled, or goes back meanwhile, disturbs it in nothing, and
        one that does so when this is called is waited for.
        """
        return self._requests.savepoint(url, format, _seconds(timeout), progress)

    def rollback(self, checkpoint: int, *, timeout: Duration = "5 min") -> None:
        """Go back to an older retained checkpoint of the job, and on from there: later ones are void from then on.

        The sources are read again from there, and exactly-once sinks take back what they have shown since; others
        show it again, as a warning tells. Every byte of the checkpoint is read before. Raises NotFoundError or
        CorruptionError, and the job goes on, if it has no such checkpoint or it is damaged; ConfigurationError, and the
        job goes on, if it was drained with it, it does not fit the program, or the sources do not have any more what
        would be read again; and UnavailableError if the job has ended, or has not gone back within `timeout`: then it
        still does, as soon as storage lets it.
        """
        self._requests.rollback(checkpoint, _seconds(timeout))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


@overload
def _seconds(timeout: Duration) -> float: ...
@overload
def _seconds(timeout: None) -> None: ...
def _seconds(timeout: Duration | None) -> float | None:
    # Programs give what is left of their own time, which may be less than nothing.
    return (
        timeout if timeout is None or isinstance(timeout, int | float) else parse_duration_ms(timeout, "timeout") / 1000
    )


def _left(deadline: float, most: float) -> float:
    return min(most, max(0.0, deadline - time.monotonic()))


def _exhausted(query: StreamingQuery, timeout: float | None, *, ends: bool) -> bool:
    """Wait until a query has processed what there is; False if it failed, was stopped, or the time was up.

    One that `ends` by itself is only waited for: Spark's `processAllAvailable` resets what tells that its last look
    found nothing.
    """
    done = threading.Event()

    def wait() -> None:
        with contextlib.suppress(Exception):
            if ends:
                query.awaitTermination()
            else:
                query.processAllAvailable()
            # It returns when somebody stops the query, too.
            if query.isActive or has_read_all(query):
                done.set()

    # In a thread of its own, because Spark's call knows no time-out; it ends with the query.
    waiting = threading.Thread(target=wait, name="strandline-wait", daemon=True)
    waiting.start()
    waiting.join(timeout)
    return done.is_set()


def live_runs() -> list[Run]:
    """Return the runs of this process that were started and have not ended."""
    with _adding:
        return [run for run in _live if run._supervisor.is_live]
