"""Finds the column in which Spark keeps the text of malformed rows, and checks that there is one."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from strandline.api.badrecords import OnError, on_error_of
from strandline.core.errors import ConfigurationError
from strandline.spark.base.ddl import schema_of
from strandline.spark.sources.checks import relations_of

_OPTION = "columnNameOfCorruptRecord"
_FORMATS = ("json", "csv", "xml")


def check_malformed(where: str, value: Any) -> OnError:
    """Return the policy for malformed rows; raise ConfigurationError for one that sources do not support."""
    on_error = on_error_of(where, value)
    if on_error.then == "skip":
        raise ConfigurationError(
            f"{where}: on_error is 'skip', which sources do not support",
            hint="write 'dead-letter' and stream.dead_letters.to(sl.sinks.noop()), which counts and discards them; or "
            "set Spark's option mode='DROPMALFORMED', which drops them without a count",
        )
    return on_error


def corrupt_column(df: DataFrame) -> str:
    """Return the column with the text of malformed rows; raise ConfigurationError if the DataFrame has none."""
    options = [relation.options.get(_OPTION.lower()) for relation in relations_of(df)]
    name = next(filter(None, options), None) or _default_name(df.sparkSession)
    if name not in df.columns or not isinstance(df.schema[name].dataType, StringType):
        raise ConfigurationError(
            f"stream(): on_error is set, but the DataFrame has no string column {name} with the text of malformed "
            f"rows; it has {', '.join(df.columns)}",
            hint=f'add it to the schema: spark.readStream.schema("…, {name} string").json(…); for JSON in a column: '
            f'from_json(value, "…, {name} string"), and select its fields',
        )
    return name


def with_corrupt_column(
    spark: SparkSession, format: str, schema: str | StructType, options: dict[str, Any]
) -> str | StructType:
    """Return a schema with the column for the text of malformed rows."""
    if format.lower() not in _FORMATS:
        raise ConfigurationError(
            f"files_source(): on_error is set for {format} files, but Spark keeps malformed rows only of "
            f"{', '.join(_FORMATS)}",
            hint="leave it out: in other formats, single rows cannot be malformed",
        )
    lowercase = {name.lower(): value for name, value in options.items()}
    if str(lowercase.get("mode", "permissive")).lower() != "permissive":
        raise ConfigurationError(
            f"files_source(): on_error is set, but with mode={lowercase['mode']!r} Spark keeps no malformed rows",
            hint="leave mode= out",
        )
    name = lowercase.get(_OPTION.lower()) or _default_name(spark)
    fields = schema_of(schema) if isinstance(schema, str) else schema
    return fields if name in fields.names else StructType([*fields.fields]).add(name, StringType())


def _default_name(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.sql.columnNameOfCorruptRecord"))
