"""Operators of views whose watermark moves: one partition on one backend, or a job that is restored at any parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from strandline.runtime.task.task import EpochTimes
from tests.soak import BACKENDS, soaking
from tests.views.operators import Operator, Shape
from tests.views.partitions import Partitions, Rows

PARTITIONS = "partitions"
KINDS = [*BACKENDS, *soaking([PARTITIONS])]
"""Parameters of tests: backends, and PARTITIONS for a job."""
_PLACES = [(1, "filesystem"), (2, "filesystem"), (3, "filesystem"), (1, "rocksdb"), (2, "rocksdb")]


class Watched(Operator):
    """A partition whose watermark moves."""

    watermark_us: int | None = None
    fired_us: int | None = None
    fired: Sequence[tuple[Any, ...]] = ()
    """The rows of each epoch that timers of an operator before give, if the shape says so."""
    late_rows = 0

    def epoch_of(self, batches: Sequence[Sequence[tuple[Any, ...]]], *, abort: bool = False) -> Rows:
        made = [self.shape.batch(self.fired, fired=True)] * bool(self.fired) + [*map(self.shape.batch, batches)]
        found = self.apply(made, self.watermark_us, fired_us=self.fired_us, abort=abort)
        self.late_rows = self.task.late_rows
        return [tuple(row.values()) for batch in found for row in batch.to_pylist()]

    @property
    def next_us(self) -> int | None:
        """The time before which no timer is due."""
        return self.task.next_timers_us[0]


class WatchedJob(Partitions):
    """All partitions of an operator whose watermark moves; it goes on at another parallelism, and through savepoints."""

    watermark_us: int | None = None
    fired_us: int | None = None
    fired: Sequence[tuple[Any, ...]] = ()
    late_rows = 0

    def __init__(self, root: Path, shape: Shape) -> None:
        super().__init__(root, shape)
        self.start(2, "rocksdb")

    def epoch_of(self, batches: Sequence[Sequence[tuple[Any, ...]]], *, abort: bool = False) -> Rows:  # type: ignore[override]
        found = self.attempt(batches, times=EpochTimes(self.watermark_us, 0, self.fired_us), fired=self.fired)
        self.late_rows = sum(opened.partition.task.late_rows for opened in self.opened)
        if abort:
            self.abort()
        else:
            self.commit()
        return found

    @property
    def next_us(self) -> int | None:
        """The time before which no timer is due."""
        times = [opened.partition.task.next_timers_us[0] for opened in self.opened]
        return min((each for each in times if each is not None), default=None)

    def restart(self, data: st.DataObject) -> None:
        """Go on from a checkpoint or a savepoint, at another parallelism."""
        self.checkpoint()
        self.stop()
        way: Any = data.draw(st.sampled_from([None, None, None, None, None, "native", "canonical"]), label="savepoint")
        if way is not None:
            self.go_through_savepoint(way)
        self.start(*data.draw(st.sampled_from(_PLACES), label="place"))

    def close(self) -> None:
        self.stop()


def watched(
    kind: str, root: Path, process: Any, key_type: str, columns: str, output: str, *, is_phased: bool = False
) -> Any:
    """Return an operator whose watermark moves, of a kind of KINDS."""
    if kind == PARTITIONS:
        return WatchedJob(root, Shape(process, key_type, columns, output, is_phased))
    return Watched(kind, root, process, key_type, columns, output, is_phased=is_phased)
