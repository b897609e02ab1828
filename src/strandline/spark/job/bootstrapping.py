"""State made by a program's own functions out of bounded history: its pipeline runs over it, and leaves a savepoint.

1. `_take_away`: nobody else bootstraps the job; what somebody left who was killed goes.
2. The history is put in order and cut into epochs (`history.py`).
3. `Replay`: keepers of its own process the epochs, with checkpoints in a folder of its own; after a failure the next
   replay goes on from the newest of them. Nothing that the job itself has is read or touched.
4. What is due by then fires; a last checkpoint becomes the savepoint, which is there once it is whole.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

import msgspec

from strandline.api.config import Checkpoints, Restart
from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.folder import Folder, folder_at
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.publish import OutcomeUnknownError
from strandline.control.status import Savepoint
from strandline.core import failpoints
from strandline.core.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    FencedError,
    StateLimitError,
    StrandlineError,
    UserCodeError,
)
from strandline.core.ids import CheckpointId, Partition
from strandline.format.manifest import MANIFEST, SourceInfo
from strandline.keeper.paths import local_copy
from strandline.plan.history import HistoryClock, HistoryProgress, Slice, progress_of
from strandline.runtime.watermarks import Watermarks
from strandline.snapshot.opening.snapshot import Snapshot
from strandline.snapshot.savepoints.savepoint import check_empty, discard_own
from strandline.snapshot.savepoints.take import Form, bring_source, take_savepoint
from strandline.spark.base.filesystem import open_filesystem
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.job.attempt import Blueprint, end
from strandline.spark.job.epochs import EpochDriver
from strandline.spark.job.failure_reporter import FailureReporter
from strandline.spark.job.history import History, Spool, describe, spool_root
from strandline.spark.job.preparation import Preparation
from strandline.spark.job.progress import JobProgress
from strandline.spark.job.saving import savepoint_of
from strandline.spark.job.skipping import place_after
from strandline.spark.job.staging import Staging
from strandline.spark.keepers.exchange import clone_session, keep_active_session
from strandline.storage.place import Place

log = logging.getLogger(__name__)

Report = Callable[[HistoryProgress], object]
FOLDER = "_bootstrap"
"""Of a checkpoint directory: where jobs have their checkpoints meanwhile. No job can be called so."""
_EVERY = "30s"
_LOOK_S = 0.02
_TELL_S = 10.0
_FINAL = (
    *(ConfigurationError, ConflictError, CorruptionError, FencedError),
    *(OutcomeUnknownError, StateLimitError, UserCodeError),
)


@dataclass(frozen=True)
class Wish:
    """What a bootstrap is to do."""

    history: History
    target: Place
    form: Form
    rows_per_epoch: int
    time_per_epoch_us: int | None
    scratch: str | None
    report: Report
    start: Snapshot | None = None
    """Whose place in the sources the job is to go on from."""
    skipped: dict[str, frozenset[str]] | None = None
    """Of each source, the files that the history was read from, and the job is not to read."""


@dataclass(frozen=True)
class _Work:
    """What all replays of one bootstrap go by."""

    spool: Spool
    slices: list[Slice]
    mark: str
    """Says in a savepoint's folder who writes it."""
    read_before: SourceInfo | None
    """How far the sources were read by whoever had read the history."""


def private_checkpoints(checkpoints: Checkpoints) -> Checkpoints:
    """Return where a bootstrap of a job has its checkpoints, and when it takes them."""
    directory = f"{str(checkpoints.directory).rstrip('/')}/{FOLDER}"
    return replace(checkpoints, directory=directory, every=_EVERY, mode="incremental", retain=1, min_pause=0)


def bootstrap(blueprint: Blueprint, restart: Restart, wish: Wish) -> Savepoint:
    """Run a pipeline over history; return the savepoint. The blueprint is a bootstrap's own: nothing is the job's."""
    b, target = blueprint, folder_at(wish.target)
    mark = f"bootstrap-{b.places.root.name}"
    held = b.places.lock_exclusive()
    if held is None:
        raise ConflictError(
            f"job '{b.name}' is being bootstrapped already, by this process or another one of this machine",
            hint="wait for its end, or end it",
        )
    try:
        discard_own(target, mark)
        check_empty(target)
        spool = Spool(b.spark, spool_root(b.jobdir.store.url, wish.scratch, b.places.root.name))
        # What a bootstrap has left that was killed.
        _take_away(b, spool)
        replays: list[Replay] = []
        try:
            read_before = _bring_place(b, wish)
            with keep_active_session(b.spark):
                slices = _spooled(spool, wish)
                failpoints.hit("bootstrap.spooled")
                work = _Work(spool, slices, mark, read_before)
                return _replayed(replays, restart, lambda: _next(replays, b, wish, work))
        finally:
            _leave(b, spool, is_owner=not replays or replays[-1].is_owner())
    finally:
        with contextlib.suppress(Exception):
            b.places.remove(held)
        held.close()


def _take_away(b: Blueprint, spool: Spool) -> None:
    """Take away all that bootstraps of a job have made beside savepoints."""
    with contextlib.suppress(Exception):
        spool.delete_all()
    b.jobdir.delete([info.path for info in b.jobdir.list()])
    if b.jobdir.url.startswith("file:"):
        # A keeper that was ended while it wrote a file leaves it under a name that no store lists.
        open_filesystem(b.spark, b.jobdir.url).delete("")


def _bring_place(b: Blueprint, wish: Wish) -> SourceInfo | None:
    """Return where the job is to go on in its sources, if not where they begin; its files are in the job's folder."""
    folder: Folder
    if wish.start is not None and wish.start.manifest.source is not None:
        info, folder = wish.start.manifest.source, wish.start.folder
    elif wish.skipped is not None:
        folder = JobDirectory(b.jobdir.store, b.name, f"{b.jobdir.path}/read")
        info = place_after(b.plan.sources, wish.skipped, folder, b.places.root)
    else:
        return None
    place = folder.place(b.checkpoints.storage_options, fsync=b.settings.fsync)
    return bring_source(info, place, b.jobdir, b.places.root)


def _leave(b: Blueprint, spool: Spool, *, is_owner: bool) -> None:
    """Take away what this bootstrap has made; what it cannot, the next one does."""
    with contextlib.suppress(Exception):
        spool.delete()
        if is_owner:
            _take_away(b, spool)


@suppress_error_logs()
def _spooled(spool: Spool, wish: Wish) -> list[Slice]:
    try:
        return spool.write(wish.history, wish.rows_per_epoch, wish.time_per_epoch_us)
    except Exception as error:
        found = unwrap_error(error)
        if found is error:
            raise
        raise found from None


def _next(before: list[Replay], b: Blueprint, wish: Wish, work: _Work) -> Replay:
    """Return what goes on from where others have come."""
    least_id, claim = (before[-1].next_id, before[-1].claim) if before else (CheckpointId(1), None)
    return Replay(Preparation(b, frozenset(), least_id, claim), wish, work)


def _replayed(replays: list[Replay], restart: Restart, again: Callable[[], Replay]) -> Savepoint:
    """Replay until there is a savepoint, after failures too, as often in a row as a job would be restarted."""
    in_a_row = 0
    while True:
        replay = again()
        replays.append(replay)
        try:
            return replay.run()
        except BaseException as error:
            telling = replay.telling
            found = telling.complete(unwrap_error(error))
            in_a_row = 1 if replay.has_advanced else in_a_row + 1
            if isinstance(found, _FINAL) or not isinstance(found, Exception) or in_a_row > restart.attempts:
                found = telling.to_program(found)
                if found is error:
                    raise
                raise found from None
        delay_ms = restart.delay_ms(in_a_row)
        log.warning("the bootstrap goes on in %d ms: %s", delay_ms, telling.in_logs(found))
        time.sleep(delay_ms / 1000)


@dataclass
class _NoProgress:
    """What checkpoints of a bootstrap know of sources: nothing. The job reads its own from where they begin."""

    _coordinator: Coordinator

    def begin(self, batch: int) -> None:
        pass

    def want(self, checkpoint: CheckpointId, batch: int) -> None:
        self._coordinator.add_source(checkpoint, None)


class Replay:
    """One attempt to run over history: from the newest checkpoint of the bootstrap to a savepoint or an error."""

    def __init__(self, preparation: Preparation, wish: Wish, work: _Work) -> None:
        self._b = preparation.blueprint
        self._preparation = preparation
        self._wish = wish
        self._work = work
        self._coordinator: Coordinator | None = None
        self._driver: EpochDriver | None = None

    @property
    def claim(self) -> Claim | None:
        """The newest claim that this bootstrap's driver has made."""
        return self._preparation.claim

    @property
    def next_id(self) -> CheckpointId:
        """The number of the next checkpoint."""
        return self._coordinator.next_id if self._coordinator else self._preparation.least_id

    @property
    def has_advanced(self) -> bool:
        """Whether a checkpoint was completed."""
        return self._coordinator is not None and self._coordinator.counts.completed > 0

    @property
    def telling(self) -> FailureReporter:
        """How its failures are told."""
        return FailureReporter(self._b.settings, self._b.places, self._b.spark)

    def is_owner(self) -> bool:
        """Whether no other driver bootstraps the job, from another machine."""
        try:
            if self.claim is not None:
                self.claim.check()
        except StrandlineError:
            return False
        return True

    @suppress_error_logs()
    def run(self) -> Savepoint:
        """Process what is left of the history, and make the savepoint."""
        try:
            driver, coordinator = self._begin()
            fleet = self._preparation.fleet
            assert fleet is not None
            with fleet.cancellable():
                self._process(driver, coordinator)
                return self._save(driver, coordinator)
        finally:
            why = "the bootstrap ended"
            end(self._b, why, self._driver, None, self._coordinator, self._preparation.fleet, self._preparation.cleanup)
            if self.claim is not None:
                self._b.places.forget_failures(self.claim.generation)

    def _begin(self) -> tuple[EpochDriver, Coordinator]:
        b, found = self._b, self._preparation.open(reads_sources=False)
        manifest = found.origin.manifest
        staging = Staging([(name, sink) for name, sink, _ in b.plan.sinks])
        coordinator = self._coordinator = Coordinator(
            b.jobdir, found.claim, b.checkpoints, b.clock, found.next_id, found.origin.confirmed,
            [operator.info(b.settings.backend) for operator in found.operators], staging.commit,
        )  # fmt: skip
        timed = self._wish.history.is_timed
        begins_us = next((part.first for part in self._work.slices if part.first is not None), None) if timed else None
        self._clock = HistoryClock(b.clock, begins_us)
        for part in self._work.slices[: found.epoch]:
            self._reach(part)
        stored, totals = (manifest.watermarks, manifest.totals or {}) if manifest else ({}, {})
        watermarks = Watermarks(b.plan.pipeline.watermarks, stored, int(self._clock.monotonic_ms() * 1000))
        driver = self._driver = EpochDriver(
            b.plan, b.plan.sources.query(b.plan.sources.names), {op.node: op for op in found.operators},
            found.exchanges, found.fleet, coordinator, _NoProgress(coordinator), staging, found.claim.generation,
            JobProgress.after(found.epoch, totals), found.epoch - 1, watermarks, self._clock,
            self._wish.history.is_timed, b.places.failures(found.claim.generation), b.settings.max_row_bytes,
        )  # fmt: skip
        driver.progress.acks.update(found.acks)
        return driver, coordinator

    def _reach(self, part: Slice) -> None:
        self._clock.reach(part.last if self._wish.history.is_timed else None)

    def _process(self, driver: EpochDriver, coordinator: Coordinator) -> None:
        session, begun, started = clone_session(self._b.spark), driver.progress.epoch, time.monotonic()
        told = started
        for number in range(begun, len(self._work.slices)):
            part = self._work.slices[number]
            self._reach(part)
            before = coordinator.pending
            driver.process(self._work.spool.read(session, part), number)
            if coordinator.pending != before:
                # Its time begins when its epoch is over, however long that took.
                coordinator.postpone()
            self._refuse_late(driver)
            failpoints.hit("bootstrap.epoch")
            coordinator.advance()
            how_far = progress_of(
                number + 1, self._work.slices, begun, time.monotonic() - started, driver.watermarks.reached_us
            )
            self._report(how_far)
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                log.info("bootstrap of job '%s': %s", self._b.name, how_far)
        # What is due by now would have fired before anything else came.
        while driver.tick():
            coordinator.advance()

    def _report(self, how_far: HistoryProgress) -> None:
        try:
            self._wish.report(how_far)
        except Exception as error:
            # It would fail again, however often the history is replayed.
            raise ConfigurationError(
                f"what progress= was given raised {type(error).__name__}: {error}", hint="correct it, and begin again"
            ) from error

    def _refuse_late(self, driver: EpochDriver) -> None:
        if late := driver.progress.late_rows:
            orders = self._wish.history.orders
            raise ConfigurationError(
                f"{late} rows of the history are older than the watermark, and would be dropped: it came in the order "
                f"of {describe(orders) or 'its files'}, which is not that of event time",
                hint="say which column or expression has the time that watermark() goes by: order_by=…",
            )

    def _save(self, driver: EpochDriver, coordinator: Coordinator) -> Savepoint:
        b, wish, work, started = self._b, self._wish, self._work, time.monotonic()
        if failed := driver.progress.failed_events:
            log.warning("%d events of the history failed and were left out: it gives no dead letters", failed)
        number = self._wait(coordinator.request(), driver, coordinator)
        failpoints.hit("bootstrap.checkpointed")
        assert self.claim is not None
        self.claim.check()
        # An attempt before this one could not delete its part of a savepoint if the storage did not answer.
        discard_own(folder_at(wish.target), work.mark)
        # None follows it, so it stays.
        manifest = b.jobdir.read(manifest_path(number), MANIFEST.decode)
        manifest = msgspec.structs.replace(manifest, source=work.read_before)
        source = b.jobdir.place(b.checkpoints.storage_options, fsync=b.settings.fsync)
        made = take_savepoint(
            manifest, source, wish.target, wish.form, clock=b.clock, scratch=b.places.root, mark=work.mark,
            local_copy=lambda uid, index: local_copy(b.places.state(uid, Partition(index)), number),
        )  # fmt: skip
        return savepoint_of(made, wish.target, started)

    def _wait(self, asked: Future[CheckpointId], driver: EpochDriver, coordinator: Coordinator) -> CheckpointId:
        while not asked.done():
            driver.poll(may_trigger=coordinator.is_due)
            coordinator.advance()
            time.sleep(_LOOK_S)
        return asked.result()
