"""As-of joins: each row of one side with the newest version of its key, of the other side, that is not after its time.

A row is state until the watermark says that no version can come that would be the right one. Of versions, those are
state that a row may still ask for: the newest one up to the watermark, and those after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from strandline.api.states import Value
from strandline.backends.base import Backend
from strandline.core.times import within
from strandline.format.keys import KeyCodec
from strandline.format.manifest import StateInfo
from strandline.format.schemas import Schemas
from strandline.runtime.operators.views.bags import Bag, Numbers, RowType
from strandline.runtime.operators.views.inputs import EpochOperator, change_rows
from strandline.runtime.state.columnar import BatchKeys, TimedRows
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.table import StateTable
from strandline.runtime.state.timers import TimerTable, passed_us
from strandline.types.datatypes import StructType

AsOfHow = Literal["inner", "left"]
_WAITING, _VERSIONS, _ENDS = "waiting", "versions", "timers.ends"


@dataclass(frozen=True)
class _Rows:
    """Rows of one side, those of a key in the order of their times; `gone`: a version that only ends the one before."""

    of_key: Numbers
    at: Numbers
    gone: Numbers
    rows: pa.StructArray

    def __len__(self) -> int:
        return len(self.at)

    def take(self, chosen: Numbers) -> _Rows:
        """Return some of the rows."""
        return _Rows(self.of_key[chosen], self.at[chosen], self.gone[chosen], self.rows.take(pa.array(chosen)))

    def plus(self, other: _Rows) -> _Rows:
        """Return the rows of both, in order; of equal times, those of the other one are later."""
        names = ("of_key", "at", "gone")
        parts = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        both = _Rows(rows=pa.concat_arrays([self.rows, other.rows]), **parts)
        return both.take(np.lexsort((both.at, both.of_key)))


class AsOfJoining(EpochOperator):
    """Left rows, each with the version that was valid at its time.

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
        super().__init__()
        self._key, self._how, self._lags_us = key, how, lags_us
        self._final, self._is_strict = final, is_strict
        self._kinds, self._result = (RowType(left), RowType(right)), RowType(result)
        self.own_states = {
            _WAITING: Value(f"array<struct<at: bigint, gone: boolean, row: {left.ddl}>>"),
            _VERSIONS: Value(f"array<struct<at: bigint, gone: boolean, row: {right.ddl}>>"),
        }
        self.own_tables = [StateInfo(name=_ENDS, kind="timers", value_type="")]

    def bind(
        self, backend: Backend, groups: range, schemas: Mapping[str, Schemas], cache_bytes: int
    ) -> Sequence[StateTable[Any]]:
        self._codec = KeyCodec([field.type for field in self._key.fields])
        self._ends = TimerTable(_ENDS, backend, groups)
        return [self._ends]

    @property
    def next_due_us(self) -> int | None:
        return self._ends.next_us()

    def on_watermark(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the rows that the watermark has passed, if results are final; drop what no row can ask for any more."""
        encoded: list[bytes] = []
        for _ in self._ends.fire(passed_us(scope.watermark_us or 0), lambda keys: encoded.extend(keys)):
            pass
        if not encoded:
            return
        keys = BatchKeys.decoded(list(dict.fromkeys(encoded)), self._codec)
        keys.are_distinct = True
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
        after = _last_of_each(versions.plus(rights))
        # A row without a time, which is after no version, comes at once.
        is_timed = lefts.at != _NEVER
        timed, timeless = lefts.take(np.flatnonzero(is_timed)), lefts.take(np.flatnonzero(~is_timed))
        waits = np.flatnonzero(~self._is_over(timed.at, scope))
        all_waiting = waiting.plus(timed.take(waits))
        if self._final:
            at_once = timed.take(np.flatnonzero(self._is_over(timed.at, scope))).plus(timeless)
            yield from self._output(at_once, after)
        else:
            (_, before), (_, now) = self._answers(waiting, versions), self._answers(waiting.plus(lefts), after)
            yield change_rows(self._result, before.negated().plus(now).summed(self._result)), None
        if len(waits):
            self._put(_WAITING, keys, all_waiting, timed.of_key[waits])
            self._wake(keys, timed.take(waits), self._lags_us[1])
        if len(rights):
            self._put_versions(keys, after, rights.of_key, scope)
            lag_us, reached = max(self._lags_us), scope.watermark_us
            # What is behind the watermark has been looked at, and a timer would be due for ever.
            ahead = rights.at + lag_us >= (reached if reached is not None else _NEVER)
            self._wake(keys, rights.take(np.flatnonzero(ahead)), lag_us)

    # -- rows

    def _arrived(self, number: int, of_row: Numbers, half: pa.StructArray, scope: Scope) -> _Rows:
        """Return one side's rows of the epoch in order. A left row that is late is not among them."""
        kind, width = self._kinds[number], len(self._kinds[number].columns.fields)
        present = np.flatnonzero(half.is_valid().to_numpy(zero_copy_only=False))
        parts = half.take(pa.array(present)).flatten()
        at = parts[width]
        is_timed = at.is_valid().to_numpy(zero_copy_only=False)
        at = at.fill_null(_NEVER).to_numpy(zero_copy_only=False)
        gone = np.zeros(len(at), bool)
        if len(parts) > width + 1:
            gone = parts[width + 1].fill_null(False).to_numpy(zero_copy_only=False).astype(bool)
        rows = _Rows(of_row[present], at, gone, kind.rows_of(parts[:width]))
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

    def _answers(self, rows: _Rows, versions: _Rows) -> tuple[_Rows, Bag]:
        """Return some left rows, and the result of each that has one."""
        times = np.unique(versions.at)
        places = len(times) + 1
        order = versions.of_key * places + np.searchsorted(times, versions.at)
        wanted = rows.of_key * places + np.searchsorted(times, rows.at, "left" if self._is_strict else "right")
        at = np.searchsorted(order, wanted, "left") - 1
        is_valid = at >= 0
        known = at[is_valid]
        is_valid[is_valid] = (versions.of_key[known] == rows.of_key[is_valid]) & ~versions.gone[known]
        if self._how == "inner":
            rows, at, is_valid = rows.take(np.flatnonzero(is_valid)), at[is_valid], is_valid[is_valid]
        version = versions.rows.take(pa.array(at, mask=~is_valid))
        parts = [*rows.rows.flatten(), *version.flatten()]
        result = pa.StructArray.from_arrays(parts, fields=list(self._result.arrow))
        return rows, Bag(rows.of_key, result, np.ones(len(rows), np.int64))

    def _output(self, rows: _Rows, versions: _Rows) -> Iterator[TimedRows]:
        """Yield the results of left rows, with their times."""
        rows, results = self._answers(rows, versions)
        if len(rows):
            yield change_rows(self._result, results), pa.array(within(rows.at))

    # -- state

    def _stored(self, name: str, keys: BatchKeys) -> _Rows:
        values = vars(self)[name].get_many(keys)
        sizes = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        at, gone, rows = values.flatten().flatten()
        at, gone = at.to_numpy(zero_copy_only=False), gone.to_numpy(zero_copy_only=False).astype(bool)
        return _Rows(np.repeat(np.arange(len(keys)), sizes), at, gone, rows)

    def _put(self, name: str, keys: BatchKeys, rows: _Rows, changed: Numbers) -> None:
        """Store the rows of those keys that have changed."""
        sizes = np.bincount(rows.of_key, minlength=len(keys))
        offsets = pa.array(np.append(0, np.cumsum(sizes)).astype(np.int32))
        parts = [pa.array(rows.at), pa.array(rows.gone), rows.rows]
        entries = pa.StructArray.from_arrays(parts, names=["at", "gone", "row"])
        values = pa.ListArray.from_arrays(offsets, entries, mask=pa.array(sizes == 0))
        chosen = np.unique(changed)
        vars(self)[name].put_many(keys.take(chosen), values.take(pa.array(chosen)))

    def _put_versions(self, keys: BatchKeys, versions: _Rows, changed: Numbers, scope: Scope) -> None:
        """Store versions without those that no row can ask for: the last one up to the watermark is valid there."""
        if scope.watermark_us is not None and len(versions):
            first_us = scope.watermark_us - max(self._lags_us)
            is_past = versions.at < first_us if self._is_strict else versions.at <= first_us
            has_next = np.append(versions.of_key[1:] == versions.of_key[:-1], False) & np.append(is_past[1:], False)
            versions = versions.take(np.flatnonzero(~(is_past & has_next)))
        self._put(_VERSIONS, keys, versions, changed)

    def _wake(self, keys: BatchKeys, rows: _Rows, lag_us: int) -> None:
        for key, at in zip(rows.of_key.tolist(), (rows.at + lag_us).tolist(), strict=True):
            self._ends.set(keys.encoded[key], at)


_NEVER = -(1 << 61)
"""In place of the time of a row that has none."""


def _last_of_each(rows: _Rows) -> _Rows:
    """Return rows without those that have the same key and time as the next one."""
    is_last = np.append((rows.of_key[1:] != rows.of_key[:-1]) | (rows.at[1:] != rows.at[:-1]), [True] * (len(rows) > 0))
    return rows.take(np.flatnonzero(is_last))
