"""Bootstrap: a job's pipeline processes bounded history, and its state becomes a savepoint.

1. Lock the job against other bootstraps of this machine, and delete the files of killed ones (`_delete_all`).
2. Sort the history and split it into epochs (`history.py`).
3. `Replay`: separate keepers process the epochs, with checkpoints in a separate folder. After a failure, the next
   replay continues from the newest of them. Files of the job itself are neither read nor changed.
4. Timers that are due fire; a last checkpoint becomes the savepoint.
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
from strandline.spark.job.history import SourceHistory, Spool, describe, spool_root
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
"""The folder of a checkpoint directory for the checkpoints of bootstraps. It is not a valid job name."""
_EVERY = "30s"
_POLL_S = 0.02
_REPORT_S = 10.0
_FINAL = (
    *(ConfigurationError, ConflictError, CorruptionError, FencedError),
    *(OutcomeUnknownError, StateLimitError, UserCodeError),
)


@dataclass(frozen=True)
class BootstrapOptions:
    """Arguments of a bootstrap."""

    history: SourceHistory
    target: Place
    form: Form
    rows_per_epoch: int
    time_per_epoch_us: int | None
    scratch: str | None
    report: Report
    start: Snapshot | None = None
    """The snapshot from whose position in the sources the job will continue."""
    skipped: dict[str, frozenset[str]] | None = None
    """By source, the files of the history, which the job will skip."""


@dataclass(frozen=True)
class _Work:
    """The input of all replays of one bootstrap."""

    spool: Spool
    slices: list[Slice]
    mark: str
    """Identifies this bootstrap as the writer in a savepoint's folder."""
    position: SourceInfo | None
    """The position in the sources from which the job will continue; None: from their beginning."""


def private_checkpoints(checkpoints: Checkpoints) -> Checkpoints:
    """Return the checkpoint configuration of a job's bootstrap."""
    directory = f"{str(checkpoints.directory).rstrip('/')}/{FOLDER}"
    return replace(
        checkpoints,
        directory=directory,
        every=_EVERY,
        mode="incremental",
        retain=1,
        min_pause="0s",
        max_concurrent=1,
        standbys=0,
    )


def bootstrap(blueprint: Blueprint, restart: Restart, options: BootstrapOptions) -> Savepoint:
    """Run a pipeline over history; return the savepoint. The blueprint has separate directories from the job's."""
    b, target = blueprint, folder_at(options.target)
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
        spool = Spool(b.spark, spool_root(b.jobdir.store.url, options.scratch, b.places.root.name))
        # A killed bootstrap may have left files.
        _delete_all(b, spool)
        replays: list[Replay] = []
        try:
            position = _copy_position(b, options)
            with keep_active_session(b.spark):
                slices = _write_spool(spool, options)
                failpoints.hit("bootstrap.spooled")
                work = _Work(spool, slices, mark, position)
                return _replay(replays, restart, lambda: _next_replay(replays, b, options, work))
        finally:
            _clean_up(b, spool, is_owner=not replays or replays[-1].is_owner())
    finally:
        with contextlib.suppress(Exception):
            b.places.remove(held)
        held.close()


def _delete_all(b: Blueprint, spool: Spool) -> None:
    """Delete all files of bootstraps of a job, except savepoints."""
    with contextlib.suppress(Exception):
        spool.delete_all()
    b.jobdir.delete([info.path for info in b.jobdir.list()])
    if b.jobdir.url.startswith("file:"):
        # A killed keeper may leave temporary files, which the store does not list.
        open_filesystem(b.spark, b.jobdir.url).delete("")


def _copy_position(b: Blueprint, options: BootstrapOptions) -> SourceInfo | None:
    """Copy the position in the sources to the bootstrap's folder and return it; None: the job reads all."""
    folder: Folder
    if options.start is not None and options.start.manifest.source is not None:
        (life, epoch), folder = options.start.manifest.output_position, options.start.folder
        info = msgspec.structs.replace(options.start.manifest.source, life=life, epoch=epoch)
    elif options.skipped is not None:
        folder = JobDirectory(b.jobdir.store, b.name, f"{b.jobdir.path}/read")
        info = place_after(b.plan.sources, options.skipped, folder, b.places.root)
    else:
        return None
    place = folder.place(b.checkpoints.storage_options, fsync=b.settings.fsync)
    return bring_source(info, place, b.jobdir, b.places.root)


def _clean_up(b: Blueprint, spool: Spool, *, is_owner: bool) -> None:
    """Delete this bootstrap's files; the next one deletes the rest."""
    with contextlib.suppress(Exception):
        spool.delete()
        if is_owner:
            _delete_all(b, spool)


@suppress_error_logs()
def _write_spool(spool: Spool, options: BootstrapOptions) -> list[Slice]:
    try:
        return spool.write(options.history, options.rows_per_epoch, options.time_per_epoch_us)
    except Exception as error:
        cause = unwrap_error(error)
        if cause is error:
            raise
        raise cause from None


def _next_replay(before: list[Replay], b: Blueprint, options: BootstrapOptions, work: _Work) -> Replay:
    """Return a replay that continues after those before it."""
    least_id, claim = (before[-1].next_id, before[-1].claim) if before else (CheckpointId(1), None)
    return Replay(Preparation(b, frozenset(), least_id, claim, by_time=options.history.is_timed), options, work)


def _replay(replays: list[Replay], restart: Restart, next_replay: Callable[[], Replay]) -> Savepoint:
    """Replay until the savepoint is complete; retry after failures as often in a row as a job restarts."""
    in_a_row = 0
    while True:
        replay = next_replay()
        replays.append(replay)
        try:
            return replay.run()
        except BaseException as error:
            reporter = replay.reporter
            cause = reporter.complete(unwrap_error(error))
            in_a_row = 1 if replay.has_advanced else in_a_row + 1
            if isinstance(cause, _FINAL) or not isinstance(cause, Exception) or in_a_row > restart.attempts:
                cause = reporter.to_program(cause)
                if cause is error:
                    raise
                raise cause from None
        delay_ms = restart.delay_ms(in_a_row)
        log.warning("the bootstrap continues in %d ms: %s", delay_ms, reporter.in_logs(cause))
        time.sleep(delay_ms / 1000)


@dataclass
class _NoProgress:
    """Adds no position to checkpoints of a bootstrap: the job reads its sources from their beginning."""

    _coordinator: Coordinator

    def begin(self, batch: int, is_over: Callable[[], bool]) -> None:
        pass

    def want(self, checkpoint: CheckpointId, batch: int) -> None:
        self._coordinator.add_source(checkpoint, None)


class Replay:
    """One attempt to process the history: from the newest checkpoint of the bootstrap to a savepoint or an error."""

    def __init__(self, preparation: Preparation, options: BootstrapOptions, work: _Work) -> None:
        self._b = preparation.blueprint
        self._preparation = preparation
        self._options = options
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
    def reporter(self) -> FailureReporter:
        """The reporter of its failures."""
        return FailureReporter(self._b.settings, self._b.places, self._b.spark)

    def is_owner(self) -> bool:
        """Whether no other driver, on another machine, bootstraps the job."""
        try:
            if self.claim is not None:
                self.claim.check()
        except StrandlineError:
            return False
        return True

    @suppress_error_logs()
    def run(self) -> Savepoint:
        """Process the rest of the history, and make the savepoint."""
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
        b, run = self._b, self._preparation.open(reads_sources=False)
        acks = run.restore()
        manifest = run.origin.manifest
        staging = Staging([(name, sink) for name, sink, _ in b.plan.sinks])
        coordinator = self._coordinator = Coordinator(
            b.jobdir, run.claim, b.checkpoints, b.clock, run.next_id, run.origin.confirmed,
            [operator.info(b.settings.backend) for operator in run.operators], staging.commit,
        )  # fmt: skip
        timed = self._options.history.is_timed
        begins_us = next((part.first for part in self._work.slices if part.first is not None), None) if timed else None
        self._clock = HistoryClock(b.clock, begins_us)
        for part in self._work.slices[: run.epoch]:
            self._reach(part)
        stored, totals = (manifest.watermarks, manifest.totals or {}) if manifest else ({}, {})
        watermarks = Watermarks(b.plan.pipeline.watermarks, stored, int(self._clock.monotonic_ms() * 1000))
        driver = self._driver = EpochDriver(
            run.frames, run.fleet, coordinator, _NoProgress(coordinator),
            staging, run.claim.generation, JobProgress.after(run.epoch, totals), run.epoch - 1, watermarks,
            self._clock, b.places.failures(run.claim.generation),
        )  # fmt: skip
        driver.progress.acks.update(acks)
        return driver, coordinator

    def _reach(self, part: Slice) -> None:
        self._clock.reach(part.last if self._options.history.is_timed else None)

    def _process(self, driver: EpochDriver, coordinator: Coordinator) -> None:
        session, begun, started = clone_session(self._b.spark), driver.progress.epoch, time.monotonic()
        reported = started
        for number in range(begun, len(self._work.slices)):
            part = self._work.slices[number]
            self._reach(part)
            before = coordinator.pending
            driver.process(self._work.spool.read(session, part), number)
            if coordinator.pending != before:
                # The time-out of a checkpoint begins after its epoch, which may be long.
                coordinator.postpone()
            self._refuse_late(driver)
            failpoints.hit("bootstrap.epoch")
            coordinator.advance()
            progress = progress_of(
                number + 1, self._work.slices, begun, time.monotonic() - started, driver.watermarks.reached_us
            )
            self._report(progress)
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                log.info("bootstrap of job '%s': %s", self._b.name, progress)
        # Timers that are due would have fired before the next row.
        while driver.tick():
            coordinator.advance()

    def _report(self, progress: HistoryProgress) -> None:
        try:
            self._options.report(progress)
        except Exception as error:
            # A retry would not help.
            raise ConfigurationError(
                f"the function in progress= raised {type(error).__name__}: {error}", hint="correct it, and start again"
            ) from error

    def _refuse_late(self, driver: EpochDriver) -> None:
        if late := driver.progress.late_rows:
            orders = self._options.history.orders
            raise ConfigurationError(
                f"{late} rows of the history are older than the watermark, and would be dropped: it was read in the "
                f"order of {describe(orders) or 'its files'}, which is not that of event time",
                hint="give the column or expression with the time of watermark(): order_by=…",
            )

    def _save(self, driver: EpochDriver, coordinator: Coordinator) -> Savepoint:
        b, options, work, started = self._b, self._options, self._work, time.monotonic()
        if failed := driver.progress.failed_events:
            log.warning("%d events of the history failed and were left out: a bootstrap writes no dead letters", failed)
        number = self._wait(coordinator.request(), driver, coordinator)
        failpoints.hit("bootstrap.checkpointed")
        assert self.claim is not None
        self.claim.check()
        # An earlier attempt may have left a part of a savepoint because the storage did not answer.
        discard_own(folder_at(options.target), work.mark)
        # It is the last checkpoint, so no later one subsumes it.
        manifest = b.jobdir.read(manifest_path(number), MANIFEST.decode)
        manifest = msgspec.structs.replace(manifest, source=work.position)
        source = b.jobdir.place(b.checkpoints.storage_options, fsync=b.settings.fsync)
        manifest = take_savepoint(
            manifest, source, options.target, options.form, clock=b.clock, scratch=b.places.root, mark=work.mark,
            local_copy=lambda uid, index: local_copy(b.places.state(uid, Partition(index)), number),
        )  # fmt: skip
        return savepoint_of(manifest, options.target, started)

    def _wait(self, request: Future[CheckpointId], driver: EpochDriver, coordinator: Coordinator) -> CheckpointId:
        while not request.done():
            driver.poll(may_trigger=coordinator.is_due)
            coordinator.advance()
            time.sleep(_POLL_S)
        return request.result()
