"""Taking a source's files away once no checkpoint can need them. Spark's own cleanSource does so too early.

A file may go when the oldest checkpoint that is still there has been taken after it was read: whatever is restored
from then on, by whatever driver, goes on behind it. Nothing here fails a job: what storage refuses is tried again
after the next checkpoint, and what a run leaves behind is found in Spark's log by the next.
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
"""With so many files in a directory to take away, it is listed first: after a restart most have long been gone."""
_FAILURES = 10
"""After so many in one round, storage does not work."""
_LAST_ROUND_S = 5.0

_Entry = tuple[int, str, int]
"""Which source, the path below its directory, and when the file was last changed, in ms."""


class SourceCleaner:
    """Deletes or archives files of a run's sources, by their number in Spark's log, in a thread of its own.

    `captured` and `completed` are called by one thread; they do no I/O.
    """

    def __init__(self, sources: Mapping[int, SourceFiles], numbers: Sequence[int] = ()) -> None:
        self._sources = dict(sources)
        self._numbers = numbers
        self._steps = dict.fromkeys(sources, -1)
        """Up to which step of each source the log was read."""
        self._waiting: deque[tuple[int, LoggedFile]] = deque()
        """What was read and not taken away yet."""
        self._covered: dict[CheckpointId, dict[int, int]] = {}
        self._is_blind = False
        self._lock = threading.Condition()
        self._due: list[_Entry] = []
        self._check_owner: Callable[[], None] | None = None
        self._closing_at: float | None = None
        self._thread: threading.Thread | None = None

    def restored(self, checkpoint: CheckpointId, batch: int, directory: Path) -> None:
        """Remember what a restored checkpoint covers; `directory` has Spark's files as they were then."""
        if not self._sources:
            return
        try:
            self.captured(checkpoint, batch, capture(directory, batch))
        except StrandlineError as error:
            log.warning("source files that checkpoint %d covers stay for now: %s", checkpoint, error)

    def captured(self, checkpoint: CheckpointId, batch: int, files: Mapping[str, bytes]) -> None:
        """Remember what a checkpoint will cover: Spark's progress files after a batch."""
        if not self._sources or self._is_blind:
            return
        try:
            reached = reached_steps(files, batch, list(self._sources), self._numbers)
            for source, step in reached.items():
                self._waiting += ((source, file) for file in files_read(files, source, self._steps[source], step))
                self._steps[source] = max(step, self._steps[source])
        except (UnreadableLogError, msgspec.MsgspecError, LookupError, ValueError) as error:
            self._is_blind = True
            log.warning("source files are not taken away any more, since Spark's log cannot be read: %s", error)
            return
        self._covered[checkpoint] = reached

    def completed(self, oldest_live: CheckpointId | None, check_owner: Callable[[], None]) -> None:
        """A checkpoint was published, and this is the oldest one there is now: what it covers may go.

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
                self._thread = threading.Thread(target=self._work, name="strandline-cleaning", daemon=True)
                self._thread.start()
            self._lock.notify()

    def close(self) -> None:
        """End the thread, soon: what is not done by then is left to the next run."""
        with self._lock:
            self._closing_at = time.monotonic() + _LAST_ROUND_S
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(2 * _LAST_ROUND_S)

    def _entry(self, source: int, file: LoggedFile) -> _Entry | None:
        root = self._sources[source].root
        path = relative_path(root, file.path)
        if path is None:
            log.warning("%s is in the log of the source that reads %s, and is not below it: it stays", file.path, root)
            return None
        return source, path, file.timestamp

    # -- in the thread

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._check_owner is not None or self._closing_at is not None)
                check_owner, self._check_owner = self._check_owner, None
                entries, self._due = self._due, []
            if check_owner is None:
                return
            left = self._clean(entries, check_owner)
            with self._lock:
                self._due = left + self._due

    def _clean(self, entries: list[_Entry], check_owner: Callable[[], None]) -> list[_Entry]:
        """Take files away; return those to be tried again."""
        try:
            # Once is enough: also a driver that takes over from now on finds none but the checkpoints behind them.
            check_owner()
            entries = self._still_there(entries)
        except FencedError:
            return []
        except StrandlineError as error:
            log.warning("source files are taken away after the next checkpoint: %s", error)
            return entries
        failed: list[_Entry] = []
        for at, entry in enumerate(entries):
            if self._is_over() or len(failed) >= _FAILURES:
                # Those that failed last: they must not hold up the others for ever.
                return entries[at:] + failed
            try:
                self._take_away(*entry)
            except StrandlineError as error:
                if not failed:
                    log.warning("a source file stays until after the next checkpoint: %s", error)
                failed.append(entry)
        return failed

    def _still_there(self, entries: Iterable[_Entry]) -> list[_Entry]:
        """Leave out what is long gone, where that can be seen at once."""
        folders: defaultdict[tuple[int, str], list[_Entry]] = defaultdict(list)
        for entry in entries:
            folders[entry[0], PurePosixPath(entry[1]).parent.as_posix()].append(entry)
        found: list[_Entry] = []
        for (source, folder), inside in folders.items():
            if len(inside) >= _LIST_FROM:
                names = self._sources[source].names(folder)
                inside = [entry for entry in inside if PurePosixPath(entry[1]).name in names]
            found += inside
        return found

    def _take_away(self, source: int, path: str, logged_ms: int) -> None:
        files = self._sources[source]
        modified_ms = files.modified_ms(path)
        if modified_ms is None:
            return
        if modified_ms != logged_ms:
            log.warning("%s/%s was changed after it was read: it stays", files.root, path)
        elif not files.take_away(path):
            log.warning("%s/%s stays: the archive has another file of its name", files.root, path)

    def _is_over(self) -> bool:
        return self._closing_at is not None and time.monotonic() > self._closing_at
