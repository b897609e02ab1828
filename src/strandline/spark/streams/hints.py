"""Hints for methods that a stream does not have, under their names in DataFrames or in Flink."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NoReturn

_KEYED = (
    "agg", "as_of_join", "broadcast", "connect", "fold", "join", "process", "reduce", "window", "window_join",
)  # fmt: skip
"""Methods of keyed streams alone."""
_AGGREGATES = ("avg", "count", "max", "min", "sum")
_REPLACEMENTS = {
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
_ROW_METHODS = (
    "drop", "dropna", "fillna", "replace", "alias", "hint", "toDF", "colRegex", "withColumns", "withColumnRenamed",
    "withColumnsRenamed", "unpivot", "melt",
)  # fmt: skip
"""Stateless methods of DataFrames, to be called in transform()."""
_STEPS = (
    "where", "filter", "select", "select_expr", "with_column", "map", "flat_map", "map_async", "transform", "union",
    "watermark",
)  # fmt: skip


class MissingMethodHints:
    """Raises AttributeError for a missing method, with a hint that names the method to use."""

    _description = "a stream"
    _is_keyed = False
    """Whether key_by() comes before, so that it is too late for steps."""

    # Hidden from type checkers, which would accept every attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{self._description} has no '{name}'{_hint(self, name)}", name=name, obj=self)


def _hint(stream: Any, name: str) -> str:
    if name.startswith("_"):
        return ""
    methods = [each for each in dir(stream) if not each.startswith("_")]
    if name in _AGGREGATES:
        result = "count=sl.agg.count()" if name == "count" else f"column=sl.agg.{name}(…)"
        return f": write .{'' if stream._is_keyed else 'key_by(…).'}agg({result}, uid=…)"
    if stream._is_keyed:
        if name in _STEPS:
            return f": write .{name}(…) before .key_by(…), or after .process(…)"
        if name in ("to", "side", "key_by"):
            return f": it has keys and no rows yet; call .process(…) or .agg(…) first, then .{name}(…)"
    elif name in _KEYED:
        return f": write .key_by(…).{name}(…)"
    if name in _REPLACEMENTS:
        return f": write .{_REPLACEMENTS[name]}"
    if name in _ROW_METHODS and not stream._is_keyed:
        return f": write .transform(lambda df: df.{name}(…))"
    similar = difflib.get_close_matches(name, methods, 1)
    if similar:
        return f": did you mean '{similar[0]}'?"
    return f"; it has {', '.join(methods)}"
