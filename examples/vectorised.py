"""A vectorised function: whole Arrow batches, and state read and written for many keys at once.

    python -m examples.vectorised

It keeps count and sum per sensor, and gives a row for each sensor of each batch. A key's rows may be spread over
several batches of an epoch, and how they are is not promised: write functions that do not depend on it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import strandline as sl
from examples._inputs import in_temporary_directory, write_json


class Totals(sl.KeyedBatchProcess):
    count = sl.Value("bigint", default=0)
    total = sl.Value("bigint", default=0)

    def on_batch(self, batch: pa.RecordBatch, ctx: sl.BatchContext) -> pa.RecordBatch:
        keys, row_of = ctx.keys.unique()  # the distinct keys, and for each row the index of its key among them
        readings = batch.column("reading").to_numpy()
        counts = self.count.get_many(keys).to_numpy() + np.bincount(row_of, minlength=len(keys))
        totals = self.total.get_many(keys).to_numpy().copy()
        np.add.at(totals, row_of, readings)
        self.count.put_many(keys, pa.array(counts))
        self.total.put_many(keys, pa.array(totals))
        columns = [keys.columns[0], pa.array(counts), pa.array(totals)]
        return pa.RecordBatch.from_arrays(columns, names=["sensor", "count", "total"])


def readings() -> list[dict[str, Any]]:
    rng = random.Random(3)
    return [{"sensor": rng.randrange(50), "reading": rng.randrange(1, 100)} for _ in range(2_000)]


def build(spark: Any, home: Path) -> sl.Job:
    df = spark.readStream.schema("sensor int, reading bigint").option("maxFilesPerTrigger", 1).json(str(home / "in"))
    totals = (
        sl.stream(df).key_by("sensor").process(Totals(), output="sensor int, count bigint, total bigint", uid="totals")
    )
    return sl.Job(
        "vectorised",
        sinks=[totals.to(sl.sinks.files(str(home / "out"), format="parquet"))],
        checkpoints=sl.Checkpoints(home / "checkpoints", every="10s"),
        trigger="available-now",
    )


def main(home: Path) -> None:
    write_json(home / "in", readings())
    spark = sl.session("vectorised")
    build(spark, home).start(spark).await_termination()
    spark.read.parquet(str(home / "out")).groupBy("sensor").max("count", "total").orderBy("sensor").show()
    spark.stop()


if __name__ == "__main__":
    in_temporary_directory(main)
