"""Hidden columns: what rows carry from a watermark to the sinks, and users do not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.runtime.outputs import FIRED, TIME
from strandline.runtime.watermarks import WatermarkSpec

ORIGIN = "__strandline_origin"
"""Of rows straight from a watermark with `per`: whose time they move."""
HIDDEN = (TIME, FIRED, ORIGIN)

__all__ = ["FIRED", "HIDDEN", "ORIGIN", "TIME", "hidden_of", "make_spec", "visible", "with_times", "without_hidden"]


def visible(names: Sequence[str]) -> list[str]:
    """Return the columns that are the user's."""
    return [name for name in names if name not in HIDDEN]


def hidden_of(df: DataFrame) -> list[str]:
    """Return the hidden columns of a DataFrame, in the order in which keepers expect them."""
    return [name for name in HIDDEN if name in df.columns]


def without_hidden(df: DataFrame) -> DataFrame:
    """Return what a sink is to see."""
    hidden = hidden_of(df)
    return df.drop(*hidden) if hidden else df


def make_spec(probe: DataFrame, column: str, delay: str, per: str | None, idle: str | None) -> WatermarkSpec:
    """Check what watermark() was given."""
    names = visible(probe.columns)
    for what, name in (("column", column), ("per", per)):
        if name is not None and name not in names:
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
    timed = df.withColumn(TIME, F.unix_micros(F.col(_quoted(spec.column))))
    return timed.withColumn(ORIGIN, F.col(_quoted(spec.per)).cast("string")) if spec.per else timed


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
