"""Kafka as a sink: messages from columns, and the checks before a job starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, Self, Unpack

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)  # fmt: skip

from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.core.ids import Epoch
from strandline.core.kafkaclient import (
    TOPIC,
    ClientErrors,
    Cluster,
    check_installed,
    create_client,
    discard,
    get_answer,
    read_setting,
    translate_error,
)
from strandline.ends.arguments import NULL_KEYS, check_column, check_columns, check_delete
from strandline.ends.committables import TaskAttempt
from strandline.ends.kafka.producer import DeliveryReports, flush_rows, produce, producer_settings
from strandline.ends.kafka.target import KafkaTarget, end_connections
from strandline.plan.columns import quoted
from strandline.spark.base.spark_errors import unwrap_error
from strandline.spark.sinks.base import KeyedSink, Sink, SinkContext, Visibility
from strandline.spark.sinks.tasks import write_tasks
from strandline.spark.sinks.transactional import Transactional, TransactionalOptions, check_option_names

_TIMES = (TimestampType(), TimestampNTZType())
_MICROSECONDS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_HEADERS = "array<struct<key:string,value:binary>>"
Columns = str | Sequence[str] | None


@dataclass(frozen=True)
class MessageColumns:
    """The columns of a row that become the parts of a message."""

    topic: str | None
    topic_column: str | None
    key: Columns
    value: Columns
    headers: str | Mapping[str, str] | None
    partition: str | None
    timestamp: str | None
    delete: str | None = None
    """The boolean column of the rows that become messages without a value."""

    def messages(self, df: DataFrame) -> DataFrame:
        """Return the messages, in the columns of `ends.kafka.producer.COLUMNS` that this layout has."""
        columns: dict[str, Column] = {}
        if self.topic_column is not None:
            columns["topic"] = _column(df, "topic_column", self.topic_column, StringType)
        if self.key is not None:
            columns["key"] = _bytes(df, "key", self.key, is_key=True)
        value = self.value if self.value is not None else [name for name in df.columns if name not in self._elsewhere]
        columns["value"] = _bytes(df, "value", value)
        if self.delete is not None:
            is_gone = F.coalesce(_column(df, "delete", self.delete, BooleanType), F.lit(False))
            columns["value"] = F.when(~is_gone, columns["value"])
        if isinstance(self.headers, str):
            columns["headers"] = _column(df, "headers", self.headers, ArrayType).cast(_HEADERS)
        elif self.headers:
            each = [
                F.struct(F.lit(name).alias("key"), _bytes(df, "headers", column).alias("value"))
                for name, column in self.headers.items()
            ]
            columns["headers"] = F.array(*each).cast(_HEADERS)
        if self.partition is not None:
            columns["partition"] = _column(df, "partition", self.partition, (IntegerType, ShortType)).cast("int")
        if self.timestamp is not None:
            at = _column(df, "timestamp", self.timestamp, (TimestampType, LongType))
            is_time = isinstance(df.schema[self.timestamp].dataType, TimestampType)
            columns["timestamp"] = F.unix_millis(at) if is_time else at
        return df.select(*(column.alias(name) for name, column in columns.items()))

    @property
    def _elsewhere(self) -> set[str]:
        """Columns in other parts of a message, which are not in its default value."""
        headers = self.headers.values() if isinstance(self.headers, Mapping) else [self.headers]
        return {name for name in (self.topic_column, self.partition, self.timestamp, self.delete, *headers) if name}

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the message's key."""
        return (self.key,) if isinstance(self.key, str) else tuple(self.key or ())

    def deleting(self, column: str, nullable: Sequence[str], *, refuses: bool) -> MessageColumns:
        """Return the layout of messages that replace each other by key, with a column of deleted rows.

        `refuses`: whether a message that Kafka refuses ends the job.
        """
        if isinstance(self.key, str) and self.key in nullable and refuses:
            raise ConfigurationError(
                f"sinks.kafka(): the key '{self.key}' may be null: a message without a key replaces no other one, and "
                "a compacted topic refuses it",
                hint=f"{NULL_KEYS.format(self.key)}; or set on_error='skip' or 'dead-letter'; or give a key of several "
                "columns, which is JSON",
            )
        for option, name in (("topic_column", self.topic_column), ("partition", self.partition)):
            if name is not None and name not in self.keys:
                raise ConfigurationError(
                    f"sinks.kafka(): {option}='{name}' is not in the key: if a row's {name} changes, its former "
                    "message would stay where it is",
                    hint=f"add it to the key, key={[*self.keys, name]}, by which messages are deleted",
                )
        return replace(self, delete=self.delete or column)


def _column(df: DataFrame, what: str, name: str, kinds: Any = DataType) -> Column:
    if name not in df.columns:
        raise ConfigurationError(
            f"sinks.kafka(): {what} names a column '{name}' that the rows do not have: they have "
            f"{', '.join(df.columns)}"
        )
    kind = df.schema[name].dataType
    if not isinstance(kind, kinds):
        wanted = " or ".join(each.typeName() for each in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise ConfigurationError(
            f"sinks.kafka(): {what} is column '{name}' of type {kind.simpleString()}, expected {wanted}"
        )
    return F.col(quoted(name))


def _bytes(df: DataFrame, what: str, names: str | Sequence[str], *, is_key: bool = False) -> Column:
    """Return text and binary unchanged, another single column as text, or as JSON if nested; several as JSON."""
    if not isinstance(names, str):
        columns = [_column(df, what, name) for name in names]
        has_inner = is_key and any(_has_time(df.schema[name].dataType) for name in names)
        return (F.to_json(F.struct(*columns), _MICROSECONDS) if has_inner else _json(df, columns, names)).cast("binary")
    column, kind = _column(df, what, names), df.schema[names].dataType
    if isinstance(kind, BinaryType):
        return column
    is_nested = isinstance(kind, (StructType, ArrayType, MapType, VariantType))
    json = (
        F.to_json(column, _MICROSECONDS if is_key and _has_time(kind) else None) if is_nested else column.cast("string")
    )
    return json.cast("binary")


def _has_time(kind: DataType) -> bool:
    """Whether a nested type has times."""
    inner = [field.dataType for field in kind.fields] if isinstance(kind, StructType) else []
    inner += [kind.elementType] if isinstance(kind, ArrayType) else []
    inner += [kind.keyType, kind.valueType] if isinstance(kind, MapType) else []
    return any(each in _TIMES or _has_time(each) for each in inner)


def _json(df: DataFrame, columns: Sequence[Column], names: Sequence[str]) -> Column:
    """Return columns as JSON, in which times have milliseconds, or microseconds if they have such: keys must differ."""
    row = F.struct(*columns)
    times = [F.unix_micros(F.col(quoted(n)).cast("timestamp")) for n in names if df.schema[n].dataType in _TIMES]
    if not times:
        return F.to_json(row)
    is_fine = reduce(or_, (time % 1000 != 0 for time in times))
    return F.when(is_fine, F.to_json(row, _MICROSECONDS)).otherwise(F.to_json(row))


class _Topics(KeyedSink):
    """The layout of messages of both kinds of sink, and the checks before a job starts."""

    layout: MessageColumns
    target: KafkaTarget

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of messages' keys, by which messages replace each other in compacted topics."""
        return self.layout.keys

    def deleting(self, column: str, nullable: Sequence[str] = ()) -> tuple[Self, str]:
        """Return a sink with messages without a value for deleted rows, and its boolean column of those."""
        sink = copy(self)
        sink.layout = self.layout.deleting(column, nullable, refuses=getattr(self, "on_error", "fail") == "fail")
        return sink, sink.layout.delete or column

    def try_out(self, empty: DataFrame) -> None:
        """Check the columns, the brokers, the password and the topic."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection
        from confluent_kafka.admin import AdminClient

        self.layout.messages(empty)
        errors, cluster, topic = ClientErrors(), self.target.cluster, self.layout.topic
        label = f"sinks.kafka(topic='{topic}')" if topic else "sinks.kafka()"
        admin = create_client(AdminClient, cluster, cluster.settings(errors))
        try:
            if topic is None:
                admin.list_topics(timeout=cluster.answer_s)
                return
            (request,) = admin.describe_topics(TopicCollection([topic]), request_timeout=cluster.answer_s).values()
            get_answer(request, admin, errors, cluster)
            if (limit := read_setting("max.message.bytes", topic, admin, errors, cluster)) is not None:
                self.target.limit = int(limit)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise ConfigurationError(
                    f"{label}: Kafka at {cluster.servers} has no topic '{topic}'",
                    hint=f"create it: kafka-topics.sh --create --topic {topic} --partitions N",
                ) from None
            cause = translate_error(error, label, cluster, errors)
            if isinstance(cause, ConfigurationError):
                raise cause from None
            raise ConfigurationError(cause.message, hint="check its address, and that it is running") from None
        finally:
            discard(admin)


class KafkaSink(_Topics, Transactional):
    """Write each row to Kafka exactly once. Made by `sinks.kafka`."""

    made_by = "sinks.kafka()"

    def __init__(self, layout: MessageColumns, target: KafkaTarget, **more: Unpack[TransactionalOptions]) -> None:
        super().__init__(target, **more)
        self.layout = layout
        self.target: KafkaTarget = target

    def shape(self, df: DataFrame) -> DataFrame:
        return self.layout.messages(df)

    def close(self) -> None:
        super().close()
        if self._context is not None:
            end_connections(self._writer)


class KafkaSinkAtOnce(_Topics, Sink):
    """Write rows to Kafka as they come, at least once. Made by `sinks.kafka`."""

    def __init__(self, layout: MessageColumns, target: KafkaTarget, name: str | None) -> None:
        super().__init__(name=name, visibility="epoch")
        self.layout = layout
        self.target = target
        self.datasets = target.datasets
        self._label = "sink of Kafka"

    def open(self, context: SinkContext) -> None:
        self._label = f"sink '{context.sink}' of job '{context.job}'"

    def write(self, df: DataFrame, epoch: Epoch) -> None:
        del epoch
        try:
            write_tasks(df, _Produce(self.target, self._label), self.layout.messages)
        except Exception as error:
            cause = unwrap_error(error)
            if isinstance(cause, UnavailableError):
                # The task's process ends with the error: keep the batch size that it has learned.
                self.target.limit = cause.fields.get("batch_bytes", self.target.limit)
            raise


@dataclass(frozen=True)
class _Produce:
    """The task that writes a partition's rows of an epoch, called by `write_tasks`."""

    target: KafkaTarget
    label: str

    def __call__(self, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt) -> None:
        del attempt
        # A reused worker has the producer of an earlier epoch: a new one takes half a second to begin.
        errors, reports, producer = _producers.pop(self._key) if self._key in _producers else self._create()
        try:
            for batch in batches:
                produce(producer, batch, self.target, self.label, reports)
            flush_rows(producer, self.target, self.label, errors, reports)
        except BaseException:
            discard(producer)
            raise
        _producers[self._key] = errors, reports, producer

    @property
    def _key(self) -> tuple[Any, ...]:
        cluster = self.target.cluster
        return cluster.servers, self.target.limit, *sorted(cluster.options.items())

    def _create(self) -> tuple[ClientErrors, DeliveryReports, Any]:
        from confluent_kafka import Producer

        errors, reports = ClientErrors(), DeliveryReports()
        return (
            errors,
            reports,
            create_client(Producer, self.target.cluster, producer_settings(self.target, errors, reports)),
        )


_producers: dict[tuple[Any, ...], tuple[ClientErrors, DeliveryReports, Any]] = {}


def kafka(
    servers: str,
    topic: str | None = None,
    *,
    topic_column: str | None = None,
    key: Columns = None,
    value: Columns = None,
    delete: str | None = None,
    headers: str | Mapping[str, str] | None = None,
    partition: str | None = None,
    timestamp: str | None = None,
    visibility: Visibility = "checkpoint",
    prefix: str = "strandline",
    options: Mapping[str, str] | None = None,
    **more: Unpack[TransactionalOptions],
) -> Sink:
    """Write rows to Kafka, exactly once for readers of `read_committed`.

    Each row is a message in `topic`, or in the topic that its `topic_column` names. `key` and `value` are columns: text
    and binary unchanged, other single ones as text, and several as a JSON object. Without `value`, it has all columns
    that are in no other part. A null value is a tombstone; a row whose boolean column `delete` is true has one.
    `headers` is a column as Spark's source has it, or a column for each name. `partition` and `timestamp` are columns
    that replace Kafka's choice.

    Rows of a key are in one partition, the same as with Java's clients, and stay in order if they come from an operator
    with that key. With `visibility="epoch"` rows are written as they come, at least once, without transactions.

    `options` are settings of librdkafka, such as security.protocol, sasl.username and sasl.password. `prefix` is the
    first part of the names of transactions and groups, and of the topic `strandline-marks` with the records of the
    sinks' progress: one compacted topic for all jobs, created if missing. `more` are the options of
    `sinks.Transactional`: `name`, `staging`, `on_error`, `dead_letters`, `storage_options`. Kafka refuses rows that are
    larger than the topic's max.message.bytes.
    """
    check_installed()
    cluster = Cluster(servers, options)
    if (topic is None) == (topic_column is None):
        raise ConfigurationError(
            "sinks.kafka() has both or none of topic and topic_column, expected one",
            hint="topic='alerts' for all rows, or topic_column='kind' where each row names its own",
        )
    for what, text in (("topic", topic), ("prefix", prefix)):
        if text is not None and not (isinstance(text, str) and TOPIC.fullmatch(text)):
            raise ConfigurationError(
                f"sinks.kafka(): {what} is {text!r:.300}, expected letters, digits, '.', '_' and '-', 249 at most"
            )
    what = "sinks.kafka()"
    for option, column in (("topic_column", topic_column), ("partition", partition), ("timestamp", timestamp)):
        check_column(what, option, column)
    for option, columns in (("key", key), ("value", value)):
        if columns is not None and not check_columns(what, option, columns):
            raise ConfigurationError(
                f"{what}: {option} is {columns!r}, expected names of columns", hint=f"without a {option}, leave it out"
            )
    check_delete(what, check_columns(what, "key", key), delete)
    if isinstance(headers, Mapping):
        for header, column in headers.items():
            check_column(what, f"headers[{header!r}]", column)
    elif headers is not None and not isinstance(headers, str):
        raise ConfigurationError(
            f"{what}: headers is {headers!r:.200}, expected a column, or a dict with a column for each name",
            hint="write it like headers={'kind': 'kind', 'source': 'host'}",
        )
    check_option_names(what, more)
    layout = MessageColumns(topic, topic_column, key, value, headers, partition, timestamp, delete)
    target = KafkaTarget(cluster, topic, prefix)
    if visibility == "epoch":
        if more.get("on_error", "fail") != "fail" or more.get("dead_letters") is not None:
            raise ConfigurationError(
                "sinks.kafka(visibility='epoch') keeps no dead letters: rows do not wait anywhere",
                hint="leave on_error and dead_letters out, or visibility",
            )
        return KafkaSinkAtOnce(layout, target, more.get("name"))
    if visibility != "checkpoint":
        raise ConfigurationError(f"{what}: visibility is {visibility!r:.200}, expected 'checkpoint' or 'epoch'")
    return KafkaSink(layout, target, **more)
