"""Converts Spark's types to DDL and Arrow, and its errors to text."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

from strandline.plan.columns import quoted
from strandline.types import datatypes

# PySpark 4.1 always uses UTC for timestamps, and has no parameter for it.
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def ddl_of(kind: DataType) -> str:
    """Return a type's DDL with every name quoted: Spark's simpleString does not quote."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(f.name)}: {ddl_of(f.dataType)}' for f in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{ddl_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{ddl_of(kind.keyType)}, {ddl_of(kind.valueType)}>"
    return kind.simpleString()


@lru_cache(maxsize=256)
def schema_of(ddl: str) -> StructType:
    """Return a schema as Spark's type, from a cache: the JVM needs 2 ms to parse its text, in every epoch."""
    schema = DataType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def spark_type(kind: datatypes.DataType) -> DataType:
    """Return a type as Spark's type, without the JVM."""
    if isinstance(kind, datatypes.StructType):
        return StructType([StructField(field.name, spark_type(field.type)) for field in kind.fields])
    if isinstance(kind, datatypes.ArrayType):
        return ArrayType(spark_type(kind.element))
    if isinstance(kind, datatypes.MapType):
        return MapType(spark_type(kind.key), spark_type(kind.value))
    if isinstance(kind, datatypes.DecimalType):
        return DecimalType(kind.precision, kind.scale)
    # All other classes have the same names in both.
    simple: DataType = getattr(types, type(kind).__name__)()
    return simple


def first_line(error: PySparkException) -> str:
    """Return the message of an error of Spark, without the plan that follows it."""
    return str(error).strip().splitlines()[0]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema as Spark sends it to Python, with timestamps in UTC."""
    return to_arrow_schema(schema, **_UTC)
