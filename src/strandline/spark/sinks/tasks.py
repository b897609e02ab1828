"""Writes on the executors: each task stages its rows and returns their committable."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from strandline.core import failpoints
from strandline.core.errors import ConfigurationError
from strandline.core.ids import unique_name
from strandline.ends.committables import TaskAttempt
from strandline.spark.base.mapping import BatchFunction, map_batches
from strandline.spark.base.task_errors import SEAL, sealed_errors
from strandline.spark.base.templates import RepeatedFrame

_COLUMN = "committable"
_RESULT = StructType([StructField(_COLUMN, StringType())])
_NAME = "tasks of a sink"
"""In Spark's plans; not the name of a function, such as users pass to mapInArrow."""


WriteTask = Callable[[Iterator[pa.RecordBatch], TaskAttempt], str | None]
"""Stages a partition's rows; returns the committable that shows them, or None if none is needed."""


def write_tasks(df: DataFrame, write: WriteTask, shape: Callable[[DataFrame], DataFrame] | None = None) -> list[str]:
    """Call `write` on the executors, once for each partition that has rows; return the committables in order.

    One action does it all, so that an operator's rows are computed once. Spark may attempt a task again after a
    failure, or in parallel to a slow attempt: the result has the committable of one attempt whose `write` has returned.
    Files that other attempts stage are never committed: `Sink.recover` deletes them.
    `shape` computes what `write` gets of a partition's rows; Spark may use what it returned in an earlier epoch.
    """
    # As rows of the last stage, of which Spark takes one attempt's; an accumulator may count two.
    writer = BatchFunction(TaskWriter(write), _RESULT)
    committables = df._collect_mapped(writer, _NAME, shape) if isinstance(df, RepeatedFrame) else None
    if committables is None:
        rows = map_batches(shape(df) if shape else df, writer.call, writer.schema, _NAME)
        committables = [row[0] for row in rows.collect()]
    failpoints.hit("sink.staged")
    return committables


class TaskWriter:
    """The task. It yields its one row of output at the end."""

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
                raise ConfigurationError(f"write_tasks: write returned {committable!r:.300}, expected a string or None")
        # A keeper has applied an epoch when the task has read all of its output.
        for _ in rows:
            pass
        if committable is not None:
            yield pa.RecordBatch.from_pydict({_COLUMN: pa.array([committable], pa.string())})
