"""Jobs between topics of a real Kafka: what they read, what they write, and what they say of rows that are gone."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import strandline as sl
from strandline.core import failpoints
from strandline.ends.kafka.target import KafkaConnection, KafkaTarget
from strandline.ends.target import Writer
from strandline.spark.sinks import transactional
from tests import kafkaserver
from tests.kafkaserver import Kafka
from tests.pages import run_page
from tests.spark import small
from tests.spark.harness import Case, eventually, fired, keepers, keepers_armed, settle

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def with_kafka(spark: Any, kafka: Kafka) -> Any:
    """The session, with Spark's connector."""
    kafkaserver.add_jars(spark, kafkaserver.connector)
    return spark


def put(kafka: Kafka, topic: str, users: str, partition: int = -1) -> None:
    kafka.put(topic, [(user, json.dumps({"user": user, "kind": "x", "v": 1})) for user in users], partition)


def stream_of(spark: Any, kafka: Kafka, topic: str, **options: str) -> sl.Stream:
    rows = sl.kafka.read(spark, kafka.servers, topic, commit_to="watched", options=options)
    event = F.from_json(F.col("value").cast("string"), "user string, kind string, v bigint").alias("e")
    return sl.stream(rows.select(event, "partition").select("e.*", "partition"), name="events")


def shown(kafka: Kafka, topic: str) -> dict[str, list[int]]:
    """Return the counts by key, in the order in which a reader sees them."""
    found = defaultdict(list)
    for message in kafka.messages(topic):
        said = json.loads(message.value())
        assert message.key().decode() == said["user"]
        found[said["user"]].append(said["n"])
    return dict(found)


def counts(users: str) -> dict[str, list[int]]:
    return {user: list(range(1, users.count(user) + 1)) for user in set(users)}


def committed(kafka: Kafka, topic: str) -> dict[int, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    admin = kafka.admin()
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("watched")]).values()
    found = future.result(10).topic_partitions
    return {each.partition: each.offset for each in found if each.topic == topic}


def delete_before(kafka: Kafka, topic: str, partition: int, offset: int) -> None:
    """As the topic's retention does."""
    from confluent_kafka import TopicPartition

    admin = kafka.admin()
    (done,) = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    done.result(10)


class Struck(KafkaTarget):
    """Kills the first Python worker that is about to commit, while `keepers_armed`."""

    def connect(self, writer: Writer, lane: int) -> KafkaConnection:
        if "STRANDLINE_FAILPOINTS_DIR" in os.environ:
            failpoints.arm("kafka.marked", partial(os.kill, os.getpid(), signal.SIGKILL))
        return super().connect(writer, lane)


@contextmanager
def warnings_of(name: str) -> Iterator[list[str]]:
    """Collect what a logger warns of meanwhile."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(name).addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger(name).removeHandler(handler)


USERS = "abcaab" * 5
Shown = dict[str, list[int]]


@dataclass
class Recorded:
    """What was seen of one job from topic to topic, in the order in which it happened."""

    kafka: Kafka
    source: str
    died: set[str] = field(default_factory=set)
    """Where a keeper and a delivery were killed."""
    after_kills: Shown = field(default_factory=dict)
    progress: tuple[str, int | None] = ("", None)
    """The source's name, and how many offsets it is behind, when a partition came and was read."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Those that were committed then."""
    refusal: str = ""
    """Of a start when rows are gone that were not read."""
    warnings: str = ""
    """Of one that goes on without them."""
    without_them: Shown = field(default_factory=dict)
    set_back: Shown = field(default_factory=dict)
    """When the job has begun once more at a savepoint from before the partition."""


@pytest.fixture(scope="module")
def recorded(with_kafka: Any, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A job whose keeper and delivery are killed, whose source grows and loses rows, and that is set back."""
    local_dir = Path(tempfile.mkdtemp(prefix="sl-"))
    with pytest.MonkeyPatch.context() as patch:
        # However few rows there are, tasks deliver them.
        patch.setattr(transactional, "_SMALL_BYTES", 0)
        yield record(with_kafka, kafka, Case(tmp_path_factory.mktemp("kafka"), local_dir))
    assert not keepers(local_dir)
    shutil.rmtree(local_dir)


def record(spark: Any, kafka: Kafka, case: Case) -> Recorded:
    from confluent_kafka.admin import NewPartitions

    source, target, saved = kafka.create("jobs-in", 2), kafka.create("jobs-out", 3), case.root / "saved"
    seen = Recorded(kafka, source)

    def start(restore: Path | None = None, **options: str) -> sl.Run:
        sink = sl.sinks.kafka(kafka.servers, target, key="user", name="out")
        sink.target = Struck(sink.target.cluster, target, sink.target.prefix)
        stream, again = stream_of(spark, kafka, source, **options), sl.Restart(attempts=5, delay="50ms")
        return small.job(stream, case.root, case.local_dir, sink=sink, restart=again).start(spark, restore=restore)

    put(kafka, source, USERS)
    with keepers_armed(spark, case.root / "fired", "keeper.epoch.middle=kill"), start() as run:
        settle(run)
        seen.died, seen.after_kills = fired(case.root / "fired"), shown(kafka, target)
        run.savepoint(saved)
        admin = kafka.admin()
        for done in admin.create_partitions([NewPartitions(source, 3)]).values():
            done.result(10)
        put(kafka, source, "dada", 2)
        eventually(lambda: (settle(run), shown(kafka, target))[1] == counts(USERS + "dada"), "they are read", 60, 0.5)
        (told,) = run.status().source_progress
        seen.progress = told.name, told.offsets_behind
        eventually(lambda: sum(committed(kafka, source).values()) == len(USERS) + 4, "offsets are committed", 20, 0.25)
        seen.offsets = committed(kafka, source)
    # Retention deletes two rows that were not read.
    put(kafka, source, "ddd", 2)
    delete_before(kafka, source, 2, 6)
    with pytest.raises(sl.errors.ConfigurationError) as error:
        start()
    seen.refusal = str(error.value)
    put(kafka, source, "abd")
    with warnings_of("strandline") as said, start(failOnDataLoss="false") as run:
        settle(run)
        seen.without_them = shown(kafka, target)
    seen.warnings = "\n".join(said)
    with start(saved, failOnDataLoss="false") as run:
        settle(run)
        seen.set_back = shown(kafka, target)
    return seen


@pytest.mark.long
def test_each_count_comes_once_though_a_keeper_and_a_delivery_are_killed(recorded: Recorded) -> None:
    assert recorded.died == {"keeper.epoch.middle", "kafka.marked"}
    assert recorded.after_kills == counts(USERS)


def test_a_partition_that_comes_while_the_job_runs_is_read_and_its_offsets_are_committed(recorded: Recorded) -> None:
    assert recorded.progress == ("events", 0)
    assert recorded.offsets[2] == 4


def test_rows_that_retention_has_deleted_before_they_were_read_are_told_of(recorded: Recorded) -> None:
    assert (
        f"source 'events': Kafka at {recorded.kafka.servers} has lost rows: topic '{recorded.source}', partition 2: "
        "the job continues at offset 4, but the oldest row has offset 6\n" in recorded.refusal
    )


def test_a_job_goes_on_without_them_and_reads_what_came_while_it_was_away(recorded: Recorded) -> None:
    assert "oldest row has offset 6. The job continues without them" in recorded.warnings
    assert recorded.without_them == counts(USERS + "dada" + "d" + "abd")


def test_a_job_that_is_set_back_reads_again_what_is_there_and_kafka_keeps_what_it_was_given(recorded: Recorded) -> None:
    once, again = recorded.without_them, counts(USERS + "d" + "abd")
    assert recorded.set_back == {user: [*once[user], *again[user][USERS.count(user) :]] for user in once}


def transact(kafka: Kafka, topic: str, users: str, name: str, *, commit: bool) -> None:
    producer = kafka.begin(name)
    for user in users:
        producer.produce(topic, json.dumps({"user": user, "kind": "x", "v": 1}), user)
    assert producer.flush(30) == 0
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def delete_topic(kafka: Kafka, topic: str) -> None:
    admin = kafka.admin()
    for done in admin.delete_topics([topic]).values():
        done.result(10)
    eventually(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone")


@pytest.mark.long
def test_what_is_committed_of_a_topic_that_is_the_one_it_was(with_kafka: Any, kafka: Kafka, case: Case) -> None:
    """Rows of aborted transactions are not read. A topic is created anew, while the job runs, with more rows than it read."""
    spark, source = with_kafka, kafka.create("anew", 1)
    sink = sl.sinks.memory()

    def start(**options: str) -> sl.Run:
        return small.job(stream_of(spark, kafka, source, **options), case.root, case.local_dir, sink=sink).start(spark)

    for users, commit in (("aab", True), ("abc", False), ("ca", True)):
        transact(kafka, source, users, "anew", commit=commit)
    with start() as run:
        settle(run)
        assert small.rows_of(sink) == small.counted("aabca")
        assert run.status().source_progress[0].offsets_behind == 0
        delete_topic(kafka, source)
        kafka.create(source, 1)
        put(kafka, source, "d" * 20)
        with pytest.raises(sl.errors.StrandlineError):
            settle(run)
    # Whether Spark or the next checkpoint was first to find it.
    with pytest.raises(sl.errors.ConfigurationError, match="deleted and recreated"):
        start()
    with start(failOnDataLoss="false") as run:
        settle(run)
        assert small.rows_of(sink) == small.counted("aabca" + "d" * 20)
    with start() as run:
        before = run.checkpoint(60)
        put(kafka, source, "d")
        settle(run)
        assert small.rows_of(sink) == small.counted("aabca" + "d" * 21)
        # What it would read again is gone: it stays where it is.
        delete_before(kafka, source, 0, 21)
        with pytest.raises(
            sl.errors.ConfigurationError, match="continues at offset 20, but the oldest row has offset 21"
        ):
            run.rollback(before.checkpoint)
        put(kafka, source, "d")
        settle(run)
        assert small.rows_of(sink) == small.counted("aabca" + "d" * 22)


@pytest.mark.soak
def test_broker_and_driver_are_killed_in_turn(kafka: Kafka) -> None:
    """What `make demo-kafka` shows, with a broker and a driver of its own."""
    done = subprocess.run(
        [sys.executable, "scripts/demo_kafka.py", "--seconds", "90"], cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "equal the batch computation, each once" in done.stdout


def test_the_page(with_kafka: Any, kafka: Kafka, tmp_path: Path) -> None:
    """Times are told apart by partition, and one without rows holds up the others only for a while."""
    edits = {
        'sl.session("fraud", **sl.kafka.session_settings())': "session",
        "one:9092,two:9092": kafka.servers,
        '"checkpoints", every="5s"': f'"{tmp_path}", every="200ms"',
        'idle="30s"': 'idle="1s"',
    }

    def edit(code: str) -> str:
        if "from_avro" in code or "kafka.versions" in code:
            return ""
        for old, new in edits.items():
            assert old in code
            code = code.replace(old, new)
        return code

    kafka.create("payments", 2)
    kafka.create("spent", 1)

    def pay(card: str, cents: int, at: str, partition: int) -> None:
        said = {"card": card, "cents": cents, "at": f"2026-11-01T10:{at}Z"}
        kafka.put("payments", [(card, json.dumps(said))], partition)

    # The second partition is two minutes behind: nothing of it is late.
    for card, cents, at, partition in [("a", 5, "02:01", 0), ("b", 1, "00:01", 1), ("a", 7, "04:30", 0)]:
        pay(card, cents, at, partition)
    with run_page("kafka.md", 1, edit, session=with_kafka)["job"].start(with_kafka):

        def spent() -> list[tuple[str, int]]:
            found = [json.loads(message.value()) for message in kafka.messages("spent")]
            return sorted((each["card"], each["cents"]) for each in found)

        eventually(lambda: spent() == [("a", 5), ("b", 1)], "windows are closed by the first partition alone", 60, 0.25)


def test_avro_as_the_page_has_it(with_kafka: Any, kafka: Kafka) -> None:
    kafkaserver.add_jars(with_kafka, kafkaserver.avro)
    record = b"\x08card\x54"
    values = pa.array([record, b"\0\0\0\0\7" + record, b"\xff"])
    rows = with_kafka.createDataFrame(pa.table({"value": values, "at": [1, 2, 3]}))
    page = run_page("kafka.md", 2, lambda code: code if "from_avro" in code else "", rows=rows.where("at != 2"))
    assert page["decoded"].collect() == [("card", 42)]
    behind = page["from_avro"](F.expr("substring(value, 6)"), page["PAYMENT"]).alias("p")
    assert rows.where("at = 2").select(behind).select("p.*").collect() == [("card", 42)]


def test_what_becomes_of_columns(with_kafka: Any, kafka: Kafka) -> None:
    spark, topic, other = with_kafka, kafka.create("columns", 4), kafka.create("columns-of-spark", 4)
    now = datetime.now(UTC).replace(microsecond=0)
    rows = spark.createDataFrame(
        [(f"user-{at}", at, at * 0.5, [at, at + 1], now, topic) for at in range(20)],
        "user string, n bigint, share double, list array<int>, at timestamp, topic string",
    )
    sink = sl.sinks.kafka(
        kafka.servers, topic_column="topic", key="user", headers={"by": "n"}, timestamp="at", visibility="epoch"
    )
    sink.try_out(rows.limit(0))
    sink.write(rows, 1)
    found = {message.key().decode(): message for message in kafka.messages(topic)}
    one = found["user-7"]
    assert json.loads(one.value()) == {"user": "user-7", "share": 3.5, "list": [7, 8]}
    assert (one.headers(), one.timestamp()[1]) == ([("by", b"7")], 1000 * int(now.timestamp()))
    # A key's partition is where Java's clients look.
    keys = rows.selectExpr("user as key", "if(n % 2 = 0, 'x', null) as value", "topic")
    keys.drop("topic").write.format("kafka").option("kafka.bootstrap.servers", kafka.servers).option(
        "topic", other
    ).save()
    theirs = {message.key().decode(): message.partition() for message in kafka.messages(other)}
    assert {key: message.partition() for key, message in found.items()} == theirs
    # A value that is null is a tombstone.
    third = kafka.create("tombstones", 1)
    sl.sinks.kafka(kafka.servers, third, key="key", value="value", visibility="epoch").write(keys, 1)
    assert sorted(message.value() or b"" for message in kafka.messages(third)) == [b""] * 10 + [b"x"] * 10


def test_what_is_refused_before_a_job_starts(with_kafka: Any, kafka: Kafka) -> None:
    rows = with_kafka.range(0).selectExpr("id", "cast(id as string) as user", "current_timestamp() as at")
    topic = kafka.create("refusing", 1)
    cases = [
        ({"key": "usr"}, "key names a column 'usr' that the rows do not have: they have id, user, at"),
        ({"partition": "user"}, "partition is column 'user' of type string, expected integer"),
        ({"headers": "user"}, "headers is column 'user' of type string, expected array"),
        ({"topic": "missing"}, f"Kafka at {kafka.servers} has no topic 'missing'\n  next step: create it"),
        ({"servers": "127.0.0.1:1"}, "Kafka at 127.0.0.1:1 does not answer"),
        ({"options": {"sasl.password": "hush", "compression.type": "hush"}}, "the client refuses its options"),
    ]
    for given, words in cases:
        sink = sl.sinks.kafka(**{"servers": kafka.servers, "topic": topic, **given})
        with pytest.raises(sl.errors.ConfigurationError) as error:
            sink.try_out(rows)
        assert words in str(error.value)
        assert "hush" not in str(error.value)
    with pytest.raises(sl.errors.ConfigurationError, match="expected a name, several, or a pattern"):
        sl.kafka.read(with_kafka, kafka.servers, [])
