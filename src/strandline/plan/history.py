"""History that a pipeline processes before it streams: the order of its rows, its epochs and its clock.

An epoch of history has the rows up to some time, and no later epoch has older ones, as in a stream at that time. The
clock shows that time too, so that timers of processing time fire when they would have fired.
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
"""Name of a file that Spark writes, with the number of the partition and that of the file in it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows that one epoch reads: a whole file, or its rows with orders from `first` to `last`."""

    file: str
    rows: int
    first: Any = None
    last: Any = None
    """None, like `first`, if the rows have no order."""
    is_whole: bool = True
    """Whether the file has no other rows."""


def make_slices(counts: Iterable[tuple[str, int, Any, Any]]) -> list[Slice]:
    """Return the epochs in order. `counts` has a file, a number of rows, and their first and last order.

    Rows without a time come before all others.
    """
    counted = list(counts)
    files = Counter(file for file, _, _, _ in counted)
    slices = [Slice(file, rows, first, last, files[file] == 1) for file, rows, first, last in counted]
    return sorted(slices, key=lambda each: (*_number(each.file), each.first is not None, each.first or 0))


def _number(file: str) -> tuple[int, int]:
    match = _PART.fullmatch(file)
    assert match is not None, file
    return int(match[1]), int(match[2])


def event_time_of(source: SourceNode, nodes: Iterable[Node]) -> str | None:
    """Return the column with the times of a source's rows, by its watermark; None if it has none.

    Raises ConfigurationError if it is no column of the source: then the user has to pass `order_by`.
    """
    columns = {node.spec.column for node in nodes if isinstance(node, WatermarkNode) and source in sources_of(node)}
    if not columns:
        return None
    what = f"source '{source.name}'" if source.name else "source"
    if len(columns) > 1:
        raise ConfigurationError(
            f"the {what} has watermarks on several columns: {', '.join(sorted(columns))}",
            hint=to_order(source, "by which time its history is to come"),
        )
    (column,) = columns
    if column not in source.columns.names or source.columns.ddl_of(column) != "timestamp":
        raise ConfigurationError(
            f"the watermark's column '{column}' is made by a step: the {what} has {', '.join(source.columns.names)}",
            hint=to_order(source, "by which time its history is to come"),
        )
    return column


def to_order(source: SourceNode, what: str) -> str:
    """Return a hint that says how to pass the order of a source's history."""
    example = f'{{"{source.name}": "…"}}' if source.name else '"…"'
    return f"say {what}: order_by={example}, a column of the history or an SQL expression"


class HistoryClock:
    """Clock of history: it never runs back, and never ahead of the machine's. Without times, it is the machine's."""

    def __init__(self, clock: Clock, begins_us: int | None) -> None:
        self._clock = clock
        self._at_us = None if begins_us is None else min(begins_us, clock.now_ms() * 1000)

    def reach(self, at_us: int | None) -> None:
        """Advance to the time of the rows that were read."""
        if self._at_us is not None and at_us is not None:
            self._at_us = max(self._at_us, min(at_us, self._clock.now_ms() * 1000))

    def now_ms(self) -> int:
        return self._clock.now_ms() if self._at_us is None else self._at_us // 1000

    def monotonic_ms(self) -> float:
        """Return history's time too, since it measures how long a source is idle."""
        return self._clock.monotonic_ms() if self._at_us is None else self._at_us / 1000


@dataclass(frozen=True, slots=True)
class HistoryProgress:
    """The progress of a bootstrap."""

    rows: int
    total_rows: int
    epochs: int
    total_epochs: int
    rows_per_s: int
    """Mean rate since it began."""
    watermark: str | None
    """Watermark in ISO 8601."""

    def __str__(self) -> str:
        percent = 100 * self.rows // self.total_rows if self.total_rows else 100
        at = f", watermark {self.watermark}" if self.watermark else ""
        return f"{self.rows:,} of {self.total_rows:,} rows ({percent} %), {self.rows_per_s:,} rows/s{at}"


def progress_of(
    done: int, slices: list[Slice], begun: int, seconds: float, watermark_us: int | None
) -> HistoryProgress:
    """Return the progress after `done` slices, of which the first `begun` were done before these seconds."""
    rows = sum(each.rows for each in slices[:done])
    new = rows - sum(each.rows for each in slices[:begun])
    rate = round(new / seconds) if seconds > 0 else 0
    total = sum(each.rows for each in slices)
    return HistoryProgress(rows, total, done, len(slices), rate, time_text(watermark_us))
