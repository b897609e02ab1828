"""Stateless Python functions on rows."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from strandline.core.errors import UserCodeError
from strandline.runtime.task.outputs import OutputBuilder
from strandline.types.columns import to_python
from strandline.types.datatypes import parse_schema
from strandline.types.records import record_type


@dataclass(frozen=True)
class RowFunction:
    """Calls a function for each row and builds Arrow batches of what it gives."""

    function: Callable[[Any], Iterable[Any] | None]
    input_schema: str
    output_schema: str
    what: ClassVar[str] = "map"
    """The method that users call for it."""
    hidden: int = 0
    """How many columns at the end the function does not see: what it gives for a row keeps them."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run on batches of rows, as mapInArrow gives them."""
        fields = parse_schema(self.input_schema).fields
        make = record_type([field.name for field in fields])._make
        outputs = OutputBuilder(self.what, parse_schema(self.output_schema))
        for batch in batches:
            columns = [to_python(c, f.type) for c, f in zip(batch.columns[: len(fields)], fields, strict=True)]
            rows, came_of = self._run(list(map(make, zip(*columns, strict=True))))
            built = outputs.from_rows(rows) if rows else None
            if built is not None:
                yield self._with_hidden(built, batch, came_of) if self.hidden else built

    def _run(self, records: Sequence[Any]) -> tuple[list[Any], list[int]]:
        """Call the function for each record; return what it gives, and of which record each row came."""
        rows: list[Any] = []
        came_of: list[int] = []
        row = None
        try:
            for at, row in enumerate(records):
                out = self.function(row)
                if out is not None:
                    rows.extend(out)
                    if self.hidden:
                        came_of.extend([at] * (len(rows) - len(came_of)))
        except UserCodeError:
            raise
        except Exception as error:
            raise user_error(self.what, error, row) from error
        return rows, came_of

    def _with_hidden(self, built: pa.RecordBatch, batch: pa.RecordBatch, came_of: list[int]) -> pa.RecordBatch:
        rows = pa.array(came_of, pa.int64())
        columns = [column.take(rows) for column in batch.columns[-self.hidden :]]
        names = [*built.schema.names, *batch.schema.names[-self.hidden :]]
        return pa.RecordBatch.from_arrays([*built.columns, *columns], names=names)


def user_error(what: str, error: Exception, row: Any) -> UserCodeError:
    """Return the error that says on which row a function raised, with the user's own traceback."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return UserCodeError(
        f"{what}: the function raised on the row {row!r}: {type(error).__name__}: {error}\n{text}",
        hint="fix the function and start again: the job goes on from its last checkpoint",
        event=repr(row),
        traceback=text,
    )
