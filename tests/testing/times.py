"""Times of events in seconds, which the harness's tests write and compare."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def in_seconds(rows: Iterable[Any]) -> list[Any]:
    """Return rows in order, times as seconds since the start."""
    return sorted(tuple((v - START).total_seconds() if isinstance(v, dt.datetime) else v for v in row) for row in rows)
