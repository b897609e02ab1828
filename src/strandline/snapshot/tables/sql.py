"""SQL over the tables of a snapshot, with DuckDB in this process, without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from strandline.core.errors import ConfigurationError, StrandlineError
from strandline.core.scratch import refuse_full_disk
from strandline.snapshot.opening.snapshot import Snapshot
from strandline.snapshot.tables.metadata import METADATA_TABLES, metadata, metadata_schema
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.table import Table, all_tables

METADATA = "metadata"
"""The SQL schema of a snapshot's metadata tables."""
_SCHEMAS_OF_DUCKDB = ("information_schema", "pg_catalog", "system", "temp")
_BATCH_ROWS = 65_536


class _Source:
    """A source of rows for DuckDB, which reads them at each scan of a query."""

    def __init__(self, schema: Callable[[], pa.Schema], rows: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self._schema = schema
        self._rows = rows
        self.failed: Exception | None = None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        schema = self._schema()
        reader = pa.RecordBatchReader.from_batches(schema, self._batches(schema))
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._rows():
                yield batch if batch.schema.equals(schema) else batch.cast(schema)
        except Exception as error:
            # DuckDB raises an error of its own: keep this one.
            self.failed = error
            raise


ROWS = "rows"
"""The name of a state's rows in SQL that changes the state."""


@contextmanager
def query(
    snapshot: Snapshot,
    sql: str,
    options: Mapping[str, str] | None = None,
    scratch: Path | None = None,
    rows: Table | None = None,
) -> Iterator[pa.RecordBatchReader]:
    """Run a SELECT over a snapshot, and yield a stream of its rows; only tables that the query names are read.

    A table is called `uid.state`, with special names in double quotes: `"my op"."timers.event"`; or `state`, if only
    one operator has it. Metadata tables are `metadata.operators` and so on. `options` are the storage's. The table
    `rows` is also called `rows`. Raises ConfigurationError if DuckDB is missing or refuses the query, or if that is no
    SELECT, and what `StateReader.rows` raises.
    """
    duckdb = _duckdb()
    tables = _distinct(all_tables(snapshot))
    known = [ROWS] * (rows is not None) + [table.name for table in tables]
    with StateReader(scratch) as reader, duckdb.connect() as database, ThreadPoolExecutor(1) as thread:
        sources: list[_Source] = []
        try:
            _name_catalog(database, tables)
            database.execute("SET TimeZone = 'UTC'")
            # By default, DuckDB spills to the working directory.
            database.execute("SET temp_directory = ?", [str(reader.scratch)])
            # An unknown name is an error: not a variable of this program, and not an extension to download.
            database.execute("SET python_enable_replacements = false; SET autoinstall_known_extensions = false")
            if rows is not None:
                sources.append(_Source(partial(_schema, rows), partial(reader.rows, rows)))
                database.register(ROWS, sources[0])
            sources += _register(database, snapshot, tables, options, reader)
            # Refuse other statements before they run: they would write, or drop tables.
            kinds = [statement.type for statement in database.extract_statements(sql)]
            if kinds != [duckdb.StatementType.SELECT]:
                raise ConfigurationError(
                    f"the query is {' and '.join(kind.name for kind in kinds) or 'empty'}, expected one SELECT",
                    hint="a query only reads; --csv, --json and --parquet write what it gives",
                )
            call = partial(_call, database, thread)
            batches = call(lambda: database.sql(sql).to_arrow_reader(_BATCH_ROWS))
        except duckdb.Error as error:
            raise _unwrap(error, sources, known, reader.scratch) from error
        yield pa.RecordBatchReader.from_batches(
            batches.schema, _unwrapping(call, batches, sources, known, reader.scratch, duckdb.Error)
        )


def _call(database: Any, thread: ThreadPoolExecutor, function: Callable[[], Any]) -> Any:
    """Call DuckDB in a thread, and interrupt it if a signal arrives: in the main thread, it would run to its end."""
    running = thread.submit(function)
    try:
        return running.result()
    except KeyboardInterrupt:
        # It misses an interrupt that comes before its query runs.
        while not running.done():
            database.interrupt()
            wait([running], 0.1)
        raise


def _name_catalog(database: Any, tables: list[Table]) -> None:
    """Rename the database, which is called `memory`: its name must not be an operator's uid."""
    uids, name = {table.operator.uid.lower() for table in tables}, "snapshot"
    while name in uids:
        name += "_"
    database.execute(f"ATTACH ':memory:' AS {_quoted(name)}; USE {_quoted(name)}; DETACH memory")


def _distinct(tables: list[Table]) -> list[Table]:
    """Omit tables whose names differ only in case."""
    names = Counter(table.name.lower() for table in tables)
    return [table for table in tables if names[table.name.lower()] == 1]


def _register(
    database: Any, snapshot: Snapshot, tables: list[Table], options: Mapping[str, str] | None, reader: StateReader
) -> list[_Source]:
    """Register all tables under their names, without reading them."""
    sources: list[_Source] = []
    states = Counter(table.state.name.lower() for table in tables)
    names = {table.name.lower() for table in tables}

    def register(schema: str, name: str, source: _Source, whole: str, *, alone: bool = False) -> None:
        sources.append(source)
        database.register(whole, source)
        views = [f"{_quoted(schema)}.{_quoted(name)}"] * (schema.lower() not in _SCHEMAS_OF_DUCKDB)
        if views:
            database.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
        if alone:
            views.append(_quoted(name))
        for view in views:
            database.execute(f"CREATE VIEW IF NOT EXISTS {view} AS FROM {_quoted(whole)}")

    for table in tables:
        source = _Source(partial(_schema, table), partial(reader.rows, table))
        name = table.state.name
        register(table.operator.uid, name, source, table.name, alone=states[name.lower()] == 1)
    for name in METADATA_TABLES:
        if f"{METADATA}.{name}" not in names:
            rows = partial(_metadata, snapshot, name, options)
            register(METADATA, name, _Source(partial(metadata_schema, name), rows), f"{METADATA}.{name}")
    return sources


def _schema(table: Table) -> pa.Schema:
    return table.schema


def _metadata(snapshot: Snapshot, name: str, options: Mapping[str, str] | None) -> Iterator[pa.RecordBatch]:
    return iter(metadata(snapshot, name, options).to_batches())


def _unwrapping(
    call: Callable[[Callable[[], Any]], Any],
    batches: Iterator[pa.RecordBatch],
    sources: list[_Source],
    known: list[str],
    scratch: Path,
    failure: type[Exception],
) -> Iterator[pa.RecordBatch]:
    try:
        while (batch := call(partial(next, batches, None))) is not None:
            yield batch
    except (failure, pa.ArrowException, OSError) as error:
        raise _unwrap(error, sources, known, scratch) from error


def _unwrap(error: Exception, sources: list[_Source], known: list[str], scratch: Path) -> StrandlineError:
    """Return the StrandlineError of a source, or else wrap DuckDB's. Raises UnavailableError if a disk is full."""
    for source in sources:
        if isinstance(source.failed, StrandlineError):
            return source.failed
        refuse_full_disk(source.failed, scratch)
    refuse_full_disk(error, scratch)
    names = known + [f"{METADATA}.{name}" for name in METADATA_TABLES]
    hint = f'the tables are {", ".join(names)}; quote what is no plain name: "my op"."timers.event"'
    # A built-in schema of DuckDB hides an operator of its name.
    if hidden := [name for name in known if name.lower().startswith(tuple(f"{each}." for each in _SCHEMAS_OF_DUCKDB))]:
        whole = ", ".join(map(_quoted, hidden))
        hint += f"; an operator has the name of a schema of DuckDB's own: write {whole}, in one pair of quotes"
    return ConfigurationError(f"the query failed: {error}", hint=hint)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise ConfigurationError(
            "SQL over state needs DuckDB, which is not installed", hint="pip install 'strandline[tables]'"
        ) from error
    return duckdb
