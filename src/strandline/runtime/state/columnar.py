"""Operators of ours that work on whole Arrow columns and follow the watermark: no user function is in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.api.process import KeyedBatchProcess
from strandline.backends.base import Backend
from strandline.core.keygroups import KeyGroupRange
from strandline.runtime.own import OwnOperator
from strandline.runtime.state.columnhandles import BatchKeys
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.table import StateTable

Given = tuple[pa.RecordBatch, pa.Array | None]
"""Output rows, and their times in microseconds since 1970."""


@dataclass(frozen=True)
class Rows:
    """A batch of an operator's input."""

    keys: BatchKeys
    times: pa.Array | None
    columns: list[pa.Array]


class ColumnarProcess(OwnOperator, KeyedBatchProcess):
    """An operator on Arrow columns.

    In each epoch: on_watermark if it has moved, on_clock, on_rows for each batch, on_end; then commit or forget. Where
    rows come that timers gave further up, on_rows gets them before on_watermark, and on_fired is called behind them.
    """

    late_rows = 0
    """Rows of this epoch that came too late and were dropped."""
    source_rows = 0
    """Rows of the stream that this epoch's rows were made of."""

    def bind(self, backend: Backend, groups: KeyGroupRange, cache_bytes: int) -> Sequence[StateTable[Any]]:
        """Get ready to work on a partition's state; return the tables that it makes itself."""
        return ()

    def on_watermark(self, scope: Scope) -> Iterator[Given]:
        """Give what is due now that the watermark has reached scope.watermark_us."""
        yield from ()

    def on_clock(self, scope: Scope) -> Iterator[Given]:
        """Give what is due now that the clock has reached scope.now_us."""
        yield from ()

    def shown(self, keys: BatchKeys) -> Iterator[Given]:
        """Give what is kept of some keys as results, for tests to look at."""
        raise NotImplementedError

    def on_rows(self, rows: Rows, scope: Scope) -> None:
        """Take rows in."""
        raise NotImplementedError

    def on_fired(self, scope: Scope) -> Iterator[Given]:
        """Give what came of rows that timers gave further up, before the watermark moves on."""
        yield from ()

    def on_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        """Do nothing: rows come to on_rows."""

    def on_end(self, scope: Scope) -> Iterator[Given]:
        """Give what is to be given once an epoch when all rows are in."""
        yield from ()

    def commit(self) -> None:
        """Keep the epoch."""

    def forget(self) -> None:
        """Forget the epoch."""

    @property
    def next_due_us(self) -> int | None:
        """A time of the watermark before which nothing is due; None when nothing is pending."""
        return None

    @property
    def next_due_clock_us(self) -> int | None:
        """A time of the clock before which nothing is due; None when nothing is pending."""
        return None
