"""A task that fails in the JVM while rows flow: at one row, in one attempt, on either side of a keeper.

A step is put around the worker, behind what the exchange does, so that nothing moves it to another stage. At its row it
asks for a property of the JVM and takes it away: who finds it raises an error, and the attempt after it does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.keeper.protocol import Instructions
from strandline.spark.keepers import exchange
from strandline.spark.keepers.fleet import Fleet

_PROPERTY = "tests.raising"
_WITHIN_PARTITION = (1 << 33) - 1
MESSAGE = "a task that a test lets fail"


@dataclass(frozen=True)
class Place:
    """Where a task fails: before the n-th row, from 0, that an operator's partition gets or gives."""

    uid: str
    side: Literal["gets", "gives"]
    partition: int
    row: int


class Raising:
    """Lets tasks of all jobs of this process fail, one for each time that it is armed."""

    def __init__(self, spark: Any, monkeypatch: Any, rows_a_batch: int) -> None:
        self._system = spark._jvm.java.lang.System
        self._system.clearProperty(_PROPERTY)
        self._place: Place | None = None
        run = Fleet.run

        def failing(fleet: Fleet, uid: str, routed: DataFrame, told: Instructions, output_schema: str) -> DataFrame:
            place = self._place
            if place is None or place.uid != uid:
                return run(fleet, uid, routed, told, output_schema)
            if place.side == "gets":
                return run(fleet, uid, _raise_at(routed, place, exchange.KEY_GROUP), told, output_schema)
            given = run(fleet, uid, routed, told, output_schema)
            return _raise_at(given, place, given.columns[0])

        monkeypatch.setattr(Fleet, "run", failing)
        for name, value in {
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(rows_a_batch),
            # Each batch is given to Python when it is full: else nothing of a small epoch would be there before it ends.
            "spark.sql.execution.pandas.udf.buffer.size": "4",
        }.items():
            monkeypatch.setitem(exchange.SESSION_CONF, name, value)

    def arm(self, place: Place) -> None:
        """Let the next task that comes to this place fail."""
        self._place = place
        self._system.setProperty(_PROPERTY, "armed")

    def disarm(self) -> bool:
        """Return whether a task failed since it was armed."""
        self._place = None
        return self._system.clearProperty(_PROPERTY) is None


def _raise_at(rows: DataFrame, place: Place, column: str) -> DataFrame:
    take = f"reflect('java.lang.System', 'clearProperty', '{_PROPERTY}')"
    here = (
        f"spark_partition_id() = {place.partition} "
        f"and (monotonically_increasing_id() & {_WITHIN_PARTITION}L) = {place.row} and {take} = 'armed'"
    )
    return rows.withColumn(column, F.expr(f"case when {here} then raise_error('{MESSAGE}') else `{column}` end"))
