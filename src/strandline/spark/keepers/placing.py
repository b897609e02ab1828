"""Whether partitions lie evenly on the executors: where one is placed at a job's start, its state stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from strandline.spark.base.session import has_one_process


def lie_evenly(pinned: DataFrame, partitions: int) -> bool:
    """Whether no executor has many more of the first partitions of pinned rows than its share."""
    sc: Any = pinned.sparkSession.sparkContext
    if has_one_process(sc.master):
        return True
    core = sc._jsc.sc()
    # One of them is the driver.
    executors = core.getExecutorMemoryStatus().size() - 1
    # Of one that Spark has dropped already, it says nothing.
    return are_even(list(filter(None, places_of(pinned, partitions))), executors)


def places_of(pinned: DataFrame, partitions: int) -> list[str]:
    """Return the executor of each of the first partitions of pinned rows; "" for one that is gone with it."""
    core: Any = pinned.sparkSession.sparkContext._jsc.sc()
    rows: Any = pinned._jdf.queryExecution().toRdd()
    return [core.getPreferredLocs(rows, partition).mkString() for partition in range(partitions)]


def are_even(places: Sequence[str], executors: int) -> bool:
    """Whether no place is named by more partitions than its share, rounded up or with a quarter more."""
    share = len(places) / max(1, executors)
    return max(Counter(places).values(), default=0) <= max(-(-len(places) // max(1, executors)), int(1.25 * share))
