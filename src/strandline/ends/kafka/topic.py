"""The topic in which sinks of Kafka have on record how far they came: it is made, or found fit."""

from __future__ import annotations

import time
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.ends.kafka.client import ClientErrors, answer, discard, in_words, made, topic_setting
from strandline.ends.kafka.record import SinkRecord

_PARTITIONS = 2
_SETTINGS = {
    "cleanup.policy": "compact", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.2",
    # Brokers refuse the time of a clock that is an hour ahead of theirs.
    "message.timestamp.type": "LogAppendTime",
}  # fmt: skip


def make_topic(record: SinkRecord) -> None:
    """Create the topic unless it is there."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    said = ClientErrors()
    admin = made(AdminClient, record.cluster, record.cluster.settings(said))
    try:
        if not _is_fit(record, admin, said):
            (creating,) = admin.create_topics(
                [NewTopic(record.topic, _PARTITIONS, config=_SETTINGS)], request_timeout=record.cluster.answer_s
            ).values()
            try:
                answer(creating, admin, said, record.cluster)
            except KafkaException as error:
                # It was there, and the broker that was asked did not know of it yet.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            _await_topic(record, admin)
            _is_fit(record, admin, said)
    except KafkaException as error:
        why = in_words(error, record.writer.label, record.cluster, said)
        if not isinstance(why, ConfigurationError):
            raise why from error
        raise type(why)(
            f"{why.message}; it needs a topic '{record.topic}' of its own, with two partitions",
            hint=f"create it: kafka-topics.sh --create --topic {record.topic} --partitions 2 --config "
            "cleanup.policy=compact --config segment.bytes=4194304; or allow the sink's user to",
        ) from error
    finally:
        discard(admin)


def _is_fit(record: SinkRecord, admin: Any, said: ClientErrors) -> bool:
    """Return whether the topic is there; raise ConfigurationError if it is another than the sink needs."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    cluster = record.cluster
    (asked,) = admin.describe_topics(TopicCollection([record.topic]), request_timeout=cluster.answer_s).values()
    try:
        found = answer(asked, admin, said, cluster)
        policy = topic_setting("cleanup.policy", record.topic, admin, said, cluster)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return False
    where = f"{record.writer.label}: topic '{record.topic}' of Kafka at {cluster.servers}"
    if policy not in (None, "compact"):
        raise ConfigurationError(
            f"{where} has cleanup.policy={policy}, expected compact: Kafka would delete the record of how far the sink "
            "came",
            hint=f"kafka-configs.sh --alter --topic {record.topic} --add-config cleanup.policy=compact",
        )
    if len(found.partitions) < _PARTITIONS:
        raise ConfigurationError(
            f"{where} has {len(found.partitions)} partition, expected {_PARTITIONS}",
            hint=f"kafka-topics.sh --alter --topic {record.topic} --partitions {_PARTITIONS}",
        )
    return True


def _await_topic(record: SinkRecord, admin: Any) -> None:
    """Brokers learn of a new topic one after the other."""
    until = time.monotonic() + record.cluster.answer_s
    while time.monotonic() < until:
        metadata = admin.list_topics(record.topic, record.cluster.answer_s).topics[record.topic]
        if metadata.error is None and metadata.partitions and metadata.partitions[0].leader >= 0:
            return
        time.sleep(0.05)
