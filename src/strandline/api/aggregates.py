"""Built-in aggregates: what `agg()` of a keyed or windowed stream computes, declared without Spark.

Written as `sl.agg.sum("v")`: some names here would hide Python's own. Nulls and result types are as in Spark's
aggregates of the same names. A column is a column's name, or an SQL expression of the stream's columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.errors import ConfigurationError

__all__ = [
    "Aggregate", "avg", "collect_list", "collect_set", "count", "count_distinct", "first", "last", "max", "min",
    "stddev", "stddev_pop", "sum", "var_pop", "variance",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate of a column. Make it with the functions of this module."""

    kind: str
    column: str | None = None
    ignore_nulls: bool = False

    def __post_init__(self) -> None:
        if self.column is None and self.kind == "count":
            return
        if not isinstance(self.column, str) or not self.column.strip():
            raise ConfigurationError(
                f"{self.kind}() was given {self.column!r}, expected a column's name or an SQL expression",
                hint=f'write sl.agg.{self.kind}("amount")',
            )


def count(column: str | None = None) -> Aggregate:
    """How many events there are; with a column, how many of them have a value in it."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:
    """The sum; null if there is no value.

    >>> sum("price * quantity")
    Aggregate(kind='sum', column='price * quantity', ignore_nulls=False)
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
    """The value of some event of the first epoch that had any: Spark does not keep the order within an epoch."""
    return Aggregate("first", column, ignore_nulls)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """The value of some event of the last epoch that had any: Spark does not keep the order within an epoch."""
    return Aggregate("last", column, ignore_nulls)


def collect_list(column: str) -> Aggregate:
    """An array of all values but nulls. State grows with every event."""
    return Aggregate("collect_list", column)


def collect_set(column: str) -> Aggregate:
    """An array of the distinct values but null, in no particular order. State grows with every new value."""
    return Aggregate("collect_set", column)


def count_distinct(column: str) -> Aggregate:
    """How many distinct values there are, exactly: the values are kept. Null is none."""
    return Aggregate("count_distinct", column)
