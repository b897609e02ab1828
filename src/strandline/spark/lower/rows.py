"""Python functions of rows in Spark's own workers."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from strandline.core.errors import StrandlineError
from strandline.runtime.task.rowfunction import RowFunction
from strandline.spark.keepers.worker import mark


class RowWorker:
    """Runs a function in a task of mapInArrow."""

    def __init__(self, function: RowFunction) -> None:
        self._function = function

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._function(batches)
        except StrandlineError as error:
            raise RuntimeError(mark(error)) from None
