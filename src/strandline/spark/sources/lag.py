"""Measures the lag of a job's sources, for its status alone: the job does not depend on it."""

from __future__ import annotations

import fnmatch
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strandline.control.status import SourceStatus
from strandline.spark.base.filesystem import open_filesystem
from strandline.spark.sources.checks import numbered_relations
from strandline.spark.sources.filechecks import FileSource
from strandline.spark.sources.log import UnreadableLogError, files_read

_MIN_PAUSE_S = 1.0
_PAUSE_FACTOR = 20
"""The pause after a measurement, as a multiple of its duration."""
_WAIT_S = 3.0
"""The longest wait of a status for a measurement."""
_UNSUPPORTED_OPTIONS = {"recursivefilelookup", "filenameonly"}
"""Options with which Spark selects other files, or compares other names."""
_GLOB = set("*?[{")


class SourceLag:
    """Measures the lag of one attempt's sources, on request, in a thread."""

    def __init__(
        self,
        spark: SparkSession,
        source: DataFrame,
        names: Sequence[str],
        file_sources: Sequence[FileSource],
        directory: Path,
        batch: Callable[[], int],
    ) -> None:
        """`directory` is Spark's checkpoint directory of this attempt; `batch` returns the last completed batch."""
        count, log = len(numbered_relations(source)), _LogFiles(directory)
        self._names = names if len(names) == count else [""] * count
        self._batch = batch
        self._files = {each.number: _WaitingFiles.of(spark, each, log) for each in file_sources}
        self._statuses: list[SourceStatus] = []
        self._thread: threading.Thread | None = None
        self._next_s = 0.0
        self._lock = threading.Lock()

    def look(self, query: StreamingQuery) -> list[SourceStatus]:
        """Return the last measurement of each source; none before the first one is complete, as with slow storage."""
        with self._lock:
            if self._thread is None and time.monotonic() >= self._next_s:
                self._thread = threading.Thread(
                    target=self._measure, args=(query,), name="strandline-sources", daemon=True
                )
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(_WAIT_S)
        return self._statuses

    def _measure(self, query: StreamingQuery) -> None:
        start = time.monotonic()
        try:
            # A query that is stopping raises many kinds of errors.
            with suppress(Exception):
                self._statuses = self._of_query(query)
        finally:
            end = time.monotonic()
            with self._lock:
                self._thread = None
                self._next_s = end + max(_MIN_PAUSE_S, _PAUSE_FACTOR * (end - start))

    def _of_query(self, query: StreamingQuery) -> list[SourceStatus]:
        progress = query.lastProgress
        sources: list[Mapping[str, Any]] = json.loads(progress.json)["sources"] if progress else []
        batch = self._batch()
        return [
            self._of_source(name, sources[at] if at < len(sources) else {}, self._files.get(at), batch)
            for at, name in enumerate(self._names)
        ]

    def _of_source(
        self, name: str, progress: Mapping[str, Any], files: _WaitingFiles | None, batch: int
    ) -> SourceStatus:
        read_to, latest = progress.get("endOffset"), progress.get("latestOffset")
        description = str(progress.get("description", ""))
        status = SourceStatus(name, description, read_to, latest, offsets_behind(read_to, latest))
        if files is None:
            return status
        status = replace(status, what=files.what, offsets_behind=None)
        try:
            count, size_bytes, oldest_ms = files.count(batch)
        except (OSError, UnreadableLogError, KeyError):
            return status
        waiting_ms = 0 if oldest_ms is None else max(0, round(time.time() * 1000) - oldest_ms)
        return replace(status, files_behind=count, bytes_behind=size_bytes, waiting_ms=waiting_ms)


def offsets_behind(read_to: Any, latest: Any) -> int | None:
    """Return the difference of two offsets of a source; None if they are neither numbers nor dicts of numbers.

    Kafka's offsets are by topic and partition: `{"clicks": {"0": 17, "1": 4}}`.
    """
    if isinstance(read_to, bool) or isinstance(latest, bool):
        return None
    if isinstance(read_to, int) and isinstance(latest, int):
        return max(0, latest - read_to)
    if not isinstance(latest, dict) or not isinstance(read_to, dict | None):
        return None
    # No offset of a new partition has been read.
    before = read_to or {}
    parts = [offsets_behind(before.get(name, 0 if isinstance(at, int) else None), at) for name, at in latest.items()]
    return None if not parts or None in parts else sum(part or 0 for part in parts)


class _WaitingFiles:
    """Files of a source that no epoch has processed. Used by one thread at a time."""

    def __init__(self, source: FileSource, root: Path, log: Mapping[str, bytes]) -> None:
        self.what = f"{source.relation.provider} files in {root}"
        self._source = source
        self._root = root
        self._glob = source.relation.options.get("pathglobfilter", "*")
        self._log = log
        self._step = -1
        self._read: set[str] = set()

    @classmethod
    def of(cls, spark: SparkSession, source: FileSource, log: Mapping[str, bytes]) -> _WaitingFiles | None:
        """Return the files of a source that reads a local directory; None for patterns and some options."""
        path = source.relation.options.get("path", "")
        if not path or _GLOB & set(path) or _UNSUPPORTED_OPTIONS & source.relation.options.keys():
            return None
        root = open_filesystem(spark, path).local("")
        if root is None or (root / "_spark_metadata").exists():
            return None
        return cls(source, Path(os.path.normpath(root)), log)

    def count(self, batch: int) -> tuple[int, int, int | None]:
        """Return count and size of the files after a batch, and the modification time of the oldest one."""
        self._catch_up(batch)
        count = size_bytes = 0
        oldest_ms: int | None = None
        for entry in _entries(self._root, self._glob):
            if entry.path not in self._read:
                with suppress(FileNotFoundError):
                    stat = entry.stat()
                    count, size_bytes = count + 1, size_bytes + stat.st_size
                    written_ms = stat.st_mtime_ns // 1_000_000
                    oldest_ms = written_ms if oldest_ms is None else min(oldest_ms, written_ms)
        return count, size_bytes, oldest_ms

    def _catch_up(self, batch: int) -> None:
        """Add the files that were read since the last call, from the end of the log."""
        step = self._source.reached(self._log, batch)
        if step > self._step:
            read = files_read(self._log, self._source.number, self._step, step)
            self._read.update(unquote(urlsplit(file.path).path) for file in read)
            self._step = step


class _LogFiles(Mapping[str, bytes]):
    """Spark's log as `log.py` reads it, which reads each file on access."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __getitem__(self, name: str) -> bytes:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        for path in self._directory.glob("sources/*/*"):
            if not path.name.startswith("."):
                yield path.relative_to(self._directory).as_posix()

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _entries(directory: Path, glob: str) -> Iterator[os.DirEntry[str]]:
    """Yield the files that Spark reads, in the directory and in partition directories below, as `day=1`."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if _is_hidden(entry.name):
                continue
            if entry.is_dir():
                if "=" in entry.name:
                    yield from _entries(Path(entry.path), glob)
            elif fnmatch.fnmatchcase(entry.name, glob):
                yield entry


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
