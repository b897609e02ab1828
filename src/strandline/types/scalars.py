"""Conversion of fixed-width scalars between Python values and numpy arrays."""

from __future__ import annotations

import datetime as dt
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from strandline.core.errors import CorruptionError
from strandline.types.datatypes import (
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)

Numbers = npt.NDArray[Any]

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NAIVE_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_FIRST_DAY = dt.date.min.toordinal() - _EPOCH_ORDINAL
_LAST_DAY = dt.date.max.toordinal() - _EPOCH_ORDINAL
_FIRST_US = _FIRST_DAY * 86_400_000_000
_LAST_US = (_LAST_DAY + 1) * 86_400_000_000 - 1


def tolist(numbers: Numbers) -> list[Any]:
    """Return the items of an array as Python objects."""
    items: list[Any] = numbers.tolist()
    return items


@dataclass(frozen=True)
class FixedScalar:
    """Conversions of one fixed-width type to numbers and back. None means that values are numbers already."""

    code: str
    """The type code in the modules struct, array and numpy."""
    zero: Any
    """The placeholder of null in a fixed layout."""
    to_numbers: Callable[[Iterable[Any]], Numbers]
    """Strict: raises TypeError or OverflowError for values that do not fit, and for None."""
    from_numbers: Callable[[Numbers], list[Any]] = tolist
    to_number: Callable[[Any], Any] | None = None
    from_number: Callable[[Any], Any] | None = None

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The stored form of the numbers."""
        return np.dtype("<" + self.code)


def date_to_days(value: dt.date) -> int:
    """Return days since 1970-01-01."""
    return value.toordinal() - _EPOCH_ORDINAL


def days_to_date(days: int) -> dt.date:
    """Return the date of a number of days since 1970-01-01."""
    try:
        return dt.date.fromordinal(days + _EPOCH_ORDINAL)
    except (ValueError, OverflowError) as error:
        raise out_of_range("date", f"{days} days since 1970-01-01") from error


def _us_since(epoch: dt.datetime) -> Callable[[dt.datetime], int]:
    def to_us(value: dt.datetime) -> int:
        since = value - epoch
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds

    return to_us


def _us_after(epoch: dt.datetime, kind: str) -> Callable[[int], dt.datetime]:
    def from_us(us: int) -> dt.datetime:
        try:
            return epoch + dt.timedelta(0, 0, us)
        except OverflowError as error:
            raise out_of_range(kind, f"{us} µs since 1970") from error

    return from_us


# Between datetimes, aware in UTC or naive, and microseconds since 1970-01-01 00:00.
timestamp_to_us, us_to_timestamp = _us_since(EPOCH), _us_after(EPOCH, "timestamp")
naive_to_us, us_to_naive = _us_since(NAIVE_EPOCH), _us_after(NAIVE_EPOCH, "timestamp_ntz")


def out_of_range(kind: str, value: str) -> CorruptionError:
    """Return the error for a date or time that Python cannot hold."""
    return CorruptionError(
        f"a {kind} of {value} lies outside the years 1 to 9999, which is all that Python can hold",
        hint="if it comes from the data, drop or cap such rows before key_by",
    )


def _dates(numbers: Numbers) -> list[Any]:
    check_range(numbers, "date")
    return tolist(numbers.astype("M8[D]"))


def _timestamps(numbers: Numbers) -> list[Any]:
    check_range(numbers, "timestamp")
    # numpy makes timedeltas in C and a bound method adds them: three times as fast as a comprehension.
    return list(map(EPOCH.__add__, numbers.astype("m8[us]").tolist()))


def _naive_timestamps(numbers: Numbers) -> list[Any]:
    check_range(numbers, "timestamp_ntz")
    return tolist(numbers.astype("M8[us]"))


def check_range(numbers: Numbers, kind: str) -> None:
    """Raise CorruptionError if a number is out of Python's range for a type, whose DDL is `kind`."""
    first, last, unit = (_FIRST_US, _LAST_US, "µs since 1970")
    if kind == "date":
        first, last, unit = (_FIRST_DAY, _LAST_DAY, "days since 1970-01-01")
    # Out of range, numpy would return ints instead of dates.
    if len(numbers) and (numbers.min() < first or numbers.max() > last):
        worst = numbers.max() if numbers.max() > last else numbers.min()
        raise out_of_range(kind, f"{worst} {unit}")


def _numbers(code: str, convert: Callable[[Any], Any] | None = None) -> Callable[[Iterable[Any]], Numbers]:
    # array.array refuses floats, strings and None where numpy would convert them silently.
    return lambda values: np.array(array(code, map(convert, values) if convert else values))


def _days(values: Iterable[Any]) -> Numbers:
    return np.array(array("i", map(dt.date.toordinal, values))) - np.int32(_EPOCH_ORDINAL)


def _booleans(values: Iterable[Any]) -> Numbers:
    numbers = np.array(array("b", values))
    if numbers.size and (numbers.min() < 0 or numbers.max() > 1):
        raise TypeError("not a boolean")
    return numbers.astype(bool)


FIXED_SCALARS: dict[DataType, FixedScalar] = {
    BooleanType(): FixedScalar("?", False, _booleans),
    ByteType(): FixedScalar("b", 0, _numbers("b")),
    ShortType(): FixedScalar("h", 0, _numbers("h")),
    IntegerType(): FixedScalar("i", 0, _numbers("i")),
    LongType(): FixedScalar("q", 0, _numbers("q")),
    FloatType(): FixedScalar("f", 0.0, _numbers("f")),
    DoubleType(): FixedScalar("d", 0.0, _numbers("d")),
    DateType(): FixedScalar("i", dt.date(1970, 1, 1), _days, _dates, date_to_days, days_to_date),
    TimestampType(): FixedScalar(
        "q", EPOCH, _numbers("q", timestamp_to_us), _timestamps, timestamp_to_us, us_to_timestamp
    ),
    TimestampNTZType(): FixedScalar(
        "q", NAIVE_EPOCH, _numbers("q", naive_to_us), _naive_timestamps, naive_to_us, us_to_naive
    ),
}
