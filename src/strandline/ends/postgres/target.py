"""A table of PostgreSQL as a target: COPY, and for rows with a key a merge, in one transaction with the lane's mark.

The driver keeps connections while deliveries follow each other closely. All that a kept connection saves is the
server's work for a new session: a delivery asks the same on it as on a new one (the name of the record's table, whether
the server is writable, the lane's mark, the columns of the table), and its transactions check the claim and the mark.
So it makes no difference to what is written whether the server has been restarted, has become a replica, was restored,
or a proxy has given the session to another server. What a trigger leaves in the session is discarded between
deliveries: settings, advisory locks, temporary tables, a role.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from strandline.core import failpoints
from strandline.core.datasets import Dataset
from strandline.core.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    FencedError,
    SinkError,
    StrandlineError,
)
from strandline.core.failure import shortened
from strandline.ends.begins import decode_begins, encode_begins
from strandline.ends.idle import IdleConnections, key_of
from strandline.ends.postgres.catalog import (
    CatalogTable,
    check_nulls,
    check_table,
    create_sql,
    identifier,
    read_table,
    takes_nulls,
)
from strandline.ends.postgres.merge import RowWriter
from strandline.ends.postgres.shape import DatabaseTarget, Shape, quoted
from strandline.ends.target import Connection, Writer

_CLAIM = -1
"""The lane of the row that says which generation writes."""
_RECORD = """create table if not exists {record} (
  sink text, lane int, generation bigint not null, mark text, writer text not null,
  at timestamptz not null default now(), primary key (sink, lane)) with (fillfactor = 50)"""
_COMMENT = "comment on table {record} is 'How far the sinks of Strandline''s jobs came. Do not change it.'"
_CLAIMED = "select generation, writer, mark from {record} where sink = %s and lane = %s for update"
_CLAIMING = """insert into {record} (sink, lane, generation, writer, mark) values (%s, %s, %s, %s, %s)
on conflict (sink, lane) do update set generation = excluded.generation, mark = excluded.mark, at = now()
where {record}.generation <= excluded.generation and {record}.writer = excluded.writer returning generation"""
# An older driver that was stopped within a transaction may hold the lock of the claim for any time.
_ENDING = """select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()
and case when application_name like %s then split_part(application_name, '/', 3)::bigint < %s else false end"""
_SETTINGS = """set local statement_timeout = {timeout}; set local idle_in_transaction_session_timeout = {timeout};
set local lock_timeout = {lock}; set local synchronous_commit = {synchronous}; set local array_nulls = on"""
_SPARE_S = 5.0
_IDLE_S = 20.0
"""Connections that are idle for longer are not used again: a firewall may have dropped them without a word. Where
deliveries are as rare as that, none is kept."""
_LIFE_S = 300.0
"""The longest life of a connection: the address, the password or the role's settings may have changed."""
_RENEWAL_S = 2.0
"""Timeout of the first answer on a kept connection, and of the last one before it is kept."""
_CLAIM_LOCK_MS = 2000
_CLAIM_TRIES = 5
_NULLS_NOT_DISTINCT = 150000
"""The first version of servers with unique nulls."""
_READ_ONLY, _IDLE, _TOO_LONG, _UNIQUE, _REFERENCE = "25006", "25P03", "25P04", "23505", "23503"
_OF_ROWS = ("21", "22", "23", "27", "38", "39", "44", "54", "P0")
"""Classes of errors that a row causes: values that do not fit or are too large for an index, constraints, errors of
triggers. psycopg has some of them as OperationalError, like temporary errors."""
_NO_PRIVILEGE, _POLICIES = "42501", "ExecWithCheckOptions"
"""A row that a policy of row-level security excludes has the error of a missing privilege, from this function."""
_RAISE = "exec_stmt_raise"
"""The server's function for RAISE in a trigger, which may give any code to its error of a row."""
_NOT_OF_ROWS = ("08", "40", "53", "55", "57", "58")
"""Classes that RAISE may pass on from another error, or uses to have the transaction tried again."""
_PASSING = ("GetNewTransactionId", "GetNewMultiXactId", "ExecInitPartitionInfo")
"""Functions of the server that raise an error of class 54 if it needs VACUUM before it accepts any row, and an internal
error while a partition's index is built again (REINDEX CONCURRENTLY)."""


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise ConfigurationError(
            "sinks.postgres() needs psycopg, which is not installed", hint="pip install 'strandline[postgres]'"
        ) from error
    return psycopg


class PostgresTarget(DatabaseTarget):
    """A table of PostgreSQL."""

    def __init__(
        self, dsn: str | Callable[[], str], shape: Shape, *, create: bool, parallel: bool, record: str, timeout_ms: int
    ) -> None:
        self._dsn = dsn
        self.shape = shape
        self.parallel = parallel
        self.record = record
        self._create = create
        self._timeout_ms = timeout_ms
        self._columns: pa.Schema | None = None
        self.idle: IdleConnections[PostgresLane] = IdleConnections(_IDLE_S)
        self._parameters()
        self.destination = repr(self)
        host, port, database = self._place()
        table = shape.table if "." in shape.table else f"public.{shape.table}"
        self.datasets = [Dataset(f"postgres://{host}:{port}", f"{database}.{table}")]

    def __repr__(self) -> str:
        return f"table {self.shape.table} of {self.where}"

    @property
    def where(self) -> str:
        """The server and the database, for messages."""
        parameters = self._parameters()
        host = parameters.get("host") or parameters.get("service") or os.environ.get("PGHOST") or "the local server"
        port = f":{parameters['port']}" if "port" in parameters else ""
        name = parameters.get("dbname") or os.environ.get("PGDATABASE") or parameters.get("user", "")
        return f"PostgreSQL at {host}{port}" + (f", database {name}" if name else "")

    def _place(self) -> tuple[str, str, str]:
        """Return the host, the port and the database, as libpq finds them."""
        parameters = self._parameters()
        host = parameters.get("host") or parameters.get("service") or os.environ.get("PGHOST") or "localhost"
        port = parameters.get("port") or os.environ.get("PGPORT") or "5432"
        user = parameters.get("user") or os.environ.get("PGUSER") or os.environ.get("USER")
        name = parameters.get("dbname") or os.environ.get("PGDATABASE") or user
        return str(host), str(port), str(name or "postgres")

    def try_out(self, columns: pa.Schema) -> None:
        self.shape.check(columns)
        psycopg = _psycopg()
        try:
            db = self.open("strandline/try")
        except psycopg.Error as error:
            raise ConfigurationError(
                f"{self.where} cannot be reached: {_first_line(error)}", hint=_connection_hint(str(error))
            ) from None
        with closing(db), self.time_limit(db):
            if db.info.server_version < 110000:
                raise ConfigurationError(
                    f"{self.where} is of version {db.info.server_version // 10000}, expected 11 or newer"
                )
            if db.execute("show transaction_read_only").fetchone()[0] == "on":
                raise ConfigurationError(
                    f"{self.where} is read-only: it may be a replica", hint="name the primary server"
                )
            try:
                with db.transaction(force_rollback=True):
                    self._create_record(db)
                    if self._create:
                        self._create_table(db, columns)
                    table = read_table(db, self.shape.table)
                    check_table(table, self.shape, columns, parallel=self.parallel)
                    if table is not None and self.refuses_nulls:
                        check_nulls(table, self.shape)
            except psycopg.Error as error:
                raise ConfigurationError(f"{self!r}: {_first_line(error)}") from None
        self._columns = columns

    def claim(self, writer: Writer) -> None:
        psycopg = _psycopg()
        with closing(self.open(_application(writer, "claim"))) as db, self.time_limit(db):
            with db.transaction():
                # A new record would be in the way of the former one, if that was only renamed.
                writer.check_claimed(record_name(db, self.record) is not None, f"{self.record} of {self.where}")
                self._create_record(db)
                if self._create and self._columns is not None:
                    self._create_table(db, self._columns)
            record, settings = record_name(db, self.record), self.settings(db, _CLAIM_LOCK_MS)
            for attempt in range(_CLAIM_TRIES):
                try:
                    with db.transaction():
                        db.execute(settings)
                        claimed = db.execute(_CLAIMED.format(record=record), [writer.sink, _CLAIM]).fetchone()
                        writer.check_claimed(claimed is not None, f"{self.record} of {self.where}")
                        generation, owner, mark = claimed or (0, "", None)
                        begins = decode_begins(mark, f"{self.record} of {self.where}")
                        if generation <= writer.generation and owner in ("", writer.owner):
                            begins = writer.next_begins(begins, self.where)
                        claim = [writer.sink, _CLAIM, writer.generation, writer.owner, encode_begins(begins)]
                        row = db.execute(_CLAIMING.format(record=record), claim).fetchone()
                    break
                except psycopg.errors.LockNotAvailable:
                    if attempt == _CLAIM_TRIES - 1:
                        raise
                    db.execute(_ENDING, [f"strandline/{writer.sink}/%", writer.generation])
        if row is None:
            if owner:
                writer.check_owner(owner, repr(self))
            raise FencedError(f"{writer.label}: a newer driver writes to {self!r}")

    def connect(self, writer: Writer, lane: int) -> PostgresLane:
        # From any lane: there are no more of them than lanes that are written at a time.
        connection = self.idle.take(key_of(writer))
        if connection is not None and not connection.renew(self, lane):
            connection.end()
            connection = None
        return connection or PostgresLane(self, writer, lane)

    def may_pass(self, error: Exception) -> bool:
        psycopg = _psycopg()
        if not isinstance(error, psycopg.Error):
            return super().may_pass(error)
        if error.diag.source_function in _PASSING or self._is_overtaken(error):
            return True
        if _is_of_row(error):
            return False
        # A lost connection, a server that starts, stops or has no free connection, a deadlock, a timeout; a server that
        # became a replica, until the client connects to the new primary; or the server's timeouts.
        is_temporary = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return is_temporary or error.sqlstate in (_READ_ONLY, _IDLE, _TOO_LONG)

    def _is_overtaken(self, error: Any) -> bool:
        """Whether another writer inserted a row of the sink's key while PostgreSQL builds an index of it concurrently.

        Rows replace each other by this key, but not in an index that is not complete.
        """
        names = (error.diag.message_detail or "").partition("(")[2].partition(")=(")[0].split(", ")
        return error.sqlstate == _UNIQUE and sorted(name.strip('"') for name in names) == sorted(self.shape.key)

    def open(self, application: str) -> Any:
        """Connect; the connection has no transaction."""
        db = _psycopg().connect(
            **{**self._parameters(), "application_name": application, "client_encoding": "utf8"},
            autocommit=True, prepare_threshold=None,
        )  # fmt: skip
        db.isolation_level = _psycopg().IsolationLevel.READ_COMMITTED
        return db

    @contextmanager
    def time_limit(self, db: Any, seconds: float | None = None) -> Iterator[None]:
        """Shut the connection down after a timeout, so that a call which waits for an answer raises an error.

        The server's timeouts do not help if it does not answer; TCP's do not help if a proxy in between answers.
        """
        with closing(socket.socket(fileno=os.dup(db.pgconn.socket))) as copied:
            timer = threading.Timer(seconds or self._timeout_ms / 1000 + _SPARE_S, _shut, [copied])
            timer.daemon = True
            try:
                timer.start()
                yield
            finally:
                timer.cancel()
                # Else the timer might shut another socket with the same file descriptor.
                if timer.is_alive():
                    timer.join()

    def settings(self, db: Any, lock_ms: int | None = None) -> str:
        """Return the settings for a transaction's begin. They exclude commits that a crash of the server could undo.

        Raises a temporary error for a replica: its record may be older than that of the primary server.
        """
        synchronous, read_only = db.execute(
            "select current_setting('synchronous_commit'), current_setting('transaction_read_only')"
        ).fetchone()
        if read_only == "on":
            raise _psycopg().errors.ReadOnlySqlTransaction("the server is read-only: it may be a replica")
        return _SETTINGS.format(
            timeout=self._timeout_ms,
            lock=lock_ms or self._timeout_ms,
            synchronous="on" if synchronous == "off" else synchronous,
        )

    def _parameters(self) -> dict[str, Any]:
        psycopg = _psycopg()
        dsn = self._dsn() if callable(self._dsn) else self._dsn
        if not isinstance(dsn, str):
            raise ConfigurationError(
                f"sinks.postgres(): {'the function of the dsn returned' if callable(self._dsn) else 'the dsn is'} "
                f"{type(dsn).__name__}, expected a text",
                hint="write it like postgresql://user@host:5432/database, or pass a function that returns it",
            )
        try:
            parameters: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
        except psycopg.Error:
            # The error's message may quote the password.
            raise ConfigurationError(
                "sinks.postgres(): the dsn cannot be read",
                hint="write it like postgresql://user@host:5432/database, special characters as %40"
                + (": it is libpq's, not JDBC's" if dsn.startswith("jdbc:") else ""),
            ) from None
        # Detect a server that has vanished within a minute.
        defaults = {
            "connect_timeout": 10, "keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 3,
            "tcp_user_timeout": 60_000, "target_session_attrs": "any",
        }  # fmt: skip
        if "," in str(parameters.get("host", "")):
            defaults["target_session_attrs"] = "read-write"
        return {**defaults, **parameters}

    def _create_record(self, db: Any) -> None:
        if record_name(db, self.record) is None:
            db.execute("select pg_advisory_xact_lock(hashtext('strandline'))")
            record = identifier(db, self.record)
            db.execute(_RECORD.format(record=record))
            db.execute(_COMMENT.format(record=record))

    def _create_table(self, db: Any, columns: pa.Schema) -> None:
        if read_table(db, self.shape.table) is None:
            db.execute("select pg_advisory_xact_lock(hashtext('strandline'))")
            shape = self.shape
            if db.info.server_version < _NULLS_NOT_DISTINCT:
                shape = replace(shape, nullable=())
            db.execute(create_sql(identifier(db, shape.table), shape, shape.written(columns)))


class PostgresLane(Connection):
    """A connection, for one lane at a time."""

    idle_since = 0.0

    def __init__(self, target: PostgresTarget, writer: Writer, lane: int) -> None:
        self._target, self._writer, self._lane = target, writer, lane
        self._opened_at = time.monotonic()
        self._is_intact = False
        """Whether the last use has raised no error."""
        self._db = target.open(_application(writer, "rows"))
        try:
            self._begin()
        except BaseException:
            self._db.close()
            raise

    def _begin(self, seconds: float | None = None) -> None:
        """Ask what may have changed since the last delivery."""
        self._table: CatalogTable | None = None
        with self._use(seconds):
            self._record = record_name(self._db, self._target.record) or ""
            self._settings = self._target.settings(self._db)
            if not self._record:
                raise self._record_error(f"the table {self._target.record} is gone")

    def renew(self, target: PostgresTarget, lane: int) -> bool:
        """Prepare a kept connection for the delivery of a lane; return whether it can be used."""
        self._target, self._lane = target, lane
        now = time.monotonic()
        if now - self.idle_since > _IDLE_S or now - self._opened_at > _LIFE_S:
            return False
        # Whatever is wrong, a new connection finds it out, or does not have it.
        with suppress(_psycopg().Error, StrandlineError):
            self._begin(_RENEWAL_S)
        return self._is_intact

    @contextmanager
    def _use(self, seconds: float | None = None) -> Iterator[None]:
        """Limit the time of the connection's use, and note whether it raises an error."""
        self._is_intact = False
        with self._target.time_limit(self._db, seconds):
            yield
        self._is_intact = True

    def reached(self) -> str | None:
        with self._use():
            row = self._db.execute(
                f"select mark from {self._record} where sink = %s and lane = %s", [self._writer.sink, self._lane]
            ).fetchone()
        return row[0] if row else None

    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        psycopg = _psycopg()
        try:
            with self._use(), self._db.transaction():
                self._db.execute(self._settings)
                self._check(since)
                self._put(batches)
                self._db.execute(
                    f"update {self._record} set mark = %s, generation = %s, at = now() where sink = %s and lane = %s",
                    [mark, self._writer.generation, self._writer.sink, self._lane],
                )
                failpoints.hit("sink.postgres.written")
        except psycopg.Error as error:
            if self._target.may_pass(error) or not _is_of_row(error):
                raise
            raise self._row_error(error) from None

    def close(self) -> None:
        idle = self._target.idle
        if idle.note_use(key_of(self._writer, self._lane)) and self._is_intact and self._reset():
            # A target that is dropped without a call of `end` is released, with its connections.
            del self._target
            idle.put(key_of(self._writer), self)
        else:
            self.end()

    def end(self) -> None:
        """Close the connection; the server aborts its transaction."""
        self._db.close()

    def _reset(self) -> bool:
        """Discard what triggers have left in the session; return whether it can be kept."""
        with suppress(_psycopg().Error), self._use(_RENEWAL_S):
            self._db.execute("discard all")
        return self._is_intact

    def _check(self, since: str | None) -> None:
        """Check that no other writer has claimed the sink or written the lane; lock both until the transaction ends.

        The claim comes first: its lock lets a newer run find and end the session that holds a lane.
        """
        sink, lane, generation = self._writer.sink, self._lane, self._writer.generation
        where = f"from {self._record} where sink = %s and lane = %s"
        claim = self._db.execute(f"select generation {where} for share", [sink, _CLAIM]).fetchone()
        if claim is None or claim[0] < generation:
            raise self._record_error(f"this run's claim is not in {self._target.record} any more")
        if claim[0] > generation:
            raise FencedError(f"{self._writer.label}: a newer driver writes to {self._target!r}")
        self._db.execute(
            f"insert into {self._record} (sink, lane, generation, writer) values (%s, %s, %s, %s) "
            "on conflict do nothing",
            [sink, lane, generation, self._writer.owner],
        )
        (reached,) = self._db.execute(f"select mark {where} for update", [sink, lane]).fetchone()
        if reached != since:
            raise ConflictError(f"{self._writer.label}: another task writes lane {lane}")

    def _put(self, batches: Sequence[pa.RecordBatch]) -> None:
        shape, filled = self._target.shape, [batch for batch in batches if batch.num_rows]
        if filled:
            if self._table is None:
                self._table = read_table(self._db, shape.table)
                if self._table is None:
                    # A temporary error: a migration may rename another table to this name.
                    raise _psycopg().errors.UndefinedTable(f"table {shape.table} does not exist")
                shape.check(filled[0].schema)
                check_table(self._table, shape, filled[0].schema, parallel=self._target.parallel)
            if not takes_nulls(self._table, shape):
                shape = replace(shape, nullable=())
            RowWriter(self._db, self._table, shape, shape.written(filled[0].schema)).put(filled)

    def _record_error(self, reason: str) -> CorruptionError:
        return CorruptionError(
            f"{self._writer.label}: {self._target.where}: {reason}: the sink's progress is unknown",
            hint="the database was put back to an older state, or that table was changed; restore the job from a "
            "savepoint of that time, or start it again if the table still has all of the sink's rows",
        )

    def _row_error(self, error: Any) -> Exception:
        diag, where = error.diag, f"{self._writer.label}: table {self._target.shape.table}"
        parts = [diag.message_primary or str(error), diag.message_detail, diag.context]
        message = shortened("; ".join(part.strip().replace("\n", "; ") for part in parts if part))
        about = ", ".join(name for name in (diag.column_name, diag.constraint_name) if name)
        hint = (
            "the rows stay staged, and the next start tries them again: change the table, or let the job go on "
            "without such rows, with on_error='dead-letter'"
        )
        if error.sqlstate == _UNIQUE and not self._target.shape.key:
            hint = "if rows with the same key may come again, set key=[…], so that they replace the older ones"
        return SinkError(
            f"{where} refuses rows: {message}",
            hint=hint,
            discreet=f"{where} refuses rows: {type(error).__name__}" + (f" ({about})" if about else ""),
            refers=error.sqlstate == _REFERENCE,
        )


def _is_of_row(error: Any) -> bool:
    """Whether a row causes the error."""
    state = error.sqlstate or ""
    if error.diag.source_function == _RAISE and state[:2] not in _NOT_OF_ROWS:
        return True
    return state[:2] in _OF_ROWS or (state == _NO_PRIVILEGE and error.diag.source_function == _POLICIES)


def _shut(connection: socket.socket) -> None:
    # The connection may be closed already.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def record_name(db: Any, record: str) -> str | None:
    """Return the full name of the record's table, for statements with parameters; None if there is none."""
    row = db.execute(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where c.oid = to_regclass(%s)", [record],
    ).fetchone()  # fmt: skip
    return f"{quoted(row[0])}.{quoted(row[1])}".replace("%", "%%") if row else None


def _application(writer: Writer, purpose: str) -> str:
    """Return the session's application name, by which `claim` finds sessions of older generations."""
    return f"strandline/{writer.sink}/{writer.generation}/{purpose}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[0] if lines else type(error).__name__, 300)


def _connection_hint(message: str) -> str:
    if "password" in message or "authentication" in message or "role" in message:
        return "check the user and the password, in the dsn or libpq's PGPASSWORD and password file"
    if "does not exist" in message:
        return "check the database's name in the dsn"
    if "pg_hba" in message or "SSL" in message:
        return "the server refuses such connections: sslmode=require in the dsn may help, or an entry in pg_hba.conf"
    return "check the host and the port in the dsn, and whether the server runs and can be reached from here"
