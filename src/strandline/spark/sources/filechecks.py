"""Checks of file sources at a start: they read where they did before, and the files that a snapshot needs are there.

Spark checks neither: it reads a directory of another path as new files, and skips files of its log that are gone.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.spark.sources.checks import Relation, numbered_relations
from strandline.spark.sources.files import Cleaning, HadoopSourceFiles, LocalSourceFiles, modified_ms
from strandline.spark.sources.log import (
    LoggedFile,
    UnreadableLogError,
    files_read,
    iterate_paths,
    last_step,
    logged_paths,
    reached_steps,
    with_moved_files,
)

log = logging.getLogger(__name__)

MOVED_FROM = "strandline.moved.from"
"""The source's option that says in which directory its files were before."""
_LIST_FROM = 32
_SHOWN = 5
_GLOB = set("*?[{")


@dataclass(frozen=True, eq=False)
class FileSource:
    """One of the job's sources that reads files."""

    name: str
    number: int
    """Spark's."""
    relation: Relation
    cleaning: Cleaning | None = None
    """What the job does with files that no checkpoint needs."""

    @property
    def moved_from(self) -> str | None:
        """Where the files were before, as the program says."""
        return self.relation.options.get(MOVED_FROM)

    @property
    def text(self) -> str:
        """The source in a message."""
        return f"source '{self.name}'" if self.name else "the source"

    @property
    def goes_on_without(self) -> bool:
        """Whether the program says that files may be gone."""
        return self.relation.options.get("ignoremissingfiles", "false").lower() == "true"

    def reached(self, files: Mapping[str, bytes], batch: int, numbers: Sequence[int]) -> int:
        """Return the last step of its log that was read with a batch; -1: none."""
        return reached_steps(files, batch, [self.number], numbers)[self.number] if batch >= 0 else -1

    def number_in(self, names: Sequence[str]) -> int | None:
        """Return the source's number in a snapshot that has sources of these names; None if it has no such source."""
        if not self.name or not names:
            # The job's only source, or one of several of Spark's under one name.
            return self.number
        return names.index(self.name) if self.name in names else None


@dataclass(frozen=True)
class Move:
    """A move of a source's files from one directory to another, which may be in the first one, or the other way."""

    before: str
    """A URI."""
    now: str

    def applies_to(self, path: str) -> bool:
        """Whether a path is of before the move."""
        is_moved = _is_below(self.now, self.before) and _is_below(path, self.now)
        return _is_below(path, self.before) and not is_moved

    def path(self, path: str) -> str:
        """Return the path that a file has now."""
        return self.now + path.removeprefix(self.before) if self.applies_to(path) else path


@dataclass(frozen=True)
class LaterLog:
    """What a job had read at a checkpoint later than the one that is restored."""

    names: Sequence[str]
    files: Mapping[str, bytes]
    batch: int = -1

    @property
    def partitions(self) -> set[tuple[str, int]]:
        """The partitions of Kafka of which it has rows, of whatever source."""
        lines = self.files.get(f"offsets/{self.batch}", b"").split(b"\n")[2:]
        by_topic = [entry for line in lines if line.startswith(b"{") for entry in json.loads(line).items()]
        return {(topic, int(at)) for topic, offsets in by_topic if isinstance(offsets, dict) for at in offsets}


def file_sources(source: DataFrame, names: Sequence[str], cleanings: Mapping[str, Cleaning | None]) -> list[FileSource]:
    """Return those sources of a job that read files; `cleanings` are by name."""
    relations = numbered_relations(source)
    named = [names[at] if len(names) == len(relations) else "" for at in range(len(relations))]
    return [
        FileSource(name, at, relation, cleanings.get(name))
        for at, (name, relation) in enumerate(zip(named, relations, strict=True))
        if relation is not None and relation.is_files
    ]


def moved_files(spark: SparkSession, sources: Sequence[FileSource], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return Spark's log with the paths that the sources' files have now.

    Raises ConfigurationError for a source that read another directory before, unless the program says that its files
    were moved: Spark would read all of them again.
    """
    found = dict(files)
    for source in sources:
        roots, move = _qualified_roots(spark, source), _move_of(spark, source)
        with _log_of(source):
            if move is not None and all(map(move.applies_to, iterate_paths(files, source.number))):
                found |= with_moved_files(files, source.number, move.before, move.now)
                continue
            if not roots or any(
                _is_below(path, root) for path in iterate_paths(files, source.number) for root in roots
            ):
                continue
            paths = logged_paths(files, source.number)
        if not paths:
            continue
        example = _plain(max(paths))
        # Of a source whose files lie in partitions, as day=1/, the directory above them.
        likely = re.sub("(/[^/=]+=[^/]*)+$", "", posixpath.dirname(example))
        raise ConfigurationError(
            f"{source.text} reads {', '.join(map(_plain, roots))}, and the files that the job has read were elsewhere, "
            f"as {example}: those that were moved or copied would be read a second time, as new ones",
            hint=f"say where the files were before: files_source(…, moved_from={likely!r}), or the "
            f"option '{MOVED_FROM}'; if the directory has new files alone, read both with a pattern, as '{{old,new}}/'",
        )
    return found


def check_files(
    spark: SparkSession,
    sources: Sequence[FileSource],
    files: Mapping[str, bytes],
    batch: int,
    numbers: Sequence[int],
    later: Iterable[LaterLog],
) -> None:
    """Check that all files are there that the sources are to read, as far as Spark's logs name them.

    These are files that Spark had planned to read when the snapshot was taken, and files that a later checkpoint has
    read. Raises ConfigurationError with their names, unless the program says that files may be gone; then it is a
    warning.
    """
    if not sources:
        return
    known = list(later)
    for source in sources:
        move = _move_of(spark, source)
        with _log_of(source):
            reached = source.reached(files, batch, numbers)
        last = last_step(files, source.number)
        needed = {file.path for file in files_read(files, source.number, reached, last)}
        covered = logged_paths(files, source.number) if known else frozenset()
        for each in known:
            if (number := source.number_in(each.names)) is not None:
                read = logged_paths(each.files, number) - covered
                needed |= read if move is None else {path for path in read if move.path(path) not in covered}
        gone = _gone(spark, needed)
        if gone and move is not None:
            # Where they were copied, the job whose snapshot it is may still read them where they were.
            gone = _gone(spark, map(move.path, gone))
        if gone:
            _refuse(source, sorted(map(_plain, gone)))


class ChangedFiles:
    """Warns of local files that were changed after they were read, as logs that grow: what is new is never read.

    It looks at the newest files of each checkpoint, and says it once for each source. A source that the job cleans is
    left out: its cleaner looks at each file.
    """

    def __init__(
        self, sources: Iterable[FileSource], files: Mapping[str, bytes], batch: int, numbers: Sequence[int]
    ) -> None:
        """`files` are Spark's as of a batch, with which the sources begin."""
        self._numbers = numbers
        self._steps = {source: source.reached(files, batch, numbers) for source in sources if source.cleaning is None}

    def captured(self, checkpoint: CheckpointId, batch: int, files: Mapping[str, bytes]) -> None:
        """Look at what was read up to a batch since the last time; `files` are Spark's as of then."""
        for source in list(self._steps):
            try:
                changed = next(filter(_is_changed, self._newly_read(source, files, batch)), None)
            except (UnreadableLogError, LookupError):
                changed = None
                del self._steps[source]
            if changed is not None:
                del self._steps[source]
                log.warning(
                    "%s: %s was changed after it was read: what is new in it is not read; files must appear in one "
                    "step, as by a rename, and keep their content", source.text, _plain(changed.path),
                )  # fmt: skip

    def _newly_read(self, source: FileSource, files: Mapping[str, bytes], batch: int) -> list[LoggedFile]:
        before, self._steps[source] = self._steps[source], source.reached(files, batch, self._numbers)
        return list(files_read(files, source.number, before, self._steps[source]))[-_LIST_FROM:]


def _is_changed(file: LoggedFile) -> bool:
    path = Path(_plain(file.path))
    try:
        return path.is_absolute() and modified_ms(path) not in (file.timestamp, None)
    except UnavailableError:
        return False


@contextmanager
def _log_of(source: FileSource) -> Iterator[None]:
    """Refuse a source that read no files when the snapshot was taken: what Spark logged is of something else."""
    try:
        yield
    except UnreadableLogError as error:
        raise ConfigurationError(
            f"{source.text} reads {source.relation.provider} files, and what the job has read there was something "
            f"else: {error}",
            hint="where a source goes on is known only for the kind of source that it was: read what it read before, "
            "or start a new job",
        ) from None


def _refuse(source: FileSource, gone: Sequence[str]) -> None:
    more = f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
    what = (
        f"{source.text}: {'1 file is' if len(gone) == 1 else f'{len(gone)} files are'} gone that the job would read "
        f"from here on: {', '.join(gone[:_SHOWN])}{more}"
    )
    if source.goes_on_without:
        log.warning("%s. The job goes on without them, as ignoreMissingFiles=true says", what)
        return
    moved_to = source.cleaning.archive if source.cleaning is not None else None
    archive = f" (the job has moved files that it had read into {moved_to})" if moved_to else ""
    raise ConfigurationError(
        what,
        hint=f"bring them back to where they were{archive}, or restore a newer checkpoint or savepoint; to lose their "
        "rows and go on, start the job once with the source's option ignoreMissingFiles=true",
    )


def _gone(spark: SparkSession, uris: Iterable[str]) -> list[str]:
    """Return those files that are not there."""
    folders: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for uri in uris:
        folder, _, name = uri.rpartition("/")
        folders[folder][unquote(name)] = uri
    found: list[str] = []
    for folder, names in folders.items():
        where = _plain(folder)
        files = LocalSourceFiles(Path(where), None) if where.startswith("/") else HadoopSourceFiles(spark, where, None)
        if len(names) >= _LIST_FROM:
            there = files.names("")
            found += [uri for name, uri in names.items() if name not in there]
        else:
            found += [uri for name, uri in names.items() if files.modified_ms(name) is None]
    return found


def _qualified_roots(spark: SparkSession, source: FileSource) -> list[str]:
    """Return the directory that a source reads; of a pattern, the one above all that may match it."""
    path = source.relation.options.get("path")
    if path is None:
        return []
    parts = path.split("/")
    plain = next((at for at, part in enumerate(parts) if _GLOB & set(part)), len(parts))
    return [qualified(spark, "/".join(parts[:plain]) or "/")]


def qualified(spark: SparkSession, path: str) -> str:
    """Return the URI of a directory as Spark's log writes it."""
    jvm: Any = spark._jvm
    where = jvm.org.apache.hadoop.fs.Path(path)
    file_system = where.getFileSystem(spark._jsc.hadoopConfiguration())
    uri: str = file_system.makeQualified(where).toUri().toString().rstrip("/")
    return re.sub("^file:/(?!/)", "file:///", uri)


def _move_of(spark: SparkSession, source: FileSource) -> Move | None:
    roots = _qualified_roots(spark, source) if source.moved_from is not None else []
    return Move(qualified(spark, source.moved_from), roots[0]) if source.moved_from is not None and roots else None


def _is_below(uri: str, root: str) -> bool:
    return uri.startswith(f"{root}/")


def _plain(uri: str) -> str:
    """Return the path of a local file, or the URI of another one, as people write it."""
    return unquote(uri.removeprefix("file://"))
