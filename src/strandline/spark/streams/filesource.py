"""The source of files, whose files the job can delete or archive once no checkpoint can need them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from strandline.api.badrecords import OnError, Then
from strandline.core.errors import ConfigurationError
from strandline.snapshot.opening.snapshot import plain_url
from strandline.spark.base.ddl import first_line
from strandline.spark.base.filesystem import absolute
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.session import check_session
from strandline.spark.sinks.base import Sink
from strandline.spark.sinks.files import FileSink
from strandline.spark.sources.checks import relations_of
from strandline.spark.sources.filechecks import MOVED_FROM
from strandline.spark.sources.files import Cleaning
from strandline.spark.streams.frames import FrameSource
from strandline.spark.streams.malformed import check_malformed, with_corrupt_column
from strandline.spark.streams.stream import Stream, source_stream

_GLOB = set("*?[{")
_ANY_AGE = "36500d"
"""Spark silently ignores files that are more than a week older than the newest: also all files that come after one
with a time in the future."""


def files_source(
    path: str | Path,
    *,
    schema: str | StructType,
    format: str = "json",
    spark: SparkSession | None = None,
    name: str | None = None,
    clean: Literal["delete", "archive"] | None = None,
    archive_dir: str | Path | None = None,
    max_files_per_epoch: int | None = None,
    moved_from: str | Path | None = None,
    on_error: OnError | Then | None = None,
    **options: Any,
) -> Stream:
    """Begin a pipeline with the files of a directory, in any format that Spark streams; `options` are Spark's.

    With `clean`, the job deletes files, or moves them into `archive_dir` with their path below the source's directory,
    once a checkpoint covers them and no older checkpoint that is kept needs them. It keeps files that have changed
    since they were read, and never overwrites a file of the archive. No other program may read the directory, and a
    file name must not be reused. If storage fails, the job retries after the next checkpoint; it does not wait.

    Files of any age are read, unless the option `maxFileAge` sets a limit.

    `moved_from` is the directory from which the files were moved or copied to `path`, with their paths below it: files
    that the job has read there count as read. Without it, start() refuses a source that reads another directory than
    before.

    `on_error` is the policy for malformed rows of JSON, CSV and XML: "fail", "dead-letter", or an `sl.OnError`; see
    `dead_letters`. Without it, Spark's `mode` applies: by default, values that do not fit are null.

    >>> payments = files_source("in/", schema="customer string, amount bigint", clean="delete", name="payments")
    """
    spark = spark or SparkSession.getActiveSession()
    if spark is None:
        raise ConfigurationError("files_source() found no Spark session", hint="create one first: strandline.session()")
    check_session(spark)
    directory = absolute(path)
    cleaning = _cleaning(spark, directory, clean, archive_dir)
    if max_files_per_epoch is not None:
        if not isinstance(max_files_per_epoch, int) or max_files_per_epoch < 1:
            raise ConfigurationError(f"max_files_per_epoch is {max_files_per_epoch!r}, expected 1 or more, or None")
        options["maxFilesPerTrigger"] = max_files_per_epoch
    if "maxfileage" not in map(str.lower, options):
        options["maxFileAge"] = _ANY_AGE
    if moved_from is not None:
        options[MOVED_FROM] = absolute(moved_from)
    try:
        with suppress_error_logs():
            if on_error is not None:
                check_malformed("files_source()", on_error)
                schema = with_corrupt_column(spark, format, schema, options)
            df = spark.readStream.format(format).schema(schema).options(**options).load(directory)
    except PySparkException as error:
        raise ConfigurationError(
            f"files_source() cannot read {directory} as {format}: {first_line(error)}",
            hint="the directory must exist, and Spark must support the format and the schema",
        ) from None
    if not all(relation.is_files for relation in relations_of(df)):
        raise ConfigurationError(
            f"files_source(): '{format}' is not a file format", hint="read it with spark.readStream and stream(df)"
        )
    return source_stream(df, name, cleaning, on_error)


def check_not_shared(nodes: Sequence[FrameSource]) -> None:
    """Raise ConfigurationError if a source reads a directory whose files another source removes."""
    for node in nodes:
        if node.cleaning is None:
            continue
        cleaned = PurePosixPath(_plain(node.cleaning.path))
        for other in nodes:
            for path in _directories(other.df) if other is not node else ():
                if path.is_relative_to(cleaned) or cleaned.is_relative_to(path):
                    raise ConfigurationError(
                        f"the job reads {path} with one source, and another source removes the files in {cleaned}",
                        hint="begin both pipelines with one files_source(), or leave clean= out",
                    )


def check_disjoint(nodes: Sequence[FrameSource], sinks: Sequence[Sink], directory: str) -> None:
    """Raise ConfigurationError for sinks that write where the job reads or has its checkpoints, or in two formats."""
    files = [sink for sink in sinks if isinstance(sink, FileSink)]
    formats: dict[str, str] = {}
    for sink in files:
        path = _plain(sink.path)
        if PurePosixPath(plain_url(sink.path)).is_relative_to(directory):
            raise ConfigurationError(
                f"a sink writes to {sink.path}, in the job's own directory, {directory}: it is for checkpoints alone",
                hint="give the sink a directory outside of it",
            )
        if formats.setdefault(path, sink.format) != sink.format:
            raise ConfigurationError(
                f"two sinks write to {sink.path}, as {formats[path]} and as {sink.format}: no reader reads both",
                hint="give each sink another directory",
            )
        for node in nodes:
            for read in _directories(node.df, patterns=False):
                if PurePosixPath(path).is_relative_to(read):
                    raise ConfigurationError(
                        f"a sink writes to {sink.path}, and the job reads {read}: it would read its own results",
                        hint="give the sink a directory outside of the source's",
                    )


def _cleaning(spark: SparkSession, path: str, clean: str | None, archive_dir: str | Path | None) -> Cleaning | None:
    if clean not in (None, "delete", "archive"):
        raise ConfigurationError(f"files_source() was given clean={clean!r}, expected 'delete', 'archive' or None")
    if (clean == "archive") != (archive_dir is not None):
        raise ConfigurationError(
            f"files_source() was given clean={clean!r} and archive_dir={archive_dir!r}",
            hint='set both clean="archive" and archive_dir="…", or neither',
        )
    if clean is None:
        return None
    if _GLOB & set(path):
        raise ConfigurationError(
            f"files_source() was given clean={clean!r} and the pattern {path}, expected a directory",
            hint="pass the directory: Spark also reads the partition directories below it, as day=1/",
        )
    if archive_dir is None:
        return Cleaning(path)
    archive = absolute(archive_dir)
    _check_archive(spark, path, archive)
    return Cleaning(path, archive)


def _check_archive(spark: SparkSession, path: str, archive: str) -> None:
    file_system, source, target = _file_system(spark, path), Path(_plain(path)), Path(_plain(archive))
    is_other = file_system != _file_system(spark, archive)
    if not is_other and file_system.startswith("file:"):
        source, target = source.resolve(), target.resolve()
        is_other = source.exists() and source.stat().st_dev != _existing(target).stat().st_dev
    if is_other:
        raise ConfigurationError(
            f"files_source(): archive_dir {archive} is on another file system than {path}: files cannot be renamed "
            "into it",
            hint="choose a directory on the same file system",
        )
    if target.is_relative_to(source):
        raise ConfigurationError(
            f"files_source(): archive_dir {archive} is in the directory {path}, and would be read again",
            hint="choose a directory outside of it",
        )


def _file_system(spark: SparkSession, path: str) -> str:
    scheme, host, *_ = urlsplit(path)
    default: str = spark._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return f"{scheme}://{host}" if scheme else "file://" if default.startswith("file:") else default.rstrip("/")


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())


def _directories(df: DataFrame, *, patterns: bool = True) -> Iterator[PurePosixPath]:
    """Yield the directories that a DataFrame reads; for a pattern, the directory above all matches."""
    for relation in relations_of(df):
        if relation.is_files and "path" in relation.options:
            parts = PurePosixPath(_plain(absolute(relation.options["path"]))).parts
            plain = next((at for at, part in enumerate(parts) if _GLOB & set(part)), len(parts))
            if patterns or plain == len(parts):
                yield PurePosixPath(*parts[:plain])


def _plain(path: str) -> str:
    """Return a path without scheme and host."""
    parsed = urlsplit(path)
    return os.path.normpath(unquote(parsed.path) if parsed.scheme else path)
