"""Marks of panes: rows of key groups, and of no key. A mark says up to when the windows of its key group were given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.columns import KEY_GROUP, WINDOW_END
from strandline.snapshot.rows.keys import key_columns


class Marks:
    """The marks that a state has, kept while its rows are changed.

    Who leaves out rows of some keys leaves out those of no key with them, as SQL's conditions do and Arrow's filters:
    windows that were given would be given again.
    """

    def __init__(self, operator: OperatorInfo, state: StateInfo) -> None:
        self._schema = rows_of(operator, state).schema
        self._key = key_columns(operator)[0].name if state.kind == "panes" else ""
        self._times: dict[int, int] = {}

    @property
    def are_there(self) -> bool:
        """Whether the state's kind has marks."""
        return bool(self._key)

    def noted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the rows that there are, and note their marks."""
        for batch in batches:
            if self._key:
                marks = batch.filter(batch.column(self._key).is_null())
                times = marks.column(WINDOW_END).view(pa.int64()).to_pylist()
                self._times.update(zip(marks.column(KEY_GROUP).to_pylist(), times, strict=True))
            yield batch

    def kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the rows that are there instead, and behind them the marks that they lack."""
        for batch in batches:
            if self._key and {self._key, KEY_GROUP} <= set(batch.schema.names):
                marks = batch.filter(batch.column(self._key).is_null())
                for group in marks.column(KEY_GROUP).to_pylist():
                    self._times.pop(group, None)
            yield batch
        if self._times:
            yield mark_rows(self._schema, self._times)


def mark_rows(schema: pa.Schema, marks: Mapping[int, int]) -> pa.RecordBatch:
    """Return the rows of marks, which are given by key group."""
    columns = {
        KEY_GROUP: pa.array(list(marks), pa.int32()),
        WINDOW_END: pa.array(list(marks.values()), pa.int64()).view(schema.field(WINDOW_END).type),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(len(marks), field.type)) for field in schema], schema=schema
    )
