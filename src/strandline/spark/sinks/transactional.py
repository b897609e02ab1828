"""Exactly-once sinks into systems with transactions, which are open only while rows are written.

The checkpoint is the write-ahead log. An epoch's rows are staged in its storage, and the manifest lists them. After the
checkpoint they are written to the target in short transactions, each of which also records the progress. A restore
reads that record and writes the rest. Job and target may be down for any time: the rows wait in storage.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, get_args

import pyarrow as pa
from pyspark.sql import DataFrame

from strandline.api.badrecords import Then
from strandline.checkpoint.folder import folder_at
from strandline.control.announcements import tell_always
from strandline.control.status import SinkStatus
from strandline.core import failpoints
from strandline.core.errors import ConfigurationError, ConflictError, UnavailableError
from strandline.core.ids import Epoch, Generation
from strandline.ends.arguments import check_location, check_options
from strandline.ends.committables import decode_committables
from strandline.ends.delivery import FIRST_DELAY_S, LONGEST_DELAY_S, Delivery, LaneResult, reason_of
from strandline.ends.readahead import ReadAhead
from strandline.ends.rejected import RejectedRows
from strandline.ends.staged import COMMITTABLES, LaneMarks, RowStager, StagedFile, StagedTask, files_of, generation_of
from strandline.ends.target import Target, Writer
from strandline.plan.callables import check_shippable
from strandline.spark.base.ddl import arrow_schema
from strandline.spark.base.mapping import map_batches
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.base.task_errors import SEAL, Seal, sealed_errors
from strandline.spark.sinks.base import Sink, SinkContext
from strandline.spark.sinks.tasks import write_tasks
from strandline.storage.place import Place

log = logging.getLogger(__name__)

_SMALL_BYTES = 4 << 20
"""The driver delivers up to this size itself: a Spark job takes longer to begin."""
_TASKS_AT_ONCE = 10_000
"""The most committables of one delivery, which each of its Spark tasks gets: after an outage, a million may wait."""
_THREADS = 8
_RESULT = "lane int, rows bigint, refused bigint, mark string, failure string"


class TransactionalOptions(TypedDict, total=False):
    """The options of all sinks that are `Transactional`."""

    name: str | None
    staging: str | Path | None
    on_error: Then
    dead_letters: str | Path | None
    storage_options: Mapping[str, str] | None


def check_option_names(what: str, options: TransactionalOptions) -> TransactionalOptions:
    """Return the options; raise TypeError for an unknown name."""
    known = TransactionalOptions.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(
                f"{what} got an unexpected keyword argument '{name}'; further options are {', '.join(known)}"
            )
    return options


class Transactional(Sink):
    """Write rows into a `Target` exactly once: visible there when the checkpoint after them completes, or later.

    Rows of a key stay in order if they come from a keyed operator without a shuffle in between. A job that is restored
    to an older checkpoint goes on from there, and rows that the target has received since stay there: use a target in
    which rows replace each other by their keys.

    `staging` is a directory or url that all machines reach: rows wait there, or else in the checkpoints' storage.

    A row that the target refuses ends the job, unless `on_error` is `"skip"` or `"dead-letter"`: then the job goes on
    without it. `dead_letters`, a directory or url, then gets it as a JSON file, with the columns of all dead letters.
    `storage_options` are for both folders.
    """

    takes_back = False
    made_by = "sinks.Transactional()"
    in_threads = True
    """Whether a process may write several lanes at the same time."""

    def __init__(
        self,
        target: Target,
        *,
        name: str | None = None,
        staging: str | Path | None = None,
        on_error: Then = "fail",
        dead_letters: str | Path | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name=name, visibility="checkpoint")
        what = self.made_by
        if not isinstance(target, Target):
            is_class = isinstance(target, type) and issubclass(target, Target)
            raise ConfigurationError(
                f"{what}: target is {target!r:.200}, expected a sinks.Target",
                hint=f"create one: {target.__name__}(…)" if is_class else "derive a class from sl.sinks.Target",
            )
        check_shippable(f"{what}: the target {type(target).__name__}", target)
        self.target = target
        self.destination = str(target.destination)
        self.datasets = target.datasets
        self.on_error = _check_on_error(what, on_error, target, dead_letters)
        self._dead_letters = None if dead_letters is None else check_location(what, "dead_letters", dead_letters)
        self._staging = None if staging is None else check_location(what, "staging", staging)
        self._options = check_options(what, "storage_options", storage_options)
        self._context: SinkContext | None = None
        self._status: SinkStatus | None = None
        self._ahead: ReadAhead | None = None
        self._is_small = True
        """Whether the driver has delivered the last rows itself, and reads the next ones ahead."""
        self._rows = self._refused = 0
        self._marks: dict[int, str] = {}
        self._late_since = 0.0
        self._has_recovered = False
        """Whether the target has answered since the program started the job."""
        self._has_claimed = self._has_cleaned = False
        self._checked_lanes: set[int] = set()

    def try_out(self, empty: DataFrame) -> None:
        # Arrow's time zone does not matter here: all times are in UTC.
        self.target.try_out(arrow_schema(empty.schema))

    def _begin_anew(self) -> None:
        self._has_recovered = False

    def open(self, context: SinkContext) -> None:
        if self._staging is not None:
            self._place = Place(url=self._staging, path="", options=self._options, fsync=context.fsync)
        elif context.staging is not None:
            self._place = context.staging
        else:
            raise ConfigurationError(
                f"sink '{context.sink}': there is no storage for waiting rows",
                hint="give the job checkpoints=, or the sink staging=",
            )
        self._context = context
        self._sink = context.identity
        self._writer = Writer(
            self._sink, context.generation, context.sink, context.job, self._place, context.life
        )  # fmt: skip
        letters = None if self._dead_letters is None else Place(
            url=self._dead_letters, options=self._options, fsync=context.fsync
        )  # fmt: skip
        self._refusals = RejectedRows(self.on_error, letters)
        self._rows, self._refused, self._status = 0, 0, SinkStatus(context.sink)
        self._marks = {}
        self._has_claimed = self._has_cleaned = False
        self._checked_lanes = set()
        self._stop_reading()
        self._ahead = ReadAhead(folder_at(self._place), self._writer.label, _SMALL_BYTES)

    def _stop_reading(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._ahead = None

    def write(self, df: DataFrame, epoch: Epoch) -> list[str]:
        generation, parallel = self._opened.generation, self.target.parallel
        committables = write_tasks(df, RowStager(self._place, self._sink, generation, epoch, parallel), self.shape)
        # Another thread may end the run meanwhile.
        if (ahead := self._ahead) is not None and self._is_small:
            tasks = decode_committables(committables, COMMITTABLES, self._writer.label)
            ahead.add(file for each in tasks if isinstance(each, StagedTask) for file in files_of(self._sink, each))
        return committables

    def shape(self, df: DataFrame) -> DataFrame:
        """Return the rows for the target, by a computation that is the same in all epochs."""
        return df

    def commit(self, pending: Sequence[str]) -> Sequence[str]:
        return self._report(*self._deliver(pending, self.patience_s))

    def _report(self, left: Sequence[StagedTask], reason: str) -> Sequence[str]:
        """Report the waiting rows in the log and the status; return their committables."""
        now = time.monotonic()
        pieces = [piece for each in left for piece in each.pieces]
        rows, size = sum(piece.rows for piece in pieces), sum(piece.bytes for piece in pieces)
        if left and not self._late_since:
            self._late_since = now
            log.warning("%s: %s rows wait in storage, and the job goes on: %s", self._writer.label, f"{rows:,}", reason)
        elif self._late_since and not left:
            # They are delivered, or a rollback has given them up.
            tell_always(f"{self._writer.label}: no rows wait any more")
            self._late_since = 0.0
        waiting_ms = round((now - self._late_since) * 1000) if left else 0
        self._status = SinkStatus(self._opened.sink, self._rows, self._refused, rows, size, waiting_ms, reason)
        return [each.text for each in left]

    def reached(self) -> str | None:
        return LaneMarks(self._sink, self._marks).text if self._marks else None

    def status(self) -> SinkStatus | None:
        return self._status

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> Sequence[str]:
        """Claim the target, and write the rows that the checkpoint lists.

        A start of the program needs the target for that. A later run does not, such as one after a failure: while the
        target is down, rows wait, and the sink claims it before it writes the first of them. Until then, older runs can
        write only rows that the checkpoint lists, and each lane's record has their progress.
        """
        run = self._opened
        self._writer = replace(self._writer, begin=epoch, restored_by=0 if fresh else run.restored_by, turns=run.turns)
        patience_s = self.patience_s if self._has_recovered else self.start_patience_s
        left, reason = self._deliver(pending, patience_s, begins=True)
        if reason and not self._has_recovered:
            waits = ", and rows of the last checkpoint wait for it" if left else ""
            raise UnavailableError(f"{self._writer.label}: the target does not answer{waits}: {reason}")
        self._has_recovered = True
        return self._report(left, reason)

    def _claim(self, patience_s: float) -> str:
        """Claim the target, once, so that it refuses older runs; return why it is unavailable."""
        delay_s, until = FIRST_DELAY_S, time.monotonic() + patience_s
        while not self._has_claimed:
            try:
                self.target.claim(self._writer)
                self._has_claimed = True
                break
            except Exception as error:
                # A conflict: an older driver still writes, until it notices that it was replaced.
                if not isinstance(error, ConflictError) and not self.target.may_pass(error):
                    raise
                if time.monotonic() + delay_s > until:
                    return reason_of(error)
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        return ""

    def _check_lanes(self, lanes: set[int], patience_s: float) -> str:
        """Check the lanes' marks in the target before this run writes to them; return why it is unavailable.

        This detects a target that was put back, also in lanes without waiting rows.
        """
        new = (lanes | self._marks.keys()) - self._checked_lanes
        failing = self._deliver_run([], patience_s, new) if new else {}
        if not failing:
            self._checked_lanes |= new
        return next(iter(failing.values()), "")

    def _deliver(
        self, pending: Sequence[str], patience_s: float, *, begins: bool = False
    ) -> tuple[list[StagedTask], str]:
        """Write the rows that the target does not have; return those that have to wait, and why."""
        runs: dict[Generation, list[StagedTask]] = {}
        for each in decode_committables(pending, COMMITTABLES, self._writer.label):
            if isinstance(each, StagedTask):
                runs.setdefault(each.generation, []).append(each)
            elif each.sink == self._sink:
                self._remember(each.lanes)
        left: list[StagedTask] = []
        lanes = {each.lane for tasks in runs.values() for each in tasks}
        # A program's start claims the target before it stages the first rows.
        self._writer = replace(self._writer, has_claimed=bool(runs or self._marks))
        reason = self._claim(patience_s) or self._check_lanes(lanes, patience_s) if runs or begins else ""
        # One run after the other: each may have other lanes, and the rows of a key must stay in order.
        for _, tasks in sorted(runs.items()):
            failing: dict[int, str] = {}
            tasks.sort(key=lambda each: (each.epoch, each.partition))
            for start in range(0, len(tasks), _TASKS_AT_ONCE):
                some = tasks[start : start + _TASKS_AT_ONCE]
                if not reason:
                    failing |= self._deliver_run([each for each in some if each.lane not in failing], patience_s)
                left += [each for each in some if reason or each.lane in failing]
            reason = reason or next(iter(failing.values()), "")
        if self._has_claimed and not left:
            self._delete_older()
        return left, reason

    def _deliver_run(
        self, tasks: Sequence[StagedTask], patience_s: float, empty_lanes: Collection[int] = ()
    ) -> dict[int, str]:
        """Write the rows that one run has staged; return the lanes that have to wait, and why.

        Also checks the marks of `empty_lanes`.
        """
        lanes: dict[int, list[StagedFile]] = {lane: [] for lane in empty_lanes}
        for each in tasks:
            lanes.setdefault(each.lane, []).extend(files_of(self._sink, each))
        for waiting in lanes.values():
            waiting.sort(key=lambda each: each.number)
        is_late = bool(self._late_since) or not self._has_recovered
        delivery = Delivery(
            self.target, self._writer, self._place, self._refusals, patience_s, self._marks, self.is_behind, is_late,
            self._ahead,
        )  # fmt: skip
        silent = self._ask(delivery, lanes) if self._late_since and len(lanes) > 1 else {}
        results = silent | self._run(delivery, {lane: each for lane, each in lanes.items() if lane not in silent})
        self._remember({lane: result.mark for lane, result in results.items()})
        self._rows += sum(result.rows for result in results.values())
        refused = sum(result.refused for result in results.values())
        if refused:
            self._refused += refused
            log.warning("%s: the target refused %d rows: %s", self._writer.label, refused, self._letters())
        failing = {lane: result.failure for lane, result in results.items() if result.failure}
        delivered = [each.path for lane, waiting in lanes.items() if lane not in failing for each in waiting]
        failpoints.hit("sink.delivered")
        # The next run deletes the rest.
        with suppress(UnavailableError):
            folder_at(self._place).delete(delivered)
        return failing

    def _remember(self, marks: Mapping[int, str]) -> None:
        """Keep the greatest mark of each lane: a target with a smaller one was put back, and lacks rows for good."""
        # A new dict: another thread reads the old one while it stages an epoch.
        self._marks = self._marks | {lane: mark for lane, mark in marks.items() if mark > self._marks.get(lane, "")}

    def _ask(self, delivery: Delivery, lanes: Collection[int]) -> dict[int, LaneResult]:
        """Return the lanes for which the target does not answer the driver.

        Rows are late: tasks would wait for a target that hangs, and keep the cores from the job's epochs.
        """
        until = time.monotonic() + delivery.patience_s
        silent: dict[int, LaneResult] = {}

        def ask(lane: int) -> None:
            late = time.monotonic() > until
            reason = next((each.failure for each in list(silent.values()) if late), "") or delivery.ask(lane)
            if reason:
                silent[lane] = LaneResult(0, 0, self._marks.get(lane, ""), reason)

        with ThreadPoolExecutor(min(_THREADS, len(lanes)), "strandline-deliver") as pool:
            # In any order: a lane that hangs does not always keep the same ones from being asked.
            list(pool.map(ask, random.sample(list(lanes), len(lanes))))
        return silent

    def _run(self, delivery: Delivery, lanes: Mapping[int, Sequence[StagedFile]]) -> dict[int, LaneResult]:
        size = sum(each.piece.bytes for waiting in lanes.values() for each in waiting)
        is_small = size <= _SMALL_BYTES and (self.in_threads or len(lanes) < 2)
        if size:
            self._is_small = self.target.on_driver or is_small
        if self.target.on_driver or is_small or not size:
            if len(lanes) < 2:
                return {lane: delivery.deliver(lane, waiting) for lane, waiting in lanes.items()}
            with ThreadPoolExecutor(min(_THREADS, len(lanes)), "strandline-deliver") as pool:
                running = {lane: pool.submit(delivery.deliver, lane, waiting) for lane, waiting in lanes.items()}
            return {lane: future.result() for lane, future in running.items()}
        if self._ahead is not None:
            self._ahead.clear()
        numbers = self._opened.spark.range(0, len(lanes), 1, len(lanes))
        try:
            rows = map_batches(
                numbers, _DeliverLanes(SEAL, replace(delivery, ahead=None), dict(lanes)), _RESULT
            ).collect()
        except Exception as error:
            raise unwrap_error(error) from error
        return {row.lane: LaneResult(row.rows, row.refused, row.mark, row.failure) for row in rows}

    def _delete_older(self) -> None:
        """Delete the files of older generations, once: the target has all of their rows that checkpoints list."""
        if self._has_cleaned:
            return
        folder = folder_at(self._place)
        # If storage is unavailable, a later delivery tries again.
        with suppress(UnavailableError):
            files = ((info.path, generation_of(self._sink, info.path)) for info in folder.list(self._sink))
            folder.delete([path for path, number in files if number is not None and number < self._opened.generation])
            self._has_cleaned = True

    def close(self) -> None:
        self._stop_reading()

    def _letters(self) -> str:
        return "they are left out" if self._dead_letters is None else f"they are in {self._dead_letters}"

    @property
    def _opened(self) -> SinkContext:
        assert self._context is not None, "the sink was not opened"
        return self._context


@dataclass(frozen=True)
class _DeliverLanes:
    """The task that delivers lanes. Its rows are the lanes' indexes."""

    seal: Seal
    delivery: Delivery
    lanes: dict[int, Sequence[StagedFile]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        order = sorted(self.lanes)
        for batch in batches:
            with sealed_errors(self.seal):
                lanes = [order[at] for at in batch[0].to_pylist()]
                results = [(lane, self.delivery.deliver(lane, self.lanes[lane])) for lane in lanes]
            columns = [
                pa.array([lane for lane, _ in results], pa.int32()),
                pa.array([result.rows for _, result in results], pa.int64()),
                pa.array([result.refused for _, result in results], pa.int64()),
                pa.array([result.mark for _, result in results], pa.string()),
                pa.array([result.failure for _, result in results], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["lane", "rows", "refused", "mark", "failure"])


def _check_on_error(what: str, on_error: Any, target: Target, dead_letters: Any) -> Then:
    if on_error not in get_args(Then):
        raise ConfigurationError(f"{what}: on_error is {on_error!r:.200}, expected 'fail', 'skip' or 'dead-letter'")
    kind = type(target).__name__
    if not isinstance(target.max_rows, int) or target.max_rows < 1:
        raise ConfigurationError(
            f"{what}: max_rows of the target {kind} is {target.max_rows!r:.200}, expected 1 or more",
            hint="leave it out, or set the number of rows after which a transaction ends",
        )
    if on_error != "fail" and not target.refusing:
        raise ConfigurationError(
            f"{what}: on_error is {on_error!r}, and the target {kind} does not say which of its errors a row causes",
            hint=f"give {kind} an attribute refusing = (TheError, …)",
        )
    if (on_error == "dead-letter") != (dead_letters is not None):
        raise ConfigurationError(
            f"{what}: on_error is {on_error!r}, and dead_letters is {dead_letters!r}: one needs the other",
            hint="on_error='dead-letter', dead_letters='a directory or url'",
        )
    return on_error  # type: ignore[no-any-return]
