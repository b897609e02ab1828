"""The state in snapshots as tables, for `sl.state`.

A snapshot is a savepoint, a checkpoint (`…/job/chk-17`), or a job's folder: its newest checkpoint. It is read wherever
it lies, while the job runs or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import ConfigurationError
from strandline.snapshot.opening.snapshot import pin_snapshot, pinned_snapshot
from strandline.snapshot.tables import reader
from strandline.snapshot.tables import table as snapshot_tables
from strandline.snapshot.tables.table import Table, TableSummary, find_table
from strandline.spark.tables.options import FORMAT, STORAGE
from strandline.spark.tables.source import StrandlineSource
from strandline.types.columns import from_arrow_type, to_python

__all__ = ["lookup", "opened", "read", "register", "tables"]


def register(spark: SparkSession) -> None:
    """Let a session read `spark.read.format("strandline")`.

    Options are `url`, `table` or `metadata`, and the storage's own as `storage.…`.
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
    """Return a table of a snapshot, `uid.state`, as a DataFrame: one task for each partition or file.

    Of a job's folder, that is the checkpoint which is the newest now, however often the DataFrame is used; the job that
    runs keeps its files until the DataFrame was not used for an hour. Filters do not make it read less: for a few keys,
    there are `lookup` and `opened`. `metadata` instead is one of `snapshot`, `operators`, `states`, `partitions`,
    `files` and `history`. Raises NotFoundError if there is no such snapshot or table, and CorruptionError.

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
    """Say which tables a snapshot has, and what is known of them without reading."""
    with pinned_snapshot(str(url), storage_options) as snapshot:
        return snapshot_tables.tables(snapshot)


def lookup(
    url: str | Path, table: str, key: Any, *, storage_options: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of one key in a table of a snapshot; none if it is not there. Only what may hold it is read.

    `key` is a value, of several columns a tuple or a dict. Who looks up many keys uses `opened`. Raises StateTypeError
    for what is no key of the operator.
    """
    with opened(url, storage_options) as snapshot:
        return snapshot.lookup(table, key)


def opened(url: str | Path, storage_options: Mapping[str, str] | None = None) -> SnapshotReader:
    """Open a snapshot in which one key after the other is looked up: `with sl.state.opened(url) as snapshot: …`."""
    return SnapshotReader(str(url), storage_options)


class SnapshotReader:
    """A snapshot that is looked into until it is closed; several threads may."""

    def __init__(self, url: str, storage_options: Mapping[str, str] | None) -> None:
        with ExitStack() as stack:
            self._snapshot = stack.enter_context(pinned_snapshot(url, storage_options))
            self._reader = stack.enter_context(reader.StateReader())
            self._stack = stack.pop_all()
        self._tables: dict[str, Table] = {}

    def lookup(self, table: str, key: Any) -> list[dict[str, Any]]:
        """Return the rows of one key, as `lookup` does."""
        found = self._tables.get(table)
        if found is None:
            found = self._tables[table] = find_table(self._snapshot, table)
        rows = self._reader.look_up(found, key)
        columns = [to_python(column, from_arrow_type(column.type)) for column in rows.columns]
        return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def close(self) -> None:
        """Let go of its files."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
