"""The base of operators on bags: gathers an epoch's changes, so that each is computed once, at the epoch's end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from strandline.api.states import TTL, Value
from strandline.runtime.operators.views.bags import WEIGHT, Bag, Numbers, RowType
from strandline.runtime.state.columnar import BatchKeys, ColumnarProcess, InputRows, TimedRows
from strandline.runtime.state.scope import Scope


class EpochOperator(ColumnarProcess):
    """An operator that sees all changes of an epoch at once: what cancels out within it is never seen."""

    own_step = "sql"

    def __init__(self) -> None:
        self._batches: list[InputRows] = []
        self.is_shared = False
        """Whether a view has it already."""
        self.ttl_ms: int | None = None
        """After how long without changes the state of a key is forgotten, by the clock; None: never.

        Then it may be told to take back what it has forgotten: it does not.
        """

    def keep_for(self, ttl_ms: int | None) -> None:
        """Set `ttl_ms`."""
        self.ttl_ms = ttl_ms
        ttl = None if ttl_ms is None else TTL(dt.timedelta(milliseconds=ttl_ms))
        self.own_states = {name: Value(state.value_type, ttl=ttl) for name, state in self.own_states.items()}

    def _written(self, changed: Numbers, keys: int) -> Numbers:
        """Return which keys to write: with a TTL all that an epoch touches, since what is above did so, too."""
        return changed if self.ttl_ms is None else np.arange(keys)

    def on_rows(self, rows: InputRows, scope: Scope) -> None:
        """Keep a batch until the end of the epoch."""
        self._batches.append(rows)

    def on_fired(self, scope: Scope) -> Iterator[TimedRows]:
        return self.on_end(scope)

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the changes of the result."""
        if (rows := self._take()) is not None:
            changes = self.changes(*rows, scope)
            if changes is not None and changes.num_rows:
                yield changes, None

    def _take(self) -> tuple[BatchKeys, Numbers, list[pa.Array]] | None:
        """Return the epoch's rows, and forget them: the distinct keys, the number of each row's key, the columns."""
        batches, self._batches = self._batches, []
        if not batches:
            return None
        keys, of_row = _all_keys(batches).unique()
        columns = [pa.concat_arrays(parts) for parts in zip(*[batch.columns for batch in batches], strict=True)]
        self.source_rows += len(of_row)
        return keys, of_row, columns

    def changes(
        self, keys: BatchKeys, of_row: Numbers, columns: Sequence[pa.Array], scope: Scope
    ) -> pa.RecordBatch | None:
        """Return the changes of the result; `of_row` has the number of each row's key."""
        raise NotImplementedError

    def forget(self) -> None:
        self._batches = []


def changed_rows(kind: RowType, of_row: Numbers, columns: Sequence[pa.Array], weights: pa.Array) -> Bag:
    """Return an epoch's changes of one input, summed."""
    return rows_by_key(kind, of_row, columns, weights).summed(kind)


def rows_by_key(kind: RowType, of_row: Numbers, columns: Sequence[pa.Array], weights: pa.Array) -> Bag:
    """Return an epoch's changes of one input as they came."""
    counts = weights.to_numpy(zero_copy_only=False)
    bag = Bag(of_row, kind.rows_of(columns), counts)
    return bag if counts.all() else bag.take(np.flatnonzero(counts))


def change_rows(kind: RowType, bag: Bag) -> pa.RecordBatch:
    """Return changes as output rows, each as often as it counts."""
    indices, signs = bag.repeated()
    return output([*kind.columns.names, WEIGHT], bag.rows.take(pa.array(indices)).flatten(), signs)


def output(names: Sequence[str], parts: Sequence[pa.Array], signs: Numbers) -> pa.RecordBatch:
    """Return output rows, the last column their weights."""
    return pa.RecordBatch.from_arrays([*parts, pa.array(signs.astype(np.int64))], names=[*names])


def _all_keys(batches: Sequence[InputRows]) -> BatchKeys:
    first = batches[0].keys
    if len(batches) == 1:
        return first
    columns = [pa.concat_arrays(parts) for parts in zip(*[batch.keys.columns for batch in batches], strict=True)]
    return BatchKeys(columns, pa.concat_arrays([batch.keys.groups for batch in batches]), first._codec)
