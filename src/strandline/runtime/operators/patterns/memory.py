"""The memory of a partial match: the first and last rows, sums and extremes of variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Literal

Memory = Sequence[Any]
"""By slot: for first and last the numbers of rows, the one that counts first or last; else a value."""
Columns = Sequence[Sequence[Any]]
"""By column: the values of all rows."""
EXACT = Context(prec=120, rounding=ROUND_HALF_UP)
"""Decimals are computed in it: Python's own operators round to 28 digits, and Spark's decimals have up to 38."""


@dataclass(frozen=True)
class Slot:
    """A value that a match holds, of the rows of some variables."""

    how: Literal["first", "last", "sum", "min", "max"]
    column: int
    variables: frozenset[int] | None = None
    """None: all rows of the match."""
    skip: int = 0
    """How many rows come before the one that is meant, from the first, or from the last."""
    empty: int | None = None
    """The value without rows."""

    @property
    def is_row(self) -> bool:
        """Whether it is the value of one row: memory has the rows' numbers."""
        return self.how in ("first", "last")

    @property
    def initial(self) -> Any:
        return () if self.is_row else self.empty

    def row_of(self, held: Sequence[int]) -> int | None:
        """Return the number of the row that is meant."""
        if len(held) <= self.skip:
            return None
        return held[self.skip] if self.how == "first" else held[0]


def order(one: Any, other: Any) -> int:
    """Compare two values that are not null: NaN is greater than all other numbers, and equal to itself."""
    if one == other:
        return 0
    if one != one:
        return int(other == other)
    return -1 if other != other or one < other else 1


def value_reader(slot: Slot) -> Callable[[Columns, Any], Any]:
    """Return a function that reads a slot's value."""
    if not slot.is_row:
        return lambda columns, held: held

    def value(columns: Columns, held: Any) -> Any:
        row = slot.row_of(held)
        return None if row is None else columns[slot.column][row]

    return value


def adder(slot: Slot) -> Callable[[Columns, int, Any], Any]:
    """Return a function that adds a row to what a slot holds."""
    size, column = slot.skip + 1, slot.column
    match slot.how:
        case "first":
            return lambda columns, row, held: held if len(held) == size else (*held, row)
        case "last":
            return lambda columns, row, held: (*held, row)[-size:]
        case "sum":
            return lambda columns, row, held: _with(held, columns[column][row])
    sign = 1 if slot.how == "max" else -1

    def extreme(columns: Columns, row: int, held: Any) -> Any:
        value = columns[column][row]
        if held is None or (value is not None and order(value, held) * sign > 0):
            return value
        return held

    return extreme


def total(one: Any, other: Any) -> Any:
    """Return the sum of two numbers."""
    return EXACT.add(one, other) if isinstance(one, Decimal) else one + other


def _with(held: Any, value: Any) -> Any:
    if held is None or value is None:
        return value if held is None else held
    return total(held, value)
