"""Writing on the executors: each task stages its rows, and gives the committable that stands for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from strandline.core import failpoints
from strandline.core.errors import ConfigurationError
from strandline.core.ids import unique_name
from strandline.ends.committables import TaskAttempt
from strandline.spark.base.mapping import map_batches
from strandline.spark.base.task_errors import SEAL, sealed_errors

_COLUMN = "committable"


WriteTask = Callable[[Iterator[pa.RecordBatch], TaskAttempt], str | None]
"""Stages a partition's rows; returns the committable that shows them, or None if nothing has to."""


def write_tasks(df: DataFrame, write: WriteTask) -> list[str]:
    """Call `write` on the executors, once for each partition that has rows; return the committables in their order.

    All in one action, so that an operator's rows are computed once. Spark may attempt a task again, after a failure or
    beside a slow one: of each task, one attempt's committable is returned, whose `write` was through. What other
    attempts have staged, or stage later, nobody ever commits: `Sink.recover` is where they are forgotten.
    """
    # As rows of the action's last stage: of these Spark takes one attempt's, where an accumulator may count two.
    found = [row[0] for row in map_batches(df, TaskWriter(write), f"{_COLUMN} string").collect()]
    failpoints.hit("sink.staged")
    return found


class TaskWriter:
    """What runs in a task. Its one row of output comes after everything else."""

    def __init__(self, write: WriteTask) -> None:
        self._write = write
        self._seal = SEAL

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        context = TaskContext.get()
        assert context is not None
        rows = itertools.chain([first], filled)
        with sealed_errors(self._seal):
            committable = self._write(rows, TaskAttempt(context.partitionId(), unique_name()))
            if not isinstance(committable, str | None):
                raise ConfigurationError(f"write_tasks: write gave {committable!r:.300}, expected a string or None")
        # A keeper has applied an epoch when all of its output was read.
        for _ in rows:
            pass
        if committable is not None:
            yield pa.RecordBatch.from_pydict({_COLUMN: pa.array([committable], pa.string())})
