"""Hints for methods that a stream does not have, under their names in DataFrames or in Flink, and for a missing uid."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from strandline.core.program import line_of_program
from strandline.plan.checks import check_uid

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

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
    "print": "to(sl.sinks.console())", "foreach": "to(sl.sinks.foreach(function))",
    "foreachBatch": "to(sl.sinks.foreach_batch(function))", "write": "to(sl.sinks.files(…))",
    "start": "to(sl.sinks.…), and start a job: sl.Job(…, sinks=[…]).start(spark)",
    "unionByName": "union(…)", "printSchema": "types", "dtypes": "types",
    "orderBy": 'key_by(…, order_by="column")', "sort": 'key_by(…, order_by="column")',
    "distinct": "key_by(…).process(…) with a Value that remembers what was seen",
}  # fmt: skip
_REPLACEMENTS |= dict.fromkeys(("show", "limit", "first", "take", "head", "tail"), "to(sl.sinks.console())")
_REPLACEMENTS |= dict.fromkeys(("collect", "toPandas"), "to(sl.sinks.memory()), and read the rows of that sink")
_ROW_METHODS = (
    "drop", "dropna", "fillna", "replace", "alias", "hint", "toDF", "colRegex", "withColumns", "withColumnRenamed",
    "withColumnsRenamed", "unpivot", "melt",
)  # fmt: skip
"""Stateless methods of DataFrames, to be called in transform()."""
_STEPS = (
    "where", "filter", "select", "select_expr", "with_column", "map", "flat_map", "map_async", "transform", "union",
    "watermark",
)  # fmt: skip


def needs_uid(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a method of streams: a call without `uid=` raises ConfigurationError in place of Python's TypeError."""

    @wraps(method)
    def checked(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        if "uid" not in options:
            check_uid(f"{method.__name__}() in {line_of_program()}", None)
        return method(*args, **options)

    return checked


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
        if name in ("groupBy", "groupby", "keyBy"):
            return ": it has keys already; write .process(…) or .agg(…)"
        first = ": it has keys and no rows yet; call .process(…) or .agg(…) first, then "
        if name in ("to", "side", "key_by"):
            return f"{first}.{name}(…)"
        if _REPLACEMENTS.get(name, "").startswith("to("):
            return f"{first}.{_REPLACEMENTS[name]}"
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
