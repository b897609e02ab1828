"""Built-in aggregates of `agg()` on a keyed or windowed stream, declared without Spark.

Written as `sl.agg.sum("v")`: some names here would hide Python's own. Nulls and result types are as in Spark's
aggregates of the same names. A column is a column's name, or an SQL expression of the stream's columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.core.errors import ConfigurationError

__all__ = [
    "Aggregate", "approx_count_distinct", "approx_percentile", "avg", "collect_list", "collect_set", "count",
    "count_distinct", "first", "last", "max", "max_by", "min", "min_by", "stddev", "stddev_pop",
    "sum", "var_pop", "variance",
]  # fmt: skip

COMPARING = ("max_by", "min_by")
"""Aggregates that return a value of the event whose `by` is the greatest or least."""
SPREADS = ("stddev", "stddev_pop", "variance", "var_pop")
_LEAST_RSD, _MOST_RSD = 0.001, 0.3
_MOST_ACCURACY = 20_000


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a column. Make it with the functions of this module."""

    kind: str
    column: str | None = None
    ignore_nulls: bool = False
    error: float = 0.0
    """The error bound of a sketch."""
    percentage: float | tuple[float, ...] | None = None
    by: str | None = None
    """The column that max_by and min_by compare."""
    was: str = ""
    """The former name of the result, or empty."""
    is_added: bool = False
    """Whether it may begin empty when restored state lacks it."""

    def __post_init__(self) -> None:
        if self.column is None and self.kind == "count":
            return
        pair = self.kind in COMPARING
        for column in (self.column, self.by) if pair else (self.column,):
            if not isinstance(column, str) or not column.strip():
                raise ConfigurationError(
                    f"{self.kind}() was given {column!r}, expected a column's name or an SQL expression",
                    hint=f'write sl.agg.{self.kind}("item", "price")'
                    if pair
                    else f'write sl.agg.{self.kind}("amount")',
                )

    @property
    def ranks(self) -> tuple[float, ...]:
        """The percentages of an approx_percentile, as a tuple."""
        ranks = self.percentage
        return () if ranks is None else ranks if isinstance(ranks, tuple) else (ranks,)

    def added(self) -> Aggregate:
        """Return the aggregate, marked as new in a program whose stored state lacks it: it may begin empty there.

        Results of windows and keys in that state then cover only events after the upgrade. Without the mark, a restore
        from state that lacks the aggregate is refused.

        >>> sum("amount").added().is_added
        True
        """
        return replace(self, is_added=True)

    def renamed(self, *, was: str) -> Aggregate:
        """Return the aggregate with the name its result had in an older version of the program, to continue that state.

        >>> sum("amount").renamed(was="total").was
        'total'
        """
        if not isinstance(was, str) or not was.strip():
            raise ConfigurationError(
                f"renamed: was is {was!r}, expected the name that the result had",
                hint=f'write sl.agg.{self.kind}(…).renamed(was="total")',
            )
        return replace(self, was=was)


def count(column: str | None = None) -> Aggregate:
    """The number of events; with a column, the number of its values that are not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:
    """The sum; null if there is no value.

    >>> sum("price * quantity").column
    'price * quantity'
    """
    return Aggregate("sum", column)


def avg(column: str) -> Aggregate:
    """The mean; null if there is no value."""
    return Aggregate("avg", column)


def min(column: str) -> Aggregate:
    """The least value; null if there is none."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """The greatest value; null if there is none. NaN is above all numbers, as in Spark."""
    return Aggregate("max", column)


def max_by(column: str, by: str) -> Aggregate:
    """The value of the event with the greatest `by`; null if no event has a value in `by`.

    If several events have the same `by`, the result is the value of any of them. Compare more columns to choose one:

    >>> max_by("struct(bidder, price)", "struct(price, -unix_micros(ts))").by
    'struct(price, -unix_micros(ts))'
    """
    return Aggregate("max_by", column, by=by)


def min_by(column: str, by: str) -> Aggregate:
    """The value of the event with the least `by`; null if no event has a value in `by`."""
    return Aggregate("min_by", column, by=by)


def stddev(column: str) -> Aggregate:
    """The standard deviation of a sample; null for fewer than two values."""
    return Aggregate("stddev", column)


def stddev_pop(column: str) -> Aggregate:
    """The standard deviation of a population; null if there is no value."""
    return Aggregate("stddev_pop", column)


def variance(column: str) -> Aggregate:
    """The variance of a sample; null for fewer than two values."""
    return Aggregate("variance", column)


def var_pop(column: str) -> Aggregate:
    """The variance of a population; null if there is no value."""
    return Aggregate("var_pop", column)


def first(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """The value of any event of the first epoch with events: Spark does not keep the order within an epoch."""
    return Aggregate("first", column, ignore_nulls)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """The value of any event of the last epoch with events: Spark does not keep the order within an epoch."""
    return Aggregate("last", column, ignore_nulls)


def collect_list(column: str) -> Aggregate:
    """An array of all values except nulls. State grows with every event."""
    return Aggregate("collect_list", column)


def collect_set(column: str) -> Aggregate:
    """An array of the distinct values except null, in no particular order. State grows with every new value."""
    return Aggregate("collect_set", column)


def count_distinct(column: str) -> Aggregate:
    """The exact number of distinct values, nulls excluded. State holds the values."""
    return Aggregate("count_distinct", column)


def approx_count_distinct(column: str, rsd: float = 0.05) -> Aggregate:
    """The approximate number of distinct values, nulls excluded, by a HyperLogLog sketch.

    `rsd` is the relative standard deviation, from 0.001 to 0.3: the error of two in three results is at most `rsd`, and
    of 997 in 1000 at most three times that. At 0.05 a sketch takes at most 560 bytes, usually half of that; half the
    error takes four times the bytes. Needs `pip install 'strandline[sketches]'`.
    """
    if not _is_number(rsd) or not _LEAST_RSD <= rsd <= _MOST_RSD:
        raise ConfigurationError(
            f"approx_count_distinct: rsd is {rsd!r}, expected a number from {_LEAST_RSD} to {_MOST_RSD}",
            hint="0.05 is the default; for exact counts, use count_distinct()",
        )
    return Aggregate("approx_count_distinct", column, error=float(rsd))


def approx_percentile(column: str, percentage: float | Sequence[float], accuracy: int = 100) -> Aggregate:
    """The approximate least value that at least `percentage` (0 to 1) of the values do not exceed, by a KLL sketch.

    With a list of percentages, an array of one value for each. The column is of numbers, dates or timestamps, and the
    result has its type; nulls and NaN do not count; without other values the result is null. In 99 of 100 results, the
    error of the value's rank is at most 1/accuracy of all values. At 100 a sketch takes about 7 kB at most, and up to
    250 values are exact; Spark's default, 10,000, would take 700 kB for each key and window. Needs
    `pip install 'strandline[sketches]'`.

    >>> approx_percentile("latency_ms", [0.5, 0.99]).percentage
    (0.5, 0.99)
    """
    if not _is_number(accuracy) or not 1 <= accuracy <= _MOST_ACCURACY:
        raise ConfigurationError(
            f"approx_percentile: accuracy is {accuracy!r}, expected a number from 1 to {_MOST_ACCURACY}",
            hint="the error of a rank is 1/accuracy; 100 is the default",
        )
    percentages: Sequence[Any] = percentage if isinstance(percentage, list | tuple) else [percentage]
    if not percentages or not all(_is_number(each) and 0 <= each <= 1 for each in percentages):
        raise ConfigurationError(
            f"approx_percentile: percentage is {percentage!r}, expected a number from 0 to 1, or a list of such",
            hint='write approx_percentile("latency", 0.99)',
        )
    ranks = tuple(map(float, percentages))
    return Aggregate(
        "approx_percentile", column, error=1 / accuracy, percentage=ranks[0] if _is_number(percentage) else ranks
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
