"""What an epoch costs that has nothing to do: a job of one operator, beside a foreachBatch that only shuffles, and a
job of four operators in a row.

The stream brings one row an epoch. The peer sends it through `repartition(2, column)` and a mapInArrow that hands on
what it gets, into the `noop` sink: the least that any engine in this place must do. The job has RocksDB state, two
keepers and no checkpoint interval. Both figures are Spark's own `triggerExecution`, the median of many epochs; each
subject runs in a process of its own, in turn, several rounds. Of it, the Spark job that an epoch runs, by Spark's
status store: the rest is planning, the query's own work, and calls from Python.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import strandline as sl
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
    run_epochs,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "epoch_floor"
JOB = "strandline"
CHAIN = "strandline-chain"
SHUFFLE = "spark-shuffle-and-map"
SUBJECTS = (JOB, SHUFFLE, CHAIN)
PARTITIONS = 2
LINKS = 4
WANTED_RATIO = 1.5
WANTED_CHAIN_RATIO = 1.6

SPARK_SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.streaming.numRecentProgressUpdates": "2000",
    # Off in the job's epochs; left on, it would only slow the peer down.
    "spark.sql.adaptive.enabled": "false",
}


class Last(sl.KeyedBatchProcess):
    """Remembers each key's last value."""

    value = sl.Value("bigint")

    def on_batch(self, batch: pa.RecordBatch, ctx: sl.BatchContext) -> pa.RecordBatch:
        states: Any = self.value
        states.put_many(ctx.keys, batch.column("value"), last=True)
        return batch


def run_subject(name: str, directory: Path, epochs: int, warm_up: int) -> Result:
    """Run one subject in this process."""
    spark = sl.session("strandline-benchmark", f"local[{PARTITIONS}]", **SPARK_SETTINGS)
    if name != SHUFFLE:
        costs = _run_job(spark, directory, warm_up + epochs, LINKS if name == CHAIN else 1)
    else:
        costs = _run_shuffle(spark, directory, warm_up + epochs)
    jobs_ms = _last_jobs_ms(spark, epochs)
    spark.stop()
    return {
        "epoch_ms": float(median(costs[warm_up:])),
        "fastest_ms": min(costs[warm_up:]),
        "job_ms": float(median(jobs_ms)),
    }


def _last_jobs_ms(spark: SparkSession, count: int) -> list[int]:
    """Return the durations of the last jobs that are over: each epoch of either subject runs one."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    durations = []
    # The newest comes first.
    for at in range(jobs.size()):
        begun, ended = jobs.apply(at).submissionTime(), jobs.apply(at).completionTime()
        if begun.isDefined() and ended.isDefined():
            durations.append(ended.get().getTime() - begun.get().getTime())
        if len(durations) == count:
            break
    return durations


def _run_job(spark: SparkSession, directory: Path, epochs: int, operators: int) -> list[int]:
    rows = sl.stream(_one_row_an_epoch(spark))
    for number in range(operators):
        rows = rows.key_by("key").process(Last(), output="key bigint, value bigint", uid=f"last{number}")
    job = sl.Job(
        BENCHMARK,
        sinks=[rows.to(sl.sinks.noop())],
        checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri()),
        restart=sl.Restart.never(),
        settings=sl.Settings(backend="rocksdb", parallelism=PARTITIONS, local_dir=directory / "local", **durability()),
    )
    with job.start(spark) as run:
        return _durations_ms(run.query, epochs)


def _run_shuffle(spark: SparkSession, directory: Path, epochs: int) -> list[int]:
    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def epoch(df: DataFrame, number: int) -> None:
        mapped = df.repartition(PARTITIONS, "key").mapInArrow(hand_on, "key bigint, value bigint")
        mapped.write.format("noop").mode("overwrite").save()

    writer = _one_row_an_epoch(spark).writeStream.foreachBatch(epoch)
    query = writer.option("checkpointLocation", str(directory / "spark")).start()
    costs = _durations_ms(query, epochs)
    query.stop()
    return costs


def _durations_ms(query: Any, epochs: int) -> list[int]:
    """Wait for so many epochs and return how long each took, hardly disturbing them."""
    # Reading all reports, again and again, would take longer than an epoch.
    while query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] < epochs:
        time.sleep(0.5)
    return [cost.duration_ms for cost in run_epochs(query, epochs)]


def _one_row_an_epoch(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).option("numPartitions", 1).load()
    return rows.selectExpr("value % 1000 as key", "value")


def report(results: dict[str, list[Result]], epochs: int) -> None:
    """Print each subject's median epoch and their ratio."""
    for subject, rounds in results.items():
        extra: dict[str, Any] = {
            "unit": "ms",
            "rounds": [result["epoch_ms"] for result in rounds],
            "fastest_ms": min(result["fastest_ms"] for result in rounds),
            "epochs_per_round": epochs,
        }
        emit(BENCHMARK, subject, "epoch_median_ms", median_of(rounds, "epoch_ms"), **extra)
        emit(BENCHMARK, subject, "job_of_it_ms", median_of(rounds, "job_ms"), unit="ms")
    if set(SUBJECTS) <= results.keys():
        ratio = median_of(results[JOB], "epoch_ms") / median_of(results[SHUFFLE], "epoch_ms")
        emit(BENCHMARK, JOB, "epoch_ratio", round(ratio, 3), peer=SHUFFLE, wanted_at_most=WANTED_RATIO)
        ratio = median_of(results[CHAIN], "epoch_ms") / median_of(results[JOB], "epoch_ms")
        emit(BENCHMARK, CHAIN, "epoch_ratio", round(ratio, 3), peer=JOB, wanted_at_most=WANTED_CHAIN_RATIO)


def main() -> None:
    """Measure the subjects in turn, or run one of them (what the measuring process starts)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.epoch_floor", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few epochs, one round: shows that it works, measures nothing"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=120, help="measured epochs of a round")
    parser.add_argument("--warm-up", type=int, default=150, help="epochs before them")
    add_subject_options(parser, SUBJECTS)
    given = parser.parse_args()
    end_on_sigterm()
    if given.quick:
        given.rounds, given.epochs, given.warm_up = 1, 10, 5
    if given.subject:
        report_result(given.result, run_subject(given.subject, given.scratch, given.epochs, given.warm_up))
        return
    progress(f"{BENCHMARK}: {', '.join(SUBJECTS)}; {given.rounds} rounds of {given.warm_up} + {given.epochs} epochs")
    options = ["--epochs", str(given.epochs), "--warm-up", str(given.warm_up)]
    report(measure_in_turn("benchmarks.epoch_floor", SUBJECTS, given.rounds, options), given.epochs)


if __name__ == "__main__":
    main()
