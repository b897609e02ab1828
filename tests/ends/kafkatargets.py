"""Topics, targets and trials of the tests of the sink of Kafka."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

import strandline as sl
from strandline.ends.kafka.target import KafkaConnection, KafkaTarget
from strandline.ends.target import Writer
from strandline.spark.sinks.kafkasink import KafkaSink, MessageColumns
from strandline.storage.place import Place
from strandline.testing.sinks.conformance import Trial
from tests.ends.inprocess import Session
from tests.kafkaserver import Kafka

FRESH = itertools.count()

PATIENCE_S = 20.0


def by(generation: int, sink: str = "s1") -> Writer:
    return Writer(sink, generation, "out", "j", Place(url="memory:"))


def batch(*keys_and_values: tuple[str, str]) -> list[pa.RecordBatch]:
    columns = zip(*keys_and_values, strict=True)
    data = [pa.array([text.encode() for text in column], pa.binary()) for column in columns]
    return [pa.RecordBatch.from_arrays(data, ["key", "value"])]


def expect(kafka: Kafka, topic: str, *values: str) -> None:
    """Brokers end a transaction some moments after they have said that it will be."""
    until = time.monotonic() + PATIENCE_S
    while True:
        seen = sorted(message.value().decode() for message in kafka.messages(topic))
        if seen == list(values):
            return
        assert not set(seen) - set(values), seen
        assert time.monotonic() < until, seen


def forget(kafka: Kafka, target: KafkaTarget) -> None:
    """As Kafka does with groups that were silent for a week."""
    admin = kafka.admin()
    groups = [f"{target.prefix}-s1-{lane}" for lane in (0, 1)]
    for done in admin.delete_consumer_groups(groups).values():
        done.result(10)


def write_on(target: KafkaTarget, connection: KafkaConnection, lane: int) -> None:
    """What is said to be written stays written."""
    until = time.monotonic() + 120
    while connection.reached() != "m2":
        try:
            connection.write(batch(("a", f"{lane} 2"), ("a", f"{lane} 3")), "m1", "m2")
        except (sl.errors.UnavailableError, sl.errors.ConflictError):
            assert time.monotonic() < until, "it is not written"
            connection.close()
            with suppress(sl.errors.UnavailableError, sl.errors.ConflictError):
                connection = target.connect(by(1), lane)


def write_at_last(target: KafkaTarget, rows: list[pa.RecordBatch]) -> None:
    """Write the first rows of a lane; it may be found meanwhile how much a topic takes at once."""
    for _ in range(5):
        with suppress(sl.errors.UnavailableError):
            target.connect(by(1), 0).write(rows, None, "m1")
            break


class Numbers:
    """A layout of messages without Spark: of the column n of a sink on trial."""

    topic = None

    def messages(self, df: Any) -> Any:
        return df.mapInArrow(_messages, None)


def _messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for each in batches:
        texts = pc.cast(pc.cast(each["n"], pa.string()), pa.binary())
        yield pa.RecordBatch.from_arrays([texts, texts], ["key", "value"])


def sink_of(target: KafkaTarget, patience_s: float = 20) -> KafkaSink:
    sink = KafkaSink(cast(MessageColumns, Numbers()), target)
    sink.patience_s, sink.start_patience_s = patience_s, 20
    return sink


class KafkaTrial(Trial):
    def expect(self, *epochs: int | tuple[int, int], at_least: bool = False) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return super().expect(*epochs, at_least=at_least)
            except AssertionError as error:
                # Brokers end a transaction some moments after they have said that it will be.
                if time.monotonic() > until or "rows are missing" not in str(error):
                    raise


def trial(kafka: Kafka, target: KafkaTarget) -> Trial:
    return KafkaTrial(
        cast(Any, Session()),
        make=lambda: sink_of(target),
        visible=lambda: [int(message.value()) for message in kafka.messages(target.topic or "")],
        crashes=3,
    )
