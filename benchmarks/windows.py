"""Tumbling windows of ten seconds: count, sum and mean a key, 1 % late rows, beside Spark's own windowed aggregation.

Both read the same stream, keep their state in RocksDB and write to a sink that drops everything. Late rows are so late
that both drop them. Afterwards each goes on from its checkpoint into a sink that keeps its rows, and every window it
gives is compared with the right one.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks._bytewax import fold_windows, is_installed
from benchmarks._counting import MASTER, MULTIPLIER, PARTITIONS, SPARK_SETTINGS, Load, state_digest
from benchmarks._harness import (
    Result,
    add_subject_options,
    durability,
    emit,
    measure_in_turn,
    median_of,
    progress,
    report_result,
    run_epochs,
    steady_rows_per_second,
)
from benchmarks._peers import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BENCHMARK = "windows"
OURS, SPARK, BYTEWAX = "strandline", "spark-windowed-aggregation", "bytewax-fold-window"
WINDOW_S = 10
BASE_US = 1_700_000_000_000_000
# No divisor of the number of keys: late rows are of all keys.
LATE_EVERY, LATE_US = 101, 60_000_000
CHECKPOINT_INTERVAL = "10s"
VERIFIED_WINDOWS = 1


@dataclass(frozen=True, slots=True)
class Case:
    """One size: all subjects get the same epochs. A window takes a whole number of epochs."""

    keys: int
    load: Load
    epochs_per_window: int
    wanted: float

    @property
    def rows_per_window(self) -> int:
        return self.load.rows_per_epoch * self.epochs_per_window


CASES = {
    "1000000-keys": Case(1_000_000, Load(rows_per_epoch=500_000, epochs=12, warm_up=4), 4, 2.5),
    "10000-keys": Case(10_000, Load(rows_per_epoch=2_000_000, epochs=20, warm_up=8), 4, 0.9),
}
LONG_EPOCHS = 40
"""Rounds of few epochs differ by which of them a checkpoint falls into."""
QUICK = {
    "1000000-keys": Case(1_000_000, Load(rows_per_epoch=50_000, epochs=6, warm_up=2), 2, 2.5),
    "10000-keys": Case(10_000, Load(rows_per_epoch=50_000, epochs=6, warm_up=2), 2, 0.9),
}


def windowed_rows(spark: SparkSession, case: Case) -> DataFrame:
    """Return the endless stream: key, value and ts, which goes forward evenly; every 101st row is a minute late."""
    from pyspark.sql import functions as F

    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", case.load.rows_per_epoch)
        .option("numPartitions", PARTITIONS)
        .load()
    )
    time_us = f"{BASE_US}L + value * {WINDOW_S * 1_000_000}L div {case.rows_per_window}"
    late_us = f"if(value % {LATE_EVERY} = 0, {LATE_US}L, 0L)"
    key = (F.col("value") * MULTIPLIER) % case.keys
    return rows.select(key.alias("key"), "value", F.expr(f"timestamp_micros({time_us} - {late_us})").alias("ts"))


def expected_window(case: Case, window: int) -> str:
    """Return the digest of the right result of a window, the first being 0."""
    rows = np.arange(window * case.rows_per_window, (window + 1) * case.rows_per_window, dtype=np.int64)
    rows = rows[rows % LATE_EVERY != 0]
    keys = rows * MULTIPLIER % case.keys
    counts = np.bincount(keys, minlength=case.keys)
    sums = np.zeros(case.keys, np.int64)
    np.add.at(sums, keys, rows)
    there = np.flatnonzero(counts)
    return state_digest(there, counts[there], sums[there])


def check_windows(subject: str, case: Case, tables: list[pa.Table]) -> tuple[int, str]:
    """Compare every window with the right one; return how many there were, and the digest of the last."""
    table = pa.concat_tables(tables)
    starts, keys, counts, sums, means = (table[name].to_numpy() for name in ("at", "key", "n", "total", "mean"))
    if not np.allclose(means, sums / counts, rtol=1e-12):
        raise SystemExit(f"{subject}: a mean is not its sum through its count")
    digest, windows = "", np.unique(starts)
    for start in windows.tolist():
        window = (start - BASE_US) // (WINDOW_S * 1_000_000)
        mine = starts == start
        digest = state_digest(keys[mine], counts[mine], sums[mine])
        if digest != expected_window(case, window):
            raise SystemExit(f"{subject}: wrong window {window}: {digest}, expected {expected_window(case, window)}")
    if len(windows) < VERIFIED_WINDOWS:
        raise SystemExit(f"{subject}: gave {len(windows)} windows to compare, expected {VERIFIED_WINDOWS}")
    return len(windows), digest


def keeping(tables: list[pa.Table]) -> Any:
    """Return a function for each epoch's rows that keeps them."""

    def keep(df: DataFrame, epoch: int) -> None:
        tables.append(df.selectExpr("unix_micros(window_start) at", "key", "n", "total", "mean").toArrow())

    return keep


def run_strandline(directory: Path, case: Case) -> Result:
    """Measure, stop with a checkpoint, and go on from it to look at windows."""
    import strandline as sl

    spark = sl.session("strandline-benchmark", MASTER, **SPARK_SETTINGS)

    def start(sink: Any) -> Any:
        windows = (
            sl.stream(windowed_rows(spark, case)).watermark("ts").key_by("key").window(sl.Tumbling(f"{WINDOW_S}s"))
        )
        results = windows.agg(n=sl.agg.count(), total=sl.agg.sum("value"), mean=sl.agg.avg("value"), uid="windows")
        checkpoints = sl.Checkpoints((directory / "checkpoints").as_uri(), every=CHECKPOINT_INTERVAL)
        settings = sl.Settings(backend="rocksdb", local_dir=directory / "local", **durability())
        return sl.Job(BENCHMARK, sinks=[results.to(sink)], checkpoints=checkpoints, settings=settings).start(spark)

    run = start(sl.sinks.noop(name="results"))
    epochs = run_epochs(run.query, case.load.epochs)
    status = run.status()
    run.stop(checkpoint=True)
    tables: list[pa.Table] = []
    run = start(sl.sinks.foreach_batch(keeping(tables), name="results"))
    run_epochs(run.query, (VERIFIED_WINDOWS + 1) * case.epochs_per_window)
    run.stop()
    windows, digest = check_windows(OURS, case, tables)
    spark.stop()
    return {
        "rows_per_second": steady_rows_per_second(epochs, case.load.warm_up),
        "windows_compared": windows,
        "last_window": digest,
        "checkpoints_completed": status.checkpoints["completed"],
    }


def run_spark(directory: Path, case: Case) -> Result:
    """Measure Spark's own, which stays in the JVM, in append mode."""
    from pyspark.sql import functions as F

    spark = make_session()
    location = str(directory / "spark-checkpoint")
    windowed = (
        windowed_rows(spark, case)
        .withWatermark("ts", "0 seconds")
        .groupBy(F.window("ts", f"{WINDOW_S} seconds"), "key")
        .agg(F.count("*").alias("n"), F.sum("value").alias("total"), F.avg("value").alias("mean"))
        .select(F.col("window.start").alias("window_start"), "key", "n", "total", "mean")
    )
    writer = windowed.writeStream.outputMode("append").option("checkpointLocation", location)
    query = writer.format("noop").start()
    epochs = run_epochs(query, case.load.epochs)
    query.stop()
    tables: list[pa.Table] = []
    query = writer.foreachBatch(keeping(tables)).start()
    run_epochs(query, (VERIFIED_WINDOWS + 1) * case.epochs_per_window)
    query.stop()
    windows, digest = check_windows(SPARK, case, tables)
    spark.stop()
    return {
        "rows_per_second": steady_rows_per_second(epochs, case.load.warm_up),
        "windows_compared": windows,
        "last_window": digest,
    }


def run_bytewax(directory: Path, case: Case) -> Result:
    """Measure Bytewax over the first windows of the same stream, with fewer rows in each."""
    small = replace(case, load=replace(case.load, rows_per_epoch=min(case.load.rows_per_epoch, 50_000)))

    def rows(first: int, last: int) -> tuple[Any, Any, Any]:
        values = np.arange(first, last, dtype=np.int64)
        late_us = np.where(values % LATE_EVERY == 0, LATE_US, 0)
        times_us = BASE_US + values * (WINDOW_S * 1_000_000) // small.rows_per_window - late_us
        return values * MULTIPLIER % case.keys, values, times_us

    windows = 1 + VERIFIED_WINDOWS
    rate, found = fold_windows(rows, windows * small.rows_per_window, small.rows_per_window, BASE_US, WINDOW_S)
    digest = ""
    for window in range(windows):
        digest = state_digest(*found[window])
        if digest != expected_window(small, window):
            raise SystemExit(f"{BYTEWAX}: wrong window {window}: {digest}, expected {expected_window(small, window)}")
    return {"rows_per_second": rate, "windows_compared": windows, "last_window": digest}


RUN = {OURS: run_strandline, SPARK: run_spark, BYTEWAX: run_bytewax}
# The time Bytewax takes for a batch grows with all the keys it holds: 200,000 rows of 1,000,000 keys take it longer
# than everything else here together.
BYTEWAX_CASES = ("10000-keys",)
WANTED_BESIDE_BYTEWAX = 5.0


def report(cases: dict[str, Case], results: dict[str, list[Result]]) -> None:
    """Print each subject's median throughput at each size, and the ratios."""
    rates = {subject: median_of(rounds, "rows_per_second") for subject, rounds in results.items()}
    for subject, rate in rates.items():
        size, engine = subject.split(".")
        load = cases[size].load
        extra: dict[str, Any] = {
            "unit": "rows/s",
            "engine": engine,
            "rounds": [round(result["rows_per_second"]) for result in results[subject]],
            "rows_per_epoch": load.rows_per_epoch,
            "measured_epochs": load.epochs - load.warm_up,
            "windows_compared": sum(result["windows_compared"] for result in results[subject]),
        }
        emit(BENCHMARK, size if engine == OURS else subject, "throughput", round(rate), **extra)
    for size, case in cases.items():
        mine, own = rates.get(f"{size}.{OURS}"), rates.get(f"{size}.{SPARK}")
        fold = rates.get(f"{size}.{BYTEWAX}")
        if mine is not None and fold is not None:
            ratio = round(mine / fold, 2)
            emit(BENCHMARK, size, "throughput_ratio", ratio, peer=BYTEWAX, wanted_at_least=WANTED_BESIDE_BYTEWAX)
        if mine is not None and own is not None:
            emit(BENCHMARK, size, "throughput_ratio", round(mine / own, 2), peer=SPARK, wanted_at_least=case.wanted)


def main() -> None:
    """Measure all subjects in turn, or run one of them (what the measuring process starts)."""
    subjects = [f"{size}.{engine}" for size in CASES for engine in (OURS, SPARK)]
    if is_installed():
        subjects += [f"{size}.{BYTEWAX}" for size in BYTEWAX_CASES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small epochs and one round: shows that it works")
    parser.add_argument("--long", action="store_true", help=f"{LONG_EPOCHS} epochs: differs less between rounds")
    parser.add_argument("--subjects", nargs="+", choices=subjects, default=subjects, metavar="SUBJECT")
    add_subject_options(parser, subjects)
    given = parser.parse_args()
    cases = QUICK if given.quick else CASES
    if given.long:
        cases = {size: replace(case, load=replace(case.load, epochs=LONG_EPOCHS)) for size, case in cases.items()}
    if given.subject:
        size, engine = given.subject.split(".")
        report_result(given.result, RUN[engine](given.scratch, cases[size]))
        return
    rounds = 1 if given.quick else given.rounds
    progress(f"{BENCHMARK}: {', '.join(given.subjects)}; {rounds} rounds")
    options = [f"--{name}" for name in ("quick", "long") if getattr(given, name)]
    report(cases, measure_in_turn("benchmarks.windows", given.subjects, rounds, options))


if __name__ == "__main__":
    main()
