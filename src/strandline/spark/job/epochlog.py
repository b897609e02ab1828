"""The log of a run's epochs: what a replay needs of each, bounded, for checkpoints and for the record of a failure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import GENERATIONS, JobDirectory, failed_generation, failed_path
from strandline.checkpoint.source_log import read_logs
from strandline.core.clock import Clock
from strandline.core.errors import StrandlineError
from strandline.core.ids import Epoch
from strandline.format.epochs import FAILED_RUN, EpochRecord, EpochRecords, FailedRun, pack_epochs, unpack_epochs
from strandline.format.manifest import Manifest
from strandline.spark.sources.filechecks import FileSource
from strandline.spark.sources.log import UnreadableLogError, step_file

_log = logging.getLogger(__name__)

_NEEDED_BYTES = 1 << 20
"""The largest size of the records since the last checkpoint; the oldest are dropped."""
_KEPT_BYTES = 64 << 10
"""The size up to which older records are kept, for replays from older snapshots."""
_TRIM_EVERY = 256
_NEWEST = 16
"""The number of records in which offsets may be missing."""
_KEPT_FAILURES = 3
"""The number of records of failed runs that a job keeps."""
_RECORD_BYTES = 100
"""The size of a record without its offsets, roughly."""


@dataclass
class EpochLog:
    """The records of the last epochs of a run, oldest first.

    Spark's thread adds them; the thread that watches the run may read them. Another thread of Spark writes the offsets
    of a batch, perhaps after its epoch has begun, so that they are read later, before Spark deletes them.
    """

    tasks: int = 0
    directory: Path | None = None
    """Spark's directory of the run, with its log of offsets; None: there is no query."""
    records: list[EpochRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    @classmethod
    def after(cls, manifest: Manifest | None, tasks: int, directory: Path) -> EpochLog:
        """Return the log of a run that continues from a checkpoint."""
        stored = manifest.epochs if manifest is not None else None
        records = unpack_epochs(stored, "the restored checkpoint").epochs if stored else []
        return cls(tasks, directory, records)

    def add(self, record: EpochRecord, confirmed: Epoch) -> None:
        """Add an epoch that is about to run; `confirmed` is the epoch of the newest checkpoint."""
        with self._lock:
            self.records.append(record)
            self._read_offsets()
            if len(self.records) % _TRIM_EVERY == 0:
                self._trim(confirmed)

    def note_reduced(self, epoch: Epoch, reduced: Mapping[str, bool]) -> None:
        """Add to the record of the newest epoch which rows Spark aggregates: that is known once its plan is made."""
        with self._lock:
            if reduced and self.records and self.records[-1].epoch == epoch:
                self.records[-1] = structs.replace(self.records[-1], reduced=dict(reduced))

    @property
    def newest(self) -> Epoch:
        """The newest epoch that has begun; 0 before the first."""
        with self._lock:
            return self.records[-1].epoch if self.records else Epoch(0)

    def pack(self, confirmed: Epoch) -> bytes:
        """Return the records as they are stored; `confirmed` as in `add`."""
        with self._lock:
            self._read_offsets()
            self._trim(confirmed)
            return pack_epochs(EpochRecords(tasks=self.tasks, epochs=list(self.records))) if self.records else b""

    def _read_offsets(self) -> None:
        """Read the offsets of batches that lack them, as far as Spark has written them: the newest ones, mostly."""
        if self.directory is None:
            return
        for at in range(len(self.records) - 1, max(len(self.records) - _NEWEST, 0) - 1, -1):
            record = self.records[at]
            if record.batch < 0:
                continue
            if record.offsets:
                break
            try:
                offsets = (self.directory / "offsets" / str(record.batch)).read_text()
            except OSError:
                continue
            self.records[at] = structs.replace(record, offsets=offsets)

    def _trim(self, confirmed: Epoch) -> None:
        """Drop the oldest records beyond the bounds."""
        needed, size, first = _NEEDED_BYTES, 0, len(self.records)
        while first:
            record = self.records[first - 1]
            size += len(record.offsets) + _RECORD_BYTES
            if size > (needed if record.epoch > confirmed else _KEPT_BYTES):
                break
            first -= 1
        del self.records[:first]


@dataclass(frozen=True)
class FailureRecorder:
    """Stores the record of a run that failed beside the job's generations; older ones are deleted."""

    _jobdir: JobDirectory
    _claim: Claim
    _clock: Clock
    _directory: Path
    """Spark's directory of the run."""
    _sources: Sequence[FileSource]

    def save(self, log: EpochLog, base: Manifest | None, failed: Epoch, failure: str) -> None:
        """Store the records since a checkpoint. Without the storage, the log has a warning, and the job its error."""
        confirmed = Epoch(0) if base is None else base.epoch
        packed = log.pack(confirmed)
        record = FailedRun(
            generation=self._claim.generation, checkpoint=None if base is None else base.checkpoint,
            created_ms=self._clock.now_ms(), failure=failure, failed=failed, epochs=packed,
            files=self._new_steps([each for each in log.records if each.epoch > confirmed]),
        )  # fmt: skip
        try:
            known = [info.path for info in self._jobdir.list(GENERATIONS) if failed_generation(info.path) is not None]
            self._jobdir.put(failed_path(self._claim.generation), FAILED_RUN.encode(record))
            newest = sorted(known, key=lambda path: failed_generation(path) or 0)[-_KEPT_FAILURES + 1 :]
            self._jobdir.delete([path for path in known if path not in newest])
        except StrandlineError as error:
            _log.warning("the record of the failure was not stored, so that it cannot be replayed: %s", error)

    def _new_steps(self, records: Sequence[EpochRecord]) -> dict[str, bytes]:
        """Return the files of Spark's log for the steps of these epochs, each with its own step alone."""
        files: dict[str, bytes] = {}
        if not self._sources:
            return files
        try:
            written = read_logs(self._directory)
            for record in records:
                if not record.offsets:
                    continue
                offsets = {f"offsets/{record.batch}": record.offsets.encode()}
                for source in self._sources:
                    step = source.reached(offsets, record.batch)
                    if step >= 0:
                        files[f"sources/{source.number}/{step}"] = step_file(written, source.number, step)
        except (StrandlineError, UnreadableLogError) as error:
            _log.warning("the files of the epochs before the failure are not known: %s", error)
        return files
