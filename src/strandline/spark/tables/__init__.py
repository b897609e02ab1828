"""Reads the state in snapshots as tables, for `sl.state`.

A snapshot is a savepoint, a checkpoint (`…/job/chk-17`), or a job's folder, which means its newest checkpoint. The job
may run or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import ConfigurationError
from strandline.core.html import Html, Rows, card, facts, line, markup, strong
from strandline.core.texts import size_text, time_text
from strandline.snapshot.opening.snapshot import pin_snapshot, pinned_snapshot
from strandline.snapshot.tables import reader
from strandline.snapshot.tables import table as snapshot_tables
from strandline.snapshot.tables.table import Table, TableSummary, find_table
from strandline.spark.tables.source import FORMAT, STORAGE, StrandlineSource
from strandline.types.columns import from_arrow_type, to_python

__all__ = ["lookup", "opened", "read", "register", "tables"]


def register(spark: SparkSession) -> None:
    """Let a session read `spark.read.format("strandline")`.

    Its options are `url`, `table` or `metadata`, and options of the storage as `storage.…`.
    """
    spark.dataSource.register(StrandlineSource)


def read(
    spark: SparkSession,
    url: str | Path,
    table: str | None = None,
    *,
    metadata: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a table of a snapshot, `uid.state`, as a DataFrame with one task for each partition or file.

    For a job's folder, it always reads the checkpoint that is the newest at this call; a running job keeps the files
    until an hour after the DataFrame's last use. Filters do not reduce what is read: for a few keys, use `lookup` or
    `opened`. Instead of a table, `metadata` is one of `snapshot`, `operators`, `states`, `partitions`, `files` and
    `history`. Raises NotFoundError if there is no such snapshot or table, and CorruptionError.

    >>> seen = sl.state.read(spark, "s3://bucket/ck/fraud", "detect.seen")      # doctest: +SKIP
    >>> seen.where("card = 'c-17'").show()                                      # doctest: +SKIP
    """
    if (table is None) == (metadata is None):
        raise ConfigurationError(
            "state.read: expected either a table or metadata=",
            hint='write state.read(spark, url, "uid.state"), or metadata="operators"',
        )
    snapshot = pin_snapshot(str(url), storage_options)
    if table is not None:
        table = find_table(snapshot, table).name
    register(spark)
    reader = spark.read.format(FORMAT).option("url", snapshot.reading_url)
    for name, value in (storage_options or {}).items():
        reader = reader.option(STORAGE + name, value)
    return (reader.option("table", table) if table is not None else reader.option("metadata", str(metadata))).load()


def tables(url: str | Path, storage_options: Mapping[str, str] | None = None) -> list[TableSummary]:
    """Return a summary of each table of a snapshot, without reading rows."""
    with pinned_snapshot(str(url), storage_options) as snapshot:
        return Rows(snapshot_tables.tables(snapshot))


def lookup(
    url: str | Path, table: str, key: Any, *, storage_options: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of one key in a table of a snapshot, none if it is missing. Reads only files that may hold it.

    `key` is a value, or for several columns a tuple or a dict. To look up many keys, use `opened`. Raises
    StateTypeError if `key` does not fit the operator's key.
    """
    with opened(url, storage_options) as snapshot:
        return snapshot.lookup(table, key)


def opened(url: str | Path, storage_options: Mapping[str, str] | None = None) -> SnapshotReader:
    """Open a snapshot to look up many keys, or to read whole tables: `with sl.state.opened(url) as snapshot: …`."""
    return SnapshotReader(str(url), storage_options)


class SnapshotReader:
    """A snapshot that is open for look-ups and reads. It is thread-safe."""

    def __init__(self, url: str, storage_options: Mapping[str, str] | None) -> None:
        with ExitStack() as stack:
            self._snapshot = stack.enter_context(pinned_snapshot(url, storage_options))
            self._reader = stack.enter_context(reader.StateReader())
            self._stack = stack.pop_all()
        self._tables: dict[str, Table] = {}

    def lookup(self, table: str, key: Any) -> list[dict[str, Any]]:
        """Return the rows of one key, as `lookup` does."""
        rows = self._reader.look_up(self._table(table), key)
        columns = [to_python(column, from_arrow_type(column.type)) for column in rows.columns]
        return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def batches(self, table: str) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a table, without Spark; one partition after the other."""
        return self._reader.rows(self._table(table))

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            self._tables[name] = find_table(self._snapshot, name)
        return self._tables[name]

    def _repr_html_(self) -> str:
        manifest = self._snapshot.manifest
        values = {
            "checkpoint": manifest.checkpoint, "epoch": manifest.epoch, "taken": time_text(manifest.created_ms),
            "size": size_text(manifest.total_bytes),
        }  # fmt: skip
        kind = (manifest.savepoint and f"{manifest.savepoint} savepoint") or "checkpoint"
        title = Html(f"{strong(manifest.job)}, {markup(kind)}")
        summaries = Rows(snapshot_tables.tables(self._snapshot))
        return card(title, line(self._snapshot.url), facts(values), Html(summaries._repr_html_()))

    def close(self) -> None:
        """Release the snapshot's files."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
