"""Exactly once into systems with transactions, none of which is open for longer than it takes to write.

The write-ahead log is the checkpoint: an epoch's rows are staged in its storage, the manifest lists them, and once it
is published they are written to the target in short transactions, each with the record of how far it came. A restore
reads that record and does the rest. So nothing depends on how long a job was away, and a target that was is caught up
with: its rows wait in storage meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
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
from strandline.ends.arguments import options_of, place_of
from strandline.ends.committables import decode_committables
from strandline.ends.delivery import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    Delivered,
    Delivery,
    reason_of,
)
from strandline.ends.rejected import RejectedRows
from strandline.ends.staged import LISTED, Reached, StagedFile, StagedTask, StageRows, generation_in, waiting_in
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
"""Up to so much the driver writes itself: a Spark job takes longer to begin."""
_THREADS = 8
_DELIVERED = "lane int, rows bigint, refused bigint, mark string, failure string"


class TransactionalOptions(TypedDict, total=False):
    """What all sinks that are `Transactional` can be told."""

    name: str | None
    staging: str | Path | None
    on_error: Then
    dead_letters: str | Path | None
    storage_options: Mapping[str, str] | None


class Transactional(Sink):
    """Write rows into a `Target` exactly once: visible there when the checkpoint after them completes, or later.

    Rows of a key stay in order if they come from a keyed operator with nothing in between that shuffles. A job that is
    restored to an older checkpoint goes on from there, and what the target has been given since stays: give such a job
    a target whose rows it may replace, by their keys.

    `staging` is where rows wait, if not in the checkpoints' storage: a directory or url that all machines reach.

    A row that the target refuses ends the job, unless `on_error` is `"skip"` or `"dead-letter"`: then the job goes on
    without it, and `dead_letters`, a directory or url, has it as a file of JSON with the columns of all dead letters.
    `storage_options` are those of both places.
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
                hint=f"make one: {target.__name__}(…)" if is_class else "derive a class from sl.sinks.Target",
            )
        check_shippable(f"{what}: the target {type(target).__name__}", target)
        self.target = target
        self.destination = str(target.destination)
        self.on_error = _checked(what, on_error, target, dead_letters)
        self._dead_letters = None if dead_letters is None else place_of(what, "dead_letters", dead_letters)
        self._staging = None if staging is None else place_of(what, "staging", staging)
        self._options = options_of(what, "storage_options", storage_options)
        self._context: SinkContext | None = None
        self._told: SinkStatus | None = None
        self._rows = self._refused = 0
        self._reached: dict[int, str] = {}
        self._late_since = 0.0
        self._has_recovered = False
        """Whether the target has answered since the program started the job."""
        self._has_claimed = self._has_forgotten = False
        self._asked: set[int] = set()

    def try_out(self, empty: DataFrame) -> None:
        # The zone is how times are shown: all are of UTC.
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
                f"sink '{context.sink}': there is no storage for the rows that wait",
                hint="give the job checkpoints=, or the sink staging=",
            )
        self._context = context
        self._sink = context.identity
        self._writer = Writer(
            self._sink, context.generation, context.sink, context.job, self._place, context.life
        )  # fmt: skip
        aside = None if self._dead_letters is None else Place(
            url=self._dead_letters, options=self._options, fsync=context.fsync
        )  # fmt: skip
        self._refusals = RejectedRows(self.on_error, aside)
        self._rows, self._refused, self._told = 0, 0, SinkStatus(context.sink)
        self._reached = {}
        self._has_claimed = self._has_forgotten = False
        self._asked = set()

    def write(self, df: DataFrame, epoch: Epoch) -> list[str]:
        generation, parallel = self._opened.generation, self.target.parallel
        return write_tasks(df, StageRows(self._place, self._sink, generation, epoch, parallel))

    def commit(self, pending: Sequence[str]) -> Sequence[str]:
        return self._note(*self._deliver(pending, self.patience_s))

    def _note(self, left: Sequence[StagedTask], why: str) -> Sequence[str]:
        """Say what waits, in the log and in the status; return it."""
        now = time.monotonic()
        pieces = [piece for each in left for piece in each.pieces]
        rows, size = sum(piece.rows for piece in pieces), sum(piece.bytes for piece in pieces)
        if left and not self._late_since:
            self._late_since = now
            log.warning("%s: %s rows wait in storage, and the job goes on: %s", self._writer.label, f"{rows:,}", why)
        elif self._late_since and not left:
            tell_always(f"{self._writer.label}: what waited is delivered")
            self._late_since = 0.0
        waiting_ms = round((now - self._late_since) * 1000) if left else 0
        self._told = SinkStatus(self._opened.sink, self._rows, self._refused, rows, size, waiting_ms, why)
        return [each.text for each in left]

    def reached(self) -> str | None:
        return Reached(self._sink, self._reached).text if self._reached else None

    def status(self) -> SinkStatus | None:
        return self._told

    def recover(self, pending: Sequence[str], epoch: Epoch, *, fresh: bool) -> Sequence[str]:
        """Claim the target, and write what the checkpoint lists.

        A program that starts needs the target for that. A run that goes on after a failure, or in another way, does
        not: while the target is away, rows go on waiting, and it is claimed before the first of them is written. Older
        runs can write nothing by then that the checkpoint does not list, and each lane's record tells what they have.
        """
        del epoch, fresh
        patience_s = self.patience_s if self._has_recovered else self.start_patience_s
        left, why = self._deliver(pending, patience_s, begins=True)
        if why and not self._has_recovered:
            waits = ", and rows of the last checkpoint wait for it" if left else ""
            raise UnavailableError(f"{self._writer.label}: the target does not answer{waits}: {why}")
        self._has_recovered = True
        return self._note(left, why)

    def _claim(self, patience_s: float) -> str:
        """Have the target refuse older runs from now on, unless it does; return why it cannot be reached."""
        delay_s, until = FIRST_DELAY_S, time.monotonic() + patience_s
        while not self._has_claimed:
            try:
                self.target.claim(self._writer)
                self._has_claimed = True
                break
            except Exception as error:
                # A conflict: an older driver writes meanwhile, until it finds that it was replaced.
                if not isinstance(error, ConflictError) and not self.target.may_pass(error):
                    raise
                if time.monotonic() + delay_s > until:
                    return reason_of(error)
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)
        return ""

    def _ask(self, lanes: set[int], patience_s: float) -> str:
        """See what the target has of lanes before this run writes to them; return why it cannot be reached.

        Nothing else asks those whose rows were lost with a target that was put back.
        """
        new = (lanes | self._reached.keys()) - self._asked
        failing = self._deliver_run([], patience_s, new) if new else {}
        if not failing:
            self._asked |= new
        return next(iter(failing.values()), "")

    def _deliver(
        self, pending: Sequence[str], patience_s: float, *, begins: bool = False
    ) -> tuple[list[StagedTask], str]:
        """Write what the target does not have; return what has to wait, and why."""
        runs: dict[Generation, list[StagedTask]] = {}
        for each in decode_committables(pending, LISTED, self._writer.label):
            if isinstance(each, StagedTask):
                runs.setdefault(each.generation, []).append(each)
            elif each.sink == self._sink:
                self._remember(each.lanes)
        left: list[StagedTask] = []
        lanes = {each.lane for listed in runs.values() for each in listed}
        why = self._claim(patience_s) or self._ask(lanes, patience_s) if runs or begins else ""
        # Each run may have other lanes: a key's rows in one of them come before its rows in another.
        for _, listed in sorted(runs.items()):
            if not why:
                failing = self._deliver_run(listed, patience_s)
                why = next(iter(failing.values()), "")
                left += [each for each in listed if each.lane in failing]
            else:
                left += listed
        if self._has_claimed and not left:
            self._forget_older()
        return left, why

    def _deliver_run(
        self, listed: Sequence[StagedTask], patience_s: float, asked: Collection[int] = ()
    ) -> dict[int, str]:
        """Write what one run has staged; return the lanes that have to wait, and why each does.

        Of lanes that are `asked`, too, it is seen that the target has what it had.
        """
        lanes: dict[int, list[StagedFile]] = {lane: [] for lane in asked}
        for each in listed:
            lanes.setdefault(each.lane, []).extend(waiting_in(self._sink, each))
        for waiting in lanes.values():
            waiting.sort(key=lambda each: each.number)
        is_late = bool(self._late_since) or not self._has_recovered
        delivery = Delivery(self.target, self._writer, self._place, self._refusals, patience_s, self._reached, is_late)
        done = self._run(delivery, lanes)
        self._remember({lane: found.mark for lane, found in done.items()})
        self._rows += sum(found.rows for found in done.values())
        refused = sum(found.refused for found in done.values())
        if refused:
            self._refused += refused
            log.warning("%s: the target refused %d rows: %s", self._writer.label, refused, self._aside())
        failing = {lane: found.failure for lane, found in done.items() if found.failure}
        through = [each.path for lane, waiting in lanes.items() if lane not in failing for each in waiting]
        failpoints.hit("sink.delivered")
        # What cannot be deleted now is when the next run begins.
        with suppress(UnavailableError):
            folder_at(self._place).delete(through)
        return failing

    def _remember(self, reached: Mapping[int, str]) -> None:
        """What was on record once is: a target that has less was put back, and lacks what nobody will write again."""
        # Epochs are staged while this goes on.
        self._reached = self._reached | {
            lane: mark for lane, mark in reached.items() if mark > self._reached.get(lane, "")
        }

    def _run(self, delivery: Delivery, lanes: Mapping[int, Sequence[StagedFile]]) -> dict[int, Delivered]:
        size = sum(each.piece.bytes for waiting in lanes.values() for each in waiting)
        is_small = size <= _SMALL_BYTES and (self.in_threads or len(lanes) < 2)
        if self.target.on_driver or is_small or not size:
            if len(lanes) < 2:
                return {lane: delivery.deliver(lane, waiting) for lane, waiting in lanes.items()}
            with ThreadPoolExecutor(min(_THREADS, len(lanes)), "strandline-deliver") as pool:
                running = {lane: pool.submit(delivery.deliver, lane, waiting) for lane, waiting in lanes.items()}
            return {lane: future.result() for lane, future in running.items()}
        spark, many = self._opened.spark, len(lanes)
        numbers = spark.range(0, many, 1, many)
        try:
            rows = map_batches(numbers, _DeliverLanes(SEAL, delivery, dict(lanes)), _DELIVERED).collect()
        except Exception as error:
            raise unwrap_error(error) from error
        return {row.lane: Delivered(row.rows, row.refused, row.mark, row.failure) for row in rows}

    def _forget_older(self) -> None:
        """Delete what older generations have staged, once: what checkpoints list of it is in the target."""
        if self._has_forgotten:
            return
        folder = folder_at(self._place)
        # What cannot be deleted now is later.
        with suppress(UnavailableError):
            found = ((info.path, generation_in(self._sink, info.path)) for info in folder.list(self._sink))
            folder.delete([path for path, number in found if number is not None and number < self._opened.generation])
            self._has_forgotten = True

    def _aside(self) -> str:
        return "they are left out" if self._dead_letters is None else f"they are in {self._dead_letters}"

    @property
    def _opened(self) -> SinkContext:
        assert self._context is not None, "the sink was not opened"
        return self._context


@dataclass(frozen=True)
class _DeliverLanes:
    """What runs in tasks, whose rows are the lanes' numbers."""

    seal: Seal
    delivery: Delivery
    lanes: dict[int, Sequence[StagedFile]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        order = sorted(self.lanes)
        for batch in batches:
            with sealed_errors(self.seal):
                lanes = [order[at] for at in batch[0].to_pylist()]
                done = [(lane, self.delivery.deliver(lane, self.lanes[lane])) for lane in lanes]
            columns = [
                pa.array([lane for lane, _ in done], pa.int32()),
                pa.array([found.rows for _, found in done], pa.int64()),
                pa.array([found.refused for _, found in done], pa.int64()),
                pa.array([found.mark for _, found in done], pa.string()),
                pa.array([found.failure for _, found in done], pa.string()),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["lane", "rows", "refused", "mark", "failure"])


def _checked(what: str, on_error: Any, target: Target, dead_letters: Any) -> Then:
    if on_error not in get_args(Then):
        raise ConfigurationError(f"{what}: on_error is {on_error!r:.200}, expected 'fail', 'skip' or 'dead-letter'")
    kind = type(target).__name__
    if not isinstance(target.max_rows, int) or target.max_rows < 1:
        raise ConfigurationError(
            f"{what}: max_rows of the target {kind} is {target.max_rows!r:.200}, expected 1 or more",
            hint="leave it out, or say at how many rows a transaction is to end",
        )
    if on_error != "fail" and not target.refusing:
        raise ConfigurationError(
            f"{what}: on_error is {on_error!r}, and the target {kind} does not say which of "
            "its errors rows are to blame for",
            hint=f"give {kind} an attribute refusing = (TheError, …)",
        )
    if (on_error == "dead-letter") != (dead_letters is not None):
        raise ConfigurationError(
            f"{what}: on_error is {on_error!r}, and dead_letters is {dead_letters!r}: one needs the other",
            hint="on_error='dead-letter', dead_letters='a directory or url'",
        )
    return on_error  # type: ignore[no-any-return]
