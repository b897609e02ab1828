"""Kafka as a target: a transaction holds a lane's rows and the record of how far the lane came.

Whoever writes in a lane has said so to Kafka (`init_transactions`), which ends what another one has open there, and
lets it commit nothing more. So a lane has one writer at a time, and what it has found on record holds until it is done.
A run that begins does that in all lanes there ever were, and leaves its number in each lane's record. A driver that was
replaced may still come later, and fence a lane: it finds the number there, and stops. In a lane that is new it has to
put the lane on record first, and then to look whether a newer run has begun; that run looks for lanes once it is on
record itself. One of the two sees the other.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
from msgspec import structs

from strandline.core import failpoints
from strandline.core.errors import ConflictError, CorruptionError, FencedError, StrandlineError, UnavailableError
from strandline.ends.kafka.client import ClientErrors, Cluster, discard, in_words, made, within
from strandline.ends.kafka.producer import LIMIT, Sent, UnfitRowError, drain, produce, producer_settings
from strandline.ends.kafka.record import LaneMessage, LaneRecord, SinkRecord
from strandline.ends.kafka.recovery import Lane, open_at, places_of
from strandline.ends.kafka.topic import make_topic
from strandline.ends.target import Connection, Target, Writer

_THREADS = 8


class KafkaTarget(Target):
    """Topics of a cluster. Rows have the columns that `kafkasink.py` makes."""

    # The record of a transaction says where each run of its rows is: it has to be a message.
    max_rows = 20_000
    max_bytes = 8 << 20
    refusing = (UnfitRowError,)

    def __init__(self, cluster: Cluster, topic: str | None, prefix: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.prefix = prefix
        self.limit = LIMIT
        """How large a message may be: as the topic says when the job starts."""
        # The addresses of one cluster change. That another one is there, its lack of a record says.
        self.destination = f"{f'topic {topic}' if topic else 'topics'} of Kafka"

    def __repr__(self) -> str:
        return f"KafkaTarget({self.cluster.servers!r})"

    def claim(self, writer: Writer) -> None:
        record = SinkRecord(self.cluster, self.prefix, writer)
        # 1. The record is there.
        make_topic(record)
        # 2. No newer run has begun; ours has.
        older = record.read(committed=False).claims
        self._check(writer, older)
        record.note_claim(writer.generation, {each for each in older if each < writer.generation})
        failpoints.hit("kafka.claimed")
        # 3. Each lane is ours: what others have begun there is gone, and they find our number.
        found = record.read(committed=False)
        self._check(writer, found.claims)
        if lanes := sorted(found.lanes | found.told.keys()):
            with ThreadPoolExecutor(min(_THREADS, len(lanes)), "strandline-kafka") as pool:
                list(pool.map(lambda lane: self._claim_lane(writer, lane), lanes))

    def _claim_lane(self, writer: Writer, lane: int) -> None:
        connection = KafkaConnection(self, writer, lane)
        try:
            connection.put_record()
        finally:
            connection.close()
        failpoints.hit("kafka.lane_claimed")

    def _check(self, writer: Writer, claims: set[int]) -> None:
        if claims and max(claims) > writer.generation:
            raise fenced(writer, max(claims))

    def connect(self, writer: Writer, lane: int) -> KafkaConnection:
        return idle.take(_key_of(self, writer, lane)) or KafkaConnection(self, writer, lane)

    def may_pass(self, error: Exception) -> bool:
        return isinstance(error, UnavailableError)


def _key_of(target: KafkaTarget, writer: Writer, lane: int) -> tuple[Any, ...]:
    return (target.cluster.servers, target.prefix, writer.sink, writer.generation, lane)


_QUIET_S = 0.3
"""Brokers that were there all the time have carried out a commit then."""
_MOST_IDLE = 32
_IDLE_S = 120.0


class _Idle:
    """Connections that are whole, of this process: to take a lane anew is a dozen questions to brokers.

    If another task has taken it since, the first transaction fails; then the lane is taken anew.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], KafkaConnection] = {}
        self._lock = threading.Lock()

    def take(self, key: tuple[Any, ...]) -> KafkaConnection | None:
        with self._lock:
            return self._found.pop(key, None)

    def put(self, key: tuple[Any, ...], connection: KafkaConnection) -> None:
        now = time.monotonic()
        with self._lock:
            old = [self._found.pop(key)] if key in self._found else []
            connection.idle_since = now
            self._found[key] = connection
            for each, other in list(self._found.items()):
                if len(self._found) > _MOST_IDLE or now - other.idle_since > _IDLE_S:
                    old.append(self._found.pop(each))
        for other in old:
            other.end()

    def end(self, writer: Writer | None = None) -> None:
        """End those of a writer, or all."""
        with self._lock:
            keys = [key for key in self._found if writer is None or key[2:4] == (writer.sink, writer.generation)]
            old = [self._found.pop(key) for key in keys]
        for each in old:
            each.end()
        for key in [key for key in _known if writer is not None and key[2:4] == (writer.sink, writer.generation)]:
            _known.pop(key, None)


class KafkaConnection(Connection):
    """One writer's way into a lane."""

    idle_since = 0.0

    def __init__(self, target: KafkaTarget, writer: Writer, lane: int) -> None:
        from confluent_kafka import KafkaException, Producer

        self._target = target
        self._writer = writer
        self._lane = lane
        self._record = SinkRecord(target.cluster, target.prefix, writer)
        self._said = ClientErrors()
        self._sent = Sent()
        self._is_whole = False
        self._was_deleted = False
        """Whether the topic with the record was found deleted."""
        self._key = _key_of(target, writer, lane)
        name = self._record.name_of(lane)
        settings = producer_settings(
            target, self._said, self._sent, places=True, transactional_id=name, transaction_timeout_ms=60_000
        )
        self._producer: Any = made(Producer, target.cluster, settings)
        self._consumer: Any = self._record.consumer(lane, self._said)
        try:
            # 1. Nobody else commits in this lane any more.
            self._meet_brokers()
            target.cluster.ask(self._producer.init_transactions)
            failpoints.hit("kafka.lane_taken")
            # 2. What holds until then is how far it came; a newer run has left its number.
            taken = Lane(self._record, lane, self._producer, self._consumer, self._commit)
            self._found = taken.found() or self._remembered()
            self._check_found()
            # 3. All of that is carried out: this process has seen it, or looks.
            if self._found.owes or self._found != _known.get(self._key):
                self._found = taken.through(self._found)
        except (KafkaException, SystemError) as error:
            with suppress(KafkaException, SystemError):
                self._producer.poll(0)
            self.end()
            raise self._in_words(error) from error
        except BaseException:
            self.end()
            raise
        _known[self._key] = self._found
        self._is_whole = True

    def _meet_brokers(self) -> None:
        """Have connections: a client that looks for who leads its transactions without one waits for half a second.

        The first answer comes from the address that it was given; it may leave that for the name that the broker has.
        """
        for _ in range(2):
            known = self._target.cluster.ask(self._producer.list_topics, self._record.topic)
        if known.topics[self._record.topic].error is not None:
            # Deleted while the run goes on. Older runs must still find that this one has begun.
            self._was_deleted = True
            make_topic(self._record)
            self._record.note_claim(self._writer.generation, set())
            self._record.note_lane(self._lane)

    def _check_found(self) -> None:
        writer, known = self._writer, _known.get(self._key)
        if self._found.generation > writer.generation:
            raise fenced(writer, self._found.generation)
        if known is not None and self._found.place < known.place:
            if self._was_deleted:
                raise CorruptionError(
                    f"{writer.label}: topic '{self._record.topic}' of Kafka at {self._target.cluster.servers} was "
                    "deleted while the job ran, and with it the record of how far the sink came: lane "
                    f"{self._lane} came to {known.mark}",
                    hint="start the job again: it says whether it can go on. If it cannot, give the sink another name: "
                    "it begins anew, and goes on behind the rows that were delivered",
                )
            # To write what comes after the older one would be to write rows a second time.
            raise UnavailableError(
                f"{writer.label}: Kafka at {self._target.cluster.servers} says that lane {self._lane} came to "
                f"{self._found.mark or 'nothing'}, and has said before that it came to {known.mark}: it is not whole "
                "yet"
            )

    def _remembered(self) -> LaneRecord:
        """Return the record of a lane whose group has none: the lane is new, or was silent for long."""
        self._record.note_lane(self._lane)
        found = self._record.read(committed=True)
        if self._writer.generation > max(found.claims, default=0):
            # Deleted, and made anew by the sink of another job.
            self._was_deleted = True
            self._record.note_claim(self._writer.generation, set())
        _, told = found.newest(self._lane) or (-1, LaneMessage(0, None))
        return structs.replace(told.record({}), generation=max(told.generation, *found.claims, 0))

    def reached(self) -> str | None:
        return self._found.mark

    def put_record(self) -> None:
        """Leave this run's number in the lane's record."""
        self._found = self._commit(iter(()), LaneMessage(self._writer.generation, self._found.mark, self._found.step))

    def write(self, batches: Sequence[pa.RecordBatch], since: str | None, mark: str) -> None:
        if self._found.mark != since:
            raise ConflictError(f"{self._writer.label}: another task has written lane {self._lane} of Kafka")
        self._found = self._commit(iter(batches), LaneMessage(self._writer.generation, mark))

    def _commit(self, batches: Iterator[pa.RecordBatch], told: LaneMessage) -> LaneRecord:
        """Write rows and the lane's record in one transaction; return the record when that is carried out."""
        from confluent_kafka import KafkaException

        producer, self._is_whole = self._producer, False
        try:
            producer.poll(0)
            self._sent.clear()
            troubles = self._said.times
            within(self._target.cluster.answer_s, producer.begin_transaction)
            for batch in batches:
                produce(producer, batch, self._target, self._writer.label, self._sent)
            failpoints.hit("kafka.produced")
            drain(producer, self._target, self._writer.label, self._said, self._sent)
            told = structs.replace(told, rows=self._sent.copied())
            record = self._record.put_lane(producer, self._consumer, self._lane, told, self._sent.copied)
            failpoints.hit("kafka.marked")
            self._target.cluster.ask(producer.commit_transaction)
            failpoints.hit("kafka.decided")
            self._await(record, troubles)
        except (KafkaException, SystemError) as error:
            raise self._in_words(error) from error
        failpoints.hit("kafka.committed")
        self._is_whole = True
        _known[self._key] = record
        return record

    def _in_words(self, error: Exception) -> StrandlineError:
        """Return an error of the client as one of ours.

        Python has SystemError where a callback ran while the client's own error was on its way: one that ends it.
        """
        from confluent_kafka import KafkaException

        found = error if isinstance(error, KafkaException) else error.__cause__
        if isinstance(found, KafkaException):
            return in_words(found, self._writer.label, self._target.cluster, self._said)
        where = f"{self._writer.label}: Kafka at {self._target.cluster.servers}"
        return ConflictError(f"{where}: another task or driver writes in its place: the client has ended")

    def _await(self, record: LaneRecord, troubles: int) -> None:
        """Wait until it is seen that the transaction is committed, and all of its partitions are told.

        Brokers say so when they have decided it, and carry it out a little later, or never (`recovery.py`).
        """
        until = time.monotonic() + self._target.cluster.answer_s
        while self._record.of_lane(self._consumer) != record:
            self._rest(until)
        stable_at, places = time.monotonic(), places_of(record)
        while places:
            hung, hidden = open_at(self._record, self._consumer, places)
            hidden = [place for place in hidden if place[0] != self._record.topic]
            if not hung and not hidden:
                return
            self._producer.poll(0)
            is_quiet = self._said.times == troubles and time.monotonic() - stable_at > _QUIET_S
            if not hung and is_quiet:
                # Other writers keep transactions open for long. No broker was away: what it had to do, it has done.
                return
            self._rest(until)

    def _rest(self, until: float) -> None:
        if time.monotonic() > until:
            raise UnavailableError(
                f"{self._writer.label}: Kafka at {self._target.cluster.servers} does not carry out a commit"
            )
        time.sleep(0.005)

    def close(self) -> None:
        if self._is_whole:
            idle.put(self._key, self)
        else:
            self.end()

    def end(self) -> None:
        """Let go of it for good: what is open ends when the lane is next taken, or after a minute."""
        with suppress(Exception):
            self._producer.purge()
            self._producer.poll(0)
        for client in (self._producer, self._consumer):
            if client is not None:
                discard(client)
        self._producer = self._consumer = None


_known: dict[tuple[Any, ...], LaneRecord] = {}
"""How far lanes had come when this process last knew: a broker that has just been started may not know it yet."""
idle = _Idle()
atexit.register(idle.end)


def fenced(writer: Writer, newest: int) -> FencedError:
    """Return what a driver is told that was replaced."""
    return FencedError(f"{writer.label}: run {newest} of the job writes to Kafka; this is run {writer.generation}")
