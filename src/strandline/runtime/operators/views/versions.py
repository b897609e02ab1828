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
_ASCENDING = Order(0, is_descending=False, nulls_last=False)


class Versions(EpochOperator):
    """The rows of a table, of versions by key: a version replaces the one before, or deletes it.

    A row of the input has the key, the columns, and whether the key is deleted. Within an epoch, the last row of a key
    counts. With `order_by`, the index of a column, a version older than the newest one does not count: so a row that is
    deleted stays in the state, marked as gone. A version that deletes without a value there, as a message of Kafka that
    has none, is newer than all that came before, and older than all that come later.
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
        columns = columns[len(self._keys) :]
        last, begins_anew = self._last(of_row, columns, count)
        *parts, deleted = (column.take(pa.array(last)) for column in columns)
        stored, gone = state.get_many(keys), pc.fill_null(deleted, False).to_numpy(zero_copy_only=False)
        rows, (was_gone, stored_rows) = kind.rows_of(parts), stored.flatten()
        counts = np.ones(count, bool)
        if self._order_by is not None:
            is_older = _is_older(rows.field(self._order_by), stored_rows.field(self._order_by)) & ~begins_anew
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

    def _last(self, of_row: Numbers, columns: Sequence[pa.Array], count: int) -> tuple[Numbers, Numbers]:
        """Return the row of each key that counts, and whether a deletion without a value to order by came before it."""
        last, begins_anew, rows = np.empty(count, np.int64), np.zeros(count, bool), np.arange(len(of_row))
        if self._order_by is not None:
            order = columns[self._order_by]
            ends = pc.and_(pc.fill_null(columns[-1], False), order.is_null()).to_numpy(zero_copy_only=False)
            begins_anew[of_row[ends]] = True
            arrival, life = np.argsort(of_row, kind="stable"), np.empty(len(of_row), np.int64)
            life[arrival] = np.cumsum(ends[arrival])
            flags, numbers = sortable(order, _ASCENDING)
            rows = np.lexsort((rows, numbers, flags, life))
        last[of_row[rows]] = rows
        return last, begins_anew


def _is_older(ones: pa.Array, others: pa.Array) -> Numbers:
    """Return where a value is less than another, in Spark's order, in which null is the least."""
    flags, numbers = sortable(pa.concat_arrays([ones, others]), _ASCENDING)
    n = len(ones)
    is_less: Numbers = (flags[:n] < flags[n:]) | ((flags[:n] == flags[n:]) & (numbers[:n] < numbers[n:]))
    return is_less
