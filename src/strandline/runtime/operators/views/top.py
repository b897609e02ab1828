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
from strandline.runtime.operators.views.inputs import EpochOperator, change_rows, rows_by_key
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
        added = rows_by_key(kind, of_row, columns[len(self._keys) : -1], columns[-1])
        if not len(added):
            return None
        before = from_state(state.get_many(keys), kind).ones()
        if added.counts.min() < 0:
            after = before.plus(added.summed(kind)).summed(kind)
            after = (after if self.ttl_ms is None else after.there()).ones()
            is_of_before = False
        else:
            after, is_of_before = before.plus(added.ones()), True
        # State is in order, so that rows that are equal in it keep their places.
        order, numbers = self._numbered(after)
        places = self._places(len(after), order, numbers)
        kept = after.take(order[places[order] > 0] if self._appends else order)
        changed = self._written(np.unique(added.of_key), count)
        values = to_state(kept, count, f"operator '{scope.uid}'")
        state.put_many(keys.take(changed), values.take(pa.array(changed)))
        places_before = self._places(len(before), *self._numbered(before))
        if is_of_before:
            # The first rows are those of before: where one keeps its number, nothing is looked at.
            is_same = places[: len(before)] == places_before
            places[: len(before)][is_same] = places_before[is_same] = 0
        difference = self._with_numbers(before, places_before).negated().plus(self._with_numbers(after, places))
        # A row that takes the only place of a key is before the one that had it, and so another.
        is_sum = is_of_before and self._count == 1 and self._numbering == "row_number"
        return change_rows(self.result, difference if is_sum else difference.summed(self.result))

    def _places(self, size: int, order: Numbers, numbers: Numbers) -> Numbers:
        """Return the number of each row of a bag; 0 for those that are not among the first."""
        places = np.zeros(size, np.int64)
        places[order] = numbers if self._count is None else np.where(numbers <= self._count, numbers, 0)
        return places

    def _with_numbers(self, bag: Bag, places: Numbers) -> Bag:
        """Return the rows of a bag that have a number, with it."""
        at = np.flatnonzero(places)
        columns = [*bag.rows.take(pa.array(at)).flatten(), pa.array(places[at].astype(np.int32))]
        rows = pa.StructArray.from_arrays(columns, fields=list(self.result.arrow))
        return Bag(bag.of_key[at], rows, bag.counts[at])

    def _numbered(self, bag: Bag) -> tuple[Numbers, Numbers]:
        """Return the rows of a bag in order, each of which counts once, and their numbers within their keys."""
        if not len(bag):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        parts = bag.rows.flatten()
        by = [part for order in self._order for part in sortable(parts[order.at], order)]
        order = np.lexsort((*reversed(by), bag.of_key))
        places, of_key = np.arange(len(bag)), bag.of_key[order]
        is_new = np.append(True, of_key[1:] != of_key[:-1])
        start = np.maximum.accumulate(np.where(is_new, places, 0))
        if self._numbering == "row_number":
            return order, places - start + 1
        differs = is_new.copy()
        for part in by:
            differs[1:] |= part[order][1:] != part[order][:-1]
        if self._numbering == "rank":
            return order, np.maximum.accumulate(np.where(differs, places, 0)) - start + 1
        steps = np.cumsum(differs)
        return order, steps - steps[start] + 1


def sortable(column: pa.Array, order: Order) -> tuple[Numbers, Numbers]:
    """Return two columns of numbers that sort as a column does: whether it is null, and its place among the others."""
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    numbers = np.zeros(len(column), np.int64)
    valid = np.flatnonzero(~is_null)
    if len(valid):
        _, places = np.unique(ranks(column.take(pa.array(valid))), return_inverse=True)
        numbers[valid] = -places if order.is_descending else places
    return np.where(is_null, 1 if order.nulls_last else -1, 0), numbers
