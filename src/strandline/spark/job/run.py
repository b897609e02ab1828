"""Run: a started job, with its status, requests and stop. It is supervised in supervision.py."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, overload

from pyspark.sql.streaming.query import StreamingQuery

from strandline.api.config import Restart
from strandline.checkpoint.history import CheckpointStats
from strandline.control.html import status_html
from strandline.control.profile import Profile
from strandline.control.recent import Recent
from strandline.control.server import ControlServer
from strandline.control.status import GraphNode, Savepoint, Status
from strandline.core.errors import ConfigurationError, NotFoundError, UnavailableError
from strandline.core.html import Rows
from strandline.core.settings import Duration, parse_duration_ms
from strandline.keeper.lookups import FirstKeys, LookupResult, LookupTable
from strandline.keeper.sampling import LONGEST_S
from strandline.snapshot.savepoints.progress import SavepointProgress
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.job.attempt import Attempt, Blueprint
from strandline.spark.job.datasets import inputs_of, outputs_of
from strandline.spark.job.outline import outline
from strandline.spark.job.panel import Panel, notebook
from strandline.spark.job.requests import ON_THE_WAY, Requests
from strandline.spark.job.sourcewatch import has_read_all
from strandline.spark.job.status import status_of_attempt
from strandline.spark.job.supervision import Supervisor
from strandline.telemetry.lineage import LineageRun
from strandline.telemetry.reporter import Reporter

T = TypeVar("T")
_live: weakref.WeakSet[Run] = weakref.WeakSet()
_adding = threading.Lock()
_SIGNAL_S = 0.5
_AT_ONCE_S = 30.0


class Run:
    """A started job. Also a context manager that stops it."""

    def __init__(self, blueprint: Blueprint, restart: Restart) -> None:
        self._b = blueprint
        self._supervisor = Supervisor(blueprint, restart)
        self._requests = Requests(self._supervisor)
        self._control = ControlServer(
            self, blueprint.places, self._supervisor.since_ms, show_values=blueprint.settings.show_values
        )
        self._panel = Panel(self, self._supervisor.ended)
        """What a notebook shows of it."""

        telemetry = blueprint.telemetry
        self._telemetry = None if telemetry is None else Reporter(
            telemetry, self, blueprint.jobdir.store.url, self._supervisor.since_ms, self._supervisor.ended,
            lambda: LineageRun(
                telemetry.namespace, blueprint.name, inputs_of(blueprint.plan), outputs_of(blueprint.plan)
            ),
        )  # fmt: skip

    def start(self) -> None:
        """Start for the first time. Raises errors of the program and its environment."""
        self._check_sinks_are_free()
        for _, sink, _ in self._b.plan.sinks:
            sink._begin_anew()
        with _adding:
            _live.add(self)
        if self._telemetry is not None:
            self._telemetry.start()
        try:
            self._supervisor.start(self._control, self._requests)
        except BaseException:
            if self._telemetry is not None:
                self._telemetry.end()
            raise

    def _check_sinks_are_free(self) -> None:
        """Refuse a sink object of a live run: a sink has the state of one run only."""
        mine = {id(sink): name for name, sink, _ in self._b.plan.sinks if sink.visibility == "checkpoint"}
        for other in live_runs():
            # A run that has ended its last attempt has released its sinks, even if it is still live for a moment.
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
        """Return the job's status."""
        return self._create_status(sources=True)

    def glance(self) -> Status:
        """Return the status without queries of the sources, which may be slow."""
        return self._create_status(sources=False)

    def _create_status(self, *, sources: bool) -> Status:
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
            graph=self._graph,
            totals=supervisor.totals,
            attempt_ms=supervisor.attempt_ms,
            **(
                status_of_attempt(attempt, sources=sources and supervisor.is_at_work()) if attempt else supervisor.known
            ),
        )

    @cached_property
    def _graph(self) -> list[GraphNode]:
        return outline(self._b.plan)

    def recent(self) -> Recent:
        """Return this attempt's last epochs and checkpoints, and the run's interruptions."""
        attempt = self._supervisor.attempt
        epochs = list(attempt.driver.progress.recent) if attempt else []
        interruptions, before = list(self._supervisor.interruptions), self._supervisor.recent_before
        return Recent(list(self.checkpoints()), epochs, interruptions, *before)

    def checkpoints(self) -> list[CheckpointStats]:
        """Return figures of this attempt's checkpoints, oldest first."""
        attempt = self._supervisor.attempt
        return Rows(attempt.coordinator.history if attempt else ())

    def checkpoint(
        self, timeout: Duration | float | None = None, *, progress: Callable[[CheckpointStats], object] | None = None
    ) -> CheckpointStats:
        """Take a checkpoint now and wait for it; return its figures. Meanwhile, `progress` is called with them.

        It covers at least every epoch that was complete at the call. While the job restarts or is being rescaled, the
        call waits: then the checkpoint covers the state that the job restored, and later epochs. Raises CheckpointError
        if the checkpoint fails or is not complete within `timeout`, or if the job ends.
        """
        return self._requests.checkpoint(_seconds(timeout), progress)

    def lookup(self, table: str, key: Any) -> LookupResult:
        """Return the running job's state of a key, or of each key of a list, as of the last epoch.

        `table` is an operator's uid and the name of one of its states: "detect.seen". A key is a value, or a tuple or
        dict if it has several columns. The result has the `value` (None if nothing is stored; a default is not stored)
        and the `epoch` of the state. Look-ups and epochs do not wait for each other. Raises NotFoundError for an
        unknown table, StateTypeError for a key of a wrong type, and UnavailableError while the job does not run.
        """
        return self._ask(lambda attempt: attempt.look_up(attempt.table(table), key))

    def lookup_table(self, table: str) -> LookupTable:
        """Return the description of a table for look-ups, with its key."""
        return self._running_attempt().table(table)

    def lookup_tables(self) -> dict[str, LookupTable]:
        """Return the descriptions of all tables for look-ups by their names."""
        return self._running_attempt().tables()

    def first_keys(self, table: str, most: int = 100, *, partition: int | None = None) -> FirstKeys:
        """Return some keys of the running job's state, with what a look-up of each returns, as of the last epoch.

        `most`, at most 500, is divided among the operator's partitions, or is of one of them. It holds no epoch up, as
        a look-up does not, and reads no more keys of a partition than one may have: `has_more` says whether there may
        be others. Raises what `lookup` does, and ConfigurationError for more keys.
        """
        return self._ask(lambda attempt: attempt.first_keys(attempt.table(table), most, partition))

    def profile(self, seconds: Duration | float = 5.0) -> Profile:
        """Return where the time of the keepers goes, by function: samples of the stacks of all, for this long.

        A keeper runs the program's functions and keeps its state. Raises ConfigurationError for more than a minute, and
        UnavailableError while the job does not run.
        """
        seconds = _seconds(seconds)
        if not 0 < seconds <= LONGEST_S:
            raise ConfigurationError(
                f"a profile of {seconds:g} s was asked for, expected more than 0 and at most {LONGEST_S:g} s"
            )
        partitions = self._ask(lambda attempt: attempt.profile(seconds))
        if not partitions:
            raise NotFoundError(f"job '{self._b.name}' has no keyed operator: there is no keeper to profile")
        return Profile(self._b.name, seconds, partitions)

    def _running_attempt(self) -> Attempt:
        supervisor = self._supervisor
        if not supervisor.is_at_work() or (attempt := supervisor.attempt) is None:
            raise UnavailableError(
                f"job '{self._b.name}' is {supervisor.state}: it cannot be looked into",
                hint="try again when it runs; a checkpoint of it can be read at any time",
            )
        return attempt

    def _ask(self, question: Callable[[Attempt], T]) -> T:
        """Ask the keepers of the running attempt; raise the cause of an error in a Spark task."""
        attempt = self._running_attempt()
        try:
            return question(attempt)
        except Exception as error:
            if (cause := unwrap_error(error)) is error:
                raise
            raise cause from None

    def process_all_available(self, timeout: Duration | float | None = None) -> None:
        """Wait until all present rows of the sources are processed, and all due timers have fired.

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
                exhausted = _wait_until_exhausted(attempt.query, left, ends="availableNow" in self._b.trigger)
                if exhausted and (exhausted_by is None or exhausted_by[0] is not attempt):
                    # Timers that fire may set later ones without end.
                    exhausted_by = attempt, attempt.driver.now_us
                idle = exhausted_by is not None and exhausted and not attempt.driver.has_due(exhausted_by[1])
                # A query that was stopped after a failure of the attempt has not processed everything.
                if (
                    idle
                    and supervisor.attempt is attempt
                    and supervisor.is_at_work()
                    and not attempt.driver.failed.is_set()
                ):
                    return
            time.sleep(0.02)

    def await_termination(self, timeout: Duration | float | None = None) -> bool:
        """Wait until the job ends, and raise its error if it failed. Return False after the time-out."""
        supervisor = self._supervisor
        deadline = None if timeout is None else time.monotonic() + _seconds(timeout)
        # With short waits: a signal that another thread receives does not wake the main thread, which must handle it.
        while not (ended := supervisor.ended.wait(_SIGNAL_S if deadline is None else _left(deadline, _SIGNAL_S))):
            if deadline is not None and time.monotonic() >= deadline:
                break
        if ended:
            # The program may end after this call: answer pending control requests first.
            self._control.join()
            self._join_telemetry()
        supervisor.raise_if_failed()
        return ended

    def _repr_html_(self) -> str:
        return status_html(self.glance())

    def _ipython_display_(self) -> None:
        """Show the live panel in a notebook."""
        if (shell := notebook()) is None:
            # IPython then takes the text.
            raise NotImplementedError
        self._panel.show(shell)

    def _stop_at_once(self) -> None:
        """Stop without waiting for the end of the epoch in progress. Raises UnavailableError if that takes long."""
        self._supervisor.stop(_AT_ONCE_S, abort_after=0.0)

    def stop(
        self,
        *,
        checkpoint: bool = False,
        savepoint: str | Path | None = None,
        drain: bool = False,
        format: str = "canonical",
        timeout: Duration | float = "1 min",
        progress: Callable[[SavepointProgress], object] | None = None,
    ) -> None:
        """Stop the job and end its keepers. With `checkpoint`, take a last one, so that no row is processed again.

        With `savepoint`, a URL, the last checkpoint also becomes a savepoint, as in `savepoint()`: no later output
        becomes visible, also if the job restarts meanwhile. `timeout` does not limit how long its files take, and no
        epoch begins until it is complete: another stop() without it cancels it.

        With `drain`, the job ends for good: no more events are read, event time advances to its end, windows and
        event-time timers output their results, and a last checkpoint makes them visible. Processing-time timers fire
        only if they are due. After a failure, the drain continues; another call of stop() cancels it. Raises
        UnavailableError if the job has ended before, or is not drained within `timeout`, and CheckpointError if it was
        drained without this savepoint.

        Without these options, rows after the last checkpoint stay invisible, and the next start processes them again.
        If the last checkpoint fails, CheckpointError is raised and the job continues; while the job restarts or is
        being rescaled, the call waits. Raises UnavailableError if the job has not ended within `timeout`; it then ends
        as soon as it can.
        """
        timeout_s = _seconds(timeout)
        if drain:
            self._requests.drain(timeout_s, savepoint, format, progress)
            self._control.join()
            self._join_telemetry()
            self._requests.check_drained()
            return
        if savepoint is not None or checkpoint:
            self._requests.stop(timeout_s, savepoint, format, progress)
        self._supervisor.stop(timeout_s)
        self._join_telemetry()

    def _join_telemetry(self) -> None:
        if self._telemetry is not None:
            self._telemetry.join()

    @property
    def metrics_address(self) -> str:
        """The address at which Prometheus finds the run's metrics, with `Telemetry(prometheus=…)`; else ""."""
        return self._telemetry.address if self._telemetry is not None else ""

    def rescale(self, parallelism: int | Mapping[str, int], *, timeout: Duration | float = "5 min") -> None:
        """Change the number of partitions: take a checkpoint, and start a new attempt that restores it.

        A number applies to all operators without an explicit parallelism; `{"uid": 4}` sets that of single operators.
        Results are the same as without the change. It holds until the next start of the job, which uses the parallelism
        of the operator in the program, else `Settings(parallelism=…)`, else that of the newest checkpoint. Raises
        ConfigurationError if an operator cannot have so many partitions, and CheckpointError if the checkpoint fails:
        the job then continues unchanged. While the job restarts or is being rescaled, the call waits.
        """
        self._requests.rescale(parallelism, _seconds(timeout))

    def savepoint(
        self,
        url: str | Path,
        *,
        format: str = "canonical",
        timeout: Duration | float | None = None,
        progress: Callable[[SavepointProgress], object] | None = None,
    ) -> Savepoint:
        """Take a checkpoint and make a savepoint of it: a new folder that no job owns or deletes.

        A canonical savepoint has tables of typed columns, which any backend restores; a native one has the backend's
        own files, and takes less time. Epochs continue meanwhile. It can be copied anywhere and restored with
        `start(restore=…)`. Raises CheckpointError if the checkpoint fails or is not complete within `timeout`, or if
        the job ends before the savepoint is complete, and ConflictError if the folder is not empty; no incomplete
        savepoint remains. A restart, rescale or rollback meanwhile does not affect it; while one is in progress, the
        call waits.
        """
        return self._requests.savepoint(url, format, _seconds(timeout), progress)

    def rollback(self, checkpoint: int, *, timeout: Duration | float = "5 min") -> None:
        """Go back to an older retained checkpoint of the job and continue from it: later checkpoints become void.

        The sources are read again from there. Exactly-once sinks remove their later output; others write it again, and
        a warning names them. Every byte of the checkpoint is read first. The job continues unchanged after
        NotFoundError or CorruptionError, if the checkpoint does not exist or is damaged, and after ConfigurationError,
        if the job was drained with it, if it does not fit the program, or if the sources do not have the rows any more.
        Raises UnavailableError if the job has ended, or has not gone back within `timeout`: it then still goes back
        when storage is available.
        """
        self._requests.rollback(checkpoint, _seconds(timeout))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


@overload
def _seconds(timeout: Duration | float) -> float: ...
@overload
def _seconds(timeout: None) -> None: ...
def _seconds(timeout: Duration | float | None) -> float | None:
    # Programs give what is left of their own time, which may be less than nothing.
    return (
        timeout if timeout is None or isinstance(timeout, int | float) else parse_duration_ms(timeout, "timeout") / 1000
    )


def _left(deadline: float, most: float) -> float:
    return min(most, max(0.0, deadline - time.monotonic()))


def _wait_until_exhausted(query: StreamingQuery, timeout: float | None, *, ends: bool) -> bool:
    """Wait until a query has processed all present rows; False if it failed or was stopped, or after the time-out.

    A query that `ends` by itself is awaited without `processAllAvailable`, which would reset Spark's flag that there is
    no new data.
    """
    done = threading.Event()

    def wait() -> None:
        with contextlib.suppress(Exception):
            if ends:
                query.awaitTermination()
            else:
                query.processAllAvailable()
            # The call also returns if the query is stopped.
            if query.isActive or has_read_all(query):
                done.set()

    # In a thread, because Spark's call has no time-out; the thread ends with the query.
    waiting = threading.Thread(target=wait, name="strandline-wait", daemon=True)
    waiting.start()
    waiting.join(timeout)
    return done.is_set()


def live_runs() -> list[Run]:
    """Return the runs of this process that were started and have not ended."""
    with _adding:
        return [run for run in _live if run._supervisor.is_live]
