"""Checks of the placement of partitions on executors: a partition's state stays where the job's start places it."""

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
    # Spark names no executor for a partition that it has dropped.
    return are_even(list(filter(None, places_of(pinned, partitions))), executors)


def places_of(pinned: DataFrame, partitions: int) -> list[str]:
    """Return the executor of each of the first partitions of pinned rows; "" if the executor is lost."""
    core: Any = pinned.sparkSession.sparkContext._jsc.sc()
    rows: Any = pinned._jdf.queryExecution().toRdd()
    return [core.getPreferredLocs(rows, partition).mkString() for partition in range(partitions)]


def are_even(places: Sequence[str], executors: int) -> bool:
    """Whether each executor has at most its share of the partitions, rounded up, or a quarter more."""
    share = len(places) / max(1, executors)
    return max(Counter(places).values(), default=0) <= max(-(-len(places) // max(1, executors)), int(1.25 * share))
