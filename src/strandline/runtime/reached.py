"""The status of a watermark, without heavy imports, so that commands that only show it start fast."""

from __future__ import annotations

from dataclasses import dataclass


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
