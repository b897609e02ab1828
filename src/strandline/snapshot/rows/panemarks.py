"""Marks of panes: rows without a key. A mark is the time up to which its key group's windows have fired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from strandline.format.manifest import OperatorInfo, StateInfo
from strandline.snapshot.rows.codecs import rows_of
from strandline.snapshot.rows.columns import KEY_GROUP, WINDOW_END
from strandline.snapshot.rows.keys import key_columns


class Marks:
    """The marks of a state, kept while an edit changes its rows.

    SQL conditions and Arrow filters on keys also drop the rows without a key. Without its mark, a key group would fire
    windows again.
    """

    def __init__(self, operator: OperatorInfo, state: StateInfo) -> None:
        self._schema = rows_of(operator, state).schema
        self._key = key_columns(operator)[0].name if state.kind == "panes" else ""
        self.times: dict[int, int] = {}
        """The recorded marks, by key group."""

    @property
    def exist(self) -> bool:
        """Whether the state's kind has marks."""
        return bool(self._key)

    def record(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows before the edit, and record their marks."""
        for batch in batches:
            if self._key:
                marks = batch.filter(batch.column(self._key).is_null())
                times = marks.column(WINDOW_END).view(pa.int64()).to_pylist()
                self.times.update(zip(marks.column(KEY_GROUP).to_pylist(), times, strict=True))
            yield batch

    def restore(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows after the edit, then the marks that they lack."""
        for batch in batches:
            if self._key and {self._key, KEY_GROUP} <= set(batch.schema.names):
                marks = batch.filter(batch.column(self._key).is_null())
                for group in marks.column(KEY_GROUP).to_pylist():
                    self.times.pop(group, None)
            yield batch
        if self.times:
            yield mark_rows(self._schema, self.times)


def mark_rows(schema: pa.Schema, marks: Mapping[int, int]) -> pa.RecordBatch:
    """Return the rows of marks, which have times by key group."""
    columns = {
        KEY_GROUP: pa.array(list(marks), pa.int32()),
        WINDOW_END: pa.array(list(marks.values()), pa.int64()).view(schema.field(WINDOW_END).type),
    }
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(len(marks), field.type)) for field in schema], schema=schema
    )
