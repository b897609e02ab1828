"""How many rows a second `sinks.kafka` commits: its target alone, against a broker on this machine.

Each lane is a process, as Spark's Python workers are: it writes transactions of rows that were staged, of some 100
bytes, one after the other. What Spark and staging cost is not in it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks._harness import emit, end_on_sigterm, progress
from strandline.core.kafkaclient import Cluster
from strandline.ends.kafka.target import KafkaTarget
from strandline.ends.target import Writer
from strandline.storage.place import Place
from tests import kafkaserver

BENCHMARK = "kafka_target"
SUBJECT = "sinks.kafka"
LANES = 2
_WRITER = Writer("benchmark", 1, "out", "benchmark", Place(url="memory:"))


def rows(many: int, lane: int) -> pa.RecordBatch:
    """Return rows with a key and a value of JSON, 100 bytes each."""
    keys = [b"account-%d-%07d" % (lane, at % 10_000) for at in range(many)]
    values = [b'{"account":"%b","amount":%d,"text":"%060d"}' % (key, at % 1000, at) for at, key in enumerate(keys)]
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(values, pa.binary())], ["key", "value"])


def write(target: KafkaTarget, lane: int, size: int, many: int, ready: Any, go: Any) -> None:
    """Write a lane's transactions."""
    connection = target.connect(_WRITER, lane)
    batch, since = rows(size, lane), connection.reached()
    ready.release()
    go.wait()
    for at in range(many):
        mark = f"{since or ''}.{at}"
        connection.write([batch], since, mark)
        since = mark
    connection.end()


def measure(target: KafkaTarget, size: int, many: int) -> float:
    """Return the rows a second of all lanes."""
    context = multiprocessing.get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    lanes = [context.Process(target=write, args=(target, lane, size, many, ready, go)) for lane in range(LANES)]
    for lane in lanes:
        lane.start()
    for _ in lanes:
        ready.acquire()
    began = time.monotonic()
    go.set()
    for lane in lanes:
        lane.join()
        assert lane.exitcode == 0, f"a lane ended with {lane.exitcode}"
    return LANES * size * many / (time.monotonic() - began)


def main() -> None:
    """Print the results as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the rows, to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    end_on_sigterm()
    size, many = (5_000, 2) if options.quick else (100_000, 5)
    server = kafkaserver.start()
    try:
        topic = server.create("out", 4)
        target = KafkaTarget(Cluster(server.servers), topic, "strandline")
        target.claim(_WRITER)
        found = []
        for at in range(1 if options.quick else options.rounds):
            found.append(measure(target, size, many))
            progress(f"round {at + 1}: {found[-1]:,.0f} rows/s")
    finally:
        server.stop()
    emit(BENCHMARK, SUBJECT, "rows_per_second", round(median(found)), lanes=LANES, rows=size * many * LANES)


if __name__ == "__main__":
    main()
