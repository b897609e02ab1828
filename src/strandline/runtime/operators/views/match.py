"""MATCH_RECOGNIZE: matches of a pattern in the rows of each key, in the order of their times.

A row waits until the watermark has passed it. Then it takes its place among the rows of its key, and stays there for as
long as a match may still have it. State has rows alone, and no partial matches: those are found again from the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.api.states import Value
from strandline.core.errors import UserCodeError
from strandline.core.times import END_US, computable, within
from strandline.format.keys import KeyCodec
from strandline.runtime.operators.patterns.search import Match, Matching, Search
from strandline.runtime.operators.views.bags import WEIGHT, RowType
from strandline.runtime.operators.views.top import Order, sortable
from strandline.runtime.operators.views.waiting import FlaggedRows, WaitingOperator
from strandline.runtime.state.columnar import BatchKeys, TimedRows
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.timers import passed_us
from strandline.types.columns import conform
from strandline.types.datatypes import StructType

_WAITING, _PASSED = "waiting", "passed"

_END = passed_us(END_US)
"""The time of timers that the last watermark alone fires: no row waits until then."""
_ASCENDING = Order(0, is_descending=False, nulls_last=False)


class MatchRecognizing(WaitingOperator):
    """The matches of a pattern in the rows of each key. The flag of a row is whether it may begin one.

    A row of the input has the key, the columns, and its time. Rows of equal times are in the order of `order`, and then
    of all columns. A match comes when the watermark says that no row can change it. A row that is late is dropped, and
    counted; one without a time is dropped.
    """

    def __init__(
        self,
        key: StructType,
        columns: StructType,
        result: StructType,
        matching: Matching,
        order: Sequence[Order],
        before: Sequence[tuple[int, int]],
        lag_us: int,
    ) -> None:
        """`before`: columns of the row so many rows before; in `matching`, they come after the other columns.

        `lag_us`: how far behind the watermark times may be. The results are the slots of `matching`.
        """
        super().__init__(key, {_WAITING: "", _PASSED: "open"})
        self._kind, self._result = RowType(columns), RowType(result)
        self._matching, self._order, self._before, self._lag_us = matching, list(order), list(before), lag_us
        self._most_before = max((count for _, count in before), default=0)
        self.own_states = {
            _WAITING: Value(f"array<struct<at: bigint, row: {columns.ddl}>>"),
            _PASSED: Value(f"array<struct<at: bigint, open: boolean, row: {columns.ddl}>>"),
        }

    @cached_property
    def _search(self) -> Search:
        # Made where it is used: processes cannot send it.
        return Search(self._matching)

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Keep an epoch's rows until the watermark has passed them."""
        if (changes := self._take()) is None:
            return
        keys, of_row, (_, *columns, times) = changes
        at = computable(times.fill_null(0).to_numpy(zero_copy_only=False))
        is_kept = times.is_valid().to_numpy(zero_copy_only=False).astype(bool)
        if scope.watermark_us is not None:
            is_late = is_kept & (at < scope.watermark_us - self._lag_us)
            self.late_rows += int(is_late.sum())
            is_kept &= ~is_late
        arrived = FlaggedRows(of_row, at, np.ones(len(at), bool), self._kind.rows_of(columns))
        arrived = arrived.take(np.flatnonzero(is_kept))
        if len(arrived):
            waiting = self._stored(_WAITING, keys).plus(arrived)
            self._put(_WAITING, keys, waiting, arrived.of_key)
            self._wake(keys, arrived.of_key, arrived.at + self._lag_us)
        yield from ()

    def on_watermark(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the matches that no row can change any more; drop the rows that no match can have any more."""
        if (keys := self._due(scope)) is None or scope.watermark_us is None:
            return
        reached_us = None if scope.watermark_us == END_US else scope.watermark_us - self._lag_us
        waiting = self._stored(_WAITING, keys)
        is_over = np.ones(len(waiting), bool) if reached_us is None else waiting.at < reached_us
        passed = self._stored(_PASSED, keys)
        rows = passed.plus(self._sorted(waiting.take(np.flatnonzero(is_over))))
        rows = rows.take(np.argsort(rows.of_key, kind="stable"))
        if is_over.any():
            left = waiting.take(np.flatnonzero(~is_over))
            self._put(_WAITING, keys, left, waiting.of_key[is_over])
        columns = self._columns(rows)
        matches, kept = self._matches(keys, rows, columns, reached_us)
        self._put(_PASSED, keys, kept, np.arange(len(keys)))
        self._wait_for_more(keys, passed, kept)
        if matches:
            yield self._output(rows, columns, matches)

    def answer(self, table: pa.Table) -> pa.RecordBatch:
        """Return the matches in rows of the input, if no other row comes: a preview has neither state nor watermark."""
        key, *columns, times = table.columns
        codec = KeyCodec([field.type for field in self._key.fields])
        parts = [conform(key, self._key.fields[0].type)]
        keys, of_row = BatchKeys(parts, pa.array(np.zeros(len(table), np.int32)), codec).unique()
        at = computable(times.combine_chunks().fill_null(0).to_numpy(zero_copy_only=False))
        rows = FlaggedRows(of_row, at, np.ones(len(at), bool), self._kind.rows_of(columns))
        rows = self._sorted(rows.take(np.flatnonzero(times.is_valid())))
        of_rows = self._columns(rows)
        matches, _ = self._matches(keys, rows, of_rows, None)
        batch, _ = self._output(rows, of_rows, matches)
        return batch

    def _sorted(self, rows: FlaggedRows) -> FlaggedRows:
        """Return rows in the order of keys, times, the columns of ORDER BY, and the bits of all columns."""
        columns = rows.rows.flatten()
        ties = [(column, _ASCENDING) for column in self._kind.comparable(rows.rows)]
        pairs = [*((columns[order.at], order) for order in self._order), *ties]
        by = [part for column, order in pairs for part in sortable(column, order)]
        return rows.take(np.lexsort((*reversed(by), rows.at, rows.of_key)))

    def _columns(self, rows: FlaggedRows) -> list[pa.Array]:
        """Return the columns of rows, and those of the rows before each."""
        columns: list[pa.Array] = rows.rows.flatten()
        first = np.searchsorted(rows.of_key, rows.of_key)
        for at, count in self._before:
            row = np.arange(len(rows)) - count
            columns.append(columns[at].take(pa.array(np.maximum(row, 0), mask=row < first)))
        return columns

    def _matches(
        self, keys: BatchKeys, rows: FlaggedRows, columns: Sequence[pa.Array], reached_us: int | None
    ) -> tuple[list[Match], FlaggedRows]:
        """Return the matches of all keys, and the rows that stay."""
        read, times = self._search.columns, rows.at.tolist()
        values = [_values(column) if at in read else [] for at, column in enumerate(columns)]
        matches: list[Match] = []
        stays, is_open = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
        ends = np.searchsorted(rows.of_key, np.arange(len(keys)), "right").tolist()
        begin = 0
        for end in ends:
            starts = (begin + np.flatnonzero(rows.flag[begin:end])).tolist()
            outcome = self._search.find(values, times, starts, end, reached_us)
            matches += outcome.matches
            is_open[outcome.open] = True
            first = outcome.open[0] if outcome.open else end
            stays[max(begin, first - self._most_before) : end] = True
            begin = end
        return matches, FlaggedRows(rows.of_key, rows.at, is_open, rows.rows).take(np.flatnonzero(stays))

    def _wait_for_more(self, keys: BatchKeys, before: FlaggedRows, now: FlaggedRows) -> None:
        """Set timers for when it is known which match begins at the first open row of each key."""
        open_keys, first = np.unique(now.of_key[now.flag], return_index=True)
        if (within_us := self._matching.within_us) is not None:
            due_us = now.at[now.flag][first] + within_us + self._lag_us - 1
            self._wake(keys, open_keys, due_us)
            return
        # Without WITHIN, at the end of event time.
        were_open = np.unique(before.of_key[before.flag])
        newly_open = np.setdiff1d(open_keys, were_open)
        self._wake(keys, newly_open, np.full(len(newly_open), _END))
        for key in np.setdiff1d(were_open, open_keys).tolist():
            self._ends.delete(keys.encoded[key], _END)

    def _output(self, rows: FlaggedRows, columns: Sequence[pa.Array], matches: Sequence[Match]) -> TimedRows:
        """Return matches as output rows: what each slot holds."""
        parts = []
        for at, (slot, field) in enumerate(zip(self._matching.slots, self._result.arrow, strict=True)):
            if slot.is_row:
                of_match = [slot.row_of(match.memory[at]) for match in matches]
                parts.append(columns[slot.column].take(pa.array(of_match, pa.int64())))
            else:
                parts.append(_column([match.memory[at] for match in matches], field.type))
        signs = pa.array(np.ones(len(matches), np.int64))
        names = [*self._result.columns.names, WEIGHT]
        times = within(rows.at[[match.last for match in matches]])
        return pa.RecordBatch.from_arrays([*parts, signs], names=names), pa.array(times)


def _values(column: pa.Array) -> list[Any]:
    """Return a column as conditions take it."""
    values: list[Any] = column.cast(_plain(column.type)).to_pylist()
    return values


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type, or in place of times and dates that of their numbers."""
    return pa.int64() if pa.types.is_timestamp(kind) else pa.int32() if pa.types.is_date32(kind) else kind


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return sums or extremes as a column. Raise UserCodeError for a sum that is too large."""
    try:
        return pa.array(values, _plain(kind)).cast(kind)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise UserCodeError(
            f"MATCH_RECOGNIZE: the sum of a match's rows does not fit its type, {kind}",
            hint="CAST the values to a larger type before they are summed: sum(CAST(A.x AS DECIMAL(38, 0)))",
        ) from error
