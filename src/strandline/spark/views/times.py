"""Columns of event time in relations: how far behind the watermark their values may be, and comparisons of two of them.

A column of a stream's time is not behind the watermark, or its row is late. A start of a window of it is, by less than
the window's size. So rows whose time the watermark has passed by more than that are known to be all there. An operator
that keeps rows until some time of theirs has passed makes all of their times older: by how much, their distance says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.core.times import LONGEST_MS
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, id_of, kind_of, unaliased

WHOLE = -1
_LONGEST_US = LONGEST_MS * 1000
_DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Z"})
"""Names of the zone in which clocks are not changed: in all others, Spark's days may be longer or shorter."""
_UNITS = {"MICROSECOND": 1, "MILLISECOND": 1000, "SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": _HOUR_US}
_PERIODIC = frozenset({
    "Add", "AttributeReference", "CaseWhen", "KnownNullable", "LessThan", "Literal", "PreciseTimestampConversion",
    "Remainder", "Subtract",
})  # fmt: skip
"""What Spark makes windows of: sums of a time, constants, and remainders of that time."""
_LESS = {"LessThan": 1, "LessThanOrEqual": 0}
_GREATER = {"GreaterThan": 1, "GreaterThanOrEqual": 0}


@dataclass(frozen=True)
class Time:
    """A column of event time: where its values are, in microseconds, to the watermark and to other times of the row."""

    lag_us: int
    """By how much it may be behind the watermark when its row comes."""
    least_us: int = 0
    most_us: int = 0
    """By how much it is later than a time of the row to which all of them are compared, at least and at most."""
    base: object = field(default_factory=object)
    offset_us: int = 0
    """By how much it is later than its base: so the distance of two times of one base is known."""

    def later(self, least_us: int, most_us: int) -> Time:
        """Return a time that is later by so much, at least and at most."""
        moved = replace(
            self, lag_us=self.lag_us - least_us, least_us=self.least_us + least_us, most_us=self.most_us + most_us
        )
        if least_us == most_us:
            return replace(moved, offset_us=self.offset_us + least_us)
        return replace(moved, base=object(), offset_us=0)

    def after(self, other: Time) -> int:
        """Return by how much it is later than another time of the row, at least."""
        if self.base == other.base:
            return self.offset_us - other.offset_us
        return self.least_us - other.most_us

    def kept(self, until: Time, by_us: int) -> Time:
        """Return the time in rows that are kept until the watermark is so much later than another time of theirs."""
        return replace(self, lag_us=max(self.lag_us, by_us - self.after(until)))


Times = Mapping[tuple[int, int], Time]
"""By the id of a column, and the number of its field, or WHOLE."""


@dataclass(frozen=True)
class Moved:
    """A time column, and by how much an expression is later: from `least` to `most` microseconds."""

    column: tuple[int, int]
    of: Expression
    """The column, or the field of it."""
    least: int = 0
    most: int = 0

    def later(self, least: int, most: int) -> Moved:
        """Return one that is later by some more."""
        return Moved(self.column, self.of, self.least + least, self.most + most)


@dataclass(frozen=True)
class Bound:
    """A condition on two times: `first + by_us <= second`."""

    first: Moved
    second: Moved
    by_us: int
    condition: Expression
    is_exact: bool
    """Whether it says all that the condition says."""


class TimeReader:
    """Reads times in the expressions of one plan."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst

    # -- what a node's columns are

    def projected(self, expressions: Sequence[Expression], times: Times) -> Times:
        """Return the times among the columns of a projection."""
        return {
            (id_of(each), field): time
            for each in expressions
            for field, time in self._times(unaliased(each), times).items()
        }

    def expanded(self, projections: Sequence[Sequence[Expression]], output: Sequence[Attribute], times: Times) -> Times:
        """Return the times among the columns of several projections of each row."""
        result: dict[tuple[int, int], Time] = {}
        for at, column in enumerate(output):
            copies = [self._times(unaliased(row[at]), times) for row in projections]
            for part in set(copies[0]).intersection(*copies):
                result[id_of(column), part] = _one_of([each[part] for each in copies])
        return result

    def _times(self, expression: Expression, times: Times) -> dict[int, Time]:
        """Return the times that an expression, or its fields, are."""
        if kind_of(expression) == "AttributeReference":
            return {field: time for (number, field), time in times.items() if number == id_of(expression)}
        if kind_of(expression) == "CreateNamedStruct":
            values = self._catalyst.items(expression.valExprs())
            return {at: time for at, each in enumerate(values) if (time := self.time(each, times)) is not None}
        time = self.time(expression, times)
        return {} if time is None else {WHOLE: time}

    def time(self, expression: Expression, times: Times) -> Time | None:
        """Return the time that an expression is; None if it is no such thing."""
        if expression.dataType().sql() != "TIMESTAMP":
            return None
        if (moved := self.moved(expression, times)) is not None:
            return times[moved.column].later(moved.least, moved.most)
        return self._periodic(expression, times)

    def _periodic(self, expression: Expression, times: Times) -> Time | None:
        """Return the time of a start or an end of windows: a time less a remainder of it."""
        catalyst = self._catalyst
        parts = catalyst.parts(expression)
        if any(kind_of(each) not in _PERIODIC for each in parts):
            return None
        columns = {id_of(each) for each in parts if kind_of(each) == "AttributeReference"}
        sizes = {catalyst.items(each.children())[1].toString() for each in parts if kind_of(each) == "Remainder"}
        if len(columns) != 1 or len(sizes) != 1 or (column := (columns.pop(), WHOLE)) not in times:
            return None
        size = int(sizes.pop())

        def value(at_us: int) -> int:
            literal = catalyst.sql(f"{at_us}L")
            computed: Any = catalyst.replaced(expression, lambda each: literal if _is_time(each) else None)
            return int(computed.eval(None))

        # It is the same from one border on up to the next.
        first, last = 0, size
        start = value(0)
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if value(middle) == start else (first, middle)
        if [value(each) for each in (first, last, first + size)] != [start, start + size, start + size]:
            return None
        # All times from one border up to the next have one window: the distance of its start and its end is known.
        time, begin = times[column], first + 1 - size
        window = time.later(start - first, start - begin)
        return replace(window, base=(time.base, time.offset_us, size, begin % size), offset_us=start - begin)

    # -- comparisons

    def moved(self, expression: Expression, times: Times) -> Moved | None:
        """Return the time that an expression is, moved by a constant; None if it is no such thing."""
        catalyst, kind = self._catalyst, kind_of(expression)
        if kind == "AttributeReference":
            for field in (WHOLE, 0):
                if (column := (id_of(expression), field)) in times:
                    return Moved(column, expression if field == WHOLE else catalyst.field(expression, field))
            return None
        if kind == "GetStructField" and kind_of(expression.child()) == "AttributeReference":
            column = (id_of(expression.child()), expression.ordinal())
            return Moved(column, expression) if column in times else None
        if kind in ("TimestampAddInterval", "TimestampAddYMInterval"):
            time, interval = catalyst.items(expression.children())
            inner, length = self.moved(time, times), self._length(interval)
            if length is not None and interval.dataType().sql() != "INTERVAL":
                length = _as_added(length, expression)
        elif kind == "TimestampAdd":
            count, time = catalyst.items(expression.children())
            inner, length = self.moved(time, times), _of_unit(expression.unit(), count)
            length = None if length is None else _as_added(length, expression)
        else:
            return None
        if inner is None or length is None or max(map(abs, length)) > _LONGEST_US:
            return None
        return inner.later(*length)

    def bounds(self, condition: Expression, times: Times) -> list[Bound]:
        """Return what a condition says of the distance of two times."""
        catalyst, kind = self._catalyst, kind_of(condition)
        if kind not in _LESS and kind not in _GREATER and kind != "EqualTo":
            return []
        one, other = catalyst.items(condition.children())
        if kind in _GREATER:
            one, other = other, one
        strict = {**_LESS, **_GREATER}.get(kind, 0)
        pair = self._pair(one, other, times)
        if pair is None or pair[0].column == pair[1].column:
            return []
        less, more = pair
        is_exact = less.least == less.most and more.least == more.most
        bounds = [Bound(less, more, less.least - more.most + strict, condition, is_exact)]
        if kind == "EqualTo":
            bounds.append(Bound(more, less, more.least - less.most, condition, is_exact))
        return bounds

    def _pair(self, one: Expression, other: Expression, times: Times) -> tuple[Moved, Moved] | None:
        """Return the two times of a comparison; also of a difference with a constant."""
        catalyst = self._catalyst
        for difference, constant in ((one, other), (other, one)):
            if kind_of(difference) != "SubtractTimestamps" or (length := self._length(constant)) is None:
                continue
            if max(map(abs, length)) > _LONGEST_US:
                return None
            if not _is_utc(difference):
                # It is by what clocks show at both times.
                length = _with_changes(length)
            later, earlier = (self.moved(each, times) for each in catalyst.items(difference.children()))
            if later is None or earlier is None:
                return None
            return (later, earlier.later(*length)) if difference is one else (earlier.later(*length), later)
        sides = self.moved(one, times), self.moved(other, times)
        return None if sides[0] is None or sides[1] is None else (sides[0], sides[1])

    def _length(self, interval: Expression) -> tuple[int, int] | None:
        """Return how long a constant interval is, at least and at most."""
        kind = interval.dataType().sql()
        if not interval.foldable() or not kind.startswith("INTERVAL"):
            return None
        value: Any = interval.eval(None)
        if value is None:
            return None
        if kind != "INTERVAL":
            return _of_months(value) if "YEAR" in kind or "MONTH" in kind else (int(value), int(value))
        days, rest_us = value.extractAsPeriod(), value.extractAsDuration().toNanos() // 1000
        parts = [_of_months(days.toTotalMonths()), _of_days(days.getDays()), (rest_us, rest_us)]
        return sum(each[0] for each in parts), sum(each[1] for each in parts)


def _one_of(times: Sequence[Time]) -> Time:
    """Return what is known of a time that is one of these."""
    if len({(each.base, each.offset_us) for each in times}) == 1:
        return times[0]
    return Time(
        max(each.lag_us for each in times), min(each.least_us for each in times), max(each.most_us for each in times)
    )


def _is_time(expression: Expression) -> bool:
    """Whether an expression is a time as a number, which Spark's windows compute with."""
    return kind_of(expression) == "PreciseTimestampConversion" and kind_of(expression.child()) == "AttributeReference"


def _of_unit(unit: str, count: Expression) -> tuple[int, int] | None:
    if not count.foldable() or (number := count.eval(None)) is None:
        return None
    match unit.upper():
        case "DAY" | "DAYOFYEAR":
            return _of_days(number)
        case "WEEK":
            return _of_days(7 * number)
        case "MONTH":
            return _of_months(number)
        case name if name in _UNITS:
            return (number * _UNITS[name],) * 2
    return None


def _is_utc(expression: Expression) -> bool:
    return str(expression.timeZoneId().get()) in UTC


def _as_added(length: tuple[int, int], expression: Expression) -> tuple[int, int]:
    """Return how long an interval is that is added to a time: Spark adds its whole days as days of the calendar."""
    is_known = length[0] != length[1] or abs(length[0]) < _DAY_US or _is_utc(expression)
    return length if is_known else _with_changes(length)


def _with_changes(length: tuple[int, int]) -> tuple[int, int]:
    """Return how long something may be that is so long by clocks: they may be changed meanwhile, there and back."""
    return length[0] - 2 * _HOUR_US, length[1] + 2 * _HOUR_US


def _of_days(days: int) -> tuple[int, int]:
    """Return how long some days of the calendar are."""
    length = days * _DAY_US, days * _DAY_US
    return _with_changes(length) if days else length


def _of_months(months: int) -> tuple[int, int]:
    least, most = sorted((months * 28, months * 31))
    return _of_days(least)[0], _of_days(most)[1]


def of_ids(times: Times, ids: Mapping[int, int]) -> Times:
    """Return times under other ids."""
    return {(ids[number], field): lag for (number, field), lag in times.items() if number in ids}


def of_result(times: Times, others: Iterable[Attribute], until: Time, by_us: int) -> Times:
    """Return the times of some columns in a result whose rows are kept until the watermark is so much later."""
    ids = {id_of(each) for each in others}
    return {column: time.kept(until, by_us) for column, time in times.items() if column[0] in ids}


def of_partners(times: Times, at: Time, other_at: Time, lower_us: int, upper_us: int) -> Times:
    """Return the times of rows as times of pairs in which `at` is so much later than `other_at`."""
    # Both sides may be the same rows: their times have other bases then.
    side = object()
    return {
        column: replace(
            time,
            least_us=other_at.least_us + lower_us + time.after(at),
            most_us=other_at.most_us + upper_us - at.after(time),
            base=(side, time.base),
        )
        for column, time in times.items()
    }
