"""A table of SQLite as a target: a file on the driver's machine, for programs without a database server."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from strandline.core import failpoints
from strandline.core.datasets import Dataset
from strandline.core.errors import ConfigurationError, ConflictError, CorruptionError, FencedError, SinkError
from strandline.ends.begins import decode_begins, encode_begins
from strandline.ends.postgres.csv import documents, values_of
from strandline.ends.postgres.shape import DatabaseTarget, Shape, quoted
from strandline.ends.target import Connection, Writer

_CLAIM = -1
_RECORD = """create table if not exists {record} (
  sink text, lane integer, generation integer not null, mark text, writer text not null, primary key (sink, lane))"""
_CLAIMING = """insert into {record} (sink, lane, generation, writer, mark) values (?, ?, ?, ?, ?)
on conflict (sink, lane) do update set generation = excluded.generation, mark = excluded.mark"""
_MARKING = """insert into {record} (sink, lane, generation, mark, writer) values (?, ?, ?, ?, ?)
on conflict (sink, lane) do update set generation = excluded.generation, mark = excluded.mark"""
_PASSING = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_NOMEM,
)  # fmt: skip


class SqliteTarget(DatabaseTarget):
    """A table of SQLite."""

    parallel = False
    on_driver = True

    def __init__(self, path: Path, shape: Shape, *, create: bool, record: str, timeout_ms: int) -> None:
        self.path = path
        self.shape = shape
        self.record = quoted(record)
        self._create = create
        self._timeout_ms = timeout_ms
        self._columns: pa.Schema | None = None
        self.destination = repr(self)
        self.datasets = [Dataset("file", f"{path}/{shape.table}")]

    def __repr__(self) -> str:
        return f"table {self.shape.table} of {self.path}"

    def try_out(self, columns: pa.Schema) -> None:
        self.shape.check(columns)
        for field in self.shape.written(columns):
            _affinities(field)
        if not self.path.parent.is_dir():
            raise ConfigurationError(f"{self.path}: there is no such directory", hint=f"create it: {self.path.parent}")
        if not self.path.exists():
            if not self._create:
                raise ConfigurationError(
                    f"{self.path} does not exist", hint="create it, or let the sink do so, with create=True"
                )
        else:
            try:
                with closing(self.open()) as db:
                    names = db.execute(f"pragma table_xinfo({quoted(self.shape.table)})").fetchall()
                    if names or not self._create:
                        self.check(db, columns)
                        if self.refuses_nulls and not self.takes_nulls(db):
                            raise self.shape.refusal(
                                self.shape.nullable[0],
                                "drop not null of the column, or the primary key in favour of a unique index",
                            )
            except sqlite3.Error as error:
                raise ConfigurationError(
                    f"{self.path} cannot be used: {error}",
                    hint="set the path of a database; or, with create=True, of a file that does not exist yet",
                ) from None
        self._columns = columns

    def claim(self, writer: Writer) -> None:
        with closing(self.open("rwc" if self._create else "rw")) as db, _transaction(db):
            if self._create and self._columns is not None:
                db.execute(_create_sql(self.shape, self.shape.written(self._columns)))
            db.execute(_RECORD.format(record=self.record))
            claimed = self.claimed(db, writer)
            writer.check_claimed(claimed is not None, f"{self.record} of {self.path}")
            mark = None
            if claimed is not None:
                owner, mark = db.execute(
                    f"select writer, mark from {self.record} where sink = ? and lane = ?", [writer.sink, _CLAIM]
                ).fetchone()
                writer.check_owner(owner, repr(self))
            if claimed is not None and claimed > writer.generation:
                raise FencedError(f"{writer.label}: a newer driver writes to {self!r}")
            begins = writer.next_begins(decode_begins(mark, f"{self.record} of {self.path}"), repr(self))
            claim = [writer.sink, _CLAIM, writer.generation, writer.owner, encode_begins(begins)]
            db.execute(_CLAIMING.format(record=self.record), claim)

    def connect(self, writer: Writer, lane: int) -> SqliteLane:
        return SqliteLane(self, writer, lane)

    def may_pass(self, error: Exception) -> bool:
        if isinstance(error, sqlite3.Error):
            # The higher bits are an extended code.
            return getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING
        return super().may_pass(error)

    def open(self, mode: str = "rw") -> sqlite3.Connection:
        """Connect; the connection has no transaction."""
        db = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode={mode}", uri=True, timeout=self._timeout_ms / 1000, isolation_level=None
        )
        try:
            # A commit must survive a power failure, whatever the database's default is.
            db.execute("pragma synchronous = full")
        except BaseException:
            db.close()
            raise
        return db

    def claimed(self, db: sqlite3.Connection, writer: Writer) -> int | None:
        """Return the generation of the sink that has claimed the database."""
        row = db.execute(
            f"select generation from {self.record} where sink = ? and lane = ?", [writer.sink, _CLAIM]
        ).fetchone()
        return None if row is None else int(row[0])

    def check(self, db: sqlite3.Connection, rows: pa.Schema) -> None:
        """Raise ConfigurationError, with a statement that helps, unless rows of these columns can be written."""
        table, columns = self.shape.table, self.shape.written(rows)
        existing = {row[1]: row for row in db.execute(f"pragma table_xinfo({quoted(table)})")}
        kind = db.execute("select type from sqlite_master where name = ? collate nocase", [table]).fetchone()
        if not existing or kind != ("table",):
            raise ConfigurationError(
                f"{self.path} has no table {table}" if not existing else f"{table} is a {kind[0] if kind else 'view'}",
                hint=f"create it, or let the sink do it with create=True:\n    {_create_sql(self.shape, columns)}",
            )
        for field in columns:
            column = existing.get(field.name)
            if column is None:
                raise ConfigurationError(
                    f"table {table} has no column {field.name}",
                    hint=f"alter table {quoted(table)} add column {quoted(field.name)} {_type_for(field)}",
                )
            if column[6]:
                raise ConfigurationError(f"table {table} computes column {field.name}: leave it out of the rows")
            if _affinity(column[2]) not in _affinities(field):
                raise ConfigurationError(
                    f"table {table}: column {field.name} is {column[2].lower()}, and the rows have {field.type}: "
                    "SQLite would change the values",
                    hint=f"make the column {_type_for(field)}",
                )
        for name, column in existing.items():
            if column[3] and column[4] is None and not column[5] and name not in columns.names:
                raise ConfigurationError(f"table {table}: column {name} is not null, and the rows do not have it")
        if self.shape.key and sorted(self.shape.key) not in _unique(db, table, existing):
            key = ", ".join(map(quoted, self.shape.key))
            raise ConfigurationError(
                f"table {table} has no unique index on ({', '.join(self.shape.key)}), which is the sink's key",
                hint=f"create unique index {quoted(table + '_key')} on {quoted(table)} ({key})",
            )

    def takes_nulls(self, db: sqlite3.Connection) -> bool:
        """Whether the table can have nulls in the columns of the key that may be null."""
        table = self.shape.table
        existing = {row[1]: row for row in db.execute(f"pragma table_xinfo({quoted(table)})")}
        primary = [name for name, column in existing.items() if column[5]]
        options = "select wr or strict from pragma_table_list where name = ? collate nocase"
        # A table numbers its rows itself if the primary key is one INTEGER.
        is_number = len(primary) == 1 and existing[primary[0]][2].upper() == "INTEGER"
        required = primary if is_number or db.execute(options, [table]).fetchone() == (1,) else []
        return not any(existing[name][3] or name in required for name in self.shape.nullable)


class SqliteLane(Connection):
    """The connection of a lane to a database."""

    def __init__(self, target: SqliteTarget, writer: Writer, lane: int) -> None:
        self._target, self._writer, self._lane = target, writer, lane
        self._is_checked = self._takes_nulls = False
        self._db = target.open()

    def reached(self) -> str | None:
        row = self._db.execute(
            f"select mark from {self._target.record} where sink = ? and lane = ?", [self._writer.sink, self._lane]
        ).fetchone()
        return row[0] if row else None

    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        writer = self._writer
        try:
            with _transaction(self._db):
                claimed = self._target.claimed(self._db, writer)
                if claimed is None or claimed < writer.generation:
                    raise CorruptionError(
                        f"{writer.label}: this run's claim is not in {self._target.record} any more",
                        hint="the database was put back to an older state, or that table was changed",
                    )
                if claimed > writer.generation:
                    raise FencedError(f"{writer.label}: a newer driver writes to {self._target!r}")
                if self.reached() != since:
                    raise ConflictError(f"{writer.label}: another task writes lane {self._lane}")
                self._put([batch for batch in batches if batch.num_rows])
                self._db.execute(
                    _MARKING.format(record=self._target.record),
                    [writer.sink, self._lane, writer.generation, mark, writer.owner],
                )
                failpoints.hit("sink.sqlite.written")
        except sqlite3.Error as error:
            if not isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
                raise
            raise SinkError(
                f"{writer.label}: {self._target!r} refuses rows: {error}",
                hint="the rows stay staged, and the next start tries them again: change the table, or let the job "
                "go on without such rows, with on_error='dead-letter'",
                discreet=f"{writer.label}: {self._target!r} refuses rows: {type(error).__name__}",
            ) from None

    def close(self) -> None:
        self._db.close()

    def _put(self, batches: Sequence[pa.RecordBatch]) -> None:
        if not batches:
            return
        shape, table = self._target.shape, quoted(self._target.shape.table)
        columns = shape.written(batches[0].schema)
        if not self._is_checked:
            shape.check(batches[0].schema)
            self._target.check(self._db, batches[0].schema)
            self._takes_nulls = self._target.takes_nulls(self._db)
            self._is_checked = True
        if not self._takes_nulls:
            shape = replace(shape, nullable=())
        names, marks = ", ".join(map(quoted, columns.names)), ", ".join("?" * len(columns))
        insert = f"insert into {table} ({names}) values ({marks})"
        if not shape.key:
            for batch in batches:
                self._db.executemany(insert, _values(batch, columns.names))
            return
        shape.check_keys(batches)
        same = " and ".join(f"{quoted(name)} is ?" for name in shape.key)
        delete = f"delete from {table} where {same}"
        kept = [quoted(name) for name in columns.names if name not in shape.key]
        do = "update set " + ", ".join(f"{name} = excluded.{name}" for name in kept) if kept else "nothing"
        upsert = f"{insert} on conflict ({', '.join(map(quoted, shape.key))}) do {do}"
        # In order, without grouping by key: the column's collation decides which keys are equal.
        for batch in batches:
            rows = _values(batch, columns.names)
            if shape.delete is None:
                self._db.executemany(upsert, rows)
                continue
            keys = _values(batch, shape.key)
            marked = zip(pc.fill_null(batch[shape.delete], False).to_pylist(), keys, rows, strict=True)
            for (is_delete, has_null), run in itertools.groupby(marked, lambda each: (each[0], None in each[1])):
                if is_delete:
                    self._db.executemany(delete, [key for _, key, _ in run])
                elif not has_null:
                    self._db.executemany(upsert, [row for _, _, row in run])
                else:
                    # In an index, null is not equal to null.
                    for _, key, row in run:
                        self._db.execute(delete, key)
                        self._db.execute(insert, row)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    finally:
        if db.in_transaction:
            db.execute("rollback")


def _values(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Return these columns' rows in types that SQLite supports."""
    return zip(*(_cells(batch[name], name) for name in names), strict=True)


def _cells(array: pa.Array, name: str) -> list[Any]:
    kind = array.type
    if pa.types.is_nested(kind):
        array = documents(array, name)
    elif pa.types.is_floating(kind):
        if pc.any(pc.is_nan(array)).as_py():
            raise SinkError(
                f"column {name}: a number is NaN, which SQLite cannot hold: it would become null",
                hint=f"replace it by null, or drop the row, in a step before the sink: .where('not isnan({name})')",
            )
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", "UTC" if kind.tz else None)).cast(pa.string())
    elif pa.types.is_date(kind) or pa.types.is_decimal(kind):
        array = array.cast(pa.string())
    elif pa.types.is_duration(kind):
        array = array.cast(pa.int64())
    return values_of(array, name)


def _create_sql(shape: Shape, columns: pa.Schema) -> str:
    parts = [f"{quoted(field.name)} {_type_for(field)}" for field in columns]
    if shape.key:
        how = "unique" if shape.nullable else "primary key"
        parts.append(f"{how} ({', '.join(map(quoted, shape.key))})")
    return f"create table if not exists {quoted(shape.table)} ({', '.join(parts)})"


def _type_for(field: pa.Field) -> str:
    return _affinities(field)[0]


def _affinities(field: pa.Field) -> tuple[str, ...]:
    """Return the affinities of columns that keep a type's values unchanged; the sink creates columns with the first."""
    kind = field.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_duration(kind):
        return ("integer", "numeric", "blob")
    if pa.types.is_floating(kind):
        return ("real", "numeric", "blob")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return ("blob", "text", "integer", "real", "numeric")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return ("text", "numeric", "blob")
    if (
        pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_nested(kind)
    ):
        return ("text", "blob")
    raise ConfigurationError(
        f"SQLite has no type for column {field.name}: {kind}", hint="cast it to another, as string"
    )


def _affinity(declared: str) -> str:
    """Return the affinity that SQLite derives from a column's declared type."""
    name = declared.upper()
    for affinity, parts in (("integer", ["INT"]), ("text", ["CHAR", "CLOB", "TEXT"]), ("blob", ["BLOB"])):
        if any(part in name for part in parts):
            return affinity
    if not name:
        return "blob"
    return "real" if any(part in name for part in ("REAL", "FLOA", "DOUB")) else "numeric"


def _unique(db: sqlite3.Connection, table: str, existing: Mapping[str, Any]) -> list[list[str]]:
    """Return the sets of columns that have a unique index."""
    sets = [sorted(name for name, column in existing.items() if column[5])]
    for _, name, is_unique, _, is_partial in db.execute(f"pragma index_list({quoted(table)})").fetchall():
        if is_unique and not is_partial:
            columns = [row[2] for row in db.execute(f"pragma index_info({quoted(name)})")]
            sets.append(sorted(column for column in columns if column is not None) if None not in columns else [])
    return sets
