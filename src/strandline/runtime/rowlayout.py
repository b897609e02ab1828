"""The hidden columns of rows between Spark and a keeper, and their positions.

A row to a keeper has the partition, which the worker removes; the key group, null only in the END; the times, flags and
origins that the layout has; and the operator's columns. A row from it has the output's columns, side output, time and
flag.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import pyarrow as pa

PARTITION = "__strandline_partition"
KEY_GROUP = "__strandline_key_group"
TIME = "__strandline_time"
"""Of rows between a watermark and the sinks: the event's time in microseconds since 1970, or null."""
FIRED = "__strandline_fired"
"""Of an operator's output: whether a timer emitted the row, which is then processed before the watermark moves on."""
ORIGIN = "__strandline_origin"
"""Of rows straight from a watermark with `per`, or from one of two inputs: the origin whose watermark they move."""
SIDE = "__strandline_side"
"""Of an operator with side outputs: the number of the row's output, 0 for the main one."""

ROWS = "__strandline_rows"
"""Of accumulators: the number of the stream's rows in them."""

HIDDEN = (TIME, FIRED, ORIGIN)
"""The hidden columns of an operator's input, in this order."""


class RowLayout(msgspec.Struct, frozen=True):
    """The hidden columns that an operator's rows have, between the key group and the operator's columns."""

    timed: bool = False
    """Rows have their times."""
    has_fired: bool = False
    """Rows have the flag FIRED: those of timers are processed before the watermark moves on."""
    has_origins: bool = False
    """Rows have the origin whose watermark they move."""

    @classmethod
    def of(cls, hidden: Collection[str]) -> RowLayout:
        """Return the layout of rows with these hidden columns."""
        return cls(TIME in hidden, FIRED in hidden, ORIGIN in hidden)

    @property
    def columns_at(self) -> int:
        """The index of the operator's first column."""
        return 1 + self.timed + self.has_fired + self.has_origins

    def groups(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the rows' key groups."""
        return rows.column(0)

    def times(self, rows: pa.RecordBatch) -> pa.Array | None:
        """Return the rows' times, if they have any."""
        return rows.column(1) if self.timed else None

    def fired(self, rows: pa.RecordBatch) -> pa.Array | None:
        """Return the rows' flags FIRED, if they have any."""
        return rows.column(1 + self.timed) if self.has_fired else None

    def origins(self, rows: pa.RecordBatch) -> pa.Array | None:
        """Return the rows' origins, if they have any."""
        return rows.column(1 + self.timed + self.has_fired) if self.has_origins else None

    def columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the operator's columns."""
        return list(rows.columns[self.columns_at :])

    def lay_out(
        self, groups: pa.Array, hidden: Sequence[pa.Array | None], columns: Sequence[pa.Array], names: Sequence[str]
    ) -> pa.RecordBatch:
        """Return rows as a keeper gets them; `hidden` is in the order of HIDDEN, with None for absent columns."""
        present = [(name, column) for name, column in zip(HIDDEN, hidden, strict=True) if column is not None]
        assert RowLayout.of([name for name, _ in present]) == self
        arrays = [groups, *(column for _, column in present), *columns]
        return pa.RecordBatch.from_arrays(arrays, names=[KEY_GROUP, *(name for name, _ in present), *names])


def split_end(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, bool]:
    """Return a worker's rows without the partition and the END, and whether it was there: it is always the last row."""
    ends = batch.column(1).null_count
    return batch.slice(0, batch.num_rows - ends).select(range(1, batch.num_columns)), ends > 0


def partition_of(batch: pa.RecordBatch) -> int:
    """Return the partition that a worker's rows are of."""
    return int(batch.column(0)[0].as_py())
