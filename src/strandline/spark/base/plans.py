"""What a plan of Spark's does across rows. In a stream, it would do so with each epoch's rows by themselves."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame


@dataclass(frozen=True)
class AcrossRows:
    """Something of a plan whose result depends on more rows than one, and so on where a stream is cut into epochs."""

    what: str
    hint: str
    why: str = "it would see the rows of one epoch at a time, and give other results wherever the stream is cut"


_AGGREGATE = AcrossRows(
    "an aggregation",
    "aggregate a keyed stream: key_by(…).agg(total=sl.agg.sum('v'), uid='…'), or its windows: "
    "key_by(…).window(…).agg(…)",
)
_FIRST = "keep what was seen in a keyed function: key_by(…).process(…), with sl.Value('boolean', ttl=…) in it"
_GROUPS = "write a keyed function: key_by(…).process(…); its state is in the job's checkpoints"
_AT_MOST = "count in a keyed function, key_by(…).process(…), and give no more than the first"
_SETS = "let each stream remember its rows in a keyed function: a.key_by(…).connect(b.key_by(…)).process(…)"
_JOIN = AcrossRows("a join of two streams", "join them by key: a.key_by(…).join(b.key_by(…), within=(…), uid='…')")
_STATIC = AcrossRows(
    "an outer join that keeps rows of a table",
    "keep the stream's rows: stream.join(table, …, 'left'), or 'inner', 'left_semi', 'left_anti'",
    "the table's rows would come again with each epoch",
)
_STATIC_UNION = AcrossRows(
    "a union with a table", "read the table's rows as a stream of its own", "its rows would come again with each epoch"
)
_SORT = AcrossRows("orderBy", "rows are in order for each key: key_by(…, order_by=…); sortWithinPartitions is allowed")
_NUMBERS = AcrossRows(
    "monotonically_increasing_id",
    "take uuid(), a column of the source, or count in a keyed function",
    "its numbers would begin again with each epoch",
)
_BY_NODE = {
    "Aggregate": _AGGREGATE,
    "Deduplicate": AcrossRows("dropDuplicates", _FIRST),
    "DeduplicateWithinWatermark": AcrossRows("dropDuplicatesWithinWatermark", _FIRST),
    "Distinct": AcrossRows("distinct", _FIRST),
    "FlatMapGroupsWithState": AcrossRows("flatMapGroupsWithState", _GROUPS),
    "FlatMapGroupsInPandasWithState": AcrossRows("applyInPandasWithState", _GROUPS),
    "FlatMapGroupsInPandas": AcrossRows("groupBy().applyInPandas", _GROUPS),
    "FlatMapGroupsInArrow": AcrossRows("groupBy().applyInArrow", _GROUPS),
    "FlatMapCoGroupsInPandas": AcrossRows("cogroup().applyInPandas", _GROUPS),
    "FlatMapCoGroupsInArrow": AcrossRows("cogroup().applyInArrow", _GROUPS),
    "TransformWithState": AcrossRows("transformWithState", _GROUPS),
    "TransformWithStateInPySpark": AcrossRows("transformWithState", _GROUPS),
    "TransformWithStateInPandas": AcrossRows("transformWithStateInPandas", _GROUPS),
    "GlobalLimit": AcrossRows("limit", _AT_MOST),
    "LocalLimit": AcrossRows("limit", _AT_MOST),
    "Offset": AcrossRows("offset", _AT_MOST),
    "Tail": AcrossRows("tail", _AT_MOST),
    "Window": AcrossRows("a window function (OVER)", _GROUPS + ", and key_by(…, order_by=…) sorts an epoch's rows"),
    "SessionWindow": AcrossRows("a session window", "key_by(…).window(sl.Session('…')).agg(…)"),
    "Except": AcrossRows("subtract", _SETS),
    "ExceptAll": AcrossRows("exceptAll", _SETS),
    "Intersect": AcrossRows("intersect", _SETS),
    "IntersectAll": AcrossRows("intersectAll", _SETS),
    "AttachDistributedSequence": _NUMBERS,
}
_JOINS = ("Join", "AsOfJoin")
_SUSPECT = re.compile(rf"^[ :+-]*~?({'|'.join([*_BY_NODE, *_JOINS, 'Sort', 'Union'])})", re.MULTILINE)
_SESSION = re.compile(r"precisetimestampconversion\(.* AS session_window#")
"""How Spark writes session_window(…): of each row, where a session would begin and end that nothing else is in."""
_NUMBERED = re.compile(r"monotonically_increasing_id\(\)(?!#)")
_COMPUTING = ("Project", "Filter", "Generate", "Expand", "Aggregate")
_BETWEEN = "\0__strandline__\0"
"""Between the texts of expressions, of which one may hold any character by itself."""
_KEEPS_LEFT = ("LeftOuter", "FullOuter", "LeftSemi", "LeftAnti")
_KEEPS_RIGHT = ("RightOuter", "FullOuter")


def across_rows(df: DataFrame) -> AcrossRows | None:
    """Return what a streaming DataFrame does with more than one row of the stream at a time, if it does.

    What it does with tables alone does not count. Costs a millisecond where the plan's text shows nothing of the kind.
    """
    plan = df._jdf.queryExecution().analyzed()
    text = plan.toString()
    is_suspect = _SUSPECT.search(text) is not None or _SESSION.search(text) is not None
    # A plan's text leaves out columns where there are many.
    return _find(plan) if is_suspect or not plan.deterministic() else None


def computed_with(after: DataFrame, before: DataFrame, names: Collection[str]) -> str:
    """Return the first of these columns of `before` that `after` makes something of; "" if it only passes them on.

    A `*` inside of a function stands for all columns. Functions of whole rows, as of mapInPandas, do not count.
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
        # What unpivot() makes rows of goes into another column.
        is_kept = kind != "Expand" or f"{name}#" in plan.outputSet().toString()
        # What an expression refers to is asked of few: its text leaves out arguments where there are many.
        for at, text in enumerate(expressions.mkString(_BETWEEN).split(_BETWEEN)):
            if not (is_kept and passed.fullmatch(text)) and f"{name}#" in expressions.apply(at).references().toString():
                return True
    children = plan.children()
    return any(_computes(children.apply(at), stop, name) for at in range(children.size()))


def _find(plan: Any) -> AcrossRows | None:
    children = [plan.children().apply(at) for at in range(plan.children().size())]
    streaming = [child.isStreaming() for child in children]
    if not any(streaming):
        return None
    found = _of_node(plan, plan.nodeName().replace(" ", ""), streaming)
    below = (child for child, streams in zip(children, streaming, strict=True) if streams)
    return found or next(filter(None, map(_find, below)), None)


def _of_node(plan: Any, name: str, streaming: list[bool]) -> AcrossRows | None:
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
    return _NUMBERS if _NUMBERED.search(expressions) else None
