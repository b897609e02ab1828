"""The status of a watermark, without heavy imports, so that commands that only show it start fast."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class OriginStatus:
    """One value of the column that a watermark's `per` names, or the source itself without `per`."""

    origin: str
    time: str | None
    """The time of its newest event, in ISO 8601, the delay taken off."""
    silent_ms: int
    """For how long it has had no event; since the start, if it has had none since then."""
    idle: bool = False
    """Whether the watermark does not wait for it."""


@dataclass(frozen=True)
class WatermarkStatus:
    """One watermark(): how far its events are, and which of them it is waiting for. The job's is the least of all."""

    column: str
    source: str
    """The source's name; empty where there is one without."""
    time: str | None
    """In ISO 8601, the delay taken off; if all are idle, the fastest one's. None before the first event."""
    slowest: str
    """With `per`, the value of that column whose events are the furthest behind; empty if all are idle."""
    origins: int
    """With `per`, how many values of that column are known."""
    idle: int
    """How many of these are idle."""
    furthest_behind: list[OriginStatus] = field(default_factory=list)
    """Those that are the furthest behind, that first; at most twenty."""
