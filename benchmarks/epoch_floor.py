"""What an epoch costs that has nothing to do: a job of one operator, beside a foreachBatch that only shuffles; and jobs
of four operators and of four shuffles in a row, and of four operators that keep the key.

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
)
from strandline.spark.job.starting import ASYNCHRONOUS_LOGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "epoch_floor"
JOB = "strandline"
CHAIN = "strandline-chain"
CHAIN_OF_ONE_KEY = "strandline-chain-of-one-key"
SHUFFLE = "spark-shuffle-and-map"
SHUFFLES = "spark-shuffle-and-map-chain"
EMPTY = "spark-empty-epoch"
"""A foreachBatch that does nothing: no program on foreachBatch has shorter epochs."""
SUBJECTS = (JOB, SHUFFLE, EMPTY, CHAIN, CHAIN_OF_ONE_KEY, SHUFFLES)
PARTITIONS = 2
LINKS = 4

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
    links = {JOB: 1, SHUFFLE: 1, EMPTY: 0}.get(name, LINKS)
    if name in (SHUFFLE, SHUFFLES, EMPTY):
        costs = _run_shuffle(spark, directory, warm_up + epochs, links)
    else:
        costs = _run_job(spark, directory, warm_up + epochs, links, keeps_key=name == CHAIN_OF_ONE_KEY)
    jobs_ms = _last_jobs_ms(spark, epochs)
    spark.stop()
    return {
        "epoch_ms": float(median(costs[warm_up:])),
        "fastest_ms": min(costs[warm_up:]),
        "job_ms": float(median(jobs_ms)) if jobs_ms else 0.0,
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


def _run_job(spark: SparkSession, directory: Path, epochs: int, operators: int, *, keeps_key: bool) -> list[int]:
    rows = sl.stream(_one_row_an_epoch(spark))
    for number in range(operators):
        rows = rows.key_by("key").process(
            Last(), output="key bigint, value bigint", uid=f"last{number}", keeps_key=keeps_key
        )
    job = sl.Job(
        BENCHMARK,
        sinks=[rows.to(sl.sinks.noop())],
        checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri()),
        restart=sl.Restart.never(),
        settings=sl.Settings(backend="rocksdb", parallelism=PARTITIONS, local_dir=directory / "local", **durability()),
    )
    with job.start(spark) as run:
        return _durations_ms(run.query, epochs)


def _run_shuffle(spark: SparkSession, directory: Path, epochs: int, shuffles: int) -> list[int]:
    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def epoch(df: DataFrame, number: int) -> None:
        for _ in range(shuffles):
            df = df.repartition(PARTITIONS, "key").mapInArrow(hand_on, "key bigint, value bigint")
        if shuffles:
            df.write.format("noop").mode("overwrite").save()

    writer = _one_row_an_epoch(spark).writeStream.foreachBatch(epoch)
    # Without shuffles, it is for comparison with the job, whose logs are asynchronous.
    logs = {} if shuffles else ASYNCHRONOUS_LOGS
    query = writer.options(checkpointLocation=str(directory / "spark"), **logs).start()
    costs = _durations_ms(query, epochs)
    query.stop()
    return costs


def _durations_ms(query: Any, epochs: int) -> list[int]:
    """Wait for so many epochs and return how long each took, hardly disturbing them."""
    # Reading all reports, again and again, would take longer than an epoch.
    while query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] < epochs:
        time.sleep(0.5)
    costs = (progress["durationMs"] for progress in query.recentProgress)
    # Spark reports looks at the source that find no rows as well.
    return [int(cost["triggerExecution"]) for cost in costs if "addBatch" in cost][:epochs]


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
    for subject, peer, wanted in (
        (JOB, SHUFFLE, 0.7),
        (CHAIN, JOB, 1.6),
        (CHAIN_OF_ONE_KEY, JOB, 1.6),
        (EMPTY, SHUFFLE, None),
        (CHAIN, SHUFFLES, None),
        (SHUFFLES, SHUFFLE, None),
    ):
        if {subject, peer} <= results.keys():
            ratio = median_of(results[subject], "epoch_ms") / median_of(results[peer], "epoch_ms")
            extra = {} if wanted is None else {"wanted_at_most": wanted}
            emit(BENCHMARK, subject, "epoch_ratio", round(ratio, 3), peer=peer, **extra)


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
