"""Built-in aggregation: partial accumulators come in, are merged into state by whole columns, results go out.

A row of the input is the key's columns, with windows the end of its pane, how many rows of the stream it stands for,
and the columns of the accumulator. Spark may have aggregated an epoch's rows before, or each is a row of the stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.api.states import State, Value
from strandline.api.windows import WINDOW_END, WINDOW_START, Sliding, Tumbling
from strandline.format.columns import arrow_schema, conform
from strandline.format.manifest import StateInfo
from strandline.format.types import StructType, parse_schema
from strandline.runtime.aggregates import Accumulators
from strandline.runtime.columnar import ColumnarProcess, Given, Place, Rows
from strandline.runtime.grouping import Groups, extreme, group_by
from strandline.runtime.panes import GROUP, PaneTable
from strandline.runtime.scope import Scope
from strandline.runtime.vectors import BatchKeys

TOTALS, PANES = "totals", "panes"


class RunningAggregation(ColumnarProcess):
    """Aggregates of everything so far: one result for each key that an epoch changed."""

    totals: Any

    def __init__(self, keys: Sequence[str], accumulators: Accumulators) -> None:
        self._keys = list(keys)
        self._accumulators = accumulators
        self.own_states: dict[str, State] = {TOTALS: Value(f"struct<{accumulators.ddl}>")}
        self._given: list[Given] = []

    def on_rows(self, rows: Rows, scope: Scope) -> None:
        """Merge a batch into the state; each key's result waits for the end of the epoch."""
        merge = self._accumulators.merge
        keys, row_of = rows.keys.unique()
        groups = Groups(row_of, len(keys))
        width = len(self._keys)
        self.source_rows += pc.sum(rows.columns[width]).as_py()
        fresh = self._accumulators.conform(rows.columns[width + 1 :])
        if len(row_of) > len(keys):
            fresh = merge(fresh, groups)
        else:
            fresh = [column.take(pa.array(groups.first)) for column in fresh]
        found = self._add(keys, fresh)
        times = None if rows.times is None else extreme(rows.times, groups, "max")
        batch = pa.RecordBatch.from_arrays([*keys.columns, *self._accumulators.give(found)], names=self._names)
        self._given.append((batch, times))

    def on_end(self, scope: Scope) -> Iterator[Given]:
        """Give the newest result of each key."""
        given, self._given = self._given, []
        if len(given) > 1:
            given = [self._newest(given)]
        yield from given

    on_fired = on_end

    def forget(self) -> None:
        """Forget the epoch."""
        super().forget()
        self._given = []

    @property
    def _names(self) -> list[str]:
        return [*self._keys, *(result.name for result in self._accumulators.results)]

    def _add(self, keys: BatchKeys, fresh: list[pa.Array]) -> list[pa.Array]:
        """Merge accumulators, one a key, into the state; return what they have become."""
        stored = self.totals.get_many(keys)
        known = np.flatnonzero(stored.is_valid().to_numpy(zero_copy_only=False))
        if len(known):
            before = stored.take(pa.array(known)).flatten() if len(known) < len(stored) else stored.flatten()
            both = [pa.concat_arrays([old, new]) for old, new in zip(before, fresh, strict=True)]
            fresh = self._accumulators.merge(both, Groups(np.append(known, np.arange(len(keys))), len(keys)))
        self.totals.put_many(keys, pa.StructArray.from_arrays(fresh, fields=self._accumulators.arrow_fields))
        return fresh

    def _newest(self, given: list[Given]) -> Given:
        batch = pa.concat_batches([batch for batch, _ in given])
        last = pa.array(np.sort(group_by(batch.columns[: len(self._keys)]).last))
        times = [times for _, times in given if times is not None]
        return batch.take(last), pa.concat_arrays(times).take(last) if times else None


class WindowedAggregation(ColumnarProcess):
    """Aggregates of each key's events in each window. A result comes once the watermark has reached the window's end.

    Events that come later, but before the watermark is `lateness` behind the end, change the result, which comes again.
    """

    _table: PaneTable

    def __init__(
        self, key_schema: str, accumulators: Accumulators, kind: Tumbling | Sliding, lateness_us: int = 0
    ) -> None:
        self._keys = parse_schema(key_schema)
        self._accumulators = accumulators
        self._size, self._every, self._offset = kind.size_us, kind.every_us, kind.offset_us
        self._lateness = lateness_us
        self.pane_us = math.gcd(self._size, self._every)
        self._stored = StructType((*self._keys.fields, *parse_schema(accumulators.ddl).fields))
        self.table_infos = [StateInfo(name=PANES, kind="panes", value_type=self._stored.ddl)]
        self._late: dict[int, list[pa.RecordBatch]] = {}

    def bind(self, place: Place) -> None:
        """Get ready to work on a partition's state."""
        schema = arrow_schema(self._stored)
        self._full = pa.schema([pa.field(GROUP, pa.int32()), *schema])
        self._table = PaneTable(PANES, place.backend, place.groups, schema, self._merge, place.cache_bytes)
        # Where panes go once their window is given, what is there tells what is to be given.
        self._table.marked = self._lateness > 0 or self.pane_us < self._size
        self.tables = [self._table]

    def on_rows(self, rows: Rows, scope: Scope) -> None:
        """Add a batch to its panes."""
        width = len(self._keys.fields)
        ends, counts = rows.columns[width].to_numpy(), rows.columns[width + 1].to_numpy()
        self.source_rows += int(counts.sum())
        keys = [conform(c, f.type) for c, f in zip(rows.columns[:width], self._keys.fields, strict=True)]
        columns = [rows.groups.cast(pa.int32()), *keys, *self._accumulators.conform(rows.columns[width + 2 :])]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._full)
        kept = self._first_end(ends) <= self._last_end(ends)
        if scope.watermark_us is not None:
            late = self._last_end(ends) + self._lateness <= scope.watermark_us
            self.late_rows += int(counts[late & kept].sum())
            kept &= ~late
        if not kept.all():
            batch, ends = batch.filter(pa.array(kept)), ends[kept]
        if not len(ends):
            return
        if ends.min() == ends.max():
            self._add(int(ends[0]), batch)
            return
        order = np.argsort(ends, kind="stable")
        batch, ends = batch.take(pa.array(order)), ends[order]
        bounds = np.append(np.flatnonzero(np.diff(ends, prepend=ends[0] - 1)), len(ends)).tolist()
        for start, stop in pairwise(bounds):
            self._add(int(ends[start]), batch.slice(start, stop - start))

    def on_watermark(self, scope: Scope) -> Iterator[Given]:
        """Give the windows that are complete, the earliest first, and let go of panes that are not needed any more."""
        reached = scope.watermark_us
        assert reached is not None
        yield from self._again()
        due = {end for pane in self._table.panes for end in self._ends_of(pane, self._table.mark_us, reached)}
        for end in sorted(due):
            yield from self._window(end)
        self._table.mark_us = reached
        for pane in [pane for pane in self._table.panes if self._last_end(pane) + self._lateness <= reached]:
            self._table.drop(pane)

    def on_end(self, scope: Scope) -> Iterator[Given]:
        """Give the windows again that late events have changed."""
        self._table.next_epoch = scope.epoch
        yield from self._again()

    def forget(self) -> None:
        """Forget the epoch."""
        super().forget()
        self._late = {}

    @property
    def next_due_us(self) -> int | None:
        """The end of the first window that is not given yet."""
        mark = self._table.mark_us
        ends = (next(iter(self._ends_of(pane, mark, None)), None) for pane in self._table.panes)
        return min((end for end in ends if end is not None), default=None)

    def _add(self, pane: int, batch: pa.RecordBatch) -> None:
        self._table.add(pane, batch)
        mark = self._table.mark_us
        if mark is not None and self._lateness and self._first_end(pane) <= mark:
            self._late.setdefault(pane, []).append(batch)

    def _again(self) -> Iterator[Given]:
        """Give the results of windows given before for keys whose late events came since."""
        late, self._late = self._late, {}
        mark = self._table.mark_us
        changed: dict[int, list[pa.RecordBatch]] = {}
        for pane, batches in late.items():
            for end in self._ends_of(pane, None, mark):
                if mark is not None and end + self._lateness > mark:
                    changed.setdefault(end, []).extend(batches)
        for end, batches in sorted(changed.items()):
            yield from self._window(end, self._merge(batches))

    def _window(self, end: int, only: pa.RecordBatch | None = None) -> Iterator[Given]:
        panes = [pane for pane in self._table.panes if end - self._size < pane <= end]
        for batch in self._table.read(panes, only):
            if only is not None:
                batch = self._of_keys(batch, only)
            width = 1 + len(self._keys.fields)
            rows = batch.num_rows
            edges = [pa.array(np.full(rows, at), pa.timestamp("us", "UTC")) for at in (end - self._size, end)]
            columns = [*batch.columns[1:width], *edges, *self._accumulators.give(batch.columns[width:])]
            results = (result.name for result in self._accumulators.results)
            names = [*self._keys.names, WINDOW_START, WINDOW_END, *results]
            yield pa.RecordBatch.from_arrays(columns, names=names), pa.array(np.full(rows, end - 1))

    def _merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
        width = 1 + len(self._keys.fields)
        groups = group_by(batch.columns[1:width])
        if groups.count == batch.num_rows:
            return batch
        first = pa.array(groups.first)
        keys = [column.take(first) for column in batch.columns[:width]]
        merged = self._accumulators.merge(batch.columns[width:], groups)
        return pa.RecordBatch.from_arrays([*keys, *merged], schema=self._full)

    def _of_keys(self, batch: pa.RecordBatch, only: pa.RecordBatch) -> pa.RecordBatch:
        width = 1 + len(self._keys.fields)
        both = [pa.concat_arrays([a, b]) for a, b in zip(only.columns[1:width], batch.columns[1:width], strict=True)]
        return batch.filter(pa.array(group_by(both).of_row[only.num_rows :] < only.num_rows))

    # -- windows are aligned; what is said of a pane is said of its end

    def _first_end(self, pane: Any) -> Any:
        return pane + (self._offset + self._size - pane) % self._every

    def _last_end(self, pane: Any) -> Any:
        start = pane - self.pane_us
        return start - (start - self._offset) % self._every + self._size

    def _ends_of(self, pane: int, after: int | None, until: int | None) -> range:
        """Return the ends of a pane's windows, after one time and up to another."""
        first, last = self._first_end(pane), self._last_end(pane)
        if after is not None and after >= first:
            first += ((after - first) // self._every + 1) * self._every
        return range(first, (last if until is None else min(last, until)) + 1, self._every)
