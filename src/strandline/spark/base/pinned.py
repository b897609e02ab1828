"""Pins a DataFrame's rows: Spark computes them once and keeps them until they are released.

Rows of `persist()` are in the cache that all programs of a JVM share: `spark.catalog.clearCache()` drops them, as does
`unpersist()` of a DataFrame with the same plan. Spark would then compute them again: the results of functions may
differ, and partitions of keepers move. A local checkpoint keeps the rows in blocks of a separate RDD. If blocks are
lost, readers fail; they never read rows that were computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pyspark import StorageLevel
from pyspark.sql import DataFrame


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

    def compute_on(self, hosts: Sequence[str], rows: int) -> None:
        """Compute the rows, the first partitions on these hosts; each of those has this number of rows, others none.

        A host that is busy for longer than `spark.locality.wait.node`, or gone, has its partitions computed elsewhere.
        """
        session = self.rows.sparkSession
        sc: Any = session.sparkContext
        jvm, internal = sc._jvm, cast(Any, session._jsparkSession)
        places = jvm.java.util.ArrayList()
        for number in range(self.rdd.getNumPartitions()):
            count = sc._gateway.new_array(jvm.java.lang.Object, 1)
            count[0] = rows if number < len(hosts) else 0
            names = jvm.PythonUtils.toSeq(list(hosts[number : number + 1]))
            places.add(jvm.scala.Tuple2(jvm.org.apache.spark.sql.RowFactory.create(count), names))
        located = self._core.makeRDD(jvm.PythonUtils.toSeq(places), jvm.scala.reflect.ClassTag.Any())
        schema = jvm.org.apache.spark.sql.types.StructType.fromDDL("n int")
        beside = DataFrame(internal.createDataFrame(located.toJavaRDD(), schema), session)
        beside = beside.selectExpr("explode(array_repeat(0, n))")
        # Tasks of both RDDs at once have the preferred places of the second one, since the first one has none.
        self.rdd.toJavaRDD().zip(beside._jdf.toJavaRDD()).count()

    def release(self, *, blocking: bool = False) -> None:
        """Drop the rows; they cannot be read afterwards."""
        # `RDD.unpersist` does the same, but logs a warning.
        self._core.unpersistRDD(self.rdd.id(), blocking)
