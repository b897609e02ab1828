"""A transaction that Kafka has ended in its books, and not in all of its topics: it is found, and ended there.

Kafka decides a transaction first, and then has each of its partitions told. Kafka 4.4.0 takes one that has no leader
just then for deleted, and tells it nothing (3.x waited for its leader): a broker that is killed between the two, and
that was the only one with a replica in sync, does so to some of them, or all, when it is back. What is there hangs
then, and so do readers of `read_committed` behind it; no time-out ends that. And it would take part in whatever the
same producer does there next: with a commit rows would come twice, with an abort be lost.

A partition's last stable offset is where the first transaction begins that is open there. So one that begins before it
is through, one that begins at it hangs, and of one behind it nothing is to be seen yet.

The lane's record may hang with the rows: its group says that it is not stable, though no transaction is open any more.
There are three cases:

- Nobody has seen any of the rows. Another transaction of the same producer is put where they are, and aborted. They are
  staged still, and are written again.
- All of the rows are seen. The record is written once more.
- Some are. The record is written once more, and says which rows are owed. Those are read where they hang, aborted there
  as above, and written again with a record that owes nothing. Each of these steps may be the last of its process: the
  next that takes the lane finds in its record which to take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from strandline.core import failpoints
from strandline.core.errors import SinkError, UnavailableError
from strandline.ends.kafka.client import ClientErrors, discard, made, within
from strandline.ends.kafka.record import Firsts, LaneMessage, LaneRecord, Rows, SinkRecord, firsts_of

Commit = Callable[[Iterator[pa.RecordBatch], LaneMessage], LaneRecord]
Place = tuple[str, int, int]
"""A topic, a partition, an offset."""
_ROWS = pa.schema(
    {
        "topic": pa.string(), "key": pa.binary(), "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "partition": pa.int32(), "timestamp": pa.int64(),
    }
)  # fmt: skip


class Lane:
    """A lane that its producer has taken: no transaction of it is open, but some may hang.

    `commit` writes rows and a record in a transaction, and returns when that is carried out.
    """

    def __init__(self, record: SinkRecord, number: int, producer: Any, consumer: Any, commit: Commit) -> None:
        self._record = record
        self._number = number
        self._producer = producer
        self._consumer = consumer
        self._commit = commit

    def found(self) -> LaneRecord | None:
        """Return the lane's record; if that hangs, it is ended."""
        from confluent_kafka import KafkaException

        try:
            return self._record.of_lane(self._consumer)
        except (KafkaException, UnavailableError):
            if not self._hangs():
                raise
        self.settle()
        return self._record.of_lane(self._consumer)

    def _hangs(self) -> bool:
        """Whether Kafka answers, and says how far the lane came before what it does not say the end of."""
        return self._answers(committed=False) and not self._answers(committed=True)

    def _answers(self, *, committed: bool) -> bool:
        from confluent_kafka import KafkaException

        consumer = self._record.consumer(self._number, ClientErrors(), committed=committed)
        try:
            self._record.of_lane(consumer)
        except (KafkaException, UnavailableError):
            return False
        finally:
            discard(consumer)
        return True

    def settle(self) -> None:
        """End the newest transaction, whose record hangs, as it ended where it does not."""
        # 1. Where it is: its message was there before the group was told.
        newest = self._record.read(committed=False).newest(self._number)
        if newest is None:
            raise self._lost("where its rows are is not on record")
        at, told = newest
        places = [*_places(firsts_of(told.rows)), (self._record.topic, 0, at)]
        hung = self._hanging(places)
        if any(self._is_committed(place) for place in places if place not in hung):
            # 2. Should this process end, too, while the record is written: it holds already.
            self._record.note_reached(self._consumer, told)
            failpoints.hit("kafka.reached_noted")
            owed = _of_places(told.rows, hung)
            self._commit(iter(()), _next(told, owed))
        else:
            self._abort(hung, told)

    def through(self, found: LaneRecord) -> LaneRecord:
        """Return the lane's record when its transaction is carried out everywhere; some of it may hang."""
        if not found.owes:
            firsts = found.firsts if found.firsts is not None else self._firsts(found)
            hung = self._hanging(_places(firsts))
            if not hung:
                return found
            _, told = self._told(found)
            # What hangs of the record's own topic goes with the next transaction.
            found = self._commit(iter(()), _next(told, _of_places(told.rows, hung)))
            failpoints.hit("kafka.owed")
        return self._pay(found) if found.owes else found

    def _firsts(self, found: LaneRecord) -> Firsts:
        at, told = self._told(found)
        return {**firsts_of(told.rows), self._record.topic: {0: at}}

    def _told(self, found: LaneRecord) -> tuple[int, LaneMessage]:
        told = self._record.told(self._number, found)
        if told is None:
            raise self._lost("where its rows are is not on record")
        return told

    def _pay(self, found: LaneRecord) -> LaneRecord:
        """Write the rows again that the record owes."""
        _, told = self._told(found)
        rows = self._read(told.owed)
        places = list(_places(firsts_of(told.owed)))
        if hung := self._hanging(places):
            self._abort(hung, None)
            until = time.monotonic() + self._record.cluster.answer_s
            # Brokers end a transaction some moments after its coordinator has decided so.
            while self._hanging(places):
                if time.monotonic() > until:
                    raise self._lost("nothing ends it")
                time.sleep(0.05)
        failpoints.hit("kafka.unhung")
        return self._commit(iter([rows]), _next(told, {}))

    def _abort(self, hung: Iterable[Place], told: LaneMessage | None) -> None:
        """Abort what hangs, and a lane's record with it: what is aborted with them is seen by nobody either."""
        within(self._record.cluster.answer_s, self._producer.begin_transaction)
        for topic, partition, _ in hung:
            if topic != self._record.topic:
                self._producer.produce(topic, b"", b"strandline", partition)
        if told is not None:
            self._record.put_lane(self._producer, self._consumer, self._number, told, dict)
        elif self._producer.flush(self._record.cluster.answer_s):
            raise UnavailableError(f"{self._where} takes no rows")
        self._record.cluster.ask(self._producer.abort_transaction)

    def _hanging(self, places: Iterable[Place]) -> list[Place]:
        """Return where it hangs; wait while that is not to be seen."""
        until, places, are_there = time.monotonic() + self._record.cluster.answer_s, list(places), False
        while True:
            hung, hidden = open_at(self._record, self._consumer, places)
            if (hung or hidden) and not are_there:
                places, are_there = self._that_are_there([*hung, *hidden]), True
                continue
            hidden = [place for place in hidden if place[0] != self._record.topic]
            if not hidden:
                return hung
            if time.monotonic() > until:
                topic, partition, _ = hidden[0]
                raise UnavailableError(
                    f"{self._where}: whether the last rows of lane {self._number} are committed is not to be seen: an "
                    f"older transaction of another writer is open in topic '{topic}', partition {partition}"
                )
            time.sleep(0.05)

    def _that_are_there(self, places: list[Place]) -> list[Place]:
        """Return those that their partition has: a topic may have been made anew."""
        consumer = self._record.consumer(self._number, ClientErrors(), committed=False)
        try:
            ends = _ends(self._record, consumer, places)
        finally:
            discard(consumer)
        return [place for place in places if ends.get(place[:2], 0) > place[2]]

    def _is_committed(self, place: Place) -> bool:
        """Whether readers of what is committed see the message there."""
        return any(True for _ in self._messages(place[0], place[1], [(place[2], place[2])], "read_committed"))

    def _read(self, rows: Rows) -> pa.RecordBatch:
        """Return messages that hang, or are aborted, as rows."""
        found: list[dict[str, Any]] = []
        for topic, partitions in rows.items():
            for partition, runs in partitions.items():
                read = [_row(message) for message in self._messages(topic, partition, runs, "read_uncommitted")]
                if len(read) != sum(last - first + 1 for first, last in runs):
                    raise self._lost(f"some are not in topic '{topic}', partition {partition} any more")
                found += read
        return pa.RecordBatch.from_pylist(found, _ROWS)

    def _messages(self, topic: str, partition: int, runs: list[tuple[int, int]], level: str) -> Iterator[Any]:
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        cluster = self._record.cluster
        settings = cluster.settings(
            ClientErrors(), group_id=self._record.name_of(0), isolation_level=level, enable_auto_commit=False,
            enable_partition_eof=True, fetch_wait_max_ms=50, auto_offset_reset="latest",
        )  # fmt: skip
        consumer = made(Consumer, cluster, settings)
        try:
            left = list(runs)
            # A reader that begins behind what hangs hears nothing, not even that it is at the end.
            end = _ends(self._record, consumer, [(topic, partition, 0)]).get((topic, partition), 0)
            if end <= left[0][0]:
                return
            within(cluster.answer_s, consumer.assign, [TopicPartition(topic, partition, left[0][0])])
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

    def _lost(self, why: str) -> SinkError:
        return SinkError(
            f"{self._where} has left transaction '{self._record.name_of(self._number)}' open, and knows of none: {why}",
            hint="the rows stay staged. kafka-transactions.sh find-hanging and describe-producers show where it is; "
            "before it is ended there, compare what readers of read_committed have seen",
        )


def open_at(record: SinkRecord, consumer: Any, places: Iterable[Place]) -> tuple[list[Place], list[Place]]:
    """Return the places of transactions that are open there, and those where an older one keeps that from being seen.

    `consumer` reads what is committed.
    """
    places = list(places)
    ends = _ends(record, consumer, places)
    hung = [place for place in places if ends.get(place[:2]) == place[2]]
    return hung, [place for place in places if ends.get(place[:2], place[2]) < place[2]]


def places_of(record: LaneRecord) -> list[Place]:
    """Return where the messages of a record's transaction begin, if that is known."""
    return list(_places(record.firsts or {}))


def _ends(record: SinkRecord, consumer: Any, places: Iterable[Place]) -> dict[tuple[str, int], int]:
    """Return where partitions end for a consumer; those that are gone are not among them."""
    wanted = list(dict.fromkeys(place[:2] for place in places))
    return _ends_of(record, consumer, wanted) if wanted else {}


def _ends_of(record: SinkRecord, consumer: Any, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    try:
        found = record.cluster.ask(consumer.offsets_for_times, [TopicPartition(*each, -1) for each in wanted])
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
    except KafkaException as error:
        gone = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC
        if error.args[0].code() not in gone:
            raise
        # It is said of all when one is gone.
        ends = [_ends_of(record, consumer, [each]) for each in wanted] if len(wanted) > 1 else []
        return {place: end for found in ends for place, end in found.items()}
    return {(each.topic, each.partition): each.offset for each in found}


def _places(firsts: Firsts) -> Iterator[Place]:
    for topic, partitions in firsts.items():
        for partition, first in partitions.items():
            yield topic, partition, first


def _of_places(rows: Rows, places: Iterable[Place]) -> Rows:
    found: Rows = {}
    for topic, partition, _ in places:
        if partition in rows.get(topic, {}):
            found.setdefault(topic, {})[partition] = rows[topic][partition]
    return found


def _next(told: LaneMessage, owed: Rows) -> LaneMessage:
    """Return what the next transaction of the same mark says."""
    return msgspec.structs.replace(told, step=told.step + 1, owes=bool(owed), rows={}, owed=owed)


def _row(message: Any) -> dict[str, Any]:
    headers = [{"key": key, "value": value} for key, value in message.headers() or ()]
    return {
        "topic": message.topic(), "key": message.key(), "value": message.value(), "headers": headers,
        "partition": message.partition(), "timestamp": message.timestamp()[1],
    }  # fmt: skip
