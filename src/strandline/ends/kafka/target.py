"""Kafka as a target: a transaction holds a lane's rows and the record of how far the lane came.

A writer of a lane calls `init_transactions`: Kafka aborts the open transaction of the lane's previous writer and fences
it. So a lane has one writer at a time, and the lane's record does not change until that writer changes it.

A new run does so in all lanes that exist, and writes its generation into each lane's record. A replaced driver that
fences a lane later finds the newer generation in the record, and stops. In a new lane it first registers the lane, and
then looks for newer runs. A new run first registers its claim, and then reads the lanes. So one of them sees the other.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
from msgspec import structs

from strandline.core import failpoints
from strandline.core.datasets import Dataset
from strandline.core.errors import ConflictError, CorruptionError, FencedError, StrandlineError, UnavailableError
from strandline.core.kafkaclient import (
    ClientErrors,
    Cluster,
    call_within,
    create_client,
    discard,
    drop_frames,
    ignoring_errors,
    translate_error,
)
from strandline.ends.idle import IdleConnections, Key, is_of, key_of
from strandline.ends.kafka.producer import LIMIT, DeliveryReports, UnfitRowError, flush_rows, produce, producer_settings
from strandline.ends.kafka.record import LaneMessage, LaneRecord, SinkRecord
from strandline.ends.kafka.recovery import Lane, find_open, starts_in
from strandline.ends.kafka.topic import make_topic
from strandline.ends.target import Connection, Target, Writer

_THREADS = 8


class KafkaTarget(Target):
    """Topics of a cluster. `kafkasink.py` makes the columns of the rows."""

    # The record lists the offsets of a transaction's rows, and has to fit into a message.
    max_rows = 20_000
    max_bytes = 8 << 20
    refusing = (UnfitRowError,)

    def __init__(self, cluster: Cluster, topic: str | None, prefix: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.prefix = prefix
        self.limit = LIMIT
        """The topic's limit for messages, read when the job starts."""
        # Without addresses, which may change. Another cluster is detected by its missing record.
        self.destination = f"{f'topic {topic}' if topic else 'topics'} of Kafka"
        self.datasets = [Dataset.topic(cluster.servers, topic)] if topic else []

    def __repr__(self) -> str:
        return f"KafkaTarget({self.cluster.servers!r})"

    def claim(self, writer: Writer) -> None:
        record = SinkRecord(self.cluster, self.prefix, writer)
        # 1. Create the record's topic.
        make_topic(record, is_start=True)
        # 2. Check that no newer run has begun, and register this one.
        older = record.read(committed=False).claims
        self._check(writer, older)
        writer.check_claimed(bool(older), f"{record.topic} of Kafka")
        begins = writer.next_begins(older[max(older)] if older else (), f"{record.topic} of Kafka")
        record.register_claim(writer.generation, begins, {each for each in older if each < writer.generation})
        failpoints.hit("kafka.claimed")
        # 3. Take each lane: this aborts the transactions of older runs, and writes this run's generation.
        records = record.read(committed=False)
        self._check(writer, records.claims)
        if lanes := sorted(records.lanes | records.messages.keys()):
            with ThreadPoolExecutor(min(_THREADS, len(lanes)), "strandline-kafka") as pool:
                list(pool.map(lambda lane: self._claim_lane(writer, lane), lanes))

    def _claim_lane(self, writer: Writer, lane: int) -> None:
        connection = KafkaConnection(self, writer, lane)
        try:
            connection.put_record()
        finally:
            connection.close()
        failpoints.hit("kafka.lane_claimed")

    def _check(self, writer: Writer, claims: Collection[int]) -> None:
        if claims and max(claims) > writer.generation:
            raise fenced_error(writer, max(claims))

    def connect(self, writer: Writer, lane: int) -> KafkaConnection:
        # To take a lane again costs a dozen requests. If another process has only taken the lane since, the first
        # transaction fails, and the caller connects again.
        connection = idle.take(self.key_of(writer, lane))
        if connection is not None and not connection.is_current():
            connection.end()
            connection = None
        return connection or KafkaConnection(self, writer, lane)

    def may_pass(self, error: Exception) -> bool:
        return isinstance(error, UnavailableError)

    def key_of(self, writer: Writer, lane: int) -> Key:
        return key_of(writer, self.cluster.servers, self.prefix, lane)


_QUIET_S = 0.3
"""Brokers that were available all the time have completed a commit after this time."""
_CURRENT_S = 0.5
"""Timeout of the check of a kept connection."""


class KafkaConnection(Connection):
    """A writer's connection for a lane."""

    idle_since = 0.0

    def __init__(self, target: KafkaTarget, writer: Writer, lane: int) -> None:
        from confluent_kafka import KafkaException, Producer

        self._target = target
        self._writer = writer
        self._lane = lane
        self._record = SinkRecord(target.cluster, target.prefix, writer)
        self._errors = ClientErrors()
        self._reports = DeliveryReports()
        self._is_intact = False
        self._was_deleted = False
        """Whether the topic with the record was deleted during the run."""
        self._key = target.key_of(writer, lane)
        name = self._record.name_of(lane)
        settings = producer_settings(
            target, self._errors, self._reports, offsets=True, transactional_id=name, transaction_timeout_ms=60_000
        )
        self._producer: Any = create_client(Producer, target.cluster, settings)
        self._consumer: Any = self._record.consumer(lane, self._errors)
        try:
            # 1. Fence all other writers of the lane.
            self._connect()
            target.cluster.ask(self._producer.init_transactions)
            failpoints.hit("kafka.lane_taken")
            # 2. Read the lane's record: its mark, and the generation that the newest run has left.
            taken_lane = Lane(self._record, lane, self._producer, self._consumer, self._commit)
            self._current = taken_lane.read_record() or self._read_topic()
            self._check_current()
            # 3. Complete the record's transaction, unless this process has seen it completed.
            if self._current.is_incomplete or self._current != _records.get(self._key):
                self._current = taken_lane.complete(self._current)
        except (KafkaException, SystemError) as error:
            with ignoring_errors():
                self._producer.poll(0)
            self.end()
            raise self._translate(error) from error
        except BaseException:
            self.end()
            raise
        _records[self._key] = self._current
        self._is_intact = True

    def _connect(self) -> None:
        """Connect to brokers: without a connection, a client waits half a second before it finds its coordinator.

        A second request is needed, since the client may reconnect to the broker's advertised address after the first.
        """
        for _ in range(2):
            metadata = self._target.cluster.ask(self._producer.list_topics, self._record.topic)
        if metadata.topics[self._record.topic].error is not None:
            # The topic was deleted during the run.
            self._was_deleted = True
            make_topic(self._record)
            self._claim_again()
            self._record.register_lane(self._lane)

    def _check_current(self) -> None:
        writer, known = self._writer, _records.get(self._key)
        if self._current.generation > writer.generation:
            raise fenced_error(writer, self._current.generation)
        if known is not None and self._current.order < known.order:
            if self._was_deleted:
                raise CorruptionError(
                    f"{writer.label}: topic '{self._record.topic}' of Kafka at {self._target.cluster.servers} was "
                    "deleted while the job ran, and with it the record of the sink's progress: lane "
                    f"{self._lane} came to {known.mark}",
                    hint="start the job again: the start checks whether the job can go on. If it cannot, give the sink "
                    "another name: it begins with a new record, after the rows that were delivered",
                )
            # Writing the rows after the older mark would duplicate them.
            raise UnavailableError(
                f"{writer.label}: Kafka at {self._target.cluster.servers} says that lane {self._lane} came to "
                f"{self._current.mark or 'nothing'}, and said before that it came to {known.mark}: the broker has not "
                "loaded its data yet"
            )

    def _claim_again(self) -> None:
        """Register this run in the new topic: older runs must find its claim."""
        begins = self._writer.next_begins((), self._record.topic)
        self._record.register_claim(self._writer.generation, begins, set())

    def _read_topic(self) -> LaneRecord:
        """Return the record of a lane whose group has none: the lane is new, or was inactive for long."""
        self._record.register_lane(self._lane)
        records = self._record.read(committed=True)
        if self._writer.generation > max(records.claims, default=0):
            # The topic was deleted, and created again by the sink of another job.
            self._was_deleted = True
            self._claim_again()
        _, message = records.newest(self._lane) or (-1, LaneMessage(0, None))
        return structs.replace(message.record({}), generation=max(message.generation, *records.claims, 0))

    def reached(self) -> str | None:
        return self._current.mark

    def is_current(self) -> bool:
        """Whether the lane's record is still the one that this connection has written.

        False without an answer: another process may have left a transaction open, which the next connection aborts.
        """
        with suppress(Exception):
            return self._record.read_lane(self._consumer, _CURRENT_S) == self._current
        return False

    def put_record(self) -> None:
        """Write this run's generation into the lane's record."""
        message = LaneMessage(self._writer.generation, self._current.mark, self._current.step)
        self._current = self._commit(iter(()), message)

    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        if self._current.mark != since:
            raise ConflictError(f"{self._writer.label}: another task has written lane {self._lane} of Kafka")
        self._current = self._commit(iter(batches), LaneMessage(self._writer.generation, mark))

    def _commit(self, batches: Iterator[pa.RecordBatch], message: LaneMessage) -> LaneRecord:
        """Write rows and the lane's record in one transaction; return the record when it is complete."""
        from confluent_kafka import KafkaException

        producer, self._is_intact = self._producer, False
        try:
            producer.poll(0)
            self._reports.clear()
            error_count = self._errors.count
            call_within(self._target.cluster.answer_s, producer.begin_transaction)
            for batch in batches:
                produce(producer, batch, self._target, self._writer.label, self._reports)
            failpoints.hit("kafka.produced")
            flush_rows(producer, self._target, self._writer.label, self._errors, self._reports)
            message = structs.replace(message, rows=self._reports.copy_rows())
            record = self._record.put_lane(producer, self._consumer, self._lane, message, self._reports.copy_rows)
            failpoints.hit("kafka.marked")
            self._target.cluster.ask(producer.commit_transaction)
            failpoints.hit("kafka.decided")
            self._await_completion(record, error_count)
        except (KafkaException, SystemError) as error:
            raise self._translate(error) from error
        failpoints.hit("kafka.committed")
        self._is_intact = True
        _records[self._key] = record
        return record

    def _translate(self, error: Exception) -> StrandlineError:
        """Return an error of the client as a StrandlineError.

        Python raises SystemError if a callback runs while the client raises an error: a fatal one.
        """
        from confluent_kafka import KafkaException

        if isinstance(error, SystemError):
            drop_frames(error)
        cause = error if isinstance(error, KafkaException) else error.__cause__
        if isinstance(cause, KafkaException):
            return translate_error(cause, self._writer.label, self._target.cluster, self._errors)
        where = f"{self._writer.label}: Kafka at {self._target.cluster.servers}"
        return ConflictError(f"{where}: another task or driver writes in its place: the client has ended")

    def _await_completion(self, record: LaneRecord, error_count: int) -> None:
        """Wait until the transaction is committed in all of its partitions.

        The coordinator confirms its decision; the partitions follow shortly after, or never (`recovery.py`).
        """
        until = time.monotonic() + self._target.cluster.answer_s
        while self._record.read_lane(self._consumer) != record:
            self._pause(until)
        stable_at, positions = time.monotonic(), starts_in(record)
        while positions:
            hanging, unknown = find_open(self._record, self._consumer, positions)
            unknown = [position for position in unknown if position[0] != self._record.topic]
            if not hanging and not unknown:
                return
            self._producer.poll(0)
            is_quiet = self._errors.count == error_count and time.monotonic() - stable_at > _QUIET_S
            if not hanging and is_quiet:
                # Other writers keep transactions open for long. All brokers were available: they have completed it.
                return
            self._pause(until)

    def _pause(self, until: float) -> None:
        if time.monotonic() > until:
            raise UnavailableError(
                f"{self._writer.label}: Kafka at {self._target.cluster.servers} does not complete a commit"
            )
        time.sleep(0.005)

    def close(self) -> None:
        if self._is_intact:
            idle.put(self._key, self)
        else:
            self.end()

    def end(self) -> None:
        """Close the clients. Kafka aborts the open transaction when the lane is next taken, or after a minute."""
        with ignoring_errors():
            self._producer.purge()
            self._producer.poll(0)
        for client in (self._producer, self._consumer):
            if client is not None:
                discard(client)
        self._producer = self._consumer = None


_records: dict[Key, LaneRecord] = {}
"""The last record of each lane in this process: a broker that has just started may return an older one."""
idle: IdleConnections[KafkaConnection] = IdleConnections()


def end_connections(writer: Writer) -> None:
    """End what this process keeps for a writer."""
    idle.end(writer)
    for key in [key for key in _records if is_of(key, writer)]:
        _records.pop(key, None)


def fenced_error(writer: Writer, newest: int) -> FencedError:
    """Return the error for a driver that was replaced."""
    return FencedError(f"{writer.label}: run {newest} of the job writes to Kafka; this is run {writer.generation}")
