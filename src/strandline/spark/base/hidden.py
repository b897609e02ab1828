"""Hidden columns: what rows carry from a watermark to the sinks, and users do not see."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from strandline.runtime.rowlayout import HIDDEN, TIME


def visible(names: Sequence[str]) -> list[str]:
    """Return the columns that are the user's."""
    return [name for name in names if name not in HIDDEN]


def hidden_of(df: DataFrame) -> list[str]:
    """Return the hidden columns of a DataFrame, in the order in which keepers expect them."""
    return [name for name in HIDDEN if name in df.columns]


def end_of(offset_us: int, every_us: int, size_us: int) -> str:
    """Return the SQL of the end of the last window, or pane, that a row's time is in: one begins every `every_us`."""
    return f"({TIME} - pmod({TIME} - {offset_us}L, {every_us}L) + {size_us}L)"


def without_hidden(df: DataFrame) -> DataFrame:
    """Return what a sink is to see."""
    hidden = hidden_of(df)
    return df.drop(*hidden) if hidden else df
