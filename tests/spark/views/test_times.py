"""What is known of the times of rows is true of rows by chance, however often they are joined and kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strandline.spark.views.times import WHOLE, Time, Times, of_partners, of_result
from tests.soak import examples

_SIZE = 10


@dataclass
class Row:
    """The times of a row by column, and the watermark at which it came."""

    came_us: int
    values: dict[tuple[int, int], int]
    """A row without a partner has no times of one."""


@dataclass
class Rows:
    """What is known of the columns, and some rows."""

    times: Times
    rows: list[Row]


def stream(data: st.DataObject, first: int) -> Rows:
    """Return rows of a stream: their time, moved, exactly or not, and start and end of its window."""
    at = Time(0)
    moved, least = data.draw(st.integers(-15, 15)), data.draw(st.integers(-5, 5))
    start = replace(at.later(1 - _SIZE, 0), base=("window", at.base), offset_us=0)
    known = [at, at.later(moved, moved), at.later(least, least + 3), start, replace(start.later(_SIZE, _SIZE))]
    rows = []
    for came, ahead, month in data.draw(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, 3)), min_size=1, max_size=8)
    ):
        value = came + ahead
        begin = value // _SIZE * _SIZE
        values = [value, value + moved, value + least + month, begin, begin + _SIZE]
        rows.append(Row(came, {(first + number, WHOLE): each for number, each in enumerate(values)}))
    return Rows({(first + number, WHOLE): time for number, time in enumerate(known)}, rows)


def joined(data: st.DataObject, left: Rows, right: Rows) -> Rows:
    """Return the pairs of a join by near times, and rows that come without a partner, at any moment that may be."""
    a, b = data.draw(st.sampled_from(sorted(left.times))), data.draw(st.sampled_from(sorted(right.times)))
    lower = data.draw(st.integers(-15, 15))
    upper = lower + data.draw(st.integers(0, 15))
    left_at, right_at = left.times[a], right.times[b]
    ends = upper + right_at.lag_us, left_at.lag_us - lower
    times = of_result(left.times, [_Column(number) for number, _ in left.times], left_at, ends[0])
    others = of_result(right.times, [_Column(number) for number, _ in right.times], right_at, ends[1])
    rows = [
        Row(max(one.came_us, other.came_us), {**one.values, **other.values})
        for one in left.rows
        for other in right.rows
        if a in one.values and b in other.values and lower <= other.values[b] - one.values[a] <= upper
    ]
    for side, at, end in ((left, a, ends[0]), (right, b, ends[1])):
        rows += [Row(max(row.came_us, row.values[at] + end), row.values) for row in side.rows if at in row.values]
    return Rows({**times, **of_partners(others, right_at, left_at, lower, upper)}, rows)


class _Column:
    """Stands for an attribute of Spark's."""

    def __init__(self, number: int) -> None:
        self._number = number

    def exprId(self) -> Any:
        return self

    def id(self) -> int:
        return self._number


@examples(200)
@given(data=st.data())
def test_times_of_joins(data: st.DataObject) -> None:
    rows = stream(data, 0)
    for number in range(1, data.draw(st.integers(2, 3))):
        rows = joined(data, rows, stream(data, 10 * number))
    for row in rows.rows:
        for column, value in row.values.items():
            time = rows.times[column]
            assert value >= row.came_us - time.lag_us
            for other, its_value in row.values.items():
                assert value - its_value >= time.after(rows.times[other])
