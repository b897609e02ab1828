"""Spark's own stateful operators on the counting workload, set up as well as Spark allows.

Both keep their state in RocksDB with changelog checkpointing and write to the `noop` sink. Their final state is read
after the measured epochs, with Spark's state data source, at the last batch that was committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._counting import MASTER, SPARK_SETTINGS, Load, check_state, keyed_rows, state_digest
from benchmarks._harness import Result, run_epochs, steady_rows_per_second

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUT = "key bigint, cnt bigint, sm bigint"
ROCKSDB_STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def run_aggregation(directory: Path, load: Load) -> Result:
    """Run `groupBy(key).agg(count, sum)`, which stays in the JVM."""
    from pyspark.sql import functions as F

    spark = make_session()
    counted = keyed_rows(spark, load).groupBy("key").agg(F.count("*").alias("cnt"), F.sum("value").alias("sm"))
    return _run(spark, counted, directory, load, "spark-aggregation", ("value.count", "value.sum"), {})


def run_transform_with_state(directory: Path, load: Load) -> Result:
    """Run `transformWithState` in row mode: a Python function called for each key of each batch."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Counter(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.stats = handle.getValueState("stats", "cnt bigint, sm bigint")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            # exists() before get() would be one more round trip to the JVM: get() says None as well.
            count, total = self.stats.get() or (0, 0)
            for row in rows:
                count += 1
                total += row.value
                yield Row(key=key[0], cnt=count, sm=total)
            self.stats.update((count, total))

        def close(self) -> None:
            pass

    spark = make_session()
    counted = keyed_rows(spark, load).groupBy("key").transformWithState(Counter(), OUTPUT, "Update", "none")
    name, option = "spark-transform-with-state", {"stateVarName": "stats"}
    return _run(spark, counted, directory, load, name, ("value.cnt", "value.sm"), option)


def make_session(more: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session whose stateful operators keep their state in RocksDB, with more settings."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(MASTER).appName("strandline-benchmark-peer")
    for name, value in (SPARK_SETTINGS | ROCKSDB_STATE | dict(more or {})).items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _run(
    spark: SparkSession,
    counted: DataFrame,
    directory: Path,
    load: Load,
    name: str,
    state_columns: tuple[str, str],
    reader_options: dict[str, str],
) -> Result:
    location = directory / "spark-checkpoint"
    query = counted.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(location)).start()
    epochs = run_epochs(query, load.epochs)
    query.stop()

    batch = max(int(path.name) for path in (location / "commits").iterdir() if path.name.isdigit())
    state = spark.read.format("statestore").option("batchId", batch).options(**reader_options).load(str(location))
    table = state.selectExpr("key.key as key", f"{state_columns[0]} as cnt", f"{state_columns[1]} as sm").toArrow()
    digest = state_digest(*(table.column(column).to_numpy() for column in ("key", "cnt", "sm")))
    rows = (batch + 1) * load.rows_per_epoch
    check_state(name, digest, rows)
    spark.stop()
    return {"rows_per_second": steady_rows_per_second(epochs, load.warm_up), "rows": rows, "state": digest}
