"""Running count and sum per key, 1,000,000 keys, state in RocksDB: Strandline beside Spark's own stateful operators.

Strandline runs with incremental checkpoints, a keyed process function per event and a vectorised one. All subjects read
the same stream; `transformWithState` is so slow in Python that it gets smaller epochs and fewer rows, which favours it:
its state stays smaller. Every subject's final state is compared with the right answer before a figure is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import strandline as sl
from benchmarks._counting import KEYS, MASTER, SPARK_SETTINGS, Load, check_state, keyed_rows, state_digest
from benchmarks._harness import (
    MODES,
    Result,
    add_interval,
    add_mode,
    add_subject_options,
    checkpoint_interval,
    checkpoint_mode,
    durability,
    emit,
    measure_in_turn,
    median_of,
    progress,
    report_result,
    run_epochs,
    steady_rows_per_second,
)
from benchmarks._peers import OUTPUT, run_aggregation, run_transform_with_state

BENCHMARK = "keyed_counter"
STATE = "struct<cnt: bigint, sm: bigint>"

PER_EVENT = "per-event"
VECTORISED = "vectorised"
TRANSFORM = "spark-transform-with-state"
AGGREGATION = "spark-aggregation"

LOADS = {
    PER_EVENT: Load(rows_per_epoch=500_000, epochs=14, warm_up=4),
    VECTORISED: Load(rows_per_epoch=500_000, epochs=14, warm_up=4),
    TRANSFORM: Load(rows_per_epoch=20_000, epochs=7, warm_up=2),
    AGGREGATION: Load(rows_per_epoch=500_000, epochs=6, warm_up=3),
}
RATIOS = ((PER_EVENT, TRANSFORM), (PER_EVENT, AGGREGATION), (VECTORISED, AGGREGATION))


class Counter(sl.KeyedProcess):
    """One Python call and one output row for each event."""

    stats = sl.Value(STATE, default=(0, 0))

    def on_event(self, event: Any, ctx: sl.Context) -> Iterator[tuple[int, int, int]]:
        count, total = self.stats.value
        count, total = count + 1, total + event.value
        self.stats.value = (count, total)
        yield (event.key, count, total)


class BatchCounter(sl.KeyedBatchProcess):
    """Arrow batches in, one output row for each key of the batch."""

    stats: Any = sl.Value(STATE)

    def on_batch(self, batch: pa.RecordBatch, ctx: sl.BatchContext) -> pa.RecordBatch:
        keys, row_of = ctx.keys.unique()
        counts = np.bincount(row_of, minlength=len(keys))
        totals = np.zeros(len(keys), dtype=np.int64)
        np.add.at(totals, row_of, batch.column("value").to_numpy())

        old = self.stats.get_many(keys)
        counts = pc.add(pc.fill_null(pc.struct_field(old, "cnt"), 0), counts)
        totals = pc.add(pc.fill_null(pc.struct_field(old, "sm"), 0), totals)
        self.stats.put_many(keys, pa.StructArray.from_arrays([counts, totals], names=["cnt", "sm"]))
        return pa.RecordBatch.from_arrays([keys.columns[0], counts, totals], names=["key", "cnt", "sm"])


def run_strandline(name: str, process: sl.KeyedProcess | sl.KeyedBatchProcess, directory: Path, load: Load) -> Result:
    """Measure, stop with a checkpoint, and go on from it for as many epochs as it takes to see every key's state."""
    spark = sl.session("strandline-benchmark", MASTER, **SPARK_SETTINGS)

    def start(sink: Any) -> Any:
        counted = sl.stream(keyed_rows(spark, load)).key_by("key").process(process, output=OUTPUT, uid="counter")
        checkpoints = sl.Checkpoints(
            (directory / "checkpoints").as_uri(), every=checkpoint_interval(), **MODES[checkpoint_mode()]
        )
        settings = sl.Settings(backend="rocksdb", local_dir=directory / "local", **durability())
        return sl.Job(BENCHMARK, sinks=[counted.to(sink)], checkpoints=checkpoints, settings=settings).start(spark)

    run = start(sl.sinks.noop(name="counted"))
    epochs = run_epochs(run.query, load.epochs)
    completed = run.status().checkpoints["completed"]
    run.stop(checkpoint=True)

    # Any KEYS consecutive rows hold each key once, so the next epochs' output is the whole state.
    tables: list[pa.Table] = []
    run = start(sl.sinks.foreach_batch(lambda df, epoch: tables.append(df.toArrow()), name="counted"))
    run_epochs(run.query, -(-KEYS // load.rows_per_epoch))
    run.stop()
    keys, counts, sums = _last_of_each_key(pa.concat_tables(tables))
    digest, rows = state_digest(keys, counts, sums), int(counts.sum())
    if rows < load.epochs * load.rows_per_epoch + KEYS:
        raise SystemExit(f"{name}: did not go on from its last checkpoint: only {rows:,} rows are in its state")
    check_state(name, digest, rows)
    spark.stop()
    return {
        "rows_per_second": steady_rows_per_second(epochs, load.warm_up),
        "rows": rows,
        "state": digest,
        "checkpoints_completed": completed,
    }


def _last_of_each_key(output: pa.Table) -> tuple[Any, Any, Any]:
    """Return the columns of the newest output row of every key: counts only grow, so it has the highest."""
    keys, counts, sums = (output.column(name).to_numpy() for name in ("key", "cnt", "sm"))
    newest = np.lexsort((counts, keys))
    last = newest[np.append(np.diff(keys[newest]) != 0, True)]
    return keys[last], counts[last], sums[last]


def run_subject(name: str, directory: Path, load: Load) -> Result:
    """Run one subject in this process."""
    if name == TRANSFORM:
        return run_transform_with_state(directory, load)
    if name == AGGREGATION:
        return run_aggregation(directory, load)
    return run_strandline(name, Counter() if name == PER_EVENT else BatchCounter(), directory, load)


def report(results: dict[str, list[Result]]) -> None:
    """Print each subject's median throughput, and the ratios that were asked for."""
    rates = {subject: median_of(rounds, "rows_per_second") for subject, rounds in results.items()}
    for subject, rate in rates.items():
        load = LOADS[subject]
        extra: dict[str, Any] = {
            "unit": "rows/s",
            "rounds": [round(result["rows_per_second"]) for result in results[subject]],
            "rows_per_epoch": load.rows_per_epoch,
            "measured_epochs": load.epochs - load.warm_up,
            "final_states": sorted({result["state"] for result in results[subject]}),
        }
        emit(BENCHMARK, subject, "throughput", round(rate), **extra)
    for subject, peer in RATIOS:
        if subject in rates and peer in rates:
            emit(BENCHMARK, subject, "throughput_ratio", round(rates[subject] / rates[peer], 2), peer=peer)


def main() -> None:
    """Measure all subjects in turn, or run one of them (what the measuring process starts)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keyed_counter", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--subjects", nargs="+", choices=list(LOADS), default=list(LOADS), metavar="SUBJECT")
    add_mode(parser)
    add_interval(parser)
    add_subject_options(parser, list(LOADS))
    given = parser.parse_args()
    if given.subject:
        report_result(given.result, run_subject(given.subject, given.scratch, LOADS[given.subject]))
        return
    progress(f"{BENCHMARK}: {', '.join(given.subjects)}; {given.rounds} rounds")
    report(measure_in_turn("benchmarks.keyed_counter", given.subjects, given.rounds))


if __name__ == "__main__":
    main()
