"""Spark's limit of bytes of an Arrow batch: it measures all columns for each row, a fifth of what its tasks cost.

Batches of rows of a fixed size reach the limit of rows first, so there Spark need not measure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from strandline.spark.base.ddl import arrow_schema

UNBOUNDED = math.inf
"""The size of rows with texts or arrays."""
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str((1 << 31) - 1)
"""The only value with which Spark does not measure."""


def row_bytes(schema: Any) -> float:
    """Return the most bytes that a row takes in a batch, of Spark's schema in the JVM."""
    try:
        fields = arrow_schema(StructType.fromJson(json.loads(schema.json())))
    except Exception:
        # A type that PySpark or Arrow does not know.
        return UNBOUNDED
    return sum((_bytes(field.type) for field in fields), 0.0)


def _bytes(kind: pa.DataType) -> float:
    if pa.types.is_struct(kind):
        return sum((_bytes(field.type) for field in kind), 1.0)
    try:
        # And one for the bit that tells nulls.
        return float(1 + kind.bit_width // 8)
    except ValueError:
        return UNBOUNDED


def may_run_python(df: DataFrame) -> bool:
    """Whether Python functions, or generators that may be Python's, compute a DataFrame's rows."""
    jvm: Any = df.sparkSession._jvm
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    jdf: Any = df._jdf
    plan = jdf.queryExecution().analyzed()
    return any(map(plan.containsPattern, (patterns.PYTHON_UDF(), patterns.GENERATOR())))


class BatchLimit:
    """The limits of a session's batches."""

    def __init__(self, spark: SparkSession) -> None:
        session: Any = spark._jsparkSession
        self._context: Any = spark.sparkContext
        self._conf = session.sessionState().conf()

    @contextmanager
    def unmeasured(self, size: float) -> Iterator[None]:
        """Let the jobs of the `with` block not measure their batches, if rows of at most this size cannot reach it."""
        if not self._is_out_of_reach(size):
            yield
            return
        before = self._context.getLocalProperty(_MOST_BYTES)
        self._context.setLocalProperty(_MOST_BYTES, _NO_LIMIT)
        try:
            yield
        finally:
            self._context.setLocalProperty(_MOST_BYTES, before)

    def _is_out_of_reach(self, size: float) -> bool:
        if size == UNBOUNDED:
            return False
        try:
            rows, most_bytes = self._conf.arrowMaxRecordsPerBatch(), self._conf.arrowMaxBytesPerBatch()
        except Py4JError:
            # This version of Spark has no such limit.
            return False
        return bool(rows > 0 and rows * size < most_bytes)
