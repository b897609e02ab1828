"""Kafka as a source, beyond what Spark's connector does: rows that are gone are told of, and checkpoints are, to Kafka.

The connector's own client is asked, with the source's own settings: whatever Spark can reach can be asked here.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from strandline.core.errors import ConfigurationError, ConflictError, UnavailableError
from strandline.core.ids import CheckpointId
from strandline.spark.base.spark_errors import reason_of
from strandline.spark.sources.checks import KAFKA, Relation, numbered_relations, source_numbers

log = logging.getLogger(__name__)

COMMIT_GROUP = "strandline.commit.group"
"""The source's option that names the group whose offsets are committed."""
_ANSWER_S = 10
_PAUSE_S = 0.5
"""Until Kafka is asked again which topics there are."""
_SHOWN = 5

SAME_OFFSETS = "strandline.same.offsets"
"""The source's option that says: a topic with another id has the same rows at the same offsets."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"

_offsets = msgspec.json.Decoder(dict[str, dict[int, int]])

Offsets = dict[tuple[str, int], int]
"""By topic and partition: the first row that was not read yet."""
Ids = dict[str, str]
"""By topic: what Kafka tells it from another of the same name by; empty if it does not."""


@dataclass(frozen=True, eq=False)
class KafkaSource:
    """One of the job's sources that reads Kafka."""

    name: str
    number: int
    """Spark's."""
    lines: tuple[int, ...]
    """Where it stands in Spark's log of offsets: once for each time that it is in the plan."""
    relation: Relation

    @property
    def servers(self) -> str:
        return self.relation.options.get("kafka.bootstrap.servers", "")

    @property
    def goes_on_without(self) -> bool:
        """Whether the program says that rows may be gone."""
        return self.relation.options.get("failondataloss", "true").lower() == "false"

    @property
    def reads_committed(self) -> bool:
        return self.relation.options.get("kafka.isolation.level") == "read_committed"

    @property
    def keeps_offsets(self) -> bool:
        """Whether the program says that topics with other ids have the same rows at the same offsets."""
        return self.relation.options.get(SAME_OFFSETS, "false").lower() == "true"

    @property
    def names(self) -> set[str]:
        """The topics that its options name."""
        listed = self.relation.options.get("subscribe", "").split(",")
        return {name.strip() for name in listed if name.strip()} | self.assigned.keys()

    @property
    def assigned(self) -> dict[str, list[int]]:
        """The partitions that its options name, by topic."""
        found: dict[str, list[int]] = json.loads(self.relation.options.get("assign", "{}"))
        return found

    def reads(self, at: tuple[str, int], matching: Collection[str]) -> bool:
        """Return whether its options name a partition; `matching` are the topics that its pattern matches."""
        topic, partition = at
        assigned = self.assigned.get(topic)
        return partition in assigned if assigned is not None else topic in self.names or topic in matching

    def unread(self, topics: Mapping[str, _Topic], reached: Offsets, matching: Collection[str]) -> Offsets:
        """Return the partitions that its options name and of which nothing was read, at their first offset."""
        there = {(name, at) for name, topic in topics.items() for at in range(topic.partitions)}
        return {at: 0 for at in there - reached.keys() if self.reads(at, matching)}

    @property
    def text(self) -> str:
        """For people: which source."""
        return f"source '{self.name}'" if self.name else "the source"

    def reached(self, files: Mapping[str, bytes], batch: int) -> Offsets:
        """Return how far it was read after a batch; where it began, if there was none."""
        if batch >= 0:
            lines = files.get(f"offsets/{batch}", b"").splitlines()[2:]
            return self._parsed(lines[self.lines[0]]) if self.lines[0] < len(lines) else {}
        # A null byte, the version, and then the same.
        began = files.get(f"sources/{self.number}/0", b"")
        return self._parsed(began.partition(b"\n")[2])

    def known(self, files: Mapping[str, bytes]) -> Ids:
        """Return the ids of its topics."""
        found: Ids = json.loads(files.get(f"sources/{self.number}/topics", b"{}"))
        return found

    def _parsed(self, line: bytes) -> Offsets:
        if line.strip() in (b"", b"-"):
            return {}
        try:
            said = _offsets.decode(line)
        except msgspec.MsgspecError:
            raise ConfigurationError(
                f"{self.text} reads Kafka, and what the job has read there was something else: {line[:80]!r} is no "
                "offset of Kafka's",
                hint="where a source goes on is known only for the kind of source that it was: read what it read "
                "before, or start a new job",
            ) from None
        return {(topic, at): offset for topic, parts in said.items() for at, offset in parts.items() if offset >= 0}


def kafka_sources(source: DataFrame, names: Sequence[str]) -> list[KafkaSource]:
    """Return those sources of a job that read Kafka."""
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
    """Check that Kafka still has all rows from where the sources go on; return Spark's files with the topics' ids.

    `read_later` are partitions of which the job, which goes back, has read rows behind `files`: it needs them all.
    Raises ConfigurationError, with topics, partitions and offsets, unless the program says that rows may be gone; then
    it is a warning, and the files are those of a job that reads a topic that was created anew from its first row.
    Raises UnavailableError if Kafka does not answer.
    """
    made = dict(files)
    if batch >= 0 and f"offsets/{batch}" not in files:
        return made
    for source in sources:
        reached, known = source.reached(files, batch), source.known(files)
        read = {topic for topic, _ in reached}
        with _client(spark, source) as client:
            matching = client.matching(source)
            found = client.topics(read | source.names | matching)
            new = source.unread(found, reached, matching) if reached else {}
            wanted = reached | new
            ends = client.ends(wanted, found)
            open_at = client.open_transactions(wanted, ends) if source.reads_committed else {}
        if missing := sorted(source.names - read - found.keys()):
            raise ConfigurationError(
                f"{source.text}: Kafka at {source.servers} has no topic '{missing[0]}'",
                hint=f"create it: kafka-topics.sh --create --topic {missing[0]} --partitions N",
            )
        if left := sorted(at for at in reached if at[0] in found and not source.reads(at, matching)):
            _refuse_left_out(source, left)
        if again := sorted(name for name in known.keys() - read if name in found and found[name].id == known[name]):
            log.warning(
                "%s: topic '%s' was left out for a while, and is read again from its first row", source.text, again[0]
            )
        # A topic that was not read is read from its first row, whatever it was before.
        renewed = _renewed({topic: known.get(topic, "") for topic in read}, found) if not source.keeps_offsets else {}
        if renewed:
            if not source.goes_on_without:
                raise _created_anew(source, renewed)
            log.warning(
                "%s. The job reads the new one from its first row, as failOnDataLoss=false says",
                _words(source, renewed),
            )
            made |= _set_back(source, made, {at: ends[at][0] for at in ends if at[0] in renewed}, renewed)
        # Where the program names them only now, the rows before are none of the job's. Spark would take them for lost.
        named_now = (source.names - read) | source.assigned.keys()
        named = {at: ends[at][0] for at in new if at[0] in named_now and at not in read_later and ends[at][0]}
        if named:
            made |= _set_back(source, made, named, ())
            begins = ", ".join(f"{topic}/{at} at offset {offset}" for (topic, at), offset in sorted(named.items()))
            log.info("%s: named for the first time, and read from the oldest row on: %s", source.text, begins)
        read |= {topic for topic, _ in named}
        kept = {at: offset for at, offset in (wanted | named).items() if at[0] not in renewed}
        _check_kept(source, kept, ends)
        for topic, partition in kept.keys() & open_at.keys():
            raise UnavailableError(
                f"{source.text}: topic '{topic}' of Kafka at {source.servers}, partition {partition}: the job goes on "
                f"at offset {kept[topic, partition]}, and a transaction is open since offset "
                f"{open_at[topic, partition]}: with read_committed, nothing behind it can be read",
                hint="start again when it has ended; kafka-transactions.sh find-hanging shows whose it is",
            )
        # Those of topics that come later are learned with their first rows.
        ids = known | {name: each.id for name, each in found.items() if name in read or not read}
        made[f"sources/{source.number}/topics"] = json.dumps(ids).encode()
    return made


def _refuse_left_out(source: KafkaSource, left: Sequence[tuple[str, int]]) -> None:
    topic, partition = left[0]
    more = f", and {len(left) - 1} other partitions" if len(left) > 1 else ""
    what = f"{source.text}: the job has read topic '{topic}', partition {partition}{more}, and the source leaves it out"
    if source.goes_on_without:
        log.warning("%s. The job goes on without it, as failOnDataLoss=false says", what)
        return
    raise ConfigurationError(
        what,
        hint="name it in the source's options; to leave it out from now on, start the job once with "
        "option('failOnDataLoss', 'false'). If the source names it again later, it is read again from its first row",
    )


def _set_back(
    source: KafkaSource, files: Mapping[str, bytes], firsts: Offsets, topics: Collection[str]
) -> dict[str, bytes]:
    """Return Spark's logs of offsets, set back to the first rows of these topics."""
    began, made = f"sources/{source.number}/0", {}
    for name, data in files.items():
        if name == began or name.startswith("offsets/"):
            lines = data.split(b"\n")
            for at in [len(lines) - 1] if name == began else [line + 2 for line in source.lines]:
                if at < len(lines) and lines[at].startswith(b"{"):
                    said = {topic: parts for topic, parts in json.loads(lines[at]).items() if topic not in topics}
                    for (topic, partition), offset in firsts.items():
                        said.setdefault(topic, {})[str(partition)] = offset
                    lines[at] = json.dumps(said).encode()
            made[name] = b"\n".join(lines)
    return made


class KafkaTopics:
    """Ids of the topics that a job's sources read. A topic that is deleted and created anew has another id.

    Offsets of the old topic mean nothing in the new one. So the ids are in a file beside the offsets in Spark's
    directory, `sources/{i}/topics`, and in every checkpoint. They are compared when a job starts, before its query
    does, and before each checkpoint is published, after its last row was read: an id that is the same then was the same
    all the time, since Kafka uses none twice. Brokers older than 2.8 have no ids, and nothing is compared.
    """

    def __init__(
        self,
        spark: SparkSession,
        sources: Sequence[KafkaSource],
        directory: Path,
        files: Mapping[str, bytes],
        batch: int,
    ) -> None:
        """`files` are those that `check_topics` has returned; they are in the directory. `batch` is the last one."""
        self._spark = spark
        self._directory = directory
        self._known = {source: source.known(files) for source in sources}
        # Before the first batch, ids were asked for before Spark looks where the topics begin.
        self._read = {
            source: {topic for topic, _ in source.reached(files, batch)} or self._known[source].keys()
            for source in sources
        }
        self._former: dict[KafkaSource, dict[str, tuple[int, str]]] = {source: {} for source in sources}
        """Of topics that came again: with which batch, and the id before. Files of older batches may be read later."""
        self._checked = -1
        self._asked: tuple[int, Future[None]] | None = None
        self._is_closed = threading.Event()

    def begin(self, batch: int) -> None:
        """Before a batch is processed: learn of topics that the one before did not have.

        Spark reads them from their first rows. One of the same name, if it was read once, is gone.
        """
        name = f"offsets/{batch}"
        for source, known in self._known.items():
            topics = {topic for topic, _ in source.reached({name: (self._directory / name).read_bytes()}, batch)}
            if new := topics - self._read[source]:
                # Another dict: a thread may be at work with the one before.
                former = {name: (batch, known[name]) for name in new & known.keys()}
                self._former[source] = self._former[source] | former
                kept = {name: each for name, each in known.items() if name not in new}
                with _client(self._spark, source) as client:
                    self._learn(source, kept | {name: each.id for name, each in client.topics(new).items()})
            self._read[source] = topics & self._known[source].keys()

    def check(self, batch: int, files: Mapping[str, bytes]) -> bool:
        """Return whether the topics that were read are those that a checkpoint with these files names.

        False while Kafka does not answer yet: another thread asks it. Raises ConfigurationError if a topic was created
        anew; ConflictError if the program says that rows may be gone: the job is restarted then.
        """
        if batch <= self._checked or not self._known:
            return True
        if self._asked is None or self._asked[0] != batch:
            self._asked = batch, Future()
            thread = threading.Thread(target=self._ask, args=(*self._asked, files), daemon=True)
            thread.name = "strandline-kafka-topics"
            thread.start()
        _, answer = self._asked
        if not answer.done():
            return False
        self._asked = None
        answer.result()
        self._checked = batch
        return True

    def close(self) -> None:
        """Ask Kafka nothing more."""
        self._is_closed.set()

    def _ask(self, batch: int, answer: Future[None], files: Mapping[str, bytes]) -> None:
        is_told = False
        # Of a checkpoint that has failed meanwhile, nobody wants to know.
        while not self._is_closed.is_set() and self._asked == (batch, answer):
            try:
                for source in self._known:
                    former = {name: each for name, (at, each) in self._former[source].items() if at > batch}
                    known = source.known(files) | former
                    self._compare(source, {topic for topic, _ in source.reached(files, batch)}, known)
                answer.set_result(None)
                return
            except UnavailableError as error:
                if not is_told:
                    log.warning("a checkpoint waits: %s", error)
                is_told = True
                self._is_closed.wait(_PAUSE_S)
            except BaseException as error:
                answer.set_exception(error)
                return

    def _compare(self, source: KafkaSource, topics: set[str], known: Ids) -> None:
        with _client(self._spark, source) as client:
            found = client.topics(topics)
        if renewed := _renewed(known, found):
            if source.goes_on_without:
                raise ConflictError(_words(source, renewed))
            raise _created_anew(source, renewed)
        gone = sorted(topics - found.keys())
        if gone and not source.goes_on_without:
            raise UnavailableError(f"{source.text}: Kafka at {source.servers} has no topic '{gone[0]}' any more")

    def _learn(self, source: KafkaSource, known: Ids) -> None:
        self._known[source] = known
        path = self._directory / f"sources/{source.number}/topics"
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".tmp")
        written.write_text(json.dumps(known))
        written.replace(path)


def _renewed(known: Ids, found: Mapping[str, _Topic]) -> dict[str, tuple[str, str]]:
    """Return the topics that are not those that are known, with both ids."""
    return {
        name: (known[name], topic.id)
        for name, topic in sorted(found.items())
        if known.get(name) and topic.id and topic.id != known[name]
    }


def _words(source: KafkaSource, renewed: Mapping[str, tuple[str, str]]) -> str:
    said = [f"topic '{name}' (it was {old}, and is {new})" for name, (old, new) in renewed.items()]
    more = f"; and {len(said) - _SHOWN} others" if len(said) > _SHOWN else ""
    return (
        f"{source.text}: a topic of Kafka at {source.servers} was deleted and created anew since the job read it, and "
        f"its offsets mean other rows: {'; '.join(said[:_SHOWN])}{more}"
    )


def _created_anew(source: KafkaSource, renewed: Mapping[str, tuple[str, str]]) -> ConfigurationError:
    return ConfigurationError(
        _words(source, renewed),
        hint="to read the new topic from its first row, with the state as it is, start the job once with "
        "option('failOnDataLoss', 'false'). If it has the same rows at the same offsets, as a replica in another "
        f"cluster has, start it once with option('{SAME_OFFSETS}', 'true')",
    )


def _check_kept(source: KafkaSource, reached: Offsets, ends: Mapping[tuple[str, int], tuple[int, int]]) -> None:
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
        return f"{where}: the job goes on at offset {wanted}, and it ends at {newest}: rows were lost"
    return ""


@dataclass(frozen=True)
class _Topic:
    """A topic as it is now."""

    id: str
    partitions: int
    """How many there are: they are numbered without gaps."""


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

    def matching(self, source: KafkaSource) -> set[str]:
        """Return the topics that a source's pattern matches, if it has one."""
        pattern = source.relation.options.get("subscribepattern")
        if pattern is None:
            return set()
        names = self._jvm.java.lang.String.join(",", self._answer(self._admin.listTopics().names()))
        compiled = self._jvm.java.util.regex.Pattern.compile(pattern).asMatchPredicate()
        return {name for name in names.split(",") if name and compiled.test(name)}

    def topics(self, names: Collection[str]) -> dict[str, _Topic]:
        """Return what Kafka says of topics, without those that are not there."""
        asked = self._jvm.java.util.ArrayList()
        for name in sorted(names):
            asked.add(name)
        answers = self._admin.describeTopics(asked).topicNameValues() if names else {}
        found = {}
        for name in sorted(names):
            try:
                described = self._answer(answers.get(name))
            except Py4JError as error:
                if "UnknownTopicOrPartitionException" in str(error):
                    continue
                raise
            topic_id = described.topicId().toString()
            found[name] = _Topic("" if topic_id == _NO_ID else topic_id, described.partitions().size())
        return found

    def ends(self, partitions: Offsets, topics: Mapping[str, _Topic]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the oldest offset of each partition and the one behind its newest; nothing of those that are gone."""
        wanted = [at for at in partitions if at[0] in topics and at[1] < topics[at[0]].partitions]
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        oldest, newest = (self._offsets(wanted, each) for each in (spec.earliest(), spec.latest()))
        return {at: (oldest[at], newest[at]) for at in wanted}

    def open_transactions(self, wanted: Offsets, ends: Mapping[tuple[str, int], tuple[int, int]]) -> Offsets:
        """Return where a transaction is open before the offset that is wanted, by partition."""
        level = self._jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        options = self._jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
        stable = self._offsets(list(ends), self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest(), options)
        return {at: offset for at, offset in stable.items() if offset < wanted[at] <= ends[at][1]}

    def _offsets(self, partitions: Sequence[tuple[str, int]], spec: Any, *options: Any) -> dict[tuple[str, int], int]:
        asked = self._jvm.java.util.HashMap()
        keys = {at: self._partition(at) for at in partitions}
        for key in keys.values():
            asked.put(key, spec)
        result = self._admin.listOffsets(asked, *options)
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
