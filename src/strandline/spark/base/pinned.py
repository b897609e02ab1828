"""Pins a DataFrame's rows: Spark computes them once and keeps them until they are released.

Rows of `persist()` are in the cache that all programs of a JVM share: `spark.catalog.clearCache()` drops them, as does
`unpersist()` of a DataFrame with the same plan. Spark would then compute them again: the results of functions may
differ, and partitions of keepers move. A local checkpoint keeps the rows in blocks of a separate RDD. If blocks are
lost, readers fail; they never read rows that were computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from strandline.spark.base.located import located


class Pinned:
    """The pinned rows of a DataFrame, in `rows`, with their RDD. The first reader computes them."""

    def __init__(self, df: DataFrame) -> None:
        self.rows = df.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK)
        jdf: Any = self.rows._jdf
        self.rdd = jdf.queryExecution().logical().rdd()
        # Some programs unpersist every RDD in the context's list.
        sc: Any = self.rows.sparkSession.sparkContext
        self._core = sc._jsc.sc()
        self._core.persistentRdds().remove(self.rdd.id())

    def compute_on(self, hosts: Sequence[str]) -> None:
        """Compute the rows, the first partitions on these hosts.

        A host that is busy for longer than `spark.locality.wait.node`, or gone, has its partitions computed elsewhere.
        """
        numbers = range(self.rdd.getNumPartitions())
        places = [*hosts, *[""] * len(numbers)][: len(numbers)]
        beside = located(self.rows.sparkSession.sparkContext, numbers, places)
        # A task of two RDDs has the preferred places of the second one if the first one has none. They need as many
        # elements: one each, since `glom` makes one of a partition.
        self.rdd.toJavaRDD().glom().zip(beside.toJavaRDD()).count()
        # Spark's driver sees the new blocks with the next job.
        self.rdd.count()

    def release(self, *, blocking: bool = False) -> None:
        """Drop the rows; they cannot be read afterwards."""
        # `RDD.unpersist` does the same, but logs a warning.
        self._core.unpersistRDD(self.rdd.id(), blocking)
