"""The coordinator, which triggers checkpoints, collects their parts, and publishes or fails them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec import UNSET

from strandline.api.config import Checkpoints
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.history import (
    CheckpointHistory,
    CheckpointStats,
    Counts,
    PartitionStats,
    Phases,
    SinkStats,
)
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.pending import InFlight, Pending, name_parts, resolve
from strandline.checkpoint.publish import NumberTakenError, OutcomeUnknownError, publish
from strandline.checkpoint.retention import Holds, Retention
from strandline.checkpoint.schedule import Schedule
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
    """A state machine of a job's checkpoints, without a thread: `advance` does the work in its caller's thread.

    Thread-safe; the lock is never held during I/O, and all I/O happens in `advance`. The restored manifest must be the
    base of the claim. A checkpoint is complete when every partition of every operator has reported and `add_source` and
    `add_sinks` were called for it. It is published then, and subsumes older ones that are in flight.
    """

    _jobdir: JobDirectory
    _claim: Claim
    _config: Checkpoints
    _clock: Clock
    _next_id: CheckpointId
    _restored: Manifest | None
    _operators: Sequence[OperatorInfo]
    _commit_sinks: Callable[[Manifest], bool | None]
    """Makes the rows of a checkpoint visible; returns True if some must wait because a sink's target is unavailable."""
    _depends_on: str = ""
    """The url of the foreign snapshot with which this run began; "" once the job has a checkpoint of its own."""
    _holds: Holds = field(default_factory=Holds)
    """While it is held, no checkpoint is subsumed; the next one subsumes those that are overdue."""
    _unshown: Manifest | None = None
    """The newest checkpoint, while not all of its rows are visible; at first the restored one."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._advancing = threading.Lock()
        self._in_flight = InFlight()
        self._retention = Retention(
            self._jobdir, self._claim, self._config.retain, self._restored, self._holds, self._clock, self._oldest_base
        )
        self._closed = ""
        self._requests: list[Future[CheckpointId]] = []
        self._garbage: list[FileRef] = []
        self._schedule = Schedule(self._config, self._clock, self._restored is None)
        self._failures_in_row = 0
        self._clean_from_ms = -float("inf")
        self._show_from_ms = -float("inf")
        self._published: tuple[CheckpointId, float] | None = None
        """The newest checkpoint of this run, and the steady time of its publication."""
        self._hidden_ms: dict[str, float] = {}
        """For each sink with rows that are not visible: the begin of the oldest epoch of those that are published."""
        self._history = CheckpointHistory(Counts(restored=1 if self._restored is not None or self._depends_on else 0))

    @property
    def confirmed(self) -> Manifest | None:
        """The newest published checkpoint of this run, else the restored one: the base of the next uploads."""
        return self._retention.confirmed

    @property
    def depends_on(self) -> str:
        """The url of the foreign snapshot that a restart would need; "" if the job has a checkpoint of its own."""
        with self._lock:
            return self._depends_on

    @property
    def oldest_live(self) -> CheckpointId | None:
        """The oldest checkpoint that a restore can find; None while that is not known."""
        return self._retention.oldest_live

    @property
    def pending(self) -> CheckpointId | None:
        """The newest checkpoint that was triggered and has not ended."""
        return next(reversed(self.in_flight), None)

    @property
    def in_flight(self) -> tuple[CheckpointId, ...]:
        """All of these, oldest first."""
        with self._lock:
            return self._in_flight.numbers

    @property
    def unreported(self) -> list[tuple[Epoch, list[tuple[str, Partition]]]]:
        """For each checkpoint in flight, its epoch and the partitions that have not reported on it."""
        with self._lock:
            return [(pending.epoch, pending.unreported) for pending in self._in_flight]

    @property
    def shows_all(self) -> bool:
        """Whether all rows of the newest checkpoint are visible."""
        return self._unshown is None

    @property
    def next_id(self) -> CheckpointId:
        """The next checkpoint's number.

        A restart in the same process continues from the larger of this and `Choice.next_id`, so that a late report
        never counts for the new run.
        """
        with self._lock:
            return self._next_id

    @property
    def history(self) -> list[CheckpointStats]:
        """The last checkpoints of this run, oldest first."""
        with self._lock:
            return self._history.entries({each.checkpoint: each.waits_for() for each in self._in_flight})

    @property
    def counts(self) -> Counts:
        """The numbers of triggered, completed, … checkpoints of this run."""
        with self._lock:
            return self._history.counts

    @property
    def effort(self) -> tuple[int, int]:
        """The time of all completed checkpoints of this run in ms, and the bytes that they uploaded."""
        with self._lock:
            return self._history.took_ms, self._history.uploaded_bytes

    def take_ended(self) -> list[CheckpointStats]:
        """Return the checkpoints that have ended since the last call."""
        with self._lock:
            return self._history.take_ended()

    def request(self) -> Future[CheckpointId]:
        """Request a checkpoint with the next epoch, at any interval; the result is its number.

        The future raises CheckpointError if it fails, or the error of the sinks' commit.
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
        """Abort the checkpoints in flight and all requests, and accept no more requests.

        That is not a failure in a row, and the errors have `attempt_ended`: callers may ask the next attempt.
        """
        aborted: list[tuple[list[Future[CheckpointId]], CheckpointError]] = []
        with self._lock:
            self._closed = reason
            requests, self._requests = self._requests, []
            for pending in self._in_flight.undecided:
                message = f"checkpoint {pending.checkpoint} was aborted: {reason}"
                pending.failure = CheckpointError(message, attempt_ended=True)
                pending.tolerated = True
                # Not in the next `advance`, which may fail before it resolves the requests.
                aborted.append((pending.waiting, pending.failure))
                pending.waiting = []
        for waiting, failure in aborted:
            resolve(waiting, failure)
        resolve(requests, _not_taken(reason))

    def delete_planned(self) -> None:
        """Delete the files that keepers have uploaded for later checkpoints, after the end of this run's keepers."""
        self._retention.delete_planned()

    def postpone(self) -> None:
        """Restart the timeout of checkpoints whose epoch still runs, or that wait for the sources to begin."""
        with self._lock:
            for pending in self._in_flight:
                if pending is self._in_flight.newest or not pending.source_added:
                    pending.deadline_ms = self._clock.monotonic_ms() + self._config.timeout_ms

    def trigger(self, epoch: Epoch, changed: bool = True, has_ended: bool = False) -> CheckpointId | None:
        """Return the checkpoint that the epoch that begins now ends with, or None.

        `changed` tells whether the epoch may change state. Without changes since the last checkpoint, only a request
        triggers one. With `has_ended`, the epoch has just ended, and was counted before.
        """
        with self._lock:
            if changed:
                self._schedule.change()
            if not self._may_trigger(with_epoch=changed, has_ended=has_ended):
                return None
            checkpoint, self._next_id = self._next_id, CheckpointId(self._next_id + 1)
            began_ms, base = self._clock.monotonic_ms(), self.confirmed
            pending = Pending(
                checkpoint, base.checkpoint if base else CheckpointId(0), epoch, self._clock.now_ms(),
                began_ms + self._config.timeout_ms, self._operators, self._requests, self._schedule.trigger(), began_ms,
            )  # fmt: skip
            self._in_flight.add(pending)
            self._requests = []
            self._history.start(
                CheckpointStats(
                    checkpoint, self._config.mode, epoch, "triggered", pending.triggered_ms,
                    sum(plan.parallelism for plan in self._operators),
                )
            )  # fmt: skip
            return checkpoint

    @property
    def uncovered_ms(self) -> int:
        """The age of the oldest change that no complete checkpoint covers; 0 if the newest covers all."""
        with self._lock:
            waiting = [self._schedule.changed_ms, *(pending.changed_ms for pending in self._in_flight)]
            now_ms = self._clock.monotonic_ms()
            return max((round(now_ms - since_ms) for since_ms in waiting if since_ms is not None), default=0)

    @property
    def is_due(self) -> bool:
        """Whether `trigger` would return a checkpoint now, without further changes."""
        with self._lock:
            return self._may_trigger()

    def _may_trigger(self, *, with_epoch: bool = False, has_ended: bool = False) -> bool:
        is_due = bool(self._requests) or self._schedule.is_due(with_epoch=with_epoch, has_ended=has_ended)
        return is_due and len(self._in_flight) < self._config.max_concurrent

    def _oldest_base(self) -> CheckpointId | None:
        with self._lock:
            return self._in_flight.oldest_base

    def report(self, uid: str, partition: Partition, checkpoint: CheckpointId, info: PartitionInfo) -> None:
        """Add a partition's snapshot. If none waits for it, it is ignored, and its uploads are deleted later."""
        with self._lock:
            pending = self._in_flight.waiting_for(checkpoint)
            if pending is not None and pending.add(uid, partition, info):
                pending.last_part_ms = self._clock.monotonic_ms()
                stats = PartitionStats(uid, partition, info.sync_ms, info.async_ms, info.uploaded_bytes)
                self._history.acknowledge(checkpoint, stats)
            else:
                self._discard(info.files)

    def report_failure(self, uid: str, partition: Partition, checkpoint: CheckpointId, message: str) -> None:
        """Record a partition's failure: the checkpoint fails with the next `advance`."""
        self.fail(checkpoint, message, f" in operator '{uid}', partition {partition}")

    def fail(self, checkpoint: CheckpointId, message: str, where: str = "") -> None:
        """Record a failure: the checkpoint fails with the next `advance`."""
        with self._lock:
            pending = self._in_flight.waiting_for(checkpoint)
            if pending is not None:
                pending.fail(f"failed{where}: {message}")

    def retake(self, uid: str, partition: Partition, known: CheckpointId | None = None) -> None:
        """Handle a new keeper, which replaced one and does not know of the checkpoints in flight, except `known`.

        Those on which the partition has not reported fail with the next `advance`, and the next one serves their
        requests.
        """
        with self._lock:
            for pending in reversed(self._in_flight.undecided):
                is_affected = pending.checkpoint != known and (uid, partition) not in pending.partitions
                if is_affected and not pending.failure:
                    pending.fail(f"was given up: operator '{uid}', partition {partition} has a new keeper")
                    self._request_again(pending)

    def add_source(self, checkpoint: CheckpointId, source: SourceInfo | None) -> None:
        """Add the progress of the sources after the checkpoint's epoch; None if there is nothing to rewind."""
        with self._lock:
            pending = self._in_flight.waiting_for(checkpoint)
            if pending is not None and not pending.source_added:
                pending.source, pending.source_added = source, True
                pending.last_part_ms = self._clock.monotonic_ms()
            elif source is not None:
                self._discard(source.files())

    def add_sinks(
        self,
        checkpoint: CheckpointId,
        sinks: Iterable[SinkInfo],
        watermarks: Mapping[str, int] | None = None,
        totals: Mapping[str, int] | None = None,
        epochs: bytes = b"",
    ) -> None:
        """Add the staged rows of sinks, the watermarks, the counters and the epochs' records after its epoch."""
        with self._lock:
            pending = self._in_flight.waiting_for(checkpoint)
            if pending is not None and pending.sinks is None:
                pending.sinks, pending.watermarks = list(sinks), dict(watermarks or {})
                pending.totals, pending.epochs = dict(totals or {}), epochs
                pending.epoch_end_ms = pending.last_part_ms = self._clock.monotonic_ms()
                self._schedule.end_epoch()

    def note_visible(self, sink: str) -> None:
        """Note that a sink has shown all rows that the newest checkpoint lists for it."""
        with self._lock:
            if self._published is not None and (since_ms := self._hidden_ms.pop(sink, None)) is not None:
                checkpoint, published_ms = self._published
                now_ms = self._clock.monotonic_ms()
                stats = SinkStats(sink, round(now_ms - published_ms, 3), round(now_ms - since_ms, 3))
                self._history.show(checkpoint, stats)

    def _discard(self, files: Iterable[FileRef]) -> None:
        """Mark files for deletion, except those of checkpoints in flight: a report may come twice."""
        held = self._in_flight.paths()
        self._garbage += [f for f in files if f.path and f.path not in held]

    def advance(self) -> CheckpointId | None:
        """End checkpoints that timed out or failed, and the newest that is complete; delete files that are not needed.

        Returns the completed checkpoint. Raises FencedError when a newer driver owns the job, the error of the sinks'
        commit (the checkpoint is published and stays), CheckpointError when more than `tolerable_failures` failed in a
        row, and CorruptionError when a verified invariant is broken. After each error the job must stop or restart.
        """
        with self._advancing:
            self._clean()
            self._show_rest()
            while (pending := self._begin_end()) is not None:
                try:
                    if pending.failure is not None:
                        self._fail(pending, pending.failure)
                    elif (completed := self._commit(pending)) is not None:
                        return completed
                finally:
                    with self._lock:
                        self._in_flight.stop_end()
            return None

    def _begin_end(self) -> Pending | None:
        """Return a checkpoint that is to end; from then on, reports do not change it."""
        with self._lock:
            pending = self._in_flight.begin_end(self._clock.monotonic_ms())
            if pending is not None and (missing := pending.waits_for()):
                pending.fail(f"timed out after {self._config.timeout_ms} ms: still waiting for {name_parts(missing)}")
            return pending

    def _clean(self) -> None:
        with self._lock:
            garbage, self._garbage = self._garbage, []
        self._retention.discard(garbage)
        # After a failure, wait: storage that does not answer must not delay every epoch.
        if self._clock.monotonic_ms() >= self._clean_from_ms and not self._retention.clean():
            self._clean_from_ms = self._clock.monotonic_ms() + _CLEAN_AGAIN_MS

    def _show_rest(self) -> None:
        """Retry to make visible the rows that had to wait, also without a new checkpoint."""
        if self._unshown is not None and self._clock.monotonic_ms() >= self._show_from_ms:
            self._claim.check()
            self._show(self._unshown)

    def _show(self, manifest: Manifest) -> None:
        self._unshown = manifest if self._commit_sinks(manifest) else None
        self._show_from_ms = self._clock.monotonic_ms() + _SHOW_AGAIN_MS

    def _commit(self, pending: Pending) -> CheckpointId | None:
        """Make a checkpoint with all parts the job's newest. Each step may be the last before a crash."""
        manifest = pending.manifest = pending.manifest or self._manifest(pending)
        with self._lock:
            others = self._in_flight.paths(without=pending)
        try:
            # 1. Only the job's owner publishes, and only after its base is recorded.
            self._claim.check_based()
            self._claim.check()
            # 2. Every file is in a confirmed checkpoint on which this one builds, or is new and in storage.
            self._retention.check(manifest, pending.base, others)
            # 3. One conditional create makes the checkpoint: from then on a restore finds it.
            hit("checkpoint.publish.before")
            publish(self._jobdir, self._claim, manifest)
        except CorruptionError:
            raise  # A broken invariant is more than a failed checkpoint.
        except NumberTakenError as error:
            self._retry_under_another_number(pending, error)
            return None
        except OutcomeUnknownError as error:
            self._give_up_older(pending)
            self._fail(pending, error, in_doubt=True)
            return None
        except StrandlineError as error:
            self._fail(pending, error)
            return None
        # 4. Register: the next snapshots may reference this one's files, and the job never begins empty again.
        hit("checkpoint.publish.after")
        before = self._retention.confirmed
        self._retention.confirm(manifest)
        waiting = self._end_completed(pending, manifest, before)
        try:
            # 5. Only the owner makes results visible. After a failure here, the restore repeats it.
            self._claim.check()
            hit("checkpoint.commit_sinks.before")
            self._show(manifest)
            hit("checkpoint.commit_sinks.after")
        except BaseException as error:
            resolve(waiting, as_exception(error))
            raise
        resolve(waiting, pending.checkpoint)
        # 6. Delete older checkpoints beyond `retain`: the manifest first, then unreferenced files. `_clean` retries
        #    deletions that storage refuses now.
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
            watermarks=dict(pending.watermarks), totals=dict(pending.totals) or UNSET, turns=self._claim.turns or UNSET,
            epochs=pending.epochs or UNSET,
            triggered_ms=pending.triggered_ms, duration_ms=now_ms - pending.triggered_ms,
            uploaded_bytes=self._retention.new_bytes(files, pending.base), total_bytes=size_of(files),
        )  # fmt: skip

    def _end_completed(
        self, pending: Pending, manifest: Manifest, before: Manifest | None
    ) -> list[Future[CheckpointId]]:
        """End a published checkpoint and the older ones in flight, which it subsumes; return all of their requests."""
        known = {(sink.name, text) for sink in (before.sinks if before else ()) for text in sink.pending}
        with self._lock:
            subsumed = self._in_flight.older(pending)
            for older in subsumed:
                self._in_flight.hand_over(older)
                self._in_flight.remove(older)
                self._history.end(older.checkpoint, "subsumed", self._clock.now_ms())
            self._in_flight.remove(pending)
            freed, self._depends_on = self._depends_on, ""
            self._failures_in_row = 0
            self._schedule.end()
            now_ms = self._clock.monotonic_ms()
            since_ms = pending.began_ms if pending.changed_ms is None else pending.changed_ms
            self._published = pending.checkpoint, now_ms
            for sink in manifest.sinks:
                if any((sink.name, text) not in known for text in sink.pending):
                    # Rows that wait since an older checkpoint are still the oldest.
                    self._hidden_ms.setdefault(sink.name, since_ms)
            moments = (since_ms, pending.began_ms, pending.epoch_end_ms, pending.last_part_ms, now_ms)
            self._history.end(
                pending.checkpoint, "completed", self._clock.now_ms(), uploaded_bytes=manifest.uploaded_bytes,
                total_bytes=manifest.total_bytes, path=f"{self._jobdir.url}/{manifest_path(pending.checkpoint)}",
                frees=freed, phases=Phases(*(round(end - start, 3) for start, end in pairwise(moments))),
            )  # fmt: skip
        hit("checkpoint.subsume.in_flight")
        for older in subsumed:
            self._retention.abandon(older.checkpoint, older.base, older.files(), in_doubt=False)
        return [future for each in (*subsumed, pending) for future in each.waiting]

    def _retry_under_another_number(self, pending: Pending, error: NumberTakenError) -> None:
        """Fail the checkpoint and request another: a replaced driver has published under its number."""
        with self._lock:
            self._next_id = max(self._next_id, error.next_id)
            self._request_again(pending)
        self._fail(pending, error)

    def _request_again(self, pending: Pending) -> None:
        """Move the requests of a checkpoint to the next one; its end is not a failure in a row."""
        self._requests = [*pending.waiting, *self._requests]
        pending.waiting = []
        pending.tolerated = True

    def _give_up_older(self, pending: Pending) -> None:
        """Let the checkpoints before one in doubt fail: it may exist, and then nothing older may be published."""
        with self._lock:
            for older in reversed(self._in_flight.older(pending)):
                older.fail(f"was given up: it is unknown whether checkpoint {pending.checkpoint} was published")
                self._request_again(older)

    def _fail(self, pending: Pending, error: StrandlineError, in_doubt: bool = False) -> None:
        """End a checkpoint that is not published; raise if the job must end with it."""
        with self._lock:
            if not self._in_flight.hand_over(pending):
                self._schedule.uncover(pending.changed_ms)
            self._in_flight.remove(pending)
            self._schedule.fail()
            self._failures_in_row += 0 if pending.tolerated else 1
            in_row, tolerable = self._failures_in_row, self._config.tolerable_failures
            self._history.end(pending.checkpoint, "failed", self._clock.now_ms(), failure=error.message)
        failure = error if isinstance(error, CheckpointError | FencedError) else CheckpointError(
            f"checkpoint {pending.checkpoint} failed: {error.message}", hint=error.hint
        )  # fmt: skip
        resolve(pending.waiting, failure)
        self._retention.abandon(pending.checkpoint, pending.base, pending.files(), in_doubt=in_doubt)
        if isinstance(error, FencedError):
            raise error
        if not pending.tolerated and tolerable is not None and in_row > tolerable:
            raise CheckpointError(
                f"{in_row} checkpoints failed in a row, {tolerable} are tolerated; the last: {failure.message}",
                hint=failure.hint or "mend the cause, or raise tolerable_failures",
            ) from error


def _not_taken(reason: str) -> CheckpointError:
    return CheckpointError(f"the requested checkpoint was not taken: {reason}", attempt_ended=True)
