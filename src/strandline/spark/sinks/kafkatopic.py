"""The topic in which sinks of Kafka have on record how far they came: it is made, or found fit."""

from __future__ import annotations

import time
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.spark.sinks.kafkaclient import Said, answer, in_words, made, topic_setting
from strandline.spark.sinks.kafkarecord import Record

_PARTITIONS = 2
_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.2"}


def make_topic(record: Record) -> None:
    """Create the topic unless it is there."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection
    from confluent_kafka.admin import AdminClient, NewTopic

    said = Said()
    admin = made(AdminClient, record.cluster, record.cluster.settings(said))
    try:
        (found,) = admin.describe_topics(
            TopicCollection([record.topic]), request_timeout=record.cluster.answer_s
        ).values()
        try:
            _check(
                record,
                answer(found, admin, said, record.cluster),
                topic_setting("cleanup.policy", record.topic, admin, said, record.cluster),
            )
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        (creating,) = admin.create_topics(
            [NewTopic(record.topic, _PARTITIONS, config=_SETTINGS)], request_timeout=record.cluster.answer_s
        ).values()
        answer(creating, admin, said, record.cluster)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        why = in_words(error, record.writer.label, record.cluster, said)
        if not isinstance(why, ConfigurationError):
            raise why from error
        raise ConfigurationError(
            f"{why.message}; it needs a topic '{record.topic}' of its own, with two partitions",
            hint=f"create it: kafka-topics.sh --create --topic {record.topic} --partitions 2 --config "
            "cleanup.policy=compact; or allow the sink's user to",
        ) from error
    _await_topic(record, admin)


def _await_topic(record: Record, admin: Any) -> None:
    """Brokers learn of a new topic one after the other."""
    until = time.monotonic() + record.cluster.answer_s
    while time.monotonic() < until:
        metadata = admin.list_topics(record.topic, record.cluster.answer_s).topics[record.topic]
        if metadata.error is None and metadata.partitions and metadata.partitions[0].leader >= 0:
            return
        time.sleep(0.05)


def _check(record: Record, found: Any, policy: str | None) -> None:
    if policy not in (None, "compact"):
        raise ConfigurationError(
            f"{record.writer.label}: topic '{record.topic}' of Kafka at {record.cluster.servers} has "
            f"cleanup.policy={policy}, expected compact: Kafka would delete the record of how far the sink came",
            hint=f"kafka-configs.sh --alter --topic {record.topic} --add-config cleanup.policy=compact",
        )
    if len(found.partitions) < _PARTITIONS:
        raise ConfigurationError(
            f"{record.writer.label}: topic '{record.topic}' of Kafka at {record.cluster.servers} has "
            f"{len(found.partitions)} partition, expected {_PARTITIONS}",
            hint=f"kafka-topics.sh --alter --topic {record.topic} --partitions {_PARTITIONS}",
        )
