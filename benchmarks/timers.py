"""Ten million pending timers: what setting and firing costs, and what those cost that are not due.

Each row has a time one millisecond after the one before it. The job with pending timers first sets ten million that
lie a year ahead; then

- **set-and-fire**: every event sets a timer that is due with the next epoch, so that each epoch sets and fires as many;
- **quiet**: every event adds to a value and sets no timer, with the ten million pending and, in a job of its own, none.

The timers of every hundredth key give a row: at the end there must be one for each of these that was set to fire.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strandline as sl
from benchmarks._counting import MASTER, PARTITIONS, SPARK_SETTINGS
from benchmarks._harness import (
    Result,
    add_subject_options,
    emit,
    measure_in_turn,
    median_of,
    progress,
    report_result,
    run_epochs,
    steady_rows_per_second,
)

BENCHMARK = "timers"
KEYS = 1_000_000
SAMPLE = 100
FIRING, QUIET, NONE = "set-and-fire", "quiet-with-pending", "quiet-without-timers"
_YEAR = dt.timedelta(days=365)
_BASE_S = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Scale:
    """How many timers are pending, and how much is measured."""

    pending: int = 10_000_000
    rows_per_epoch: int = 500_000
    epochs: int = 18
    warm_up: int = 4
    rest: int = 36
    """More epochs that are not counted, where nothing fires: RocksDB still merges what ten million timers left."""


FULL = Scale()
QUICK = Scale(pending=50_000, rows_per_epoch=10_000, epochs=4, warm_up=1, rest=0)


class Setter(sl.KeyedProcess):
    """Sets a timer for every event: far ahead for the first ones, due with the next epoch for the others."""

    seen = sl.Value("bigint", default=0)

    def __init__(self, pending: int, *, fires: bool) -> None:
        self._pending = pending
        self._fires = fires

    def on_event(self, event: Any, ctx: sl.Context) -> None:
        if event.value < self._pending:
            ctx.timers.set(event.ts + _YEAR)
        elif self._fires:
            ctx.timers.set(event.ts)
        else:
            self.seen.value += 1

    def on_timer(self, timer: sl.Timer, ctx: sl.Context) -> Iterable[Any] | None:
        if ctx.key % SAMPLE == 0:
            return [(ctx.key,)]
        return None


def run_subject(name: str, directory: Path, scale: Scale) -> Result:
    """Run one subject in this process."""
    from pyspark.sql import functions as F

    spark = sl.session("strandline-benchmark", MASTER, **SPARK_SETTINGS)
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", scale.rows_per_epoch)
        .option("numPartitions", PARTITIONS)
        .load()
        .select(
            (F.col("value") % KEYS).alias("key"),
            "value",
            F.timestamp_millis(F.lit(_BASE_S * 1000) + F.col("value")).alias("ts"),
        )
    )
    pending = 0 if name == NONE else scale.pending
    process = Setter(pending, fires=name == FIRING)
    out = sl.stream(rows).watermark("ts").key_by("key").process(process, output="key bigint", uid="timers")
    counts: list[int] = []
    job = sl.Job(
        BENCHMARK,
        sinks=[out.to(sl.sinks.foreach_batch(lambda df, epoch: counts.append(df.count()), name="fired"))],
        checkpoints=sl.Checkpoints((directory / "checkpoints").as_uri(), every="10s"),
        settings=sl.Settings(backend="rocksdb", local_dir=directory / "local"),
    )
    # As many epochs without timers: a JVM is the faster, the longer it has run.
    load = -(-scale.pending // scale.rows_per_epoch)
    rest = 0 if name == FIRING else scale.rest
    with job.start(spark) as run:
        epochs = run_epochs(run.query, load + rest + scale.epochs)
    spark.stop()
    fired = SAMPLE * sum(counts)
    # The timers of an epoch fire in the one after it, all of them; the last epoch's may still be pending.
    set_in = scale.epochs if name == FIRING else 0
    if fired % scale.rows_per_epoch or not max(0, set_in - 1) * scale.rows_per_epoch <= fired or (fired and not set_in):
        raise SystemExit(f"{name}: {fired:,} timers fired, set in {set_in} epochs of {scale.rows_per_epoch:,}")
    return {
        "rows_per_second": steady_rows_per_second(epochs, load + rest + scale.warm_up),
        "load_rows_per_second": steady_rows_per_second(epochs[:load], 2) if pending and load > 3 else 0,
        "fired": fired,
    }


def report(results: dict[str, list[Result]], scale: Scale) -> None:
    """Print the timers a second, and what pending ones cost an epoch in which none is due."""
    rates = {subject: median_of(rounds, "rows_per_second") for subject, rounds in results.items()}
    about: dict[str, Any] = {"pending": scale.pending, "rows_per_epoch": scale.rows_per_epoch, "unit": "timers/s"}
    emit(BENCHMARK, FIRING, "set_and_fired_per_second", round(rates[FIRING]), wanted_at_least=150_000, **about)
    loads = median_of(results[FIRING] + results[QUIET], "load_rows_per_second")
    emit(BENCHMARK, FIRING, "set_per_second", round(loads), unit="timers/s")
    for subject in (QUIET, NONE):
        emit(BENCHMARK, subject, "throughput", round(rates[subject]), unit="rows/s")
    emit(BENCHMARK, QUIET, "epoch_ratio", round(rates[NONE] / rates[QUIET], 3), peer=NONE, wanted_at_most=1.1)


def main() -> None:
    """Measure all subjects in turn, or run one of them (what the measuring process starts)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few timers: shows that it works, measures nothing")
    add_subject_options(parser, [FIRING, QUIET, NONE])
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    if given.subject:
        report_result(given.result, run_subject(given.subject, given.scratch, scale))
        return
    rounds = 1 if given.quick else given.rounds
    progress(f"{BENCHMARK}: {scale.pending:,} pending timers; {rounds} rounds")
    options = ["--quick"] if given.quick else []
    report(measure_in_turn("benchmarks.timers", [FIRING, QUIET, NONE], rounds, options), scale)


if __name__ == "__main__":
    main()
