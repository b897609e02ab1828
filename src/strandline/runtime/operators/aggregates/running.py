"""Built-in aggregation without time windows: merges partial accumulators into state by whole columns.

A row of the input is the key's columns, how many rows of the stream it stands for, and the columns of the accumulator.
Spark may have aggregated an epoch's rows before; otherwise each is a row of the stream.
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
        self._pending: list[TimedRows] = []

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the epoch's results."""
        pending, self._pending = self._pending, []
        yield from pending

    def on_fired(self, scope: Scope) -> Iterator[TimedRows]:
        return self.on_end(scope)

    def forget(self) -> None:
        self._pending = []

    def _take(self, rows: InputRows) -> list[pa.Array]:
        """Count the stream's rows; return the accumulators."""
        counts, *columns = rows.columns[len(self._keys) :]
        self.source_rows += pc.sum(counts).as_py()
        return self._accumulators.conform(columns[: len(self._accumulators.fields)])

    def _give(self, keys: BatchKeys, accumulators: Sequence[pa.Array], times: pa.Array | None) -> None:
        """Hold back results, one a key, until the end of the epoch."""
        self._pending.append((self._results(keys, accumulators), times))

    def _results(self, keys: BatchKeys, accumulators: Sequence[pa.Array]) -> pa.RecordBatch:
        names = [*self._keys, *(result.name for result in self._accumulators.results)]
        columns = [*keys.columns, *self._accumulators.give(accumulators)]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def current_results(self, keys: BatchKeys) -> Iterator[TimedRows]:
        """Give the results so far of those keys that have some."""
        stored = self.totals.get_many(keys)
        known = valid_rows(stored)
        accumulators = stored.take(pa.array(known)).flatten()[-len(self._accumulators.fields) :]
        yield self._results(keys.take(known), accumulators), None


class RunningAggregation(KeyedAggregation):
    """Aggregates of everything so far: one result for each key that an epoch changed."""

    def __init__(self, keys: Sequence[str], accumulators: Accumulators) -> None:
        super().__init__(keys, accumulators)
        self.own_states = {TOTALS: Value(f"struct<{accumulators.ddl}>")}

    def on_rows(self, rows: InputRows, scope: Scope) -> None:
        """Merge a batch into the state; each key's result is held back until the end of the epoch."""
        keys, row_of = rows.keys.unique()
        groups = Groups(row_of, len(keys))
        fresh = self._take(rows)
        if len(row_of) > len(keys):
            fresh = self._accumulators.merge(fresh, groups)
        else:
            fresh = [column.take(pa.array(groups.first)) for column in fresh]
        times = None if rows.times is None else extreme(rows.times, groups, "max")
        self._give(keys, self._add(keys, fresh), times)

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the newest result of each key."""
        if len(self._pending) > 1:
            self._pending = [self._newest(self._pending)]
        yield from super().on_end(scope)

    def _add(self, keys: BatchKeys, fresh: list[pa.Array]) -> list[pa.Array]:
        """Merge accumulators, one a key, into the state; return the merged ones."""
        stored = self.totals.get_many(keys)
        known = valid_rows(stored)
        if len(known):
            before = stored.take(pa.array(known)).flatten() if len(known) < len(stored) else stored.flatten()
            both = [pa.concat_arrays([old, new]) for old, new in zip(before, fresh, strict=True)]
            fresh = self._accumulators.merge(both, Groups(np.append(known, np.arange(len(keys))), len(keys)))
        self.totals.put_many(keys, pa.StructArray.from_arrays(fresh, fields=self._accumulators.arrow_fields))
        return fresh

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
        """Split each key's rows, after those it has already, into windows; keep the last one if it is not full."""
        keys, row_of = rows.keys.unique()
        fresh = self._take(rows)
        stored = self.totals.get_many(keys)
        known = valid_rows(stored)
        events, *before = stored.take(pa.array(known)).flatten()
        had = np.zeros(len(keys), np.int64)
        had[known] = events.to_numpy()
        total = had + np.bincount(row_of, minlength=len(keys))
        window = (had[row_of] + _rank(row_of)) // self._count
        # One number for each window of all keys: key by key, those of a key in order.
        most = int(total.max()) // self._count + 1
        codes = np.append(known * most, row_of * most + window)
        codes, of_row = np.unique(codes, return_inverse=True)
        groups = Groups(of_row, len(codes))
        both = [pa.concat_arrays([old, new]) for old, new in zip(before, fresh, strict=True)]
        merged = self._accumulators.merge(both, groups)
        of_key = codes // most
        is_full = (codes % most + 1) * self._count <= total[of_key]
        full, rest = pa.array(np.flatnonzero(is_full)), np.flatnonzero(~is_full)
        if len(full):
            times = None
            if rows.times is not None:
                padded = pa.concat_arrays([pa.nulls(len(known), rows.times.type), rows.times])
                times = edge(padded, groups, "last", ignore_nulls=False).take(full)
            self._give(keys.take(of_key[is_full]), [column.take(full) for column in merged], times)
        at = np.full(len(keys), -1)
        at[of_key[rest]] = rest
        wanted = pa.array(at, mask=at < 0)
        fields = [pa.field("events", pa.int64()), *self._accumulators.arrow_fields]
        columns = [pa.array(total % self._count), *(column.take(wanted) for column in merged)]
        left = pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(at < 0))
        # A key that has no events and had none is not written.
        changed = np.flatnonzero((at >= 0) | (had > 0))
        self.totals.put_many(keys.take(changed), left.take(pa.array(changed)))


def _rank(of_row: Numbers) -> Numbers:
    """Return how many rows of its group are before each row."""
    order = np.argsort(of_row, kind="stable")
    sizes = np.bincount(of_row)
    ranks = np.empty(len(of_row), np.int64)
    ranks[order] = np.arange(len(of_row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return ranks
