"""Built-in aggregation without time windows: merges partial accumulators into state by whole columns.

A row of the input has the key's columns, the number of the stream's rows that it stands for, and the accumulator's
columns. It stands for one row of the stream unless Spark has aggregated the epoch's rows before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.states import Value
from strandline.api.windows import Global
from strandline.runtime.builtin import windows_info
from strandline.runtime.operators.aggregates.accumulators import Accumulators
from strandline.runtime.operators.aggregates.grouping import Groups, Numbers, edge, extreme, group_by, valid_rows
from strandline.runtime.state.columnar import BatchKeys, ColumnarProcess, InputRows, TimedRows
from strandline.runtime.state.scope import Scope

TOTALS = "totals"


class KeyedAggregation(ColumnarProcess):
    """Aggregates with one accumulator a key, and results in the epoch whose rows changed them."""

    totals: Any

    def __init__(self, keys: Sequence[str], accumulators: Accumulators) -> None:
        self._keys = list(keys)
        self._accumulators = accumulators
        self.own_aggregated = accumulators.aggregated
        self._held_results: list[TimedRows] = []

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the epoch's results."""
        pending, self._held_results = self._held_results, []
        yield from pending

    def on_fired(self, scope: Scope) -> Iterator[TimedRows]:
        return self.on_end(scope)

    def forget(self) -> None:
        self._held_results = []

    def _accumulators_in(self, rows: InputRows) -> list[pa.Array]:
        """Return the accumulators of a batch, and count the stream's rows."""
        counts, *columns = rows.columns[len(self._keys) :]
        self.source_rows += pc.sum(counts).as_py()
        return self._accumulators.conform(columns[: len(self._accumulators.fields)])

    def _hold_results(self, keys: BatchKeys, accumulators: Sequence[pa.Array], times: pa.Array | None) -> None:
        """Hold results back until the end of the epoch, one a key."""
        self._held_results.append((self._results(keys, accumulators), times))

    def _results(self, keys: BatchKeys, accumulators: Sequence[pa.Array]) -> pa.RecordBatch:
        names = [*self._keys, *(result.name for result in self._accumulators.results)]
        columns = [*keys.columns, *self._accumulators.compute_results(accumulators)]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def current_results(self, keys: BatchKeys) -> Iterator[TimedRows]:
        """Yield the results so far of those keys that have some."""
        stored = self.totals.get_many(keys)
        known = valid_rows(stored)
        accumulators = stored.take(pa.array(known)).flatten()[-len(self._accumulators.fields) :]
        yield self._results(keys.take(known), accumulators), None


class RunningAggregation(KeyedAggregation):
    """Aggregates of all rows so far: one result for each key that an epoch changed."""

    def __init__(self, keys: Sequence[str], accumulators: Accumulators) -> None:
        super().__init__(keys, accumulators)
        self.own_states = {TOTALS: Value(f"struct<{accumulators.ddl}>")}

    def on_rows(self, rows: InputRows, scope: Scope) -> None:
        """Merge a batch into the state, and hold each key's result back until the end of the epoch."""
        keys, row_of = rows.keys.unique()
        groups = Groups(row_of, len(keys))
        added = self._accumulators_in(rows)
        if len(row_of) > len(keys):
            added = self._accumulators.merge(added, groups)
        else:
            added = [column.take(pa.array(groups.first)) for column in added]
        times = None if rows.times is None else extreme(rows.times, groups, "max")
        self._hold_results(keys, self._add(keys, added), times)

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the newest result of each key."""
        if len(self._held_results) > 1:
            self._held_results = [self._newest(self._held_results)]
        yield from super().on_end(scope)

    def _add(self, keys: BatchKeys, added: list[pa.Array]) -> list[pa.Array]:
        """Merge accumulators, one a key, into the state; return the merged ones."""
        stored = self.totals.get_many(keys)
        known = valid_rows(stored)
        if len(known):
            before = stored.take(pa.array(known)).flatten() if len(known) < len(stored) else stored.flatten()
            both = [pa.concat_arrays([old, new]) for old, new in zip(before, added, strict=True)]
            added = self._accumulators.merge(both, Groups(np.append(known, np.arange(len(keys))), len(keys)))
        self.totals.put_many(keys, pa.StructArray.from_arrays(added, fields=self._accumulators.arrow_fields))
        return added

    def _newest(self, results: list[TimedRows]) -> TimedRows:
        batch = pa.concat_batches([batch for batch, _ in results])
        last = pa.array(np.sort(group_by(batch.columns[: len(self._keys)]).last))
        times = [times for _, times in results if times is not None]
        return batch.take(last), pa.concat_arrays(times).take(last) if times else None


class CountedAggregation(KeyedAggregation):
    """Aggregates of each key's events in count windows: a result for each full window.

    Each row is one event, in the order of the count.
    """

    def __init__(self, keys: Sequence[str], accumulators: Accumulators, count: int) -> None:
        super().__init__(keys, accumulators)
        self._count = count
        self.own_windows = windows_info(Global(count=count))
        self.own_states = {TOTALS: Value(f"struct<events: bigint, {accumulators.ddl}>")}

    def on_rows(self, rows: InputRows, scope: Scope) -> None:
        """Split each key's rows, after those in its state, into windows; keep the last window if it is not full."""
        keys, row_of = rows.keys.unique()
        added = self._accumulators_in(rows)
        stored = self.totals.get_many(keys)
        known = valid_rows(stored)
        events, *before = stored.take(pa.array(known)).flatten()
        events_before = np.zeros(len(keys), np.int64)
        events_before[known] = events.to_numpy()
        total = events_before + np.bincount(row_of, minlength=len(keys))
        window = (events_before[row_of] + _rank(row_of)) // self._count
        # A code is one number for a key and its window; a key's codes follow each other, in the windows' order.
        windows_per_key = int(total.max()) // self._count + 1
        window_codes = np.append(known * windows_per_key, row_of * windows_per_key + window)
        window_codes, group_of_row = np.unique(window_codes, return_inverse=True)
        groups = Groups(group_of_row, len(window_codes))
        both = [pa.concat_arrays([old, new]) for old, new in zip(before, added, strict=True)]
        merged = self._accumulators.merge(both, groups)
        key_of_group = window_codes // windows_per_key
        is_full = (window_codes % windows_per_key + 1) * self._count <= total[key_of_group]
        full, rest = pa.array(np.flatnonzero(is_full)), np.flatnonzero(~is_full)
        if len(full):
            times = None
            if rows.times is not None:
                padded = pa.concat_arrays([pa.nulls(len(known), rows.times.type), rows.times])
                times = edge(padded, groups, "last", ignore_nulls=False).take(full)
            self._hold_results(keys.take(key_of_group[is_full]), [column.take(full) for column in merged], times)
        open_group = np.full(len(keys), -1)
        open_group[key_of_group[rest]] = rest
        open_groups = pa.array(open_group, mask=open_group < 0)
        fields = [pa.field("events", pa.int64()), *self._accumulators.arrow_fields]
        columns = [pa.array(total % self._count), *(column.take(open_groups) for column in merged)]
        left = pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(open_group < 0))
        # Do not write a key that had no events and has none.
        changed = np.flatnonzero((open_group >= 0) | (events_before > 0))
        self.totals.put_many(keys.take(changed), left.take(pa.array(changed)))


def _rank(group_of_row: Numbers) -> Numbers:
    """Return for each row how many rows of its group are before it."""
    order = np.argsort(group_of_row, kind="stable")
    sizes = np.bincount(group_of_row)
    ranks = np.empty(len(group_of_row), np.int64)
    ranks[order] = np.arange(len(group_of_row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks
