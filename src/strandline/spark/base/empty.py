"""DataFrames without rows."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def no_rows(session: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame of no rows, and no tasks.

    Of an empty list of Python's, Spark would have Python workers make no rows: of another kind than ours, with a
    process of their own that forks them. And what it knows to be empty, it takes out of its plans, with what we need.
    """
    jvm: Any = session._jsparkSession
    rows = session.sparkContext._jsc.emptyRDD()
    return DataFrame(jvm.createDataFrame(rows, jvm.parseDataType(schema.json())), session)
