"""Recovery of hanging transactions: the coordinator has ended them, but some of their partitions have no marker.

Kafka's coordinator decides a transaction and then writes a marker to each of its partitions. Kafka 4.4.0 takes a
partition without a leader for deleted and skips its marker (3.x waited for the leader). This happens if a broker with
the only in-sync replica is killed between the two steps. The transaction then hangs in some or all of its partitions.
It blocks their readers of `read_committed`, without a timeout. The same producer's next transaction there would include
it: a commit would duplicate rows, an abort would lose rows. An abort by `kafka-transactions.sh` would lose them as well
if other partitions are committed, and no command commits the rest. 3 of 25 kills of a broker left a hanging transaction
in topics with one replica, and none of 15 in topics with three.

The last stable offset of a partition is the start of its first open transaction. A transaction that begins before it is
complete, one that begins at it hangs, and the state of one that begins after it is not known yet.

The lane's record may hang with the rows: the group's offset is then unstable although no transaction is open. There are
three cases:

- No row is committed. The lane's producer begins another transaction in the same partitions and aborts it. The rows are
  still staged, and are written again.
- All rows are committed. The record is written again.
- Some rows are committed. The record is written again with the offsets of the missing rows. These rows are read from
  their partitions, aborted as above, and written again with a record without missing rows. The process may end after
  any step: the next process that takes the lane finds the next step in the record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from strandline.core import failpoints
from strandline.core.errors import SinkError, UnavailableError
from strandline.core.kafkaclient import ClientErrors, call_within, create_client, discard
from strandline.ends.kafka.record import HANGING_HINT, LaneMessage, LaneRecord, Rows, SinkRecord, Starts, starts_of

Commit = Callable[[Iterator[pa.RecordBatch], LaneMessage], LaneRecord]
Position = tuple[str, int, int]
"""Topic, partition, offset."""
_ROWS = pa.schema(
    {
        "topic": pa.string(), "key": pa.binary(), "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "partition": pa.int32(), "timestamp": pa.int64(),
    }
)  # fmt: skip


class Lane:
    """A lane after its producer's `init_transactions`: no transaction is open, but some may hang.

    `commit` writes rows and a record in a transaction, and waits until the transaction is complete.
    """

    def __init__(self, record: SinkRecord, number: int, producer: Any, consumer: Any, commit: Commit) -> None:
        self._record = record
        self._number = number
        self._producer = producer
        self._consumer = consumer
        self._commit = commit

    def read_record(self) -> LaneRecord | None:
        """Return the lane's record, after settling it if it hangs."""
        from confluent_kafka import KafkaException

        try:
            return self._record.read_lane(self._consumer)
        except (KafkaException, UnavailableError):
            if not self._hangs():
                raise
        self.settle()
        try:
            return self._record.read_lane(self._consumer)
        except (KafkaException, UnavailableError) as error:
            if not self._hangs():
                raise
            # The coordinator has lost the transaction, and has given the producer another id.
            raise self._hanging_error("another transaction of its producer does not end it") from error

    def _hangs(self) -> bool:
        """Whether Kafka returns the record from before the last transaction, but not the current one."""
        return self._answers(committed=False) and not self._answers(committed=True)

    def _answers(self, *, committed: bool) -> bool:
        from confluent_kafka import KafkaException

        consumer = self._record.consumer(self._number, ClientErrors(), committed=committed)
        try:
            self._record.read_lane(consumer)
        except (KafkaException, UnavailableError):
            return False
        finally:
            discard(consumer)
        return True

    def settle(self) -> None:
        """End the newest transaction, whose record hangs, with the outcome that its other partitions have."""
        # 1. Find its messages. The record's message was sent before the group's offset.
        newest = self._record.read(committed=False).newest(self._number)
        if newest is None:
            raise self._hanging_error("the offsets of its rows are not on record")
        offset, message = newest
        positions = [*_positions(starts_of(message.rows)), (self._record.topic, 0, offset)]
        hanging = self._find_hanging(positions)
        if any(self._is_committed(position) for position in positions if position not in hanging):
            # 2. Record the commit outside of the transaction: this process may end while it writes the record.
            self._record.put_commit(self._consumer, message)
            failpoints.hit("kafka.commit_recorded")
            missing = _select(message.rows, hanging)
            self._commit(iter(()), _next(message, missing))
        else:
            self._abort(hanging, message)

    def complete(self, record: LaneRecord) -> LaneRecord:
        """End the record's transaction in all of its partitions, and write missing rows; return the lane's record."""
        if not record.is_incomplete:
            starts = record.starts if record.starts is not None else self._starts(record)
            hanging = self._find_hanging(_positions(starts))
            if not hanging:
                return record
            _, message = self._message_of(record)
            # The next transaction also ends the one that hangs in the record's topic.
            record = self._commit(iter(()), _next(message, _select(message.rows, hanging)))
            failpoints.hit("kafka.missing_recorded")
        return self._write_missing(record) if record.is_incomplete else record

    def _starts(self, record: LaneRecord) -> Starts:
        offset, message = self._message_of(record)
        return {**starts_of(message.rows), self._record.topic: {0: offset}}

    def _message_of(self, record: LaneRecord) -> tuple[int, LaneMessage]:
        message = self._record.message_of(self._number, record)
        if message is None:
            raise self._hanging_error("the offsets of its rows are not on record")
        return message

    def _write_missing(self, record: LaneRecord) -> LaneRecord:
        """Write the record's missing rows again."""
        _, message = self._message_of(record)
        rows = self._read(message.missing)
        positions = list(_positions(starts_of(message.missing)))
        if hanging := self._find_hanging(positions):
            self._abort(hanging, None)
            until = time.monotonic() + self._record.cluster.answer_s
            # Brokers write the markers shortly after the coordinator's decision.
            while self._find_hanging(positions):
                if time.monotonic() > until:
                    raise self._hanging_error("aborting another transaction there does not end it")
                time.sleep(0.05)
        failpoints.hit("kafka.hanging_aborted")
        return self._commit(iter([rows]), _next(message, {}))

    def _abort(self, hanging: Iterable[Position], message: LaneMessage | None) -> None:
        """Abort a transaction in the hanging partitions, with the lane's record if `message` is given."""
        call_within(self._record.cluster.answer_s, self._producer.begin_transaction)
        for topic, partition, _ in hanging:
            if topic != self._record.topic:
                self._producer.produce(topic, b"", b"strandline", partition)
        if message is not None:
            self._record.put_lane(self._producer, self._consumer, self._number, message, dict)
        elif self._producer.flush(self._record.cluster.answer_s):
            raise UnavailableError(f"{self._where} takes no rows")
        self._record.cluster.ask(self._producer.abort_transaction)

    def _find_hanging(self, positions: Iterable[Position]) -> list[Position]:
        """Return the positions at which a transaction hangs; wait while older transactions hide that."""
        until, positions, do_exist = time.monotonic() + self._record.cluster.answer_s, list(positions), False
        while True:
            hanging, unknown = find_open(self._record, self._consumer, positions)
            if (hanging or unknown) and not do_exist:
                positions, do_exist = self._existing([*hanging, *unknown]), True
                continue
            unknown = [position for position in unknown if position[0] != self._record.topic]
            if not unknown:
                return hanging
            if time.monotonic() > until:
                topic, partition, _ = unknown[0]
                raise UnavailableError(
                    f"{self._where}: it is unknown whether the last rows of lane {self._number} are committed: an "
                    f"older transaction of another writer is open in topic '{topic}', partition {partition}",
                    hint=HANGING_HINT,
                )
            time.sleep(0.05)

    def _existing(self, positions: list[Position]) -> list[Position]:
        """Return the positions that exist: a topic may have been deleted and created again."""
        consumer = self._record.consumer(self._number, ClientErrors(), committed=False)
        try:
            ends = _ends(self._record, consumer, positions)
        finally:
            discard(consumer)
        return [position for position in positions if ends.get(position[:2], 0) > position[2]]

    def _is_committed(self, position: Position) -> bool:
        """Whether the message is committed."""
        topic, partition, offset = position
        return any(True for _ in self._messages(topic, partition, [(offset, offset)], "read_committed"))

    def _read(self, rows: Rows) -> pa.RecordBatch:
        """Return hanging or aborted messages as rows."""
        result: list[dict[str, Any]] = []
        for topic, partitions in rows.items():
            for partition, runs in partitions.items():
                read = [_row(message) for message in self._messages(topic, partition, runs, "read_uncommitted")]
                if len(read) != sum(last - first + 1 for first, last in runs):
                    raise self._hanging_error(f"some rows are not in topic '{topic}', partition {partition} any more")
                result += read
        return pa.RecordBatch.from_pylist(result, _ROWS)

    def _messages(self, topic: str, partition: int, runs: list[tuple[int, int]], level: str) -> Iterator[Any]:
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        cluster = self._record.cluster
        settings = cluster.settings(
            ClientErrors(), group_id=self._record.name_of(0), isolation_level=level, enable_auto_commit=False,
            enable_partition_eof=True, fetch_wait_max_ms=50, auto_offset_reset="latest",
        )  # fmt: skip
        consumer = create_client(Consumer, cluster, settings)
        try:
            left = list(runs)
            # A consumer that starts after a hanging transaction receives nothing, not even the end of the partition.
            end = _ends(self._record, consumer, [(topic, partition, 0)]).get((topic, partition), 0)
            if end <= left[0][0]:
                return
            call_within(cluster.answer_s, consumer.assign, [TopicPartition(topic, partition, left[0][0])])
            while left:
                message = consumer.poll(cluster.answer_s)
                if message is None:
                    raise UnavailableError(f"{self._where} does not answer")
                if message.error() is not None:
                    if message.error().code() == KafkaError._PARTITION_EOF:
                        return
                    raise KafkaException(message.error())
                while left and left[0][1] < message.offset():
                    left.pop(0)
                if left and left[0][0] <= message.offset():
                    yield message
                    if left[0][1] == message.offset():
                        left.pop(0)
        finally:
            discard(consumer)

    @property
    def _where(self) -> str:
        return f"{self._record.writer.label}: Kafka at {self._record.cluster.servers}"

    def _hanging_error(self, reason: str) -> SinkError:
        return SinkError(
            f"{self._where}: transaction '{self._record.name_of(self._number)}' hangs and cannot be ended: {reason}",
            hint="the rows stay staged. kafka-transactions.sh find-hanging and describe-producers show where it hangs, "
            f"in the sink's topics, '{self._record.topic}' and '__consumer_offsets'; before you abort it there, "
            "compare what readers of read_committed have seen",
        )


def find_open(
    record: SinkRecord, consumer: Any, positions: Iterable[Position]
) -> tuple[list[Position], list[Position]]:
    """Return the positions at which a transaction is open, and those that are unknown behind an older open one.

    `consumer` reads committed messages.
    """
    positions = list(positions)
    ends = _ends(record, consumer, positions)
    hanging = [position for position in positions if ends.get(position[:2]) == position[2]]
    return hanging, [position for position in positions if ends.get(position[:2], position[2]) < position[2]]


def starts_in(record: LaneRecord) -> list[Position]:
    """Return the first position in each partition of a record's transaction, if the record has them."""
    return list(_positions(record.starts or {}))


def _ends(record: SinkRecord, consumer: Any, positions: Iterable[Position]) -> dict[tuple[str, int], int]:
    """Return the end offsets of partitions for a consumer, without those of deleted partitions."""
    wanted = list(dict.fromkeys(position[:2] for position in positions))
    return _ends_of(record, consumer, wanted) if wanted else {}


def _ends_of(record: SinkRecord, consumer: Any, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    try:
        offsets = record.cluster.ask(consumer.offsets_for_times, [TopicPartition(*each, -1) for each in wanted])
        for each in offsets:
            if each.error is not None:
                raise KafkaException(each.error)
    except KafkaException as error:
        gone = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC
        if error.args[0].code() not in gone:
            raise
        # One deleted partition fails the request for all.
        ends = [_ends_of(record, consumer, [each]) for each in wanted] if len(wanted) > 1 else []
        return {partition: end for each in ends for partition, end in each.items()}
    return {(each.topic, each.partition): each.offset for each in offsets}


def _positions(starts: Starts) -> Iterator[Position]:
    for topic, partitions in starts.items():
        for partition, first in partitions.items():
            yield topic, partition, first


def _select(rows: Rows, positions: Iterable[Position]) -> Rows:
    """Return the rows in the partitions of these positions."""
    selected: Rows = {}
    for topic, partition, _ in positions:
        if partition in rows.get(topic, {}):
            selected.setdefault(topic, {})[partition] = rows[topic][partition]
    return selected


def _next(message: LaneMessage, missing: Rows) -> LaneMessage:
    """Return the message of the next transaction of the same mark."""
    changes = {"is_incomplete": bool(missing), "rows": {}, "missing": missing}
    return msgspec.structs.replace(message, step=message.step + 1, **changes)


def _row(message: Any) -> dict[str, Any]:
    headers = [{"key": key, "value": value} for key, value in message.headers() or ()]
    return {
        "topic": message.topic(), "key": message.key(), "value": message.value(), "headers": headers,
        "partition": message.partition(), "timestamp": message.timestamp()[1],
    }  # fmt: skip
