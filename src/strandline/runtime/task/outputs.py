"""Converts the rows that user functions return to Arrow batches of the declared output schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from strandline.core.errors import ConfigurationError, OutputError, StateTypeError
from strandline.core.failure import shortened
from strandline.runtime.output_rows import names_of, row_copier
from strandline.runtime.rowlayout import FIRED, SIDE, TIME
from strandline.types.coercion import MisfitError, coercion
from strandline.types.columns import arrow_schema, conform, from_python
from strandline.types.datatypes import Field, StructType, parse_schema, parse_type
from strandline.types.records import record_type


def raw_ddl(output: str, sides: Mapping[str, str], *, timed: bool) -> str:
    """Return the DDL of a keeper's output rows: the output's columns, a struct for each side output, and the times."""
    fields = list(parse_schema(output).fields)
    if sides:
        fields.append(Field(SIDE, parse_type("int")))
        fields += [Field(f"{SIDE}_{at}", parse_schema(ddl)) for at, ddl in enumerate(sides.values(), 1)]
    if timed:
        fields += [Field(TIME, parse_type("bigint")), Field(FIRED, parse_type("boolean"))]
    return StructType(tuple(fields)).ddl


class RawOutput:
    """Builds the output rows of one operator for transport: with their times, and with side outputs among them."""

    def __init__(self, uid: str, output: str, sides: Mapping[str, str], *, timed: bool, step: str = "") -> None:
        self.main = OutputBuilder(uid, parse_schema(output), step)
        self.schema = arrow_schema(parse_schema(raw_ddl(output, sides, timed=timed)))
        self.sides = {name: OutputBuilder(uid, parse_schema(ddl)) for name, ddl in sides.items()}
        self.fired = False
        """Whether the present rows come from timers."""
        self.waiting = 0
        """The number of rows for side outputs that were not taken yet."""
        self._uid = uid
        self._timed = timed
        self._side_rows: dict[str, list[tuple[Any, int | None]]] = {name: [] for name in sides}
        """Rows and their times."""
        self._side_batches: list[pa.RecordBatch] = []

    def from_rows(self, rows: list[Any], times: Sequence[int | None]) -> pa.RecordBatch:
        """Convert main output; `times` may be empty if the output has no times."""
        return self._complete(self.main.from_rows(rows), times)

    def from_arrow(self, result: Any, times: pa.Array | None = None) -> pa.RecordBatch | None:
        """Convert a vectorised function's main output; without times, its rows have none."""
        batch = self.main.from_arrow(result)
        return None if batch is None else self._complete(batch, [None] * batch.num_rows if times is None else times)

    def add_side(self, side: str, row: Any, time_us: int | None) -> None:
        """Keep a row for a side output."""
        self._check_side(side)
        self._side_rows[side].append((self.sides[side].copied(row), time_us))
        self.waiting += 1

    def fitting(self, side: str, row: Any) -> Any:
        """Return a row for a side output as `OutputBuilder.fitting` does."""
        self._check_side(side)
        return self.sides[side].fitting(row)

    def take_back(self, side: str) -> None:
        """Discard the last row that was kept for a side output."""
        self._side_rows[side].pop()
        self.waiting -= 1

    def add_side_batch(self, side: str, result: Any) -> None:
        """Keep a vectorised function's rows for a side output; they have no times."""
        self._check_side(side)
        batch = self.sides[side].from_arrow(result, f"emit('{side}', …) was given")
        if batch is not None:
            at = 1 + list(self.sides).index(side)
            self._side_batches.append(self._complete(batch, [None] * batch.num_rows, side=at))

    def take_sides(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that were kept for side outputs."""
        for at, (side, kept) in enumerate(self._side_rows.items(), 1):
            if kept:
                batch = self.sides[side].from_rows([row for row, _ in kept])
                yield self._complete(batch, [time_us for _, time_us in kept], side=at)
                self._side_rows[side] = []
        self.waiting = 0
        batches, self._side_batches = self._side_batches, []
        yield from batches

    def forget(self) -> None:
        """Discard rows that were not taken, and reset `fired`."""
        self._side_rows = {name: [] for name in self.sides}
        self._side_batches = []
        self.waiting = 0
        self.fired = False

    def _check_side(self, side: str) -> None:
        if side not in self.sides:
            raise OutputError(
                f"operator '{self._uid}' has no side output '{side}', only {', '.join(self.sides)}",
                hint="declare it in `sides` of process()",
                operator=self._uid,
            )

    def _complete(self, batch: pa.RecordBatch, times: Sequence[int | None] | pa.Array, side: int = 0) -> pa.RecordBatch:
        if not self._timed and not self.sides:
            return batch
        rows = batch.num_rows
        arrays: list[pa.Array] = list(batch.columns)
        if side:
            arrays = [pa.nulls(rows, field.type) for field in self.main.schema]
        if self.sides:
            arrays.append(pa.array([side] * rows, pa.int32()))
        for at in range(1, len(self.sides) + 1):
            kind = self.schema.field(f"{SIDE}_{at}").type
            if at == side:
                arrays.append(pa.StructArray.from_arrays(batch.columns, fields=list(kind)))
            else:
                arrays.append(pa.nulls(rows, kind))
        if self._timed:
            arrays += [pa.array(times, pa.int64()), pa.array([self.fired] * rows)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class OutputBuilder:
    """Checks and converts the output rows of one operator, or of a step."""

    def __init__(self, uid: str, schema: StructType, step: str = "") -> None:
        self._uid = uid
        self._where = step or f"operator '{uid}'"
        self._types = [field.type for field in schema.fields]
        self._names = list(schema.names)
        self.schema = arrow_schema(schema)
        self.plain, self.copied = row_copier(self._names, self._types)
        """The class of rows that can be kept as they are, and the function that copies all others."""
        self._record = record_type(self._names)
        self._coerce = coercion(schema)

    def fitting(self, row: Any) -> Any:
        """Return a row in the form that can be converted; raise OutputError now, if it does not fit."""
        if type(row) is dict and len(row) == len(self._names):
            try:
                row = tuple([row[name] for name in self._names])
            except KeyError:
                row = self._as_tuple(row)
        elif type(row) is not self._record and (type(row) is not tuple or len(row) != len(self._names)):
            row = self._as_tuple(row)
        try:
            return self._coerce(row)
        except MisfitError as misfit:
            raise self._error(f"{misfit}, in the output row {row!r}") from None

    def from_rows(self, rows: list[Any]) -> pa.RecordBatch:
        """Convert dicts or tuples."""
        columns = self._columns(rows)
        arrays = []
        for name, type_, values in zip(self._names, self._types, columns, strict=True):
            try:
                arrays.append(from_python(values, type_, name))
            except OutputError as error:
                row = rows[error.fields["index"]] if "index" in error.fields else None
                raise self._error(f"{error.message}, in the output row {_abbreviated(row)}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def from_arrow(self, result: Any, what: str = "on_batch returned") -> pa.RecordBatch | None:
        """Convert a RecordBatch or Table; columns are matched by name and must fit without loss."""
        if isinstance(result, pa.Table):
            result = self._one(result.combine_chunks().to_batches(), what)
        if result is None:
            return None
        if not isinstance(result, pa.RecordBatch):
            raise self._error(f"{what} a {type(result).__name__}, expected a pyarrow RecordBatch or Table")
        names = result.schema.names
        if sorted(names) != sorted(self._names):
            raise self._error(f"{what} the columns {', '.join(names)}; expected {', '.join(self._names)}")
        arrays = []
        for field, type_ in zip(self.schema, self._types, strict=True):
            column = result.column(field.name)
            try:
                arrays.append(conform(column, type_))
            except (StateTypeError, ConfigurationError) as error:
                why = error.fields.get("why", f": {error.message}")
                message = f"{what} the column '{field.name}' as {column.type}, expected {field.type}{why}"
                raise self._error(message, error.hint) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _one(self, batches: list[pa.RecordBatch], what: str) -> pa.RecordBatch | None:
        """Return the only batch: a table stays in pieces if a column has more than 2 GB of text."""
        if len(batches) > 1:
            raise self._error(f"{what} a table too large for one batch", "give smaller tables")
        return batches[0] if batches else None

    def _columns(self, rows: list[Any]) -> Iterable[Sequence[Any]]:
        kinds = set(map(type, rows))
        width = len(self._names)
        if all(issubclass(kind, tuple) for kind in kinds):
            if set(map(len, rows)) == {width} and _names(rows, kinds) <= {tuple(self._names)}:
                # For plain tuples, indexes are faster; those of records are a call of Python each.
                return [[row[i] for row in rows] for i in range(width)] if kinds == {tuple} else zip(*rows, strict=True)
        elif kinds == {dict} and set(map(len, rows)) == {width}:
            try:
                return [[row[name] for row in rows] for name in self._names]
            except KeyError:
                pass
        tuples = [self._as_tuple(row) for row in rows]
        return [[row[i] for row in tuples] for i in range(width)]

    def _as_tuple(self, row: Any) -> tuple[Any, ...]:
        expected = ", ".join(self._names)
        names = names_of(row)
        by_name = dict(zip(names, row, strict=False)) if names else row
        if len(set(names)) < len(names):
            raise self._error(f"the output row {_abbreviated(row)} has a name twice; expected the columns {expected}")
        if isinstance(by_name, dict):
            missing = [name for name in self._names if name not in by_name]
            unknown = [str(name) for name in by_name if name not in self._names]
            if missing or unknown:
                misfits = [f"{what} {', '.join(n)}" for what, n in (("misses", missing), ("has unknown", unknown)) if n]
                why = " and ".join(misfits)
                raise self._error(f"the output row {_abbreviated(row)} {why}; expected the columns {expected}")
            return tuple(by_name[name] for name in self._names)
        if isinstance(row, tuple | list):
            if any(isinstance(value, dict) and value.keys() == set(self._names) for value in row):
                # A list that was yielded is a tuple by now.
                raise self._error(
                    f"an output row is {_abbreviated(row)}, several rows in a list or tuple; expected one row",
                    "yield each row: yield row, not yield [row]; or return the list",
                )
            if len(row) != len(self._names):
                raise self._error(
                    f"the output row {_abbreviated(row)} has {len(row)} values, expected {len(self._names)}: {expected}"
                )
            return tuple(row)
        raise self._error(
            f"an output row is {_abbreviated(row)}, a {type(row).__name__}; expected a dict or a tuple of {expected}",
            "yield each row, or return a list of rows",
        )

    def _error(self, message: str, hint: str = "make the rows fit, or change `output` of process()") -> OutputError:
        whose = f"{self._where}: "
        discreet = f"{whose}an output row does not fit the declared columns (its values are not shown here)"
        operator = {"operator": self._uid} if self._uid else {}
        return OutputError(whose + message, hint=hint, discreet=discreet, **operator)


def _abbreviated(row: Any) -> str:
    return shortened(repr(row))


def _names(rows: list[Any], kinds: set[type]) -> set[tuple[str, ...]]:
    """Return the names that tuples have: a class of namedtuples has one sequence of them, each Row of Spark its own."""
    sequences = {tuple(kind._fields) for kind in kinds if hasattr(kind, "_fields")}
    if any(kind.__dictoffset__ and not hasattr(kind, "_fields") for kind in kinds):
        sequences.update(map(names_of, rows))
    sequences.discard(())
    return sequences
