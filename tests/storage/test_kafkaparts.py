"""Parts of logs in topics of a real broker."""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.core.errors import AccessError, ConfigurationError, NotFoundError, UnavailableError
from strandline.core.kafkaclient import Cluster, discard
from strandline.storage import kafkaparts
from strandline.storage.kafkaparts import (
    CHUNK_BYTES,
    LogFolder,
    LogPart,
    LogTopics,
    end_clients,
    folder_at,
    part_at,
    topics_at,
)
from strandline.storage.remote import open_store
from tests import kafkaserver
from tests.kafkaserver import Kafka

OWNER, OTHER = "0" * 32, "1" * 32
_numbers = itertools.count()


@pytest.fixture
def folder(kafka: Kafka) -> LogFolder:
    return LogFolder(kafka.servers, kafka.create(f"log-{next(_numbers)}", 3, cleanup_policy="compact"), OWNER)


@pytest.fixture
def topics(kafka: Kafka) -> LogTopics:
    return LogTopics(Cluster(kafka.servers, {}, "KafkaLog"))


def file_of(tmp_path: Path, size_bytes: int, seed: int = 0) -> tuple[Path, bytes]:
    data = random.Random(seed).randbytes(size_bytes)
    path = tmp_path / f"{size_bytes}-{seed}"
    path.write_bytes(data)
    return path, data


def append(topics: LogTopics, folder: LogFolder, tmp_path: Path, size_bytes: int = 1000, seed: int = 0) -> LogPart:
    return topics.append(folder, file_of(tmp_path, size_bytes, seed)[0])[0]


SIZES = (0, 1, 1000, CHUNK_BYTES, CHUNK_BYTES + 1, 40 * CHUNK_BYTES + 7)


def test_a_part_is_read_as_it_was_written(topics: LogTopics, folder: LogFolder, tmp_path: Path) -> None:
    parts = {}
    for size_bytes in SIZES:
        path, data = file_of(tmp_path, size_bytes)
        part, sha256 = topics.append(folder, path)
        assert (part.size_bytes, sha256) == (size_bytes, hashlib.sha256(data).hexdigest())
        parts[part] = data
    store = open_store("memory://")
    for part, data in parts.items():
        assert part_at(f"some/job/{part.path}") == part
        assert store.get(f"some/job/{part.path}") == data
        assert store.head(f"job/{part.path}").size_bytes == len(data)
        assert store.head(f"job/{part.path}").modified_ms > 1_700_000_000_000
    store.get_file(f"job/{part.path}", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == data
    assert {info.path for info in store.list(f"job/{folder.path}")} == {f"job/{part.path}" for part in parts}
    assert not list(store.list("job"))


def test_parts_of_threads_are_between_each_other(
    topics: LogTopics, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_have_sent_one, send = Barrier(4), kafkaparts._Sending.send

    def send_in_turn(sending: Any, key: str, value: bytes | None) -> None:
        if sending._sent == 1:
            all_have_sent_one.wait(30)
        send(sending, key, value)

    monkeypatch.setattr(kafkaparts._Sending, "send", send_in_turn)
    folder = LogFolder(kafka.servers, kafka.create(f"log-{next(_numbers)}", 1, cleanup_policy="compact"), OWNER)
    files = [file_of(tmp_path, 5 * CHUNK_BYTES + seed, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        parts = [part for part, _ in pool.map(lambda file: topics.append(folder, file[0]), files)]
    assert sum(part.last - part.first + 1 > part.chunks for part in parts) >= 3
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda part: b"".join(topics.read(part)), parts)) == [data for _, data in files]


def test_a_deleted_part_is_absent_once_the_topic_is_compacted(topics: LogTopics, kafka: Kafka, tmp_path: Path) -> None:
    topic = kafka.create(
        f"log-{next(_numbers)}", 1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="1000",
    )  # fmt: skip
    folder, store = LogFolder(kafka.servers, topic, OWNER), open_store("memory://")
    gone, kept = append(topics, folder, tmp_path, 3 * CHUNK_BYTES), append(topics, folder, tmp_path, seed=1)
    store.delete([f"job/{gone.path}", "job/file"])
    assert [info.path for info in store.list(f"job/{folder.path}")] == [f"job/{kept.path}"]
    for turn in range(600):
        append(topics, folder, tmp_path, 10, seed=turn)
        time.sleep(0.1)
        try:
            topics.look(gone)
        except NotFoundError:
            break
    else:
        pytest.fail("the topic is not compacted")
    assert b"".join(topics.read(kept)) == file_of(tmp_path, 1000, 1)[1]
    with pytest.raises(NotFoundError):
        list(topics.read(gone))
    store.delete([gone.path])


def test_owners_share_a_topic(topics: LogTopics, folder: LogFolder, tmp_path: Path) -> None:
    other = LogFolder(folder.servers, folder.topic, OTHER)
    mine, theirs = append(topics, folder, tmp_path), append(topics, other, tmp_path)
    assert [part for part, _ in topics.find(folder)] == [mine]
    assert [part for part, _ in topics.find(other)] == [theirs]


def test_a_topic_that_was_truncated_or_created_again_does_not_have_the_part(
    topics: LogTopics, kafka: Kafka, tmp_path: Path
) -> None:
    # Brokers refuse to delete records of a topic that is compact.
    folder = LogFolder(kafka.servers, kafka.create(f"log-{next(_numbers)}", 3), OWNER)
    part = append(topics, folder, tmp_path, 2 * CHUNK_BYTES)
    admin = kafka.admin()
    (done,) = admin.delete_records([TopicPartition(folder.topic, part.partition, part.last)]).values()
    done.result(10)
    with pytest.raises(NotFoundError, match="chunk 0 of 2 of this part is not there: the topic was truncated"):
        topics.look(part)
    whole = append(topics, folder, tmp_path)
    (done,) = admin.delete_topics([folder.topic]).values()
    done.result(10)
    with pytest.raises(NotFoundError, match=folder.topic):
        topics.look(whole)
    topics.delete([whole])
    kafka.create(folder.topic, 3, cleanup_policy="compact")
    for partition in range(3):
        kafka.put(folder.topic, [("k", "v")] * 9, partition)
    with pytest.raises(NotFoundError, match="created again"):
        LogTopics(Cluster(kafka.servers)).look(whole)


def test_a_broker_that_is_away_makes_the_log_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafkaparts, "_ANSWER_S", 2.0)
    server = kafkaserver.start()
    try:
        folder = LogFolder(server.servers, server.create("log", 1, cleanup_policy="compact"), OWNER)
        cluster = Cluster(server.servers)
        cluster.answer_s = 1.0
        topics = LogTopics(cluster)
        part = append(topics, folder, tmp_path)
        server.kill()
        for work in (
            lambda: append(topics, folder, tmp_path),
            lambda: topics.look(part),
            lambda: topics.delete([part]),
        ):
            with pytest.raises(UnavailableError, match="topic 'log' of Kafka"):
                work()
        monkeypatch.setattr(kafkaparts, "_ANSWER_S", 30.0)
        cluster.answer_s = 30.0
        server.run()
        assert topics.look(part)
        assert topics.look(append(topics, folder, tmp_path))
    finally:
        server.stop()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Any], list[Any]]]:
    """The clients that were made, and those that were ended."""
    end_clients()
    made, ended = list[Any](), list[Any]()
    create = kafkaparts.create_client

    def record(*given: Any) -> Any:
        made.append(create(*given))
        return made[-1]

    monkeypatch.setattr(kafkaparts, "create_client", record)
    monkeypatch.setattr(kafkaparts, "discard", ended.append)
    yield made, ended
    ended.clear()
    while made:
        discard(made.pop())


def test_clients_end_with_the_run(
    kafka: Kafka, folder: LogFolder, tmp_path: Path, clients: tuple[list[Any], list[Any]]
) -> None:
    made, ended = clients
    topics = topics_at(kafka.servers, {})
    part = append(topics, folder, tmp_path)
    reading = topics.read(part)
    next(reading)
    assert topics.look(part)
    assert topics_at(kafka.servers, {}) is topics
    end_clients()
    # One is in use.
    assert len(ended) == len(made) - 1 == 2
    reading.close()
    assert {*map(id, ended)} == {*map(id, made)}
    assert topics_at(kafka.servers, {}) is not topics
    assert topics_at(kafka.servers, {}).look(part)
    end_clients()
    assert len(ended) == len(made) == 4


def test_threads_whose_producer_fails_end_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: tuple[list[Any], list[Any]]
) -> None:
    """Each would wait for ever for the other to leave it."""
    monkeypatch.setattr(kafkaparts, "_ANSWER_S", 2.0)
    server = kafkaserver.start()
    try:
        folder = LogFolder(server.servers, server.create("log", 1, cleanup_policy="compact"), OWNER)
        topics = LogTopics(Cluster(server.servers))
        append(topics, folder, tmp_path)
        server.kill()
        with ThreadPoolExecutor(3) as pool:
            sent = [pool.submit(append, topics, folder, tmp_path, seed=seed) for seed in range(3)]
        assert [type(each.exception()) for each in sent] == [UnavailableError] * 3
        assert len(clients[1]) == 1
    finally:
        server.stop()


def test_the_topic_must_keep_parts(topics: LogTopics, kafka: Kafka) -> None:
    topics.check(kafka.create(f"log-{next(_numbers)}", 1, cleanup_policy="compact"))
    for config, match in (
        ({}, "cleanup.policy=delete, expected compact"),
        ({"cleanup_policy": "compact,delete"}, "cleanup.policy=compact,delete, expected compact"),
        ({"cleanup_policy": "compact", "max_message_bytes": "100000"}, "max.message.bytes=100000, expected"),
    ):
        with pytest.raises(ConfigurationError, match=match) as caught:
            topics.check(kafka.create(f"log-{next(_numbers)}", 1, **config))
        assert "kafka-configs.sh --alter" in caught.value.hint
    with pytest.raises(ConfigurationError, match=r"topic 'nowhere'.*is not there") as caught:
        topics.check("nowhere")
    assert "--config cleanup.policy=compact" in caught.value.hint
    assert "nowhere" not in AdminClient({"bootstrap.servers": kafka.servers}).list_topics(timeout=10).topics


def test_passwords_reach_the_client_and_no_text(kafka: Kafka, folder: LogFolder, tmp_path: Path) -> None:
    given = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "payments",
        "sasl.password": kafkaserver.PASSWORD,
    }  # fmt: skip
    secured = LogFolder(kafka.secured, folder.topic, OWNER)
    part = append(LogTopics(Cluster(kafka.secured, given)), secured, tmp_path)
    assert kafkaserver.PASSWORD not in part.path
    store = open_store("memory://", {f"kafka.{name}": value for name, value in given.items()})
    assert len(store.get(part.path)) == 1000
    wrong = open_store(
        "memory://", {**{f"kafka.{name}": value for name, value in given.items()}, "kafka.sasl.password": "x-y-z"}
    )
    with pytest.raises(AccessError) as caught:
        wrong.get(part.path)
    assert "x-y-z" not in str(caught.value)
    # The address of another listener of these brokers.
    assert len(open_store("memory://", {"kafka.bootstrap.servers": kafka.servers}).get(part.path)) == 1000


def test_only_paths_of_parts_are_parts(tmp_path: Path) -> None:
    part = LogPart(LogFolder("one:9092,two:9092", "t", OWNER), 0, 3, 5, OTHER, 100, 2)
    assert part_at(part.path) == part_at(f"jobs/counts/{part.path}") == part
    assert folder_at(f"jobs/counts/{part.folder.path}") == part.folder
    for path in ("log/a", f"{part.path}/a", f"catalog/{part.path}x", part.folder.path, "shared/ab/" + OTHER):
        assert part_at(path) is None
    store = open_store("memory://")
    with pytest.raises(ConfigurationError, match="copy a savepoint"):
        store.put_file(part.path, tmp_path)
