"""Rows of a state changed by SQL: what a SELECT makes of them is what is there instead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import ConfigurationError, StateTypeError
from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.opening.snapshot import Snapshot
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.panemarks import Marks
from strandline.snapshot.savepoints.builder import find_state
from strandline.snapshot.tables.reader import StateReader
from strandline.snapshot.tables.sql import ROWS, query
from strandline.snapshot.tables.table import Table, all_tables
from strandline.snapshot.tools.patch import Source


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
    marks = Marks(table.operator, table.state)
    if marks.are_there:
        with StateReader(scratch) as reader:
            deque(marks.noted(reader.rows(table)), maxlen=0)
    try:
        with query(snapshot, sql, options, scratch, table) as found:
            yield from marks.kept(fitting(table.operator, table.state, found))
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
        found = column.cast(wanted)
        why = _change(column, found)
    except pa.ArrowException as error:
        why = str(error).splitlines()[0]
    if why:
        raise StateTypeError(
            f"operator '{operator.uid}', state '{state.name}': the column '{name}' is {column.type}, and cannot become "
            f"{wanted} without a change: {why}",
            hint="make it in the query what it is to be: cast it, and give a struct its fields by their names",
        )
    return found


def _change(given: pa.Array, found: pa.Array) -> str:
    """Return what a cast has changed that Arrow says nothing of; "" if nothing. A float may have fewer digits."""
    before, after = given.type, found.type
    if before == after or pa.types.is_null(before):
        return ""
    if pa.types.is_struct(after):
        names, wanted = ([field.name for field in kind] for kind in (before, after))
        if sorted(names) != sorted(wanted):
            # Arrow leaves out what is not wanted, and puts null for what is not there.
            return f"the fields of the struct are {', '.join(names)}, and are to be {', '.join(wanted)}"
        columns = dict(zip(names, given.flatten(), strict=True))
        parts = [(columns[name], part) for name, part in zip(wanted, found.flatten(), strict=True)]
    elif pa.types.is_map(after) and pa.types.is_map(before):
        parts = list(zip(_entries(given), _entries(found), strict=True))
    elif pa.types.is_nested(after) and pa.types.is_nested(before):
        parts = [(given.flatten(), found.flatten())]
    else:
        return "" if _is_same(given, found) else "some value would be another one"
    return next(filter(None, (_change(*part) for part in parts)), "")


def _entries(maps: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    first, last = (maps.offsets[at].as_py() for at in (0, -1)) if len(maps) else (0, 0)
    return maps.keys.slice(first, last - first), maps.items.slice(first, last - first)


def _is_same(given: pa.Array, found: pa.Array) -> bool:
    """Whether values without parts are the same in another type; of texts, Arrow says what is none."""
    before, after = given.type, found.type
    if pa.types.is_floating(before) and pa.types.is_floating(after):
        return bool(pc.is_inf(found).equals(pc.is_inf(given)))
    if pa.types.is_floating(before) and pa.types.is_decimal(after):
        # The way back is a bit off in Arrow.
        texts = found.cast(pa.string())
        return bool(texts.cast(before).equals(given))
    if all(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) for kind in (before, after)):
        return bool(found.cast(before, safe=False).equals(given))
    return True
