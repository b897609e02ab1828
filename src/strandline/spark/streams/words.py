"""Methods that a stream does not have, in the words of those who know them from DataFrames or from Flink."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NoReturn

_KEYED = (
    "agg", "as_of_join", "broadcast", "connect", "fold", "join", "process", "reduce", "window", "window_join",
)  # fmt: skip
"""What keyed streams have and others do not."""
_AGGREGATES = ("avg", "count", "max", "min", "sum")
_SAID = {
    "groupBy": "key_by(…)", "groupby": "key_by(…)", "keyBy": "key_by(…)", "withColumn": "with_column(…)",
    "selectExpr": "select_expr(…)", "flatMap": "flat_map(…)", "withWatermark": 'watermark("column", delay="10s")',
    "assignTimestampsAndWatermarks": 'watermark("column", delay="10s")', "getSideOutput": "side(…)",
    "get_side_output": "side(…)", "writeStream": "to(sl.sinks.files(…))", "addSink": "to(sl.sinks.…)",
    "sinkTo": "to(sl.sinks.…)", "sink_to": "to(sl.sinks.…)", "aggregate": "window(…).aggregate(…)",
    "dropDuplicates": "key_by(…).process(…) with a Value that remembers what was seen",
    "show": "to(sl.sinks.console())", "collect": "to(sl.sinks.memory()), and read the rows of that sink",
    "toPandas": "to(sl.sinks.memory()), and read the rows of that sink",
    "distinct": "key_by(…).process(…) with a Value that remembers what was seen",
}  # fmt: skip


_OF_A_ROW = (
    "drop", "dropna", "fillna", "replace", "alias", "hint", "toDF", "colRegex", "withColumns", "withColumnRenamed",
    "withColumnsRenamed", "unpivot", "melt",
)  # fmt: skip
"""What DataFrames have, needs no state, and is reached by transform()."""


_STEPS = (
    "where", "filter", "select", "select_expr", "with_column", "map", "flat_map", "map_async", "transform", "union",
    "watermark",
)  # fmt: skip


class Worded:
    """Says of a method that is not there which one is meant."""

    _is_called = "a stream"
    _is_before_key_by = False
    """Whether it is made by key_by() and what follows it, so that steps come too late."""

    # Type checkers are not told: they would take every attribute for one that exists.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{self._is_called} has no '{name}'{_meant(self, name)}", name=name, obj=self)


def _meant(thing: Any, name: str) -> str:
    if name.startswith("_"):
        return ""
    known = [each for each in dir(thing) if not each.startswith("_")]
    if name in _AGGREGATES:
        aggregate = f"sl.agg.{name}({'' if name == 'count' else '…'})"
        return f": write .{'' if thing._is_before_key_by else 'key_by(…).'}agg(result={aggregate}, uid=…)"
    if thing._is_before_key_by:
        if name in _STEPS:
            return f": write .{name}(…) before .key_by(…), or behind what .process(…) gives"
        if name in ("to", "side", "key_by"):
            return f": it has keys and no rows yet, which .process(…) gives, or .agg(…); then .{name}(…)"
    elif name in _KEYED:
        return f": write .key_by(…).{name}(…)"
    if name in _SAID:
        return f": write .{_SAID[name]}"
    if name in _OF_A_ROW and not thing._is_before_key_by:
        return f": write .transform(lambda df: df.{name}(…))"
    near = difflib.get_close_matches(name, known, 1)
    if near:
        return f": did you mean '{near[0]}'?"
    return f"; it has {', '.join(known)}"
