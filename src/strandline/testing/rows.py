"""Rows on their way through a harness: events that a test gives, and what operators make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.core.errors import ConfigurationError
from strandline.runtime.program import Program
from strandline.runtime.rowlayout import FIRED, SIDE, TIME
from strandline.types.coercion import MisfitError, coercion
from strandline.types.columns import build, to_python
from strandline.types.datatypes import StructType, parse_schema
from strandline.types.ordering import comparable
from strandline.types.records import record_type
from strandline.types.scalars import timestamp_to_us


@dataclass(frozen=True, slots=True)
class Right:
    """An event of the right one of two streams, to be pushed among those of the left one."""

    event: Any


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of rows, and the hidden ones that a stream with event time has."""

    columns: Sequence[pa.Array]
    times: pa.Array | None = None
    fired: pa.Array | None = None
    origins: pa.Array | None = None
    """Which of two streams' watermarks they move."""
    for_all: pa.Array | None = None
    """Which rows go to every partition."""

    def only(self, chosen: pa.Array) -> Rows:
        """Return some of the rows, by a mask."""
        hidden = (self.times, self.fired, self.origins, self.for_all)
        return Rows(
            [c.filter(chosen) for c in self.columns], *(None if h is None else h.filter(chosen) for h in hidden)
        )


class Events:
    """Checks the events of a test against the stream's schema, and puts each epoch's in order."""

    def __init__(
        self, schema: StructType, event_time: str | None, which: str = "", order_by: Sequence[str] = ()
    ) -> None:
        self._schema = schema
        self._what = f"{which}event"
        self._coercions = [coercion(field.type) for field in schema.fields]
        self._order = [(at, comparable(schema.fields[at].type)) for at in map(schema.names.index, order_by)]
        self._time_at = None if event_time is None else schema.names.index(event_time)

    def rows(self, events: Sequence[Any]) -> Rows:
        """Return events, dicts or tuples, as rows; raise ConfigurationError for one that does not fit."""
        fitting = [self._fit(event) for event in events]
        if self._order:
            fitting.sort(key=lambda event: [sortable(event[at]) for at, sortable in self._order])
        columns = [[event[at] for event in fitting] for at in range(len(self._coercions))]
        times = None
        if self._time_at is not None:
            times = pa.array([None if t is None else timestamp_to_us(t) for t in columns[self._time_at]], pa.int64())
        arrays = [build(values, field.type) for values, field in zip(columns, self._schema.fields, strict=True)]
        return Rows(arrays, times)

    def _fit(self, event: Any) -> list[Any]:
        parts = self._parts(event)
        fitting = []
        for part, one, field in zip(parts, self._coercions, self._schema.fields, strict=True):
            try:
                fitting.append(None if part is None else one(part))
            except MisfitError as misfit:
                raise self._error(f"the {self._what} {event!r} does not fit: column '{field.name}': {misfit}") from None
        return fitting

    def _parts(self, event: Any) -> Sequence[Any]:
        names = self._schema.names
        if hasattr(event, "_asdict"):
            event = event._asdict()
        if isinstance(event, Mapping):
            unknown = [str(name) for name in event if name not in names]
            if unknown:
                raise self._error(f"the {self._what} {event!r} has unknown {', '.join(unknown)}")
            return [event.get(name) for name in names]
        if not isinstance(event, tuple | list):
            raise self._error(f"the {self._what} is {event!r}, a {type(event).__name__}, expected a dict or a tuple")
        if len(event) != len(names):
            raise self._error(f"the {self._what} {event!r} has {len(event)} values, expected {len(names)}")
        return event

    def _error(self, message: str) -> ConfigurationError:
        return ConfigurationError(
            f"Harness: {message}", hint=f"make {self._what}s that fit the harness's schema: {self._schema.ddl}"
        )


class RawRows:
    """What one operator gave in one epoch: its main output and its side outputs, still together."""

    def __init__(self, program: Program, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> None:
        self._program = program
        self._table = pa.Table.from_batches(batches, schema)

    def rows(self, side: int) -> Rows:
        """Return the rows of one output, 0 for the main one, as the next operator gets them."""
        table, schema = self._table, self._schema(side)
        if self._program.sides:
            table = table.filter(pc.equal(table[SIDE], side))
        columns = [table.column(at) for at in range(len(schema.names))]
        if side:
            columns = table[f"{SIDE}_{side}"].combine_chunks().flatten()
        hidden = [table[name].combine_chunks() if self._program.gives_time else None for name in (TIME, FIRED)]
        whole = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
        return Rows(whole, *hidden)

    def records(self, side: int) -> list[Any]:
        """Return the rows of one output, 0 for the main one, as a test sees them."""
        schema = self._schema(side)
        columns = self.rows(side).columns
        values = [to_python(column, field.type) for column, field in zip(columns, schema.fields, strict=True)]
        return list(map(record_type(schema.names)._make, zip(*values, strict=True)))

    def _schema(self, side: int) -> StructType:
        return parse_schema([self._program.output_schema, *self._program.sides.values()][side])
