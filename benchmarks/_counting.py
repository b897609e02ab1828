"""The counting workload: rows, keys, and the state that any correct engine must end up with.

Row v of the stream (0, 1, 2, …) has the key `v * 2654435761 % KEYS`: any KEYS consecutive rows hold every key exactly
once, in scrambled order. So the right count and sum of every key after any number of rows can be computed directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MULTIPLIER = 2654435761
KEYS = 1_000_000
PARTITIONS = 2
MASTER = f"local[{PARTITIONS}]"
SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    # As our sessions have it: a Python worker gets its rows sooner.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""What the sessions of all subjects have in common."""


@dataclass(frozen=True, slots=True)
class Load:
    """How much a subject processes: the first `warm_up` of its epochs are not measured."""

    rows_per_epoch: int
    epochs: int
    warm_up: int


def keyed_rows(spark: SparkSession, load: Load) -> DataFrame:
    """Return the endless stream with columns key and value."""
    from pyspark.sql import functions as F

    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", load.rows_per_epoch)
        .option("numPartitions", PARTITIONS)
        .load()
    )
    return rows.select(((F.col("value") * MULTIPLIER) % KEYS).alias("key"), "value")


def state_digest(keys: Any, counts: Any, sums: Any) -> str:
    """Return a digest of the whole state that does not depend on the order of its keys."""
    mixed = np.asarray(keys).astype(np.uint64)
    for column in (counts, sums):
        mixed = mix(mixed) ^ np.asarray(column).astype(np.uint64)
    rows, checksum = int(np.sum(counts, dtype=np.int64)), int(np.sum(mix(mixed), dtype=np.uint64))
    return f"{len(mixed)} keys, {rows} rows, {checksum:016x}"


def expected_digest(rows: int) -> str:
    """Return the digest of the right state after the stream's first `rows` rows."""
    first = np.arange(min(rows, KEYS), dtype=np.int64)
    # Row v, v + KEYS, v + 2·KEYS, … have the same key.
    counts = (rows - first - 1) // KEYS + 1
    sums = counts * first + KEYS * (counts * (counts - 1) // 2)
    return state_digest(first * MULTIPLIER % KEYS, counts, sums)


def check_state(subject: str, actual: str, rows: int) -> None:
    """Fail the benchmark when a subject's final state is not what these rows add up to."""
    expected = expected_digest(rows)
    if actual != expected:
        raise SystemExit(f"{subject}: wrong final state after {rows:,} rows: {actual}, expected {expected}")


def mix(values: Any) -> Any:
    """Scramble 64-bit words (the finalizer of splitmix64)."""
    values = (values + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
