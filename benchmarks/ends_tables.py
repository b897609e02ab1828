"""How many rows a second sinks of table formats take, alone: staged by Spark's tasks, and committed, without a stream.

Each epoch is so many rows of a number, a key, a text and a time, which Spark makes as they are written; each is staged
and committed, as with a checkpoint an epoch. Sinks take turns. `spark-parquet` is Spark's own writer, which promises
nothing. With `--s3 URL` (and credentials in the environment), Delta and files are written there, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import strandline as sl
from benchmarks._harness import emit, end_on_sigterm, progress, scratch
from strandline.core.ids import Epoch, Generation, unique_name
from strandline.spark.sinks.base import Sink, SinkContext, committables_of

BENCHMARK = "ends_tables"
PEER = "spark-parquet"


def rows_of(spark: Any, epoch: int, rows: int, keys: int, partitions: int) -> Any:
    """Return an epoch's rows."""
    return spark.range(epoch * rows, (epoch + 1) * rows, 1, partitions).selectExpr(
        "id", f"id * 7919 % {keys} as k", "concat('order-', id) as name",
        "timestamp_micros(1767225600000000 + id * 1000) as at",
    )  # fmt: skip


def sinks_in(directory: Path, s3: str | None) -> dict[str, Callable[[], Sink]]:
    """Return what is measured: those by key apart, since they read what is there."""
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}
    found: dict[str, Callable[[], Sink]] = {
        "delta": lambda: sl.sinks.delta(directory / "delta"),
        "delta-by-key": lambda: sl.sinks.delta(directory / "delta-by-key", key="k"),
        "iceberg": lambda: sl.sinks.iceberg(catalog, "results.rows"),
        "iceberg-by-key": lambda: sl.sinks.iceberg(catalog, "results.by_key", key="k"),
        "files": lambda: sl.sinks.files(str(directory / "files")),
    }
    if s3 is not None:
        root = f"{s3.rstrip('/')}/{unique_name()[:8]}"
        found["delta-s3"] = lambda: sl.sinks.delta(f"{root}/delta")
        found["files-s3"] = lambda: sl.sinks.files(f"{root}/files")
    return found


def main() -> None:
    """Measure all of them in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ends_tables", description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--s3")
    given = parser.parse_args()
    end_on_sigterm()
    progress(f"{BENCHMARK}: {given.epochs} epochs of {given.rows:,} rows, {given.keys:,} keys")
    spark = sl.session("ends_tables", "local[2]")
    with scratch("tables") as directory:
        took: dict[str, list[tuple[float, float]]] = {PEER: []}
        made = {name: make() for name, make in sinks_in(directory, given.s3).items()}
        for name, sink in made.items():
            took[name] = []
            sink.open(SinkContext(spark, "job", "life", Generation(1), name))
            sink.recover([], Epoch(0), fresh=True)
        for number in range(given.epochs + 1):
            for name, times in took.items():
                rows = rows_of(spark, number, given.rows, given.keys, 2)
                started = time.monotonic()
                if name == PEER:
                    rows.write.mode("append").parquet(f"file:{directory}/spark")
                    staged = time.monotonic()
                else:
                    pending = committables_of(name, made[name].write(rows, Epoch(number + 1)))
                    staged = time.monotonic()
                    assert not made[name].commit(pending)
                if number:
                    # The first warms up.
                    times.append((staged - started, time.monotonic() - staged))
    for name, times in took.items():
        rate = given.rows / median(stage + commit for stage, commit in times)
        emit(BENCHMARK, name, "rows_per_second", round(rate), peer=None if name == PEER else PEER)
        emit(BENCHMARK, name, "commit_ms", round(1000 * median(commit for _, commit in times), 1))
    spark.stop()


if __name__ == "__main__":
    main()
