"""Clock and watermark of a harness. A test moves them; the watermark can also follow the events."""

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
    """The clock and the watermark. Without event time there are no specs and no watermark."""

    def __init__(self, specs: Sequence[WatermarkSpec], *, follows: bool, now_us: int | None = None) -> None:
        self.now_us = timestamp_to_us(_START) if now_us is None else now_us
        self._follows = follows
        self._specs = list(specs)
        self._manual_us: int | None = None
        self._watermarks = Watermarks(self._specs, {}, self.now_us)

    @property
    def watermark_us(self) -> int | None:
        """The watermark of the next epoch: the later of those by the test and by the events."""
        observed_us = self._watermarks.advance(self.now_us)
        known = [at_us for at_us in (self._manual_us, observed_us) if at_us is not None]
        return max(known, default=None)

    @property
    def of_epoch(self) -> EpochTimes:
        """The times of the next epoch."""
        return EpochTimes(self.watermark_us, self.now_us, self._watermarks.fired_us)

    def end_epoch(self, newest: Sequence[Mapping[int, Mapping[str, int]]]) -> None:
        """Observe the newest times of an epoch's events at each operator, by watermark and origin."""
        self._watermarks.fired_us = self.watermark_us
        for newest_us in newest if self._follows else ():
            for index, by_origin in newest_us.items():
                self._watermarks.observe(index, by_origin, self.now_us)

    def advance_watermark(self, to: dt.datetime) -> None:
        """Move the watermark to a time."""
        if not self._specs:
            raise ConfigurationError(
                "Harness: there is no event time, so there is no watermark",
                hint='name the column that has it: Harness(…, event_time="ts")',
            )
        to_us = _to_us(to, "advance_watermark")
        reached_us = self.watermark_us
        if reached_us is not None and to_us < reached_us:
            raise ConfigurationError(f"Harness: the watermark is at {as_datetime(reached_us)}: it never goes back")
        self._manual_us = to_us

    def advance_to_end(self) -> None:
        """Move the watermark, if there is one, to the end of time."""
        if self._specs:
            self._manual_us = END_US

    def move_clock(self, by: str | dt.timedelta | dt.datetime) -> None:
        """Move the clock by a duration, or to a time."""
        if isinstance(by, dt.datetime):
            to_us = _to_us(by, "advance_clock")
        elif isinstance(by, dt.timedelta):
            to_us = self.now_us + by // dt.timedelta(microseconds=1)
        else:
            to_us = self.now_us + parse_duration_ms(by, "Harness: advance_clock") * 1000
        if to_us < self.now_us:
            raise ConfigurationError(f"Harness: the clock is at {as_datetime(self.now_us)}: it never goes back")
        self.now_us = to_us

    def stored(self) -> dict[str, int]:
        """Return the watermarks for a snapshot."""
        watermarks = self._watermarks.stored()
        reached_us = self.watermark_us
        return watermarks if reached_us is None else {**watermarks, REACHED: reached_us}

    def restore(self, stored: Mapping[str, int]) -> None:
        """Restore the watermarks of a snapshot; the clock does not change."""
        self._manual_us = None
        self._watermarks = Watermarks(self._specs, stored if self._specs else {}, self.now_us)


def _to_us(value: Any, method: str) -> int:
    if not isinstance(value, dt.datetime) or value.utcoffset() is None:
        raise ConfigurationError(
            f"Harness: {method} was given {value!r}, expected a datetime with a time zone",
            hint="write datetime(…, tzinfo=timezone.utc)",
        )
    return timestamp_to_us(value)
