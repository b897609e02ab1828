"""The sink of Kafka: each row once for readers of what is committed, as of every sink, whatever breaks in a lane."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import strandline as sl
from strandline.core import failpoints
from strandline.core.ids import Epoch
from strandline.core.kafkaclient import Cluster, call_within
from strandline.ends.kafka import target as kafka_target
from strandline.ends.kafka.record import LaneRecord, SinkRecord
from strandline.ends.kafka.target import KafkaConnection, KafkaTarget, idle
from strandline.spark.sinks.kafkasink import KafkaSink, KafkaSinkAtOnce, MessageColumns
from strandline.testing.sinks.conformance import Check, Promise, checks, name_of
from strandline.testing.sinks.trial import TASKS
from tests.crashing import Crash
from tests.ends.inprocess import OF_WAITING_ROWS
from tests.ends.kafkatargets import FRESH, Numbers, batch, by, expect, forget, sink_of, trial, write_on
from tests.kafkaserver import Kafka
from tests.spark.harness import eventually

EXACT = checks(Promise.EXACTLY_ONCE, Promise.LASTING)

WAITING = [check for check in checks(Promise.WAITS, Promise.LASTING) if check not in EXACT]

# One lane is written by the thread that a trial sees, to its last line: there a crash may come anywhere.
MANY, ONE = "many lanes", "one lane"

_UNANSWERED_S = 1.0
"""The wait for an answer while the broker gives none."""

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
def frozen(kafka: Kafka, target: KafkaTarget) -> Iterator[None]:
    """Freeze the broker, which may do later what it was asked to. No wait for an answer, however long, gets one."""
    before = target.cluster.answer_s
    kafka.freeze()
    target.cluster.answer_s = _UNANSWERED_S
    try:
        yield
    finally:
        target.cluster.answer_s = before
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
@pytest.mark.long
def test_what_waits_for_a_broker_that_is_away(kafka: Kafka, target: KafkaTarget, check: Check) -> None:
    target.cluster.answer_s = 5.0
    made = trial(kafka, target)
    made.away, made.mute = lambda: frozen(kafka, target), mute

    def make() -> KafkaSink:
        sink = sink_of(target, patience_s=0)
        if target.cluster.answer_s == _UNANSWERED_S:
            sink.start_patience_s = 2 * _UNANSWERED_S
        return sink

    made.make = make
    check(made)


def test_at_least_once(kafka: Kafka, target: KafkaTarget) -> None:
    for check in checks(Promise.SEEN):
        made = trial(kafka, target)
        target.topic = kafka.create(f"out-{next(FRESH)}")
        made.make = lambda: KafkaSinkAtOnce(cast(MessageColumns, Numbers()), target, None)
        check(made)


# -- lanes


def test_a_lane_goes_on_where_it_was(kafka: Kafka, topic: str, target: KafkaTarget) -> None:
    with pytest.raises(
        sl.errors.CorruptionError, match="has no record of the sink, and rows that the checkpoint lists may be"
    ):
        target.claim(replace(by(1), has_claimed=True))
    assert f"{target.prefix}-marks" not in kafka.admin().list_topics(timeout=30).topics
    target.claim(by(1))
    target.claim(replace(by(1), has_claimed=True))
    connection = target.connect(by(1), 0)
    assert connection.reached() is None
    connection.write(batch(("a", "1"), ("b", "2")), None, "m1")
    connection.write(batch(("a", "3")), "m1", "m2")
    connection.close()
    assert target.connect(by(1), 0).reached() == "m2"
    assert target.connect(by(1), 1).reached() is None
    assert target.connect(by(1, "s2"), 0).reached() is None
    expect(kafka, topic, "1", "2", "3")


def test_a_kept_connection_is_not_used_after_another_process_has_written_the_lane(
    kafka: Kafka, topic: str, target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows are delivered by the driver, many by tasks of any worker: each keeps its connections."""
    target.claim(by(1))
    connection = target.connect(by(1), 0)
    connection.write(batch(("a", "1")), None, "m1")
    connection.close()
    assert target.connect(by(1), 0) is connection
    connection.close()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("strandline.ends.kafka.target.idle", type(idle)())
        elsewhere.setattr("strandline.ends.kafka.target._records", {})
        connection = target.connect(by(1), 0)
        connection.write(batch(("a", "2")), "m1", "m2")
        connection.end()
    connection = target.connect(by(1), 0)
    assert connection.reached() == "m2"
    connection.write(batch(("a", "3")), "m2", "m3")
    expect(kafka, topic, "1", "2", "3")


def test_a_kept_connection_does_not_wait_for_a_transaction_that_another_process_left_open(
    kafka: Kafka, topic: str, target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka would not say before a minute has passed what becomes of the lane's record."""

    def crash() -> None:
        raise Crash

    target.claim(by(1))
    kept = target.connect(by(1), 0)
    kept.write(batch(("a", "1")), None, "m1")
    kept.close()
    failpoints.arm("kafka.marked", crash)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("strandline.ends.kafka.target.idle", type(idle)())
        elsewhere.setattr("strandline.ends.kafka.target._records", {})
        with pytest.raises(Crash):
            target.connect(by(1), 0).write(batch(("a", "2")), "m1", "m2")
    failpoints.disarm_all()
    begun = time.monotonic()
    connection = target.connect(by(1), 0)
    assert time.monotonic() - begun < 8
    assert connection.reached() == "m1"
    connection.write(batch(("a", "2")), "m1", "m2")
    expect(kafka, topic, "1", "2")


def threads_of_clients() -> int:
    """Return how many threads Kafka's clients have in this process."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("rdk:") for name in names)


def test_one_producer_a_lane_writes_many_deliveries_and_ends_with_the_run(
    kafka: Kafka, target: KafkaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, made, before = kafka_target.create_client, list[str](), threads_of_clients()

    def counted(kind: Any, cluster: Cluster, settings: Any) -> Any:
        made.append(settings["transactional.id"])
        return create(kind, cluster, settings)

    monkeypatch.setattr(kafka_target, "create_client", counted)
    played = trial(kafka, target)
    sink = played.start()
    assert sink.commit(played.stage(sink, 1)) == []
    assert len(set(made)) == TASKS
    made.clear()
    for epoch in range(2, 6):
        assert sink.commit(played.stage(sink, epoch)) == []
    assert not made
    played.expect(1, 2, 3, 4, 5)
    sink.close()
    eventually(lambda: threads_of_clients() <= before, "its clients are gone", 60)


@pytest.mark.long
def test_a_broker_that_is_restarted_between_deliveries(kafka: Kafka, target: KafkaTarget) -> None:
    played = trial(kafka, target)
    sink = played.start()
    sink.patience_s = 60
    for epoch in range(1, 7):
        if epoch in (3, 5):
            kafka.end() if epoch == 3 else kafka.kill()
            kafka.run()
        assert sink.commit(played.stage(sink, epoch)) == []
    played.expect(*range(1, 7))
    sink.close()


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


# Lane 0 was there, lane 5 is new. Once it is taken, it is like any other.
@pytest.mark.parametrize(
    ("at", "lane"),
    [
        *((at, lane) for at in ("", STEPS[0]) for lane in (0, 5)),
        *((at, 0) for at in STEPS[1:3]),
        *(pytest.param(at, 5, marks=pytest.mark.soak) for at in STEPS[1:3]),
    ],
)
@pytest.mark.long
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
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, KafkaConnection) and each._target is target]
    assert not kept, "the client's error keeps its frames, and what they refer to"
    with pytest.raises(sl.errors.FencedError, match="run 2 of the job writes to Kafka; this is run 1"):
        target.connect(by(1), lane)
    with pytest.raises(sl.errors.FencedError):
        target.claim(by(1))
    connection = target.connect(by(2), lane)
    assert connection.reached() == since
    connection.write(batch(("a", "new")), since, "m3")
    expect(kafka, topic, "1", "new")


@pytest.mark.parametrize("step", ["kafka.claimed", "kafka.lane_claimed"])
@pytest.mark.long
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


@pytest.mark.parametrize(
    "steps",
    [
        ("kafka.produced", "kafka.decided"),
        pytest.param(("kafka.marked", "kafka.committed"), marks=pytest.mark.soak),
        pytest.param((), marks=pytest.mark.soak),
    ],
    ids=lambda steps: " and ".join(steps) or "between",
)
@pytest.mark.long
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


@pytest.mark.parametrize("rival", [False, True], ids=["", "and was made anew by another job"])
@pytest.mark.long
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
    # Nothing answers it.
    target.cluster.answer_s = 1.0
    with pytest.raises(sl.errors.StrandlineError):
        connection.write(batch(("a", "2")), "m1", "m2")
    connection.close()
    target.cluster.answer_s = 3.0
    if rival:
        target.claim(by(1, "s2"))
    for done in admin.delete_consumer_groups([f"{target.prefix}-s1-0"]).values():
        with suppress(KafkaException):
            done.result(10)
    with pytest.raises(sl.errors.CorruptionError, match=f"topic '{marks}' .* deleted while the job ran.* came to m1"):
        target.connect(by(1), 0)
    expect(kafka, topic, "1")
    found = SinkRecord(target.cluster, target.prefix, by(1)).read(committed=True)
    assert (found.claims, found.lanes) == ({1: []}, {0})


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
