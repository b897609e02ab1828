"""What user functions give back, as Arrow batches of the declared output schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from strandline.core.errors import OutputError
from strandline.format.columns import arrow_schema, from_python
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
            batches = result.combine_chunks().to_batches()
            result = batches[0] if batches else None
        if result is None:
            return None
        if not isinstance(result, pa.RecordBatch):
            raise self._error(f"on_batch returned a {type(result).__name__}, expected a pyarrow RecordBatch or Table")
        given = result.schema.names
        if sorted(given) != sorted(self._names):
            raise self._error(f"on_batch returned the columns {', '.join(given)}; expected {', '.join(self._names)}")
        arrays = []
        for field in self.schema:
            column = result.column(field.name)
            try:
                arrays.append(column if column.type == field.type else column.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise self._error(f"column '{field.name}' is {column.type}, expected {field.type}: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _columns(self, rows: list[Any]) -> Sequence[list[Any]]:
        kinds = set(map(type, rows))
        width = len(self._names)
        if all(issubclass(kind, tuple) for kind in kinds):
            if set(map(len, rows)) == {width}:
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
        if isinstance(row, dict):
            missing = [name for name in self._names if name not in row]
            unknown = [str(name) for name in row if name not in self._names]
            if missing or unknown:
                said = [f"{what} {', '.join(n)}" for what, n in (("misses", missing), ("has unknown", unknown)) if n]
                raise self._error(f"the output row {row!r} {' and '.join(said)}; expected the columns {expected}")
            return tuple(row[name] for name in self._names)
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
