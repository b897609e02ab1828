"""What user functions give back, as Arrow batches of the declared output schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from strandline.core.errors import ConfigurationError, OutputError, StateTypeError
from strandline.format.columns import arrow_schema, conform, from_python
from strandline.format.types import StructType


class OutputBuilder:
    """Checks and converts output rows of one operator."""

    def __init__(self, uid: str, schema: StructType) -> None:
        self._uid = uid
        self._types = [field.type for field in schema.fields]
        self._names = list(schema.names)
        self.schema = arrow_schema(schema)

    def from_rows(self, rows: list[Any]) -> pa.RecordBatch:
        """Convert dicts or tuples."""
        columns = self._columns(rows)
        arrays = []
        for name, type_, values in zip(self._names, self._types, columns, strict=True):
            try:
                arrays.append(from_python(values, type_, name))
            except OutputError as error:
                row = rows[error.fields["index"]] if "index" in error.fields else None
                raise self._error(f"{error.message}, in the output row {row!r}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def from_arrow(self, result: Any) -> pa.RecordBatch | None:
        """Convert a RecordBatch or Table; columns are matched by name and must fit without loss."""
        if isinstance(result, pa.Table):
            result = self._one(result.combine_chunks().to_batches())
        if result is None:
            return None
        if not isinstance(result, pa.RecordBatch):
            raise self._error(f"on_batch returned a {type(result).__name__}, expected a pyarrow RecordBatch or Table")
        given = result.schema.names
        if sorted(given) != sorted(self._names):
            raise self._error(f"on_batch returned the columns {', '.join(given)}; expected {', '.join(self._names)}")
        arrays = []
        for field, type_ in zip(self.schema, self._types, strict=True):
            column = result.column(field.name)
            try:
                arrays.append(conform(column, type_))
            except (StateTypeError, ConfigurationError) as error:
                said = f"column '{field.name}' is {column.type}, expected {field.type}: {error.message}"
                raise self._error(said, error.hint) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _one(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch | None:
        """A table stays in pieces where a column has more than 2 GB of text."""
        if len(batches) > 1:
            raise self._error("on_batch returned a table too large for one batch", "return smaller tables")
        return batches[0] if batches else None

    def _columns(self, rows: list[Any]) -> Sequence[list[Any]]:
        kinds = set(map(type, rows))
        width = len(self._names)
        if all(issubclass(kind, tuple) for kind in kinds):
            if set(map(len, rows)) == {width} and _names(rows, kinds) <= {tuple(self._names)}:
                return [[row[i] for row in rows] for i in range(width)]
        elif kinds == {dict} and set(map(len, rows)) == {width}:
            try:
                return [[row[name] for row in rows] for name in self._names]
            except KeyError:
                pass
        tuples = [self._as_tuple(row) for row in rows]
        return [[row[i] for row in tuples] for i in range(width)]

    def _as_tuple(self, row: Any) -> tuple[Any, ...]:
        expected = ", ".join(self._names)
        names = _names_of(row)
        by_name = dict(zip(names, row, strict=False)) if names else row
        if len(set(names)) < len(names):
            raise self._error(f"the output row {row!r} has a name twice; expected the columns {expected}")
        if isinstance(by_name, dict):
            missing = [name for name in self._names if name not in by_name]
            unknown = [str(name) for name in by_name if name not in self._names]
            if missing or unknown:
                said = [f"{what} {', '.join(n)}" for what, n in (("misses", missing), ("has unknown", unknown)) if n]
                raise self._error(f"the output row {row!r} {' and '.join(said)}; expected the columns {expected}")
            return tuple(by_name[name] for name in self._names)
        if isinstance(row, tuple | list):
            if len(row) != len(self._names):
                raise self._error(
                    f"the output row {row!r} has {len(row)} values, expected {len(self._names)}: {expected}"
                )
            return tuple(row)
        raise self._error(
            f"an output row is {row!r}, a {type(row).__name__}; expected a dict or a tuple of {expected}",
            "yield each row, or return a list of rows",
        )

    def _error(self, message: str, hint: str = "make the rows fit, or change `output` of process()") -> OutputError:
        return OutputError(f"operator '{self._uid}': {message}", hint=hint, operator=self._uid)


def _names(rows: list[Any], kinds: set[type]) -> set[tuple[str, ...]]:
    """Return the orders of names that tuples come with: a kind of tuple has them, and Spark's Row in each object."""
    found = {tuple(kind._fields) for kind in kinds if hasattr(kind, "_fields")}
    if any(kind.__dictoffset__ and not hasattr(kind, "_fields") for kind in kinds):
        found.update(map(_names_of, rows))
    found.discard(())
    return found


def _names_of(row: Any) -> tuple[str, ...]:
    if not isinstance(row, tuple):
        return ()
    return tuple(getattr(row, "_fields", ()) or getattr(row, "__fields__", ()))
