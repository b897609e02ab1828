"""A partition's snapshots: frozen in the epoch's thread, written and uploaded in background threads.

The writer writes frozen changes to the backend and makes local snapshots; uploaders copy a snapshot's new files to the
checkpoint storage, each of them one snapshot. A report stays until the driver has published or dropped the checkpoint.
With a changelog, another thread uploads the next base meanwhile.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import UNSET

from strandline.backends.base import Backend, Changes, Live, LocalFile
from strandline.checkpoint.catalog import find_problem
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.kinds import kind_of
from strandline.checkpoint.restore import Unverified
from strandline.checkpoint.upload import Append, upload
from strandline.core import failpoints
from strandline.core.errors import CorruptionError, StrandlineError, discreet, local_files_hint
from strandline.core.failure import format_error
from strandline.core.ids import CheckpointId, Epoch, Partition
from strandline.core.keygroups import range_of
from strandline.core.texts import size_text
from strandline.format.manifest import FileRef, PartitionInfo
from strandline.keeper.paths import drop_copies, local_copy, standby_files, sweep_machine
from strandline.keeper.protocol import Report
from strandline.keeper.rebasing import NextBase
from strandline.runtime.program import Program
from strandline.runtime.state.store import Frozen, Store
from strandline.storage.kafkaparts import LogFolder, topics_at

log = logging.getLogger(__name__)

_START_S = 60.0
_KNOWN = "known"


class Known(msgspec.Struct, frozen=True):
    """A keeper's knowledge of its partition's files in storage, which it records for one that takes its place."""

    keeper: str
    checkpoint: CheckpointId | None
    """The newest published checkpoint."""
    files: Mapping[str, FileRef]
    """By name, its files."""
    reports: Sequence[Report] = ()
    """On snapshots that may be published."""

    @staticmethod
    def of(live: Live) -> Known:
        """Return the record of a keeper that has died; raise UnavailableError if there is none."""
        return msgspec.msgpack.decode(live.read(_KNOWN), type=Known)


@dataclass
class Snapshots:
    """Write-behind and checkpoints of one partition."""

    _program: Program
    _partition: Partition
    _store: Store
    _backend: Backend
    _jobdir: JobDirectory
    _directory: Path
    _known: Known
    """Without the reports."""
    _write_behind_bytes: int

    def __post_init__(self) -> None:
        self._kind = kind_of(self._program.mode, inline=self._backend.inline)
        self._append = _appending(self._program)
        self._live = self._backend.live
        self._written: Epoch | None = None
        """The version that was frozen last, for the writer."""
        self._in_backend = Epoch(0)
        """The version that the backend has, as the writer knows it."""
        self._goes_on_cleaning = False
        self._changelog = self._backend.changelog
        self._writer = _running(1, "strandline-writer")
        # For the snapshots in flight, and for some that were given up, whose last request is not over.
        self._uploader = _running(2 * self._program.max_concurrent - 1, "strandline-uploader")
        self._base_uploader = _running(1 if self._changelog else 0, "strandline-base-uploader")
        self._next_base: NextBase | None = None
        self._uploaded_beside: Mapping[str, FileRef] = {}
        """By name, files of the base that were uploaded beside checkpoints, until a published one has them."""
        self._beside_of: CheckpointId | None = None
        """The checkpoint that was the first to use them."""
        self._may_lack_some = False
        """Whether it was given up, perhaps because storage has lost one of them."""
        self._beside_bytes = 0
        self._writing: Future[None] | None = None
        self._lock = threading.Lock()
        self._has_swept = False
        self._verified: Future[None] | None = None
        self._in_flight: frozenset[CheckpointId] = frozenset()
        self._triggered = CheckpointId(0)
        self._reports: dict[CheckpointId, Report] = {report.checkpoint: report for report in self._known.reports}
        self._sent: set[CheckpointId] = set(self._reports)
        """The checkpoints whose reports were sent to the driver, or may have been."""
        self._recording = threading.Lock()
        if self._live is not None:
            self._writer.submit(self._record, self._live)
        self._error: StrandlineError | None = None

    def verify(self, unverified: Unverified) -> None:
        """Verify restored files in the background, before any upload."""
        self._verified = self._uploader.submit(self._verify, unverified)

    def apply_driver_state(self, confirmed: CheckpointId | None, in_flight: Collection[CheckpointId]) -> None:
        """Record the newest published checkpoint, and those in progress."""
        with self._lock:
            self._in_flight = frozenset(in_flight)
            mine = None if confirmed is None else self._reports.get(confirmed)
            if confirmed is not None and mine is not None and mine.info is not None:
                self._confirm(confirmed, {ref.name: ref for ref in mine.info.files})
                if self._beside_of is None or confirmed >= self._beside_of:
                    # The base has those that are still needed.
                    self._uploaded_beside, self._beside_of = {}, None
                if self._next_base is not None and mine.info.planned:
                    self._next_base.confirm(mine.info.planned, self._jobdir, confirmed, self._base_uploader)
                drop_copies(self._directory, keep=(confirmed, *in_flight))
                shutil.rmtree(standby_files(self._directory), ignore_errors=True)
                if not self._has_swept:
                    self._has_swept = True
                    self._uploader.submit(sweep_machine, self._directory, self._program.generation)
            elif confirmed is not None and confirmed > (self._known.checkpoint or 0):
                # An earlier process of this partition took part in it, and its files are unknown here.
                self._confirm(confirmed, {})
                self._uploaded_beside, self._beside_of = {}, None
            if self._beside_of is not None and self._beside_of not in self._in_flight:
                self._may_lack_some = True
            # Those of other checkpoints once more: the driver deletes their files.
            self._reports = {c: r for c, r in self._reports.items() if c in self._in_flight or c not in self._sent}
            self._sent &= self._reports.keys()

    def _confirm(self, checkpoint: CheckpointId, files: Mapping[str, FileRef]) -> None:
        self._known = Known(self._known.keeper, checkpoint, files)
        if self._live is not None:
            self._writer.submit(self._record, self._live)

    def _record(self, live: Live) -> None:
        """Record what is known. An older record is as good: the driver says which checkpoint is the newest."""
        with self._recording, suppress(OSError):
            with self._lock:
                known = msgspec.structs.replace(self._known, reports=list(self._reports.values()))
            live.write(_KNOWN, msgspec.msgpack.encode(known))

    def trigger(self, checkpoint: CheckpointId, version: Epoch) -> float:
        """Freeze the state of a version for a checkpoint; return by how many milliseconds that delayed the epoch."""
        started = time.perf_counter()
        if checkpoint <= self._triggered:
            # Spark repeated a poll: a second snapshot would delete files that are being uploaded.
            return 0.0
        self._triggered = checkpoint
        with self._lock:
            self._in_flight |= {checkpoint}
        frozen = self._freeze(version)
        pause_ms = (time.perf_counter() - started) * 1000
        self._writer.submit(self._take, checkpoint, frozen, version, pause_ms)
        return pause_ms

    def write_behind(self, version: Epoch) -> bool:
        """Write the changes up to a version to the backend, if it is live or they use much memory.

        Wait if the writer lags far behind. Return False if it lags, so that a later call writes them.
        """
        if self._backend.keeps_all or self._written == version:
            return True
        if self._live is None and self._store.dirty_bytes < self._write_behind_bytes:
            return True
        if self._writing is not None and not self._writing.done():
            if self._store.dirty_bytes < 2 * self._write_behind_bytes:
                return False
            self._writing.result()
        self._writing = self._writer.submit(self._write, self._freeze(version), version)
        return True

    def find_excess(self) -> list[str]:
        """Return a finding if the changes that the backend lacks, with all of an epoch, take too much memory."""
        memory_bytes = self._program.partition_memory_bytes
        if self._backend.keeps_all or self._store.dirty_bytes <= memory_bytes:
            return []
        return [
            f"operator '{self._program.uid}': an epoch changes more state than a partition's share of state_memory, "
            f"{size_text(memory_bytes)}: its changes are in memory until it has ended, however many they are; limit "
            "the rows of an epoch at the source, as by maxOffsetsPerTrigger or maxFilesPerTrigger, or raise "
            "state_memory or parallelism"
        ]

    def raise_error(self) -> None:
        """Raise the error of a failed background write: the backend lacks changes since then."""
        if self._error is not None:
            raise self._error

    def reports(self) -> list[Report]:
        """Return the reports on snapshots that the driver has neither published nor dropped."""
        with self._lock:
            self._sent |= self._reports.keys()
            return list(self._reports.values())

    def close(self) -> None:
        """Cancel uploads and end the threads."""
        with self._lock:
            self._in_flight = frozenset()
        self._writer.shutdown(cancel_futures=True)
        if self._next_base is not None:
            self._next_base.cancel()
        self._uploader.shutdown(cancel_futures=True)
        self._base_uploader.shutdown(cancel_futures=True)

    def _freeze(self, version: Epoch) -> Frozen:
        self._written = version
        try:
            return self._store.freeze()
        except BaseException as error:
            # No later snapshot would have what is frozen already, and the epoch's ack may have been sent.
            self._fail(error)
            raise

    def _write(self, frozen: Frozen, version: Epoch) -> None:
        try:
            self.raise_error()
            self._backend.write(frozen.changes())
            self._in_backend = version
            frozen.release()
            self._note(version)
        except BaseException as error:
            # BaseException: a Rust library's panic is no Exception, and the pool would swallow it.
            self._fail(error)

    def _note(self, version: Epoch, *, cleaning: bool = False) -> None:
        """Note that the backend has all changes of a version, once it is known to be what was restored."""
        if self._live is not None and (self._verified is None or self._verified.done()) and self._error is None:
            failpoints.hit("keeper.log.written")
            self._live.note(version, cleaning=cleaning)
            failpoints.hit("keeper.log.noted")

    def _take(self, checkpoint: CheckpointId, frozen: Frozen, version: Epoch, pause_ms: float) -> None:
        started = time.perf_counter()
        into = local_copy(self._directory, checkpoint)
        try:
            # Changes of a failed write would be missing from every later snapshot.
            self.raise_error()
            failpoints.hit("keeper.persist.before")
            shutil.rmtree(into, ignore_errors=True)
            changes = frozen.changes()
            if self._live is not None:
                self._backend.write(changes)
                self._note(version)
                changes = {}
            files = self._persist(checkpoint, changes, into)
            self._in_backend = version
            # Again: logs that are flushed may be gone.
            self._note(version)
            frozen.release()
        except BaseException as error:
            self._fail(error)
            self._report(Report(checkpoint=checkpoint, failure=f"snapshot failed: {self._loggable(error)}"))
            return
        self._uploader.submit(self._upload, checkpoint, files, pause_ms, started)
        self._clean()
        self._rebase()

    def _persist(self, checkpoint: CheckpointId, changes: Changes, into: Path) -> list[LocalFile]:
        changelog, next_base = self._changelog, self._next_base
        if changelog is None:
            return self._backend.persist(changes, into)
        if next_base is not None and next_base.is_uploaded:
            changelog.begin_at(next_base.base)
            with self._lock:
                self._next_base, self._uploaded_beside, self._beside_of = None, next_base.files, checkpoint
                self._beside_bytes += next_base.uploaded_bytes
                self._may_lack_some = False
        before = changelog.base
        files = changelog.append(changes, into)
        if changelog.base is not before and self._next_base is not None:
            # The log was so long that this snapshot has a newer base.
            self._next_base.cancel()
            with self._lock:
                self._next_base = None
        return files

    def _go_on_cleaning(self) -> None:
        self._goes_on_cleaning = False
        self._clean()

    def _clean(self) -> None:
        """Clean the changelog for a moment, and go on after what waits to be written."""
        if self._changelog is None or self._error is not None or self._goes_on_cleaning:
            return
        try:
            self._note(self._in_backend, cleaning=True)
            self._goes_on_cleaning = self._changelog.clean()
            self._note(self._in_backend)
        except BaseException as error:
            self._fail(error)
            return
        if self._goes_on_cleaning:
            # At the end of the keeper, it takes no more work.
            with suppress(RuntimeError):
                self._writer.submit(self._go_on_cleaning)

    def _rebase(self) -> None:
        """Write the next base of the changelog, if that is due."""
        if self._changelog is None or self._next_base is not None or not self._changelog.is_long:
            return
        try:
            failpoints.hit("keeper.rebase.before")
            base = self._changelog.rebase()
        except BaseException as error:
            self._fail(error)
            return
        with self._lock:
            known = {**self._known.files, **self._uploaded_beside}
            self._next_base = NextBase(base, known, self._kind, lambda: self._triggered)

    def _verify(self, unverified: Unverified) -> None:
        try:
            unverified.verify()
        except CorruptionError as error:
            # The next request has it, and so the job is restored.
            self._error = error
            log.error("%s", error)
        except BaseException as error:
            self._fail(error)

    def _upload(self, checkpoint: CheckpointId, files: list[LocalFile], pause_ms: float, started: float) -> None:
        try:
            failpoints.hit("keeper.upload.before")
            if self._verified is not None:
                self._verified.result()
            self.raise_error()
            self._check_beside()
            with self._lock:
                base = {**self._known.files, **self._uploaded_beside}
            refs, uploaded_bytes = upload(
                self._jobdir, files, checkpoint, base, self._kind,
                cancelled=lambda: checkpoint not in self._in_flight, append=self._append,
            )  # fmt: skip
            failpoints.hit("keeper.upload.after")
        except BaseException as error:
            if isinstance(error, CorruptionError):
                self._fail(error)
            reason = self._loggable(error)
            log.warning("checkpoint %d: upload failed: %s", checkpoint, reason)
            self._report(Report(checkpoint=checkpoint, failure=f"upload failed: {reason}"))
            shutil.rmtree(local_copy(self._directory, checkpoint), ignore_errors=True)
            return
        with self._lock:
            planned = self._next_base.planned if self._next_base is not None else []
            if self._beside_of is not None and checkpoint < self._beside_of:
                # It may be published before the one that uses them first.
                planned = [*planned, *(ref.path for ref in self._uploaded_beside.values())]
            uploaded_bytes, self._beside_bytes = uploaded_bytes + self._beside_bytes, 0
        groups = range_of(self._partition, self._program.max_parallelism, self._program.parallelism)
        info = PartitionInfo(
            index=self._partition,
            first_key_group=groups[0],
            last_key_group=groups[-1],
            files=refs,
            sync_ms=round(pause_ms, 3),
            async_ms=round((time.perf_counter() - started) * 1000, 3),
            uploaded_bytes=uploaded_bytes,
            planned=planned or UNSET,
        )
        self._report(Report(checkpoint=checkpoint, info=info))

    def _check_beside(self) -> None:
        """Forget files that storage does not have of those that were uploaded beside checkpoints: they come again."""
        with self._lock:
            refs = dict(self._uploaded_beside) if self._may_lack_some else {}
        lost = [ref for ref in refs.values() if find_problem(self._jobdir, ref)]
        with self._lock:
            self._may_lack_some = self._may_lack_some and not refs
            # There may be other ones by now.
            self._uploaded_beside = {name: ref for name, ref in self._uploaded_beside.items() if ref not in lost}

    def _report(self, report: Report) -> None:
        with self._lock:
            self._reports[report.checkpoint] = report
        if self._live is not None:
            self._record(self._live)

    def _fail(self, error: BaseException) -> None:
        if error is self._error:
            return
        failure = error
        if not isinstance(failure, StrandlineError):
            what = f"operator '{self._program.uid}', partition {self._partition}: writing state failed"
            failure = StrandlineError(
                f"{what}: {error}", discreet=f"{what}: {discreet(error)}",
                hint=f"{local_files_hint(error)}; `strandline logs` shows the keeper's log",
            )  # fmt: skip
        # First: without memory, the log may fail, too.
        self._error = failure
        log.error("%s", format_error("writing state failed", error, with_values=self._program.log_values))

    def _loggable(self, error: BaseException) -> str:
        """Return an error's text for the logs and the status of a checkpoint."""
        return str(error) if self._program.log_values else discreet(error)


def _appending(program: Program) -> Append | None:
    """Return the function that writes parts of the log into Kafka; None if they are files."""
    log = program.changelog.log
    if program.mode != "changelog" or log is None:
        return None
    folder = LogFolder(log.servers, log.topic, program.life)

    def append(source: Path) -> tuple[str, str]:
        part, sha256 = topics_at(log.servers, log.cluster.options).append(folder, source)
        return part.path, sha256

    return append


def _running(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads run already.

    Later, memory may lack: the epoch would wait for ever for a thread that ended at once.
    """
    pool, all_run = ThreadPoolExecutor(max(1, threads), name), threading.Barrier(max(1, threads))
    for _ in range(threads):
        # Each thread waits for the others: none gets two of these.
        pool.submit(all_run.wait, _START_S)
    return pool
