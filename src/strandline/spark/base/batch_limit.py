"""Spark's limit of bytes of an Arrow batch, for which it measures all columns for each row.

Batches of rows of a fixed size reach the limit of rows first, so there Spark need not measure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from strandline.spark.base.ddl import arrow_schema

UNBOUNDED = math.inf
"""The size of rows with texts or arrays."""
_MOST_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_DEFAULT_ROWS, _DEFAULT_BYTES = 10_000, 64 << 20
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


@contextmanager
def unmeasured(context: Any, size: float) -> Iterator[None]:
    """Let the jobs of the `with` block not measure their batches, if rows of at most this size cannot reach the limit.

    `context` is the SparkContext.
    """
    if not _is_out_of_reach(context, size):
        yield
        return
    context.setLocalProperty(_MOST_BYTES, _NO_LIMIT)
    try:
        yield
    finally:
        context.setLocalProperty(_MOST_BYTES, None)


def _is_out_of_reach(context: Any, size: float) -> bool:
    # Tasks read the local properties, and not the session's settings, which the program may have changed since.
    if size == UNBOUNDED or context.getLocalProperty(_MOST_BYTES) is not None:
        return False
    most_rows = int(context.getLocalProperty(_MOST_ROWS) or _DEFAULT_ROWS)
    return most_rows > 0 and most_rows * size < _DEFAULT_BYTES
