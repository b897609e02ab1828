"""How far the sources are: where they began, what each checkpoint keeps of it, and how they are set back.

Spark keeps that in a directory of its own. It is of this run alone; what is durable is what is copied out of it: once
into the job's record of its start, and with each checkpoint.
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
from strandline.checkpoint.source_log import capture, capture_start, read_source, upload_source, write_files
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
from strandline.spark.sources.kafka import KafkaTopics
from strandline.spark.sources.log import damage_in_logs

_OVERDUE_BATCHES = 8
_NEEDED_BATCHES = 2
"""A checkpoint needs Spark's log of its batch, and of the one before."""


def read_progress(folder: Folder, manifest: Manifest | None, start: Start | None, *, own: bool) -> dict[str, bytes]:
    """Return Spark's files as of a checkpoint, or of where it all began; none for sources that have not begun.

    Raises CorruptionError, which names the checkpoint if it is the job's own.
    """
    if manifest is not None and manifest.source is not None:
        with damage_in(manifest.checkpoint if own else None):
            return read_source(folder, manifest.source)
    return {} if start is None else start_files(start)


def rewind(directory: Path, files: Mapping[str, bytes], *, fork: bool = False) -> None:
    """Make the directory `spark-{generation}`, from which Spark goes on, of what `read_progress` has given.

    Those of older generations go. A newer driver may be at work on this machine already: its own is left alone.
    """
    generation = int(directory.name.removeprefix("spark-"))
    for old in directory.parent.glob("spark-*"):
        number = old.name.removeprefix("spark-")
        if number.isdigit() and int(number) <= generation:
            shutil.rmtree(old, ignore_errors=True)
    write_files(files, directory)
    if fork and files:
        # Of two queries that it takes for one, Spark stops the older: that of the job whose snapshot it is.
        (directory / "metadata").write_text(json.dumps({"id": str(uuid.UUID(unique_name()))}))


@dataclass
class _Wanted:
    """A checkpoint that needs the sources' progress after a batch; before the first there is none: -1."""

    checkpoint: CheckpointId
    batch: int
    files: Mapping[str, bytes] | None = None


@dataclass
class SourceProgress:
    """Keeps where the sources began, and gives checkpoints how far they are.

    Spark's thread says when a batch begins; the supervisor delivers, when it has time: Spark deletes old files
    meanwhile, so that what is overdue is read in Spark's thread.
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
    """Spark's numbers of the sources, as `log.py` explains."""
    _captured: Sequence[Callable[[CheckpointId, int, Mapping[str, bytes]], None]]
    """Are told what a checkpoint has."""
    _checks: Sequence[Callable[[int], None]]
    """Look at a batch before it is processed."""
    _topics: KafkaTopics

    def __post_init__(self) -> None:
        self._overdue = max(1, min(_OVERDUE_BATCHES, self._retained_batches - _NEEDED_BATCHES))
        self._wanted: _Wanted | None = None
        self._lock = threading.Lock()

    def want(self, checkpoint: CheckpointId, batch: int) -> None:
        """A checkpoint needs the progress after this batch, once Spark has logged it as done."""
        self._wanted = _Wanted(checkpoint, batch)

    def begin(self, batch: int) -> None:
        """Before a batch is processed: what could be lost from now on is made durable, or read.

        Raises CorruptionError as `deliver` does.
        """
        for check in self._checks:
            check(batch)
        if not self._start_is_kept:
            # Without it, a source that began at "now" would begin anew after a failure.
            files = capture_start(self._directory)
            if files is None:
                raise UnavailableError(f"{self._directory}: Spark has not written down where the sources begin")
            save_start(self._jobdir, self._claim, files, list(self._names), self._clock)
            self._start_is_kept = True
        wanted = self._wanted
        if wanted is not None and 0 <= wanted.batch <= batch - self._overdue:
            try:
                self._capture(wanted)
            except CorruptionError:
                raise
            except StrandlineError as error:
                self._fail(wanted, error)

    def deliver(self, has_looked: Callable[[], bool]) -> None:
        """Give the pending checkpoint what it waits for, if that is there.

        `has_looked`: whether the sources were looked at, so that those which begin at "now" have begun. Raises
        CorruptionError if files that Spark counts on are gone: what is done from now on, no restart could go on from.
        Raises ConfigurationError or ConflictError if rows were read of another topic than the checkpoint names.
        """
        wanted = self._wanted
        if wanted is None:
            return
        if self._coordinator.pending != wanted.checkpoint:
            self._done(wanted)
            return
        base = self._coordinator.confirmed
        try:
            files = self._files_of(wanted, has_looked)
            if files is None or not self._topics.check(wanted.batch, files):
                return
            info = upload_source(
                self._jobdir, files, wanted.checkpoint, wanted.batch, base.source if base else None, self._names
            )
        except (FencedError, CorruptionError, ConfigurationError, ConflictError):
            raise
        except StrandlineError as error:
            self._fail(wanted, error)
            return
        self._done(wanted)
        if wanted.batch >= 0:
            for captured in self._captured:
                captured(wanted.checkpoint, wanted.batch, files)
        self._coordinator.add_source(wanted.checkpoint, info)

    def _files_of(self, wanted: _Wanted, has_looked: Callable[[], bool]) -> Mapping[str, bytes] | None:
        """Return the files of the batch that is wanted, None if Spark has not written them yet."""
        if wanted.batch < 0:
            has_begun = (self._directory / "offsets" / "0").exists() or has_looked()
            return capture_start(self._directory) if has_begun else None
        if wanted.files is None and (self._directory / "commits" / str(wanted.batch)).exists():
            self._capture(wanted)
        return wanted.files

    def _capture(self, wanted: _Wanted) -> None:
        with self._lock:
            if wanted.files is None:
                if not (self._directory / "metadata").exists():
                    raise self._damaged("metadata")
                files = capture(self._directory, wanted.batch)
                if missing := damage_in_logs(files, wanted.batch, self._numbers):
                    raise self._damaged(missing)
                wanted.files = files

    def _damaged(self, missing: str) -> CorruptionError:
        return CorruptionError(
            f"{self._directory / missing}: gone, and Spark needs it to go on after a restart",
            hint="the job restores from its last checkpoint; if something cleans up below local_dir, as some systems "
            "do with /tmp, give another local_dir in Settings",
        )

    def _fail(self, wanted: _Wanted, error: StrandlineError) -> None:
        self._done(wanted)
        self._coordinator.fail(wanted.checkpoint, f"the source's progress could not be stored: {error}")

    def _done(self, wanted: _Wanted) -> None:
        if self._wanted is wanted:
            self._wanted = None
