"""Runs a function of rows in Spark's Python workers, which import only this module and its few imports."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from strandline.runtime.task.rowfunction import RowFunction
from strandline.spark.base.task_errors import Seal, sealed_errors


def run_rows(seal: Seal, function: RowFunction, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a function in a task of mapInArrow."""
    with sealed_errors(seal):
        yield from function(batches)
