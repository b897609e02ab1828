"""Input of recorded epochs, read again: Spark runs the job's own query for one batch, from a log made for that batch.

A query that starts with a batch in its log of offsets that is not committed runs that batch first, with the same
offsets of every source. So each epoch's batch is the first and last of a query of its own: no source is planned anew.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession

from strandline.checkpoint.source_log import write_files
from strandline.core.errors import ConfigurationError, SparkError, StrandlineError
from strandline.core.ids import unique_name
from strandline.core.scratch import Scratch
from strandline.format.epochs import EpochRecord
from strandline.spark.base.quiet import hide_errors_of, suppress_error_logs
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.sources.filechecks import FileSource, is_changed, missing_files
from strandline.spark.sources.log import LoggedFile, UnreadableLogError, files_read, log_of_step

T = TypeVar("T")

_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
_INTERVAL = "spark.sql.streaming.fileSource.log.compactInterval"
_MIN_TASKS = "spark.sql.files.minPartitionNum"


class _DoneError(Exception):
    """Ends a query after its batch."""


class _Batch(Generic[T]):
    """The function that Spark calls with the batch."""

    def __init__(self, number: int, use: Callable[[DataFrame], T]) -> None:
        self._number = number
        self._use = use
        self.result: Future[T] = Future()

    def __call__(self, df: DataFrame, batch: int) -> None:
        if batch == self._number:
            try:
                self.result.set_result(self._use(df))
            except BaseException as error:
                self.result.set_exception(error)
        raise _DoneError


class BatchReader:
    """Reads batches of the sources again."""

    def __init__(
        self, source: DataFrame, files: Mapping[str, bytes], file_sources: Sequence[FileSource], tasks: int
    ) -> None:
        """`files` are those of Spark's log, with the steps of all batches; `tasks` is Spark's default then."""
        self._source = source
        self._files = files
        self._file_sources = file_sources
        self._tasks = tasks
        self._scratch = Scratch("replay-log")

    def close(self) -> None:
        """Remove the logs."""
        self._scratch.close()

    def read(self, record: EpochRecord, before: str, use: Callable[[DataFrame], T]) -> T:
        """Return the result of a function of an epoch's rows; `before` are the offsets of the batch before it.

        Raises ConfigurationError if input is gone.
        """
        directory = self._scratch.path / str(record.batch)
        shutil.rmtree(directory, ignore_errors=True)
        write_files(self._log(record, before), directory)
        batch = _Batch(record.batch, use)
        hide_errors_of(_Batch.__call__.__code__)
        has_own = self._spark.conf.get(_MIN_TASKS, None) is not None
        if not has_own:
            self._spark.conf.set(_MIN_TASKS, str(self._tasks))
        try:
            self._run(batch, directory)
        except Exception as error:
            if not batch.result.done():
                raise _unreadable(record, error) from None
        finally:
            if not has_own:
                self._spark.conf.unset(_MIN_TASKS)
            shutil.rmtree(directory, ignore_errors=True)
        try:
            return batch.result.result()
        except Exception as error:
            raise _unreadable(record, error) from None

    @suppress_error_logs()
    def _run(self, handle: Callable[[DataFrame, int], None], directory: Path) -> None:
        writer = self._source.writeStream.foreachBatch(handle).option("checkpointLocation", f"file://{directory}")
        writer.start().awaitTermination()

    def _log(self, record: EpochRecord, before: str) -> dict[str, bytes]:
        """Return a log in which an epoch's batch is the only one that is not committed."""
        batch = record.batch
        offsets, previous = {f"offsets/{batch}": record.offsets.encode()}, {f"offsets/{batch - 1}": before.encode()}
        log = {"metadata": f'{{"id":"{uuid.UUID(unique_name())}"}}'.encode(), **offsets}
        if batch > 0:
            log |= {**previous, f"commits/{batch - 1}": _COMMIT}
        numbers = {source.number for source in self._file_sources}
        log |= {
            name: data
            for name, data in self._files.items()
            if name.startswith("sources/") and int(name.split("/")[1]) not in numbers
        }
        for source in self._file_sources:
            first, last = source.reached(previous, batch - 1), source.reached(offsets, batch)
            try:
                logged = list(files_read(self._files, source.number, first, last))
            except UnreadableLogError as error:
                raise ConfigurationError(
                    f"epoch {record.epoch}: which files {source.text} has read is not recorded: {error}",
                    hint="replay from a later checkpoint",
                ) from None
            self._check(source, logged, record)
            log |= log_of_step(source.number, first, last, logged, int(self._spark.conf.get(_INTERVAL) or 10))
        return log

    def _check(self, source: FileSource, logged: Sequence[LoggedFile], record: EpochRecord) -> None:
        """Raise ConfigurationError if files are gone or changed, which Spark would leave out or read as they are."""
        missing = missing_files(self._spark, [file.path for file in logged])
        wrong = missing or [file.path for file in logged if is_changed(file)]
        if wrong:
            state = "gone" if missing else "changed since then"
            raise ConfigurationError(
                f"epoch {record.epoch}: {source.text} has read {len(logged)} files, and {len(wrong)} of them are "
                f"{state}: {wrong[0]}",
                hint="bring them back, for example from archive_dir, or replay from a later checkpoint",
            )

    @property
    def _spark(self) -> SparkSession:
        return self._source.sparkSession


def _unreadable(record: EpochRecord, error: Exception) -> BaseException:
    """Return the error of an epoch whose rows Spark cannot read or compute again."""
    cause = unwrap_error(error)
    if isinstance(cause, StrandlineError) and not isinstance(cause, SparkError):
        return cause
    return ConfigurationError(
        f"epoch {record.epoch}: its rows cannot be read again: {cause}",
        hint="a topic or table may retain them no more: replay from a later checkpoint",
    )
