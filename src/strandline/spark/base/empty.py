"""DataFrames without rows."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


def no_rows(session: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame without rows and without tasks.

    For an empty Python list, Spark would start Python workers, with another daemon than Strandline's. A relation that
    the optimizer knows to be empty would be removed from plans, with the steps that must run.
    """
    jvm: Any = session._jsparkSession
    rows = session.sparkContext._jsc.emptyRDD()
    return DataFrame(jvm.createDataFrame(rows, jvm.parseDataType(schema.json())), session)
