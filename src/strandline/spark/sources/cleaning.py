"""Deletes or archives a source's files once no checkpoint can need them. Spark's cleanSource does it too early.

A file can be removed when the oldest checkpoint that exists was taken after the file was read: any later restore starts
after the file. Errors here do not fail a job: a file that cannot be removed is tried again after the next checkpoint,
and the next run finds the files that this one leaves in Spark's log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from strandline.checkpoint.source_log import capture
from strandline.core.errors import FencedError, StrandlineError
from strandline.core.ids import CheckpointId
from strandline.spark.sources.files import SourceFiles, relative_path
from strandline.spark.sources.log import LoggedFile, UnreadableLogError, files_read, reached_steps

log = logging.getLogger(__name__)

_LIST_FROM = 32
"""From this number of files on, a directory is listed first: after a restart, most files are already removed."""
_MAX_FAILURES = 10
"""A round ends after this number of failures: storage does not work."""
_LAST_ROUND_S = 5.0

_Entry = tuple[int, str, int]
"""The number of the source, the path below its directory, and the modification time in ms."""


class SourceCleaner:
    """Deletes or archives files of a run's sources, by Spark's numbers of the sources, in a separate thread.

    One thread calls `captured` and `completed`, which do no I/O.
    """

    def __init__(self, sources: Mapping[int, SourceFiles], numbers: Sequence[int] = ()) -> None:
        self._sources = dict(sources)
        self._numbers = numbers
        self._steps = dict.fromkeys(sources, -1)
        """The last step of each source that was read from the log."""
        self._waiting: deque[tuple[int, LoggedFile]] = deque()
        """Files that were read, and are not due for removal yet."""
        self._covered: dict[CheckpointId, dict[int, int]] = {}
        self._is_disabled = False
        self._lock = threading.Condition()
        self._due: list[_Entry] = []
        self._check_owner: Callable[[], None] | None = None
        self._closing_at: float | None = None
        self._thread: threading.Thread | None = None

    def restored(self, checkpoint: CheckpointId, batch: int, directory: Path) -> None:
        """Note the files that a restored checkpoint covers; `directory` has Spark's log of that time."""
        if not self._sources:
            return
        try:
            self.captured(checkpoint, batch, capture(directory, batch))
        except StrandlineError as error:
            log.warning("source files that checkpoint %d covers are not removed for now: %s", checkpoint, error)

    def captured(self, checkpoint: CheckpointId, batch: int, files: Mapping[str, bytes]) -> None:
        """Note the files that a checkpoint will cover, from Spark's log after a batch."""
        if not self._sources or self._is_disabled:
            return
        try:
            reached = reached_steps(files, batch, list(self._sources), self._numbers)
            for source, step in reached.items():
                self._waiting += ((source, file) for file in files_read(files, source, self._steps[source], step))
                self._steps[source] = max(step, self._steps[source])
        except (UnreadableLogError, msgspec.MsgspecError, LookupError, ValueError) as error:
            self._is_disabled = True
            log.warning("source files are not removed any more, since Spark's log cannot be read: %s", error)
            return
        self._covered[checkpoint] = reached

    def completed(self, oldest_live: CheckpointId | None, check_owner: Callable[[], None]) -> None:
        """After a checkpoint is published: queue the files that the oldest checkpoint covers for removal.

        `check_owner` raises FencedError when another driver owns the job.
        """
        if oldest_live is None or (covered := self._covered.get(oldest_live)) is None:
            return
        self._covered = {number: steps for number, steps in self._covered.items() if number >= oldest_live}
        entries = [(source, file) for source, file in self._waiting if file.step <= covered[source]]
        self._waiting = deque((source, file) for source, file in self._waiting if file.step > covered[source])
        with self._lock:
            self._due += filter(None, (self._entry(source, file) for source, file in entries))
            self._check_owner = check_owner
            if self._due and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="strandline-cleaning", daemon=True)
                self._thread.start()
            self._lock.notify()

    def close(self) -> None:
        """End the thread within seconds; the next run removes the remaining files."""
        with self._lock:
            self._closing_at = time.monotonic() + _LAST_ROUND_S
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(2 * _LAST_ROUND_S)

    def _entry(self, source: int, file: LoggedFile) -> _Entry | None:
        root = self._sources[source].root
        path = relative_path(root, file.path)
        if path is None:
            log.warning("%s is not removed: it is not below the source's directory %s", file.path, root)
            return None
        return source, path, file.timestamp

    # -- in the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._check_owner is not None or self._closing_at is not None)
                check_owner, self._check_owner = self._check_owner, None
                entries, self._due = self._due, []
            if check_owner is None:
                return
            remaining = self._clean(entries, check_owner)
            with self._lock:
                self._due = remaining + self._due

    def _clean(self, entries: list[_Entry], check_owner: Callable[[], None]) -> list[_Entry]:
        """Remove files; return those to try again."""
        try:
            # Once is enough: a driver that takes over later finds only checkpoints after these files.
            check_owner()
            entries = self._existing(entries)
        except FencedError:
            return []
        except StrandlineError as error:
            log.warning("source files are not removed before the next checkpoint: %s", error)
            return entries
        failed: list[_Entry] = []
        for at, entry in enumerate(entries):
            if self._is_over() or len(failed) >= _MAX_FAILURES:
                # Those that failed come last, so that they do not block the others.
                return entries[at:] + failed
            try:
                self._remove(*entry)
            except StrandlineError as error:
                if not failed:
                    log.warning("a source file is not removed before the next checkpoint: %s", error)
                failed.append(entry)
        return failed

    def _existing(self, entries: Iterable[_Entry]) -> list[_Entry]:
        """Drop files that do not exist, in directories with many of them."""
        folders: defaultdict[tuple[int, str], list[_Entry]] = defaultdict(list)
        for entry in entries:
            folders[entry[0], PurePosixPath(entry[1]).parent.as_posix()].append(entry)
        existing: list[_Entry] = []
        for (source, folder), inside in folders.items():
            if len(inside) >= _LIST_FROM:
                names = self._sources[source].names(folder)
                inside = [entry for entry in inside if PurePosixPath(entry[1]).name in names]
            existing += inside
        return existing

    def _remove(self, source: int, path: str, logged_ms: int) -> None:
        files = self._sources[source]
        modified_ms = files.modified_ms(path)
        if modified_ms is None:
            return
        if modified_ms != logged_ms:
            log.warning("%s/%s is not removed: it was changed after it was read", files.root, path)
        elif not files.remove(path):
            log.warning("%s/%s is not removed: the archive has another file of its name", files.root, path)

    def _is_over(self) -> bool:
        return self._closing_at is not None and time.monotonic() > self._closing_at
