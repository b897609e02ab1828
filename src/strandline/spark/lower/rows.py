"""Python functions of rows in Spark's own workers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from strandline.runtime.task.rowfunction import RowFunction
from strandline.spark.base.marks import marking


class RowWorker:
    """Runs a function in a task of mapInArrow."""

    def __init__(self, function: RowFunction) -> None:
        self._function = function

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marking():
            yield from self._function(batches)
