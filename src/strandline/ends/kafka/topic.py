"""The topic with the records of Kafka sinks: its creation and the check of its settings."""

from __future__ import annotations

import time
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.kafkaclient import ClientErrors, create_client, discard, get_answer, read_setting, translate_error
from strandline.ends.kafka.record import SinkRecord

_PARTITIONS = 2
_SETTINGS = {
    "cleanup.policy": "compact", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.2",
    # Brokers refuse the time of a clock that is an hour ahead of theirs.
    "message.timestamp.type": "LogAppendTime",
}  # fmt: skip


def make_topic(record: SinkRecord, *, is_start: bool = False) -> None:
    """Create the topic unless it exists; at a start, it must if an earlier run has used it."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    errors = ClientErrors()
    admin = create_client(AdminClient, record.cluster, record.cluster.settings(errors))
    try:
        if not _is_fit(record, admin, errors):
            if is_start:
                record.writer.check_claimed(False, f"{record.topic} of Kafka")
            (creating,) = admin.create_topics(
                [NewTopic(record.topic, _PARTITIONS, config=_SETTINGS)], request_timeout=record.cluster.answer_s
            ).values()
            try:
                get_answer(creating, admin, errors, record.cluster)
            except KafkaException as error:
                # It existed, and the broker did not know it yet.
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            _await_topic(record, admin)
            _is_fit(record, admin, errors)
    except KafkaException as error:
        why = translate_error(error, record.writer.label, record.cluster, errors)
        if not isinstance(why, ConfigurationError):
            raise why from error
        raise type(why)(
            f"{why.message}; the sink needs a topic '{record.topic}' for its record, with two partitions",
            hint=f"create it: kafka-topics.sh --create --topic {record.topic} --partitions 2 --config "
            "cleanup.policy=compact --config segment.bytes=4194304; or allow the sink's user to",
        ) from error
    finally:
        discard(admin)


def _is_fit(record: SinkRecord, admin: Any, errors: ClientErrors) -> bool:
    """Return whether the topic exists; raise ConfigurationError if its settings are wrong."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    cluster = record.cluster
    (request,) = admin.describe_topics(TopicCollection([record.topic]), request_timeout=cluster.answer_s).values()
    try:
        description = get_answer(request, admin, errors, cluster)
        policy = read_setting("cleanup.policy", record.topic, admin, errors, cluster)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return False
    where = f"{record.writer.label}: topic '{record.topic}' of Kafka at {cluster.servers}"
    if policy not in (None, "compact"):
        raise ConfigurationError(
            f"{where} has cleanup.policy={policy}, expected compact: Kafka would delete the record of the sink's "
            "progress",
            hint=f"kafka-configs.sh --alter --topic {record.topic} --add-config cleanup.policy=compact",
        )
    if len(description.partitions) < _PARTITIONS:
        raise ConfigurationError(
            f"{where} has {len(description.partitions)} partition, expected {_PARTITIONS}",
            hint=f"kafka-topics.sh --alter --topic {record.topic} --partitions {_PARTITIONS}",
        )
    return True


def _await_topic(record: SinkRecord, admin: Any) -> None:
    """Wait until the broker knows the new topic and its leader."""
    until = time.monotonic() + record.cluster.answer_s
    while time.monotonic() < until:
        metadata = admin.list_topics(record.topic, record.cluster.answer_s).topics[record.topic]
        if metadata.error is None and metadata.partitions and metadata.partitions[0].leader >= 0:
            return
        time.sleep(0.05)
