"""Rows a second into other systems, and how long a row takes until it can be seen there, by the checkpoints' interval.

    python -m benchmarks.ends [--subjects kafka postgresql …] [--intervals 1 5 30]

Each system is a real server on this machine, which shares the processors with the job. The pipeline has no operator:
what is measured is the way from Spark's rows into the target.

1. Throughput: epochs of 200,000 rows, as fast as they go. What the target's own client counts, between the first rows
   that it sees and the last.
2. Latency: 2,000 rows a second. The target's own client looks for new rows all the time; a row's latency is how old it
   is, by its event time, when it is seen.

`postgresql-by-key` puts each row in the place of the one that had its key, of 100,000.

The peer `spark-kafka-sink` is Spark's own sink for Kafka, at least once: its rows can be seen when they are written,
before any checkpoint. For latency it is triggered at the same interval, for throughput as fast as it goes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import strandline as sl
from benchmarks._ends import ENDS, Kafka, ages
from benchmarks._harness import (
    Result,
    add_subject_options,
    durability,
    emit,
    end_on_sigterm,
    measure_in_turn,
    median_of,
    progress,
    report_result,
)

BENCHMARK = "ends"
PEER = "spark-kafka-sink"
ROWS_AN_EPOCH = 200_000
ROWS_A_SECOND = 2_000
WARM_UP_S = 10.0
WANTED_AT_LEAST = {"kafka": 100_000, "postgresql": 100_000}
COLUMNS = (
    "value as id", "concat('user-', value % 100000) as person", "cast(value as double) / 4 as amount",
    "timestamp as at",
)  # fmt: skip


def source(spark: Any, *, fast: bool) -> Any:
    """Return the rows, in two partitions."""
    if fast:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_AN_EPOCH)
    else:
        rows = spark.readStream.format("rate").option("rowsPerSecond", ROWS_A_SECOND)
    return rows.option("numPartitions", 2).load().selectExpr(*COLUMNS)


@contextmanager
def writing(spark: Any, subject: str, end: Any, interval: int, directory: Path, *, fast: bool) -> Any:
    """Have rows be written, until the context ends."""
    rows = source(spark, fast=fast)
    if subject == PEER:
        # Else a query takes one batch an interval, however long it rests after it.
        every = 0 if fast else interval
        query = (
            rows.selectExpr("person as key", "to_json(struct(*)) as value")
            .writeStream.format("kafka").option("kafka.bootstrap.servers", end.servers).option("topic", end.topic)
            .option("checkpointLocation", str(directory / "spark")).trigger(processingTime=f"{every} seconds")
            .start()
        )  # fmt: skip
        try:
            yield
        finally:
            query.stop()
        return
    job = sl.Job(
        BENCHMARK,
        sinks=[sl.stream(rows).to(end.sink())],
        checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri(), every=f"{interval}s"),
        restart=sl.Restart.never(),
        settings=sl.Settings(local_dir=directory / "local", **durability()),
    )
    with job.start(spark):
        yield


def run_subject(subject: str, interval: int, seconds: float, directory: Path) -> Result:
    """Run both parts in this process."""
    spark = sl.session("strandline-benchmark", "local[2]", **{"spark.driver.memory": "2g"})
    found: Result = {}
    for fast in (True, False):
        part = directory / ("fast" if fast else "slow")
        part.mkdir()
        end = (Kafka if subject == PEER else ENDS[subject])(part)
        with end.running(spark), writing(spark, subject, end, interval, part, fast=fast):
            found |= throughput(end.count, seconds) if fast else latency(end, seconds)
    spark.stop()
    return found


def throughput(count: Callable[[], int], seconds: float) -> Result:
    """Count from when the first rows are seen, a few times in a second: between increments."""
    seen: list[tuple[float, int]] = []
    until = None
    while until is None or time.monotonic() < until or len(seen) < 3:
        rows = count()
        if rows and (not seen or rows > seen[-1][1]):
            seen.append((time.monotonic(), rows))
            until = until or time.monotonic() + seconds
        time.sleep(0.2)
    (start, first), (end, last) = seen[0], seen[-1]
    return {"rows_per_second": (last - first) / (end - start), "rows": last}


def latency(end: Any, seconds: float) -> Result:
    """See rows as they come, after a while in which the job starts and works off the rows of its start."""
    found: list[float] = []
    warm: float | None = None
    until: float | None = None
    while until is None or time.monotonic() < until:
        new = ages(end)
        if new:
            warm = warm or time.monotonic() + WARM_UP_S
            if time.monotonic() > warm:
                until = until or time.monotonic() + seconds
                found += new
        time.sleep(0.02)
    cuts = quantiles(found, n=100)
    return {"latency_p50_ms": cuts[49], "latency_p99_ms": cuts[98], "seen": len(found)}


def main() -> None:
    """Measure all, or run one of them (what the measuring process starts)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ends", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds of work: shows that it works, measures nothing")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--subjects", nargs="+", default=[*ENDS, PEER], choices=[*ENDS, PEER])
    parser.add_argument("--intervals", nargs="+", type=int, default=[1, 5, 30])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each part, after its beginning")
    parser.add_argument("--interval", type=int, help=argparse.SUPPRESS)
    add_subject_options(parser)
    given = parser.parse_args()
    if given.subject:
        report_result(given.result, run_subject(given.subject, given.interval, given.seconds, given.scratch))
        return
    end_on_sigterm()
    if given.quick:
        given.intervals, given.seconds = [1], 3.0
    for interval in given.intervals:
        seconds = given.seconds if given.quick else max(given.seconds, float(interval))
        progress(f"{BENCHMARK}: checkpoints every {interval} s")
        options = ["--interval", str(interval), "--seconds", str(seconds)]
        results = measure_in_turn("benchmarks.ends", given.subjects, given.rounds, options)
        for subject, found in results.items():
            has_peer = subject == "kafka" and PEER in results
            for metric in ("rows_per_second", "latency_p50_ms", "latency_p99_ms"):
                more: dict[str, Any] = (
                    {"peer": PEER, "peer_value": round(median_of(results[PEER], metric))} if has_peer else {}
                )
                if metric == "rows_per_second" and subject in WANTED_AT_LEAST:
                    more["wanted_at_least"] = WANTED_AT_LEAST[subject]
                emit(BENCHMARK, subject, metric, round(median_of(found, metric)), interval=f"{interval}s", **more)


if __name__ == "__main__":
    main()
