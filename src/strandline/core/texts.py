"""Figures as text for people: sizes, durations, rates and times, each with its unit."""

from __future__ import annotations

from datetime import datetime


def size_text(size_bytes: int) -> str:
    """Return a size with a unit."""
    size = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


def duration_text(ms: float) -> str:
    """Return a duration with a unit."""
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    minutes = int(ms // 60_000)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def age_text(seconds: float) -> str:
    """Return an age in whole seconds, or in larger units."""
    return f"{seconds:.0f} s" if seconds < 120 else duration_text(seconds * 1000)


def rate_text(per_s: float) -> str:
    """Return a rate per second."""
    return f"{per_s:,.0f}/s" if per_s >= 10 or not per_s else f"{per_s:.1f}/s"


def time_text(ms: int) -> str:
    """Return a time in this machine's time zone, for people."""
    return moment_text(ms * 1000) if ms else "-"


def moment_text(us: int) -> str:
    """Return an event time in this machine's time zone; any value of a timestamp is allowed."""
    try:
        return datetime.fromtimestamp(us // 1_000_000).isoformat(" ")
    except (ValueError, OverflowError, OSError):
        return "after the year 9999" if us > 0 else "before the year 1"
