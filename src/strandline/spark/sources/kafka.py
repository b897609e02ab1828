"""Kafka as a source, beyond what Spark's connector does: rows that are gone are told of, and checkpoints are, to Kafka.

The connector's own client is asked, with the source's own settings: whatever Spark can reach can be asked here.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import ConfigurationError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.spark.base.said import reason_of
from strandline.spark.sources.checks import Relation, numbered_relations, source_numbers

log = logging.getLogger(__name__)

COMMIT_GROUP = "strandline.commit.group"
"""The source's option that names the group whose offsets are committed."""
_CONNECTOR = "org.apache.spark.sql.kafka010."
_ANSWER_S = 10
_SHOWN = 5

Offsets = dict[tuple[str, int], int]
"""By topic and partition: the first row that was not read yet."""


@dataclass(frozen=True, eq=False)
class KafkaSource:
    """One of the job's sources that reads Kafka."""

    name: str
    number: int
    """Spark's."""
    line: int
    """Where it stands in Spark's log of offsets."""
    relation: Relation

    @property
    def servers(self) -> str:
        return self.relation.options.get("kafka.bootstrap.servers", "")

    @property
    def goes_on_without(self) -> bool:
        """Whether the program says that rows may be gone."""
        return self.relation.options.get("failondataloss", "true").lower() == "false"

    @property
    def text(self) -> str:
        """For people: which source."""
        return f"source '{self.name}'" if self.name else "the source"

    def reached(self, files: Mapping[str, bytes], batch: int) -> Offsets:
        """Return how far it was read after a batch; where it began, if there was none."""
        if batch >= 0:
            lines = files[f"offsets/{batch}"].splitlines()[2:]
            return _parsed(lines[self.line]) if self.line < len(lines) else {}
        # A null byte, the version, and then the same.
        began = files.get(f"sources/{self.number}/0", b"")
        return _parsed(began.partition(b"\n")[2])


def _parsed(line: bytes) -> Offsets:
    if not line.startswith(b"{"):
        return {}
    said = json.loads(line)
    return {(topic, int(at)): offset for topic, parts in said.items() for at, offset in parts.items() if offset >= 0}


def kafka_sources(source: DataFrame, names: Sequence[str]) -> list[KafkaSource]:
    """Return those sources of a job that read Kafka."""
    relations, lines = numbered_relations(source), source_numbers(source)
    return [
        KafkaSource(names[at] if len(names) == len(relations) else "", at, lines.index(at), relation)
        for at, relation in enumerate(relations)
        if relation is not None and relation.implementation.startswith(_CONNECTOR)
    ]


def check_kept(spark: SparkSession, sources: Sequence[KafkaSource], files: Mapping[str, bytes], batch: int) -> None:
    """Check that Kafka still has all rows from where the sources go on, as these files of Spark's say.

    Raises ConfigurationError, with topics, partitions and offsets, unless the program says that rows may be gone; then
    it is a warning. Raises UnavailableError if Kafka does not answer.
    """
    if batch >= 0 and f"offsets/{batch}" not in files:
        return
    for source in sources:
        if reached := source.reached(files, batch):
            _check_kept(spark, source, reached)


def _check_kept(spark: SparkSession, source: KafkaSource, reached: Offsets) -> None:
    with _client(spark, source) as client:
        ends = client.ends(reached)
    found = list(filter(None, (_gone(at, wanted, ends.get(at)) for at, wanted in sorted(reached.items()))))
    if not found:
        return
    more = f"; and {len(found) - _SHOWN} other partitions" if len(found) > _SHOWN else ""
    what = f"{source.text}: rows are gone that Kafka at {source.servers} had: {'; '.join(found[:_SHOWN])}{more}"
    if source.goes_on_without:
        log.warning("%s. The job goes on without them, as failOnDataLoss=false says", what)
        return
    raise ConfigurationError(
        what,
        hint="restore a newer checkpoint or savepoint, if there is one; to lose these rows and go on, start the job "
        "once with option('failOnDataLoss', 'false'); and have the topic keep rows (retention.ms, retention.bytes) for "
        "longer than the job may be away",
    )


def _gone(at: tuple[str, int], wanted: int, ends: tuple[int, int] | None) -> str:
    where = f"topic '{at[0]}', partition {at[1]}"
    if ends is None:
        return f"{where}: the job goes on at offset {wanted}, and there is no such partition any more"
    oldest, newest = ends
    if wanted < oldest:
        return f"{where}: the job goes on at offset {wanted}, and the oldest that is kept is {oldest}"
    if wanted > newest:
        return f"{where}: the job goes on at offset {wanted}, and it ends at {newest}: it was made anew"
    return ""


class _Client:
    """Kafka's own client for administrators, in Spark's JVM."""

    def __init__(self, spark: SparkSession, source: KafkaSource) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._source = source
        # Where the connector is found is known to Spark, and not to each of the JVM's threads.
        session: Any = spark._jsparkSession
        jvm.java.lang.Thread.currentThread().setContextClassLoader(session.sharedState().jarClassLoader())
        settings = jvm.java.util.Properties()
        own = {"default.api.timeout.ms": str(1000 * _ANSWER_S), "request.timeout.ms": "5000"}
        given = source.relation.options.items()
        given_to_client = {name.removeprefix("kafka."): value for name, value in given if name.startswith("kafka.")}
        for name, value in (given_to_client | own).items():
            settings.setProperty(name, value)
        self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)

    def close(self) -> None:
        with suppress(Py4JError):
            self._admin.close(self._jvm.java.time.Duration.ofSeconds(2))

    def ends(self, partitions: Offsets) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the oldest offset of each partition and the one behind its newest; nothing of those that are gone."""
        there = {at for topic in {topic for topic, _ in partitions} for at in self._partitions(topic)}
        wanted = [at for at in partitions if at in there]
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        oldest, newest = (self._offsets(wanted, each) for each in (spec.earliest(), spec.latest()))
        return {at: (oldest[at], newest[at]) for at in wanted}

    def _partitions(self, topic: str) -> list[tuple[str, int]]:
        names = self._jvm.java.util.ArrayList()
        names.add(topic)
        try:
            described = self._answer(self._admin.describeTopics(names).topicNameValues().get(topic))
        except Py4JError as error:
            if "UnknownTopicOrPartitionException" in str(error):
                return []
            raise
        return [(topic, part.partition()) for part in described.partitions()]

    def _offsets(self, partitions: Sequence[tuple[str, int]], spec: Any) -> dict[tuple[str, int], int]:
        asked = self._jvm.java.util.HashMap()
        keys = {at: self._partition(at) for at in partitions}
        for key in keys.values():
            asked.put(key, spec)
        result = self._admin.listOffsets(asked)
        return {at: self._answer(result.partitionResult(key)).offset() for at, key in keys.items()}

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit a group's offsets, without being a member of it."""
        told, made = self._jvm.java.util.HashMap(), self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata
        for at, offset in offsets.items():
            told.put(self._partition(at), made(offset))
        self._answer(self._admin.alterConsumerGroupOffsets(group, told).all())

    def _partition(self, at: tuple[str, int]) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(*at)

    def _answer(self, future: Any) -> Any:
        return future.get(_ANSWER_S + 1, self._jvm.java.util.concurrent.TimeUnit.SECONDS)


@contextmanager
def _client(spark: SparkSession, source: KafkaSource) -> Iterator[_Client]:
    client = None
    try:
        client = _Client(spark, source)
        yield client
    except Py4JError as error:
        raise UnavailableError(
            f"{source.text}: Kafka at {source.servers} does not say what it has: {reason_of(str(error))}"
        ) from None
    finally:
        if client is not None:
            client.close()


class KafkaCommits:
    """Tells Kafka how far each checkpoint came, where a source asks for it: for tools that watch a group's lag.

    Nothing reads it back: where a job goes on, its checkpoints say. What Kafka does not take now, it is told with the
    next checkpoint. `captured` and `completed` are called by one thread; they do no I/O.
    """

    def __init__(self, spark: SparkSession, sources: Sequence[KafkaSource]) -> None:
        self._spark = spark
        self._sources = {source: group for source in sources if (group := source.relation.options.get(COMMIT_GROUP))}
        self._waiting: dict[CheckpointId, dict[KafkaSource, Offsets]] = {}
        self._lock = threading.Condition()
        self._due: dict[KafkaSource, Offsets] = {}
        self._is_closed = False
        self._is_failing = False
        self._thread: threading.Thread | None = None

    def captured(self, checkpoint: CheckpointId, batch: int, files: Mapping[str, bytes]) -> None:
        """Remember how far the sources were when a checkpoint was taken."""
        if self._sources:
            self._waiting[checkpoint] = {source: source.reached(files, batch) for source in self._sources}

    def completed(self, checkpoint: CheckpointId) -> None:
        """A checkpoint was published."""
        found = self._waiting.get(checkpoint)
        self._waiting = {number: each for number, each in self._waiting.items() if number > checkpoint}
        if not found:
            return
        with self._lock:
            self._due = found
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="strandline-kafka-commits", daemon=True)
                self._thread.start()
            self._lock.notify()

    def close(self) -> None:
        """Tell what is due yet, and end."""
        with self._lock:
            self._is_closed = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(2 * _ANSWER_S)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._due or self._is_closed)
                due, self._due = self._due, {}
            if not due:
                return
            for source, offsets in due.items():
                self._tell(source, offsets)

    def _tell(self, source: KafkaSource, offsets: Offsets) -> None:
        group = self._sources[source]
        try:
            with _client(self._spark, source) as client:
                client.commit(group, offsets)
            self._is_failing = False
        except UnavailableError as error:
            # One line for as long as it lasts.
            if not self._is_failing:
                log.warning("the offsets of group '%s' are not committed for now: %s", group, error)
            self._is_failing = True
