"""History that a pipeline runs over before it streams: which order its rows have, which epochs they make, and when.

An epoch of history is what an epoch of the stream would have been had it run then: rows up to some time, and no older
ones come after it. The clock shows that time, so that what waits for the clock does what it would have done.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from strandline.core.clock import Clock
from strandline.core.errors import ConfigurationError
from strandline.plan.graph import Node, SourceNode, WatermarkNode, sources_of
from strandline.runtime.watermarks import time_text

MOST_EPOCHS = 100_000
_PART = re.compile(r"part-(\d+)-.*-c(\d+)\..*")
"""What Spark calls the files that a job writes: by the partition's number, and the file's in it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What one epoch reads: the rows of a file, or those of them with orders from `first` to `last`."""

    file: str
    rows: int
    first: Any = None
    last: Any = None
    """None, as `first`: its rows have no order."""
    is_whole: bool = True
    """Whether the file has no other rows."""


def in_slices(found: Iterable[tuple[str, int, Any, Any]]) -> list[Slice]:
    """Return the epochs, in order, of rows counted by file, and in each by stretch of time: file, rows, first, last.

    Rows without a time come before all others.
    """
    counted = list(found)
    files = Counter(file for file, _, _, _ in counted)
    slices = [Slice(file, rows, first, last, files[file] == 1) for file, rows, first, last in counted]
    return sorted(slices, key=lambda each: (*_number(each.file), each.first is not None, each.first or 0))


def _number(file: str) -> tuple[int, int]:
    match = _PART.fullmatch(file)
    assert match is not None, file
    return int(match[1]), int(match[2])


def event_time_of(source: SourceNode, nodes: Iterable[Node]) -> str | None:
    """Return the column with the times of a source's rows, by its watermark; None if it has none.

    Raises ConfigurationError where that is no column of the source: then somebody has to say the order.
    """
    said = {node.spec.column for node in nodes if isinstance(node, WatermarkNode) and source in sources_of(node)}
    if not said:
        return None
    what = f"source '{source.name}'" if source.name else "source"
    if len(said) > 1:
        raise ConfigurationError(
            f"the {what} has watermarks on several columns: {', '.join(sorted(said))}",
            hint=to_order(source, "by which time its history is to come"),
        )
    (column,) = said
    if column not in source.columns.names or source.columns.ddl_of(column) != "timestamp":
        raise ConfigurationError(
            f"the watermark's column '{column}' is made by a step: the {what} has {', '.join(source.columns.names)}",
            hint=to_order(source, "by which time its history is to come"),
        )
    return column


def to_order(source: SourceNode, what: str) -> str:
    """Return how somebody says the order of a source's history."""
    given = f'{{"{source.name}": "…"}}' if source.name else '"…"'
    return f"say {what}: order_by={given}, a column of the history or an SQL expression"


class HistoryClock:
    """Shows how far history has come: never back, and never later than it is. Without times, the machine's clock."""

    def __init__(self, clock: Clock, begins_us: int | None) -> None:
        self._clock = clock
        self._at_us = None if begins_us is None else min(begins_us, clock.now_ms() * 1000)

    def reach(self, at_us: int | None) -> None:
        """Rows up to this time have come."""
        if self._at_us is not None and at_us is not None:
            self._at_us = max(self._at_us, min(at_us, self._clock.now_ms() * 1000))

    def now_ms(self) -> int:
        return self._clock.now_ms() if self._at_us is None else self._at_us // 1000

    def monotonic_ms(self) -> float:
        """How long a source is silent counts in its own time, too."""
        return self._clock.monotonic_ms() if self._at_us is None else self._at_us / 1000


@dataclass(frozen=True, slots=True)
class HistoryProgress:
    """How far a bootstrap is."""

    rows: int
    total_rows: int
    epochs: int
    total_epochs: int
    rows_per_s: int
    """Since it began to process them."""
    watermark: str | None
    """How far event time has come, in ISO 8601."""

    def __str__(self) -> str:
        percent = 100 * self.rows // self.total_rows if self.total_rows else 100
        at = f", watermark {self.watermark}" if self.watermark else ""
        return f"{self.rows:,} of {self.total_rows:,} rows ({percent} %), {self.rows_per_s:,} rows/s{at}"


def progress_of(
    done: int, slices: list[Slice], begun: int, seconds: float, watermark_us: int | None
) -> HistoryProgress:
    """Return how far one is after `done` of all slices, of which the first `begun` were done before these seconds."""
    rows = sum(each.rows for each in slices[:done])
    new = rows - sum(each.rows for each in slices[:begun])
    rate = round(new / seconds) if seconds > 0 else 0
    total = sum(each.rows for each in slices)
    return HistoryProgress(rows, total, done, len(slices), rate, time_text(watermark_us))
