"""Rows of a state changed by SQL: what a SELECT makes of them is what is there instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa

from strandline.core.errors import ConfigurationError, StateTypeError
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.building import find_state
from strandline.snapshot.opened import Snapshot
from strandline.snapshot.patching import Source
from strandline.snapshot.rows import rows_of
from strandline.snapshot.sql import ROWS, query
from strandline.snapshot.tables import Table, all_tables


def transform(snapshot: Snapshot, name: str, sql: str, options: Mapping[str, str] | None = None) -> Source:
    """Return what gives a state, `uid.state`, the rows that a SELECT FROM rows makes of those that it has.

    The other tables of the snapshot are there, too, under their names. Columns become of the types that are declared,
    where no value is changed by it. Raises ConfigurationError for a state that is not there, and when rows are wanted
    what `query` does and `fitting`.
    """
    operator, state = find_state(snapshot.manifest.operators, name)
    table = next(one for one in all_tables(snapshot) if (one.operator, one.state) == (operator, state))
    return partial(_rows, snapshot, table, sql, options)


def delete(snapshot: Snapshot, name: str, where: str, options: Mapping[str, str] | None = None) -> Source:
    """Return what leaves out the rows of a state for which a condition of SQL is true. Raises as `transform` does."""
    # On a line of its own: it may end with a comment.
    return transform(snapshot, name, f"SELECT * FROM {ROWS} WHERE (\n{where}\n) IS NOT TRUE", options)


def _rows(
    snapshot: Snapshot, table: Table, sql: str, options: Mapping[str, str] | None, scratch: Path
) -> Iterator[pa.RecordBatch]:
    try:
        with query(snapshot, sql, options, scratch, table) as found:
            yield from fitting(table.operator, table.state, found)
    except ConfigurationError as error:
        raise ConfigurationError(f"'{table.name}': {error.message}", hint=error.hint) from error


def fitting(operator: OperatorInfo, state: StateInfo, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give columns the exact types that a state's table has, where no value is changed by it.

    Raises StateTypeError for a value that cannot be of its type.
    """
    schema = rows_of(operator, state).schema
    for batch in batches:
        columns = [_fitting(operator, state, schema, batch, name) for name in batch.schema.names]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _fitting(operator: OperatorInfo, state: StateInfo, schema: pa.Schema, batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name) if batch.schema.names.count(name) == 1 else None
    if column is None:
        raise ConfigurationError(f"the query gives two columns '{name}'", hint="give each column of the table once")
    if name not in schema.names or column.type == schema.field(name).type:
        return column
    wanted = schema.field(name).type
    try:
        return column.cast(wanted)
    except pa.ArrowException as error:
        raise StateTypeError(
            f"operator '{operator.uid}', state '{state.name}': the column '{name}' is {column.type}, and cannot become "
            f"{wanted} without a change: {str(error).splitlines()[0]}",
            hint="cast it in the query to what it is to be",
        ) from error
