"""Production of rows by Kafka's client: settings, delivery reports, and errors of rows that Kafka refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Protocol

import pyarrow as pa

from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.core.kafkaclient import TOPIC, ClientErrors, Cluster, Stall, translate_error
from strandline.ends.kafka.record import Rows

LIMIT = 1_000_000
"""The largest message that topics accept by default."""
_batch_bytes: dict[str, int] = {}
"""By cluster: the batch size after a topic refused a larger one. Not every user may read the topic's limit."""


class UnfitRowError(Exception):
    """Kafka refuses the row."""


class ProducerTarget(Protocol):
    """The destination of rows."""

    cluster: Cluster
    topic: str | None
    limit: int
    """The size of the largest message."""


class DeliveryReports:
    """The brokers' reports about the rows of a transaction."""

    def __init__(self) -> None:
        self.failures: list[tuple[Any, Any]] = []
        """Errors, each with the message that was not written."""
        self._runs: dict[tuple[str, int], list[list[int]]] = {}
        """By topic and partition, the first and last offset of each contiguous range."""
        self.has_all_offsets = True
        """Whether each report had an offset: reports of some resent messages have none."""
        self.batch_bytes = LIMIT
        """The client's batch size."""
        self.has_times = False
        """Whether rows have timestamps of their own, and not that of this machine's clock."""

    def clear(self) -> None:
        """Forget the reports before the next transaction."""
        self.failures.clear()
        self._runs = {}
        self.has_all_offsets = True
        self.has_times = False

    def copy_rows(self) -> Rows:
        """Return the offsets of the rows that are reported so far."""
        rows: Rows = {}
        for (topic, partition), runs in self._runs.items():
            rows.setdefault(topic, {})[partition] = [(first, last) for first, last in runs]
        return rows

    def add_error(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append((error, message))

    def add(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append((error, message))
            return
        offset, at = message.offset(), (message.topic(), message.partition())
        runs = self._runs.get(at)
        if runs is not None and runs[-1][1] + 1 == offset:
            runs[-1][1] = offset
        elif offset is None:
            self.has_all_offsets = False
        else:
            self._runs.setdefault(at, []).append([offset, offset])


def producer_settings(
    target: ProducerTarget, errors: ClientErrors, reports: DeliveryReports, *, offsets: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the settings of a producer. With `offsets`, the reports have the offset of each row."""
    most = int(target.cluster.options.get("batch.size", LIMIT))
    reports.batch_bytes = min(target.limit, most, _batch_bytes.get(target.cluster.servers, most))
    settings = target.cluster.settings(
        errors,
        enable_idempotence=True, acks="all", partitioner="murmur2_random", linger_ms=20, compression_type="lz4",
        queue_buffering_max_messages=400_000, delivery_report_only_error=not offsets,
        # A topic's limit is for batches. Its rows may be small, but a lane's record, in another topic, is not.
        message_max_bytes=max(target.limit, LIMIT), **more,
    )  # fmt: skip
    options = {**target.cluster.options, "batch.size": reports.batch_bytes}
    return {**settings, **options, "on_delivery": reports.add if offsets else reports.add_error}


COLUMNS = ("topic", "key", "value", "headers", "partition", "timestamp")


def produce(producer: Any, batch: pa.RecordBatch, target: ProducerTarget, label: str, reports: DeliveryReports) -> None:
    """Put rows into the client's queue; the client sends them in the background."""
    columns = {name: _values(batch.column(name), name) for name in COLUMNS if name in batch.schema.names}
    if "topic" not in columns and target.topic is None:
        # A ConfigurationError, since no row is to blame: on_error would drop all of them.
        raise ConfigurationError(
            f"{label}: waiting rows were staged for one topic, and the sink has topic_column= now, but those rows "
            "have no such column",
            hint="start the job with the former topic= until no rows wait for the sink (see `strandline status`)",
        )
    _check(columns)
    reports.has_times |= any(columns.get("timestamp", ()))
    # The client's arguments in its order; two of them are callbacks.
    arguments: list[Iterable[Any]] = [
        columns.get("topic", repeat(target.topic)),
        columns.get("value", repeat(None)),
        columns.get("key", repeat(None)),
        [-1 if each is None else each for each in columns["partition"]] if "partition" in columns else repeat(-1),
        repeat(None, batch.num_rows),
        repeat(None),
        [each or 0 for each in columns["timestamp"]] if "timestamp" in columns else repeat(0),
    ]
    if any(columns.get("headers", ())):
        arguments.append([[(each["key"], each["value"]) for each in row or ()] for row in columns["headers"]])
    send = producer.produce
    for row in zip(*arguments, strict=False):
        try:
            send(*row)
        except BufferError:
            _retry_send(producer, row, target, label)
        except Exception as error:
            raise _row_error(error, label, target, row, producer) from error
    producer.poll(0)


def _check(columns: Mapping[str, list[Any]]) -> None:
    """Refuse rows that Kafka's client would change, or would reject with a plain Python error."""
    for topic in set(columns.get("topic", ())):
        if topic is None:
            raise UnfitRowError("it has no topic: its topic column is null")
        if not TOPIC.fullmatch(topic):
            raise UnfitRowError(f"its topic is {topic!r:.300}, expected letters, digits, '.', '_' and '-', 249 at most")
    if 0 in columns.get("timestamp", ()):
        raise UnfitRowError("its timestamp is 1970-01-01 00:00:00, which Kafka's client reads as no timestamp")
    headers = chain.from_iterable(filter(None, columns.get("headers", ())))
    if any(each is None or each["key"] is None or "\0" in each["key"] for each in headers):
        raise UnfitRowError("a header has no name, or one with a null character")


def _values(column: pa.Array, name: str) -> list[Any]:
    """Return a column's values. Text becomes bytes, since Kafka accepts invalid UTF-8."""
    if name in ("key", "value") and pa.types.is_string(column.type):
        column = column.view(pa.binary())
    values: list[Any] = column.to_pylist()
    return values


def _retry_send(producer: Any, arguments: Sequence[Any], target: ProducerTarget, label: str) -> None:
    """Wait until the client's full queue has room for the row."""
    stall = Stall(len(producer), target.cluster.answer_s)
    while True:
        producer.poll(0.1)
        try:
            producer.produce(*arguments)
            return
        except BufferError:
            if stall.is_reached(len(producer)):
                raise UnavailableError(f"{label}: Kafka at {target.cluster.servers} takes no rows") from None


def _row_error(
    error: Exception, label: str, target: ProducerTarget, arguments: Sequence[Any], producer: Any
) -> Exception:
    from confluent_kafka import KafkaError, KafkaException

    code = error.args[0].code() if isinstance(error, KafkaException) else None
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        size = len(arguments[1] or b"") + len(arguments[2] or b"")
        return _too_large(arguments[0], f"a row of {size:,} bytes", target)
    if code == KafkaError._UNKNOWN_PARTITION:
        return _missing_partition(arguments[0], arguments[3], label, target, producer)
    return error if code is None else translate_error(error, label, target.cluster)


def _missing_partition(topic: str, partition: int, label: str, target: ProducerTarget, producer: Any) -> Exception:
    # The client's metadata may be older than the partition.
    known = producer.list_topics(topic, target.cluster.answer_s).topics[topic].partitions
    if known and partition not in known:
        return UnfitRowError(f"topic '{topic}' has no partition {partition}: it has {len(known)}")
    return UnavailableError(f"{label}: Kafka at {target.cluster.servers} has just added partition {partition}")


def _too_large(topic: str | None, what: str, target: ProducerTarget) -> UnfitRowError:
    where = f"topic '{topic}'" if topic else "its topic"
    return UnfitRowError(f"{what} is larger than {where} takes: the limit, max.message.bytes, is {target.limit:,}")


def flush_rows(
    producer: Any, target: ProducerTarget, label: str, errors: ClientErrors, reports: DeliveryReports
) -> None:
    """Wait until the brokers have all rows, for as long as there is progress."""
    from confluent_kafka import KafkaError, KafkaException

    stall = Stall(len(producer), target.cluster.answer_s)
    while left := producer.flush(0.5):
        if reports.failures or stall.is_reached(left):
            break
    if reports.failures:
        # If a row is refused, all rows of its batch fail, and those that would fit have this error.
        others = KafkaError._INVALID_DIFFERENT_RECORD
        error, message = next((each for each in reports.failures if each[0].code() != others), reports.failures[0])
        topic, partition = message.topic(), message.partition()
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            # A batch fails as a whole; a row that fails alone is too large itself. Reports have no headers to count.
            largest = max(1, *(len(each.value() or b"") + len(each.key() or b"") for _, each in reports.failures))
            if len(reports.failures) > 1 and largest < reports.batch_bytes:
                # Perhaps only the batch is too large.
                _batch_bytes[target.cluster.servers] = less = max(largest, reports.batch_bytes // 8)
                what = f"{label}: topic '{topic}' does not take {reports.batch_bytes:,} bytes at once"
                raise UnavailableError(what, batch_bytes=less)
            raise _too_large(topic, "a row", target)
        if error.code() == KafkaError.INVALID_RECORD:
            # Several refused timestamps of a batch have this error, too; one alone has the next one.
            raise UnfitRowError(
                f"topic '{topic}' refuses the row: a compacted topic takes no row without a key, and no topic takes a "
                "timestamp that its message.timestamp.after.max.ms forbids, as of a clock that is ahead"
            )
        if reports.has_times and error.code() == KafkaError.INVALID_TIMESTAMP:
            raise UnfitRowError(f"topic '{topic}' refuses the timestamp: see its message.timestamp.after.max.ms")
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            raise _missing_partition(topic, partition, label, target, producer)
        raise translate_error(error, label, target.cluster, errors)
    if left:
        late = KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left} rows could not be sent"))
        raise translate_error(late, label, target.cluster, errors)
    if not reports.has_all_offsets:
        raise UnavailableError(f"{label}: Kafka at {target.cluster.servers} does not report the offsets of rows")
