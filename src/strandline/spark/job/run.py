"""A job that runs: asked for its status, checkpointed, rescaled, stopped. Who looks after it: supervision.py."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from strandline.api.config import Restart
from strandline.checkpoint.history import CheckpointStats
from strandline.control.announcements import tell
from strandline.control.server import ControlServer
from strandline.control.status import Savepoint, Status
from strandline.core.errors import CheckpointError, ConfigurationError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.core.scratch import remove_abandoned
from strandline.keeper.lookups import LookupResult, LookupTable
from strandline.keeper.paths import sweep
from strandline.plan.parallelism import ParallelismOverride, check_wanted
from strandline.snapshot.opening.origin import verify_own
from strandline.snapshot.savepoints.progress import SavepointProgress
from strandline.spark.base.quiet import hide_errors_of
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.job.attempt import Attempt, Blueprint
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.job.following import Follower, first_told, parallelism_of
from strandline.spark.job.requests import ON_THE_WAY, Waiting
from strandline.spark.job.saving import save, target_of
from strandline.spark.job.sourcewatch import has_read_all
from strandline.spark.job.starting import Starting
from strandline.spark.job.status import status_of_attempt
from strandline.spark.job.supervision import Desired, Rollback

_live: weakref.WeakSet[Run] = weakref.WeakSet()
_adding = threading.Lock()
_PATIENCE_S = 10.0
"""How long a stop waits before it ends keepers that keep the job from ending."""
_AGAIN_S = 1.0
_LOOK_S = 0.02
_FOLLOW_S = 300.0
_SIGNAL_S = 0.5


class Run(Waiting):
    """A started job. Also a context manager that stops it."""

    def __init__(self, blueprint: Blueprint, restart: Restart) -> None:
        super().__init__(blueprint, restart)
        self._control = ControlServer(
            self, blueprint.places, self._since_ms, show_values=blueprint.settings.show_values
        )

    def start(self) -> None:
        """Start for the first time; what is wrong with the program is raised here."""
        self._check_sinks_are_free()
        for _, sink, _ in self._b.plan.sinks:
            sink._begin_anew()
        self._held = self._b.places.hold()
        sweep(self._b.places.local_dir)
        remove_abandoned(self._b.places.root)
        hide_errors_of(EpochDriver.__call__.__code__)
        self._log.open()
        self._enter("starting")
        tell(f"job '{self._b.name}' is starting: its checkpoints are in {self._b.jobdir.store.url}")
        try:
            settings, spark = self._b.settings, self._b.spark
            # Commands that change what is desired wait until it is known.
            with self._changing:
                self._control.start()
                self._desired = Desired(first_told(settings, spark, wait=True))
            self._begin_first()
            with _adding:
                _live.add(self)
            self._thread.start()
            if settings.follows is not None:
                Follower(self._b.name, self, settings.follows, spark, self._b.clock, self._ended).start()
        except BaseException as error:
            if not self._thread.is_alive():
                # Interrupted when the run was there, and nobody to look after it.
                self._end_attempt()
                self._control.end()
                self._control.join()
                self._note_failure(error)
                self._enter("failed")
                self._ended.set()
                self._log.note(f"job '{self._b.name}' did not start: {error}")
                self._log.close()
                self._held.close()
            raise

    def _check_sinks_are_free(self) -> None:
        """Refuse a sink object that a live run has: it knows one run, and takes rows of the other for its own."""
        mine = {id(sink): name for name, sink, _ in self._b.plan.sinks if sink.visibility == "checkpoint"}
        for other in live_runs():
            # One that has ended its last attempt has let go of them, and may take a moment to be gone.
            is_at_work = other._state in (*ON_THE_WAY, "running")
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
        return self._attempt.query if self._attempt else None

    def status(self) -> Status:
        """Return what the job is doing now."""
        return self._look(sources=True)

    def glance(self) -> Status:
        """Return what `status` does without asking the sources, which may take a while."""
        return self._look(sources=False)

    def _look(self, *, sources: bool) -> Status:
        attempt = self._attempt
        return Status(
            job=self._b.name,
            state=self._state,
            generation=self._claim.generation if self._claim else 0,
            restarts=self._restarts,
            last_failure=self._last_failure,
            last_failure_ms=self._last_failure_ms,
            sources=self._b.plan.sources.names,
            follows=self._desired.parallelism.is_room,
            **(status_of_attempt(attempt, sources=sources and self._is_at_work()) if attempt else self._known),
        )

    def checkpoints(self) -> list[CheckpointStats]:
        """Return figures of this attempt's checkpoints, oldest first."""
        attempt = self._attempt
        return list(attempt.coordinator.history) if attempt else []

    def checkpoint(
        self, timeout: float | None = None, *, progress: Callable[[CheckpointStats], object] | None = None
    ) -> CheckpointStats:
        """Take a checkpoint now and wait for it; return its figures. Meanwhile, `progress` is called with them.

        It covers at least every epoch that was complete when this was called. A job that restarts or is being rescaled,
        or does so meanwhile, is waited for: then it is of what the job has gone on from, and after. Raises
        CheckpointError if it fails, is not complete within `timeout` seconds, or the job ends.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            attempt = self._await_attempt(deadline)
            if attempt is None:
                raise self._no_checkpoint(timeout)
            try:
                return self._checkpoint_of(attempt, deadline, progress)
            except CheckpointError as error:
                # What was asked of an attempt that ends is asked of the next one, if there is one.
                if "attempt_ended" not in error.fields or not self._is_followed(attempt, deadline):
                    raise

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
            # What broke in a task of Spark's says what it was.
            found = unwrap_error(error)
            if found is error:
                raise
            raise found from None

    def lookup_table(self, table: str) -> LookupTable:
        """Return what a table that can be looked into is keyed by."""
        return self._looked_into().table(table)

    def _looked_into(self) -> Attempt:
        if not self._is_at_work() or (attempt := self._attempt) is None:
            raise UnavailableError(
                f"job '{self._b.name}' is {self._state}: its state cannot be looked up",
                hint="ask again once it runs; a checkpoint of it can be read at any time",
            )
        return attempt

    def process_all_available(self, timeout: float | None = None) -> None:
        """Wait until everything the source has now is processed, and timers that are due have fired.

        Rows are visible after the next checkpoint.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        exhausted_by: tuple[Attempt, int] | None = None
        while True:
            self._raise_if_failed()
            if self._ended.is_set():
                return
            if deadline is not None and time.monotonic() > deadline:
                raise UnavailableError(f"job '{self._b.name}': the source was not exhausted within {timeout} seconds")
            attempt = self._attempt
            if self._is_at_work() and attempt is not None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                exhausted = _exhausted(attempt.query, left, ends="availableNow" in self._b.trigger)
                if exhausted and (exhausted_by is None or exhausted_by[0] is not attempt):
                    # Timers that fire may set others, for later, on and on.
                    exhausted_by = attempt, attempt.driver.now_us
                idle = exhausted_by is not None and exhausted and not attempt.driver.has_due(exhausted_by[1])
                # A query that is stopped, since the attempt failed, has not processed everything.
                if idle and self._attempt is attempt and self._is_at_work() and not attempt.driver.failed.is_set():
                    return
            time.sleep(0.02)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the job ends, and raise what made it fail. Return False if the time was up before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        # A look now and then: a signal that the system hands to another thread does not wake this one, which may be the
        # main thread, and has to heed it.
        while not (ended := self._ended.wait(_SIGNAL_S if deadline is None else _left(deadline, _SIGNAL_S))):
            if deadline is not None and time.monotonic() >= deadline:
                break
        if ended:
            # The program may end with this: who has asked for that should hear of it.
            self._control.join()
        self._raise_if_failed()
        return ended

    def stop(
        self,
        *,
        checkpoint: bool = False,
        savepoint: str | Path | None = None,
        drain: bool = False,
        format: str = "canonical",
        timeout: float = 60.0,
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
        deadline = time.monotonic() + timeout
        if drain:
            self._drain(deadline, savepoint, format, progress)
            return
        if savepoint is not None or checkpoint:
            # Paused in whatever attempt, until the end: sinks show nothing that the last checkpoint does not know of.
            with self._alone(deadline), self._paused():
                if savepoint is not None:
                    self.savepoint(savepoint, format=format, timeout=timeout, progress=progress)
                else:
                    self._take_last_checkpoint(deadline)
                self._stopping.set()
        self._stopping.set()
        deadline, patience = time.monotonic() + timeout, _PATIENCE_S
        while not self._ended.wait(min(patience, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    f"job '{self._b.name}' has not ended within {timeout:g} s of being stopped",
                    hint="call stop() again to wait longer, or end the program: its keepers end with it",
                )
            patience = _AGAIN_S
            if (at_work := self._starting or self._attempt) is not None:
                at_work.break_off()
        self._thread.join(timeout)
        self._control.join()

    def _take_last_checkpoint(self, deadline: float) -> None:
        self._await_attempt(deadline)
        try:
            if not self._ended.is_set():
                self.checkpoint(max(0.0, deadline - time.monotonic()))
        except CheckpointError:
            # A job that has come to its end meanwhile has a checkpoint of everything.
            if self._state != "finished":
                raise

    def _drain(
        self,
        deadline: float,
        savepoint: str | Path | None,
        format: str,
        progress: Callable[[SavepointProgress], object] | None,
    ) -> None:
        """Have whatever attempt is at work drain the job, and wait for its end."""
        draining = self._b.draining
        with self._alone(deadline):
            if savepoint is not None:
                # What is wrong with it is said before anything ends.
                target_of(self._b, savepoint, format)
                draining.held.set()
            draining.asked.set()
            try:
                if savepoint is not None:
                    self._save_drained(deadline, savepoint, format, progress)
            finally:
                draining.held.clear()
            while not self._ended.wait(_left(deadline, _SIGNAL_S)) and time.monotonic() < deadline:
                pass
        self._raise_if_failed()
        if not self._ended.is_set():
            raise self._not_drained("is being drained, and has not ended yet", "it ends as soon as it is")
        self._control.join()
        if not draining.done.is_set():
            raise self._not_drained("had ended before it was drained", "start it, and drain it while it runs")

    def _save_drained(
        self,
        deadline: float,
        savepoint: str | Path,
        format: str,
        progress: Callable[[SavepointProgress], object] | None,
    ) -> None:
        """Make a savepoint of the drained job. If that fails, the job is drained all the same."""
        while (attempt := self._await_drained(deadline)) is not None:
            try:
                # Of this attempt: one that takes its place has yet to be drained, and gives its windows once more.
                self._save(partial(self._checkpoint_of, attempt, deadline), savepoint, format, progress)
                return
            except CheckpointError as error:
                if "attempt_ended" not in error.fields or not self._is_followed(attempt, deadline):
                    raise

    def _await_drained(self, deadline: float) -> Attempt | None:
        """Wait until an attempt has drained the job; return None if the job has ended before."""
        while not ((attempt := self._attempt) is not None and self._is_at_work() and attempt.driver.drained):
            if self._ended.wait(_LOOK_S):
                return None
            if time.monotonic() > deadline:
                raise self._not_drained("is being drained, and there is no savepoint yet", "it ends as soon as it is")
        return attempt

    def _not_drained(self, what: str, then: str) -> UnavailableError:
        return UnavailableError(f"job '{self._b.name}' {what}", hint=then)

    def rescale(self, parallelism: int | Mapping[str, int], *, timeout: float = 300.0) -> None:
        """Go on with another number of partitions: a checkpoint, and a new attempt that restores it so divided.

        A number is for all operators without a parallelism of their own; `{"uid": 4}` gives single operators theirs.
        Results are those of an undisturbed job. It holds until the job is started again: then what the program says
        of an operator counts, or `Settings(parallelism=…)` or, where that is not given, what the newest checkpoint has.
        Raises ConfigurationError if an operator cannot have so many, CheckpointError if the checkpoint fails: then the
        job goes on as it was. A job that restarts, or is being rescaled, is waited for.
        """
        check_wanted(parallelism, [node.uid for node in self._b.plan.pipeline.operators])
        deadline = time.monotonic() + timeout
        with self._alone(deadline):
            told = self._desired.parallelism.and_then(parallelism)
            self._go_on_with(told, f"the rescale to {_number_text(parallelism)}", deadline)

    @property
    def followed(self) -> tuple[int, int] | None:
        """How many partitions operators have that follow the executors, and may have at most: 0 while there are none.

        None: it follows them no more.
        """
        told = self._desired.parallelism
        if self._stopping.is_set() or not told.is_room or told.job is None:
            return None
        attempt = self._attempt
        operators = attempt.driver.operators if attempt is not None and self._is_at_work() else ()
        most = max((operator.max_parallelism for operator in operators if not operator.has_own), default=0)
        return min(told.job, most), most

    def follow(self, room: int) -> bool:
        """Go on with as many partitions as there is room for, unless this is no time for it."""
        if not self._changing.acquire(blocking=False):
            return False
        try:
            told = self._desired.parallelism
            if not self._is_at_work() or self._stopping.is_set() or self._b.draining.asked.is_set() or not told.is_room:
                return False
            what = f"the rescale to {room}, which its executors have room for,"
            self._go_on_with(replace(told, job=room), what, time.monotonic() + _FOLLOW_S)
            return True
        finally:
            self._changing.release()

    def _go_on_with(self, told: ParallelismOverride, what: str, deadline: float) -> None:
        """Take a checkpoint, and have an attempt restore it that has been told something else."""
        if (attempt := self._await_attempt(deadline)) is None:
            raise UnavailableError(f"job '{self._b.name}' is {self._state}: it cannot be rescaled")
        b = self._b
        said = parallelism_of(b.settings, b.spark, told)
        b.plan.pipeline.settle(said, [operator.info(b.settings.backend) for operator in attempt.driver.operators])
        with self._paused():
            self.checkpoint(max(0.0, deadline - time.monotonic()))
            self._change(replace(self._desired, parallelism=told), what, deadline)

    def savepoint(
        self,
        url: str | Path,
        *,
        format: str = "canonical",
        timeout: float | None = None,
        progress: Callable[[SavepointProgress], object] | None = None,
    ) -> Savepoint:
        """Take a checkpoint and make it a savepoint: a folder, not there yet, that belongs to nobody and stays.

        Canonical, its state is tables of typed columns, to be restored on any backend; native, the backend's own files,
        at once. Epochs go on meanwhile. It can be copied anywhere and restored with `start(restore=…)`. Raises
        CheckpointError if the checkpoint fails or is not complete within `timeout` seconds, or the job ends before the
        savepoint is complete, and ConflictError if there is anything in the folder; nothing that could be taken for a
        savepoint is left then. A job that restarts, or is rescaled, or goes back meanwhile, disturbs it in nothing, and
        one that does so when this is called is waited for.
        """
        target_of(self._b, url, format)
        if self._state not in (*ON_THE_WAY, "running"):
            raise CheckpointError(f"job '{self._b.name}' is {self._state}: no savepoint can be taken")
        return self._save(lambda: self.checkpoint(timeout), url, format, progress)

    def _save(
        self,
        take_checkpoint: Callable[[], CheckpointStats],
        url: str | Path,
        format: str,
        progress: Callable[[SavepointProgress], object] | None,
    ) -> Savepoint:
        report: Any = progress or (lambda _: None)
        form: Any = format
        target = target_of(self._b, url, format)
        return save(self._b, take_checkpoint, target, form, report, self._is_ending)

    def rollback(self, checkpoint: int, *, timeout: float = 300.0) -> None:
        """Go back to an older retained checkpoint of the job, and on from there: later ones are void from then on.

        The sources are read again from there, and exactly-once sinks take back what they have shown since; others
        show it again, as a warning tells. Every byte of the checkpoint is read before. Raises NotFoundError or
        CorruptionError, and the job goes on, if it has no such checkpoint or it is damaged; ConfigurationError, and the
        job goes on, if it was drained with it, it does not fit the program, or the sources do not have any more what
        would be read again; and UnavailableError if the job has ended, or has not gone back within `timeout`: then it
        still does, as soon as storage lets it.
        """
        deadline, rollback = time.monotonic() + timeout, Rollback(CheckpointId(checkpoint))
        # Held: what was read stays until it is what the job goes on from.
        with self._alone(deadline), self._b.holds:
            manifest = verify_own(self._b.jobdir, rollback.checkpoint)
            self._b.draining.refuse_rollback(self._b.name, manifest)
            told = self._desired.parallelism
            Starting(self._b, self._excluded, self._least_id, self._claim, told).check_rollback(manifest)
            with self._paused():
                desired = replace(self._desired, rollback=rollback)
                self._change(desired, f"the rollback to checkpoint {checkpoint}", deadline)
        if rollback.refusal is not None:
            raise rollback.refusal

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _left(deadline: float, most: float) -> float:
    return min(most, max(0.0, deadline - time.monotonic()))


def _number_text(parallelism: int | Mapping[str, int]) -> str:
    if not isinstance(parallelism, Mapping):
        return str(parallelism)
    return ", ".join(f"{uid}={number}" for uid, number in parallelism.items())


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
        return [run for run in _live if not run._ended.is_set()]
