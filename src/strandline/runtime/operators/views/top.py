"""The first rows of each key in an order, with their numbers: row_number(), rank(), dense_rank(), LIMIT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from strandline.api.states import Value
from strandline.runtime.operators.aggregates.grouping import ranks
from strandline.runtime.operators.views.bags import Bag, Numbers, RowType, from_state, to_state
from strandline.runtime.operators.views.inputs import EpochOperator, change_rows, changed_rows
from strandline.runtime.state.columnar import BatchKeys
from strandline.runtime.state.scope import Scope
from strandline.types.datatypes import Field, IntegerType, StructType

ROWS = "rows"
Numbering = Literal["row_number", "rank", "dense_rank"]


@dataclass(frozen=True)
class Order:
    """A column by which rows are sorted."""

    at: int
    is_descending: bool
    nulls_last: bool


class Top(EpochOperator):
    """The rows of each key whose number in an order is at most `count`; all rows if that is None.

    A row of the input has the key, the columns, and its weight; the last column of the result is the number. If rows
    are never taken back (`appends`), those beyond the count are dropped from the state.
    """

    def __init__(
        self,
        keys: StructType,
        columns: StructType,
        order: Sequence[Order],
        count: int | None,
        numbering: Numbering,
        number: str,
        *,
        appends: bool,
    ) -> None:
        super().__init__()
        self._keys, self._kind, self._order = keys.names, RowType(columns), list(order)
        self._count, self._numbering, self._appends = count, numbering, appends
        self.result = RowType(StructType((*columns.fields, Field(number, IntegerType()))))
        self.own_states = {ROWS: Value(self._kind.bag_ddl)}

    def changes(
        self, keys: BatchKeys, of_row: Numbers, columns: Sequence[pa.Array], scope: Scope
    ) -> pa.RecordBatch | None:
        kind, state, count = self._kind, vars(self)[ROWS], len(keys)
        added = changed_rows(kind, of_row, columns[len(self._keys) : -1], columns[-1])
        if not len(added):
            return None
        before = from_state(state.get_many(keys), kind)
        after = before.plus(added)
        if added.counts.min() < 0:
            after = after.summed(kind) if self.ttl_ms is None else after.summed(kind).there()
        # State is in order, so that rows that are equal in it keep their places.
        after, numbers = self._numbered(after)
        is_first = np.ones(len(after), bool) if self._count is None else numbers <= self._count
        kept = after.take(np.flatnonzero(is_first)) if self._appends else after
        changed = self._written(np.unique(added.of_key), count)
        values = to_state(kept, count, f"operator '{scope.uid}'")
        state.put_many(keys.take(changed), values.take(pa.array(changed)))
        before, numbers_before = self._numbered(before)
        was_first = np.ones(len(before), bool) if self._count is None else numbers_before <= self._count
        difference = self._with_numbers(before, numbers_before, was_first).negated()
        difference = difference.plus(self._with_numbers(after, numbers, is_first)).summed(self.result)
        return change_rows(self.result, difference)

    def _with_numbers(self, bag: Bag, numbers: Numbers, chosen: Numbers) -> Bag:
        at = np.flatnonzero(chosen)
        columns = [*bag.rows.take(pa.array(at)).flatten(), pa.array(numbers[at].astype(np.int32))]
        rows = pa.StructArray.from_arrays(columns, fields=list(self.result.arrow))
        return Bag(bag.of_key[at], rows, bag.counts[at])

    def _numbered(self, bag: Bag) -> tuple[Bag, Numbers]:
        """Return the rows in order, each as often as it counts, and their numbers within their keys."""
        if len(bag) and bag.counts.max() > 1:
            indices, _ = bag.repeated()
            bag = bag.take(indices)
            bag = Bag(bag.of_key, bag.rows, np.ones(len(bag), np.int64))
        if not len(bag):
            return bag, np.empty(0, np.int64)
        parts = bag.rows.flatten()
        by = [part for order in self._order for part in sortable(parts[order.at], order)]
        order = np.lexsort((*reversed(by), bag.of_key))
        bag = bag.take(order)
        places = np.arange(len(bag))
        is_new = np.append(True, bag.of_key[1:] != bag.of_key[:-1])
        start = np.maximum.accumulate(np.where(is_new, places, 0))
        if self._numbering == "row_number":
            return bag, places - start + 1
        differs = is_new.copy()
        for part in by:
            differs[1:] |= part[order][1:] != part[order][:-1]
        if self._numbering == "rank":
            return bag, np.maximum.accumulate(np.where(differs, places, 0)) - start + 1
        steps = np.cumsum(differs)
        return bag, steps - steps[start] + 1


def sortable(column: pa.Array, order: Order) -> tuple[Numbers, Numbers]:
    """Return two columns of numbers that sort as a column does: whether it is null, and its place among the others."""
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    numbers = np.zeros(len(column), np.int64)
    valid = np.flatnonzero(~is_null)
    if len(valid):
        _, places = np.unique(ranks(column.take(pa.array(valid))), return_inverse=True)
        numbers[valid] = -places if order.is_descending else places
    return np.where(is_null, 1 if order.nulls_last else -1, 0), numbers
