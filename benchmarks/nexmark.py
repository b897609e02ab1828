"""Nexmark's queries 3, 4, 5, 7, 8, 9, 11, 18 and 20: events a second, beside Spark's own streaming SQL and Flink's.

Everybody reads the same files, an epoch each, and writes the results as Parquet files. These are compared with what
DuckDB makes of the same events. Spark's SQL cannot say query 4. Flink is fetched when it is first measured, and left
out where it cannot be had.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks._counting import MASTER
from benchmarks._counting import SPARK_SETTINGS as COMMON_SETTINGS
from benchmarks._flink import UnavailableFlinkError, install
from benchmarks._harness import (
    Result,
    add_subject_options,
    emit,
    end_on_sigterm,
    measure_in_turn,
    median_of,
    progress,
    report_result,
    run_epochs,
    scratch,
    steady_rows_per_second,
)
from benchmarks._nexmark import flink
from benchmarks._nexmark.answers import check, import_duckdb, parquet_files
from benchmarks._nexmark.peers import STATEMENTS, Statement, results_of
from benchmarks._nexmark.queries import COLUMNS, QUERIES, slim
from benchmarks._nexmark.sources import SPARK_SETTINGS, Size, read_events, write_events
from benchmarks._peers import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    import strandline as sl

BENCHMARK = "nexmark"
OURS, SPARK, FLINK = "strandline", "spark-sql", "flink-sql"
READING = "reading"
"""Spark reads the columns of a query, and drops them: the least that any program on Spark has to do."""
PASSING = "passing"
"""Spark shuffles the rows of a query by key, passes them through Python, and drops them: no state, nothing written."""
STATELESS = "stateless"
"""Spark answers its statement for the rows of each epoch alone, as a batch: what is left if state costs nothing."""
DISCARDED = "discarded"
"""A query of ours whose results are dropped, as Flink's are where it takes them back: the same work on both sides."""
CHANGES = "flink-changes"
"""Flink writes all changes of a query whose results it takes back: the same work on both sides, too."""
THROUGH_SAVEPOINT = "through-savepoint"
FULL = Size(events_per_epoch=200_000, epochs=12, warm_up=4)
QUICK = Size(events_per_epoch=30_000, epochs=3, warm_up=1)
CHECKPOINT_INTERVAL = "10s"
SETTINGS = COMMON_SETTINGS | SPARK_SETTINGS
SUBJECTS = [f"{query}.{OURS}" for query in QUERIES] + [f"{query}.{SPARK}" for query in STATEMENTS]
SUBJECTS += [f"{query}.{FLINK}" for query in flink.STATEMENTS]
SUBJECTS.sort(key=lambda subject: int(subject.partition(".")[0][1:]))
THROUGH = [f"{query}.{THROUGH_SAVEPOINT}" for query in QUERIES]
BY_AUCTION = ("coalesce(auction.id, bid.auction)",)
KEYS = {
    "q3": ("coalesce(person.id, auction.seller)",), "q4": BY_AUCTION, "q9": BY_AUCTION,
    "q18": ("bid.bidder", "bid.auction"), "q20": BY_AUCTION,
}  # fmt: skip
"""Of the queries whose functions get each row."""
ON_REQUEST = THROUGH + [f"{query}.{READING}" for query in QUERIES] + [f"{query}.{PASSING}" for query in KEYS]
ON_REQUEST += [f"{query}.{STATELESS}" for query in STATEMENTS]
TAKEN_BACK = [query for query, statement in flink.STATEMENTS.items() if statement.updates]
ON_REQUEST += [f"{query}.{engine}" for query in TAKEN_BACK for engine in (DISCARDED, CHANGES)]
_TIMEOUT_S = 1800.0


def run_strandline(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Run a query of ours to its end and return the costs of the epochs."""
    return run_job(query, QUERIES[query], events, size, directory)


def run_discarded(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Run a query of ours to its end, drop its results, and return the costs of the epochs."""
    return run_job(query, QUERIES[query], events, size, directory, written=False)


def run_job(
    query: str,
    results_of: Callable[[DataFrame], sl.Stream],
    events: Path,
    size: Size,
    directory: Path,
    written: bool = True,
) -> Any:
    """Run the job that writes the results of the events' stream to its end; return the costs of the epochs."""
    import strandline as sl

    spark = sl.session("strandline-benchmark", MASTER, **SETTINGS)
    results = results_of(read_events(spark, events))
    files = sl.sinks.files(str(directory / "results"), visibility="epoch")
    job = sl.Job(
        query,
        sinks=[results.to(files if written else sl.sinks.noop())],
        checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri(), every=CHECKPOINT_INTERVAL),
        settings=sl.Settings(backend="rocksdb", local_dir=directory / "local"),
    )
    with job.start(spark) as run:
        run.process_all_available(timeout=_TIMEOUT_S)
        epochs = run_epochs(run.query, size.epochs)
    spark.stop()
    return epochs


def run_through_savepoint(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Run a query of ours half way, stop it with a savepoint, and run another job from there, divided otherwise."""
    import strandline as sl

    spark = sl.session("strandline-benchmark", MASTER, **SETTINGS)
    results = QUERIES[query](read_events(spark, events))

    def job(name: str, parallelism: int) -> Any:
        return sl.Job(
            name,
            sinks=[results.to(sl.sinks.files(str(directory / "results"), visibility="epoch"))],
            checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri()),
            settings=sl.Settings(backend="rocksdb", parallelism=parallelism, local_dir=directory / "local"),
        )

    savepoint = directory / "savepoint"
    with job("first-half", 2).start(spark) as run:
        while run.status().epoch < size.epochs // 2:
            time.sleep(0.05)
        run.stop(savepoint=savepoint)
        first = run.status().epoch
    with job("second-half", 3).start(spark, restore=savepoint) as run:
        run.process_all_available(timeout=_TIMEOUT_S)
        epochs = run_epochs(run.query, max(1, size.epochs - first))
    spark.stop()
    return epochs


def run_spark(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Run a query in Spark's SQL to its end and return the costs of the epochs."""
    return run_statement(STATEMENTS[query], events, size, directory)


def run_statement(statement: Statement, events: Path, size: Size, directory: Path) -> Any:
    """Run a statement of Spark's SQL to its end and return the costs of the epochs."""
    spark = make_session(SPARK_SETTINGS)

    def write(df: DataFrame, batch: int) -> None:
        df.write.parquet(str(directory / "results" / f"batch={batch}"))

    writer = results_of(statement, read_events(spark, events)).writeStream.outputMode(statement.mode)
    return _run_query(spark, writer.foreachBatch(write), size, directory)


def run_reads(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Have Spark read the columns of a query and drop them, in one plan; return the costs of the epochs."""
    spark = make_session(SPARK_SETTINGS)
    rows = slim(read_events(spark, events), COLUMNS[query])
    return _run_query(spark, rows.writeStream.format("noop"), size, directory)


def run_passing(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Have Spark shuffle a query's rows by key, and pass them through Python; return the costs of the epochs."""
    from pyspark.sql.functions import expr

    spark = make_session(SPARK_SETTINGS)

    def hand_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    def epoch(df: DataFrame, _: int) -> None:
        rows = df.repartition(2, *map(expr, KEYS[query]))
        rows.mapInArrow(hand_on, rows.schema).write.format("noop").mode("overwrite").save()

    return _run_query(
        spark, slim(read_events(spark, events), COLUMNS[query]).writeStream.foreachBatch(epoch), size, directory
    )


def run_stateless(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Have Spark answer a query for each epoch alone, and write the answers; return the costs of the epochs."""
    spark = make_session(SPARK_SETTINGS)

    def epoch(df: DataFrame, number: int) -> None:
        results_of(STATEMENTS[query], df).write.parquet(str(directory / "results" / f"batch={number}"))

    return _run_query(spark, read_events(spark, events).writeStream.foreachBatch(epoch), size, directory)


def _run_query(spark: SparkSession, writer: Any, size: Size, directory: Path) -> Any:
    query = writer.option("checkpointLocation", str(directory / "checkpoints")).start()
    query.processAllAvailable()
    epochs = run_epochs(query, size.epochs)
    query.stop()
    spark.stop()
    return epochs


def run_flink(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Run a query in Flink's SQL to its end and return the costs of the epochs."""
    return flink.run_flink(query, events, size, directory, CHECKPOINT_INTERVAL)


def run_flink_changes(query: str, events: Path, size: Size, directory: Path) -> Any:
    """Run a query in Flink's SQL to its end, with all changes written; return the costs of the epochs."""
    return flink.run_flink_changes(query, events, size, directory, CHECKPOINT_INTERVAL)


RUN = {
    OURS: run_strandline, SPARK: run_spark, FLINK: run_flink, READING: run_reads, PASSING: run_passing,
    STATELESS: run_stateless, THROUGH_SAVEPOINT: run_through_savepoint, DISCARDED: run_discarded,
    CHANGES: run_flink_changes,
}  # fmt: skip


def run_subject(subject: str, events: Path, size: Size, directory: Path) -> Result:
    """Measure one subject in this process, and compare what it gave with the right answer."""
    query, _, engine = subject.partition(".")
    epochs = RUN[engine](query, events, size, directory)
    # Spark counts a row for each branch of the query that reads it.
    epochs = [replace(epoch, rows=size.events_per_epoch) for epoch in epochs]
    measured = {
        "rows_per_second": steady_rows_per_second(epochs, 0 if engine == THROUGH_SAVEPOINT else size.warm_up),
        "epochs_ms": [epoch.duration_ms for epoch in epochs],
    }
    if engine in (READING, PASSING, STATELESS, DISCARDED):
        return measured
    results = directory / "results"
    rows = flink.results(query, results) if engine in (FLINK, CHANGES) else parquet_files(results)
    return measured | {"results_compared": check(subject, query, events, rows)}


def report(size: Size, results: dict[str, list[Result]]) -> None:
    """Print each subject's median throughput, and how many times a peer's it is."""
    rates = {subject: median_of(rounds, "rows_per_second") for subject, rounds in results.items()}
    for subject, rate in rates.items():
        query, _, engine = subject.partition(".")
        if engine == THROUGH_SAVEPOINT:
            emit(BENCHMARK, subject, "results_compared", results[subject][-1]["results_compared"])
            continue
        extra: dict[str, Any] = {
            "unit": "events/s",
            "engine": engine,
            "rounds": [round(result["rows_per_second"]) for result in results[subject]],
            "epochs_ms": results[subject][-1]["epochs_ms"],
            "events_per_epoch": size.events_per_epoch,
            "measured_epochs": size.epochs - size.warm_up,
        }
        if "results_compared" in results[subject][-1]:
            extra["results_compared"] = results[subject][-1]["results_compared"]
        emit(BENCHMARK, query if engine == OURS else subject, "throughput", round(rate), **extra)
    for query in QUERIES:
        pairs = [(OURS, peer) for peer in (SPARK, FLINK, CHANGES, READING, PASSING, STATELESS)] + [(DISCARDED, FLINK)]
        for own, peer in pairs:
            mine, other = rates.get(f"{query}.{own}"), rates.get(f"{query}.{peer}")
            if mine is not None and other is not None:
                subject = query if own == OURS else f"{query}.{own}"
                emit(BENCHMARK, subject, "throughput_ratio", round(mine / other, 2), peer=peer)


def main() -> None:
    """Write the events and measure all subjects in turn, or run one of them (what the measuring process starts)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few events and one round: shows that it works")
    parser.add_argument("--subjects", nargs="+", choices=SUBJECTS + ON_REQUEST, metavar="SUBJECT")
    parser.add_argument(
        "--savepoint", action="store_true", help="stop each query half way with a savepoint, and go on from it"
    )
    parser.add_argument("--epochs", type=int, help="how many epochs there are")
    parser.add_argument("--warm-up", type=int, help="how many epochs are not measured")
    parser.add_argument("--events-per-epoch", type=int, help="how many events an epoch has")
    parser.add_argument("--events", type=Path, help=argparse.SUPPRESS)
    add_subject_options(parser, SUBJECTS + ON_REQUEST)
    given = parser.parse_args()
    size = QUICK if given.quick else FULL
    size = replace(
        size,
        epochs=size.epochs if given.epochs is None else given.epochs,
        warm_up=size.warm_up if given.warm_up is None else given.warm_up,
        events_per_epoch=given.events_per_epoch or size.events_per_epoch,
    )
    if not 0 <= size.warm_up < size.epochs:
        parser.error(f"--warm-up {size.warm_up} leaves none of {size.epochs} epochs to measure")
    import_duckdb()
    if given.subject:
        report_result(given.result, run_subject(given.subject, given.events, size, given.scratch))
        return
    end_on_sigterm()
    subjects = given.subjects or (THROUGH if given.savepoint else SUBJECTS)
    if any(subject.endswith((FLINK, CHANGES)) for subject in subjects):
        try:
            install()
        except UnavailableFlinkError as error:
            progress(f"{FLINK} is left out. {error}")
            subjects = [subject for subject in subjects if not subject.endswith((FLINK, CHANGES))]
    rounds = 1 if given.quick else given.rounds
    progress(f"{BENCHMARK}: {size.epochs * size.events_per_epoch:,} events, {', '.join(subjects)}; {rounds} rounds")
    with scratch("nexmark-events") as directory:
        events = directory / "events"
        write_events(events, size)
        options = ["--events", str(events), *(["--quick"] if given.quick else [])]
        options += ["--epochs", str(size.epochs), "--warm-up", str(size.warm_up)]
        options += ["--events-per-epoch", str(size.events_per_epoch)]
        report(size, measure_in_turn("benchmarks.nexmark", subjects, rounds, options))


if __name__ == "__main__":
    main()
