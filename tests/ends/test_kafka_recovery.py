"""Transactions of Kafka that hang: some rows of them, all, or the record, and a crash at each step of ending them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.core.kafkaclient import ClientErrors, Cluster
from strandline.ends.kafka import recovery
from strandline.ends.kafka.record import LaneMessage, Rows, SinkRecord, starts_of
from strandline.ends.kafka.target import KafkaConnection, KafkaTarget, _records, idle
from strandline.ends.target import Writer
from strandline.storage.place import Place
from tests.crashing import Crash
from tests.kafkaserver import Kafka
from tests.kafkawire import HangingProducer

STEPS = (
    "kafka.lane_taken", "kafka.commit_recorded", "kafka.missing_recorded", "kafka.hanging_aborted",
    "kafka.produced", "kafka.marked", "kafka.decided", "kafka.committed",
)  # fmt: skip
_CRASHES = (22, 24, 27)
"""What is noted, begun, and missing: the others take as long, and are of what was tried already."""
FRESH = itertools.count()


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create(f"hanging-{next(FRESH)}")


@pytest.fixture
def target(kafka: Kafka, topic: str) -> Iterator[KafkaTarget]:
    target = KafkaTarget(Cluster(kafka.servers), topic, f"h{next(FRESH)}")
    target.cluster.answer_s = 1.5
    with configured(kafka, None, "transaction.partition.verification.enable", "false"):
        yield target
    failpoints.disarm_all()
    idle.end()


@contextmanager
def configured(kafka: Kafka, topic: str | None, name: str, value: str) -> Iterator[None]:
    """Change a setting of a topic or of the broker.

    Without verification of partitions, it takes rows of transactions that their coordinator knows nothing of.
    """
    configure(kafka, topic, name, value)
    try:
        yield
    finally:
        configure(kafka, topic, name, None)


def configure(kafka: Kafka, topic: str | None, name: str, value: str | None) -> None:
    """Set a setting, or delete it."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    admin, kind = kafka.admin(), ResourceType.TOPIC if topic else ResourceType.BROKER
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(kind, topic or "1", incremental_configs=[entry])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def by(generation: int) -> Writer:
    return Writer("s1", generation, "out", "j", Place(url="memory:"))


def placed(*rows: tuple[int, str]) -> list[pa.RecordBatch]:
    """Rows of partitions of their own choice."""
    partitions, values = zip(*rows, strict=True)
    columns = [pa.array([value.encode() for value in values], pa.binary()), pa.array(partitions, pa.int32())]
    return [pa.RecordBatch.from_arrays(columns, ["value", "partition"])]


def _forget() -> None:
    """As another process, which has seen nothing of this."""
    idle.end()
    _records.clear()


class Hung:
    """A lane whose transaction `m2` was decided, and is not carried out in each place."""

    def __init__(self, kafka: Kafka, target: KafkaTarget, lane: int = 0) -> None:
        self.kafka, self.target, self.lane = kafka, target, lane
        self.topic: str = target.topic or ""
        self.connect().write(placed((0, "0 a"), (1, "1 a")), None, "m1")
        idle.end()

    def connect(self) -> KafkaConnection:
        return self.target.connect(by(1), self.lane)

    def hang(
        self, *, rows: bool = True, record: bool = False, all_of_it: bool = False, producer: str | None = None
    ) -> None:
        """Have rows of partition 1 hang, with the `record` or without, or everything; of the lane's `producer`."""
        taken = self.connect()
        taken.end()
        name = taken._record.name_of(self.lane)
        hanging = HangingProducer(self.kafka.servers, producer or name)
        found: Rows = {}
        if rows:
            at = hanging.produce(self.topic, 1, [b"1 b", b"1 c"])
            found = {self.topic: {1: [(at, at + 1)]}}
        if all_of_it:
            at = hanging.produce(self.topic, 0, [b"0 b"])
            found[self.topic][0] = [(at, at)]
            told = LaneMessage(1, "m2", rows=found)
            key = f"{name.rpartition('-')[0]} mark {self.lane}".encode()
            hanging.produce(taken._record.topic, 0, [msgspec.json.encode(told)], key)
        if record or all_of_it:
            text = LaneMessage(1, "m2", rows=found).record(starts_of(found)).text
            hanging.commit_offset(name, taken._record.topic, text)
        if not all_of_it:
            self._carry_out(found, record=record)

    def _carry_out(self, found: Rows, *, record: bool) -> None:
        """Commit the rest of the same transaction: what its partitions were told."""
        producer = self.kafka.begin(f"{self.target.prefix}-s1-{self.lane}")
        at: list[int] = []
        producer.produce(self.topic, b"0 b", partition=0, on_delivery=lambda _, message: at.append(message.offset()))
        assert producer.flush(30) == 0
        rows = {self.topic: {**found.get(self.topic, {}), 0: [(at[0], at[0])]}}
        told = LaneMessage(1, "m2", rows=rows)
        taken = self.target.connect(by(1), self.lane + 100)
        if record:
            key = f"{self.target.prefix}-s1 mark {self.lane}"
            producer.produce(taken._record.topic, msgspec.json.encode(told), key, partition=0)
        else:
            consumer = taken._record.consumer(self.lane, taken._errors)
            taken._record.put_lane(producer, consumer, self.lane, told, lambda: rows)
            consumer.close()
        producer.commit_transaction(30)
        taken.end()

    def expect(self, *extra: str) -> None:
        """The lane has come to m2 and each row is seen once, in order; so are those that follow."""
        connection = self.connect()
        assert connection.reached() == "m2"
        connection.write(placed((0, "0 d"), (1, "1 d")), "m2", "m3")
        connection.close()
        self.expect_seen("0 a", "0 b", "0 d", "1 a", "1 b", "1 c", "1 d")

    def expect_undone(self) -> None:
        """The lane is still at m1, and the next rows of m2 are seen in place of those that hung."""
        connection = self.connect()
        assert connection.reached() == "m1"
        connection.write(placed((0, "0 e"), (1, "1 e")), "m1", "m2")
        self.expect_seen("0 a", "0 e", "1 a", "1 e")

    def expect_seen(self, *values: str) -> None:
        """In the order of each partition."""
        seen = sorted(self.kafka.messages(self.topic), key=lambda message: message.partition())
        assert [message.value().decode() for message in seen] == list(values)


@pytest.mark.parametrize("record", [False, True], ids=["rows", "rows and the record"])
@pytest.mark.long
def test_some_rows_that_hang_are_written_again(kafka: Kafka, target: KafkaTarget, record: bool) -> None:
    target.claim(by(1))
    lane = Hung(kafka, target)
    lane.hang(record=record)
    lane.expect_seen("0 a", "0 b", "1 a")
    lane.expect()
    messages = {message.value(): message for message in kafka.messages(lane.topic)}
    again = messages[b"1 c"]
    assert (again.key(), again.headers(), again.timestamp()[1]) == (b"k", [("h", b"it")], 1000)


@pytest.mark.parametrize(
    "count",
    [
        *range(1, 13),
        *(pytest.param(count, marks=() if count in _CRASHES else pytest.mark.soak) for count in range(21, 33)),
    ],
)
@pytest.mark.long
def test_a_crash_at_each_step_of_writing_them_again(kafka: Kafka, target: KafkaTarget, count: int) -> None:
    """Those of rows alone, and from 20 on those of rows and their record."""
    target.claim(by(1))
    lane = Hung(kafka, target)
    record, count = divmod(count, 20)
    lane.hang(record=bool(record))
    has_crashed = crash_after(lane, count)
    lane.expect()
    assert has_crashed == (count < 12)


def test_rows_are_written_again_when_their_abort_is_carried_out_late(
    kafka: Kafka, target: KafkaTarget, monkeypatch: Any
) -> None:
    target.claim(by(1))
    lane = Hung(kafka, target)
    lane.hang()
    abort, find, late = recovery.Lane._abort, recovery.find_open, [True, True]

    def abort_late(*args: Any) -> None:
        abort(*args)
        monkeypatch.setattr(recovery, "find_open", lambda *args: (args[2], []) if late and late.pop() else find(*args))

    monkeypatch.setattr(recovery.Lane, "_abort", abort_late)
    lane.expect()
    assert not late


def crash_after(lane: Hung, count: int) -> bool:
    """Take the lane, and crash after so many steps; return whether there were as many."""
    left = count

    def step(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crash
        failpoints.arm(name, partial(step, name))

    for name in STEPS:
        failpoints.arm(name, partial(step, name))
    try:
        lane.connect().end()
        return False
    except Crash:
        return True
    finally:
        failpoints.disarm_all()


def test_a_record_that_hangs_alone_is_written_again(kafka: Kafka, target: KafkaTarget) -> None:
    target.claim(by(1))
    lane = Hung(kafka, target)
    lane.hang(rows=False, record=True)
    connection = lane.connect()
    assert connection.reached() == "m2"
    connection.write(placed((1, "1 d")), "m2", "m3")
    lane.expect_seen("0 a", "0 b", "1 a", "1 d")


def test_what_hangs_everywhere_is_undone(kafka: Kafka, target: KafkaTarget) -> None:
    """Its rows are staged still."""
    target.claim(by(1))
    lane = Hung(kafka, target)
    lane.hang(all_of_it=True)
    lane.expect_undone()


def test_what_no_producer_can_end(kafka: Kafka, target: KafkaTarget) -> None:
    """The coordinator has lost its records: the lane's producer has another id than the hanging transaction."""
    from confluent_kafka import TopicPartition

    target.claim(by(1))
    lane, lost = Hung(kafka, target), f"lost-{target.prefix}"
    lane.hang(all_of_it=True, producer=lost)
    with pytest.raises(sl.errors.SinkError, match="hangs and cannot be ended: another transaction") as caught:
        lane.connect()
    assert "kafka-transactions.sh find-hanging" in str(caught.value)
    _forget()
    record = SinkRecord(target.cluster, target.prefix, by(1))
    # As kafka-transactions.sh abort does in each partition.
    producer, consumer = kafka.begin(lost), record.consumer(lane.lane, ClientErrors())
    for topic, partition in ((lane.topic, 0), (lane.topic, 1), (record.topic, 0)):
        producer.produce(topic, b"", b"strandline", partition)
    producer.send_offsets_to_transaction([TopicPartition(record.topic, 0, 0)], consumer.consumer_group_metadata(), 30)
    producer.abort_transaction(30)
    consumer.close()
    lane.expect_undone()


def test_a_record_that_is_too_large_for_its_topic(kafka: Kafka, target: KafkaTarget) -> None:
    target.claim(by(1))
    connection = target.connect(by(1), 0)
    connection.write(placed((0, "0 a")), None, "m1")
    with configured(kafka, f"{target.prefix}-marks", "max.message.bytes", "100"):
        with pytest.raises(sl.errors.UnavailableError, match="does not take the transaction") as caught:
            connection.write(placed((0, "0 b")), "m1", "m2")
        assert "raise max.message.bytes of the sink's record topic" in str(caught.value)
    connection.close()
    connection = target.connect(by(1), 0)
    assert connection.reached() == "m1"
    connection.write(placed((0, "0 b")), "m1", "m2")
    assert [message.value() for message in kafka.messages(target.topic or "")] == [b"0 a", b"0 b"]


def test_a_run_that_begins_looks_in_all_lanes(kafka: Kafka, target: KafkaTarget) -> None:
    target.claim(by(1))
    lane = Hung(kafka, target)
    lane.hang()
    _forget()
    target.claim(by(2))
    lane.expect_seen("0 a", "0 b", "1 a", "1 b", "1 c")


def test_rows_that_are_gone_before_they_are_written_again(kafka: Kafka, target: KafkaTarget) -> None:
    """The topic was made anew: nothing hangs there."""
    target.claim(by(1))
    lane = Hung(kafka, target)
    lane.hang()
    admin = kafka.admin()
    for done in admin.delete_topics([lane.topic]).values():
        done.result(30)
    assert lane.connect().reached() == "m2"
    kafka.create(lane.topic)
    _forget()
    connection = lane.connect()
    connection.write(placed((0, "0 d")), "m2", "m3")
    lane.expect_seen("0 d")


def test_a_transaction_of_another_writer_keeps_it_from_being_seen(kafka: Kafka, target: KafkaTarget) -> None:
    """Who writes goes on; who has to know waits, and says for what."""
    target.claim(by(1))
    lane = Hung(kafka, target)
    other = kafka.begin(f"other-{target.prefix}")
    other.produce(lane.topic, b"1 other", partition=1)
    assert other.flush(30) == 0
    connection = lane.connect()
    connection.write(placed((1, "1 b")), "m1", "m2")
    assert lane.connect().reached() == "m2"
    _forget()
    words = f"an older transaction of another writer is open in topic '{lane.topic}', partition 1"
    with pytest.raises(sl.errors.UnavailableError, match=words):
        lane.connect()
    other.commit_transaction(30)
    assert lane.connect().reached() == "m2"
    lane.expect_seen("0 a", "1 a", "1 other", "1 b")


def test_what_is_not_carried_out_is_not_said_to_be_written(kafka: Kafka, target: KafkaTarget, monkeypatch: Any) -> None:
    target.claim(by(1))
    lane = Hung(kafka, target)
    asked = 0

    def hanging(record: Any, consumer: Any, places: list[Any]) -> Any:
        nonlocal asked
        asked += 1
        assert {place[0] for place in places} == {lane.topic, f"{target.prefix}-marks"}
        return places, []

    connection = lane.connect()
    with monkeypatch.context() as patch:
        patch.setattr("strandline.ends.kafka.target.find_open", hanging)
        with pytest.raises(sl.errors.UnavailableError, match="does not complete a commit"):
            connection.write(placed((1, "1 b")), "m1", "m2")
        connection.close()
    assert asked > 10
    assert lane.connect().reached() == "m2"
    lane.expect_seen("0 a", "1 a", "1 b")


def test_a_lane_with_many_partitions_has_them_in_the_topic(kafka: Kafka, target: KafkaTarget, monkeypatch: Any) -> None:
    """What is too long for a group's offset."""
    monkeypatch.setattr("strandline.ends.kafka.record._LONGEST_TEXT", 10)
    target.claim(by(1))
    lane = Hung(kafka, target)
    lane.hang()
    lane.expect()
