"""The progress of sources: stores where they began, uploads their positions with checkpoints, and restores them.

Spark keeps positions in a directory that belongs to one run. To make them durable, Strandline copies the directory's
files: once to the job's record of its start, and with each checkpoint.
"""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strandline.checkpoint.coordinator import Coordinator
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import damage_in
from strandline.checkpoint.source_log import (
    capture,
    capture_start,
    read_offsets,
    read_source,
    upload_source,
    write_files,
)
from strandline.checkpoint.start import Start, save_start, start_files
from strandline.core.clock import Clock
from strandline.core.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    FencedError,
    StrandlineError,
    UnavailableError,
)
from strandline.core.ids import CheckpointId, unique_name
from strandline.format.manifest import Manifest
from strandline.spark.sources.identity import IdentityChecks
from strandline.spark.sources.log import damage_in_logs

_OVERDUE_BATCHES = 8
_NEEDED_BATCHES = 2
"""A checkpoint needs Spark's log of its batch, and of the one before."""


def read_progress(
    folder: Folder, manifest: Manifest | None, start: Start | None, *, of_this_job: bool
) -> dict[str, bytes]:
    """Return Spark's files as of a checkpoint, or of the job's start; none for sources that have not begun.

    Raises CorruptionError, which names the checkpoint if it belongs to this job.
    """
    if manifest is not None and manifest.source is not None:
        with damage_in(manifest.checkpoint if of_this_job else None):
            return read_source(folder, manifest.source)
    return {} if start is None else start_files(start)


def rewind(directory: Path, files: Mapping[str, bytes], *, anew: bool = False) -> None:
    """Write the files of `read_progress` to the directory `spark-{generation}`, from which Spark continues.

    With `anew`, the query gets a new id. Deletes those of older generations, but not of newer ones: a newer driver may
    run on this machine already.
    """
    generation = int(directory.name.removeprefix("spark-"))
    for old in directory.parent.glob("spark-*"):
        number = old.name.removeprefix("spark-")
        if number.isdigit() and int(number) <= generation:
            shutil.rmtree(old, ignore_errors=True)
    write_files(files, directory)
    if anew and files:
        # With the id of a query that is active, Spark would take the two for one, and stop the older.
        (directory / "metadata").write_text(json.dumps({"id": str(uuid.UUID(unique_name()))}))


@dataclass
class _Request:
    """A checkpoint that needs the sources' progress after a batch; -1 is before the first batch."""

    checkpoint: CheckpointId
    batch: int
    files: Mapping[str, bytes] | None = None


@dataclass
class SourceProgress:
    """Stores where the sources began, and uploads their progress for checkpoints.

    Spark's thread calls `begin`; the supervisor calls `deliver` in its loop. Spark may delete old files before that:
    Spark's thread reads the files of an overdue request.
    """

    _directory: Path
    _names: Sequence[str]
    _jobdir: JobDirectory
    _claim: Claim
    _clock: Clock
    _coordinator: Coordinator
    _start_is_kept: bool
    _retained_batches: int
    _numbers: Sequence[int]
    """Spark's numbers of the sources, by line: see `log.py`."""
    _captured: Sequence[Callable[[CheckpointId, int, Mapping[str, bytes]], None]]
    """Callbacks with the files of each checkpoint."""
    _checks: Sequence[Callable[[int, Callable[[], bool]], None]]
    """Checks of a batch before it is processed."""
    _identities: IdentityChecks

    def __post_init__(self) -> None:
        self._overdue = max(1, min(_OVERDUE_BATCHES, self._retained_batches - _NEEDED_BATCHES))
        self._requests: list[_Request] = []
        """Of the checkpoints in flight, oldest first; replaced, never changed, since two threads use it."""
        self._lock = threading.Lock()

    def want(self, checkpoint: CheckpointId, batch: int) -> None:
        """Request the progress after a batch for a checkpoint, once Spark has committed the batch."""
        with self._lock:
            self._requests = [*self._requests, _Request(checkpoint, batch)]

    def begin(self, batch: int, is_over: Callable[[], bool]) -> None:
        """Before a batch is processed: store the start, and read overdue requests' files before Spark deletes them.

        Raises CorruptionError as `deliver` does, and UnavailableError if the run `is_over`.
        """
        for check in self._checks:
            check(batch, is_over)
        overdue = [request for request in self._requests if 0 <= request.batch <= batch - self._overdue]
        if overdue or not self._start_is_kept or batch == 0:
            # Spark writes its logs one after the other: this is the newest file of all.
            read_offsets(self._directory, batch, is_over)
        if not self._start_is_kept:
            # Without it, a source that began at "latest" would skip rows after a failure.
            files = capture_start(self._directory)
            if files is None:
                raise UnavailableError(f"{self._directory}: Spark has not stored the sources' first offsets")
            save_start(self._jobdir, self._claim, files, list(self._names), self._clock)
            self._start_is_kept = True
        for request in overdue:
            try:
                self._capture(request)
            except CorruptionError:
                raise
            except StrandlineError as error:
                self._fail(request, error)

    def deliver(self, has_looked: Callable[[], bool]) -> None:
        """Upload the progress that the checkpoints in flight need, if Spark has written it.

        `has_looked`: whether Spark has polled the sources, so that those which begin at "latest" have begun. Raises
        CorruptionError if files are missing that Spark needs for a restart. Raises ConfigurationError or ConflictError
        if rows came from another topic or table than the checkpoint names.
        """
        for request in self._requests:
            if request.checkpoint in self._coordinator.in_flight:
                self._deliver(request, has_looked)
            else:
                self._done(request)

    def _deliver(self, request: _Request, has_looked: Callable[[], bool]) -> None:
        base = self._coordinator.confirmed
        try:
            files = self._files_of(request, has_looked)
            if files is None or not self._identities.check(request.batch, files):
                return
            info = upload_source(
                self._jobdir, files, request.checkpoint, request.batch, base.source if base else None, self._names
            )
        except (FencedError, CorruptionError, ConfigurationError, ConflictError):
            raise
        except StrandlineError as error:
            self._fail(request, error)
            return
        self._done(request)
        if request.batch >= 0:
            for captured in self._captured:
                captured(request.checkpoint, request.batch, files)
        self._coordinator.add_source(request.checkpoint, info)

    def has_begun(self, has_looked: Callable[[], bool]) -> bool:
        """Whether Spark has stored where the sources of a new job begin; `has_looked` as for `deliver`."""
        return (self._directory / "offsets" / "0").exists() or has_looked()

    def _files_of(self, request: _Request, has_looked: Callable[[], bool]) -> Mapping[str, bytes] | None:
        """Return the files of the request's batch, None if Spark has not written them yet."""
        if request.batch < 0:
            return capture_start(self._directory) if self.has_begun(has_looked) else None
        if request.files is None and (self._directory / "commits" / str(request.batch)).exists():
            self._capture(request)
        return request.files

    def _capture(self, request: _Request) -> None:
        with self._lock:
            if request.files is None:
                if not (self._directory / "metadata").exists():
                    raise self._damaged("metadata")
                files = capture(self._directory, request.batch)
                if missing := damage_in_logs(files, request.batch, self._numbers):
                    raise self._damaged(missing)
                request.files = files

    def _damaged(self, missing: str) -> CorruptionError:
        return CorruptionError(
            f"{self._directory / missing} is missing, and Spark needs it after a restart",
            hint="the job restores from its last checkpoint; if another program deletes files below local_dir, as some "
            "systems do in /tmp, set another local_dir in Settings",
        )

    def _fail(self, request: _Request, error: StrandlineError) -> None:
        self._done(request)
        self._coordinator.fail(request.checkpoint, f"the source's progress could not be stored: {error}")

    def _done(self, request: _Request) -> None:
        with self._lock:
            self._requests = [each for each in self._requests if each is not request]
