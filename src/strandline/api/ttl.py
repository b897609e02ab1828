"""How long state lives: time-to-live of a declared state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms

_LONGEST_MS = 100 * 366 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class TTL:
    """What a state holds expires this long after it was last written; expired values are never returned.

    Each key's value or list, and each entry of a map, expires on its own. `refresh="read"`: reading a value counts as
    writing it, unless that would prolong it by less than a sixteenth of the duration. `time="event"`: the time is the
    stream's event time and passes with the watermark; else it is the processing time, as in `ctx.now`.

    >>> seen = Value("bigint", ttl=TTL("1h"))
    """

    duration: str
    refresh: Literal["write", "read"] = "write"
    time: Literal["processing", "event"] = "processing"

    def __post_init__(self) -> None:
        if not 0 < self.duration_ms <= _LONGEST_MS:
            raise ConfigurationError(
                f"TTL: its duration is {self.duration!r}, expected more than 0 and at most 100 years",
                hint="write it like '30 min', '12h' or '90 days'; leave the TTL out for state that never expires",
            )
        for what, given, known in (
            ("refresh", self.refresh, ("write", "read")),
            ("time", self.time, ("processing", "event")),
        ):
            if given not in known:
                raise ConfigurationError(f"TTL: {what} is {given!r}, expected '{known[0]}' or '{known[1]}'")

    @property
    def duration_ms(self) -> int:
        """The duration in milliseconds."""
        return parse_duration_ms(self.duration, "TTL: its duration")
