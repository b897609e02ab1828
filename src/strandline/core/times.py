"""The range of event times, and conversions of times beyond it.

Times are whole numbers of microseconds since 1970. Event times are between `FIRST_US` and `LAST_US`, the range of
`datetime`; durations are at most `LONGEST_MS`. So the sum of a time and some durations fits into 64 bits in Python,
numpy, Arrow and Spark, and can be compared. Only when it is shown as a time is it clamped to the range. Columns of
Spark's times, which go on to the year 294,247, are `computable` when they are clamped to a wider range.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FIRST_US = -62_135_596_800_000_000
"""0001-01-01 00:00 UTC."""
LAST_US = 253_402_300_799_999_999
"""9999-12-31 23:59:59.999999 UTC."""
LONGEST_MS = 10_000 * 366 * 86_400_000
"""The longest duration that a program can set."""
END_US = 1 << 62
"""The watermark after the last event. It is later than all sums of times and durations."""

_FURTHEST_US = END_US // 2 - 1
"""Some 73,000 years from 1970, in either direction."""

Times = TypeVar("Times", int, "npt.NDArray[np.int64]")

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def within(us: Times) -> Times:
    """Clamp a time, or an array of times, to the range of event times."""
    if isinstance(us, int):
        return FIRST_US if us < FIRST_US else LAST_US if us > LAST_US else us
    return us.clip(FIRST_US, LAST_US)


def computable(us: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Clamp a column's times so that their sums with durations fit into 64 bits, and are before the last watermark."""
    return us.clip(-_FURTHEST_US, _FURTHEST_US)


def as_datetime(us: int) -> dt.datetime:
    """Return the aware datetime, in UTC, of a time, clamped to the range of event times."""
    return _EPOCH + dt.timedelta(0, 0, within(us))
