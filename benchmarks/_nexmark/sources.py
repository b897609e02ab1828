"""The events as files, an epoch each, and the stream that reads them one by one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks._counting import PARTITIONS
from benchmarks._nexmark.generator import SCHEMA, Generator, closing_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK_SETTINGS = {
    # Lets an epoch's file be read by two tasks, one row group each.
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.files.minPartitionNum": str(PARTITIONS),
    "spark.sql.session.timeZone": "UTC",
}
_OLDEST_S = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """How many events there are; the last epoch, which closes all windows, is one more."""

    events_per_epoch: int
    epochs: int
    warm_up: int


def write_events(directory: Path, size: Size, seed: int = 1) -> None:
    """Write the events, a file an epoch, in the order of the files' times."""
    directory.mkdir()
    generator = Generator(seed)
    for epoch in range(size.epochs):
        first = epoch * size.events_per_epoch
        _write(directory, epoch, generator.events(first, first + size.events_per_epoch))
    _write(directory, size.epochs, closing_events(size.epochs * size.events_per_epoch))


def _write(directory: Path, epoch: int, events: pa.Table) -> None:
    path = directory / f"events-{epoch:05}.parquet"
    pq.write_table(events, path, compression="none", row_group_size=-(-len(events) // PARTITIONS))
    os.utime(path, (_OLDEST_S + epoch, _OLDEST_S + epoch))


def read_events(spark: SparkSession, directory: Path) -> DataFrame:
    """Return the stream of all events."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(directory))
