"""A table of which a stream has the new versions of its rows: the newest version of each key is state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.states import Value
from strandline.runtime.operators.views.bags import Bag, Numbers, RowType
from strandline.runtime.operators.views.inputs import EpochOperator, change_rows
from strandline.runtime.state.columnar import BatchKeys
from strandline.runtime.state.scope import Scope
from strandline.types.datatypes import StructType

NEWEST = "newest"


class Versions(EpochOperator):
    """The rows of a table, of versions by key: a version replaces the one before, or deletes it.

    A row of the input has the key, the columns, and whether the key is deleted. Within an epoch, the last row of a key
    counts. With `order_by`, the index of a column, a version older than the newest one does not count.
    """

    own_step = "table"

    def __init__(self, keys: StructType, columns: StructType, order_by: int | None) -> None:
        super().__init__()
        self._keys, self._kind, self._order_by = keys.names, RowType(columns), order_by
        self.own_states = {NEWEST: Value(self._kind.columns.ddl)}

    def changes(
        self, keys: BatchKeys, of_row: Numbers, columns: Sequence[pa.Array], scope: Scope
    ) -> pa.RecordBatch | None:
        kind, state, count = self._kind, vars(self)[NEWEST], len(keys)
        last = np.empty(count, np.int64)
        last[of_row] = np.arange(len(of_row))
        *parts, deleted = (column.take(pa.array(last)) for column in columns[len(self._keys) :])
        rows, stored = kind.rows_of(parts), state.get_many(keys)
        counts = np.ones(count, bool)
        if self._order_by is not None:
            at = self._order_by
            # A version without an order is older than any.
            older = pc.or_(pc.less(rows.field(at), stored.field(at)), pc.is_null(rows.field(at)))
            counts = ~pc.and_(stored.is_valid(), pc.fill_null(older, False)).to_numpy(zero_copy_only=False)
        gone = pc.fill_null(deleted, False).to_numpy(zero_copy_only=False)
        had = stored.is_valid().to_numpy(zero_copy_only=False)
        old, new = np.flatnonzero(counts & had), np.flatnonzero(counts & ~gone)
        before = Bag(old, stored.take(pa.array(old)), np.full(len(old), -1))
        difference = before.plus(Bag(new, rows.take(pa.array(new)), np.ones(len(new), np.int64))).summed(kind)
        changed = np.unique(difference.of_key)
        if not len(changed):
            return None
        state.put_many(keys.take(changed), rows.take(pa.array(changed, mask=gone[changed])))
        return change_rows(kind, difference)
