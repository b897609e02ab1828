"""Data of Spark's driver whose tasks have preferred places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession


def located(context: Any, values: Sequence[Any], places: Sequence[str]) -> Any:
    """Return an RDD of the JVM with a partition for each value, which prefers its place.

    A place is a host, or an executor in Spark's words; "" is any.
    """
    jvm, pairs = context._jvm, context._jvm.java.util.ArrayList()
    for value, place in zip(values, places, strict=True):
        pairs.add(jvm.scala.Tuple2(value, jvm.PythonUtils.toSeq([place] if place else [])))
    return context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(pairs), jvm.scala.reflect.ClassTag.Any())


def located_rows(session: SparkSession, name: str, values: Sequence[int], places: Sequence[str]) -> DataFrame:
    """Return a DataFrame with one column of integers, and a task for each of them at its place."""
    context: Any = session.sparkContext
    jvm, internal, rows = context._jvm, cast(Any, session)._jsparkSession, []
    for value in values:
        cells = context._gateway.new_array(jvm.java.lang.Object, 1)
        cells[0] = value
        rows.append(jvm.org.apache.spark.sql.RowFactory.create(cells))
    schema = jvm.org.apache.spark.sql.types.StructType.fromDDL(f"{name} int")
    return DataFrame(internal.createDataFrame(located(context, rows, places).toJavaRDD(), schema), session)
