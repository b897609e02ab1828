"""Rows on their way to Kafka: handed to its client, waited for, and refused in words."""

from __future__ import annotations

import re
from typing import Any, Protocol

import pyarrow as pa

from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.ends.kafka.client import ClientErrors, Cluster, Stall, in_words
from strandline.ends.kafka.record import Rows

LIMIT = 1_000_000
"""As large as a message may be, unless the topic says otherwise."""
_at_once: dict[str, int] = {}
"""By cluster: how much is sent to a partition at once, since one took no more. Not all users see its limit."""
TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


class UnfitRowError(Exception):
    """Kafka takes no such row."""


class RowsTo(Protocol):
    """Where rows go."""

    cluster: Cluster
    topic: str | None
    limit: int
    """How large a message may be."""


class Sent:
    """What brokers say of the rows that a client has sent them."""

    def __init__(self) -> None:
        self.failed: list[tuple[Any, Any]] = []
        """Errors, each with the message that was not written."""
        self.rows: Rows = {}
        self.is_known = True
        """Whether it is known of all of them where they are: not of some that were sent again."""
        self.at_once = LIMIT
        """How much the client sends at once."""
        self.has_times = False
        """Whether rows have timestamps of their own, and not that of this machine's clock."""

    def clear(self) -> None:
        """Begin anew: rows of another transaction follow."""
        self.failed.clear()
        self.rows = {}
        self.is_known = True
        self.has_times = False

    def copied(self) -> Rows:
        """Return where rows are, as far as is known now."""
        return {topic: {number: list(runs) for number, runs in found.items()} for topic, found in self.rows.items()}

    def hear_error(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append((error, message))

    def hear(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append((error, message))
            return
        offset = message.offset()
        if offset is None:
            self.is_known = False
            return
        ranges = self.rows.setdefault(message.topic(), {}).setdefault(message.partition(), [])
        if ranges and ranges[-1][1] + 1 == offset:
            ranges[-1] = ranges[-1][0], offset
        else:
            ranges.append((offset, offset))


def producer_settings(
    target: RowsTo, said: ClientErrors, sent: Sent, *, places: bool = False, **more: Any
) -> dict[str, Any]:
    """Return the settings of a client that writes rows; if asked for, it is `sent` the places of all of them."""
    most = int(target.cluster.options.get("batch.size", LIMIT))
    sent.at_once = min(target.limit, most, _at_once.get(target.cluster.servers, most))
    settings = target.cluster.settings(
        said,
        enable_idempotence=True, acks="all", partitioner="murmur2_random", linger_ms=20, compression_type="lz4",
        queue_buffering_max_messages=400_000, delivery_report_only_error=not places,
        # A topic's limit is for what is sent at once. Its rows may be small: a lane's record, of another topic, is not.
        message_max_bytes=max(target.limit, LIMIT), **more,
    )  # fmt: skip
    options = {**target.cluster.options, "batch.size": sent.at_once}
    return {**settings, **options, "on_delivery": sent.hear if places else sent.hear_error}


COLUMNS = ("topic", "key", "value", "headers", "partition", "timestamp")


def produce(producer: Any, batch: pa.RecordBatch, target: RowsTo, label: str, sent: Sent) -> None:
    """Hand rows to the client, which sends them meanwhile."""
    names = batch.schema.names
    columns = [_values(batch.column(name), name) if name in names else None for name in COLUMNS]
    nothing = [None] * batch.num_rows
    sent.has_times |= any(columns[-1] or ())
    if columns[0] is None and target.topic is None:
        # Not a row's fault: with on_error, they would be left out.
        raise ConfigurationError(
            f"{label}: rows wait that were staged for one topic, and the sink has topic_column= now, which says of "
            "none of them where it goes",
            hint="start the job with the former topic= until nothing waits for the sink (`strandline status` says so)",
        )
    topics = columns[0] or [target.topic] * batch.num_rows
    rest = (column if column is not None else nothing for column in columns[1:])
    send = producer.produce
    for topic, key, value, headers, partition, timestamp in zip(topics, *rest, strict=True):
        _check(topic, headers, timestamp)
        given: list[Any] = [topic, value, key, -1 if partition is None else partition, None, None, timestamp or 0]
        if headers:
            given.append([(each["key"], each["value"]) for each in headers])
        try:
            send(*given)
        except BufferError:
            _send_when_there_is_room(producer, given, target, label)
        except Exception as error:
            raise _refused(error, label, target, given, producer) from error
    producer.poll(0)


def _check(topic: str | None, headers: list[dict[str, Any]] | None, timestamp: int | None) -> None:
    """Refuse a row that Kafka's client would change, or raise an error of Python's for."""
    if topic is None:
        raise UnfitRowError("it has no topic: its topic column is null")
    if not TOPIC.fullmatch(topic):
        raise UnfitRowError(f"its topic is {topic!r:.300}, expected letters, digits, '.', '_' and '-', 249 at most")
    if timestamp == 0:
        raise UnfitRowError("its timestamp is 1970-01-01 00:00:00, which Kafka's client takes for none")
    if headers and any(each is None or each["key"] is None or "\0" in each["key"] for each in headers):
        raise UnfitRowError("a header has no name, or one with a null character")


def _values(column: pa.Array, name: str) -> list[Any]:
    """Return a column's values, of texts the bytes: Kafka takes any, UTF-8 or not."""
    if name in ("key", "value") and pa.types.is_string(column.type):
        column = column.view(pa.binary())
    found: list[Any] = column.to_pylist()
    return found


def _send_when_there_is_room(producer: Any, given: list[Any], target: RowsTo, label: str) -> None:
    """The client holds as much as it may: some must be sent first."""
    stall = Stall(len(producer), target.cluster.answer_s)
    while True:
        producer.poll(0.1)
        try:
            producer.produce(*given)
            return
        except BufferError:
            if stall.is_seen(len(producer)):
                raise UnavailableError(f"{label}: Kafka at {target.cluster.servers} takes no rows") from None


def _refused(error: Exception, label: str, target: RowsTo, given: list[Any], producer: Any) -> Exception:
    from confluent_kafka import KafkaError, KafkaException

    code = error.args[0].code() if isinstance(error, KafkaException) else None
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return _too_large(given[0], f"a row of {len(given[1] or b'') + len(given[2] or b''):,} bytes", target)
    if code == KafkaError._UNKNOWN_PARTITION:
        return _not_there(given[0], given[3], label, target, producer)
    return error if code is None else in_words(error, label, target.cluster)


def _not_there(topic: str, partition: int, label: str, target: RowsTo, producer: Any) -> Exception:
    # The client may not know yet of partitions that were added.
    known = producer.list_topics(topic, target.cluster.answer_s).topics[topic].partitions
    if known and partition not in known:
        return UnfitRowError(f"topic '{topic}' has no partition {partition}: it has {len(known)}")
    return UnavailableError(f"{label}: Kafka at {target.cluster.servers} has just added partition {partition}")


def _too_large(topic: str | None, what: str, target: RowsTo) -> UnfitRowError:
    where = f"topic '{topic}'" if topic else "its topic"
    return UnfitRowError(f"{what} is larger than {where} takes: the limit, max.message.bytes, is {target.limit:,}")


def drain(producer: Any, target: RowsTo, label: str, said: ClientErrors, sent: Sent) -> None:
    """Wait until all rows are with the brokers, for as long as any arrive."""
    from confluent_kafka import KafkaError, KafkaException

    stall = Stall(len(producer), target.cluster.answer_s)
    while left := producer.flush(0.5):
        if sent.failed or stall.is_seen(left):
            break
    if sent.failed:
        # Where one row is refused, all that were sent with it fail, and the client says so of those that would fit.
        others = KafkaError._INVALID_DIFFERENT_RECORD
        error, message = next((each for each in sent.failed if each[0].code() != others), sent.failed[0])
        topic, partition = message.topic(), message.partition()
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            # Headers are not told of. What was sent together has failed together: one alone is too large itself.
            largest = max(1, *(len(each.value() or b"") + len(each.key() or b"") for _, each in sent.failed))
            if len(sent.failed) > 1 and largest < sent.at_once:
                # No row need be too large: they were sent at once.
                _at_once[target.cluster.servers] = less = max(largest, sent.at_once // 8)
                what = f"{label}: topic '{topic}' does not take {sent.at_once:,} bytes at once"
                raise UnavailableError(what, at_once=less)
            raise _too_large(topic, "a row", target)
        if error.code() == KafkaError.INVALID_RECORD:
            # Also of several timestamps; of one alone it has the error that follows.
            raise UnfitRowError(
                f"topic '{topic}' refuses it: a compacted topic takes no row without a key, and none a timestamp that "
                "message.timestamp.after.max.ms forbids there, as of a clock that is ahead"
            )
        if sent.has_times and error.code() == KafkaError.INVALID_TIMESTAMP:
            raise UnfitRowError(f"topic '{topic}' refuses its timestamp: see message.timestamp.after.max.ms there")
        if error.code() == KafkaError._UNKNOWN_PARTITION:
            raise _not_there(topic, partition, label, target, producer)
        raise in_words(error, label, target.cluster, said)
    if left:
        late = KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left} rows could not be sent"))
        raise in_words(late, label, target.cluster, said)
    if not sent.is_known:
        raise UnavailableError(f"{label}: Kafka at {target.cluster.servers} does not say where rows are")
