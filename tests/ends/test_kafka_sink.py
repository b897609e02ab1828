"""Rows into a real Kafka: each once for readers of what is committed, whatever broke, and mistakes in words."""

from __future__ import annotations

import gc
import itertools
import logging
import pickle
import random
import string
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.core.ids import Epoch, Generation
from strandline.ends.kafka import producer as kafkarows
from strandline.ends.kafka import topic as recordtopic
from strandline.ends.kafka.client import ClientErrors, Cluster, call_within, translate_error
from strandline.ends.kafka.producer import LIMIT, DeliveryReports, UnfitRowError, flush_rows, produce, producer_settings
from strandline.ends.kafka.record import LaneMessage, LaneRecord, SinkRecord
from strandline.ends.kafka.target import KafkaConnection, KafkaTarget, idle
from strandline.ends.target import Writer
from strandline.spark.base.task_errors import SEAL
from strandline.spark.sinks import kafkasink
from strandline.spark.sinks.kafkasink import KafkaSink, KafkaSinkAtOnce, Layout
from strandline.storage.place import Place
from strandline.testing.sinks.conformance import Check, Promise, Trial, checks, name_of
from tests.ends.inprocess import OF_WAITING_ROWS, Session
from tests.kafkaserver import PASSWORD, Kafka
from tests.spark.harness import eventually

_numbers = itertools.count()
EXACT = checks(Promise.EXACTLY_ONCE, Promise.LASTING)
WAITING = [check for check in checks(Promise.WAITS, Promise.LASTING) if check not in EXACT]


PATIENCE_S = 20.0


def test_texts_go_as_their_bytes() -> None:
    """Also those that are no UTF-8, as a cast of a record's value may have made them."""
    sent: list[Any] = []
    producer = SimpleNamespace(produce=lambda *given: sent.append(given[:3]), poll=lambda seconds: 0)
    text = pa.array([b"ok", b"\xff\xfe", None], pa.binary()).view(pa.string())
    target: Any = SimpleNamespace(topic="t")
    produce(
        producer, pa.RecordBatch.from_arrays([text, text], names=["key", "value"]), target, "sink", DeliveryReports()
    )
    assert sent == [("t", value, value) for value in (b"ok", b"\xff\xfe", None)]


def test_rows_that_were_staged_for_one_topic_are_not_refused_one_by_one_where_a_column_names_it_now() -> None:
    """With on_error="skip" they would be lost."""
    target: Any = SimpleNamespace(topic=None)
    staged = pa.RecordBatch.from_arrays([pa.array([b"ok"])], names=["value"])
    with pytest.raises(sl.errors.ConfigurationError, match="staged for one topic, and the sink has topic_column= now"):
        produce(None, staged, target, "sink", DeliveryReports())
    named = pa.RecordBatch.from_arrays([pa.array([None], pa.string()), *staged.columns], names=["topic", "value"])
    with pytest.raises(UnfitRowError, match="its topic column is null"):
        produce(SimpleNamespace(produce=None), named, target, "sink", DeliveryReports())


def test_what_others_send_at_once_does_not_make_rows_too_large(monkeypatch: Any) -> None:
    """Several lanes fail at the same time; and of rows with large headers and no value, it is found in the end."""
    from confluent_kafka import KafkaError

    monkeypatch.setattr(kafkarows, "_batch_bytes", {})
    cluster = SimpleNamespace(servers="here", settings=lambda said, **settings: settings, options={}, answer_s=1.0)
    target: Any = SimpleNamespace(cluster=cluster, limit=1_000_000)

    class Producer(list[Any]):
        def flush(self, seconds: float) -> int:
            return 0

    def fail(sent: DeliveryReports, *sizes: int) -> None:
        error = SimpleNamespace(code=lambda: KafkaError.MSG_SIZE_TOO_LARGE)
        for size in sizes:
            parts = {"key": None, "value": b"." * size or None, "topic": "t", "partition": 0}
            sent.add(error, SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()}))
        flush_rows(Producer(), target, "sink", ClientErrors(), sent)

    several = [DeliveryReports() for _ in range(2)]
    for sent in several:
        producer_settings(target, ClientErrors(), sent)
    for sent in several:
        with pytest.raises(sl.errors.UnavailableError, match="does not take 1,000,000 bytes at once"):
            fail(sent, 200_000, 1)
    for many in (1, 2):
        for _ in range(9):
            producer_settings(target, ClientErrors(), sent := DeliveryReports())
            with suppress(sl.errors.UnavailableError, UnfitRowError):
                fail(sent, *[0] * many)
        sent.clear()
        with pytest.raises(UnfitRowError):
            fail(sent, *[0] * many)


@pytest.mark.parametrize("options", [{}, {"batch.size": "5000000"}])
def test_at_least_once_a_topic_is_sent_less_at_once_by_the_next_process(
    options: dict[str, str], monkeypatch: Any
) -> None:
    """Spark's tasks end with their process where they fail: the driver remembers."""
    from confluent_kafka import KafkaError

    heard: list[int] = []

    class Producer(list[Any]):
        """Sends all it is given at once, to a topic that takes 2,000 bytes, and says nothing of its limit."""

        def __init__(self, settings: dict[str, Any]) -> None:
            self.size, self.hear = settings["batch.size"], settings["on_delivery"]

        def produce(self, *given: Any) -> None:
            self.append(given)

        def poll(self, seconds: float) -> int:
            return 0

        def flush(self, seconds: float) -> int:
            heard.append(self.size)
            error = SimpleNamespace(code=lambda: KafkaError.MSG_SIZE_TOO_LARGE)
            for topic, value, *_ in self if self.size > 2000 else ():
                parts = {"topic": topic, "key": None, "value": value, "partition": 0}
                self.hear(error, SimpleNamespace(**{name: lambda part=part: part for name, part in parts.items()}))
            self.clear()
            return 0

    def in_another_process(df: Any, task: Any) -> None:
        monkeypatch.setattr(kafkarows, "_batch_bytes", {})
        monkeypatch.setattr(kafkasink, "_producers", {})
        try:
            pickle.loads(pickle.dumps(task))(iter(batch(*[("a", "." * 100)] * 100)), None)
        except sl.errors.UnavailableError as error:
            raise RuntimeError(SEAL.mark(error)) from None

    monkeypatch.setattr(kafkasink, "create_client", lambda kind, cluster, settings: Producer(settings))
    monkeypatch.setattr(kafkasink, "write_tasks", in_another_process)
    sink = KafkaSinkAtOnce(
        cast(Layout, SimpleNamespace(messages=str)), KafkaTarget(Cluster("nobody:1", options), "t", "p"), None
    )
    for _ in range(3):
        with pytest.raises(RuntimeError):
            sink.write(cast(Any, None), Epoch(1))
    sink.write(cast(Any, None), Epoch(1))
    assert heard == [1_000_000, 125_000, 15_625, 1953]


class Crash(BaseException):
    """The process is dead."""


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create(f"out-{next(_numbers)}")


@pytest.fixture
def target(kafka: Kafka, topic: str) -> KafkaTarget:
    return KafkaTarget(Cluster(kafka.servers), topic, f"p{next(_numbers)}")


def by(generation: int, sink: str = "s1") -> Writer:
    return Writer(sink, generation, "out", "j", Place(url="memory:"))


def batch(*keys_and_values: tuple[str, str]) -> list[pa.RecordBatch]:
    columns = zip(*keys_and_values, strict=True)
    data = [pa.array([text.encode() for text in column], pa.binary()) for column in columns]
    return [pa.RecordBatch.from_arrays(data, ["key", "value"])]


def expect(kafka: Kafka, topic: str, *values: str) -> None:
    """Brokers end a transaction some moments after they have said that it will be."""
    until = time.monotonic() + PATIENCE_S
    while True:
        seen = sorted(message.value().decode() for message in kafka.messages(topic))
        if seen == list(values):
            return
        assert not set(seen) - set(values), seen
        assert time.monotonic() < until, seen


# -- the record


def test_a_lane_goes_on_where_it_was(kafka: Kafka, topic: str, target: KafkaTarget) -> None:
    target.claim(by(1))
    connection = target.connect(by(1), 0)
    assert connection.reached() is None
    connection.write(batch(("a", "1"), ("b", "2")), None, "m1")
    connection.write(batch(("a", "3")), "m1", "m2")
    connection.close()
    assert target.connect(by(1), 0).reached() == "m2"
    assert target.connect(by(1), 1).reached() is None
    assert target.connect(by(1, "s2"), 0).reached() is None
    expect(kafka, topic, "1", "2", "3")


STEPS = ("kafka.lane_taken", "kafka.produced", "kafka.marked", "kafka.decided", "kafka.committed")


def test_a_crash_at_each_step_of_a_transaction(kafka: Kafka, topic: str, target: KafkaTarget) -> None:
    """Each in a lane of its own; then another run begins."""

    def crash() -> None:
        raise Crash

    target.claim(by(1))
    for lane, _ in enumerate(STEPS):
        target.connect(by(1), lane).write(batch(("a", f"{lane} 1")), None, "m1")
    for lane, step in enumerate(STEPS):
        failpoints.arm(step, crash)
        with pytest.raises(Crash):
            target.connect(by(1), lane).write(batch(("a", f"{lane} 2")), "m1", "m2")
        failpoints.disarm_all()
    target.claim(by(2))
    for lane, step in enumerate(STEPS):
        connection = target.connect(by(2), lane)
        done = step in ("kafka.decided", "kafka.committed")
        assert connection.reached() == ("m2" if done else "m1"), step
        if not done:
            connection.write(batch(("a", f"{lane} 2")), "m1", "m2")
    expect(kafka, topic, *(f"{lane} {n}" for lane, _ in enumerate(STEPS) for n in (1, 2)))


@pytest.mark.parametrize("lane", [0, 5], ids=["a lane that was there", "a lane that is new"])
@pytest.mark.parametrize("at", ["", *STEPS[:3]])
def test_a_driver_that_was_replaced_commits_nothing(
    kafka: Kafka, topic: str, target: KafkaTarget, at: str, lane: int
) -> None:
    """It stops at a step, the newer run begins, and it goes on."""
    target.claim(by(1))
    target.connect(by(1), 0).write(batch(("a", "1")), None, "m1")

    def meanwhile() -> None:
        with ThreadPoolExecutor(1) as other:
            other.submit(target.claim, by(2)).result()

    idle.end()
    if at:
        failpoints.arm(at, meanwhile)
    else:
        meanwhile()
    since = "m1" if lane == 0 else None
    with pytest.raises((sl.errors.FencedError, sl.errors.ConflictError)):
        target.connect(by(1), lane).write(batch(("a", "old")), since, "m2")
    failpoints.disarm_all()
    idle.end()
    with pytest.raises(sl.errors.FencedError, match="run 2 of the job writes to Kafka; this is run 1"):
        target.connect(by(1), lane)
    with pytest.raises(sl.errors.FencedError):
        target.claim(by(1))
    connection = target.connect(by(2), lane)
    assert connection.reached() == since
    connection.write(batch(("a", "new")), since, "m3")
    expect(kafka, topic, "1", "new")


@pytest.mark.parametrize("step", ["kafka.claimed", "kafka.lane_claimed"])
def test_a_run_that_stops_while_it_claims(kafka: Kafka, topic: str, target: KafkaTarget, step: str) -> None:
    target.claim(by(1))
    for lane in (0, 1):
        target.connect(by(1), lane).write(batch(("a", f"{lane}")), None, "m1")

    def meanwhile() -> None:
        with ThreadPoolExecutor(1) as other:
            other.submit(target.claim, by(3)).result()

    failpoints.arm(step, meanwhile)
    try:
        target.claim(by(2))
    except (sl.errors.FencedError, sl.errors.ConflictError):
        pass
    failpoints.disarm_all()
    idle.end()
    with pytest.raises(sl.errors.FencedError):
        target.connect(by(2), 0)
    assert target.connect(by(3), 1).reached() == "m1"


def test_what_kafka_has_forgotten_of_a_group_is_in_the_topic(kafka: Kafka, topic: str, target: KafkaTarget) -> None:
    target.claim(by(1))
    for lane in (0, 1):
        target.connect(by(1), lane).write(batch(("a", f"{lane}")), None, f"m{lane}")
    forget(kafka, target)
    assert target.connect(by(1), 0).reached() == "m0"
    target.claim(by(2))
    assert target.connect(by(2), 1).reached() == "m1"
    forget(kafka, target)
    idle.end()
    with pytest.raises(sl.errors.FencedError):
        target.connect(by(1), 1)


def forget(kafka: Kafka, target: KafkaTarget) -> None:
    """As Kafka does with groups that were silent for a week."""
    admin = kafka.admin()
    groups = [f"{target.prefix}-s1-{lane}" for lane in (0, 1)]
    for done in admin.delete_consumer_groups(groups).values():
        done.result(10)


@pytest.mark.parametrize(
    "steps",
    [
        ("kafka.produced", "kafka.decided"),
        pytest.param(("kafka.marked", "kafka.committed"), marks=pytest.mark.soak),
        pytest.param((), marks=pytest.mark.soak),
    ],
    ids=lambda steps: " and ".join(steps) or "between",
)
def test_a_broker_that_is_killed_and_comes_back(
    kafka: Kafka, topic: str, target: KafkaTarget, steps: tuple[str, ...]
) -> None:
    """A client of it may wait for ever then: it is given up, and another asks how far the lane came."""
    lanes, is_back = range(len(steps) or 1), threading.Event()

    def strike() -> None:
        kafka.kill()
        kafka.run()
        is_back.set()

    def stop(there: threading.Event) -> None:
        there.set()
        assert is_back.wait(120)

    target.cluster.answer_s = 5.0
    target.claim(by(1))
    connections = [target.connect(by(1), lane) for lane in lanes]
    for lane, connection in enumerate(connections):
        connection.write(batch(("a", f"{lane} 1")), None, "m1")
    with ThreadPoolExecutor(len(lanes)) as pool:
        running = []
        for lane, step in enumerate(steps[:-1]):
            there = threading.Event()
            failpoints.arm(step, partial(stop, there))
            running.append(pool.submit(write_on, target, connections[lane], lane))
            assert there.wait(60)
        # The last lane goes by the steps of the others. It strikes in this thread: a broker ends with its parent.
        if steps:
            failpoints.arm(steps[-1], strike)
        else:
            strike()
        write_on(target, connections[-1], lanes[-1])
        for each in running:
            each.result()
    expect(kafka, topic, *(f"{lane} {n}" for lane in lanes for n in (1, 2, 3)))


def test_a_client_that_hangs_is_given_up(kafka: Kafka, topic: str, target: KafkaTarget) -> None:
    """Each call that librdkafka's own thread must answer, and the destructor."""

    class Hanging:
        def __init__(self, client: Any) -> None:
            self.client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self.client, name)

        def begin_transaction(self) -> None:
            hung.wait()

        def __del__(self) -> None:
            hung.wait()
            destroyed.set()

    hung, destroyed = threading.Event(), threading.Event()
    target.claim(by(1))
    connection = target.connect(by(1), 0)
    target.cluster.answer_s = 1.0
    connection._producer = Hanging(connection._producer)
    with pytest.raises(sl.errors.UnavailableError, match="does not return from begin_transaction"):
        connection.write(batch(("a", "1")), None, "m1")
    connection.close()
    assert not destroyed.is_set()
    target.cluster.answer_s = 10.0
    target.connect(by(1), 0).write(batch(("a", "2")), None, "m1")
    hung.set()
    assert destroyed.wait(30)
    expect(kafka, topic, "2")


def test_a_call_that_fails_keeps_its_client_no_longer_than_its_error() -> None:
    """Not until garbage is collected: while no broker answers, each attempt would leave its threads behind."""

    class Client:
        def ask(self) -> None:
            raise ValueError("no")

    client = Client()
    kept = weakref.ref(client)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no"):
            call_within(10, client.ask)
        del client
        eventually(lambda: kept() is None, "the client is let go of")
    finally:
        gc.enable()


def write_on(target: KafkaTarget, connection: KafkaConnection, lane: int) -> None:
    """What is said to be written stays written."""
    until = time.monotonic() + 120
    while connection.reached() != "m2":
        try:
            connection.write(batch(("a", f"{lane} 2"), ("a", f"{lane} 3")), "m1", "m2")
        except (sl.errors.UnavailableError, sl.errors.ConflictError):
            assert time.monotonic() < until, "it is not written"
            connection.close()
            with suppress(sl.errors.UnavailableError, sl.errors.ConflictError):
                connection = target.connect(by(1), lane)


def test_a_record_that_is_older_than_what_was_known_is_not_believed(
    kafka: Kafka, topic: str, target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that come after it are in the topic: they would come twice."""
    target.claim(by(1))
    connection = target.connect(by(1), 0)
    connection.write(batch(("a", "1")), None, "m1")
    with monkeypatch.context() as stale:
        stale.setattr(SinkRecord, "read_lane", lambda *_: LaneRecord(1, None))
        with pytest.raises(sl.errors.UnavailableError, match="lane 0 came to nothing"):
            target.connect(by(1), 0)
    assert target.connect(by(1), 0).reached() == "m1"


def test_many_runs_leave_little_behind(kafka: Kafka, target: KafkaTarget) -> None:
    for generation in range(1, 5):
        target.claim(by(generation))
    newest = {message.key(): message.value() for message in kafka.messages(f"{target.prefix}-marks")}
    assert [key for key, value in newest.items() if value is not None] == [f"{target.prefix}-s1 claim 4".encode()]


# -- mistakes, and what may pass


def test_a_row_that_is_too_large_is_said_to_be(kafka: Kafka, target: KafkaTarget) -> None:
    small = kafka.create(f"small-{next(_numbers)}", max_message_bytes="2000")
    target.topic, target.limit = small, 2000
    target.claim(by(1))
    words = f" is larger than topic '{small}' takes: the limit, max.message.bytes, is "
    for size, limit, start in (
        (3000, 2000, "a row"),
        (3000, 1_000_000, "a row"),
        (1_000_000, 2000, "a row of 1,000,001"),
    ):
        target.limit = limit
        large = batch(("a", "1"), ("b", "".join(random.choices(string.printable, k=size))))
        with pytest.raises(target.refusing, match=f"{start}.*{words}{limit:,}"):
            write_at_last(target, large)
    assert target.connect(by(1), 0).reached() is None
    expect(kafka, small)


def write_at_last(target: KafkaTarget, rows: list[pa.RecordBatch]) -> None:
    """Write the first rows of a lane; it may be found meanwhile how much a topic takes at once."""
    for _ in range(5):
        with suppress(sl.errors.UnavailableError):
            target.connect(by(1), 0).write(rows, None, "m1")
            break


def test_rows_that_are_too_large_together_are_none_that_is(kafka: Kafka, target: KafkaTarget, monkeypatch: Any) -> None:
    """The topic's limit is not known: it was lowered, there are many topics, or the user may not see it."""
    monkeypatch.setattr(kafkarows, "_batch_bytes", {})
    target.topic = kafka.create(f"small-{next(_numbers)}", 1, max_message_bytes="2000")
    target.claim(by(1))
    values = ["".join(random.choices(string.ascii_letters, k=100)) for _ in range(100)]
    write_at_last(target, batch(*(("a", value) for value in values)))
    expect(kafka, target.topic, *sorted(values))


def test_a_record_may_be_larger_than_rows_may_be(kafka: Kafka, target: KafkaTarget) -> None:
    """It says of each partition where the rows are."""
    many = range(100)
    target.topic, target.limit = kafka.create(f"small-{next(_numbers)}", len(many), max_message_bytes="300"), 300
    target.claim(by(1))
    columns = [pa.array([f"{at:02}".encode() for at in many], pa.binary()), pa.array(many, pa.int32())]
    rows = pa.RecordBatch.from_arrays(columns, ["value", "partition"])
    target.connect(by(1), 0).write([rows], None, "m1")
    expect(kafka, target.topic, *(f"{at:02}" for at in many))


def test_the_largest_record_is_a_message() -> None:
    runs = [(at, at) for at in range(10**12, 10**12 + 2 * KafkaTarget.max_rows, 2)]
    assert len(msgspec.json.encode(LaneMessage(1, "m1", rows={"t": {0: runs}}))) < LIMIT


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": None}, "compacted topic takes no row without a key"),
        ({"timestamp": 9_000_000_000_000_000}, "refuses the timestamp"),
        ({"timestamp": 0}, "timestamp is 1970-01-01 00:00:00"),
        ({"partition": 7}, "has no partition 7: it has 2"),
        ({"topic": "a b"}, "its topic is 'a b', expected letters"),
        ({"topic": "a\0"}, "its topic is 'a.x00', expected letters"),
        ({"partition": -5}, "has no partition -5: it has 2"),
        ({"headers": [{"key": None, "value": b"x"}]}, "a header has no name"),
        ({"headers": [None]}, "a header has no name"),
    ],
    ids=lambda given: str(next(iter(given))) if isinstance(given, dict) else "",
)
def test_a_row_that_does_not_fit_is_told_from_the_others(
    kafka: Kafka, target: KafkaTarget, columns: dict[str, Any], words: str
) -> None:
    """What is refused so can be a dead letter. What others wrote with it is in no topic."""
    compacted = kafka.create(f"compacted-{next(_numbers)}", cleanup_policy="compact")
    target.claim(by(1))
    kinds = pa.schema(
        {
            "topic": pa.string(), "key": pa.binary(), "value": pa.binary(), "partition": pa.int32(),
            "timestamp": pa.int64(), "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        }
    )  # fmt: skip
    good = {"topic": compacted, "key": b"k", "value": b"1"}
    rows = pa.RecordBatch.from_pylist([good, {**good, **columns}], kinds)
    with pytest.raises(target.refusing, match=words):
        target.connect(by(1), 0).write([rows], None, "m1")
    again = target.connect(by(1), 0)
    assert again.reached() is None
    # Where several are refused at once, the client has another error for each of them, and one for the good row.
    with pytest.raises(target.refusing):
        again.write([rows, rows[1:]], None, "m1")
    again = target.connect(by(1), 0)
    again.write([rows[:1]], None, "m1")
    # Of a topic that the client knows by now, it says so itself.
    with pytest.raises(target.refusing, match=words):
        again.write([rows], "m1", "m2")
    expect(kafka, compacted, "1")


def test_rows_that_have_the_time_of_a_wrong_clock_wait(kafka: Kafka, target: KafkaTarget) -> None:
    """No row is to blame for it: as dead letters all would be lost."""
    from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

    target.topic = kafka.create(f"strict-{next(_numbers)}", 1, message_timestamp_before_max_ms="0")
    target.claim(by(1))
    with pytest.raises(sl.errors.UnavailableError, match="refuses the time of the clock of"):
        target.connect(by(1), 0).write(batch(("a", "1")), None, "m1")
    # Of several, the client does not say what is wrong: they are tried one by one.
    with pytest.raises(target.refusing, match="as of a clock that is ahead"):
        target.connect(by(1), 1).write(batch(("a", "1"), ("a", "2")), None, "m1")
    # The record has the time of the brokers.
    marks = list(kafka.messages(f"{target.prefix}-marks"))
    assert {message.timestamp()[0] for message in marks} == {TIMESTAMP_LOG_APPEND_TIME}


@pytest.mark.parametrize("rival", [False, True], ids=["", "and was made anew by another job"])
def test_a_record_that_was_deleted_is_missed(kafka: Kafka, target: KafkaTarget, topic: str, rival: bool) -> None:
    """Brokers forget what groups have on record of a topic with it, some moments later."""
    from confluent_kafka import KafkaException

    target.cluster.answer_s = 3.0
    target.claim(by(1))
    connection = target.connect(by(1), 0)
    connection.write(batch(("a", "1")), None, "m1")
    marks, admin = f"{target.prefix}-marks", kafka.admin()
    for done in admin.delete_topics([marks]).values():
        done.result(10)
    with pytest.raises(sl.errors.StrandlineError):
        connection.write(batch(("a", "2")), "m1", "m2")
    connection.close()
    if rival:
        target.claim(by(1, "s2"))
    for done in admin.delete_consumer_groups([f"{target.prefix}-s1-0"]).values():
        with suppress(KafkaException):
            done.result(10)
    with pytest.raises(sl.errors.CorruptionError, match=f"topic '{marks}' .* deleted while the job ran.* came to m1"):
        target.connect(by(1), 0)
    expect(kafka, topic, "1")
    found = SinkRecord(target.cluster, target.prefix, by(1)).read(committed=True)
    assert (found.claims, found.lanes) == ({1}, {0})


def test_a_driver_that_was_replaced_commits_nothing_though_its_lanes_are_forgotten(
    kafka: Kafka, target: KafkaTarget, topic: str
) -> None:
    """Its connection to a lane goes on when the record is deleted, and another job makes it anew."""
    target.claim(by(1))
    mine = target.connect(by(1), 0)
    mine.write(batch(("a", "1")), None, "m1")
    admin, marks = kafka.admin(), f"{target.prefix}-marks"
    for done in admin.delete_topics([marks]).values():
        done.result(10)
    eventually(lambda: marks not in admin.list_topics(timeout=10).topics, "it is gone")
    target.claim(by(1, "s2"))
    mine.write(batch(("a", "2")), "m1", "m2")
    target.claim(by(2))
    with pytest.raises((sl.errors.FencedError, sl.errors.ConflictError)):
        mine.write(batch(("a", "3")), "m2", "m3")
    expect(kafka, topic, "1", "2")


def test_a_record_that_is_long_is_read_to_its_end(kafka: Kafka, target: KafkaTarget, monkeypatch: Any) -> None:
    """However long that takes: Kafka has not compacted it, or it is of many jobs."""
    target.cluster.answer_s = 1.0
    target.claim(by(1))
    record = SinkRecord(target.cluster, target.prefix, by(1))
    for _ in range(6):
        record.register_lane(0)
    note = SinkRecord._add
    monkeypatch.setattr(SinkRecord, "_add", lambda *given: (time.sleep(0.25), note(*given)))
    assert record.read(committed=False).lanes == {0}


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_record_that_kafka_would_delete_is_refused(kafka: Kafka, target: KafkaTarget, policy: str) -> None:
    marks = kafka.create(f"{target.prefix}-marks", 2, cleanup_policy=policy)
    words = f"topic '{marks}' of Kafka at {kafka.servers} has cleanup.policy={policy}, expected compact"
    with pytest.raises(sl.errors.ConfigurationError, match=f"{words}(.|\n)*--alter --topic {marks}"):
        target.claim(by(1))


def test_a_record_with_too_few_partitions_is_refused(kafka: Kafka, target: KafkaTarget) -> None:
    marks = kafka.create(f"{target.prefix}-marks", 1, cleanup_policy="compact")
    words = f"topic '{marks}' of Kafka at {kafka.servers} has 1 partition, expected 2(.|\n)*--alter --topic {marks}"
    with pytest.raises(sl.errors.ConfigurationError, match=words):
        target.claim(by(1))


def test_a_wrong_password_is_said_and_not_shown(kafka: Kafka, topic: str, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    right = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "payments"}
    good = KafkaTarget(Cluster(kafka.secured, {**right, "kafka.sasl.password": PASSWORD}), topic, "secured")
    good.claim(by(1))
    good.connect(by(1), 0).write(batch(("a", "1")), None, "m1")
    expect(kafka, topic, "1")
    bad = KafkaTarget(Cluster(kafka.secured, {**right, "sasl.password": "not-that-secret"}), topic, "secured")
    with pytest.raises(sl.errors.ConfigurationError, match="does not let it in") as error:
        bad.claim(by(2))
    assert "not-that-secret" not in f"{error.value}{bad!r}{bad.cluster!r}{caplog.text}"


# -- what every sink must do


class Numbers:
    """A layout of messages without Spark: of the column n of a sink on trial."""

    topic = None

    def messages(self, df: Any) -> Any:
        return df.mapInArrow(_messages, None)


def _messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for each in batches:
        texts = pc.cast(pc.cast(each["n"], pa.string()), pa.binary())
        yield pa.RecordBatch.from_arrays([texts, texts], ["key", "value"])


def sink_of(target: KafkaTarget, patience_s: float = 20) -> KafkaSink:
    sink = KafkaSink(cast(Layout, Numbers()), target)
    sink.patience_s, sink.start_patience_s = patience_s, 20
    return sink


class KafkaTrial(Trial):
    def expect(self, *epochs: int | tuple[int, int], at_least: bool = False) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return super().expect(*epochs, at_least=at_least)
            except AssertionError as error:
                # Brokers end a transaction some moments after they have said that it will be.
                if time.monotonic() > until or "rows are missing" not in str(error):
                    raise


def trial(kafka: Kafka, target: KafkaTarget) -> Trial:
    return KafkaTrial(
        cast(Any, Session()),
        make=lambda: sink_of(target),
        visible=lambda: [int(message.value()) for message in kafka.messages(target.topic or "")],
        crashes=3,
    )


# One lane is written by the thread that a trial sees, to its last line: there a crash may come anywhere.
MANY, ONE = "many lanes", "one lane"
CRASHING = [check for check in EXACT if "crash" in name_of(check)]


@pytest.mark.parametrize(
    ("check", "lanes"),
    [
        *(pytest.param(check, ONE, id=name_of(check)) for check in CRASHING),
        *(
            pytest.param(check, MANY, id=name_of(check), marks=pytest.mark.soak if check in OF_WAITING_ROWS else ())
            for check in EXACT
            if check not in CRASHING
        ),
        *(pytest.param(check, MANY, id=f"{name_of(check)}-{MANY}", marks=pytest.mark.soak) for check in CRASHING),
    ],
)
def test_exactly_once(kafka: Kafka, target: KafkaTarget, check: Check, lanes: str) -> None:
    target.parallel = lanes == MANY
    check(trial(kafka, target))


def test_a_start_outlasts_an_older_driver_that_takes_a_lane_again(kafka: Kafka, target: KafkaTarget) -> None:
    """It finds the newer run's number only in lanes where that has left it."""
    target.parallel = False
    played = trial(kafka, target)
    older = played.start()
    assert older.commit(played.stage(older, 1)) == []
    pending = played.stage(older, 2)

    def meanwhile() -> None:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(older.commit, pending).result() == []

    newer = played.open()
    newer.start_patience_s = 20
    failpoints.arm("kafka.lane_taken", meanwhile)
    try:
        assert newer.recover(pending, Epoch(2), fresh=False) == []
    finally:
        failpoints.disarm_all()
    played.expect(1, 2)


@contextmanager
def frozen(kafka: Kafka) -> Iterator[None]:
    """It may do later what it was asked to."""
    kafka.freeze()
    try:
        yield
    finally:
        kafka.thaw()


@contextmanager
def mute() -> Iterator[None]:
    def lose() -> None:
        raise sl.errors.UnavailableError("the answer is lost")

    # Whichever of the lanes it is, once.
    failpoints.arm("kafka.committed", lose)
    try:
        yield
    finally:
        failpoints.disarm_all()


@pytest.mark.parametrize("check", WAITING, ids=name_of)
def test_what_waits_for_a_broker_that_is_away(kafka: Kafka, target: KafkaTarget, check: Check) -> None:
    target.cluster.answer_s = 5.0
    made = trial(kafka, target)
    made.away, made.mute = lambda: frozen(kafka), mute
    made.make = lambda: sink_of(target, patience_s=0)
    check(made)


def test_at_least_once(kafka: Kafka, target: KafkaTarget) -> None:
    for check in checks(Promise.SEEN):
        made = trial(kafka, target)
        target.topic = kafka.create(f"out-{next(_numbers)}")
        made.make = lambda: KafkaSinkAtOnce(cast(Layout, Numbers()), target, None)
        check(made)


def test_a_connection_that_is_cut_has_refused_nobody() -> None:
    """Kafka's client says what begins so of a password, too. What it says of a later time-out is not that."""
    from confluent_kafka import KafkaError

    late, said = KafkaError(KafkaError._TIMED_OUT), ClientErrors()
    for text, kind in (
        ("SASL PLAIN mechanism handshake failed: Local: Broker transport failure", sl.errors.UnavailableError),
        ("SASL authentication error: Authentication failed: Invalid username", sl.errors.AccessError),
    ):
        said.add(KafkaError(KafkaError._AUTHENTICATION, text))
        assert type(translate_error(late, "sink 'out'", Cluster("one:9092"), said)) is kind


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (
            "_DESTROY_BROKER _FAIL _UNKNOWN_BROKER _WAIT_CACHE _IN_PROGRESS _TRANSPORT TRANSACTION_ABORTABLE UNKNOWN "
            "NOT_CONTROLLER THROTTLING_QUOTA_EXCEEDED UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID REBALANCE_IN_PROGRESS "
            "REASSIGNMENT_IN_PROGRESS ELIGIBLE_LEADERS_NOT_AVAILABLE STALE_BROKER_EPOCH NOT_COORDINATOR",
            sl.errors.UnavailableError,
        ),
        ("PRODUCER_FENCED _FENCED INVALID_PRODUCER_EPOCH", sl.errors.ConflictError),
        ("MSG_SIZE_TOO_LARGE INVALID_RECORD POLICY_VIOLATION UNKNOWN_TOPIC_OR_PART", sl.errors.SinkError),
        ("SASL_AUTHENTICATION_FAILED TOPIC_AUTHORIZATION_FAILED _SSL", sl.errors.AccessError),
    ],
)
def test_which_errors_pass_by_themselves(names: str, kind: type[Exception]) -> None:
    from confluent_kafka import KafkaError

    for name in names.split():
        error = translate_error(KafkaError(getattr(KafkaError, name)), "sink 'out'", Cluster("one:9092"))
        assert type(error) is kind, name


def test_a_claim_that_kafka_refuses_ends_no_job_that_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart claims the target first: it was let in before."""
    from confluent_kafka import KafkaError, KafkaException

    def refuse(*_: object) -> bool:
        raise KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED))

    monkeypatch.setattr(recordtopic, "_is_fit", refuse)
    writer = Writer("sink", Generation(2), "out", "job", Place(url="memory://"), "life")
    with pytest.raises(sl.errors.AccessError, match="needs a topic"):
        KafkaTarget(Cluster("127.0.0.1:1"), "out", "p").claim(writer)
