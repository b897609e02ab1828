"""The record of a sink in Kafka: the run that writes, the lanes, and the mark that each lane has reached.

A lane's record is the metadata of a committed offset of the lane's consumer group, in the transaction of the rows.
Kafka deletes the offsets of groups that were inactive for a week. So the record is also a message of a compacted topic,
in the same transaction. The sink reads that message if the group has no offset. The topic also holds the claims of runs
and the list of all lanes, since a new run must fence each of them. A record has the offsets of its rows: `recovery.py`
uses them.

The topic has two partitions. All messages are in partition 0. The group's offset of partition 1 is committed without a
transaction, for the case that a transaction hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from strandline.core.decoding import decodable
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.core.kafkaclient import ClientErrors, Cluster, call_within, create_client, discard, translate_error
from strandline.ends.begins import Begin
from strandline.ends.target import Writer

T = TypeVar("T")

_LONGEST_S = 90.0
"""The open transaction of a dead job blocks readers until Kafka aborts it, usually after a minute."""
_LONGEST_TEXT = 3000
"""Of a record in a group. By default, brokers accept 4,096 bytes of metadata."""

HANGING_HINT = "if it stays so, kafka-transactions.sh find-hanging shows transactions that no producer will end"

Rows = dict[str, dict[int, list[tuple[int, int]]]]
"""The offsets of a transaction's rows, by topic and partition: the first and last of each contiguous range."""
Starts = dict[str, dict[int, int]]
"""The offset of a transaction's first message, by topic and partition."""


@decodable
class LaneRecord(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a lane, and the generation that writes it."""

    generation: int
    mark: str | None
    step: int = 0
    """The number of transactions since the mark that only resolved hanging ones."""
    is_incomplete: bool = False
    """Whether some rows of the mark are missing: the message of the same mark and step lists them."""
    starts: Starts | None = msgspec.field(default_factory=dict)
    """Of its transaction; None if it is too long for a group's metadata: the message has the offsets."""

    @property
    def text(self) -> str:
        """The record as JSON, as Kafka stores it."""
        return msgspec.json.encode(self).decode()

    @property
    def order(self) -> tuple[str, int]:
        """The sort key of a lane's records."""
        return self.mark or "", self.step


@decodable
class LaneMessage(msgspec.Struct, frozen=True, array_like=True):
    """A lane's record as a message."""

    generation: int
    mark: str | None
    step: int = 0
    is_incomplete: bool = False
    rows: Rows = msgspec.field(default_factory=dict)
    """Of its transaction."""
    missing: Rows = msgspec.field(default_factory=dict)
    """The rows at these offsets were not committed and have to be written again."""

    def record(self, starts: Starts | None = None) -> LaneRecord:
        """Return the record for the lane's group."""
        return LaneRecord(self.generation, self.mark, self.step, self.is_incomplete, starts)


def starts_of(rows: Rows) -> Starts:
    """Return the first offset in each partition."""
    return {topic: {number: runs[0][0] for number, runs in partitions.items()} for topic, partitions in rows.items()}


@decodable
class _Claim(msgspec.Struct, frozen=True):
    """The message of a claim."""

    writer: str
    begins: list[Begin] = []
    """See `ends/begins.py`."""


@dataclass
class TopicRecords:
    """The messages of one sink in the topic."""

    claims: dict[int, list[Begin]] = field(default_factory=dict)
    """The begins of the sink's runs, by the generation that has claimed it."""
    lanes: set[int] = field(default_factory=set)
    messages: dict[int, list[tuple[int, LaneMessage]]] = field(default_factory=dict)
    """By lane: the messages with their offsets, in the order of the offsets."""

    def newest(self, lane: int) -> tuple[int, LaneMessage] | None:
        """Return the newest message of a lane and its offset."""
        return self.messages[lane][-1] if lane in self.messages else None


class SinkRecord:
    """The record of one sink."""

    def __init__(self, cluster: Cluster, prefix: str, writer: Writer) -> None:
        self.topic = f"{prefix}-marks"
        self.cluster = cluster
        self.writer = writer
        self._prefix = f"{prefix}-{writer.sink}"

    def name_of(self, lane: int) -> str:
        """Return a lane's name: its transactional id, and the id of the group with its record."""
        return f"{self._prefix}-{lane}"

    def consumer(self, lane: int, errors: ClientErrors, *, committed: bool = True) -> Any:
        """Return a consumer that reads a lane's record, in the group that the record belongs to.

        Without `committed`, it reads the record from before an open transaction.
        """
        from confluent_kafka import Consumer

        return create_client(
            Consumer,
            self.cluster,
            self.cluster.settings(
                errors, group_id=self.name_of(lane), enable_auto_commit=False,
                isolation_level="read_committed" if committed else "read_uncommitted",
                # The request is repeated until the brokers have applied the last commit.
                retry_backoff_ms=2,
            ),
        )  # fmt: skip

    def read_lane(self, consumer: Any, timeout_s: float | None = None) -> LaneRecord | None:
        """Return the record in the lane's group; None if there is none, or Kafka has deleted it.

        While a transaction that changes it is open, Kafka does not answer.
        """
        from confluent_kafka import TopicPartition

        partitions = [TopicPartition(self.topic, partition) for partition in (0, 1)]
        records = []
        for each in self.cluster.ask(consumer.committed, partitions, timeout_s=timeout_s):
            if each.error is not None:
                raise translate_error(each.error, self.writer.label, self.cluster)
            if each.offset >= 0 and each.metadata:
                records.append(self._decode(each.metadata, LaneRecord))
        if not records:
            return None
        newest = max(records, key=lambda record: record.order)
        return msgspec.structs.replace(newest, generation=max(record.generation for record in records))

    def put_lane(
        self, producer: Any, consumer: Any, lane: int, message: LaneMessage, offsets: Callable[[], Rows]
    ) -> LaneRecord:
        """Add a lane's record to its open transaction, whose rows the brokers have acknowledged; return the record.

        `offsets` returns those of the transaction's messages.
        """
        from confluent_kafka import TopicPartition

        producer.produce(self.topic, msgspec.json.encode(message), self._key("mark", lane), partition=0)
        # The message goes first: if the group's record hangs, `recovery.py` reads the message.
        if producer.flush(self.cluster.answer_s):
            raise UnavailableError(f"{self.writer.label}: Kafka at {self.cluster.servers} takes no rows")
        record = message.record(starts_of(offsets()))
        if len(record.text) > _LONGEST_TEXT:
            record = message.record()
        offset = TopicPartition(self.topic, 0, 0, record.text)
        self.cluster.ask(producer.send_offsets_to_transaction, [offset], consumer.consumer_group_metadata())
        return record

    def put_commit(self, consumer: Any, message: LaneMessage) -> None:
        """Record, outside of the lane's transaction, that it is committed."""
        from confluent_kafka import TopicPartition

        offset = TopicPartition(self.topic, 1, 0, message.record().text)

        def commit() -> None:
            consumer.commit(offsets=[offset], asynchronous=False)

        call_within(self.cluster.answer_s, commit)

    def message_of(self, lane: int, record: LaneRecord) -> tuple[int, LaneMessage] | None:
        """Return the message of a lane's record and its offset."""
        messages = self.read(committed=False).messages.get(lane, [])
        return next((each for each in reversed(messages) if each[1].record().order == record.order), None)

    def register_lane(self, lane: int) -> None:
        """Record that the lane exists, before its first transaction."""
        self._send({self._key("lane", lane): b"{}"})

    def register_claim(self, generation: int, begins: list[Begin], older: set[int]) -> None:
        """Record that a run has begun, and delete the claims of older runs."""
        claim = _Claim(self.writer.owner, begins)
        old = {self._key("claim", each): None for each in older}
        self._send({self._key("claim", generation): msgspec.json.encode(claim), **old})

    def _key(self, kind: str, number: int) -> str:
        return f"{self._prefix} {kind} {number}"

    def _decode(self, text: str | bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                f"{self.writer.label}: Kafka has a record of its progress that the sink has not written: {text!r:.200}",
                hint=f"another program has committed offsets in groups whose names begin with '{self._prefix}'",
            ) from error

    def _send(self, messages: Mapping[str, bytes | None]) -> None:
        """Write messages without a transaction: duplicates are harmless."""
        from confluent_kafka import KafkaException, Producer

        errors, failures = ClientErrors(), []
        producer = create_client(
            Producer,
            self.cluster,
            self.cluster.settings(
                errors, acks="all", linger_ms=0, message_timeout_ms=int(1000 * self.cluster.answer_s)
            ),
        )

        def on_delivery(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        try:
            for key, value in messages.items():
                producer.produce(self.topic, value, key, partition=0, on_delivery=on_delivery)
            left = producer.flush(self.cluster.answer_s)
        except KafkaException as error:
            raise translate_error(error, self.writer.label, self.cluster, errors) from error
        finally:
            discard(producer)
        if failures:
            raise translate_error(failures[0], self.writer.label, self.cluster, errors)
        if left:
            raise UnavailableError(f"{self.writer.label}: Kafka at {self.cluster.servers} does not answer")

    def read(self, *, committed: bool) -> TopicRecords:
        """Return the sink's messages in the topic, all or the `committed` ones, which open transactions may delay."""
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        errors, records = ClientErrors(), TopicRecords()
        level = "read_committed" if committed else "read_uncommitted"
        consumer = create_client(
            Consumer, self.cluster,
            self.cluster.settings(
                errors, group_id=self._prefix, isolation_level=level, enable_auto_commit=False,
                enable_partition_eof=True, fetch_wait_max_ms=50, auto_offset_reset="earliest",
            )
        )  # fmt: skip
        whole = TopicPartition(self.topic, 0, 0)
        patience_s = _LONGEST_S if committed else self.cluster.answer_s
        until = time.monotonic() + patience_s
        try:
            end = self._end(errors, until)
            call_within(self.cluster.answer_s, consumer.assign, [whole])
            while end > 0:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    # The topic may be long: with default settings, Kafka compacts it once a week.
                    until = time.monotonic() + patience_s
                elif time.monotonic() > until:
                    raise UnavailableError(
                        f"{self.writer.label}: topic '{self.topic}' of Kafka at {self.cluster.servers} could not be "
                        "read to its end: another job's transaction is open there, or no broker answers",
                        hint=HANGING_HINT,
                    )
                if message is None:
                    continue
                if message.error() is None:
                    self._add(records, message)
                elif message.error().code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(message.error())
                if message.offset() >= (end if message.error() else end - 1):
                    break
        except KafkaException as error:
            raise translate_error(error, self.writer.label, self.cluster, errors) from error
        finally:
            discard(consumer)
        return records

    def _end(self, errors: ClientErrors, until: float) -> int:
        """Return the end offset of the topic, with uncommitted messages."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = create_client(
            Consumer,
            self.cluster,
            self.cluster.settings(errors, group_id=self._prefix, isolation_level="read_uncommitted"),
        )
        try:
            while True:
                try:
                    offsets: tuple[int, int] = consumer.get_watermark_offsets(
                        TopicPartition(self.topic, 0), self.cluster.answer_s
                    )
                    return offsets[1]
                except KafkaException as error:
                    # A new topic has no leader for a moment, even if the metadata names one.
                    cause = translate_error(error, self.writer.label, self.cluster, errors)
                    if not isinstance(cause, UnavailableError) or time.monotonic() > until:
                        raise
                time.sleep(0.05)
        finally:
            discard(consumer)

    def _add(self, records: TopicRecords, message: Any) -> None:
        key = (message.key() or b"").decode(errors="replace")
        sink, _, rest = key.partition(" ")
        if sink != self._prefix:
            return
        kind, _, number = rest.partition(" ")
        if kind == "claim":
            if message.value() is None:
                records.claims.pop(int(number), None)
                return
            claim = self._decode(message.value(), _Claim)
            self.writer.check_owner(claim.writer, f"Kafka at {self.cluster.servers}")
            records.claims[int(number)] = claim.begins
        elif kind == "lane":
            records.lanes.add(int(number))
        elif kind == "mark":
            records.messages.setdefault(int(number), []).append(
                (message.offset(), self._decode(message.value(), LaneMessage))
            )
