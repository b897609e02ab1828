"""The step that gives every row its time: checked, and as columns."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.runtime.rowlayout import ORIGIN, TIME
from strandline.runtime.watermarks import WatermarkSpec
from strandline.spark.base.ddl import quoted
from strandline.spark.base.hidden import visible


def make_spec(probe: DataFrame, column: str, delay: str, per: str | None, idle: str | None) -> WatermarkSpec:
    """Check what watermark() was given."""
    names = visible(probe.columns)
    for what, name in (("column", column), ("per", per)):
        if name is not None and (not isinstance(name, str) or name not in names):
            raise ConfigurationError(f"watermark: {what}={name!r} is no column; the stream has {', '.join(names)}")
    kind: Any = probe.schema[column].dataType
    if not isinstance(kind, TimestampType):
        raise ConfigurationError(
            f"watermark: the column '{column}' is {kind.simpleString()}, expected timestamp",
            hint=f'make one first: with_column("{column}", expression).watermark("{column}")',
        )
    if TIME in probe.columns:
        raise ConfigurationError(
            "watermark: the stream has a watermark already",
            hint="call it once, before the first key_by: what operators give has the time of the event it came of",
        )
    idle_us = None if idle is None else parse_duration_ms(idle, "watermark: idle") * 1000
    return WatermarkSpec(column, parse_duration_ms(delay, "watermark: delay") * 1000, per, idle_us)


def with_times(df: DataFrame, spec: WatermarkSpec) -> DataFrame:
    """Add the hidden columns of a watermark."""
    timed = df.withColumn(TIME, F.unix_micros(F.col(quoted(spec.column))))
    return timed.withColumn(ORIGIN, F.col(quoted(spec.per)).cast("string")) if spec.per else timed
