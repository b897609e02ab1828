"""Time in a harness: a clock that moves when told to, and a watermark that also follows the events, if it is to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.core.times import END_US, as_datetime
from strandline.runtime.task.task import EpochTimes
from strandline.runtime.watermarks import REACHED, Watermarks, WatermarkSpec
from strandline.types.scalars import timestamp_to_us

_START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


class Times:
    """The clock, and how far event time has come. Without event time there are no specs, and never a watermark."""

    def __init__(self, specs: Sequence[WatermarkSpec], *, follows: bool) -> None:
        self.now_us = timestamp_to_us(_START)
        self._follows = follows
        self._specs = list(specs)
        self._said_us: int | None = None
        self._watermarks = Watermarks(self._specs, {}, self.now_us)

    @property
    def watermark_us(self) -> int | None:
        """What the next epoch's watermark is: what was said, or what the events say, whichever is later."""
        followed_us = self._watermarks.advance(self.now_us)
        known = [at_us for at_us in (self._said_us, followed_us) if at_us is not None]
        return max(known, default=None)

    @property
    def of_epoch(self) -> EpochTimes:
        """What time it is in the next epoch."""
        return EpochTimes(self.watermark_us, self.now_us, self._watermarks.fired_us)

    def ended(self, moved: Sequence[Mapping[int, Mapping[str, int]]]) -> None:
        """Take in the newest times of an epoch's events, by watermark and origin, of each operator."""
        self._watermarks.fired_us = self.watermark_us
        for newest_us in moved if self._follows else ():
            for index, by_origin in newest_us.items():
                self._watermarks.observe(index, by_origin, self.now_us)

    def let_watermark_reach(self, to: dt.datetime) -> None:
        """Move the watermark to a time."""
        if not self._specs:
            raise ConfigurationError(
                "Harness: there is no event time, so there is no watermark",
                hint='say which column has it: Harness(…, event_time="ts")',
            )
        to_us = _moment(to, "advance_watermark")
        reached_us = self.watermark_us
        if reached_us is not None and to_us < reached_us:
            raise ConfigurationError(f"Harness: the watermark is at {as_datetime(reached_us)}: it never goes back")
        self._said_us = to_us

    def come_to_end(self) -> None:
        """Move the watermark to the end of time, if there is any."""
        if self._specs:
            self._said_us = END_US

    def move_clock(self, by: str | dt.timedelta | dt.datetime) -> None:
        """Move the clock by a duration, or to a time."""
        if isinstance(by, dt.datetime):
            to_us = _moment(by, "advance_clock")
        elif isinstance(by, dt.timedelta):
            to_us = self.now_us + by // dt.timedelta(microseconds=1)
        else:
            to_us = self.now_us + parse_duration_ms(by, "Harness: advance_clock") * 1000
        if to_us < self.now_us:
            raise ConfigurationError(f"Harness: the clock is at {as_datetime(self.now_us)}: it never goes back")
        self.now_us = to_us

    def stored(self) -> dict[str, int]:
        """Return what a snapshot holds."""
        found = self._watermarks.stored()
        reached_us = self.watermark_us
        return found if reached_us is None else {**found, REACHED: reached_us}

    def restore(self, stored: Mapping[str, int]) -> None:
        """Go back to what a snapshot holds; the clock goes on."""
        self._said_us = None
        self._watermarks = Watermarks(self._specs, stored, self.now_us)


def _moment(value: Any, what: str) -> int:
    if not isinstance(value, dt.datetime) or value.utcoffset() is None:
        raise ConfigurationError(
            f"Harness: {what} was given {value!r}, expected a datetime with a time zone",
            hint="make one with datetime(…, tzinfo=timezone.utc)",
        )
    return timestamp_to_us(value)
