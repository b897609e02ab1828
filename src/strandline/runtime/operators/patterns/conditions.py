"""Conditions on a row and on what a partial match holds, evaluated in keepers by Spark's rules: null, NaN, ANSI.

All that is about the row alone is a column that Spark has computed. Times are whole numbers of microseconds here, and
dates of days.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from strandline.core.errors import UserCodeError
from strandline.core.times import as_datetime
from strandline.runtime.operators.patterns.memory import (
    EXACT,
    Columns,
    Memory,
    Slot,
    order,
    total,
    value_reader,
)
from strandline.types.datatypes import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    ShortType,
)

Evaluator = Callable[[Columns, int, Memory], Any]
_BITS: Mapping[DataType, int] = {ByteType(): 8, ShortType(): 16, IntegerType(): 32, LongType(): 64}


@dataclass(frozen=True)
class Column:
    """A value of the row."""

    index: int


@dataclass(frozen=True)
class Held:
    """A value that the match holds: LAST(A.price), sum(A.price)."""

    slot: int


@dataclass(frozen=True)
class Literal:
    """A constant."""

    value: Any


@dataclass(frozen=True)
class Call:
    """A function of values: one of FUNCTIONS, by Spark's name for it."""

    function: str
    arguments: tuple[Condition, ...]
    type: DataType
    """Of the result."""
    zone: str = ""
    """The time zone, for differences of times."""


Condition = Column | Held | Literal | Call


def evaluator(condition: Condition, slots: Sequence[Slot]) -> Evaluator:
    """Return a function that evaluates a condition."""
    match condition:
        case Column(index):
            return lambda columns, row, memory: columns[index][row]
        case Held(slot):
            read = value_reader(slots[slot])
            return lambda columns, row, memory: read(columns, memory[slot])
        case Literal(value):
            return lambda columns, row, memory: value
        case Call(function, arguments):
            parts = [evaluator(each, slots) for each in arguments]
            return FUNCTIONS[function](condition, *parts)


def parts_of(condition: Condition) -> list[Condition]:
    """Return a condition and all that it is made of."""
    inner = condition.arguments if isinstance(condition, Call) else ()
    return [condition, *(part for each in inner for part in parts_of(each))]


def slots_in(condition: Condition) -> set[int]:
    """Return the slots that a condition reads."""
    return {part.slot for part in parts_of(condition) if isinstance(part, Held)}


# -- functions


def _and(call: Call, one: Evaluator, other: Evaluator) -> Evaluator:
    def value(columns: Columns, row: int, memory: Memory) -> Any:
        first = one(columns, row, memory)
        if first is False:
            return False
        second = other(columns, row, memory)
        return second if first or second is False else None

    return value


def _or(call: Call, one: Evaluator, other: Evaluator) -> Evaluator:
    def value(columns: Columns, row: int, memory: Memory) -> Any:
        first = one(columns, row, memory)
        if first:
            return True
        second = other(columns, row, memory)
        return second if first is False or second else None

    return value


def _if(call: Call, *parts: Evaluator) -> Evaluator:
    """Return CASE: pairs of a condition and a value, and perhaps another value."""

    def value(columns: Columns, row: int, memory: Memory) -> Any:
        for condition, result in zip(parts[::2], parts[1::2], strict=False):
            if condition(columns, row, memory):
                return result(columns, row, memory)
        return parts[-1](columns, row, memory) if len(parts) % 2 else None

    return value


def _coalesce(call: Call, *parts: Evaluator) -> Evaluator:
    def value(columns: Columns, row: int, memory: Memory) -> Any:
        for part in parts:
            if (result := part(columns, row, memory)) is not None:
                return result
        return None

    return value


def _in(call: Call, one: Evaluator, *others: Evaluator) -> Evaluator:
    def value(columns: Columns, row: int, memory: Memory) -> Any:
        if (first := one(columns, row, memory)) is None:
            return None
        values = [other(columns, row, memory) for other in others]
        if any(each is not None and order(first, each) == 0 for each in values):
            return True
        return None if None in values else False

    return value


def _is_null(*, expected: bool) -> Callable[..., Evaluator]:
    return lambda call, one: lambda columns, row, memory: (one(columns, row, memory) is None) is expected


def _null_safe_equal(call: Call, one: Evaluator, other: Evaluator) -> Evaluator:
    def value(columns: Columns, row: int, memory: Memory) -> Any:
        first, second = one(columns, row, memory), other(columns, row, memory)
        return first is second if first is None or second is None else order(first, second) == 0

    return value


def _strict(function: Callable[..., Any]) -> Callable[..., Evaluator]:
    """Return what makes an evaluator of a function of values that are not null; else the result is null."""

    def maker(call: Call, *parts: Evaluator) -> Evaluator:
        def value(columns: Columns, row: int, memory: Memory) -> Any:
            values = []
            for part in parts:
                if (result := part(columns, row, memory)) is None:
                    return None
                values.append(result)
            return function(call, *values)

        return value

    return maker


def fitting(value: Any, kind: DataType) -> Any:
    """Return a number as one of a type, rounded as Spark does. Raise UserCodeError if it does not fit."""
    match kind:
        case DecimalType(precision, scale):
            rounded = Decimal(value).quantize(Decimal(1).scaleb(-scale), context=EXACT)
            if EXACT.abs(rounded) >= Decimal(10) ** (precision - scale):
                raise _too_large(value, kind)
            return rounded
        case FloatType():
            with np.errstate(over="ignore"):
                return float(np.float32(value))
        case DoubleType():
            return float(value)
        case IntegralType() if not -(1 << (_BITS[kind] - 1)) <= value < 1 << (_BITS[kind] - 1):
            raise _too_large(value, kind)
    return value


def _divided(call: Call, one: Any, other: Any) -> Any:
    if other == 0:
        raise UserCodeError(
            "MATCH_RECOGNIZE: a condition divides by zero",
            hint="write nullif(…, 0) for the divisor: the condition is null then, and not true",
        )
    return fitting(EXACT.divide(one, other) if isinstance(one, Decimal) else one / other, call.type)


def _difference(call: Call, one: int, other: int) -> int:
    """Return the time from one to another, as clocks in a time zone show it: so does Spark."""
    return _local(one, call.zone) - _local(other, call.zone)


def _local(at_us: int, zone: str) -> int:
    if not zone:
        return at_us
    offset = as_datetime(at_us).astimezone(ZoneInfo(zone)).utcoffset() or dt.timedelta()
    return at_us + offset // dt.timedelta(microseconds=1)


def _negative(one: Any) -> Any:
    return EXACT.minus(one) if isinstance(one, Decimal) else -one


def _product(one: Any, other: Any) -> Any:
    return EXACT.multiply(one, other) if isinstance(one, Decimal) else one * other


def _too_large(value: Any, kind: DataType) -> UserCodeError:
    return UserCodeError(
        f"MATCH_RECOGNIZE: {value} in a condition does not fit its type, {kind.ddl}", hint="CAST to a larger type"
    )


FUNCTIONS: Mapping[str, Callable[..., Evaluator]] = {
    "And": _and,
    "Or": _or,
    "Not": _strict(lambda call, one: not one),
    "If": _if,
    "CaseWhen": _if,
    "Coalesce": _coalesce,
    "In": _in,
    "IsNull": _is_null(expected=True),
    "IsNotNull": _is_null(expected=False),
    "IsNaN": lambda call, one: lambda columns, row, memory: (value := one(columns, row, memory)) != value,
    "EqualTo": _strict(lambda call, one, other: order(one, other) == 0),
    "EqualNullSafe": _null_safe_equal,
    "LessThan": _strict(lambda call, one, other: order(one, other) < 0),
    "LessThanOrEqual": _strict(lambda call, one, other: order(one, other) <= 0),
    "GreaterThan": _strict(lambda call, one, other: order(one, other) > 0),
    "GreaterThanOrEqual": _strict(lambda call, one, other: order(one, other) >= 0),
    "Add": _strict(lambda call, one, other: fitting(total(one, other), call.type)),
    "Subtract": _strict(lambda call, one, other: fitting(total(one, _negative(other)), call.type)),
    "Multiply": _strict(lambda call, one, other: fitting(_product(one, other), call.type)),
    "Divide": _strict(_divided),
    "Average": _strict(lambda call, total, count: None if count == 0 else _divided(call, total, count)),
    "UnaryMinus": _strict(lambda call, one: fitting(_negative(one), call.type)),
    "Abs": _strict(lambda call, one: fitting(_negative(one) if one < 0 else one, call.type)),
    "Cast": _strict(lambda call, one: fitting(one, call.type)),
    "SubtractTimestamps": _strict(_difference),
    "TimestampAddInterval": _strict(lambda call, one, other: one + other),
}
"""By Spark's name of each function; Average is the division in an average, which is null of no values."""
