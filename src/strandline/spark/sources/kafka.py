"""Checks of Kafka sources beyond Spark's connector, and commits of their offsets.

It detects rows that Kafka has deleted and topics that were recreated. It uses the connector's client with the source's
settings, and so reaches every cluster that Spark reaches.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from strandline.checkpoint.source_log import read_offsets
from strandline.core.errors import ConfigurationError, ConflictError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.spark.base.spark_errors import reason_of
from strandline.spark.sources.checks import KAFKA, Relation, numbered_relations, source_numbers
from strandline.spark.sources.log import offset_lines

log = logging.getLogger(__name__)

COMMIT_GROUP = "strandline.commit.group"
"""The source's option for the group whose offsets are committed."""
_TIMEOUT_S = 10
_MAX_NAMES = 5

SAME_OFFSETS = "strandline.same.offsets"
"""The source's option for topics with another id that have the same rows at the same offsets."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"

_offsets = msgspec.json.Decoder(dict[str, dict[int, int]])

Offsets = dict[tuple[str, int], int]
"""By topic and partition: the offset of the next row to read."""
Ids = dict[str, str]
"""By topic name: the topic's id, "" if the broker has no ids."""


@dataclass(frozen=True, eq=False)
class KafkaSource:
    """A source of the job that reads Kafka."""

    name: str
    number: int
    """Spark's number of the source."""
    lines: tuple[int, ...]
    """Its lines in Spark's log of offsets: one for each time that it is in the plan."""
    relation: Relation

    @property
    def servers(self) -> str:
        return self.relation.options.get("kafka.bootstrap.servers", "")

    @property
    def ignores_loss(self) -> bool:
        """Whether the program's options allow missing rows."""
        return self.relation.options.get("failondataloss", "true").lower() == "false"

    @property
    def reads_committed(self) -> bool:
        return self.relation.options.get("kafka.isolation.level") == "read_committed"

    @property
    def keeps_offsets(self) -> bool:
        """Whether, by the program's options, topics with other ids have the same rows at the same offsets."""
        return self.relation.options.get(SAME_OFFSETS, "false").lower() == "true"

    @property
    def names(self) -> set[str]:
        """The topics that its options name."""
        subscribed = self.relation.options.get("subscribe", "").split(",")
        return {name.strip() for name in subscribed if name.strip()} | self.assigned.keys()

    @property
    def assigned(self) -> dict[str, list[int]]:
        """The partitions that its options name, by topic."""
        partitions: dict[str, list[int]] = json.loads(self.relation.options.get("assign", "{}"))
        return partitions

    def reads(self, at: tuple[str, int], matching: Collection[str]) -> bool:
        """Whether its options include a partition; `matching` is the set of topics that its pattern matches."""
        topic, partition = at
        assigned = self.assigned.get(topic)
        return partition in assigned if assigned is not None else topic in self.names or topic in matching

    def unread(self, topics: Mapping[str, _Topic], reached: Offsets, matching: Collection[str]) -> Offsets:
        """Return the partitions that its options include and that have not been read, at offset 0."""
        existing = {(name, at) for name, topic in topics.items() for at in range(topic.partitions)}
        return {at: 0 for at in existing - reached.keys() if self.reads(at, matching)}

    @property
    def text(self) -> str:
        """The source's name in messages."""
        return f"source '{self.name}'" if self.name else "the source"

    def reached(self, files: Mapping[str, bytes], batch: int) -> Offsets:
        """Return its offsets after a batch, or those where it began if there was no batch."""
        if batch >= 0:
            lines = offset_lines(files, batch)
            return self._parsed(lines[self.lines[0]]) if self.lines[0] < len(lines) else {}
        # A null byte, the version, and a line as in offsets/.
        first = files.get(f"sources/{self.number}/0", b"")
        return self._parsed(first.partition(b"\n")[2])

    def known(self, files: Mapping[str, bytes]) -> Ids:
        """Return the stored ids of its topics."""
        ids: Ids = json.loads(files.get(f"sources/{self.number}/topics", b"{}"))
        return ids

    def _parsed(self, line: bytes) -> Offsets:
        if line.strip() in (b"", b"-"):
            return {}
        try:
            topics = _offsets.decode(line)
        except msgspec.MsgspecError:
            raise ConfigurationError(
                f"{self.text} reads Kafka, but was another kind of source in the snapshot: {line[:80]!r} is not an "
                "offset of Kafka",
                hint="a position is valid only for the same kind of source: read what it read before, or start a new "
                "job",
            ) from None
        return {(topic, at): offset for topic, parts in topics.items() for at, offset in parts.items() if offset >= 0}


def kafka_sources(source: DataFrame, names: Sequence[str]) -> list[KafkaSource]:
    """Return the Kafka sources of a job."""
    relations, numbers = numbered_relations(source), source_numbers(source)
    return [
        KafkaSource(
            names[at] if len(names) == len(relations) else "",
            at,
            tuple(line for line, number in enumerate(numbers) if number == at),
            relation,
        )
        for at, relation in enumerate(relations)
        if relation is not None and relation.implementation.startswith(KAFKA)
    ]


def check_topics(
    spark: SparkSession,
    sources: Sequence[KafkaSource],
    files: Mapping[str, bytes],
    batch: int,
    read_later: Collection[tuple[str, int]] = (),
) -> dict[str, bytes]:
    """Check that Kafka has all rows from the sources' offsets on; return Spark's files with the topics' ids.

    `read_later` has the partitions that a job, which goes back to `files`, has read after it: all their rows must
    exist. Raises ConfigurationError with topics, partitions and offsets. If the program's options allow missing rows,
    it logs a warning, and the returned files read a recreated topic from its first row. Raises UnavailableError if
    Kafka does not answer.
    """
    updated = dict(files)
    if batch >= 0 and f"offsets/{batch}" not in files:
        return updated
    for source in sources:
        reached, known = source.reached(files, batch), source.known(files)
        read = {topic for topic, _ in reached}
        with _client(spark, source) as client:
            matching = client.matching(source)
            topics = client.topics(read | source.names | matching)
            new = source.unread(topics, reached, matching) if reached else {}
            wanted = reached | new
            ends = client.ends(wanted, topics)
            open_at = client.open_transactions(wanted, ends) if source.reads_committed else {}
        if missing := sorted(source.names - read - topics.keys()):
            raise ConfigurationError(
                f"{source.text}: Kafka at {source.servers} has no topic '{missing[0]}'",
                hint=f"create it: kafka-topics.sh --create --topic {missing[0]} --partitions N",
            )
        if omitted := sorted(at for at in reached if at[0] in topics and not source.reads(at, matching)):
            _report_omitted(source, omitted)
        if again := sorted(name for name in known.keys() - read if name in topics and topics[name].id == known[name]):
            log.warning(
                "%s: topic '%s' was not read for a while, and is read again from its first row", source.text, again[0]
            )
        # A topic without offsets is read from its first row, whatever its id was before.
        recreated = (
            _recreated({topic: known.get(topic, "") for topic in read}, topics) if not source.keeps_offsets else {}
        )
        if recreated:
            if not source.ignores_loss:
                raise _recreated_error(source, recreated)
            log.warning(
                "%s. The job reads the new topic from its first row, because of failOnDataLoss=false",
                _describe(source, recreated),
            )
            updated |= _reset(source, updated, {at: ends[at][0] for at in ends if at[0] in recreated}, recreated)
        # A topic that the program names for the first time begins at its oldest row: Spark would miss offset 0.
        named_now = (source.names - read) | source.assigned.keys()
        named = {at: ends[at][0] for at in new if at[0] in named_now and at not in read_later and ends[at][0]}
        if named:
            updated |= _reset(source, updated, named, ())
            starts = ", ".join(f"{topic}/{at} at offset {offset}" for (topic, at), offset in sorted(named.items()))
            log.info("%s: new partitions are read from their oldest row on: %s", source.text, starts)
        read |= {topic for topic, _ in named}
        kept = {at: offset for at, offset in (wanted | named).items() if at[0] not in recreated}
        _check_kept(source, kept, ends)
        for topic, partition in kept.keys() & open_at.keys():
            raise UnavailableError(
                f"{source.text}: topic '{topic}' of Kafka at {source.servers}, partition {partition}: the job "
                f"continues at offset {kept[topic, partition]}, and a transaction is open since offset "
                f"{open_at[topic, partition]}: with read_committed, no row after it can be read",
                hint="start again when it has ended; kafka-transactions.sh find-hanging shows its producer",
            )
        # The ids of topics without rows are stored with their first rows.
        ids = known | {name: each.id for name, each in topics.items() if name in read or not read}
        updated[f"sources/{source.number}/topics"] = json.dumps(ids).encode()
    return updated


def _report_omitted(source: KafkaSource, omitted: Sequence[tuple[str, int]]) -> None:
    topic, partition = omitted[0]
    more = f", and {len(omitted) - 1} other partitions" if len(omitted) > 1 else ""
    message = f"{source.text}: the job has read topic '{topic}', partition {partition}{more}, but its options omit it"
    if source.ignores_loss:
        log.warning("%s. The job continues without it, because of failOnDataLoss=false", message)
        return
    raise ConfigurationError(
        message,
        hint="add it to the source's options; to omit it from now on, start the job once with "
        "option('failOnDataLoss', 'false'). If the source includes it later, it is read again from its first row",
    )


def _reset(
    source: KafkaSource, files: Mapping[str, bytes], firsts: Offsets, topics: Collection[str]
) -> dict[str, bytes]:
    """Return Spark's logs of offsets, with those of these topics reset to their first rows."""
    first_log, updated = f"sources/{source.number}/0", {}
    for name, data in files.items():
        if name == first_log or name.startswith("offsets/"):
            lines = data.split(b"\n")
            for at in [len(lines) - 1] if name == first_log else [line + 2 for line in source.lines]:
                if at < len(lines) and lines[at].startswith(b"{"):
                    offsets = {topic: parts for topic, parts in json.loads(lines[at]).items() if topic not in topics}
                    for (topic, partition), offset in firsts.items():
                        offsets.setdefault(topic, {})[str(partition)] = offset
                    lines[at] = json.dumps(offsets).encode()
            updated[name] = b"\n".join(lines)
    return updated


class KafkaTopics:
    """Ids of the topics that a job's sources read. A topic that is deleted and recreated has another id.

    Offsets of the old topic are not valid in the new one. So the ids are in a file beside the offsets in Spark's
    directory, `sources/{i}/topics`, and in every checkpoint. They are compared before a job's query starts, and before
    each checkpoint is published, after its last row was read: if the id is equal then, it has not changed in between,
    since Kafka never reuses ids. Brokers older than 2.8 have no ids, and nothing is compared.
    """

    def __init__(
        self,
        spark: SparkSession,
        sources: Sequence[KafkaSource],
        directory: Path,
        files: Mapping[str, bytes],
        batch: int,
    ) -> None:
        """`files` is the result of `check_topics`, and is in the directory. `batch` is the last one."""
        self._spark = spark
        self._directory = directory
        self._known = {source: source.known(files) for source in sources}
        # Before the first batch, `check_topics` reads the ids before Spark reads the topics' first offsets.
        self._read = {
            source: {topic for topic, _ in source.reached(files, batch)} or self._known[source].keys()
            for source in sources
        }
        self._former: dict[KafkaSource, dict[str, tuple[int, str]]] = {source: {} for source in sources}
        """Topics that returned: the batch, and the id before. Files of older batches may be checked later."""

    def begin(self, batch: int, is_over: Callable[[], bool]) -> None:
        """Before a batch is processed: store the ids of topics that the last batch did not have.

        Spark reads them from their first rows. An earlier topic of the same name no longer exists.
        """
        offsets = read_offsets(self._directory, batch, is_over) if self._known else {}
        for source, known in self._known.items():
            topics = {topic for topic, _ in source.reached(offsets, batch)}
            if new := topics - self._read[source]:
                # A new dict: a thread may be reading the old one.
                former = {name: (batch, known[name]) for name in new & known.keys()}
                self._former[source] = self._former[source] | former
                kept = {name: each for name, each in known.items() if name not in new}
                with _client(self._spark, source) as client:
                    self._store_ids(source, kept | {name: each.id for name, each in client.topics(new).items()})
            self._read[source] = topics & self._known[source].keys()

    def compare(self, batch: int, files: Mapping[str, bytes]) -> None:
        """Check that the topics that were read are those of a checkpoint with these files.

        Raises ConfigurationError if a topic was recreated, or ConflictError if the program's options allow missing
        rows: the job then restarts. Raises UnavailableError if Kafka does not answer.
        """
        for source in self._known:
            former = {name: each for name, (at, each) in self._former[source].items() if at > batch}
            known = source.known(files) | former
            self._compare(source, {topic for topic, _ in source.reached(files, batch)}, known)

    def _compare(self, source: KafkaSource, topics: set[str], known: Ids) -> None:
        with _client(self._spark, source) as client:
            current = client.topics(topics)
        if recreated := _recreated(known, current):
            if source.ignores_loss:
                raise ConflictError(_describe(source, recreated))
            raise _recreated_error(source, recreated)
        missing = sorted(topics - current.keys())
        if missing and not source.ignores_loss:
            raise UnavailableError(f"{source.text}: Kafka at {source.servers} has no topic '{missing[0]}' any more")

    def _store_ids(self, source: KafkaSource, known: Ids) -> None:
        self._known[source] = known
        path = self._directory / f"sources/{source.number}/topics"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(known))
        temporary.replace(path)


def _recreated(known: Ids, current: Mapping[str, _Topic]) -> dict[str, tuple[str, str]]:
    """Return the topics whose id is not the known one, with both ids."""
    return {
        name: (known[name], topic.id)
        for name, topic in sorted(current.items())
        if known.get(name) and topic.id and topic.id != known[name]
    }


def _describe(source: KafkaSource, recreated: Mapping[str, tuple[str, str]]) -> str:
    topics = [f"topic '{name}' (its id was {old}, and is {new})" for name, (old, new) in recreated.items()]
    more = f"; and {len(topics) - _MAX_NAMES} others" if len(topics) > _MAX_NAMES else ""
    return (
        f"{source.text}: a topic of Kafka at {source.servers} was deleted and recreated since the job read it, and "
        f"its offsets mean other rows: {'; '.join(topics[:_MAX_NAMES])}{more}"
    )


def _recreated_error(source: KafkaSource, recreated: Mapping[str, tuple[str, str]]) -> ConfigurationError:
    return ConfigurationError(
        _describe(source, recreated),
        hint="to read the new topic from its first row, and keep the state, start the job once with "
        "option('failOnDataLoss', 'false'). If it has the same rows at the same offsets, as a replica in another "
        f"cluster has, start it once with option('{SAME_OFFSETS}', 'true')",
    )


def _check_kept(source: KafkaSource, reached: Offsets, ends: Mapping[tuple[str, int], tuple[int, int]]) -> None:
    losses = list(filter(None, (_loss(at, wanted, ends.get(at)) for at, wanted in sorted(reached.items()))))
    if not losses:
        return
    more = f"; and {len(losses) - _MAX_NAMES} other partitions" if len(losses) > _MAX_NAMES else ""
    message = f"{source.text}: Kafka at {source.servers} has lost rows: {'; '.join(losses[:_MAX_NAMES])}{more}"
    if source.ignores_loss:
        log.warning("%s. The job continues without them, because of failOnDataLoss=false", message)
        return
    raise ConfigurationError(
        message,
        hint="restore a newer checkpoint or savepoint, if there is one; to lose these rows and continue, start the job "
        "once with option('failOnDataLoss', 'false'); and let the topic keep rows (retention.ms, retention.bytes) for "
        "longer than the job may be stopped",
    )


def _loss(at: tuple[str, int], wanted: int, ends: tuple[int, int] | None) -> str:
    where = f"topic '{at[0]}', partition {at[1]}"
    if ends is None:
        return f"{where}: the job continues at offset {wanted}, but the partition does not exist any more"
    oldest, newest = ends
    if wanted < oldest:
        return f"{where}: the job continues at offset {wanted}, but the oldest row has offset {oldest}"
    if wanted > newest:
        return f"{where}: the job continues at offset {wanted}, but the partition ends at {newest}"
    return ""


@dataclass(frozen=True)
class _Topic:
    """The current description of a topic."""

    id: str
    partitions: int
    """The number of partitions, which are numbered without gaps."""


class _Client:
    """Kafka's admin client, in Spark's JVM."""

    def __init__(self, spark: SparkSession, source: KafkaSource) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._source = source
        # Spark's class loader has the connector; the thread's class loader may not.
        session: Any = spark._jsparkSession
        jvm.java.lang.Thread.currentThread().setContextClassLoader(session.sharedState().jarClassLoader())
        settings = jvm.java.util.Properties()
        timeouts = {"default.api.timeout.ms": str(1000 * _TIMEOUT_S), "request.timeout.ms": "5000"}
        options = source.relation.options.items()
        client_options = {name.removeprefix("kafka."): value for name, value in options if name.startswith("kafka.")}
        for name, value in (client_options | timeouts).items():
            settings.setProperty(name, value)
        self._admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)

    def close(self) -> None:
        with suppress(Py4JError):
            self._admin.close(self._jvm.java.time.Duration.ofSeconds(2))

    def matching(self, source: KafkaSource) -> set[str]:
        """Return the topics that a source's pattern matches, if it has one."""
        pattern = source.relation.options.get("subscribepattern")
        if pattern is None:
            return set()
        names = self._jvm.java.lang.String.join(",", self._answer(self._admin.listTopics().names()))
        compiled = self._jvm.java.util.regex.Pattern.compile(pattern).asMatchPredicate()
        return {name for name in names.split(",") if name and compiled.test(name)}

    def topics(self, names: Collection[str]) -> dict[str, _Topic]:
        """Return the descriptions of topics, without those that do not exist."""
        name_list = self._jvm.java.util.ArrayList()
        for name in sorted(names):
            name_list.add(name)
        answers = self._admin.describeTopics(name_list).topicNameValues() if names else {}
        topics = {}
        for name in sorted(names):
            try:
                described = self._answer(answers.get(name))
            except Py4JError as error:
                if "UnknownTopicOrPartitionException" in str(error):
                    continue
                raise
            topic_id = described.topicId().toString()
            topics[name] = _Topic("" if topic_id == _NO_ID else topic_id, described.partitions().size())
        return topics

    def ends(self, partitions: Offsets, topics: Mapping[str, _Topic]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the first offset and the end offset of each partition that exists."""
        wanted = [at for at in partitions if at[0] in topics and at[1] < topics[at[0]].partitions]
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        oldest, newest = (self._offsets(wanted, each) for each in (spec.earliest(), spec.latest()))
        return {at: (oldest[at], newest[at]) for at in wanted}

    def open_transactions(self, wanted: Offsets, ends: Mapping[tuple[str, int], tuple[int, int]]) -> Offsets:
        """Return, by partition, the offset of an open transaction before the wanted offset."""
        level = self._jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        options = self._jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
        stable = self._offsets(list(ends), self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest(), options)
        return {at: offset for at, offset in stable.items() if offset < wanted[at] <= ends[at][1]}

    def _offsets(self, partitions: Sequence[tuple[str, int]], spec: Any, *options: Any) -> dict[tuple[str, int], int]:
        specs = self._jvm.java.util.HashMap()
        keys = {at: self._partition(at) for at in partitions}
        for key in keys.values():
            specs.put(key, spec)
        result = self._admin.listOffsets(specs, *options)
        return {at: self._answer(result.partitionResult(key)).offset() for at, key in keys.items()}

    def commit(self, group: str, offsets: Offsets) -> None:
        """Commit a group's offsets without joining the group."""
        commits = self._jvm.java.util.HashMap()
        for at, offset in offsets.items():
            commits.put(self._partition(at), self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset))
        self._answer(self._admin.alterConsumerGroupOffsets(group, commits).all())

    def _partition(self, at: tuple[str, int]) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(*at)

    def _answer(self, future: Any) -> Any:
        return future.get(_TIMEOUT_S + 1, self._jvm.java.util.concurrent.TimeUnit.SECONDS)


@contextmanager
def _client(spark: SparkSession, source: KafkaSource) -> Iterator[_Client]:
    client = None
    try:
        client = _Client(spark, source)
        yield client
    except Py4JError as error:
        raise UnavailableError(
            f"{source.text}: the request to Kafka at {source.servers} failed: {reason_of(str(error))}"
        ) from None
    finally:
        if client is not None:
            client.close()


class KafkaCommits:
    """Commits the offsets of each checkpoint to Kafka, for sources with a group: for tools that monitor a group's lag.

    The job never reads them: it starts from the offsets in its checkpoints. After a failed commit, the next checkpoint
    commits newer offsets. One thread calls `captured` and `completed`, which do no I/O.
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
        """Note the sources' offsets of a checkpoint."""
        if self._sources:
            self._waiting[checkpoint] = {source: source.reached(files, batch) for source in self._sources}

    def completed(self, checkpoint: CheckpointId) -> None:
        """After a checkpoint is published: commit its offsets in the thread."""
        offsets = self._waiting.get(checkpoint)
        self._waiting = {number: each for number, each in self._waiting.items() if number > checkpoint}
        if not offsets:
            return
        with self._lock:
            self._due = offsets
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="strandline-kafka-commits", daemon=True)
                self._thread.start()
            self._lock.notify()

    def close(self) -> None:
        """Commit the offsets that are due, and end the thread."""
        with self._lock:
            self._is_closed = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join(2 * _TIMEOUT_S)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._due or self._is_closed)
                due, self._due = self._due, {}
            if not due:
                return
            for source, offsets in due.items():
                self._commit(source, offsets)

    def _commit(self, source: KafkaSource, offsets: Offsets) -> None:
        group = self._sources[source]
        try:
            with _client(self._spark, source) as client:
                client.commit(group, offsets)
            self._is_failing = False
        except UnavailableError as error:
            # Only the first of consecutive failures is logged.
            if not self._is_failing:
                log.warning("the offsets of group '%s' are not committed for now: %s", group, error)
            self._is_failing = True
