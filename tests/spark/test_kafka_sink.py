"""Rows into a real Kafka: each once for readers of what is committed, whatever broke, and mistakes in words."""

from __future__ import annotations

import itertools
import json
import logging
import random
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.spark.sinks.conformance import Check, Promise, Trial, checks, name_of
from strandline.spark.sinks.kafkaclient import Cluster
from strandline.spark.sinks.kafkatarget import KafkaTarget, idle
from strandline.spark.sinks.target import Writer
from tests.kafkaserver import PASSWORD, Kafka

_numbers = itertools.count()


class Crash(BaseException):
    """The process is dead."""


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return kafka.create(f"out-{next(_numbers)}")


@pytest.fixture
def target(kafka: Kafka, topic: str) -> KafkaTarget:
    return KafkaTarget(Cluster(kafka.servers), topic, f"p{next(_numbers)}")


def by(generation: int, sink: str = "s1") -> Writer:
    return Writer(sink, generation, "sink 'out' of job 'j'")


def batch(*keys_and_values: tuple[str, str]) -> list[pa.RecordBatch]:
    columns = zip(*keys_and_values, strict=True)
    data = [pa.array([text.encode() for text in column], pa.binary()) for column in columns]
    return [pa.RecordBatch.from_arrays(data, ["key", "value"])]


def seen(kafka: Kafka, topic: str) -> list[str]:
    return sorted(message.value().decode() for message in kafka.messages(topic))


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
    assert seen(kafka, topic) == ["1", "2", "3"]


STEPS = ("kafka.lane_taken", "kafka.produced", "kafka.marked", "kafka.committed")


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_each_step_of_a_transaction(kafka: Kafka, topic: str, target: KafkaTarget, step: str) -> None:
    target.claim(by(1))
    first = target.connect(by(1), 0)
    first.write(batch(("a", "1")), None, "m1")

    def crash() -> None:
        raise Crash

    failpoints.arm(step, crash)
    with pytest.raises(Crash):
        target.connect(by(1), 0).write(batch(("a", "2")), "m1", "m2")
    failpoints.disarm_all()
    target.claim(by(2))
    connection = target.connect(by(2), 0)
    done = step == "kafka.committed"
    assert connection.reached() == ("m2" if done else "m1")
    if not done:
        connection.write(batch(("a", "2")), "m1", "m2")
    assert seen(kafka, topic) == ["1", "2"]


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
    assert seen(kafka, topic) == ["1", "new"]


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
    large = batch(("a", "1"), ("b", "".join(random.choices(string.printable, k=3000))))
    with pytest.raises(sl.errors.SinkError, match=f"a row of 3001 bytes is larger than topic '{small}' takes") as error:
        target.connect(by(1), 0).write(large, None, "m1")
    assert "max.message.bytes is 2000" in str(error.value)
    assert not target.may_pass(error.value)
    # Where the topic could not be asked, the broker is the one that refuses.
    target.limit = 1_000_000
    with pytest.raises(sl.errors.SinkError, match="larger than topic"):
        target.connect(by(1), 0).write(large, None, "m1")
    assert target.connect(by(1), 0).reached() is None
    assert seen(kafka, small) == []


def test_a_wrong_password_is_said_and_not_shown(kafka: Kafka, topic: str, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    right = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "payments"}
    good = KafkaTarget(Cluster(kafka.secured, {**right, "kafka.sasl.password": PASSWORD}), topic, "secured")
    good.claim(by(1))
    good.connect(by(1), 0).write(batch(("a", "1")), None, "m1")
    assert seen(kafka, topic) == ["1"]
    bad = KafkaTarget(Cluster(kafka.secured, {**right, "sasl.password": "not-that-secret"}), topic, "secured")
    with pytest.raises(sl.errors.ConfigurationError, match="does not let it in") as error:
        bad.claim(by(2))
    assert "not-that-secret" not in f"{error.value}{bad!r}{bad.cluster!r}{caplog.text}"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"servers": "kafka"}, "expected addresses with ports"),
        ({"topic": None}, "both or none of topic and topic_column"),
        ({"topic": "a b"}, "expected letters, digits"),
        ({"prefix": ""}, "prefix is '', expected letters"),
        ({"visibility": "soon"}, "expected 'checkpoint' or 'epoch'"),
        ({"options": {"acks": "1"}}, "options has 'acks', which the sink sets itself"),
        ({"options": {"kafka.sasl.jaas.config": "secret"}}, "only Java's clients know"),
        ({"options": "x=1"}, "options are not a dict"),
    ],
)
def test_what_is_refused_at_once(given: dict[str, Any], words: str) -> None:
    with pytest.raises(sl.errors.ConfigurationError, match=words) as error:
        sl.sinks.kafka(**{"servers": "kafka:9092", "topic": "t", **given})
    assert "secret" not in str(error.value)


# -- with Spark


def trial(spark: Any, kafka: Kafka, path: Path, visibility: Any = "checkpoint") -> Trial:
    topic = kafka.create(f"out-{next(_numbers)}")
    prefix = f"p{next(_numbers)}"

    def visible() -> list[int]:
        return [json.loads(message.value())["n"] for message in kafka.messages(topic)]

    return Trial(
        spark,
        make=lambda: sl.sinks.kafka(kafka.servers, topic, key="n", visibility=visibility, prefix=prefix),
        visible=visible,
        crashes=2,
    )


@pytest.mark.spark
@pytest.mark.parametrize("check", checks(Promise.EXACTLY_ONCE, Promise.LASTING), ids=name_of)
def test_exactly_once(spark: Any, kafka: Kafka, tmp_path: Path, check: Check) -> None:
    check(trial(spark, kafka, tmp_path))


@pytest.mark.spark
@pytest.mark.parametrize("check", checks(Promise.SEEN)[3:], ids=name_of)
def test_at_least_once(spark: Any, kafka: Kafka, tmp_path: Path, check: Check) -> None:
    check(trial(spark, kafka, tmp_path, "epoch"))
