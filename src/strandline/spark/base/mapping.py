"""Functions of Arrow batches, which Spark's tasks apply to a DataFrame, and the accumulator of their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction, _wrap_function
from pyspark.util import PythonEvalType

from strandline.spark.base.expressions import columns_of

Batches = Iterator[pa.RecordBatch]


class Messages(AccumulatorParam[list[bytes]]):
    """Collects messages of tasks. A task that is retried sends two."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802
        value1.extend(value2)
        return value1


@dataclass(frozen=True)
class BatchFunction:
    """A function of a partition's batches, and the schema of its result."""

    call: Callable[[Batches], Batches]
    schema: StructType

    def to_java(self, spark: SparkSession) -> Any:
        """Return the function alone as the JVM has it, to replace another of `map_batches`."""
        return _wrap_function(spark.sparkContext, self.call, self.schema)


def map_batches(
    df: DataFrame, function: Callable[[Batches], Batches], schema: StructType | str, name: str = ""
) -> DataFrame:
    """Do what `mapInArrow` does, with any column names and fewer calls of the JVM; `name` is for Spark's plans.

    `mapInArrow` takes names with dots or quotes for paths, and calls the JVM three times a column in every epoch.
    """
    if not isinstance(df, DataFrame):
        # Tests of sinks pass other objects with this method.
        return df.mapInArrow(function, schema)
    mapped: Any = UserDefinedFunction(
        function,
        returnType=schema,
        name=name or type(function).__name__,
        evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    )
    return DataFrame(df._jdf.mapInArrow(mapped._judf.apply(columns_of(df)), False, None), df.sparkSession)
