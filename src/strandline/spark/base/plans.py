"""Finds operations across rows in a plan of Spark. In a stream, they would see only the rows of one epoch."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class CrossRowOperation:
    """An operation whose result depends on several rows, and so on where epochs begin."""

    name: str
    hint: str
    reason: str = "it would see the rows of one epoch at a time, and its results would depend on where epochs begin"


_AGGREGATE = CrossRowOperation(
    "an aggregation",
    "aggregate a keyed stream: key_by(…).agg(total=sl.agg.sum('v'), uid='…'), or its windows: "
    "key_by(…).window(…).agg(…)",
)
_FIRST = "note in a keyed function which keys it has seen: key_by(…).process(…), with sl.Value('boolean', ttl=…) in it"
_GROUPS = "write a keyed function: key_by(…).process(…); its state is in the job's checkpoints"
_AT_MOST = "count rows in a keyed function, key_by(…).process(…), and emit only the first ones"
_SETS = "keep the rows of each stream in a keyed function: a.key_by(…).connect(b.key_by(…)).process(…)"
_JOIN = CrossRowOperation(
    "a join of two streams", "join them by key: a.key_by(…).join(b.key_by(…), within=(…), uid='…')"
)
_STATIC = CrossRowOperation(
    "an outer join that keeps rows of a table",
    "keep the stream's rows: stream.join(table, …, 'left'), or 'inner', 'left_semi', 'left_anti'",
    "each epoch would emit the table's rows again",
)
_STATIC_UNION = CrossRowOperation(
    "a union with a table", "read the table as a second stream", "each epoch would emit the table's rows again"
)
_SORT = CrossRowOperation(
    "orderBy", "sort the rows of each key: key_by(…, order_by=…); sortWithinPartitions is allowed"
)
_NUMBERS = CrossRowOperation(
    "monotonically_increasing_id",
    "use uuid() or a column of the source, or count in a keyed function",
    "each epoch would start its numbers again",
)
_BY_NODE = {
    "Aggregate": _AGGREGATE,
    "Deduplicate": CrossRowOperation("dropDuplicates", _FIRST),
    "DeduplicateWithinWatermark": CrossRowOperation("dropDuplicatesWithinWatermark", _FIRST),
    "Distinct": CrossRowOperation("distinct", _FIRST),
    "FlatMapGroupsWithState": CrossRowOperation("flatMapGroupsWithState", _GROUPS),
    "FlatMapGroupsInPandasWithState": CrossRowOperation("applyInPandasWithState", _GROUPS),
    "FlatMapGroupsInPandas": CrossRowOperation("groupBy().applyInPandas", _GROUPS),
    "FlatMapGroupsInArrow": CrossRowOperation("groupBy().applyInArrow", _GROUPS),
    "FlatMapCoGroupsInPandas": CrossRowOperation("cogroup().applyInPandas", _GROUPS),
    "FlatMapCoGroupsInArrow": CrossRowOperation("cogroup().applyInArrow", _GROUPS),
    "TransformWithState": CrossRowOperation("transformWithState", _GROUPS),
    "TransformWithStateInPySpark": CrossRowOperation("transformWithState", _GROUPS),
    "TransformWithStateInPandas": CrossRowOperation("transformWithStateInPandas", _GROUPS),
    "GlobalLimit": CrossRowOperation("limit", _AT_MOST),
    "LocalLimit": CrossRowOperation("limit", _AT_MOST),
    "Offset": CrossRowOperation("offset", _AT_MOST),
    "Tail": CrossRowOperation("tail", _AT_MOST),
    "Window": CrossRowOperation(
        "a window function (OVER)", _GROUPS + ", and key_by(…, order_by=…) sorts an epoch's rows"
    ),
    "SessionWindow": CrossRowOperation("a session window", "key_by(…).window(sl.Session('…')).agg(…)"),
    "Except": CrossRowOperation("subtract", _SETS),
    "ExceptAll": CrossRowOperation("exceptAll", _SETS),
    "Intersect": CrossRowOperation("intersect", _SETS),
    "IntersectAll": CrossRowOperation("intersectAll", _SETS),
    "AttachDistributedSequence": _NUMBERS,
}
_JOINS = ("Join", "AsOfJoin")
_SUSPECT = re.compile(rf"^[ :+-]*~?({'|'.join([*_BY_NODE, *_JOINS, 'Sort', 'Union'])})", re.MULTILINE)
_SESSION = re.compile(r"precisetimestampconversion\(.* AS session_window#")
"""The text of session_window(…) in a plan: for each row, begin and end of a session that holds only this row."""
_ROW_NUMBER = re.compile(r"monotonically_increasing_id\(\)(?!#)")
_COMPUTING = ("Project", "Filter", "Generate", "Expand", "Aggregate")
_SEPARATOR = "\0__strandline__\0"
"""Separates the texts of expressions, which may hold any single character."""
_KEEPS_LEFT = ("LeftOuter", "FullOuter", "LeftSemi", "LeftAnti")
_KEEPS_RIGHT = ("RightOuter", "FullOuter")


def find_cross_row_operation(df: DataFrame) -> CrossRowOperation | None:
    """Return the first operation of a streaming DataFrame across rows of the stream, None if it has none.

    Operations on tables alone do not count. Takes a millisecond if the plan's text shows no such operation.
    """
    plan = df._jdf.queryExecution().analyzed()
    text = plan.toString()
    is_suspect = _SUSPECT.search(text) is not None or _SESSION.search(text) is not None
    # A plan's text omits columns if there are many.
    return _find(plan) if is_suspect or not plan.deterministic() else None


def find_computed_column(after: DataFrame, before: DataFrame, names: Collection[str]) -> str:
    """Return the first of these columns of `before` that `after` computes with; "" if it only passes them on.

    A `*` inside a function means all columns. Functions of whole rows, as of mapInPandas, do not count.
    """
    plan, stop = (df._jdf.queryExecution().analyzed() for df in (after, before))
    return next((name for name in names if _computes(plan, stop, name)), "")


def _computes(plan: Any, stop: Any, name: str) -> bool:
    if plan.equals(stop):
        return False
    kind = plan.nodeName()
    if kind in _COMPUTING:
        passed = re.compile(rf"{name}#\d+L?( AS {name}#\d+L?)?|(?!{name})[^\s()]*#\d+L?")
        expressions = plan.expressions()
        # unpivot() moves values of columns into rows of another column.
        is_kept = kind != "Expand" or f"{name}#" in plan.outputSet().toString()
        # References are exact, but slow to read: read them only if the text, which omits some arguments, is not clear.
        for at, text in enumerate(expressions.mkString(_SEPARATOR).split(_SEPARATOR)):
            if not (is_kept and passed.fullmatch(text)) and f"{name}#" in expressions.apply(at).references().toString():
                return True
    children = plan.children()
    return any(_computes(children.apply(at), stop, name) for at in range(children.size()))


def _find(plan: Any) -> CrossRowOperation | None:
    children = [plan.children().apply(at) for at in range(plan.children().size())]
    streaming = [child.isStreaming() for child in children]
    if not any(streaming):
        return None
    operation = _of_node(plan, plan.nodeName().replace(" ", ""), streaming)
    streams = (child for child, is_stream in zip(children, streaming, strict=True) if is_stream)
    return operation or next(filter(None, map(_find, streams)), None)


def _of_node(plan: Any, name: str, streaming: list[bool]) -> CrossRowOperation | None:
    if name in _BY_NODE:
        return _BY_NODE[name]
    if name == "Sort" and getattr(plan, "global")():
        return _SORT
    if name == "Union" and not all(streaming):
        return _STATIC_UNION
    if name in _JOINS:
        if all(streaming):
            return _JOIN
        if plan.joinType().toString() in (_KEEPS_LEFT if streaming[1] else _KEEPS_RIGHT):
            return _STATIC
    expressions = plan.expressions().mkString("\n")
    if _SESSION.search(expressions):
        return _BY_NODE["SessionWindow"]
    return _NUMBERS if _ROW_NUMBER.search(expressions) else None
