"""Pins a DataFrame's rows: computed once, and kept until they are released, whatever else clears Spark's caches.

What `persist()` keeps belongs to the session's cache, which all programs of a JVM share: `spark.catalog.clearCache()`
drops it, and so does `unpersist()` of any DataFrame with the same plan. Then the rows are computed again: what a
function gives may differ, and partitions of keepers move. A local checkpoint keeps rows in blocks of an RDD of its own.
If blocks are lost, readers fail, and none of them gets rows that were computed again.
"""

from __future__ import annotations

from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame


class Pinned:
    """The rows of a DataFrame, as one that reads them where they are kept. The first reader computes them."""

    def __init__(self, df: DataFrame) -> None:
        self.rows = df.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK)
        jdf: Any = self.rows._jdf
        self._rdd = jdf.queryExecution().logical().rdd()
        # Programs unpersist all that the context lists as persisted.
        sc: Any = self.rows.sparkSession.sparkContext
        self._core = sc._jsc.sc()
        self._core.persistentRdds().remove(self._rdd.id())

    def release(self, *, blocking: bool = False) -> None:
        """Drop the rows: they cannot be read any more."""
        # The RDD's own method does the same, and warns of it in the log each time.
        self._core.unpersistRDD(self._rdd.id(), blocking)
