"""How far a job's sources were read, and what waits there: for people to look at, and for nothing else."""

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
from strandline.spark.sources.checks import Relation, numbered_relations, source_numbers
from strandline.spark.sources.log import UnreadableLogError, files_read, reached_steps

_LEAST_PAUSE_S = 1.0
_PAUSES = 20
"""A look is taken again only after so many times as long as it took."""
_PATIENCE_S = 3.0
"""How long a status waits for it."""
_NOT_COUNTED = {"recursivefilelookup", "filenameonly"}
"""Options with which Spark goes by other files, or by other names."""
_GLOB = set("*?[{")


class SourceLag:
    """Looks at the sources of one attempt, when it is asked to."""

    def __init__(
        self, spark: SparkSession, source: DataFrame, names: Sequence[str], directory: Path, batch: Callable[[], int]
    ) -> None:
        """`directory` is Spark's own, of this attempt; `batch` gives the last batch that was processed."""
        self._names = names
        self._batch = batch
        relations = numbered_relations(source)
        log = _LogFiles(directory), source_numbers(source)
        self._files = [_WaitingFiles.of(spark, relation, at, *log) for at, relation in enumerate(relations)]
        self._found: list[SourceStatus] = []
        self._looking: threading.Thread | None = None
        self._again_s = 0.0
        self._lock = threading.Lock()

    def look(self, query: StreamingQuery) -> list[SourceStatus]:
        """Return how far each source is, as of moments ago; empty while nothing is known, as when storage is slow."""
        with self._lock:
            if self._looking is None and time.monotonic() >= self._again_s:
                self._looking = threading.Thread(
                    target=self._look, args=(query,), name="strandline-sources", daemon=True
                )
                self._looking.start()
            looking = self._looking
        if looking is not None:
            looking.join(_PATIENCE_S)
        return self._found

    def _look(self, query: StreamingQuery) -> None:
        began = time.monotonic()
        try:
            # A query that is being stopped answers with all kinds of errors.
            with suppress(Exception):
                self._found = self._of_query(query)
        finally:
            ended = time.monotonic()
            with self._lock:
                self._looking = None
                self._again_s = ended + max(_LEAST_PAUSE_S, _PAUSES * (ended - began))

    def _of_query(self, query: StreamingQuery) -> list[SourceStatus]:
        progress = query.lastProgress
        said: list[Mapping[str, Any]] = json.loads(progress.json)["sources"] if progress else []
        names = self._names if len(self._names) == len(self._files) else [""] * len(self._files)
        batch = self._batch()
        return [
            self._of_source(name, said[at] if at < len(said) else {}, files, batch)
            for at, (name, files) in enumerate(zip(names, self._files, strict=True))
        ]

    def _of_source(self, name: str, said: Mapping[str, Any], files: _WaitingFiles | None, batch: int) -> SourceStatus:
        read_to, latest = said.get("endOffset"), said.get("latestOffset")
        found = SourceStatus(name, str(said.get("description", "")), read_to, latest, offsets_behind(read_to, latest))
        if files is None:
            return found
        found = replace(found, what=files.what, offsets_behind=None)
        try:
            count, size_bytes, oldest_ms = files.count(batch)
        except (OSError, UnreadableLogError, KeyError):
            return found
        waiting_ms = 0 if oldest_ms is None else max(0, round(time.time() * 1000) - oldest_ms)
        return replace(found, files_behind=count, bytes_behind=size_bytes, waiting_ms=waiting_ms)


def offsets_behind(read_to: Any, latest: Any) -> int | None:
    """Return how many offsets are between two of a source; None if they are no numbers, by themselves or by name.

    Kafka's are by topic and partition: `{"clicks": {"0": 17, "1": 4}}`.
    """
    if isinstance(read_to, bool) or isinstance(latest, bool):
        return None
    if isinstance(read_to, int) and isinstance(latest, int):
        return max(0, latest - read_to)
    if not isinstance(latest, dict) or not isinstance(read_to, dict | None):
        return None
    # A partition that is new there has not been read at all.
    before = read_to or {}
    parts = [offsets_behind(before.get(name, 0 if isinstance(at, int) else None), at) for name, at in latest.items()]
    return None if not parts or None in parts else sum(part or 0 for part in parts)


class _WaitingFiles:
    """Files of a source of Spark's that no epoch has processed. Read by one thread at a time."""

    def __init__(
        self, root: Path, glob: str, what: str, number: int, log: Mapping[str, bytes], numbers: Sequence[int]
    ) -> None:
        self.what = what
        self._root = root
        self._glob = glob
        self._number = number
        self._log = log
        self._numbers = numbers
        self._step = -1
        self._read: set[str] = set()

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        relation: Relation | None,
        number: int,
        log: Mapping[str, bytes],
        numbers: Sequence[int],
    ) -> _WaitingFiles | None:
        """Return the files of a source that has some, in a directory of this machine, and goes by them as usual."""
        if relation is None or not relation.is_files or _NOT_COUNTED & relation.options.keys():
            return None
        path = relation.options.get("path", "")
        if not path or _GLOB & set(path):
            return None
        root = open_filesystem(spark, path).local("")
        if root is None or (root / "_spark_metadata").exists():
            return None
        root = Path(os.path.normpath(root))
        glob = relation.options.get("pathglobfilter", "*")
        return cls(root, glob, f"{relation.provider} files in {root}", number, log, numbers)

    def count(self, batch: int) -> tuple[int, int, int | None]:
        """Return how many there are, their size, and when the oldest was written; all but those of older batches."""
        self._catch_up(batch)
        count = size_bytes = 0
        oldest_ms: int | None = None
        for entry in _listed(self._root, self._glob):
            if entry.path not in self._read:
                with suppress(FileNotFoundError):
                    stat = entry.stat()
                    count, size_bytes = count + 1, size_bytes + stat.st_size
                    written_ms = stat.st_mtime_ns // 1_000_000
                    oldest_ms = written_ms if oldest_ms is None else min(oldest_ms, written_ms)
        return count, size_bytes, oldest_ms

    def _catch_up(self, batch: int) -> None:
        """Learn which files were read since the last time: of a long history, only the newest."""
        if batch < 0:
            return
        step = reached_steps(self._log, batch, [self._number], self._numbers)[self._number]
        if step > self._step:
            read = files_read(self._log, self._number, self._step, step)
            self._read.update(unquote(urlsplit(file.path).path) for file in read)
            self._step = step


class _LogFiles(Mapping[str, bytes]):
    """Spark's log as `log.py` reads it: a file is read when it is asked for."""

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


def _listed(directory: Path, glob: str) -> Iterator[os.DirEntry[str]]:
    """Yield the files that Spark reads: in the directory, and in those below that are partitions, as `day=1`."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if _is_hidden(entry.name):
                continue
            if entry.is_dir():
                if "=" in entry.name:
                    yield from _listed(Path(entry.path), glob)
            elif fnmatch.fnmatchcase(entry.name, glob):
                yield entry


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")
