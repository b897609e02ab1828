"""Which checkpoint is due, what it still waits for, and what happens when it has everything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from msgspec import UNSET

from strandline.api.config import Checkpoints
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.history import CheckpointStats, Counts, History, PartitionStats
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.pending import Pending, resolve
from strandline.checkpoint.publish import NumberTakenError, OutcomeUnknownError, publish
from strandline.checkpoint.retention import Holds, Retention
from strandline.core.clock import Clock
from strandline.core.errors import CheckpointError, CorruptionError, FencedError, StrandlineError
from strandline.core.failpoints import hit
from strandline.core.failure import as_exception
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.core.version import VERSION
from strandline.format.manifest import FileRef, Manifest, OperatorInfo, PartitionInfo, SinkInfo, SourceInfo, size_of

_CLEAN_AGAIN_MS = 5_000
_SHOW_AGAIN_MS = 5_000


@dataclass
class Coordinator:
    """Drives a job's checkpoints. A state machine without a thread: whoever calls `advance` does the work.

    Thread-safe; the lock is never held during I/O, and all I/O happens in `advance`. What was restored must be what the
    claim's base names. A checkpoint completes when every partition of every operator has reported and both
    `add_source` and `add_sinks` were called for it.
    """

    _jobdir: JobDirectory
    _claim: Claim
    _config: Checkpoints
    _clock: Clock
    _next_id: CheckpointId
    _restored: Manifest | None
    _operators: Sequence[OperatorInfo]
    _commit_sinks: Callable[[Manifest], bool | None]
    """Shows what a checkpoint lists; returns True if some of it has to wait: what a sink writes to may be away."""
    _depends_on: str = ""
    """Where somebody else's snapshot is that this run began with; "" once there is a checkpoint of its own."""
    _holds: Holds = field(default_factory=Holds)
    """While it is held, no checkpoint is subsumed; what is overdue then goes with the next."""
    _unshown: Manifest | None = None
    """The newest checkpoint, while sinks do not show all of it; at first the restored one."""

    def __post_init__(self) -> None:
        self._retention = Retention(
            self._jobdir, self._claim, self._config.retain, self._restored, self._holds, self._clock
        )
        self._lock = threading.Lock()
        self._advancing = threading.Lock()
        self._pending: Pending | None = None
        self._completing: CheckpointId | None = None
        """The checkpoint that `advance` is ending: nothing that is said of it changes what becomes of it any more."""
        self._closed = ""
        self._requests: list[Future[CheckpointId]] = []
        self._garbage: list[FileRef] = []
        self._changed = self._restored is None
        self._changed_ms: float | None = None
        """Since when something has happened that no checkpoint was triggered for."""
        self._failures_in_row = 0
        self._last_trigger_ms = self._clock.monotonic_ms()
        self._last_end_ms = -float("inf")
        self._clean_from_ms = -float("inf")
        self._show_from_ms = -float("inf")
        self._history = History(Counts(restored=1 if self._restored is not None or self._depends_on else 0))

    @property
    def confirmed(self) -> Manifest | None:
        """The newest published checkpoint of this run, else the restored one: the base of what is uploaded next."""
        return self._retention.confirmed

    @property
    def depends_on(self) -> str:
        """Where somebody else's snapshot is that a restart would need; "" if the job stands on its own."""
        with self._lock:
            return self._depends_on

    @property
    def oldest_live(self) -> CheckpointId | None:
        """The oldest checkpoint that a restore can find; None while that is not known."""
        return self._retention.oldest_live

    @property
    def pending(self) -> CheckpointId | None:
        """The checkpoint that was triggered and has not ended."""
        with self._lock:
            return self._pending.checkpoint if self._pending else None

    @property
    def shows_all(self) -> bool:
        """Whether sinks show everything that the newest checkpoint lists."""
        return self._unshown is None

    @property
    def next_id(self) -> CheckpointId:
        """The next checkpoint's number.

        A restart in the same process goes on from the larger of this and `Choice.next_id`: so a late report is never
        taken for one of the new run.
        """
        with self._lock:
            return self._next_id

    @property
    def history(self) -> list[CheckpointStats]:
        """The last checkpoints of this run, oldest first."""
        with self._lock:
            return self._history.entries()

    @property
    def counts(self) -> Counts:
        """How many checkpoints of this run were triggered, completed, …"""
        with self._lock:
            return self._history.counts

    def request(self) -> Future[CheckpointId]:
        """Ask for a checkpoint with the next epoch, whatever the interval; the result is its number.

        The future raises CheckpointError if it fails, or what the sinks raised when they committed.
        """
        future: Future[CheckpointId] = Future()
        with self._lock:
            closed = self._closed
            if not closed:
                self._requests.append(future)
        if closed:
            resolve([future], _not_taken(closed))
        return future

    def close(self, reason: str) -> None:
        """Give up the pending checkpoint, if any, and those asked for, and take no more requests.

        That does not count as a failure in a row, and the errors say `attempt_ended`: another attempt may be asked.
        """
        with self._lock:
            self._closed = reason
            asked, self._requests = self._requests, []
            if (pending := self._undecided) is not None:
                what = f"checkpoint {pending.checkpoint} was aborted: {reason}"
                pending.failure = CheckpointError(what, attempt_ended=True)
                pending.tolerated = True
        if pending is not None and pending.failure is not None:
            # Here, and not by the next `advance`, which may fail before it comes to that.
            waiting, pending.waiting = pending.waiting, []
            resolve(waiting, pending.failure)
        resolve(asked, _not_taken(reason))

    def postpone(self) -> None:
        """Begin the pending checkpoint's time anew: the epoch that carries it still runs, however long it takes."""
        with self._lock:
            if self._pending is not None:
                self._pending.deadline_ms = self._clock.monotonic_ms() + self._config.timeout_ms

    def trigger(self, epoch: Epoch, changed: bool = True) -> CheckpointId | None:
        """Say with which checkpoint the epoch that begins now shall end, if with any.

        `changed`: whether the epoch may change anything. Without any change since the last checkpoint, only a
        request triggers one.
        """
        with self._lock:
            self._changed |= changed
            if changed and self._changed_ms is None:
                self._changed_ms = self._clock.monotonic_ms()
            if self._pending is not None or not self._is_due():
                return None
            checkpoint, self._next_id = self._next_id, CheckpointId(self._next_id + 1)
            self._last_trigger_ms = self._clock.monotonic_ms()
            deadline_ms = self._last_trigger_ms + self._config.timeout_ms
            self._pending = Pending(
                checkpoint, epoch, self._clock.now_ms(), deadline_ms, self._operators, self._requests,
                changed_ms=self._changed_ms,
            )  # fmt: skip
            self._requests = []
            self._changed, self._changed_ms = False, None
            self._history.start(
                CheckpointStats(
                    checkpoint, self._config.mode, epoch, "triggered", self._pending.triggered_ms,
                    sum(plan.parallelism for plan in self._operators),
                )
            )  # fmt: skip
            return checkpoint

    @property
    def uncovered_ms(self) -> int:
        """For how long something has happened that no complete checkpoint covers; 0 if the newest covers all."""
        with self._lock:
            waiting = [self._changed_ms, self._pending.changed_ms if self._pending else None]
            now_ms = self._clock.monotonic_ms()
            return max((round(now_ms - since_ms) for since_ms in waiting if since_ms is not None), default=0)

    @property
    def is_due(self) -> bool:
        """Whether `trigger` would give a checkpoint now, though no epoch changed anything more."""
        with self._lock:
            return self._pending is None and self._is_due()

    def _is_due(self) -> bool:
        if self._requests:
            return True
        interval_ms, now_ms = self._config.interval_ms, self._clock.monotonic_ms()
        if interval_ms is None or not self._changed:
            return False
        return now_ms - self._last_trigger_ms >= interval_ms and now_ms - self._last_end_ms >= self._config.min_pause_ms

    def report(self, uid: str, partition: Partition, checkpoint: CheckpointId, info: PartitionInfo) -> None:
        """Take a partition's snapshot. One that nobody waits for is ignored, and its uploads are deleted later."""
        with self._lock:
            pending = self._waiting_for(checkpoint)
            if pending is not None and pending.add(uid, partition, info):
                self._history.acknowledge(
                    PartitionStats(uid, partition, info.sync_ms, info.async_ms, info.uploaded_bytes)
                )
            else:
                self._discard(info.files)

    def report_failure(self, uid: str, partition: Partition, checkpoint: CheckpointId, message: str) -> None:
        """Take a partition's failure: the checkpoint fails with the next `advance`."""
        self.fail(checkpoint, message, f" in operator '{uid}', partition {partition}")

    def fail(self, checkpoint: CheckpointId, message: str, where: str = "") -> None:
        """Take any failure: the checkpoint fails with the next `advance`."""
        with self._lock:
            pending = self._waiting_for(checkpoint)
            if pending is not None:
                pending.fail(f"failed{where}: {message}")

    def retake(self, uid: str, partition: Partition) -> None:
        """Another process is in the place of one that was told of the pending checkpoint, and knows nothing of it.

        Unless its part is there already, the checkpoint fails with the next `advance`, and another one is taken for
        those who asked for it.
        """
        with self._lock:
            pending = self._undecided
            if pending is not None and not pending.failure and (uid, partition) not in pending.partitions:
                pending.fail(f"was given up: operator '{uid}', partition {partition} has a new keeper")
                self._ask_again(pending)

    def add_source(self, checkpoint: CheckpointId, source: SourceInfo | None) -> None:
        """Take the progress of the sources after the checkpoint's epoch; None if there is nothing to rewind."""
        with self._lock:
            pending = self._waiting_for(checkpoint)
            if pending is not None and not pending.source_added:
                pending.source, pending.source_added = source, True
            elif source is not None:
                self._discard(source.files())

    def add_sinks(
        self,
        checkpoint: CheckpointId,
        sinks: Iterable[SinkInfo],
        watermarks: Mapping[str, int] | None = None,
        totals: Mapping[str, int] | None = None,
    ) -> None:
        """Take what there was after the checkpoint's epoch: staged in sinks, event time, and what was counted."""
        with self._lock:
            pending = self._waiting_for(checkpoint)
            if pending is not None and pending.sinks is None:
                pending.sinks, pending.watermarks = list(sinks), dict(watermarks or {})
                pending.totals = dict(totals or {})

    def _discard(self, files: Iterable[FileRef]) -> None:
        """Leave files for deletion, except what the pending checkpoint holds: a report may come twice."""
        held = {f.path for f in self._pending.files()} if self._pending else set()
        self._garbage += [f for f in files if f.path and f.path not in held]

    @property
    def _undecided(self) -> Pending | None:
        """The pending checkpoint, unless `advance` is ending it."""
        pending = self._pending
        return None if pending is None or pending.checkpoint == self._completing else pending

    def _waiting_for(self, checkpoint: CheckpointId) -> Pending | None:
        pending = self._undecided
        return None if pending is None or pending.checkpoint != checkpoint else pending

    def advance(self) -> CheckpointId | None:
        """Do what is to be done: end a checkpoint that timed out, failed or is ready, delete what nobody needs.

        Returns the checkpoint that was completed. Raises FencedError when a newer driver owns the job, what the
        sinks raised when they committed (the checkpoint is published and stays), CheckpointError when more than
        `tolerable_failures` failed in a row, and CorruptionError when an invariant is broken that is verified: after
        each of them the job must stop or restart.
        """
        with self._advancing:
            self._clean()
            self._show_rest()
            with self._lock:
                pending = self._pending
                if pending is None:
                    return None
                missing = [] if pending.failure else pending.waits_for()
                if missing:
                    if self._clock.monotonic_ms() < pending.deadline_ms:
                        return None
                    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
                    waits_for = f"still waiting for {', '.join(missing[:3])}{more}"
                    pending.fail(f"timed out after {self._config.timeout_ms} ms: {waits_for}")
                self._completing = pending.checkpoint
            try:
                if pending.failure is not None:
                    self._fail(pending, pending.failure)
                    return None
                return self._commit(pending)
            finally:
                with self._lock:
                    self._completing = None

    def _clean(self) -> None:
        with self._lock:
            garbage, self._garbage = self._garbage, []
        self._retention.discard(garbage)
        # Storage that does not answer must not hold up the epochs at every call.
        if self._clock.monotonic_ms() >= self._clean_from_ms and not self._retention.clean():
            self._clean_from_ms = self._clock.monotonic_ms() + _CLEAN_AGAIN_MS

    def _show_rest(self) -> None:
        """Try again to show what sinks could not, whether or not there will be another checkpoint."""
        if self._unshown is not None and self._clock.monotonic_ms() >= self._show_from_ms:
            self._claim.check()
            self._show(self._unshown)

    def _show(self, manifest: Manifest) -> None:
        self._unshown = manifest if self._commit_sinks(manifest) else None
        self._show_from_ms = self._clock.monotonic_ms() + _SHOW_AGAIN_MS

    def _commit(self, pending: Pending) -> CheckpointId | None:
        """Make a checkpoint that waits for nothing the job's newest. Each step may be the last before a crash."""
        manifest = pending.manifest = pending.manifest or self._manifest(pending)
        try:
            # 1. Only the job's owner publishes, and only once readers know what it goes on from.
            self._claim.check_based()
            self._claim.check()
            # 2. Every file is held by the last confirmed checkpoint, or new, and then in storage.
            self._retention.check(manifest)
            # 3. One conditional create makes the checkpoint: from then on it is what a restore finds.
            hit("checkpoint.publish.before")
            publish(self._jobdir, self._claim, manifest)
        except CorruptionError:
            raise  # An invariant is broken: that is no failed checkpoint.
        except NumberTakenError as error:
            self._retry_under_another_number(pending, error)
            return None
        except StrandlineError as error:
            self._fail(pending, error, in_doubt=isinstance(error, OutcomeUnknownError))
            return None
        # 4. Register: the next snapshots may reference this one's files, and the job never begins empty again.
        hit("checkpoint.publish.after")
        self._retention.confirm(manifest)
        self._end_completed(pending, manifest)
        try:
            # 5. Only the owner makes results visible. What fails here is done again by the restore.
            self._claim.check()
            hit("checkpoint.commit_sinks.before")
            self._show(manifest)
            hit("checkpoint.commit_sinks.after")
        except BaseException as error:
            resolve(pending.waiting, as_exception(error))
            raise
        resolve(pending.waiting, pending.checkpoint)
        # 6. Older checkpoints beyond `retain`: manifest first, then the files nobody references any more. What storage
        #    refuses now is tried again.
        hit("checkpoint.subsume.before")
        if self._retention.delete_due():
            hit("checkpoint.subsume.after")
        return pending.checkpoint

    def _manifest(self, pending: Pending) -> Manifest:
        files = pending.files()
        now_ms = self._clock.now_ms()
        return Manifest(
            job=self._jobdir.job, generation=self._claim.generation, checkpoint=pending.checkpoint, epoch=pending.epoch,
            mode=self._config.mode, created_ms=now_ms, engine_version=VERSION, life=self._claim.life,
            operators=pending.operators(), source=pending.source, sinks=pending.sinks or [],
            watermarks=dict(pending.watermarks), totals=dict(pending.totals) or UNSET,
            triggered_ms=pending.triggered_ms, duration_ms=now_ms - pending.triggered_ms,
            uploaded_bytes=self._retention.new_bytes(files), total_bytes=size_of(files),
        )  # fmt: skip

    def _end_completed(self, pending: Pending, manifest: Manifest) -> None:
        with self._lock:
            freed, self._depends_on = self._depends_on, ""
            self._pending = None
            self._failures_in_row = 0
            self._last_end_ms = self._clock.monotonic_ms()
            self._history.end(
                "completed", self._clock.now_ms(), uploaded_bytes=manifest.uploaded_bytes,
                total_bytes=manifest.total_bytes, path=f"{self._jobdir.url}/{manifest_path(pending.checkpoint)}",
                frees=freed,
            )  # fmt: skip

    def _retry_under_another_number(self, pending: Pending, error: NumberTakenError) -> None:
        """A driver that was replaced published under this number meanwhile; snapshots carry theirs, so start over."""
        with self._lock:
            self._next_id = max(self._next_id, error.next_id)
            self._ask_again(pending)
        self._fail(pending, error)

    def _ask_again(self, pending: Pending) -> None:
        """Another checkpoint is to be taken for those who asked for this one, whose end is nobody's fault."""
        self._requests = [*pending.waiting, *self._requests]
        pending.waiting = []
        pending.tolerated = True

    def _fail(self, pending: Pending, error: StrandlineError, in_doubt: bool = False) -> None:
        """End a checkpoint that is not published; raise if the job must end with it."""
        with self._lock:
            self._pending = None
            self._changed = True
            if pending.changed_ms is not None:
                self._changed_ms = pending.changed_ms
            self._last_end_ms = self._clock.monotonic_ms()
            self._failures_in_row += 0 if pending.tolerated else 1
            in_row, tolerable = self._failures_in_row, self._config.tolerable_failures
            self._history.end("failed", self._clock.now_ms(), failure=error.message)
        failure = error if isinstance(error, CheckpointError | FencedError) else CheckpointError(
            f"checkpoint {pending.checkpoint} failed: {error.message}", hint=error.hint
        )  # fmt: skip
        resolve(pending.waiting, failure)
        self._retention.abandon(pending.checkpoint, pending.files(), in_doubt)
        if isinstance(error, FencedError):
            raise error
        if not pending.tolerated and tolerable is not None and in_row > tolerable:
            raise CheckpointError(
                f"{in_row} checkpoints failed in a row, {tolerable} are tolerated; the last: {failure.message}",
                hint=failure.hint or "see what failed, or raise tolerable_failures",
            ) from error


def _not_taken(reason: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint that was asked for was not taken: {reason}", attempt_ended=True)
