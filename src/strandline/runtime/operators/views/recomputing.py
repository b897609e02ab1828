"""The two operators around what Spark computes of all rows of a key: window functions, most aggregates, limits.

`Collecting` holds the rows of each key, and gives all rows of the keys that changed. Spark computes the results of each
key anew, and `Comparing` gives those that differ from what it gave before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from strandline.api.states import Value
from strandline.format.keys import KeyCodec
from strandline.runtime.operators.views.bags import WEIGHT, Numbers, RowType, from_state, to_state
from strandline.runtime.operators.views.inputs import EpochOperator, change_rows, changed_rows, output
from strandline.runtime.state.columnar import BatchKeys, TimedRows
from strandline.runtime.state.scope import Scope
from strandline.types.datatypes import StructType

ROWS = "rows"
_CHUNK = 1024
"""The keys that are given at once of those that no row has."""


class _Bags(EpochOperator):
    """An operator whose state is one bag of rows a key. Its input has the key, the columns, and the weight."""

    def __init__(self, keys: StructType, columns: StructType) -> None:
        super().__init__()
        self._keys, self._kind = keys.names, RowType(columns)
        self.own_states = {ROWS: Value(self._kind.bag_ddl)}


class Collecting(_Bags):
    """Rows of each key. It gives all rows of a key that changed, or if none are left one row of nulls with weight 0.

    A key without rows also gives that when a row of weight 0 comes. With `own_replays`, it gives the rows of all keys
    in its first epoch: `Comparing` takes them as often as they come.
    """

    def __init__(self, keys: StructType, columns: StructType) -> None:
        super().__init__(keys, columns)
        self._key_types = [each.type for each in keys.fields]
        self._touched: set[bytes] = set()
        """In an epoch that gives all keys: those that its rows have."""

    def on_fired(self, scope: Scope) -> Iterator[TimedRows]:
        return super().on_end(scope)

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        yield from super().on_end(scope)
        if not self.own_replays:
            return
        for keys, values in vars(self)[ROWS].chunks(KeyCodec(self._key_types), _CHUNK):
            is_other = np.fromiter((key not in self._touched for key in keys.encoded), bool, len(keys))
            bag = from_state(values, self._kind).of_keys(is_other)
            indices, signs = bag.repeated()
            columns = [*keys.take(bag.of_key[indices]).columns, *bag.rows.take(pa.array(indices)).flatten()]
            yield output([*self._keys, *self._kind.columns.names, WEIGHT], columns, signs), None

    def commit(self) -> None:
        self.own_replays = False
        self._touched.clear()

    def forget(self) -> None:
        super().forget()
        self._touched.clear()

    def changes(
        self, keys: BatchKeys, of_row: Numbers, columns: Sequence[pa.Array], scope: Scope
    ) -> pa.RecordBatch | None:
        kind, state, count = self._kind, vars(self)[ROWS], len(keys)
        self._touched.update(keys.encoded if self.own_replays else ())
        added = changed_rows(kind, of_row, columns[len(self._keys) : -1], columns[-1])
        before = from_state(state.get_many(keys), kind)
        after = before.plus(added)
        if len(added) and added.counts.min() < 0:
            after = after.summed(kind) if self.ttl_ms is None else after.summed(kind).there()
        is_changed = np.zeros(count, bool)
        is_changed[added.of_key] = True
        had, has = (np.bincount(bag.of_key, minlength=count) > 0 for bag in (before, after))
        changed = self._written(np.flatnonzero(is_changed), count)
        if len(changed):
            values = to_state(after, count, f"operator '{scope.uid}'")
            state.put_many(keys.take(changed), values.take(pa.array(changed)))
        current, gone = after.of_keys(is_changed), np.flatnonzero(~has & (is_changed | ~had))
        indices, signs = current.repeated()
        places = pa.array(np.append(indices, np.zeros(len(gone), np.int64)), mask=_last(len(indices), len(gone)))
        columns = [
            *keys.take(np.append(current.of_key[indices], gone)).columns,
            *(part.take(places) for part in current.rows.flatten()),
        ]
        return output([*self._keys, *kind.columns.names, WEIGHT], columns, np.append(signs, np.zeros(len(gone))))


class Comparing(_Bags):
    """The results of each key as it gave them last. Rows of weight 1 are all results of a key that has rows now."""

    def changes(
        self, keys: BatchKeys, of_row: Numbers, columns: Sequence[pa.Array], scope: Scope
    ) -> pa.RecordBatch | None:
        kind, state, count = self._kind, vars(self)[ROWS], len(keys)
        now = changed_rows(kind, of_row, columns[len(self._keys) : -1], columns[-1])
        difference = from_state(state.get_many(keys), kind).negated().plus(now).summed(kind)
        changed = self._written(np.unique(difference.of_key), count)
        if not len(changed):
            return None
        values = to_state(now, count, f"operator '{scope.uid}'")
        state.put_many(keys.take(changed), values.take(pa.array(changed)))
        return change_rows(kind, difference)


def _last(first: int, last: int) -> Numbers:
    """Return a mask of the last ones."""
    return np.arange(first + last) >= first
