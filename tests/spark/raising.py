"""A task that fails in the JVM while rows flow: at one row, in one attempt, on either side of a keeper.

A step is put around the worker, behind what the exchange does, so that nothing moves it to another stage. At each row it
asks for a property of the JVM that names a place, and at this place it takes it away: who finds it raises an error, and
the attempt after it does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from strandline.spark.base import templates
from strandline.spark.base.mapping import map_batches
from strandline.spark.keepers import exchange
from strandline.spark.lower import frames

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

        def failing(rows: DataFrame, function: Any, schema: Any, name: str) -> DataFrame:
            if exchange.KEY_GROUP not in rows.columns:
                return map_batches(rows, function, schema, name)
            uid = name.partition(" ")[0]
            given = map_batches(_raise_at(rows, uid, "gets", exchange.KEY_GROUP), function, schema, name)
            return _raise_at(given, uid, "gives", given.columns[0])

        monkeypatch.setattr(frames, "map_batches", failing)
        # The step is the same in each epoch, and so in the plan of all of them, although Spark cannot know that.
        monkeypatch.setattr(templates, "_check_lasts", lambda *_: None)
        for name, value in {
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(rows_a_batch),
            # Each batch is given to Python when it is full: else nothing of a small epoch would be there before it ends.
            "spark.sql.execution.pandas.udf.buffer.size": "4",
        }.items():
            monkeypatch.setitem(exchange.SESSION_CONF, name, value)

    def arm(self, place: Place) -> None:
        """Let the next task that comes to this place fail."""
        self._system.setProperty(_PROPERTY, f"{place.uid}/{place.side}/{place.partition}/{place.row}")

    def disarm(self) -> bool:
        """Return whether a task failed since it was armed."""
        return self._system.clearProperty(_PROPERTY) is None


def _raise_at(rows: DataFrame, uid: str, side: str, column: str) -> DataFrame:
    at = (
        f"concat_ws('/', '{uid}', '{side}', spark_partition_id(), monotonically_increasing_id() & {_WITHIN_PARTITION}L)"
    )
    is_armed, take = (
        f"reflect('java.lang.System', '{method}', '{_PROPERTY}')" for method in ("getProperty", "clearProperty")
    )
    here = f"{at} = {is_armed} and {take} = {at}"
    return rows.withColumn(column, F.expr(f"case when {here} then raise_error('{MESSAGE}') else `{column}` end"))
