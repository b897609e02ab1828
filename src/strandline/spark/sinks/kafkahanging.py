"""A transaction that Kafka has ended in its books, and not in all of its topics: it is found, and ended there.

Kafka decides a transaction first, and then has each of its partitions told. Kafka 4.4.0 takes one that has no leader
just then for deleted, and tells it nothing (3.x waited for its leader): a broker that is killed between the two, and
that was the only one with a replica in sync, does so to all of them when it is back. The rows hang then, and so do
readers of `read_committed` behind them; no time-out ends that. And they would take part in whatever the same producer
does there next: with a commit they would come twice, with an abort be lost.

The lane's record hangs with them: its group says that it is not stable, though no transaction is open any more. If
nobody has seen any of the rows, the transaction is undone: another one of the same producer is put into each of its
partitions, and aborted. The rows are staged still, and are written again. If all of the rows are seen, the record alone
hangs, or did so for a moment: it is written once more, and committed.
"""

from __future__ import annotations

from typing import Any

from strandline.core.errors import SinkError, UnavailableError
from strandline.spark.sinks.kafkaclient import Said, made
from strandline.spark.sinks.kafkarecord import LaneRecord, Record


def hangs(record: Record, lane: int) -> bool:
    """Whether Kafka answers, and says how far the lane came before what it does not say the end of."""
    return _answers(record, lane, committed=False) and not _answers(record, lane, committed=True)


def _answers(record: Record, lane: int, *, committed: bool) -> bool:
    from confluent_kafka import KafkaException

    consumer = record.consumer(lane, Said(), committed=committed)
    try:
        record.of_lane(consumer)
    except (KafkaException, UnavailableError):
        return False
    finally:
        consumer.close()
    return True


def settle(producer: Any, consumer: Any, record: Record, lane: int) -> None:
    """End what hangs in a lane, whose producer has no transaction open; SinkError if only some rows are committed."""
    # 1. Which rows they are: their message was there before the group was told.
    offset, told = record.read(committed=False).told.get(lane, (-1, None))
    if told is None or told.ends is None:
        raise _left(record, lane, "which rows those are is not on record")
    # 2. All of them are seen, or nobody has seen any.
    everywhere = [(topic, *at) for topic, found in told.ends.items() for at in found.items()]
    seen = [place for place in everywhere if _is_committed(record, *place)]
    is_decided = bool(seen) or _is_committed(record, record.topic, 0, offset)
    if is_decided and len(seen) < len(everywhere):
        topic, partition, _ = seen[0] if seen else (record.topic, 0, offset)
        raise _left(record, lane, f"a part of it is committed, in topic '{topic}', partition {partition}")
    # 3. What is aborted with the rows is seen by nobody either; what is committed is the record that they came with.
    producer.begin_transaction()
    if not is_decided:
        for topic, partition, _ in everywhere:
            producer.produce(topic, b"", b"strandline", partition)
    record.put_lane(producer, consumer, lane, LaneRecord(told.generation, told.mark), told.ends)
    record.cluster.ask(producer.commit_transaction if is_decided else producer.abort_transaction)


def _left(record: Record, lane: int, why: str) -> SinkError:
    return SinkError(
        f"{record.writer.label}: Kafka at {record.cluster.servers} has left transaction '{record.name_of(lane)}' open, "
        f"and knows of none: {why}",
        hint="the rows stay staged. kafka-transactions.sh find-hanging and describe-producers show where it is; before "
        "it is ended there, compare what readers of read_committed have seen",
    )


def _is_committed(record: Record, topic: str, partition: int, offset: int) -> bool:
    """Whether readers of what is committed see the message there."""
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    if offset < 0:
        return False
    cluster = record.cluster
    consumer = made(
        Consumer, cluster,
        cluster.settings(
            Said(), group_id=record.name_of(0), isolation_level="read_committed", enable_auto_commit=False,
            enable_partition_eof=True, fetch_wait_max_ms=50,
        )
    )  # fmt: skip
    try:
        place = TopicPartition(topic, partition, offset)
        # It ends before what hangs. A reader that begins behind that hears nothing, not even that it is at the end.
        if consumer.get_watermark_offsets(place, cluster.answer_s)[1] <= offset:
            return False
        consumer.assign([place])
        message = consumer.poll(cluster.answer_s)
        if message is None:
            raise UnavailableError(f"{record.writer.label}: Kafka at {cluster.servers} does not answer")
        if message.error() is None:
            return bool(message.offset() == offset)
        if message.error().code() != KafkaError._PARTITION_EOF:
            raise KafkaException(message.error())
        return False
    finally:
        consumer.close()
