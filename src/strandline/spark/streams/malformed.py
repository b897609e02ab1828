"""Rows that Spark could not read: whether it keeps their text, and in which column."""

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


def check_malformed(where: str, given: Any) -> OnError:
    """Return what becomes of rows that cannot be read; refuse what no source can do."""
    found = on_error_of(where, given)
    if found.then == "skip":
        raise ConfigurationError(
            f"{where}: on_error is 'skip', and a source gives rows that cannot be read, or does not count them",
            hint="say 'dead-letter' and stream.dead_letters.to(sl.sinks.noop()): they are counted, and nobody sees "
            "them; or have Spark drop them uncounted, with its option mode='DROPMALFORMED'",
        )
    return found


def corrupt_column(df: DataFrame) -> str:
    """Return the column that the text of malformed rows is in; refuse a DataFrame without one."""
    options = [relation.options.get(_OPTION.lower()) for relation in relations_of(df)]
    name = next(filter(None, options), None) or _usual_name(df.sparkSession)
    if name not in df.columns or not isinstance(df.schema[name].dataType, StringType):
        raise ConfigurationError(
            f"stream(): on_error was given, and the DataFrame has no column {name}, a string, with the text of rows "
            f"that could not be read; it has {', '.join(df.columns)}",
            hint=f'add it to the schema: spark.readStream.schema("…, {name} string").json(…); of JSON in a column: '
            f'from_json(value, "…, {name} string"), and select what is in it',
        )
    return name


def with_corrupt_column(
    spark: SparkSession, format: str, schema: str | StructType, options: dict[str, Any]
) -> str | StructType:
    """Return a schema with the column that Spark puts the text of malformed rows into."""
    if format.lower() not in _FORMATS:
        raise ConfigurationError(
            f"files_source(): on_error was given for {format} files, and Spark keeps malformed rows of "
            f"{', '.join(_FORMATS)} alone",
            hint="leave it out: other formats have no rows that are malformed one by one",
        )
    given = {name.lower(): value for name, value in options.items()}
    if str(given.get("mode", "permissive")).lower() != "permissive":
        raise ConfigurationError(
            f"files_source(): on_error was given, and mode={given['mode']!r}, with which Spark keeps no malformed row",
            hint="leave mode= out",
        )
    name = given.get(_OPTION.lower()) or _usual_name(spark)
    fields = schema_of(schema) if isinstance(schema, str) else schema
    return fields if name in fields.names else StructType([*fields.fields]).add(name, StringType())


def _usual_name(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.sql.columnNameOfCorruptRecord"))
