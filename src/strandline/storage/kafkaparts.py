"""Parts of logs as records of a compacted Kafka topic: append, read, look, find, delete. Values are a part's chunks.

A part's records have keys of its unique name, so that compaction keeps each until its tombstone, at its offset. A
part is in the topic if the records at its offsets have its keys: after the topic was truncated or created again, they
are absent or have others.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strandline.core.errors import (
    AccessError,
    ConfigurationError,
    NotFoundError,
    UnavailableError,
)
from strandline.core.ids import unique_name
from strandline.core.kafkaclient import (
    ClientErrors,
    Cluster,
    create_client,
    discard,
    read_setting,
    translate_error,
)

CHUNK_BYTES = 512 << 10
_LEAST_MESSAGE_BYTES = CHUNK_BYTES + (64 << 10)
_WAITING = 16
"""How many chunks of a part are in the client's queue at most."""
_ANSWER_S = 10.0
"""How long the brokers may take for a record."""
_SILENCE_S = 1.0
"""How long a topic may give no record before it is asked whether it is there."""
_LOOKS, _LOOK_PAUSE_S = 3, 0.5
"""A broker that has just become the leader may know a record for a moment only, which its readers do not see yet."""
TOPIC_HINT = (
    "find out what changed the topic; the job can go back to an older checkpoint that is whole, or begin with a "
    "savepoint, which has no parts in Kafka"
)
_PATH = re.compile(
    r"(?:^|.*/)log/([^/]+:\d+)/([A-Za-z0-9._-]+)/([0-9a-f]{32})(?:/(\d+)/(\d+)-(\d+)/([0-9a-f]{32})-(\d+)-(\d+))?"
)


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The parts of one owner in a topic. The owner is the life of a job: jobs may share a topic."""

    servers: str
    topic: str
    owner: str

    @property
    def path(self) -> str:
        """The folder of the paths of its parts."""
        return f"log/{self.servers}/{self.topic}/{self.owner}"

    def __str__(self) -> str:
        return f"topic '{self.topic}' of Kafka at {self.servers}"


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part and its place. Its path in a manifest says all of it."""

    folder: LogFolder
    partition: int
    first: int
    last: int
    """The offsets of the first record and the last one; other records may be between them."""
    name: str
    size_bytes: int
    chunks: int

    @property
    def path(self) -> str:
        """The path in a manifest."""
        return f"{self.folder.path}/{self.partition}/{self.first}-{self.last}/{self._name}"

    @property
    def _name(self) -> str:
        return f"{self.name}-{self.size_bytes}-{self.chunks}"

    def key(self, chunk: int) -> str:
        """Return the key of a record."""
        return f"{self.folder.owner}/{self._name}/{chunk}"

    def __str__(self) -> str:
        return f"{self.folder}, partition {self.partition}, offsets {self.first} to {self.last}"


def part_at(path: str) -> LogPart | None:
    """Return the part that a path names; None for the path of an object."""
    match = _PATH.fullmatch(path)
    if match is None or match[4] is None:
        return None
    servers, topic, owner, partition, first, last, name, size_bytes, chunks = match.groups()
    folder = LogFolder(servers, topic, owner)
    return LogPart(folder, int(partition), int(first), int(last), name, int(size_bytes), int(chunks))


def folder_at(path: str) -> LogFolder | None:
    """Return the folder of parts that a path names; None for any other path."""
    match = _PATH.fullmatch(path)
    return LogFolder(*match.groups()[:3]) if match is not None and match[4] is None else None


class LogTopics:
    """The topics of a Kafka cluster with parts of logs. Thread-safe; of one process, which must not fork with it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._readers: list[tuple[Any, ClientErrors]] = []
        """Those that no thread uses."""
        self._producing: tuple[Any, ClientErrors] | None = None
        self._lock = threading.Lock()
        """Of the producer, which several threads use: one of them makes it, and one ends it."""
        self._partitions: dict[str, int] = {}
        self._has_ended = False

    def append(self, folder: LogFolder, source: Path) -> tuple[LogPart, str]:
        """Write a file's bytes as a new part; return it and their sha256 when all replicas in sync have them."""
        name, size_bytes = unique_name(), source.stat().st_size
        chunks = max(1, -(-size_bytes // CHUNK_BYTES))
        sha256 = hashlib.sha256()
        with self._producer(str(folder)) as producer:
            partition = zlib.crc32(name.encode()) % self._partitions_of(folder, producer)
            part = LogPart(folder, partition, 0, 0, name, size_bytes, chunks)
            sending = _Sending(producer, folder.topic, partition)
            with source.open("rb") as file:
                for chunk in range(chunks):
                    data = file.read(CHUNK_BYTES)
                    sha256.update(data)
                    sending.send(part.key(chunk), data)
            offsets = sending.wait()
        if len(offsets) != chunks or any(offset is None or offset < 0 for offset in offsets):
            raise UnavailableError(f"{folder}: the brokers did not say at which offset a record is")
        return LogPart(folder, partition, min(offsets), max(offsets), name, size_bytes, chunks), sha256.hexdigest()

    def read(self, part: LogPart) -> Iterator[bytes]:
        """Yield a part's chunks. Raises NotFoundError if the topic does not have it."""
        for message in self._records(part, part.first, range(part.chunks)):
            yield message.value()

    def look(self, part: LogPart) -> int:
        """Return when a part was written, in ms; raise NotFoundError if its first record or its last one is absent."""
        for chunk, offset in {0: part.first, part.chunks - 1: part.last}.items():
            for message in self._records(part, offset, range(chunk, chunk + 1)):
                written_ms = int(message.timestamp()[1])
        return written_ms

    def find(self, folder: LogFolder) -> Iterator[tuple[LogPart, int]]:
        """Read a whole topic; yield a folder's parts, whole or not, each with the time when it was written in ms."""
        with self._reader(str(folder)) as (reader, _):
            partitions = self._metadata(folder, reader)
        for partition in range(partitions):
            places: dict[str, tuple[int, int, int]] = {}
            for message in self._all_records(folder, partition):
                owner, _, key = (message.key() or b"").decode(errors="replace").partition("/")
                if owner != folder.owner:
                    continue
                name = key.rpartition("/")[0]
                if message.value() is None:
                    places.pop(name, None)
                    continue
                first, last, _ = places.get(name, (message.offset(), 0, 0))
                places[name] = first, max(last, message.offset()), int(message.timestamp()[1])
            for name, (first, last, written_ms) in places.items():
                part = part_at(f"{folder.path}/{partition}/{first}-{last}/{name}")
                if part is not None:
                    yield part, written_ms

    def delete(self, parts: list[LogPart]) -> None:
        """Write tombstones; a part or topic that is absent is not an error."""
        with self._producer(str(parts[0].folder)) as producer:
            partitions = {folder.topic: self._count(folder, producer) for folder in {part.folder for part in parts}}
            sendings: dict[tuple[str, int], _Sending] = {}
            for part in parts:
                at = part.folder.topic, part.partition
                if part.partition >= partitions[part.folder.topic]:
                    continue
                sending = sendings.setdefault(at, _Sending(producer, *at))
                for chunk in range(part.chunks):
                    sending.send(part.key(chunk), None)
            for sending in sendings.values():
                sending.wait()

    def check(self, topic: str) -> None:
        """Raise ConfigurationError unless a topic keeps each part until it is deleted."""
        from confluent_kafka.admin import AdminClient

        errors = ClientErrors()
        admin = create_client(AdminClient, self._cluster, self._cluster.settings(errors))
        where = f"{self._cluster.what}: topic '{topic}' of Kafka at {self._cluster.servers}"
        try:
            with self._translating(where, errors):
                self._metadata(LogFolder(self._cluster.servers, topic, ""), admin)
                policy = read_setting("cleanup.policy", topic, admin, errors, self._cluster)
                limit = read_setting("max.message.bytes", topic, admin, errors, self._cluster)
        except NotFoundError as error:
            raise ConfigurationError(
                error.message,
                hint=f"create it: kafka-topics.sh --create --topic {topic} --partitions 8 --config "
                "cleanup.policy=compact --config min.insync.replicas=2 --replication-factor 3",
            ) from None
        finally:
            discard(admin)
        if policy not in (None, "compact"):
            raise ConfigurationError(
                f"{where} has cleanup.policy={policy}, expected compact: Kafka would delete parts of logs that "
                "checkpoints need",
                hint=f"kafka-configs.sh --alter --topic {topic} --add-config cleanup.policy=compact",
            )
        if limit is not None and int(limit) < _LEAST_MESSAGE_BYTES:
            raise ConfigurationError(
                f"{where} has max.message.bytes={limit}, expected {_LEAST_MESSAGE_BYTES} or more",
                hint=f"kafka-configs.sh --alter --topic {topic} --add-config max.message.bytes=1048588",
            )

    def end(self) -> None:
        """End the clients, those in use when they no longer are."""
        self._has_ended = True
        self._drop_producer(self._producing)
        while self._readers:
            discard(self._readers.pop()[0])

    def _records(self, part: LogPart, offset: int, chunks: range) -> Iterator[Any]:
        """Yield the messages of these chunks, which are at `offset` and after it."""
        wanted = chunks.start
        for look in range(_LOOKS):
            if look:
                time.sleep(_LOOK_PAUSE_S)
            for message in self._messages(part.folder, part.partition, offset):
                if message is None or message.offset() > part.last:
                    break
                if message.key() == part.key(wanted).encode() and message.value() is not None:
                    yield message
                    offset, wanted = message.offset() + 1, wanted + 1
                    if wanted == chunks.stop:
                        return
            if message is not None:
                break
        raise NotFoundError(
            f"{part}: chunk {wanted} of {part.chunks} of this part is not there: the topic was truncated or created "
            "again, or its cleanup.policy was not compact",
            hint=TOPIC_HINT,
        )

    def _all_records(self, folder: LogFolder, partition: int) -> Iterator[Any]:
        from confluent_kafka import OFFSET_BEGINNING

        for message in self._messages(folder, partition, OFFSET_BEGINNING):
            if message is None:
                return
            yield message

    def _messages(self, folder: LogFolder, partition: int, offset: int) -> Iterator[Any]:
        """Yield the messages from an offset on, and None at the end, or if the offset or topic is not there."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        absent = (
            KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE,
            KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC,
        )  # fmt: skip
        with self._reader(str(folder)) as (reader, errors):
            reader.assign([TopicPartition(folder.topic, partition, offset)])
            until = time.monotonic() + _ANSWER_S
            while True:
                message = reader.poll(_SILENCE_S)
                if message is None:
                    if errors.rejection is not None or time.monotonic() > until:
                        raise _KafkaError(errors.cause_of(KafkaError(KafkaError._TIMED_OUT)))
                    # A client that knew the topic asks for it for ever.
                    with suppress(KafkaException, _KafkaError, UnavailableError):
                        self._metadata(folder, reader)
                elif message.error() is None:
                    yield message
                    until = time.monotonic() + _ANSWER_S
                elif message.error().code() in absent:
                    yield None
                    return
                else:
                    raise _KafkaError(message.error())

    def _metadata(self, folder: LogFolder, client: Any) -> int:
        """Return the number of a topic's partitions; raise NotFoundError if it is not there."""
        from confluent_kafka import KafkaError

        topic = self._cluster.ask(client.list_topics, folder.topic).topics[folder.topic]
        if topic.error is not None and topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise NotFoundError(f"{folder}: the topic is not there")
        if topic.error is not None:
            raise _KafkaError(topic.error)
        return len(topic.partitions)

    def _count(self, folder: LogFolder, client: Any) -> int:
        """Return the number of a topic's partitions, 0 if it is not there."""
        try:
            return self._metadata(folder, client)
        except NotFoundError:
            return 0

    def _partitions_of(self, folder: LogFolder, producer: Any) -> int:
        if folder.topic not in self._partitions:
            self._partitions[folder.topic] = self._metadata(folder, producer)
        return self._partitions[folder.topic]

    @contextmanager
    def _producer(self, where: str) -> Iterator[Any]:
        """Lend the producer; after an error another one takes its place."""
        from confluent_kafka import Producer

        with self._lock:
            if self._producing is None:
                errors = ClientErrors()
                settings = self._cluster.settings(
                    errors, enable_idempotence=True, acks="all", linger_ms=0, message_timeout_ms=int(_ANSWER_S * 1000),
                    message_max_bytes=_LEAST_MESSAGE_BYTES,
                )  # fmt: skip
                self._producing = create_client(Producer, self._cluster, settings), errors
            lent = self._producing
        try:
            with self._translating(where, lent[1]):
                yield lent[0]
        except BaseException:
            self._partitions.clear()
            self._drop_producer(lent)
            raise

    def _drop_producer(self, lent: tuple[Any, ClientErrors] | None) -> None:
        with self._lock:
            if lent is None or self._producing is not lent:
                return
            self._producing = None
        discard(lent[0])

    @contextmanager
    def _reader(self, where: str) -> Iterator[tuple[Any, ClientErrors]]:
        """Lend a consumer that no other thread uses."""
        from confluent_kafka import Consumer

        try:
            lent = self._readers.pop()
        except IndexError:
            errors = ClientErrors()
            settings = self._cluster.settings(
                errors, group_id="strandline-log", enable_auto_commit=False, enable_partition_eof=True,
                auto_offset_reset="error", check_crcs=True, fetch_message_max_bytes=1 << 20,
                queued_max_messages_kbytes=4096, fetch_wait_max_ms=50, fetch_queue_backoff_ms=1,
                fetch_error_backoff_ms=50,
            )  # fmt: skip
            lent = create_client(Consumer, self._cluster, settings), errors
        try:
            with self._translating(where, lent[1]):
                yield lent
        except GeneratorExit:
            self._take_back(lent)
            raise
        except BaseException:
            discard(lent[0])
            raise
        self._take_back(lent)

    def _take_back(self, lent: tuple[Any, ClientErrors]) -> None:
        lent[0].unassign()
        if self._has_ended:
            discard(lent[0])
        else:
            self._readers.append(lent)

    @contextmanager
    def _translating(self, where: str, errors: ClientErrors) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except (KafkaException, _KafkaError) as error:
            why = translate_error(error, where, self._cluster, errors)
        else:
            return
        if isinstance(why, AccessError):
            raise AccessError(
                why.message,
                hint="check the options of the log's client; its user must be allowed to Read, Write and Describe the "
                "topic",
            )
        raise why if isinstance(why, ConfigurationError | UnavailableError) else UnavailableError(why.message)


class _KafkaError(Exception):
    """An error that a client reports in place of a record."""


class _Sending:
    """Records on their way to one partition. Any thread that polls the producer may get the answers."""

    def __init__(self, producer: Any, topic: str, partition: int) -> None:
        self._producer, self._topic, self._partition = producer, topic, partition
        self._sent = 0
        self._offsets: list[int] = []
        self._failures: list[Any] = []

    def send(self, key: str, value: bytes | None) -> None:
        """Send a record, after others have arrived if too many are on their way."""
        self._await(_WAITING - 1)
        self._sent += 1
        self._producer.produce(self._topic, value, key, self._partition, on_delivery=self._delivered)

    def wait(self) -> list[int]:
        """Wait until all records have arrived; return their offsets."""
        self._await(0)
        return self._offsets

    def _await(self, most: int) -> None:
        # The client gives each record up after its own time; this is for a client that hangs.
        until = time.monotonic() + 2 * _ANSWER_S
        while self._sent - len(self._offsets) > most and not self._failures:
            self._producer.poll(0.05)
            if time.monotonic() > until:
                raise UnavailableError(f"topic '{self._topic}': Kafka's client gives no answer")
        if self._failures:
            raise _KafkaError(self._failures[0])

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failures.append(error)
        else:
            self._offsets.append(message.offset())


_topics: dict[tuple[int, str, frozenset[tuple[str, str]]], LogTopics] = {}
"""By process, address and options: those with clients."""


def topics_at(servers: str, options: Mapping[str, str]) -> LogTopics:
    """Return the topics of a cluster, with this process's clients. `options` are those of the client."""
    key = os.getpid(), servers, frozenset(options.items())
    return _topics.get(key) or _topics.setdefault(key, LogTopics(Cluster(servers, options, "KafkaLog")))


def end_clients() -> None:
    """End all clients of this process. `topics_at` creates new ones."""
    for key in [key for key in [*_topics] if key[0] == os.getpid()]:
        if topics := _topics.pop(key, None):
            topics.end()
