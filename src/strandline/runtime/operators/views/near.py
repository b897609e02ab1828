"""Joins of two streams by equal keys and near times: a row is state until the watermark says that no partner can come.

A row lies in a bucket of its key: a stretch of time as wide as the interval. So all partners of a row are in two
buckets of the other side, and an epoch reads and writes these alone, however long the history of a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from strandline.backends.base import Backend
from strandline.core.times import computable, within
from strandline.format.keys import KeyCodec
from strandline.format.manifest import StateInfo
from strandline.format.schemas import Schemas
from strandline.format.values import ValueCodec
from strandline.runtime.operators.views.bags import WEIGHT, Numbers, RowType, lists_by_key
from strandline.runtime.operators.views.inputs import EpochOperator
from strandline.runtime.operators.views.joins import PAIRED, How
from strandline.runtime.state.columnar import BatchKeys, TimedRows
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.table import StateTable
from strandline.runtime.state.timers import TimerTable, earliest, passed_us
from strandline.runtime.state.vectors import EntryTable, KeySlots
from strandline.types.datatypes import LongType, StructType, parse_type

_STEPS = 8
"""Rows are dropped at most so much of their time in state later than they could be: the part that is one of these."""
_BUCKETS = KeyCodec([LongType()])


@dataclass(frozen=True)
class Near:
    """The distance of rows that are near: `lower_us <= right's time - left's time <= upper_us`."""

    lower_us: int
    upper_us: int
    lags_us: tuple[int, int] = (0, 0)
    """By side: how far behind the watermark the times of rows may be that are not late."""

    by_clock: bool = False
    """Whether a row's time is when it arrives, and the clock is in place of the watermark."""

    @property
    def width_us(self) -> int:
        """The width of a bucket, a power of two: the partners of a row are in two of them."""
        return 1 << (self.upper_us - self.lower_us).bit_length()


@dataclass(frozen=True)
class Rows:
    """Rows of one side: of each the number of its key, its time, whether it has had a partner, and its entry."""

    of_key: Numbers
    at: Numbers
    matched: Numbers
    rows: pa.StructArray
    entry: Numbers

    def __len__(self) -> int:
        return len(self.at)

    def take(self, chosen: Numbers) -> Rows:
        """Return some of the rows."""
        rows = self.rows.take(pa.array(chosen))
        return Rows(self.of_key[chosen], self.at[chosen], self.matched[chosen], rows, self.entry[chosen])

    def plus(self, other: Rows) -> Rows:
        """Return the rows of both."""
        names = ("of_key", "at", "matched", "entry")
        both = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in names}
        return Rows(rows=pa.concat_arrays([self.rows, other.rows]), **both)


@dataclass(frozen=True)
class Entries:
    """Buckets of keys, and the rows that state has in them."""

    of_key: Numbers
    buckets: Numbers
    places: KeySlots
    rows: Rows


class Side:
    """The rows of one side in state."""

    def __init__(self, name: str, columns: StructType, lower_us: int, upper_us: int, near: Near, lag_us: int) -> None:
        """Partners' times are from `lower_us` before to `upper_us` after a row's, and `lag_us` behind the watermark."""
        self.name, self.kind = name, RowType(columns)
        self.lower_us, self.upper_us, self._width_us = lower_us, upper_us, near.width_us
        self.reach_us = upper_us + lag_us
        """How long after a row's time the watermark has to be so that no partner can come."""
        # A power of two, too: the rows of a step are in one bucket.
        self._step_us = min(near.width_us, 1 << max(0, (self.reach_us // _STEPS).bit_length() - 1))
        self.ddl = f"array<struct<at: bigint, matched: boolean, row: {columns.ddl}>>"
        self.infos = [
            StateInfo(name=name, kind="map", key_type="bigint", value_type=parse_type(self.ddl).ddl),
            StateInfo(name=f"timers.{name}", kind="timers", value_type=""),
        ]

    def bind(self, backend: Backend, groups: range, schemas: Schemas, cache_bytes: int) -> list[StateTable[Any]]:
        """Create the tables."""
        self._codec: ValueCodec = schemas.codec(parse_type(self.ddl))
        self._table = EntryTable(self.name, backend, cache_bytes, _BUCKETS)
        self.ends = TimerTable(f"timers.{self.name}", backend, groups)
        return [self._table, self.ends]

    def bucket(self, times: Numbers) -> Numbers:
        """Return the bucket of each time."""
        return times // self._width_us

    def entries(self, encoded: Sequence[bytes], of_key: Numbers, buckets: Numbers) -> tuple[Entries, Numbers]:
        """Return the distinct entries of some keys and buckets, and which of them each is."""
        pairs, entry = np.unique(np.column_stack([of_key, buckets]), axis=0, return_inverse=True)
        of_key, buckets = pairs[:, 0], pairs[:, 1]
        subs = {each: _BUCKETS.encode_sub(each) for each in {*buckets.tolist()}}
        names = [encoded[key] + subs[each] for key, each in zip(of_key.tolist(), buckets.tolist(), strict=True)]
        places = self._table.find(names)
        stored = self._codec.decode_arrow(self._table.get(places))
        sizes = stored.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        entry_of = np.repeat(np.arange(len(pairs)), sizes)
        at, matched, rows = stored.flatten().flatten()
        parts = at.to_numpy(zero_copy_only=False), matched.to_numpy(zero_copy_only=False).astype(bool)
        return Entries(of_key, buckets, places, Rows(of_key[entry_of], *parts, rows, entry_of)), entry.reshape(-1)

    def put(self, entries: Entries, rows: Rows, changed: Numbers) -> None:
        """Store the rows of the entries that have changed."""
        number = np.full(len(entries.of_key), -1)
        number[changed] = np.arange(len(changed))
        rows = rows.take(np.flatnonzero(number[rows.entry] >= 0))
        parts = [pa.array(rows.at), pa.array(rows.matched), rows.rows]
        stored = pa.StructArray.from_arrays(parts, names=["at", "matched", "row"])
        values = lists_by_key(stored, number[rows.entry], len(changed))
        coded = iter(self._codec.encode_arrow(values.drop_null()))
        has = values.is_valid().to_pylist()
        self._table.put(entries.places.some(changed.tolist()), [next(coded) if each else None for each in has])

    def wake(self, encoded: Sequence[bytes], of_key: Numbers, times: Numbers) -> None:
        """Set timers for when the rows of some times have no partner any more."""
        for key, at in {*zip(of_key.tolist(), (times + self.reach_us).tolist(), strict=True)}:
            self.ends.set(encoded[key], at)

    def due(self, watermark_us: int) -> tuple[list[bytes], Numbers, Numbers]:
        """Fire the timers; return their keys, and the number of its key and its bucket for each."""
        fired = list(self.ends.fire(passed_us(watermark_us), lambda keys: None))
        numbers: dict[bytes, int] = {}
        of_key = np.fromiter((numbers.setdefault(key, len(numbers)) for _, key in fired), np.int64, len(fired))
        times = np.fromiter((at for at, _ in fired), np.int64, len(fired))
        return list(numbers), of_key, self.bucket(times - self.reach_us)

    def last_time(self, times: Numbers) -> Numbers:
        """Return the last time at which rows are dropped together with those of some times."""
        return times | (self._step_us - 1)

    def is_over(self, times: Numbers, watermark_us: int | None) -> Numbers:
        """Return where no partner can come any more."""
        if watermark_us is None:
            return np.zeros(len(times), bool)
        over: Numbers = times + self.reach_us < watermark_us
        return over


class NearJoining(EpochOperator):
    """Pairs of rows with equal keys and near times, and rows without a partner as the kind of join says.

    A row of the input is a pair of which one half is null. Each half has its columns, and its time, unless
    that is when it comes (`by_clock`). Rows only come. A row without a partner is given when none can come any more, or
    if results are not `final`, at once, and is taken back when a partner comes. A row that is late is dropped, and
    counted.
    """

    def __init__(
        self, how: How, left: StructType, right: StructType, result: StructType, near: Near, *, final: bool
    ) -> None:
        super().__init__()
        self._how, self._near, self._final = how, near, final
        self._result = RowType(result)
        self._sides = (
            Side("left", left, near.lower_us, near.upper_us, near, near.lags_us[1]),
            Side("right", right, -near.upper_us, -near.lower_us, near, near.lags_us[0]),
        )
        self._alone = how in ("left", "full", "anti", "existence"), how in ("right", "full")
        """By side: whether rows without a partner are in the result."""
        self.own_tables = [info for side in self._sides for info in side.infos]

    def bind(
        self, backend: Backend, groups: range, schemas: Mapping[str, Schemas], cache_bytes: int
    ) -> Sequence[StateTable[Any]]:
        return [
            table
            for side in self._sides
            for table in side.bind(backend, groups, schemas.get(side.name, Schemas()), cache_bytes // 2)
        ]

    @property
    def next_due_us(self) -> int | None:
        # What the clock drops is not worth an epoch without rows.
        return None if self._near.by_clock else earliest(side.ends.next_us() for side in self._sides)

    # -- what the watermark has passed

    def on_watermark(self, scope: Scope) -> Iterator[TimedRows]:
        if not self._near.by_clock:
            yield from self._drop(scope)

    def on_clock(self, scope: Scope) -> Iterator[TimedRows]:
        if self._near.by_clock:
            yield from self._drop(scope)

    def _reached(self, scope: Scope) -> int | None:
        return scope.now_us if self._near.by_clock else scope.watermark_us

    def _drop(self, scope: Scope) -> Iterator[TimedRows]:
        """Drop the rows that have no partner any more; yield those that never had one, if results are final."""
        reached_us = self._reached(scope)
        for number, side in enumerate(self._sides):
            encoded, of_key, buckets = side.due(reached_us or 0)
            if not len(of_key):
                continue
            entries, _ = side.entries(encoded, of_key, buckets)
            rows = entries.rows
            is_over = side.is_over(rows.at, reached_us)
            # State is in the order of arrival.
            over = rows.take(np.flatnonzero(is_over & ~rows.matched))
            if self._final and self._alone[number] and len(over):
                over = over.take(np.argsort(over.at, kind="stable"))
                yield self._output([self._single(number, over, 1, False, over.at + side.reach_us)])
            side.put(entries, rows.take(np.flatnonzero(~is_over)), np.arange(len(entries.of_key)))

    # -- the rows of an epoch

    def on_end(self, scope: Scope) -> Iterator[TimedRows]:
        """Yield the changes of the result."""
        if (changes := self._take()) is None:
            return
        keys, of_row, columns = changes
        new = [self._arrived(number, of_row, columns[number], scope) for number in range(2)]
        parts = [part for number, (_, timeless) in enumerate(new) for part in self._timeless(number, timeless)]
        (left, left_entries), (right, right_entries) = (
            self._with_stored(number, keys, new[number][0], new[1 - number][0]) for number in range(2)
        )
        old_lefts, old_rights = (len(entries.rows) for entries in (left_entries, right_entries))
        # A new row meets all of the other side, and an old one those that are new.
        first = self._meet(left, np.arange(old_lefts, len(left)), right, np.arange(len(right)))
        second = self._meet(left, np.arange(old_lefts), right, np.arange(old_rights, len(right)))
        lefts, rights = (np.concatenate(both) for both in zip(first, second, strict=True))
        if self._how in PAIRED and len(lefts):
            pairs = [*left.rows.take(pa.array(lefts)).flatten(), *right.rows.take(pa.array(rights)).flatten()]
            parts.append((pairs, np.ones(len(lefts), np.int64), np.maximum(left.at[lefts], right.at[rights])))
        for number, rows, entries, hits in ((0, left, left_entries, lefts), (1, right, right_entries, rights)):
            parts += self._kept(number, keys, rows, entries, hits, scope)
        parts = [part for part in parts if len(part[1])]
        if parts:
            yield self._output(parts)

    def _arrived(self, number: int, of_row: Numbers, half: pa.StructArray, scope: Scope) -> tuple[Rows, pa.StructArray]:
        """Return one side's rows of the epoch that are not late, and those without a time."""
        side = self._sides[number]
        present = np.flatnonzero(half.is_valid().to_numpy(zero_copy_only=False))
        parts = half.take(pa.array(present)).flatten()
        width = len(side.kind.columns.fields)
        rows = side.kind.rows_of(parts[:width])
        if self._near.by_clock:
            none = np.zeros(len(rows), np.int64)
            return Rows(of_row[present], none + scope.now_us, none.astype(bool), rows, none), rows.slice(0, 0)
        is_timed = parts[-1].is_valid().to_numpy(zero_copy_only=False)
        at = computable(parts[-1].fill_null(0).to_numpy(zero_copy_only=False))
        counts = is_timed.copy()
        if scope.watermark_us is not None:
            counts &= at >= scope.watermark_us - self._near.lags_us[number]
        self.late_rows += int((is_timed & ~counts).sum())
        chosen = np.flatnonzero(counts)
        none = np.zeros(len(chosen), np.int64)
        new = Rows(of_row[present[chosen]], at[chosen], none.astype(bool), rows.take(pa.array(chosen)), none)
        return new, rows.take(pa.array(np.flatnonzero(~is_timed)))

    def _timeless(self, number: int, rows: pa.StructArray) -> Iterator[Any]:
        """Yield the results of rows without a time, which no row is near to."""
        if self._alone[number] and len(rows):
            none = np.zeros(len(rows), np.int64)
            yield self._single(number, Rows(none, none, none, rows, none), 1, False, none)

    def _with_stored(self, number: int, keys: BatchKeys, new: Rows, others: Rows) -> tuple[Rows, Entries]:
        """Return the rows of one side in the buckets of the epoch's, and of the partners of the other side's."""
        side, other = self._sides[number], self._sides[1 - number]
        of_key = np.concatenate([new.of_key, others.of_key, others.of_key])
        times = np.concatenate([new.at, others.at + other.lower_us, others.at + other.upper_us])
        entries, entry = side.entries(keys.encoded, of_key, side.bucket(times))
        return entries.rows.plus(replace(new, entry=entry[: len(new)])), entries

    def _meet(self, left: Rows, lefts: Numbers, right: Rows, rights: Numbers) -> tuple[Numbers, Numbers]:
        """Return the pairs of some left rows and some right ones, as their indexes."""
        if not len(lefts) or not len(rights):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        near = self._near
        rights = rights[np.lexsort((right.at[rights], right.of_key[rights]))]
        times = np.unique(right.at[rights])
        # The place of a time, after those of lesser keys.
        places = len(times) + 1
        order = right.of_key[rights] * places + np.searchsorted(times, right.at[rights])
        keys, at = left.of_key[lefts] * places, left.at[lefts]
        start = np.searchsorted(order, keys + np.searchsorted(times, at + near.lower_us, "left"))
        end = np.searchsorted(order, keys + np.searchsorted(times, at + near.upper_us, "right"))
        counts = end - start
        rank = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(lefts, counts), rights[np.repeat(start, counts) + rank]

    def _kept(
        self, number: int, keys: BatchKeys, rows: Rows, entries: Entries, hits: Numbers, scope: Scope
    ) -> Iterator[Any]:
        """Yield what pairs change in the results of single rows of a side; store the rows."""
        side, alone, is_judged = self._sides[number], self._alone[number], self._is_judged(number)
        is_new = np.arange(len(rows)) >= len(entries.rows)
        matched = rows.matched.copy()
        if is_judged:
            matched[hits] = True
        meets, is_over = matched & ~rows.matched, side.is_over(rows.at, self._reached(scope))
        if alone and not self._final:
            yield self._single(number, rows.take(np.flatnonzero(meets & ~is_new)), -1, False)
            yield self._single(number, rows.take(np.flatnonzero(is_new & ~matched)), 1, False)
        elif alone:
            yield self._single(number, rows.take(np.flatnonzero(is_new & ~matched & is_over)), 1, False)
        if number == 0 and self._how in ("semi", "existence"):
            yield self._single(number, rows.take(np.flatnonzero(meets)), 1, True)
        stays = ~(is_new & is_over)
        if number == 0 and self._how not in PAIRED:
            stays &= ~matched
        added = np.flatnonzero(is_new & stays)
        changed = np.unique(rows.entry[(is_new & stays) | (meets & ~is_new)])
        if not len(changed):
            return
        side.put(entries, replace(rows, matched=matched).take(np.flatnonzero(stays)), changed)
        side.wake(keys.encoded, rows.of_key[added], side.last_time(rows.at[added]))
        if alone and self._final:
            waiting = np.flatnonzero(is_new & stays & ~matched)
            side.wake(keys.encoded, rows.of_key[waiting], rows.at[waiting])

    def _is_judged(self, number: int) -> bool:
        """Whether the result depends on which rows of a side have a partner."""
        return self._alone[number] or (number == 0 and self._how == "semi")

    # -- results

    def _single(self, number: int, rows: Rows, sign: int, exists: bool, times: Numbers | None = None) -> Any:
        """Return results of single rows of a side: the columns, weights and times."""
        columns = rows.rows.flatten()
        if self._how in PAIRED:
            nulls = [pa.nulls(len(rows), each.type) for each in self._sides[1 - number].kind.arrow]
            columns = [*columns, *nulls] if number == 0 else [*nulls, *columns]
        elif self._how == "existence":
            columns = [*columns, pa.array(np.full(len(rows), exists))]
        return columns, np.full(len(rows), sign), rows.at if times is None else np.maximum(times, rows.at)

    def _output(self, parts: Sequence[Any]) -> TimedRows:
        """Return results as output rows."""
        columns = [pa.concat_arrays(same) for same in zip(*(part[0] for part in parts), strict=True)]
        signs, times = (np.concatenate([part[at] for part in parts]).astype(np.int64) for at in (1, 2))
        names = [*self._result.columns.names, WEIGHT]
        return pa.RecordBatch.from_arrays([*columns, pa.array(signs)], names=names), pa.array(within(times))
