"""What Kafka has on record of a sink: which of its runs writes, in which lanes, and how far each of these came.

A lane's record is the metadata of an offset that a group of its own has committed, in the transaction of the rows.
Kafka forgets groups that were silent for a week. So it is also a message of a compacted topic, in the same transaction,
which is read where the group has nothing. There, too, are the claims of runs, and which lanes there ever were: a run
that begins must fence them all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from strandline.core.decoding import decodable
from strandline.core.errors import ConfigurationError, CorruptionError, UnavailableError
from strandline.spark.sinks.kafkaclient import Cluster, Said, answer, in_words, made
from strandline.spark.sinks.target import Writer

T = TypeVar("T")

_LONGEST_S = 90.0
"""A transaction of another job that died keeps readers from going on, until Kafka has ended it: a minute, as a rule."""
_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.2"}


@decodable
class LaneRecord(msgspec.Struct, frozen=True, array_like=True):
    """How far a lane came, and whose it is."""

    generation: int
    mark: str | None

    @property
    def text(self) -> str:
        """As it is in Kafka."""
        return msgspec.json.encode(self).decode()


Ends = dict[str, dict[int, int]]
"""By topic and partition: where the last row of a transaction is."""


@decodable
class Told(LaneRecord, frozen=True, array_like=True):
    """A lane's record as a message: with where the rows are whose transaction it ends."""

    ends: Ends | None = None
    """Unknown of what older versions have written."""


@dataclass
class Found:
    """What the topic has of one sink."""

    claims: set[int] = field(default_factory=set)
    lanes: set[int] = field(default_factory=set)
    told: dict[int, tuple[int, Told]] = field(default_factory=dict)
    """Of lanes, the newest message and where it is."""


class Record:
    """What is on record of one sink."""

    def __init__(self, cluster: Cluster, prefix: str, writer: Writer) -> None:
        self.topic = f"{prefix}-marks"
        self.cluster = cluster
        self.writer = writer
        self._prefix = f"{prefix}-{writer.sink}"

    def name_of(self, lane: int) -> str:
        """Return a lane's name: of its transactions, and of the group with its record."""
        return f"{self._prefix}-{lane}"

    def consumer(self, lane: int, said: Said, *, committed: bool = True) -> Any:
        """Return a client that reads a lane's record, and in whose name it is written.

        Unless what is `committed` is asked for, it says what was before a transaction that has not ended.
        """
        from confluent_kafka import Consumer

        return made(
            Consumer,
            self.cluster,
            self.cluster.settings(
                said, group_id=self.name_of(lane), enable_auto_commit=False,
                isolation_level="read_committed" if committed else "read_uncommitted",
                # A commit that is decided is carried out some moments later: it is asked again until then.
                retry_backoff_ms=10,
            ),
        )  # fmt: skip

    def of_lane(self, consumer: Any) -> LaneRecord | None:
        """Return what the lane's group has, if it has not been forgotten."""
        from confluent_kafka import TopicPartition

        (found,) = self.cluster.ask(consumer.committed, [TopicPartition(self.topic, 0)])
        if found.error is not None:
            raise in_words(found.error, self.writer.label, self.cluster)
        return self._decoded(found.metadata, LaneRecord) if found.offset >= 0 and found.metadata else None

    def put_lane(self, producer: Any, consumer: Any, lane: int, record: LaneRecord, ends: Ends | None) -> None:
        """Put a lane's record into its open transaction, all of whose rows are with the brokers."""
        from confluent_kafka import TopicPartition

        told = Told(record.generation, record.mark, ends)
        producer.produce(self.topic, told.text, self._key("mark", lane), partition=0)
        # Where the group has a record that hangs, its message is there, too: `kafkahanging.py` reads it.
        if producer.flush(self.cluster.answer_s):
            raise UnavailableError(f"{self.writer.label}: Kafka at {self.cluster.servers} takes no rows")
        at = TopicPartition(self.topic, 0, 0, record.text)
        self.cluster.ask(producer.send_offsets_to_transaction, [at], consumer.consumer_group_metadata())

    def note_lane(self, lane: int) -> None:
        """Have it on record that there is such a lane, before anything is written there."""
        self._tell({self._key("lane", lane): b"{}"})

    def note_claim(self, generation: int, older: set[int]) -> None:
        """Have it on record that a run has begun; earlier ones need not be known any more."""
        about = {"job": self.writer.label}
        old = {self._key("claim", each): None for each in older}
        self._tell({self._key("claim", generation): msgspec.json.encode(about), **old})

    def _key(self, what: str, number: int) -> str:
        return f"{self._prefix} {what} {number}"

    def _decoded(self, text: str | bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                f"{self.writer.label}: Kafka has a record of how far it came that is not the sink's: {text!r:.200}",
                hint=f"something else has committed offsets in groups that begin with '{self._prefix}'",
            ) from error

    def _tell(self, messages: Mapping[str, bytes | None]) -> None:
        """Write messages that stand for themselves: it does no harm if one comes twice."""
        from confluent_kafka import KafkaException, Producer

        said, failed = Said(), []
        producer = made(
            Producer,
            self.cluster,
            self.cluster.settings(said, acks="all", linger_ms=0, message_timeout_ms=int(self.cluster.answer_s * 1000)),
        )

        def done(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        try:
            for key, value in messages.items():
                producer.produce(self.topic, value, key, partition=0, on_delivery=done)
            left = producer.flush(self.cluster.answer_s)
        except KafkaException as error:
            raise in_words(error, self.writer.label, self.cluster, said) from error
        if failed:
            raise in_words(failed[0], self.writer.label, self.cluster, said)
        if left:
            raise UnavailableError(f"{self.writer.label}: Kafka at {self.cluster.servers} does not answer")

    def make_topic(self) -> None:
        """Create the topic unless it is there."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection
        from confluent_kafka.admin import AdminClient, NewTopic

        said = Said()
        admin = made(AdminClient, self.cluster, self.cluster.settings(said))
        try:
            (found,) = admin.describe_topics(
                TopicCollection([self.topic]), request_timeout=self.cluster.answer_s
            ).values()
            try:
                answer(found, admin, said, self.cluster)
                return
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            (creating,) = admin.create_topics(
                [NewTopic(self.topic, 1, config=_SETTINGS)], request_timeout=self.cluster.answer_s
            ).values()
            answer(creating, admin, said, self.cluster)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            why = in_words(error, self.writer.label, self.cluster, said)
            if not isinstance(why, ConfigurationError):
                raise why from error
            raise ConfigurationError(
                f"{why.message}; it needs a topic '{self.topic}' of its own, with one partition",
                hint=f"create it: kafka-topics.sh --create --topic {self.topic} --partitions 1 --config "
                "cleanup.policy=compact; or allow the sink's user to",
            ) from error
        self._await_topic(admin)

    def _await_topic(self, admin: Any) -> None:
        """Brokers learn of a new topic one after the other."""
        until = time.monotonic() + self.cluster.answer_s
        while time.monotonic() < until:
            metadata = admin.list_topics(self.topic, self.cluster.answer_s).topics[self.topic]
            if metadata.error is None and metadata.partitions and metadata.partitions[0].leader >= 0:
                return
            time.sleep(0.05)

    def read(self, *, committed: bool) -> Found:
        """Return what the topic has of the sink, all or what is `committed`: that may have to be waited for."""
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        said, found = Said(), Found()
        level = "read_committed" if committed else "read_uncommitted"
        consumer = made(
            Consumer, self.cluster,
            self.cluster.settings(
                said, group_id=self._prefix, isolation_level=level, enable_auto_commit=False,
                enable_partition_eof=True, fetch_wait_max_ms=50, auto_offset_reset="earliest",
            )
        )  # fmt: skip
        whole = TopicPartition(self.topic, 0, 0)
        until = time.monotonic() + (_LONGEST_S if committed else self.cluster.answer_s)
        try:
            end = self._end(said, until)
            consumer.assign([whole])
            while end > 0:
                message = consumer.poll(1.0)
                if time.monotonic() > until:
                    raise UnavailableError(
                        f"{self.writer.label}: topic '{self.topic}' of Kafka at {self.cluster.servers} could not be "
                        "read to its end: another job's transaction is open there, or no broker answers"
                    )
                if message is None:
                    continue
                if message.error() is None:
                    self._note(found, message)
                elif message.error().code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(message.error())
                if message.offset() >= (end if message.error() else end - 1):
                    break
        except KafkaException as error:
            raise in_words(error, self.writer.label, self.cluster, said) from error
        finally:
            consumer.close()
        return found

    def _end(self, said: Said, until: float) -> int:
        """Return where the topic ends: behind what no transaction has committed yet, too."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = made(
            Consumer,
            self.cluster,
            self.cluster.settings(said, group_id=self._prefix, isolation_level="read_uncommitted"),
        )
        try:
            while True:
                try:
                    ends: tuple[int, int] = consumer.get_watermark_offsets(
                        TopicPartition(self.topic, 0), self.cluster.answer_s
                    )
                    return ends[1]
                except KafkaException as error:
                    # A topic that is new has no leader for a moment, though it is said to have one.
                    why = in_words(error, self.writer.label, self.cluster, said)
                    if not isinstance(why, UnavailableError) or time.monotonic() > until:
                        raise
                time.sleep(0.05)
        finally:
            consumer.close()

    def _note(self, found: Found, message: Any) -> None:
        key = (message.key() or b"").decode(errors="replace")
        sink, _, rest = key.partition(" ")
        if sink != self._prefix:
            return
        what, _, number = rest.partition(" ")
        if what == "claim":
            (found.claims.discard if message.value() is None else found.claims.add)(int(number))
        elif what == "lane":
            found.lanes.add(int(number))
        elif what == "mark":
            found.told[int(number)] = message.offset(), self._decoded(message.value(), Told)
