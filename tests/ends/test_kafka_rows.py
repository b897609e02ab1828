"""What Kafka refuses: rows that are too large or do not fit their topic, passwords; and which errors pass by themselves."""

from __future__ import annotations

import logging
import pickle
import random
import string
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

import strandline as sl
from strandline.core.ids import Epoch, Generation
from strandline.core.kafkaclient import ClientErrors, Cluster, translate_error
from strandline.ends.kafka import producer as kafkarows
from strandline.ends.kafka import topic as recordtopic
from strandline.ends.kafka.producer import LIMIT, DeliveryReports, UnfitRowError, flush_rows, produce, producer_settings
from strandline.ends.kafka.record import LaneMessage
from strandline.ends.kafka.target import KafkaTarget
from strandline.ends.target import Writer
from strandline.spark.base.task_errors import SEAL
from strandline.spark.sinks import kafkasink
from strandline.spark.sinks.kafkasink import KafkaSinkAtOnce, MessageColumns
from strandline.storage.place import Place
from tests.ends.kafkatargets import FRESH, batch, by, expect, write_at_last
from tests.kafkaserver import PASSWORD, Kafka


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

    def in_another_process(df: Any, task: Any, shape: Any) -> None:
        monkeypatch.setattr(kafkarows, "_batch_bytes", {})
        monkeypatch.setattr(kafkasink, "_producers", {})
        try:
            pickle.loads(pickle.dumps(task))(iter(batch(*[("a", "." * 100)] * 100)), None)
        except sl.errors.UnavailableError as error:
            raise RuntimeError(SEAL.mark(error)) from None

    monkeypatch.setattr(kafkasink, "create_client", lambda kind, cluster, settings: Producer(settings))
    monkeypatch.setattr(kafkasink, "write_tasks", in_another_process)
    sink = KafkaSinkAtOnce(
        cast(MessageColumns, SimpleNamespace(messages=str)), KafkaTarget(Cluster("nobody:1", options), "t", "p"), None
    )
    for _ in range(3):
        with pytest.raises(RuntimeError):
            sink.write(cast(Any, None), Epoch(1))
    sink.write(cast(Any, None), Epoch(1))
    assert heard == [1_000_000, 125_000, 15_625, 1953]


def test_a_row_that_is_too_large_is_said_to_be(kafka: Kafka, target: KafkaTarget) -> None:
    small = kafka.create(f"small-{next(FRESH)}", max_message_bytes="2000")
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


def test_rows_that_are_too_large_together_are_none_that_is(kafka: Kafka, target: KafkaTarget, monkeypatch: Any) -> None:
    """The topic's limit is not known: it was lowered, there are many topics, or the user may not see it."""
    monkeypatch.setattr(kafkarows, "_batch_bytes", {})
    target.topic = kafka.create(f"small-{next(FRESH)}", 1, max_message_bytes="2000")
    target.claim(by(1))
    values = ["".join(random.choices(string.ascii_letters, k=100)) for _ in range(100)]
    write_at_last(target, batch(*(("a", value) for value in values)))
    expect(kafka, target.topic, *sorted(values))


def test_a_record_may_be_larger_than_rows_may_be(kafka: Kafka, target: KafkaTarget) -> None:
    """It says of each partition where the rows are."""
    many = range(100)
    target.topic, target.limit = kafka.create(f"small-{next(FRESH)}", len(many), max_message_bytes="300"), 300
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
    compacted = kafka.create(f"compacted-{next(FRESH)}", cleanup_policy="compact")
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

    target.topic = kafka.create(f"strict-{next(FRESH)}", 1, message_timestamp_before_max_ms="0")
    target.claim(by(1))
    with pytest.raises(sl.errors.UnavailableError, match="refuses the time of the clock of"):
        target.connect(by(1), 0).write(batch(("a", "1")), None, "m1")
    # Of several, the client does not say what is wrong: they are tried one by one.
    with pytest.raises(target.refusing, match="as of a clock that is ahead"):
        target.connect(by(1), 1).write(batch(("a", "1"), ("a", "2")), None, "m1")
    # The record has the time of the brokers.
    marks = list(kafka.messages(f"{target.prefix}-marks"))
    assert {message.timestamp()[0] for message in marks} == {TIMESTAMP_LOG_APPEND_TIME}


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
        ("INVALID_TRANSACTION_TIMEOUT", sl.errors.ConfigurationError),
    ],
)
def test_which_errors_pass_by_themselves(names: str, kind: type[Exception]) -> None:
    from confluent_kafka import KafkaError

    for name in names.split():
        code = getattr(KafkaError, name)
        # A producer has this error for good, as it has that of another one in its place.
        error = KafkaError(code, fatal=name == "INVALID_TRANSACTION_TIMEOUT")
        assert type(translate_error(error, "sink 'out'", Cluster("one:9092"))) is kind, name


def test_a_claim_that_kafka_refuses_ends_no_job_that_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart claims the target first: it was let in before."""
    from confluent_kafka import KafkaError, KafkaException

    def refuse(*_: object) -> bool:
        raise KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED))

    monkeypatch.setattr(recordtopic, "_is_fit", refuse)
    writer = Writer("sink", Generation(2), "out", "job", Place(url="memory://"), "life")
    with pytest.raises(sl.errors.AccessError, match="needs a topic"):
        KafkaTarget(Cluster("127.0.0.1:1"), "out", "p").claim(writer)
