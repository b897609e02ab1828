"""A table of which a stream has the new versions of its rows: the newest version of each key is state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.states import Value
from strandline.runtime.operators.views.bags import Bag, Numbers, RowType
from strandline.runtime.operators.views.inputs import EpochOperator, change_rows
from strandline.runtime.operators.views.top import Order, sortable
from strandline.runtime.state.columnar import BatchKeys
from strandline.runtime.state.scope import Scope
from strandline.types.datatypes import StructType

NEWEST = "newest"


class Versions(EpochOperator):
    """The rows of a table, of versions by key: a version replaces the one before, or deletes it.

    A row of the input has the key, the columns, and whether the key is deleted. Within an epoch, the last row of a key
    counts. With `order_by`, the index of a column, a version older than the newest one does not count: so a row that is
    deleted stays in the state, marked as gone.
    """

    own_step = "table"

    def __init__(self, keys: StructType, columns: StructType, order_by: int | None) -> None:
        super().__init__()
        self._keys, self._kind, self._order_by = keys.names, RowType(columns), order_by
        self.own_states = {NEWEST: Value(f"struct<gone: boolean, row: {columns.ddl}>")}

    def changes(
        self, keys: BatchKeys, of_row: Numbers, columns: Sequence[pa.Array], scope: Scope
    ) -> pa.RecordBatch | None:
        kind, state, count = self._kind, vars(self)[NEWEST], len(keys)
        last = np.empty(count, np.int64)
        last[of_row] = np.arange(len(of_row))
        *parts, deleted = (column.take(pa.array(last)) for column in columns[len(self._keys) :])
        stored, gone = state.get_many(keys), pc.fill_null(deleted, False).to_numpy(zero_copy_only=False)
        rows, (was_gone, stored_rows) = kind.rows_of(parts), stored.flatten()
        counts = np.ones(count, bool)
        if self._order_by is not None:
            order = rows.field(self._order_by)
            is_older = _is_older(order, stored_rows.field(self._order_by))
            # What deletes a row may not say how new it is, as a message without a value: then it is the newest.
            is_older &= ~(gone & order.is_null().to_numpy(zero_copy_only=False))
            counts = ~(stored.is_valid().to_numpy(zero_copy_only=False) & is_older)
        had = ~pc.fill_null(was_gone, True).to_numpy(zero_copy_only=False)
        old, new = np.flatnonzero(counts & had), np.flatnonzero(counts & ~gone)
        before = Bag(old, stored_rows.take(pa.array(old)), np.full(len(old), -1))
        difference = before.plus(Bag(new, rows.take(pa.array(new)), np.ones(len(new), np.int64))).summed(kind)
        put = np.flatnonzero(counts)
        values = pa.StructArray.from_arrays([pa.array(gone), rows], names=["gone", "row"])
        forgotten = gone if self._order_by is None else np.zeros(count, bool)
        state.put_many(keys.take(put), values.take(pa.array(put, mask=forgotten[put])))
        return change_rows(kind, difference) if len(difference) else None


def _is_older(ones: pa.Array, others: pa.Array) -> Numbers:
    """Return where a value is less than another, in Spark's order, in which null is the least."""
    flags, numbers = sortable(pa.concat_arrays([ones, others]), Order(0, is_descending=False, nulls_last=False))
    n = len(ones)
    is_less: Numbers = (flags[:n] < flags[n:]) | ((flags[:n] == flags[n:]) & (numbers[:n] < numbers[n:]))
    return is_less
