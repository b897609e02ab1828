"""As-of joins: each row of one side with the newest version of its key, of the other side, that is not after its time.

A row is state until the watermark says that no version can come that would be the right one. Of versions, those are
state that a row may still ask for: the newest one up to the watermark, and those after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pyarrow as pa

from strandline.api.states import Value
from strandline.core.times import END_US, computable, within
from strandline.runtime.operators.views.bags import Bag, Numbers, RowType
from strandline.runtime.operators.views.inputs import change_rows
from strandline.runtime.operators.views.waiting import FlaggedRows, WaitingOperator
from strandline.runtime.state.columnar import BatchKeys, TimedRows
from strandline.runtime.state.scope import Scope
from strandline.types.datatypes import StructType

AsOfHow = Literal["inner", "left"]
_WAITING, _VERSIONS = "waiting", "versions"


class AsOfJoining(WaitingOperator):
    """Left rows, each with the version that was valid at its time. The flag of a version: it only ends the one before.

    A row of the input is a pair of which one half is null. The left half has its columns, and its time; the
    right one also, last, whether the key has no version from that time on. A left row is given when the watermark has
    passed it, or if results are not `final`, at once, and is changed as versions come. A left row that is late is
    dropped, and counted. A version that is late is counted, and valid for the rows that are not given yet.
    """

    def __init__(
        self,
        key: StructType,
        how: AsOfHow,
        left: StructType,
        right: StructType,
        result: StructType,
        lags_us: tuple[int, int],
        *,
        final: bool,
        is_strict: bool,
    ) -> None:
        """`lags_us`: by side, how far behind the watermark times may be. `is_strict`: a version is before the row."""
        super().__init__(key, dict.fromkeys((_WAITING, _VERSIONS), "gone"))
        self._how, self._lags_us = how, lags_us
        self._final, self._is_strict = final, is_strict
        self._kinds, self._result = (RowType(left), RowType(right)), RowType(result)
        self.own_states = {
            _WAITING: Value(f"array<struct<at: bigint, gone: boolean, row: {left.ddl}>>"),
            _VERSIONS: Value(f"array<struct<at: bigint, gone: boolean, row: {right.ddl}>>"),
        }

    def on_watermark(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the rows that the watermark has passed, if results are final; drop what no row can ask for any more."""
        if (keys := self._due(scope)) is None:
            return
        waiting, versions = self._stored(_WAITING, keys), self._stored(_VERSIONS, keys)
        is_over = self._is_over(waiting.at, scope)
        if self._final and is_over.any():
            yield from self._output(waiting.take(np.flatnonzero(is_over)), versions)
        if is_over.any():
            self._put(_WAITING, keys, waiting.take(np.flatnonzero(~is_over)), waiting.of_key[is_over])
        self._put_versions(keys, versions, versions.of_key, scope)

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Take in an epoch's rows; yield the changes of the result."""
        if (changes := self._take()) is None:
            return
        keys, of_row, columns = changes
        lefts, rights = (self._arrived(number, of_row, columns[number], scope) for number in range(2))
        waiting, versions = self._stored(_WAITING, keys), self._stored(_VERSIONS, keys)
        after = _last_of_each(_both(versions, rights))
        # A row without a time, which is after no version, comes at once.
        is_timed = lefts.at != _NEVER
        timed, timeless = lefts.take(np.flatnonzero(is_timed)), lefts.take(np.flatnonzero(~is_timed))
        waits = np.flatnonzero(~self._is_over(timed.at, scope))
        all_waiting = _both(waiting, timed.take(waits))
        if self._final:
            at_once = _both(timed.take(np.flatnonzero(self._is_over(timed.at, scope))), timeless)
            yield from self._output(at_once, after)
        else:
            (_, before), (_, now) = self._answers(waiting, versions), self._answers(_both(waiting, lefts), after)
            yield change_rows(self._result, before.negated().plus(now).summed(self._result)), None
        if len(waits):
            self._put(_WAITING, keys, all_waiting, timed.of_key[waits])
            self._wake(keys, timed.of_key[waits], timed.at[waits] + self._lags_us[1])
        if len(rights):
            self._put_versions(keys, after, rights.of_key, scope)
            lag_us, reached = max(self._lags_us), scope.watermark_us
            # What is behind the watermark has been looked at, and a timer would be due for ever.
            ahead = rights.at + lag_us >= (reached if reached is not None else _NEVER)
            self._wake(keys, rights.of_key[ahead], rights.at[ahead] + lag_us)

    # -- rows

    def _arrived(self, number: int, of_row: Numbers, half: pa.StructArray, scope: Scope) -> FlaggedRows:
        """Return one side's rows of the epoch in order. A left row that is late is not among them."""
        kind, width = self._kinds[number], len(self._kinds[number].columns.fields)
        present = np.flatnonzero(half.is_valid().to_numpy(zero_copy_only=False))
        parts = half.take(pa.array(present)).flatten()
        at = parts[width]
        is_timed = at.is_valid().to_numpy(zero_copy_only=False)
        at = computable(at.fill_null(0).to_numpy(zero_copy_only=False))
        at = np.where(is_timed, at, _NEVER)
        gone = np.zeros(len(at), bool)
        if len(parts) > width + 1:
            gone = parts[width + 1].fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
        rows = FlaggedRows(of_row[present], at, gone, kind.rows_of(parts[:width]))
        is_late = np.zeros(len(at), bool)
        if scope.watermark_us is not None:
            is_late = is_timed & (at < scope.watermark_us - self._lags_us[number])
        self.late_rows += int(is_late.sum())
        # A version without a time is valid at none.
        kept = rows.take(np.flatnonzero(~is_late if number == 0 else is_timed))
        return kept.take(np.lexsort((kept.at, kept.of_key)))

    def _is_over(self, times: Numbers, scope: Scope) -> Numbers:
        """Return where no version can come any more that is the right one."""
        reached = scope.watermark_us
        over: Numbers = np.zeros(len(times), bool) if reached is None else times + self._lags_us[1] < reached
        return over

    def _answers(self, rows: FlaggedRows, versions: FlaggedRows) -> tuple[FlaggedRows, Bag]:
        """Return some left rows, and the result of each that has one."""
        times = np.unique(versions.at)
        places = len(times) + 1
        order = versions.of_key * places + np.searchsorted(times, versions.at)
        wanted = rows.of_key * places + np.searchsorted(times, rows.at, "left" if self._is_strict else "right")
        at = np.searchsorted(order, wanted, "left") - 1
        is_valid = at >= 0
        known = at[is_valid]
        is_valid[is_valid] = (versions.of_key[known] == rows.of_key[is_valid]) & ~versions.flag[known]
        if self._how == "inner":
            rows, at, is_valid = rows.take(np.flatnonzero(is_valid)), at[is_valid], is_valid[is_valid]
        version = versions.rows.take(pa.array(at, mask=~is_valid))
        parts = [*rows.rows.flatten(), *version.flatten()]
        result = pa.StructArray.from_arrays(parts, fields=list(self._result.arrow))
        return rows, Bag(rows.of_key, result, np.ones(len(rows), np.int64))

    def _output(self, rows: FlaggedRows, versions: FlaggedRows) -> Iterator[TimedRows]:
        """Yield the results of left rows, with their times."""
        rows, results = self._answers(rows, versions)
        if len(rows):
            yield change_rows(self._result, results), pa.array(within(rows.at))

    # -- state

    def _put_versions(self, keys: BatchKeys, versions: FlaggedRows, changed: Numbers, scope: Scope) -> None:
        """Store versions without those that no row can ask for: the last one up to the watermark is valid there."""
        if scope.watermark_us is not None and len(versions):
            first_us = scope.watermark_us - max(self._lags_us)
            is_past = versions.at < first_us if self._is_strict else versions.at <= first_us
            has_next = np.append(versions.of_key[1:] == versions.of_key[:-1], False) & np.append(is_past[1:], False)
            versions = versions.take(np.flatnonzero(~(is_past & has_next)))
        self._put(_VERSIONS, keys, versions, changed)


_NEVER = -END_US
"""In place of the time of a row that has none."""


def _both(rows: FlaggedRows, later: FlaggedRows) -> FlaggedRows:
    """Return the rows of both in the order of keys and times; of equal times, those of the second are later."""
    both = rows.plus(later)
    return both.take(np.lexsort((both.at, both.of_key)))


def _last_of_each(rows: FlaggedRows) -> FlaggedRows:
    """Return rows without those that have the same key and time as the next one."""
    is_last = np.append((rows.of_key[1:] != rows.of_key[:-1]) | (rows.at[1:] != rows.at[:-1]), [True] * (len(rows) > 0))
    return rows.take(np.flatnonzero(is_last))
