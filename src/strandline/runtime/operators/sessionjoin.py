"""The join by session windows: both streams share sessions, and all rows in one session are paired."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from strandline.api.windows import Session, Window
from strandline.runtime.operators.joins import How, JoinColumns, LateSides, Row, TimedJoin, time_of
from strandline.runtime.operators.windows.contents import Keeping
from strandline.runtime.operators.windows.operator import Rules
from strandline.runtime.operators.windows.sessions import SessionWindows


class _Halves(Keeping):
    """Stores the rows of both streams: an entry has a row in one half, and null in the other."""

    def __init__(self, layout: JoinColumns, join: SessionJoin) -> None:
        super().__init__(f"struct<left: {layout.left.ddl}, right: {layout.right.ddl}>", (), join._pairs)

    def add(self, at: int, value: Any, event: Any) -> Any:
        left, right, *_ = event
        return super().add(at, value, (left, right))

    def rows(self, key: Any, window: Window | None, at: int, value: Any) -> Iterable[Row]:
        """Return the pairs."""
        pairs: Iterable[Row] = self._function(key, window, self._events.get(at))
        return pairs


class SessionJoin(SessionWindows, TimedJoin):
    """Pairs all rows of a key that are in one session, and emits them when the watermark has passed its end."""

    own_step = "window_join"

    def __init__(self, layout: JoinColumns, kind: Session, how: How = "inner", late: LateSides = (None, None)) -> None:
        TimedJoin.__init__(self, layout, how, late)
        SessionWindows.__init__(self, kind, _Halves(layout, self), Rules())
        self.own_function = ""
        self._gap_after_us = kind.gap_after_us
        self._length_after = self._row_length_us

    def on_event(self, event: Any, ctx: Any) -> None:
        """Add a row of either stream to its session."""
        left, right, *_ = event
        time_of(right if left is None else left, ctx)
        super().on_event(event, ctx)

    def _row_length_us(self, event: Any) -> int:
        """Return how long a row of either stream keeps its session open."""
        left, right, *_ = event
        return self._gap_after_us(right if left is None else left)

    def _reject(self, event: Any, ctx: Any) -> None:
        left, right, *_ = event
        self._refuse_late(right if left is None else left, left is not None, ctx)

    def _rows(self, key: Any, window: Window, at: int, value: Any) -> Iterator[Row]:
        for row in self._contents.rows(key, window, at, value):
            yield (*row, window.start, window.end)

    def _pairs(self, key: Any, window: Any, halves: Sequence[Any]) -> Iterator[Row]:
        lefts = [left for left, _ in halves if left is not None]
        rights = [right for _, right in halves if right is not None]
        return self._all_pairs(lefts, rights)
