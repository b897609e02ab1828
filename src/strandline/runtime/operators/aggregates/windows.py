"""Built-in aggregation of windows that tumble or slide: appends partial accumulators to panes, without a read.

A row of the input has the key's columns, the end of its pane unless windows follow the clock, the number of the
stream's rows that it stands for, and the accumulator's columns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.api.windows import Sliding, Tumbling
from strandline.backends.base import Backend
from strandline.format.manifest import StateInfo
from strandline.format.schemas import Schemas
from strandline.runtime.builtin import windows_info
from strandline.runtime.operators.aggregates.accumulators import Accumulators, results_of
from strandline.runtime.operators.aggregates.grouping import group_by
from strandline.runtime.operators.windows.operator import Rules, next_multiple
from strandline.runtime.state.columnar import BatchKeys, ColumnarProcess, InputRows, TimedRows
from strandline.runtime.state.panebytes import PaneCodec
from strandline.runtime.state.panes import GROUP, Merge, PaneTable, cut, settle
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.table import StateTable
from strandline.runtime.state.timers import earliest
from strandline.types.columns import conform
from strandline.types.datatypes import StructType, parse_schema

PANES = "panes"

Changes = Mapping[int, list[pa.RecordBatch] | None]
"""For each changed pane, the batches that were added; None if they are not known, as after a restore."""


class EarlyChanges:
    """Changes of panes since the last early results, and when the next ones are due: at a full interval of the clock.

    They are only in memory. After a restore, all panes count as changed, so that early results may come once more.
    """

    def __init__(self, every_us: int, merge: Merge) -> None:
        self._every_us = every_us
        self._merge = merge
        self._at_us: int | None = None
        self._is_unknown = True
        """Whether existing panes may have changes that are not recorded."""
        self._committed: dict[int, list[pa.RecordBatch]] = {}
        self._uncommitted: dict[int, list[pa.RecordBatch]] = {}
        self._committed_timing: tuple[int | None, bool] = (None, True)
        self._took_committed = False

    def add(self, pane: int, batch: pa.RecordBatch, now_us: int) -> None:
        """Record a batch that was added to a pane."""
        self._uncommitted.setdefault(pane, []).append(batch)
        if self._at_us is None:
            self._at_us = next_multiple(now_us, self._every_us)

    def due_us(self, panes: Collection[int]) -> int | None:
        """Return when results of the changes are due; None if there are none."""
        if not panes:
            # There are no panes that could have unknown changes.
            self._is_unknown = False
        return 0 if self._is_unknown else self._at_us

    def take(self, panes: Collection[int]) -> Changes:
        """Return the changes of existing panes, and forget them."""
        changes: dict[int, list[pa.RecordBatch] | None] = {}
        for pane in panes:
            batches = [*self._committed.get(pane, ()), *self._uncommitted.get(pane, ())]
            if batches or self._is_unknown:
                changes[pane] = None if self._is_unknown else batches
        self._took_committed, self._is_unknown, self._at_us, self._uncommitted = True, False, None, {}
        return changes

    def commit(self) -> None:
        """Commit the epoch."""
        if self._took_committed:
            self._committed = {}
        for pane, batches in self._uncommitted.items():
            kept = self._committed.setdefault(pane, [])
            kept += batches
            settle(kept, self._merge)
        self._committed_timing = (self._at_us, self._is_unknown)
        self._uncommitted, self._took_committed = {}, False

    def forget(self) -> None:
        """Discard the epoch."""
        self._at_us, self._is_unknown = self._committed_timing
        self._uncommitted, self._took_committed = {}, False


class WindowedAggregation(ColumnarProcess):
    """Aggregates of each key's events in each window, emitted once the watermark has reached the window's end.

    Late events, until the watermark is `lateness` after the end, change the result, which is emitted again.
    """

    _table: PaneTable

    def __init__(self, key_schema: str, accumulators: Accumulators, kind: Tumbling | Sliding, rules: Rules) -> None:
        self._keys = parse_schema(key_schema)
        self._accumulators = accumulators
        self._size, self._every, self._offset = kind.size_us, kind.every_us, kind.offset_us
        self._lateness, self._processing = rules.lateness_us, rules.processing
        self.own_windows = windows_info(kind, processing=rules.processing, lateness_us=rules.lateness_us)
        self.own_is_whole = rules.are_whole
        self.pane_us = math.gcd(self._size, self._every)
        self._stored = StructType((*self._keys.fields, *parse_schema(accumulators.ddl).fields))
        self.own_aggregated = accumulators.aggregated
        self.own_tables = [StateInfo(name=PANES, kind="panes", value_type=self._stored.ddl)]
        self._late: dict[int, list[pa.RecordBatch]] = {}
        self._early_us = rules.early_us
        self._early: EarlyChanges | None = None

    def bind(
        self, backend: Backend, groups: range, schemas: Mapping[str, Schemas], cache_bytes: int
    ) -> Sequence[StateTable[Any]]:
        codec = PaneCodec(PANES, self._stored, schemas.get(PANES, Schemas()))
        self._table = PaneTable(PANES, backend, groups, codec, self._merge, cache_bytes)
        # Where panes outlive their windows' results, the mark tells which windows were emitted.
        self._table.marked = self._lateness > 0 or self.pane_us < self._size
        if self._early_us:
            self._early = EarlyChanges(self._early_us, self._merge)
        return [self._table]

    def on_rows(self, rows: InputRows, scope: Scope) -> None:
        """Add a batch to its panes."""
        width = len(self._keys.fields)
        columns = rows.columns[width:]
        if self._processing:
            ends = np.full(len(rows.keys.groups), self.pane_of(self._reached(scope)))
        else:
            ends = columns.pop(0).to_numpy()
        counts = columns.pop(0).to_numpy()
        self.source_rows += int(counts.sum())
        keys = [conform(c, f.type) for c, f in zip(rows.columns[:width], self._keys.fields, strict=True)]
        columns = [rows.keys.groups.cast(pa.int32()), *keys, *self._accumulators.conform(columns)]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._table.schema)
        kept = self._first_end(ends) <= self._last_end(ends)
        if scope.watermark_us is not None and not self._processing:
            late = self._last_end(ends) + self._lateness <= scope.watermark_us
            self.late_rows += int(counts[late & kept].sum())
            kept &= ~late
        if not kept.all():
            batch, ends = batch.filter(pa.array(kept)), ends[kept]
        for pane, part in cut(batch, ends):
            self._add(pane, part, scope)

    def on_watermark(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the windows that are complete, the earliest first, and drop panes that are not needed any more."""
        if not self._processing:
            yield from self._complete(scope)

    def on_clock(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the windows that the clock has completed, and results so far."""
        if self._processing:
            yield from self._complete(scope)
        if self._early is not None:
            yield from self._early_results(self._early, scope.now_us)

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the windows again that late events have changed."""
        self._table.next_epoch = scope.epoch
        yield from self._late_results()

    def commit(self) -> None:
        if self._early is not None:
            self._early.commit()

    def forget(self) -> None:
        self._late = {}
        if self._early is not None:
            self._early.forget()

    @property
    def next_due_us(self) -> int | None:
        """The last moment of the next window to emit: the watermark has to pass it."""
        end_us = None if self._processing else self._next_end()
        return None if end_us is None else end_us - 1

    @property
    def next_due_clock_us(self) -> int | None:
        """The end of the next window if windows follow the clock, or the time of early results if that is earlier."""
        end_us = self._next_end() if self._processing else None
        early_us = self._early.due_us(self._table.panes) if self._early else None
        return earliest((end_us, early_us))

    def _next_end(self) -> int | None:
        mark = self._table.mark_us
        return earliest(next(iter(self._ends_of(pane, mark, None)), None) for pane in self._table.panes)

    def _reached(self, scope: Scope) -> int:
        """Return the watermark; or the clock, which may go back: then the mark, as emitted windows stay so."""
        if not self._processing:
            assert scope.watermark_us is not None
            return scope.watermark_us
        mark = self._table.mark_us
        return scope.now_us if mark is None else max(scope.now_us, mark)

    def _complete(self, scope: Scope) -> Iterator[TimedRows]:
        reached = self._reached(scope)
        yield from self._late_results()
        due = {end for pane in self._table.panes for end in self._ends_of(pane, self._table.mark_us, reached)}
        for end in sorted(due):
            yield from self._window(end)
        self._table.mark_us = reached
        for pane in [pane for pane in self._table.panes if self._last_end(pane) + self._lateness <= reached]:
            self._table.drop(pane)

    def _add(self, pane: int, batch: pa.RecordBatch, scope: Scope) -> None:
        self._table.add(pane, batch)
        if self._early is not None:
            self._early.add(pane, batch, scope.now_us)
        mark = self._table.mark_us
        if mark is not None and self._lateness and self._first_end(pane) <= mark:
            self._late.setdefault(pane, []).append(batch)

    def _early_results(self, early: EarlyChanges, now_us: int) -> Iterator[TimedRows]:
        """Yield early results of open windows, for keys that have changed."""
        panes = self._table.panes
        due_us = early.due_us(panes)
        if due_us is None or due_us > now_us:
            return
        yield from self._changed_windows(early.take(panes), self._table.mark_us, None)

    def _late_results(self) -> Iterator[TimedRows]:
        """Yield emitted windows again, for keys that have had late events since."""
        late, self._late = self._late, {}
        mark = self._table.mark_us
        if mark is not None:
            yield from self._changed_windows(late, mark - self._lateness, mark)

    def _changed_windows(self, changes: Changes, after: int | None, until: int | None) -> Iterator[TimedRows]:
        """Yield the windows of changed panes that end after one time and up to another, for changed keys."""
        by_end: dict[int, list[pa.RecordBatch] | None] = {}
        for pane, batches in changes.items():
            for end in self._ends_of(pane, after, until):
                of_panes = by_end.setdefault(end, [])
                if batches is None:
                    by_end[end] = None
                elif of_panes is not None:
                    of_panes += batches
        for end, of_panes in sorted(by_end.items()):
            yield from self._window(end, None if of_panes is None else self._merge(of_panes))

    def _window(self, end: int, only: pa.RecordBatch | None = None) -> Iterator[TimedRows]:
        panes = [pane for pane in self._table.panes if end - self._size < pane <= end]
        for batch in self._table.read(panes, only):
            if only is not None:
                batch = self._of_keys(batch, only)
            width = 1 + len(self._keys.fields)
            ends = np.full(batch.num_rows, end)
            keys = dict(zip(self._keys.names, batch.columns[1:width], strict=True))
            yield results_of(keys, ends - self._size, ends, ends - 1, self._accumulators, batch.columns[width:])

    def current_results(self, keys: BatchKeys) -> Iterator[TimedRows]:
        only = pa.RecordBatch.from_arrays([keys.groups, *keys.columns], names=[GROUP, *self._keys.names])
        mark = self._table.mark_us
        after = None if mark is None else mark - self._lateness
        for end in sorted({end for pane in self._table.panes for end in self._ends_of(pane, after, None)}):
            yield from self._window(end, only)

    def _merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
        width = 1 + len(self._keys.fields)
        groups = group_by(batch.columns[1:width])
        if groups.count == batch.num_rows:
            return batch
        first = pa.array(groups.first)
        keys = [column.take(first) for column in batch.columns[:width]]
        merged = self._accumulators.merge(batch.columns[width:], groups)
        return pa.RecordBatch.from_arrays([*keys, *merged], schema=self._table.schema)

    def _of_keys(self, batch: pa.RecordBatch, only: pa.RecordBatch) -> pa.RecordBatch:
        width = 1 + len(self._keys.fields)
        both = [pa.concat_arrays([a, b]) for a, b in zip(only.columns[1:width], batch.columns[1:width], strict=True)]
        return batch.filter(pa.array(group_by(both).of_row[only.num_rows :] < only.num_rows))

    # -- alignment: a pane is identified by its end

    def pane_of(self, time_us: Any) -> Any:
        """Return the end of the pane that contains a time."""
        return time_us - (time_us - self._offset) % self.pane_us + self.pane_us

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
