"""Python functions of Arrow batches on DataFrames of any columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

Batches = Iterator[pa.RecordBatch]


def map_batches(df: DataFrame, function: Callable[[Batches], Batches], schema: StructType | str) -> DataFrame:
    """Do what mapInArrow does, also where names of columns have dots or quotes: it takes those for paths."""
    names = df.columns
    if not any("." in name or "`" in name for name in names):
        return df.mapInArrow(function, schema)
    plain = df.toDF(*(f"c{at}" for at in range(len(names))))
    return plain.mapInArrow(Renaming(function, names), schema)


@dataclass(frozen=True)
class Renaming:
    """Gives a function batches whose columns have their own names again."""

    function: Callable[[Batches], Batches]
    names: list[str]

    def __call__(self, batches: Batches) -> Batches:
        yield from self.function(batch.rename_columns(self.names) for batch in batches)
