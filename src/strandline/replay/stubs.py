"""Reads of a program's sources and tables, recorded with their schemas, and replaced where they are not there.

A bundle is replayed on a machine without the job's sources. The program still has to be run up to its job: what it
reads has the recorded columns then, and no rows.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StructType

from strandline.spark.base.empty import no_rows
from strandline.spark.streams.frames import stream_of

_STREAMS = ("load", "table", "json", "csv", "parquet", "orc", "text", "xml")
_TABLES = (*_STREAMS, "jdbc")


@contextmanager
def recorded_reads() -> Iterator[list[str]]:
    """Record the schemas of the DataFrames that are read in the block, as JSON, in the order of the reads."""
    schemas: list[str] = []

    def read(original: Callable[..., DataFrame], reader: Any, *args: Any, **options: Any) -> DataFrame:
        df = original(reader, *args, **options)
        schemas.append(df.schema.json())
        return df

    with _replaced(read):
        yield schemas


@contextmanager
def stubbed_reads(schemas: Sequence[str]) -> Iterator[None]:
    """Return DataFrames without rows for the reads in the block, with recorded schemas in the same order."""
    left = list(schemas)

    def read(original: Callable[..., DataFrame], reader: Any, *args: Any, **options: Any) -> DataFrame:
        if not left:
            return original(reader, *args, **options)
        schema = StructType.fromJson(json.loads(left.pop(0)))
        spark: SparkSession = reader._spark
        return stream_of(spark, schema) if isinstance(reader, DataStreamReader) else no_rows(spark, schema)

    with _replaced(read):
        yield


@contextmanager
def _replaced(read: Callable[..., DataFrame]) -> Iterator[None]:
    """Call `read` with each original method of readers; reads inside of it are not seen."""
    inside = False

    def wrapped(original: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
        @functools.wraps(original)
        def call(reader: Any, *args: Any, **options: Any) -> DataFrame:
            nonlocal inside
            if inside:
                return original(reader, *args, **options)
            inside = True
            try:
                return read(original, reader, *args, **options)
            finally:
                inside = False

        return call

    before = [
        (cls, name, getattr(cls, name))
        for cls, names in ((DataStreamReader, _STREAMS), (DataFrameReader, _TABLES))
        for name in names
        if hasattr(cls, name)
    ]
    try:
        for cls, name, original in before:
            setattr(cls, name, wrapped(original))
        yield
    finally:
        for cls, name, original in before:
            setattr(cls, name, original)
