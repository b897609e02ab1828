"""Checks file sources at a start: they read the same directory as before, and the files of a snapshot exist.

Spark checks neither: it takes the files of another directory for new ones, and skips logged files that are missing. So
the files of each epoch are checked, too.
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
from strandline.spark.sources.checks import Relation, leaves_of, numbered_relations, source_numbers
from strandline.spark.sources.files import Cleaning, HadoopSourceFiles, LocalSourceFiles, modified_ms
from strandline.spark.sources.log import (
    LoggedFile,
    UnreadableLogError,
    files_read,
    iterate_paths,
    last_step,
    logged_paths,
    offset_lines,
    reached_steps,
    uncompacted_steps,
    with_moved_files,
)

log = logging.getLogger(__name__)

MOVED_FROM = "strandline.moved.from"
"""The source's option for the directory from which its files were moved."""
_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"
_LIST_FROM = 32
_MAX_NAMES = 5
_GLOB = set("*?[{")


@dataclass(frozen=True, eq=False)
class FileSource:
    """A source of the job that reads files."""

    name: str
    number: int
    """Spark's number of the source."""
    relation: Relation
    cleaning: Cleaning | None = None
    """The policy for files that no checkpoint needs."""
    numbers: Sequence[int] = ()
    """Spark's numbers of all sources, by line of its log: see `log.py`."""

    @property
    def moved_from(self) -> str | None:
        """The directory from which the files were moved, by the program's option."""
        return self.relation.options.get(MOVED_FROM)

    @property
    def text(self) -> str:
        """The source's name in messages."""
        return f"source '{self.name}'" if self.name else "the source"

    @property
    def ignores_missing(self) -> bool:
        """Whether the program's options allow missing files."""
        return self.relation.options.get("ignoremissingfiles", "false").lower() == "true"

    def reached(self, files: Mapping[str, bytes], batch: int) -> int:
        """Return the last step of its log after a batch; -1 if there is none."""
        return reached_steps(files, batch, [self.number], self.numbers)[self.number] if batch >= 0 else -1

    def number_in(self, names: Sequence[str]) -> int | None:
        """Return the source's number in a snapshot with sources of these names; None if it has no such source."""
        if not self.name or not names:
            # The job's only source, or one of several of Spark's sources under one name.
            return self.number
        return names.index(self.name) if self.name in names else None


@dataclass(frozen=True)
class Move:
    """A move of a source's files to another directory; one of the two directories may be below the other."""

    before: str
    """A URI."""
    now: str

    def applies_to(self, path: str) -> bool:
        """Whether a path is the old path of a file."""
        is_moved = _is_below(self.now, self.before) and _is_below(path, self.now)
        return _is_below(path, self.before) and not is_moved

    def path(self, path: str) -> str:
        """Return the new path of a file."""
        return self.now + path.removeprefix(self.before) if self.applies_to(path) else path


@dataclass(frozen=True)
class LaterLog:
    """Spark's log of a checkpoint later than the one that is restored."""

    names: Sequence[str]
    files: Mapping[str, bytes]
    batch: int = -1

    @property
    def partitions(self) -> set[tuple[str, int]]:
        """The partitions of Kafka with offsets in it, of all sources."""
        lines = offset_lines(self.files, self.batch)
        by_topic = [entry for line in lines if line.startswith(b"{") for entry in json.loads(line).items()]
        named = ((topic, at) for topic, offsets in by_topic if isinstance(offsets, dict) for at in offsets)
        # Other sources, as Kinesis, have names there.
        return {(topic, int(at)) for topic, at in named if at.isdecimal()}


def file_sources(
    source: DataFrame, names: Sequence[str], cleanings: Iterable[tuple[DataFrame, Cleaning]]
) -> list[FileSource]:
    """Return the file sources of a job; `cleanings` are for DataFrames of one source each."""
    relations, numbers = numbered_relations(source), source_numbers(source)
    cleaned = [(leaf, cleaning) for df, cleaning in cleanings for leaf in leaves_of(df)]
    by_number = {
        at: cleaning for at, each in enumerate(leaves_of(source)) for leaf, cleaning in cleaned if leaf.equals(each)
    }
    all_names = names if len(names) == len(relations) else [""] * len(relations)
    return [
        FileSource(name, at, relation, by_number.get(at), numbers)
        for at, (name, relation) in enumerate(zip(all_names, relations, strict=True))
        if relation is not None and relation.is_files
    ]


def moved_files(spark: SparkSession, sources: Sequence[FileSource], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return Spark's log with the new paths of files that were moved.

    Raises ConfigurationError for a source that read another directory before, unless the program's option says that its
    files were moved: Spark would read all of them again.
    """
    updated = dict(files)
    for source in sources:
        roots, move = _qualified_roots(spark, source), _move_of(spark, source)
        with _log_of(source):
            # In a directory that the source still reads, files may be later ones: either all were moved, or none.
            applies = all if move is not None and _is_below(move.before, move.now) else any
            if move is not None and applies(map(move.applies_to, iterate_paths(files, source.number))):
                updated |= with_moved_files(files, source.number, move.path)
                continue
            if not roots or any(
                _is_below(path, root) for path in iterate_paths(files, source.number) for root in roots
            ):
                continue
            paths = logged_paths(files, source.number)
        if not paths:
            continue
        example = _plain(max(paths))
        # Without partition directories, as day=1/.
        likely = re.sub("(/[^/=]+=[^/]*)+$", "", posixpath.dirname(example))
        raise ConfigurationError(
            f"{source.text} reads {', '.join(map(_plain, roots))}, but the job has read files of another directory, as "
            f"{example}: files that were moved or copied would be read a second time, as new ones",
            hint=f"name the old directory: files_source(…, moved_from={likely!r}), or the option '{MOVED_FROM}'; if "
            "the directory has only new files, read both with a pattern, as '{old,new}/'",
        )
    return updated


def check_files(
    spark: SparkSession,
    sources: Sequence[FileSource],
    files: Mapping[str, bytes],
    batch: int,
    later: Iterable[LaterLog],
) -> None:
    """Check that the files exist that the sources will read, as far as Spark's logs list them.

    These are files that Spark had planned when the snapshot was taken, and files that a later checkpoint has read.
    Raises ConfigurationError with the names of missing files; logs a warning if the program's options allow them.
    """
    if not sources:
        return
    later = list(later)
    for source in sources:
        move = _move_of(spark, source)
        with _log_of(source):
            reached = source.reached(files, batch)
        last = last_step(files, source.number)
        needed = {file.path for file in files_read(files, source.number, reached, last)}
        covered = logged_paths(files, source.number) if later else frozenset()
        for each in later:
            if (number := source.number_in(each.names)) is not None:
                read = logged_paths(each.files, number) - covered
                needed |= read if move is None else {path for path in read if move.path(path) not in covered}
        missing = missing_files(spark, needed)
        if missing and move is not None:
            # After a copy, the job of the snapshot may still read the old paths.
            missing = missing_files(spark, map(move.path, missing))
        if missing:
            _report_missing(source, sorted(map(_plain, missing)))


def check_interval(spark: SparkSession, sources: Iterable[FileSource], files: Mapping[str, bytes]) -> None:
    """Raise ConfigurationError if Spark would look for a compacted list of steps that it had no reason to write."""
    for source in sources:
        steps, interval = uncompacted_steps(files, source.number), int(spark.conf.get(_INTERVAL) or 10)
        if steps >= interval:
            raise ConfigurationError(
                f"{source.text}: {_INTERVAL} is {interval}, and was more before: Spark has written {steps} lists of "
                "files, would look for a compacted one, and there is none yet",
                hint=f"set it to {steps + 1} or more",
            )


def check_planned(spark: SparkSession, source: FileSource, planned: Iterable[LoggedFile]) -> None:
    """Raise UnavailableError if local files of the next epoch are missing, as those of a disk that is not mounted.

    Spark plans from a listing that it made up to hundreds of epochs before. The job restarts, and Spark lists again.
    """
    paths = [] if source.ignores_missing else [file.path for file in planned if file.path.startswith("file:")]
    if missing := sorted(map(_plain, missing_files(spark, paths))):
        raise UnavailableError(
            f"{source.text}: {len(missing)} of {len(paths)} files of the next epoch are missing, and Spark would skip "
            f"them: {', '.join(missing[:_MAX_NAMES])}",
            hint="the job restarts from its last checkpoint, and reads what is there then: bring the files back",
        )


class ChangedFiles:
    """Warns of local files that were changed after they were read, as growing logs: Spark never reads the new content.

    It checks the newest files of each checkpoint, and warns once for each source. It skips sources that the job cleans:
    their cleaner checks each file.
    """

    def __init__(self, sources: Iterable[FileSource], files: Mapping[str, bytes], batch: int) -> None:
        """`files` is Spark's log as of `batch`, the last one before the start."""
        self._steps = {source: source.reached(files, batch) for source in sources if source.cleaning is None}

    def captured(self, checkpoint: CheckpointId, batch: int, files: Mapping[str, bytes]) -> None:
        """Check the files that were read up to a batch since the last call; `files` is Spark's log of that time."""
        for source in list(self._steps):
            try:
                changed = next(filter(is_changed, self._newly_read(source, files, batch)), None)
            except (UnreadableLogError, LookupError):
                changed = None
                del self._steps[source]
            if changed is not None:
                del self._steps[source]
                log.warning(
                    "%s: %s was changed after it was read: its new content is not read; files must appear in one "
                    "step, as by a rename, and keep their content", source.text, _plain(changed.path),
                )  # fmt: skip

    def _newly_read(self, source: FileSource, files: Mapping[str, bytes], batch: int) -> list[LoggedFile]:
        before, self._steps[source] = self._steps[source], source.reached(files, batch)
        return list(files_read(files, source.number, before, self._steps[source]))[-_LIST_FROM:]


def is_changed(file: LoggedFile) -> bool:
    """Whether a local file exists and was changed after it was read."""
    path = Path(_plain(file.path))
    try:
        return path.is_absolute() and modified_ms(path) not in (file.timestamp, None)
    except UnavailableError:
        return False


@contextmanager
def _log_of(source: FileSource) -> Iterator[None]:
    """Raise ConfigurationError if Spark's log is not that of a file source: it was another kind of source before."""
    try:
        yield
    except UnreadableLogError as error:
        raise ConfigurationError(
            f"{source.text} reads {source.relation.provider} files, but was another kind of source in the snapshot: "
            f"{error}",
            hint="a position is valid only for the same kind of source: read what it read before, or start a new job",
        ) from None


def _report_missing(source: FileSource, paths: Sequence[str]) -> None:
    more = f" and {len(paths) - _MAX_NAMES} more" if len(paths) > _MAX_NAMES else ""
    message = (
        f"{source.text}: {'1 file is' if len(paths) == 1 else f'{len(paths)} files are'} missing that the job must "
        f"read after this point: {', '.join(paths[:_MAX_NAMES])}{more}"
    )
    if source.ignores_missing:
        log.warning("%s. The job continues without them, because of ignoreMissingFiles=true", message)
        return
    archive_dir = source.cleaning.archive if source.cleaning is not None else None
    archive = f" (the job has moved files that it had read to {archive_dir})" if archive_dir else ""
    raise ConfigurationError(
        message,
        hint=f"move them back{archive}, or restore a newer checkpoint or savepoint; to lose their rows and continue, "
        "start the job once with the source's option ignoreMissingFiles=true",
        may_pass=True,
    )


def missing_files(spark: SparkSession, uris: Iterable[str]) -> list[str]:
    """Return the files that do not exist."""
    folders: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for uri in uris:
        folder, _, name = uri.rpartition("/")
        folders[folder][unquote(name)] = uri
    missing: list[str] = []
    for folder, names in folders.items():
        where = _plain(folder)
        files = LocalSourceFiles(Path(where), None) if where.startswith("/") else HadoopSourceFiles(spark, where, None)
        if len(names) >= _LIST_FROM:
            existing = files.names("")
            missing += [uri for name, uri in names.items() if name not in existing]
        else:
            missing += [uri for name, uri in names.items() if files.modified_ms(name) is None]
    return missing


def _qualified_roots(spark: SparkSession, source: FileSource) -> list[str]:
    """Return the directory that a source reads; for a pattern, the directory above all matches."""
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
    """Return the path of a local file, or the unquoted URI of another one, for messages."""
    return unquote(uri.removeprefix("file://"))
