"""Joins of two keyed streams by time: rows wait in state for their partners until the watermark has passed them.

A row is stored in a bucket of its side: a map entry for a stretch of time, as wide as the interval. So all rows that it
can match are in two buckets of the other side, which are read by key. Within a bucket rows are in the order of their
times. A snapshot may be reading lists in state, so an epoch copies a list before its first change. From then on it
changes the copy in place: a key with many rows costs a copy an epoch, not one a row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from strandline.api.joins import KeyedCoProcess
from strandline.api.states import Map
from strandline.api.windows import Sliding, Tumbling, windows_of
from strandline.core.errors import UserCodeError
from strandline.core.times import as_datetime, within
from strandline.format.manifest import Interval
from strandline.runtime.builtin import BuiltinOperator, windows_info
from strandline.runtime.state.maps import MapTable
from strandline.types.datatypes import StructType
from strandline.types.records import record_type

LEFT, RIGHT = "__strandline_left", "__strandline_right"
"""The columns of a pair, the input of a function of two streams: one has the event, and the other is null."""

How = Literal["inner", "left", "right", "full"]
HOWS: tuple[How, ...] = ("inner", "left", "right", "full")

Bounds = Literal["[]", "[)", "(]", "()"]
BOUNDS: tuple[Bounds, ...] = ("[]", "[)", "(]", "()")

LateSides = tuple[str | None, str | None]
"""The side outputs of late left and late right rows."""

Row = tuple[Any, ...]
_Waiting = record_type(("time", "matched", "row"))
_time = attrgetter("time")


def user_call(process: object, method: str, event: Any) -> tuple[str, Any]:
    """Return the user's method that was called, and its event, for error messages."""
    if method != "on_event" or not isinstance(process, KeyedCoProcess) or event is None:
        return method, event
    return "on_right" if event[0] is None else "on_left", _half(event)


def user_event(event: Any, names: Sequence[str]) -> Any:
    """Return the event that a user knows: of a pair, the half that is not null."""
    return _half(event) if names[0] == LEFT else event


def _half(pair: Any) -> Any:
    left, right, *_ = pair
    return right if left is None else left


class JoinColumns:
    """Result columns of a join: the left ones, then the right ones.

    Of the right ones, it leaves out keys that have the same name on the left, and the columns in `without`.
    """

    def __init__(
        self, left: StructType, right: StructType, shared: Sequence[str] = (), without: Collection[str] = ()
    ) -> None:
        self.left = left
        self.right = right
        self.shared = tuple(shared)
        self._kept = [at for at, name in enumerate(right.names) if name not in (*self.shared, *without)]
        self._filled = [(left.names.index(name), right.names.index(name)) for name in self.shared]
        self._picks = len(self._kept) < len(right.fields)
        self._left_nulls = (None,) * len(left.fields)
        self._right_nulls = (None,) * len(self._kept)

    def columns(self, prefixes: tuple[str, str]) -> list[tuple[str, str]]:
        """Return names and DDL types of the result; prefixes stand before what is not a shared key."""
        left, right = prefixes
        columns = [(f.name if f.name in self.shared else left + f.name, f.type.ddl) for f in self.left.fields]
        return columns + [(right + f.name, f.type.ddl) for f in map(self.right.fields.__getitem__, self._kept)]

    def pair(self, left: Row, right: Row) -> Row:
        """Return the result of two rows."""
        return left + self._picked(right) if self._picks else left + right

    def halves(self, result: Row) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values of the left and of the right row that a result has, by their columns."""
        right = zip(self._kept, result[len(self.left.fields) :], strict=False)
        return dict(zip(self.left.names, result, strict=False)), {self.right.names[at]: value for at, value in right}

    def left_alone(self, left: Row) -> Row:
        """Return the result of a left row without a partner."""
        return left + self._right_nulls

    def right_alone(self, right: Row) -> Row:
        """Return the result of a right row without a partner: the shared keys have its values."""
        if not self._picks:
            return self._left_nulls + right
        row, plain = list(self._left_nulls), tuple(right)
        for to, at in self._filled:
            row[to] = plain[at]
        return (*row, *self._picked(right))

    def _picked(self, right: Row) -> Row:
        # As a plain tuple: a record's own [] is slow.
        plain = tuple(right)
        return tuple([plain[at] for at in self._kept])


class TimedJoin(BuiltinOperator, KeyedCoProcess):
    """Base of joins by time. They set `ctx.time_us` to a result's time before they yield it."""

    def __init__(self, layout: JoinColumns, how: How, late: LateSides = (None, None)) -> None:
        self.layout = layout
        self._outer_left = how in ("left", "full")
        self._outer_right = how in ("right", "full")
        self._late = late
        self.own_metrics: dict[str, int] = {"late_dropped": 0}
        """Rows that were dropped because they were too late."""

    def _refuse_late(self, row: Row, is_left: bool, ctx: Any) -> None:
        """Emit a row that is too late to the side output, or drop and count it."""
        side = self._late[not is_left]
        if side is None:
            self.own_metrics["late_dropped"] += 1
        else:
            ctx.emit(side, row)

    def _all_pairs(self, lefts: Sequence[Row], rights: Sequence[Row]) -> Iterator[Row]:
        """Yield every pair of rows, and in outer joins rows alone if the other side has none."""
        layout = self.layout
        for left in lefts:
            for right in rights:
                yield layout.pair(left, right)
        if self._outer_left and not rights:
            yield from map(layout.left_alone, lefts)
        if self._outer_right and not lefts:
            yield from map(layout.right_alone, rights)


def time_of(row: Row, ctx: Any) -> int:
    """Return a row's time; refuse a row without one."""
    if ctx.time_us is None:
        raise UserCodeError(
            "the row has no time, and a join is by time",
            hint='drop such rows before key_by, as with where("ts is not null"), or say on_error="dead-letter"',
        )
    time: int = ctx.time_us
    return time


@dataclass(slots=True)
class _Side:
    """One side of an interval join: the table of its waiting rows, and the distance in time of their partners."""

    table: MapTable
    lower_us: int
    upper_us: int
    alone: Callable[[Row], Row] | None
    """Returns the result of a row without a partner, if the join is an outer one for this side."""


class IntervalJoin(TimedJoin):
    """Pairs rows whose times are near: `lower <= right's time - left's time <= upper`, or `<` for open bounds.

    A row older than the watermark is left out. A row is stored until the watermark says that no partner can come; if
    none came and the join is an outer one for its side, it is then emitted alone, with the time of that watermark.
    """

    own_step = "join"

    def __init__(
        self,
        layout: JoinColumns,
        lower_us: int,
        upper_us: int,
        how: How = "inner",
        bounds: Bounds = "[]",
        late: LateSides = (None, None),
    ) -> None:
        super().__init__(layout, how, late)
        self.own_windows = Interval(lower_ms=lower_us // 1000, upper_ms=upper_us // 1000, how=how, bounds=bounds)
        # Times are whole microseconds.
        lower_us, upper_us = lower_us + (bounds[0] == "("), upper_us - (bounds[1] == ")")
        self._bounds = lower_us, upper_us
        self._width = max(1, upper_us - lower_us)
        # The buckets of rows, by their number.
        self.own_states = {
            "left": Map("bigint", f"array<struct<time: bigint, matched: boolean, row: {layout.left.ddl}>>"),
            "right": Map("bigint", f"array<struct<time: bigint, matched: boolean, row: {layout.right.ddl}>>"),
        }

    def open(self) -> None:
        (lower, upper), layout = self._bounds, self.layout
        states = vars(self)
        self._lefts = _Side(states["left"].table, lower, upper, layout.left_alone if self._outer_left else None)
        self._rights = _Side(states["right"].table, -upper, -lower, layout.right_alone if self._outer_right else None)

    def on_left(self, event: Row, ctx: Any) -> Iterator[Row]:
        return self._meet(self._lefts, self._rights, event, ctx)

    def on_right(self, event: Row, ctx: Any) -> Iterator[Row]:
        return self._meet(self._rights, self._lefts, event, ctx)

    def _meet(self, side: _Side, others: _Side, event: Row, ctx: Any) -> Iterator[Row]:
        time, pair, is_left = time_of(event, ctx), self.layout.pair, side is self._lefts
        if ctx.is_late:
            self._refuse_late(event, is_left, ctx)
            return
        partners = self._partners(others, ctx.key, time + side.lower_us, time + side.upper_us)
        for other, row in partners:
            ctx.time_us = max(time, other)
            yield pair(event, row) if is_left else pair(row, event)
        yield from self._keep(side, event, time, bool(partners), ctx)

    def on_timer(self, timer: Any, ctx: Any) -> Iterator[Row]:
        at_us, key = timer.time_us, ctx.key
        for side in (self._lefts, self._rights):
            if side.alone is not None:
                # These rows stay unmatched: the watermark has just passed the last possible time of a partner.
                time = at_us - side.upper_us
                ctx.time_us = within(max(at_us, time))
                for row in self._unmatched(side, key, time):
                    yield side.alone(row)
        for side in (self._lefts, self._rights):
            bucket, rest = divmod(at_us + 1 - side.upper_us, self._width)
            if rest == 0 and side.table.get(key, bucket - 1) is not None:
                side.table.put(key, bucket - 1, None)

    def _partners(self, side: _Side, key: Any, first_us: int, last_us: int) -> list[tuple[int, Row]]:
        """Return the rows of a side with times from first to last; in an outer join, mark them as matched."""
        partners: list[tuple[int, Row]] = []
        for bucket in range(first_us // self._width, last_us // self._width + 1):
            waiting = side.table.get(key, bucket)
            if waiting is None:
                continue
            start, end = 0, len(waiting)
            if waiting[0].time < first_us:
                start = bisect_left(waiting, first_us, key=_time)
            if waiting[-1].time > last_us:
                end = bisect_right(waiting, last_us, key=_time)
            if start == end:
                continue
            hits = waiting[start:end]
            partners += [(hit.time, hit.row) for hit in hits]
            if side.alone is not None and not all(hit.matched for hit in hits):
                matched = [_Waiting._make((hit.time, True, hit.row)) for hit in hits]
                rows = writable_entry(side.table, key, bucket, waiting)
                rows[start:end] = matched
                if side.table.journal is not None:
                    side.table.journal.note((rows.__setitem__, slice(start, end), hits))
        return partners

    def _keep(self, side: _Side, row: Row, time: int, matched: bool, ctx: Any) -> Iterator[Row]:
        """Store a row as long as partners may come."""
        last_us = time + side.upper_us
        if ctx.watermark_us is not None and last_us < ctx.watermark_us:
            if side.alone is not None and not matched:
                ctx.time_us = time
                yield side.alone(row)
            return
        bucket = time // self._width
        entry = _Waiting._make((time, matched, row))
        waiting = side.table.get(ctx.key, bucket)
        if waiting is None:
            side.table.put(ctx.key, bucket, [entry])
        else:
            at = len(waiting) if waiting[-1].time <= time else bisect_right(waiting, time, key=_time)
            insert(side.table, ctx.key, bucket, waiting, at, entry)
        ctx.timers.set_us((bucket + 1) * self._width - 1 + side.upper_us)
        if side.alone is not None and not matched:
            ctx.timers.set_us(last_us)

    def _unmatched(self, side: _Side, key: Any, time: int) -> list[Row]:
        waiting = side.table.get(key, time // self._width)
        if waiting is None:
            return []
        start, end = bisect_left(waiting, time, key=_time), bisect_right(waiting, time, key=_time)
        return [each.row for each in waiting[start:end] if not each.matched]


def writable_entry(table: MapTable, key: Any, sub: int, waiting: list[Any]) -> list[Any]:
    """Return the entry `waiting` as a list that this epoch may change."""
    if not table.is_ours(key, sub):
        waiting = list(waiting)
        table.put(key, sub, waiting)
    return waiting


def insert(table: MapTable, key: Any, sub: int, waiting: list[Any], at: int, row: Any) -> None:
    """Insert a row into the entry `waiting`, and record it in the journal, if there is one."""
    rows = writable_entry(table, key, sub, waiting)
    rows.insert(at, row)
    if table.journal is not None:
        table.journal.note((rows.pop, at))


class WindowJoin(TimedJoin):
    """Pairs all rows of a key that are in one window; results come when the watermark reaches its end.

    Their time is the last moment of the window. A row whose windows are all complete is late.
    """

    own_step = "window_join"

    def __init__(
        self, layout: JoinColumns, kind: Tumbling | Sliding, how: How = "inner", late: LateSides = (None, None)
    ) -> None:
        super().__init__(layout, how, late)
        self._kind = kind
        self._size_us = kind.size_us
        self.own_windows = windows_info(kind)
        self.own_states = {
            "left": Map("bigint", f"array<{layout.left.ddl}>"),
            "right": Map("bigint", f"array<{layout.right.ddl}>"),
        }

    def open(self) -> None:
        states = vars(self)
        self._lefts: MapTable = states["left"].table
        self._rights: MapTable = states["right"].table

    def on_left(self, event: Row, ctx: Any) -> None:
        self._keep(self._lefts, event, ctx)

    def on_right(self, event: Row, ctx: Any) -> None:
        self._keep(self._rights, event, ctx)

    def on_timer(self, timer: Any, ctx: Any) -> Iterator[Row]:
        # A timer for the last moment of the window fires once the watermark has passed that.
        end_us = timer.time_us + 1
        start_us = end_us - self._size_us
        lefts, rights = self._take(self._lefts, ctx.key, start_us), self._take(self._rights, ctx.key, start_us)
        window = as_datetime(start_us), as_datetime(end_us)
        ctx.time_us = within(end_us - 1)
        for row in self._all_pairs(lefts, rights):
            yield row + window

    def _keep(self, table: MapTable, row: Row, ctx: Any) -> None:
        windows = windows_of(self._kind, time_of(row, ctx))
        open_ones = [each for each in windows if ctx.watermark_us is None or each.end_us > ctx.watermark_us]
        for window in open_ones:
            waiting = table.get(ctx.key, window.start_us)
            if waiting is None:
                table.put(ctx.key, window.start_us, [row])
            else:
                insert(table, ctx.key, window.start_us, waiting, len(waiting), row)
            ctx.timers.set_us(window.end_us - 1)
        # With gaps between windows, a row may be in none: it is not late.
        if windows and not open_ones:
            self._refuse_late(row, table is self._lefts, ctx)

    def _take(self, table: MapTable, key: Any, start_us: int) -> list[Row]:
        waiting: list[Row] | None = table.get(key, start_us)
        if waiting is None:
            return []
        table.put(key, start_us, None)
        return waiting
