"""Sources of SQL programs: streams, their present rows for a preview, and tables that do not change."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from strandline.core.errors import ConfigurationError
from strandline.plan.columns import quoted
from strandline.spark.base.filesystem import absolute
from strandline.spark.base.quiet import suppress_error_logs
from strandline.spark.base.spark_errors import reason_of
from strandline.spark.sqlfile import sparkoptions
from strandline.spark.sqlfile.options import Parameters
from strandline.spark.sqlfile.statements import Column, CreateStream, CreateTable
from strandline.spark.streams import kafkasource
from strandline.spark.streams.filesource import files_source
from strandline.spark.streams.kafkaversions import versions
from strandline.spark.streams.stream import Stream, stream

_CORRUPT = "_corrupt_record"
_ROW, _ORDER, _DELETED = "__strandline_row", "__strandline_order", "_deleted"
_NO_DELTA = "Failed to find the data source: delta"
OnRowError = Literal["fail", "dead-letter"]


def parameters_of(source: CreateStream | CreateTable) -> Parameters:
    """Return the options that a stream or table takes."""
    if isinstance(source, CreateTable):
        further = sparkoptions.DELTA_TABLES if source.using.connector.text == "delta" else sparkoptions.FILES
        return Parameters({"path": str}, ("path",), further)
    parameters = _STREAMS[source.using.connector.text]
    if not source.key:
        return parameters
    return replace(parameters, hints={**parameters.hints, "order_by": str, "deleted": str})


def table_arguments(source: CreateStream, arguments: dict[str, Any]) -> dict[str, str]:
    """Take those arguments of a stream with a primary key out that are sl.table()'s."""
    options: dict[str, str] = {name: arguments.pop(name) for name in ("order_by", "deleted") if name in arguments}
    if not source.key or source.using.connector.text != "kafka":
        return options
    # A message without a value deletes the row of its key.
    deleted = _DELETED
    while deleted.lower() in [column.name.lower() for column in source.columns]:
        deleted = f"_{deleted}"
    return {"deleted": deleted, **options}


def read_stream(spark: SparkSession, source: CreateStream, arguments: Mapping[str, Any]) -> Stream:
    """Return a source as a stream, with its watermark."""
    readers: dict[str, Callable[..., Stream]] = {"files": _files, "kafka": _kafka, "delta": _delta}
    arguments = dict(arguments)
    deleted = table_arguments(source, arguments).get("deleted", "")
    if source.using.connector.text == "kafka":
        arguments["deleted"] = deleted
    rows = readers[source.using.connector.text](spark, source, **arguments)
    if source.watermark:
        time = source.watermark
        rows = rows.watermark(time.column, time.delay, per=time.per, idle=time.idle)
    return rows


def read_present(spark: SparkSession, source: CreateStream, arguments: Mapping[str, Any], limit: int) -> DataFrame:
    """Return the first rows that a source has now; with a primary key, the newest version of each of these rows."""
    arguments = dict(arguments)
    table = table_arguments(source, arguments)
    order_by, deleted = table.get("order_by"), table.get("deleted", "")
    options = {name: text for name, text in arguments.get("options", {}).items() if name not in _OF_STREAMS}
    connector, schema = source.using.connector.text, _schema(source.columns)
    if connector == "kafka":
        topics = _topics(arguments.get("topic"), arguments.get("topic_pattern"))
        format, clients = arguments.get("format", "json"), _of_client(options)
        rows = _of_messages(
            kafkasource.read_present(spark, arguments["servers"], topics, clients), source, format, options, deleted
        )
    else:
        format = arguments.get("format", "json") if connector == "files" else "delta"
        rows = _load(spark, format, arguments["path"], schema if connector == "files" else "", options)
    if not source.key:
        return rows.limit(limit)
    # A job reads files in the order of their times.
    arrival = [F.col("_metadata.file_modification_time"), F.col("_metadata.file_path")] if connector == "files" else []
    rows = rows.select(F.struct("*").alias(_ROW), F.struct(F.lit(0), *arrival).alias(_ORDER)).limit(limit)
    number = F.struct(_ORDER, F.monotonically_increasing_id()).alias(_ORDER)
    keys = {f"{_ROW}{at}": F.col(_ROW).getField(name) for at, name in enumerate(source.key)}
    rows = rows.select(_ROW, number, *(column.alias(name) for name, column in keys.items()))
    order = F.col(_ORDER)
    if order_by:
        version, life = F.col(_ROW).getField(order_by), F.lit(0)
        if deleted:
            # What deletes a row and does not say how new it is, is newer than all before.
            ends = F.col(_ROW).getField(deleted) & version.isNull()
            life = F.count_if(ends).over(Window.partitionBy(*keys).orderBy(_ORDER))
        order = F.struct(life, version, _ORDER)
    versions = rows.select(_ROW, order.alias(_ORDER), *keys).groupBy(*keys)
    newest = versions.agg(F.max_by(_ROW, _ORDER).alias(_ROW)).select(f"{_ROW}.*")
    return newest.where(f"NOT coalesce({quoted(deleted)}, false)").drop(deleted) if deleted else newest


def read_table(spark: SparkSession, table: CreateTable, arguments: Mapping[str, Any]) -> DataFrame:
    """Return a table that does not change."""
    connector, options = table.using.connector.text, arguments.get("options", {})
    return _load(spark, connector, arguments["path"], _schema(table.columns), options)


def _load(spark: SparkSession, format: str, path: str, schema: str, options: Mapping[str, str]) -> DataFrame:
    reader = spark.read.format(format).options(**options)
    with unreadable(f"{path}, as {format},"):
        return (reader.schema(schema) if schema else reader).load(absolute(path))


@contextlib.contextmanager
def unreadable(what: str) -> Iterator[None]:
    """Raise ConfigurationError with Spark's reason if it cannot read."""
    try:
        with suppress_error_logs():
            yield
    except (PySparkException, Py4JError) as error:
        reason = reason_of(str(error))
        hint = "load Delta's jar: SET spark.jars.packages = 'io.delta:delta-spark_…'" if _NO_DELTA in reason else ""
        raise ConfigurationError(f"{what} cannot be read: {reason}", hint=hint) from None


def _files(
    spark: SparkSession, source: CreateStream, *, options: Mapping[str, str] | None = None, **arguments: Any
) -> Stream:
    arguments |= options or {}
    return files_source(schema=_schema(source.columns), spark=spark, name=source.name.text, **arguments)


def _kafka(
    spark: SparkSession,
    source: CreateStream,
    *,
    deleted: str = "",
    servers: str,
    topic: str | Sequence[str] | None = None,
    topic_pattern: str | None = None,
    format: Literal["json", "raw"] = "json",
    starting: str = "earliest",
    commit_to: str | None = None,
    max_rows_per_epoch: int | None = None,
    on_error: OnRowError | None = None,
    options: Mapping[str, str] | None = None,
) -> Stream:
    messages = kafkasource.read(
        spark, servers, _topics(topic, topic_pattern), starting=starting, commit_to=commit_to,
        max_rows_per_epoch=max_rows_per_epoch, options=_of_client(options or {}),
    )  # fmt: skip
    rows = _of_messages(messages, source, format, options or {}, deleted, with_corrupt=on_error is not None)
    return stream(rows, source.name.text, on_error=on_error)


def _delta(spark: SparkSession, source: CreateStream, *, path: str, options: Mapping[str, str] | None = None) -> Stream:
    with unreadable(f"the Delta table {path}"):
        rows = spark.readStream.format("delta").options(**(options or {})).load(absolute(path))
    return stream(rows, source.name.text)


def _topics(topic: str | Sequence[str] | None, pattern: str | None) -> str | Sequence[str] | re.Pattern[str]:
    if (topic is None) == (pattern is None):
        raise ConfigurationError(
            "a stream of Kafka has both or none of topic and topic_pattern, expected one",
            hint="write topic 'orders', several as 'orders, refunds', or topic_pattern 'orders-.*'",
        )
    return re.compile(pattern) if pattern is not None else topic or ""


def _of_messages(
    messages: DataFrame,
    source: CreateStream,
    format: str,
    options: Mapping[str, str],
    deleted: str,
    *,
    with_corrupt: bool = False,
) -> DataFrame:
    """Return the columns of messages: those of Kafka, or those that are declared, from JSON.

    With a primary key, they are versions of rows: `deleted` is true for one that deletes the row of its key.
    """
    if format == "raw":
        if source.columns:
            raise ConfigurationError(
                "a stream of Kafka with format 'raw' declares columns, and has Kafka's: key, value, topic, partition, "
                "offset, timestamp, timestampType, headers",
                hint="leave the columns out, and write a view: SELECT CAST(value AS STRING) …",
            )
        return messages.withColumn(deleted, F.col("value").isNull()) if deleted else messages
    schema = _schema(source.columns)
    if with_corrupt:
        schema += f", {_CORRUPT} STRING"
    of_json = {name: text for name, text in options.items() if name in sparkoptions.JSON}
    if deleted:
        return versions(messages, schema, key=source.key, deleted=deleted, options=of_json)
    value = F.from_json(F.col("value").cast("string"), schema, of_json)
    return messages.where("value IS NOT NULL").select(value.alias(_ROW)).select(f"{_ROW}.*")


def _of_client(options: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in options.items() if name not in sparkoptions.JSON}


def _schema(columns: Sequence[Column]) -> str:
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)


_of = partial(Parameters.of, without=("spark", "schema", "name", "source", "deleted", "options"))
_STREAMS = {
    "files": _of(files_source, spark=sparkoptions.FILE_STREAMS),
    "kafka": _of(_kafka, spark=(*sparkoptions.KAFKA_STREAMS, *sparkoptions.JSON), prefixes=("kafka.",)),
    "delta": _of(_delta, spark=sparkoptions.DELTA_STREAMS),
}
_OF_STREAMS = {*sparkoptions.KAFKA_STREAMS, *sparkoptions.DELTA_STREAMS, *sparkoptions.FILE_STREAMS} - {
    *sparkoptions.FILES
}
"""Options that readers of present rows do not have."""
