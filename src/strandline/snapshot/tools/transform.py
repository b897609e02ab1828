"""Changes a state by SQL: the result of a SELECT replaces its rows."""

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
    """Return a source of a state's new rows: the result of a SELECT FROM rows. `name` is `uid.state`.

    The query can read other tables of the snapshot. Columns are cast to the declared types if no value changes. Raises
    ConfigurationError for an unknown state. The source raises what `query` and `fitting` raise.
    """
    operator, state = find_state(snapshot.manifest.operators, name)
    table = next(one for one in all_tables(snapshot) if (one.operator, one.state) == (operator, state))
    return partial(_rows, snapshot, table, sql, options)


def delete(snapshot: Snapshot, name: str, where: str, options: Mapping[str, str] | None = None) -> Source:
    """Return a source of a state's rows without those that match an SQL condition. Raises as `transform` does."""
    # The condition has a line of its own, since it may end with a comment.
    return transform(snapshot, name, f"SELECT * FROM {ROWS} WHERE (\n{where}\n) IS NOT TRUE", options)


def _rows(
    snapshot: Snapshot, table: Table, sql: str, options: Mapping[str, str] | None, scratch: Path
) -> Iterator[pa.RecordBatch]:
    marks = Marks(table.operator, table.state)
    if marks.exist:
        with StateReader(scratch) as reader:
            deque(marks.record(reader.rows(table)), maxlen=0)
    try:
        with query(snapshot, sql, options, scratch, table) as batches:
            yield from marks.restore(fitting(table.operator, table.state, batches))
    except ConfigurationError as error:
        raise ConfigurationError(f"'{table.name}': {error.message}", hint=error.hint) from error


def fitting(operator: OperatorInfo, state: StateInfo, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cast columns to the types of a state's table.

    Raises StateTypeError for a value that a cast would change.
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
        converted = column.cast(wanted)
        why = _change(column, converted)
    except pa.ArrowException as error:
        why = str(error).splitlines()[0]
    if why:
        raise StateTypeError(
            f"operator '{operator.uid}', state '{state.name}': the column '{name}' is {column.type}, and cannot become "
            f"{wanted} without a change: {why}",
            hint="make it in the query what it is to be: cast it, and give a struct its fields by their names",
        )
    return converted


def _change(original: pa.Array, cast: pa.Array) -> str:
    """Return a change by a cast that Arrow does not report, or "". A float may lose digits."""
    before, after = original.type, cast.type
    if before == after or pa.types.is_null(before):
        return ""
    if pa.types.is_struct(after):
        names, wanted = ([field.name for field in kind] for kind in (before, after))
        if sorted(names) != sorted(wanted):
            # Arrow drops unknown fields, and fills missing ones with null.
            return f"the fields of the struct are {', '.join(names)}, and are to be {', '.join(wanted)}"
        columns = dict(zip(names, original.flatten(), strict=True))
        parts = [(columns[name], part) for name, part in zip(wanted, cast.flatten(), strict=True)]
    elif pa.types.is_map(after) and pa.types.is_map(before):
        parts = list(zip(_entries(original), _entries(cast), strict=True))
    elif pa.types.is_nested(after) and pa.types.is_nested(before):
        parts = [(original.flatten(), cast.flatten())]
    else:
        return "" if _is_same(original, cast) else "some value would be another one"
    return next(filter(None, (_change(*part) for part in parts)), "")


def _entries(maps: pa.MapArray) -> tuple[pa.Array, pa.Array]:
    first, last = (maps.offsets[at].as_py() for at in (0, -1)) if len(maps) else (0, 0)
    return maps.keys.slice(first, last - first), maps.items.slice(first, last - first)


def _is_same(original: pa.Array, cast: pa.Array) -> bool:
    """Whether scalar values are equal after a cast. Arrow itself reports texts that do not parse."""
    before, after = original.type, cast.type
    if pa.types.is_floating(before) and pa.types.is_floating(after):
        return bool(pc.is_inf(cast).equals(pc.is_inf(original)))
    if pa.types.is_floating(before) and pa.types.is_decimal(after):
        # Arrow's cast back to a float is inexact.
        texts = cast.cast(pa.string())
        return bool(texts.cast(before).equals(original))
    if all(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) for kind in (before, after)):
        return bool(cast.cast(before, safe=False).equals(original))
    return True
