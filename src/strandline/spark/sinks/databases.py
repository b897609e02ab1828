"""Sinks into tables of databases, PostgreSQL and SQLite. Rows of one key are always in the same lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from strandline.core.errors import ConfigurationError
from strandline.core.ids import Epoch
from strandline.core.settings import Duration, parse_duration_ms
from strandline.core.urls import check_local_path
from strandline.ends.arguments import check_columns, check_delete
from strandline.ends.postgres.shape import DatabaseTarget, Shape
from strandline.ends.postgres.target import PostgresTarget
from strandline.ends.sqlite import SqliteTarget
from strandline.plan.columns import quoted
from strandline.spark.sinks.base import KeyedSink
from strandline.spark.sinks.transactional import Transactional, TransactionalOptions, check_option_names


class DatabaseSink(Transactional, KeyedSink):
    """Write rows into a table exactly once; created by `sinks.postgres` and `sinks.sqlite`."""

    target: DatabaseTarget

    def __init__(
        self, target: DatabaseTarget, *, writers: int | None = None, **options: Unpack[TransactionalOptions]
    ) -> None:
        super().__init__(target, **options)
        self._shape = target.shape
        self._writers = writers

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which rows are replaced; () if they are appended."""
        return tuple(self._shape.key)

    def deleting(self, column: str, nullable: Sequence[str] = ()) -> tuple[Self, str]:
        """Return a sink that also deletes rows, and its boolean column of those; `column`, if it has none."""
        sink, delete = copy(self), self._shape.delete or column
        sink._shape = replace(self._shape, delete=delete, nullable=tuple(nullable))
        sink.target = copy(self.target)
        sink.target.shape = sink._shape
        sink.target.refuses_nulls = self.on_error == "fail"
        return sink, delete

    def write(self, df: DataFrame, epoch: Epoch) -> list[str]:
        if self._writers is not None and self._writers > 1:
            texts = [name for name, kind in df.dtypes if kind.startswith("string")]
            key = ((name, df[quoted(name)]) for name in self._shape.key)
            df = df.repartition(self._writers, *(_folded(c) if name in texts else c for name, c in key))
        return super().write(df, epoch)


def _folded(text: Column) -> Column:
    """Return a text that is the same for all that is equal as uuid, varchar(n) or char(n)."""
    return F.translate(F.lower(F.rtrim(text)), "{}-", "")


def postgres(
    dsn: str | Callable[[], str],
    table: str,
    *,
    key: str | Sequence[str] | None = None,
    delete: str | None = None,
    create: bool = False,
    writers: int | None = None,
    record: str = "strandline_deliveries",
    timeout: Duration = "60s",
    **options: Unpack[TransactionalOptions],
) -> PostgresSink:
    """Write rows into a table of PostgreSQL, exactly once: visible there when the checkpoint after them completes.

    `dsn` is libpq's: "postgresql://user@host/database", or a function that returns it, for passwords that change. The
    column names of the rows are those of the table. Without a `key`, rows are appended. With one, a row replaces the
    row with the same key, and deletes it if the boolean column `delete` is true.

    Rows of one key are written in order; `writers=4` spreads keys over four connections. Without a key, all partitions
    write in parallel; `writers=1` has one transaction for all. `create=True` creates a missing table. The sink's
    progress is in the table `record`, which is created if missing. A transaction that takes longer than `timeout` is
    aborted and tried again. `options` are those of `sinks.Transactional`: `name`, `staging`, `on_error`,
    `dead_letters`, `storage_options`.
    """
    what = "sinks.postgres()"
    shape = check_shape(what, table, key, delete)
    check_name(what, "record", record)
    check_flag(what, "create", create)
    count = check_writers(what, writers, shape)
    limit = parse_duration_ms(timeout, f"{what}: timeout")
    if limit < 1000:
        raise ConfigurationError(
            f"{what}: timeout is {timeout!r}, expected at least a second", hint="write it like '60s'"
        )
    target = PostgresTarget(dsn, shape, create=create, parallel=count != 1, record=record, timeout_ms=limit)
    return PostgresSink(target, writers=count, **check_option_names(what, options))


class PostgresSink(DatabaseSink):
    """Rows into a table of PostgreSQL."""

    made_by = "sinks.postgres()"
    target: PostgresTarget

    def close(self) -> None:
        super().close()
        if self._context is not None:
            self.target.idle.end(self._writer)


def sqlite(
    path: str | Path,
    table: str,
    *,
    key: str | Sequence[str] | None = None,
    delete: str | None = None,
    create: bool = False,
    record: str = "strandline_deliveries",
    timeout: Duration = "60s",
    **options: Unpack[TransactionalOptions],
) -> SqliteSink:
    """Write rows into a table of an SQLite database, exactly once: visible when the checkpoint after them completes.

    The database is a file on the driver's machine, which alone writes to it. Options are those of `sinks.postgres`;
    `create=True` also creates the file. Decimals, dates and times are stored as text, nested values as JSON.
    """
    what = "sinks.sqlite()"
    if not isinstance(path, str | Path) or not str(path).strip() or "://" in str(path) or str(path) == ":memory:":
        raise ConfigurationError(
            f"{what}: path is {path!r:.200}, expected that of a file on the driver's machine",
            hint="write it like 'results.db', or an absolute path; a database in memory would end with the driver",
        )
    check_local_path(f"{what}: path", path)
    shape = check_shape(what, table, key, delete)
    check_name(what, "record", record)
    check_flag(what, "create", create)
    limit = parse_duration_ms(timeout, f"{what}: timeout")
    target = SqliteTarget(Path(path).absolute(), shape, create=create, record=record, timeout_ms=limit)
    return SqliteSink(target, **check_option_names(what, options))


class SqliteSink(DatabaseSink):
    """Rows into a table of SQLite."""

    made_by = "sinks.sqlite()"


def check_shape(what: str, table: str, key: str | Sequence[str] | None, delete: str | None) -> Shape:
    """Return the shape of the table, from checked arguments."""
    check_name(what, "table", table)
    names = check_columns(what, "key", key)
    check_delete(what, names, delete)
    return Shape(table, names, delete)


def check_name(what: str, option: str, name: Any) -> None:
    """Raise ConfigurationError unless this can be a table's name."""
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(
            f"{what}: {option} is {name!r:.200}, expected its name", hint=f"write it like {option}='bank.{option}'"
        )


def check_flag(what: str, option: str, value: Any) -> None:
    """Raise ConfigurationError unless this is a boolean."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what}: {option} is {value!r:.200}, expected True or False")


def check_writers(what: str, writers: int | None, shape: Shape) -> int | None:
    """Return the number of lanes: by default, one with a key, or None for one lane for each partition."""
    if writers is not None and (not isinstance(writers, int) or isinstance(writers, bool) or writers < 1):
        raise ConfigurationError(
            f"{what}: writers is {writers!r:.200}, expected a number from 1",
            hint="leave it out, or set the number of connections",
        )
    if shape.key:
        return writers or 1
    if writers is not None and writers > 1:
        raise ConfigurationError(
            f"{what}: writers={writers} needs key=[…]",
            hint="without a key, all partitions write at the same time; with writers=1, one connection writes all rows",
        )
    return writers
