"""What Kafka has on record of a sink: which of its runs writes, in which lanes, and how far each of these came.

A lane's record is the metadata of an offset that a group of its own has committed, in the transaction of the rows.
Kafka forgets groups that were silent for a week. So it is also a message of a compacted topic, in the same transaction,
which is read where the group has nothing. There, too, are the claims of runs, and which lanes there ever were: a run
that begins must fence them all. The record says where the rows are, for what `recovery.py` does.

The topic has two partitions. All messages are in the first; that of a group's offsets which belongs to the second is
written without a transaction, where one hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from strandline.core.decoding import decodable
from strandline.core.errors import CorruptionError, UnavailableError
from strandline.ends.kafka.client import ClientErrors, Cluster, discard, in_words, made, within
from strandline.ends.target import Writer

T = TypeVar("T")

_LONGEST_S = 90.0
"""A transaction of another job that died keeps readers from going on, until Kafka has ended it: a minute, as a rule."""


_LONGEST_TEXT = 3000
"""Of a record in a group. Brokers take 4,096, unless they are told to take less."""


Rows = dict[str, dict[int, list[tuple[int, int]]]]
"""By topic and partition: where the rows of a transaction are, as the first and the last offset of each run of them."""
Firsts = dict[str, dict[int, int]]
"""By topic and partition: where the messages of a transaction begin."""


@decodable
class LaneRecord(msgspec.Struct, frozen=True, array_like=True):
    """How far a lane came, and whose it is."""

    generation: int
    mark: str | None
    step: int = 0
    """How many transactions there were since the mark, to end what hung."""
    owes: bool = False
    """Whether some rows of the mark have to be written again: the message of the same mark and step says which."""
    firsts: Firsts | None = msgspec.field(default_factory=dict)
    """Of its transaction; None if that is too long for a group: the message says where the rows are."""

    @property
    def text(self) -> str:
        """As it is in Kafka."""
        return msgspec.json.encode(self).decode()

    @property
    def place(self) -> tuple[str, int]:
        """By which a lane's records are in order."""
        return self.mark or "", self.step


@decodable
class LaneMessage(msgspec.Struct, frozen=True, array_like=True):
    """A lane's record as a message."""

    generation: int
    mark: str | None
    step: int = 0
    owes: bool = False
    rows: Rows = msgspec.field(default_factory=dict)
    """Of its transaction."""
    owed: Rows = msgspec.field(default_factory=dict)
    """Those that have to be written again; they were not committed there."""

    def record(self, firsts: Firsts | None = None) -> LaneRecord:
        """Return it as a group has it."""
        return LaneRecord(self.generation, self.mark, self.step, self.owes, firsts)


def firsts_of(rows: Rows) -> Firsts:
    """Return where they begin."""
    return {topic: {partition: runs[0][0] for partition, runs in found.items()} for topic, found in rows.items()}


@dataclass
class TopicRecords:
    """What the topic has of one sink."""

    claims: set[int] = field(default_factory=set)
    lanes: set[int] = field(default_factory=set)
    told: dict[int, list[tuple[int, LaneMessage]]] = field(default_factory=dict)
    """Of lanes, the messages and where they are, the newest last."""

    def newest(self, lane: int) -> tuple[int, LaneMessage] | None:
        """Return the newest message of a lane, if there is one, and where it is."""
        return self.told[lane][-1] if lane in self.told else None


class SinkRecord:
    """What is on record of one sink."""

    def __init__(self, cluster: Cluster, prefix: str, writer: Writer) -> None:
        self.topic = f"{prefix}-marks"
        self.cluster = cluster
        self.writer = writer
        self._prefix = f"{prefix}-{writer.sink}"

    def name_of(self, lane: int) -> str:
        """Return a lane's name: of its transactions, and of the group with its record."""
        return f"{self._prefix}-{lane}"

    def consumer(self, lane: int, said: ClientErrors, *, committed: bool = True) -> Any:
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

        asked = [TopicPartition(self.topic, partition) for partition in (0, 1)]
        found = []
        for each in self.cluster.ask(consumer.committed, asked):
            if each.error is not None:
                raise in_words(each.error, self.writer.label, self.cluster)
            if each.offset >= 0 and each.metadata:
                found.append(self._decoded(each.metadata, LaneRecord))
        if not found:
            return None
        newest = max(found, key=lambda record: record.place)
        return msgspec.structs.replace(newest, generation=max(record.generation for record in found))

    def put_lane(
        self, producer: Any, consumer: Any, lane: int, told: LaneMessage, sent: Callable[[], Rows]
    ) -> LaneRecord:
        """Put a lane's record into its open transaction, all of whose rows are with the brokers.

        `sent` says where its messages are. Returns the record as the group has it then.
        """
        from confluent_kafka import TopicPartition

        producer.produce(self.topic, msgspec.json.encode(told), self._key("mark", lane), partition=0)
        # Where the group has a record that hangs, its message is there, too: `recovery.py` reads it.
        if producer.flush(self.cluster.answer_s):
            raise UnavailableError(f"{self.writer.label}: Kafka at {self.cluster.servers} takes no rows")
        record = told.record(firsts_of(sent()))
        if len(record.text) > _LONGEST_TEXT:
            record = told.record()
        at = TopicPartition(self.topic, 0, 0, record.text)
        self.cluster.ask(producer.send_offsets_to_transaction, [at], consumer.consumer_group_metadata())
        return record

    def note_reached(self, consumer: Any, told: LaneMessage) -> None:
        """Have it on record, whatever becomes of the lane's transaction, that it is committed."""
        from confluent_kafka import TopicPartition

        at = TopicPartition(self.topic, 1, 0, told.record().text)

        def commit() -> None:
            consumer.commit(offsets=[at], asynchronous=False)

        within(self.cluster.answer_s, commit)

    def told(self, lane: int, record: LaneRecord) -> tuple[int, LaneMessage] | None:
        """Return the message of a lane's record, and where it is."""
        told = self.read(committed=False).told.get(lane, [])
        return next((each for each in reversed(told) if each[1].record().place == record.place), None)

    def note_lane(self, lane: int) -> None:
        """Have it on record that there is such a lane, before anything is written there."""
        self._tell({self._key("lane", lane): b"{}"})

    def note_claim(self, generation: int, older: set[int]) -> None:
        """Have it on record that a run has begun; earlier ones need not be known any more."""
        about = {"writer": self.writer.owner}
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

        said, failed = ClientErrors(), []
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
        finally:
            discard(producer)
        if failed:
            raise in_words(failed[0], self.writer.label, self.cluster, said)
        if left:
            raise UnavailableError(f"{self.writer.label}: Kafka at {self.cluster.servers} does not answer")

    def read(self, *, committed: bool) -> TopicRecords:
        """Return what the topic has of the sink, all or what is `committed`: that may have to be waited for."""
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        said, found = ClientErrors(), TopicRecords()
        level = "read_committed" if committed else "read_uncommitted"
        consumer = made(
            Consumer, self.cluster,
            self.cluster.settings(
                said, group_id=self._prefix, isolation_level=level, enable_auto_commit=False,
                enable_partition_eof=True, fetch_wait_max_ms=50, auto_offset_reset="earliest",
            )
        )  # fmt: skip
        whole = TopicPartition(self.topic, 0, 0)
        patience_s = _LONGEST_S if committed else self.cluster.answer_s
        until = time.monotonic() + patience_s
        try:
            end = self._end(said, until)
            within(self.cluster.answer_s, consumer.assign, [whole])
            while end > 0:
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    # It may be long: where the topic was made by hand, Kafka compacts it once a week.
                    until = time.monotonic() + patience_s
                elif time.monotonic() > until:
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
            discard(consumer)
        return found

    def _end(self, said: ClientErrors, until: float) -> int:
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
            discard(consumer)

    def _note(self, found: TopicRecords, message: Any) -> None:
        key = (message.key() or b"").decode(errors="replace")
        sink, _, rest = key.partition(" ")
        if sink != self._prefix:
            return
        what, _, number = rest.partition(" ")
        if what == "claim":
            if message.value() is not None:
                said = self._decoded(message.value(), dict[str, str])
                self.writer.check_owner(said.get("writer", ""), f"Kafka at {self.cluster.servers}")
            (found.claims.discard if message.value() is None else found.claims.add)(int(number))
        elif what == "lane":
            found.lanes.add(int(number))
        elif what == "mark":
            found.told.setdefault(int(number), []).append(
                (message.offset(), self._decoded(message.value(), LaneMessage))
            )
