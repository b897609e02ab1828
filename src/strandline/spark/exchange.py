"""Sends each key group to its partition, and each partition to the executor that keeps its state.

See the design page: a route value hashes to its partition, and a cached anchor row on every partition makes tasks
follow the executor that caches it, and gives every keeper a part in every epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

PARTITION = "__strandline_partition"
KEY_GROUP = "__strandline_key_group"
_ROUTE = "__strandline_route"
_ANCHOR_ROUTE = "__strandline_anchor_route"

SESSION_CONF = {
    # "One partition, one task": adaptive execution would split or merge partitions.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}


class Exchange:
    """The routes and the anchor of one job at one parallelism."""

    def __init__(self, spark: SparkSession, parallelism: int) -> None:
        self._parallelism = parallelism
        session = spark.newSession()
        prepare_session(session)
        self._routes = _find_routes(session, parallelism)
        rows = [(route, partition) for partition, route in enumerate(self._routes)]
        anchor = session.createDataFrame(rows, f"{_ANCHOR_ROUTE} int, {PARTITION} int")
        self._anchor = anchor.repartition(parallelism, _ANCHOR_ROUTE).cache()
        self._anchor.count()

    @property
    def partitions(self) -> DataFrame:
        """One row a partition, on the executor that keeps the partition's state."""
        return self._anchor.select(PARTITION)

    def route(
        self, df: DataFrame, keys: Sequence[str], max_parallelism: int, order_by: Sequence[str] = ()
    ) -> DataFrame:
        """Return the rows on their partitions: the partition, the key group, then the columns of `df`.

        A partition without rows has one, with a null key group.
        """
        columns = [_quoted(name) for name in df.columns]
        group = F.pmod(F.hash(*(F.col(_quoted(key)) for key in keys)), F.lit(max_parallelism))
        routes = F.array(*(F.lit(route) for route in self._routes))
        partition = F.expr(f"cast({KEY_GROUP} * {self._parallelism} div {max_parallelism} as int)")
        routed = (
            df.withColumn(KEY_GROUP, group).withColumn(_ROUTE, routes[partition]).repartition(self._parallelism, _ROUTE)
        )
        joined = routed.join(
            self._anchor.hint("shuffle_hash"), routed[_ROUTE] == self._anchor[_ANCHOR_ROUTE], "full_outer"
        ).select(PARTITION, KEY_GROUP, *columns)
        return joined.sortWithinPartitions(*(F.col(_quoted(name)) for name in order_by)) if order_by else joined

    def close(self) -> None:
        """Let the anchor go."""
        self._anchor.unpersist()


def prepare_session(session: SparkSession) -> None:
    """Set what the exchange needs on a session that is ours alone."""
    for name, value in SESSION_CONF.items():
        session.conf.set(name, value)


def _find_routes(session: SparkSession, parallelism: int) -> list[int]:
    """For each partition, find the smallest number that Spark's hash partitioning sends there."""
    routes: dict[int, int] = {}
    start, step = 0, max(64, 16 * parallelism)
    while len(routes) < parallelism:
        numbers = session.range(start, start + step, 1, 1).select(
            F.col("id").cast("int").alias("n"), F.pmod(F.hash(F.col("id").cast("int")), F.lit(parallelism)).alias("p")
        )
        for row in numbers.collect():
            routes.setdefault(row.p, row.n)
        start += step
    return [routes[partition] for partition in range(parallelism)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
