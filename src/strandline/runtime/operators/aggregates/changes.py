"""What has changed in panes since results so far were last given. It is kept in memory alone.

After a restore it is not known: then everything counts as changed, and results come once more than they would have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from strandline.runtime.operators.windows.operator import next_multiple
from strandline.runtime.state.panes import Merge, settle

Changes = Mapping[int, list[pa.RecordBatch] | None]
"""By pane: the batches that were added; None: it is not known which."""


class News:
    """Changes of panes, and when they are to be shown: at the next full interval of the clock after the first."""

    def __init__(self, every_us: int, merge: Merge) -> None:
        self._every_us = every_us
        self._merge = merge
        self._at_us: int | None = None
        self._is_unknown = True
        """Whether panes that are there may have changed before."""
        self._kept: dict[int, list[pa.RecordBatch]] = {}
        self._now: dict[int, list[pa.RecordBatch]] = {}
        self._before: tuple[int | None, bool] = (None, True)
        self._is_taken = False

    def add(self, pane: int, batch: pa.RecordBatch, now_us: int) -> None:
        """Something was added to a pane."""
        self._now.setdefault(pane, []).append(batch)
        if self._at_us is None:
            self._at_us = next_multiple(now_us, self._every_us)

    def due_us(self, panes: Collection[int]) -> int | None:
        """Return when the changes are to be shown; None when there are none."""
        if not panes:
            # Nothing was there before, so nothing can have changed unseen.
            self._is_unknown = False
        return 0 if self._is_unknown else self._at_us

    def take(self, panes: Collection[int]) -> Changes:
        """Return the changes of the panes there are, and begin anew."""
        found: dict[int, list[pa.RecordBatch] | None] = {}
        for pane in panes:
            batches = [*self._kept.get(pane, ()), *self._now.get(pane, ())]
            if batches or self._is_unknown:
                found[pane] = None if self._is_unknown else batches
        self._is_taken, self._is_unknown, self._at_us, self._now = True, False, None, {}
        return found

    def commit(self) -> None:
        """Keep the epoch."""
        if self._is_taken:
            self._kept = {}
        for pane, batches in self._now.items():
            kept = self._kept.setdefault(pane, [])
            kept += batches
            settle(kept, self._merge)
        self._before = (self._at_us, self._is_unknown)
        self._now, self._is_taken = {}, False

    def forget(self) -> None:
        """Forget the epoch."""
        self._at_us, self._is_unknown = self._before
        self._now, self._is_taken = {}, False
