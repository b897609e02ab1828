"""Spark's schemas and names as the DDL that the engine reads."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from strandline.core.errors import ConfigurationError
from strandline.format.types import parse_schema
from strandline.spark.times import visible, without_hidden


def input_schema(probe: DataFrame, where: str) -> str:
    """Return the DDL of a step's input columns."""
    names = visible(probe.columns)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"{where}: the column {', '.join(twice)} is there more than once", hint="rename one")
    parts = []
    for column in without_hidden(probe).schema.fields:
        parts.append(f"{quoted(column.name)} {ddl_of(column.dataType)}")
    try:
        return parse_schema(", ".join(parts)).ddl
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{where}: a column's type is not supported: {error.message}", hint="cast it, or select other columns"
        ) from None


def ddl_of(kind: DataType) -> str:
    """Return a type's DDL with every name quoted, as Spark's own simpleString has not."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{quoted(f.name)}: {ddl_of(f.dataType)}' for f in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{ddl_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{ddl_of(kind.keyType)}, {ddl_of(kind.valueType)}>"
    return kind.simpleString()


def quoted(name: str) -> str:
    """Return a name as SQL expressions need it: always in quotes, for `null` and `current_date` may be columns."""
    return "`" + name.replace("`", "``") + "`"


def first_line(error: AnalysisException) -> str:
    """Return what an error of Spark's says, without the plan behind it."""
    return str(error).strip().splitlines()[0]
