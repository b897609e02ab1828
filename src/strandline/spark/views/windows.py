"""Aggregates of windows of event time, whose results are final: they come once, when the watermark closes a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.api import aggregates as agg
from strandline.api.windows import WINDOW_END, WINDOW_START, Session, Sliding, Tumbling
from strandline.plan.aggregation import aggregate_on
from strandline.plan.graph import Keyed, Node, PartialNode, WatermarkNode
from strandline.plan.operators import movers_above
from strandline.runtime.builtin import BuiltinOperator
from strandline.runtime.operators.windows.operator import Rules
from strandline.spark.views.catalyst import Attribute, Expression, Plan, id_of, kind_of, unaliased
from strandline.spark.views.keys import KEY, is_key, key_of
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import Operators, hash_of, made_of, names_of
from strandline.spark.views.relations import Part, Relation, Rows
from strandline.spark.views.sums import SumPlanner
from strandline.spark.views.times import Time, TimeReader

_TIME_WINDOW, _SESSION = "spark.timeWindow", "spark.sessionWindow"
_MERGES: dict[str, Any] = {"sum": agg.sum, "min": agg.min, "max": agg.max}


@dataclass(frozen=True)
class _Cut:
    """The window of a query."""

    window: Attribute
    kind: Tumbling | Sliding | Session
    rows: Relation
    """The rows, each once."""


def closed_windows(
    ops: Operators, plan: Plan, child: Relation, groups: Sequence[Attribute], results: Sequence[Expression]
) -> Relation | None:
    """Return the results of windows that the watermark closes; None if the aggregation has no such windows."""
    if not ops.is_final or not child.hidden or not child.appends:
        return None
    inner, conditions = plan.child(), list[Expression]()
    while child.above is not None and _is_passed(ops, inner):
        if kind_of(inner) == "Filter":
            conditions += [each for each in ops.catalyst.conjuncts(inner.condition()) if not _is_of_any_window(each)]
        inner, child = inner.child(), child.above
    cut = _cut_of(ops, inner, child, groups)
    keys = [each for each in groups if cut is None or id_of(each) != id_of(cut.window)]
    if cut is None or not all(map(is_key, keys)):
        return None
    catalyst, rows = ops.catalyst, cut.rows
    for condition in conditions:
        if id_of(cut.window) in catalyst.ids_in(condition):
            return None
        rows = ops.filtered(rows, condition)
    sums = SumPlanner(ops, rows.columns, appends=True).plan(results)
    if sums is None or any(each.value.references().contains(cut.window) for each in sums.addends):
        return None
    by = ", ".join(rows.columns[id_of(key)] for key in keys)
    names = sorted(each.name for each in sums.addends)
    groups_meaning = short(f"windows {cut.kind}[{by}]({rows.rows})")
    meaning = short(f"{', '.join(names)} of {groups_meaning}")

    def make() -> tuple[Node, Part]:
        pairs = ((KEY, key_of(catalyst, keys)), *((each.name, each.value) for each in sums.addends))
        node = Rows(catalyst, rows, pairs, is_weighted=False, is_timed=True).node()
        group = f"windows-{hash_of(groups_meaning)[:6]}"
        uid = f"{group}-{hash_of(meaning)[:6]}"
        what = f"{_name_of(cut.kind)} by {names_of(keys)}" if keys else f"{_name_of(cut.kind)} of all rows"
        functions = {each.name: _MERGES[each.merge](each.name) for each in sums.addends}
        operator = aggregate_on(Keyed(node, (KEY,)), cut.kind, Rules(), functions, ops.uid(uid), what, None, None)
        ops.unlisted(operator)
        assert isinstance(operator.process, BuiltinOperator)
        assert operator.aggregated is not None
        stored = {name: info.columns[0] for name, info in operator.aggregated.infos.items()}
        operator.process.own_aggregated = sums.aggregated(appends=True, stored=stored)
        if not rows.weighted:
            partial = operator.parent
            assert isinstance(partial, PartialNode)
            operator = replace(operator, parent=replace(partial, parts=sums.counted(partial.parts, stored)))
        bound = "gone when the watermark closes it"
        part = Part(operator.uid, what, "sums and counts of each open window", "", bound=bound)
        return replace(operator, group=group), part

    node, part = ops.once(meaning, make, rows)
    key, start, end = (
        catalyst.attribute(node.columns.ddl_of(name), name, catalyst.new_id())
        for name in (KEY, WINDOW_START, WINDOW_END)
    )
    bounds = catalyst.struct([("start", start), ("end", end)])
    window = catalyst.alias(bounds, cut.window.name(), cut.window.exprId(), cut.window.metadata())
    hidden = ops.hidden_of(node.columns.hidden)
    stored, step = sums.finish(ops, key, keys, window, hidden=hidden)
    output = catalyst.items(plan.output())
    # A window's rows come when the watermark passes its end.
    times = {(id_of(cut.window), 1): Time(0)}
    if not isinstance(cut.kind, Session):
        start_at = Time(cut.kind.size_us - 1)
        times = {(id_of(cut.window), 0): start_at, (id_of(cut.window), 1): start_at.later(*(cut.kind.size_us,) * 2)}
    return made_of(
        rows, node=node, names=(KEY, WINDOW_START, WINDOW_END, *stored),
        attributes=(key, start, end, *stored.values()), output=output,
        columns=ops.results_of(output, results, child, groups_meaning), meaning=groups_meaning, part=part, appends=True,
        steps=(step,), hidden=hidden, ttl_ms=child.ttl_ms, times=TimeReader(catalyst).projected(results, times),
        weighted=False,
    )  # fmt: skip


def _cut_of(ops: Operators, plan: Plan, child: Relation, groups: Sequence[Attribute]) -> _Cut | None:
    """Return how a query cuts the time of its stream, if it groups by one window of the watermark's column."""
    marked = [each for each in groups if _is_window(each)]
    mover = movers_above(child.node)
    if len(marked) != 1 or not isinstance(mover, WatermarkNode) or kind_of(plan) not in ("Project", "Expand"):
        return None
    catalyst, window, inner = ops.catalyst, marked[0], plan.child()
    rows = child.above
    if rows is None or {id_of(each) for each in catalyst.items(inner.output())} != {id_of(e) for e in rows.output}:
        return None
    if kind_of(plan) == "Project":
        (column,) = [each for each in catalyst.items(plan.projectList()) if id_of(each) == id_of(window)]
        times = {
            id_of(each): each for each in catalyst.parts(unaliased(column)) if kind_of(each) == "AttributeReference"
        }
    else:
        lists = [catalyst.items(each) for each in catalyst.items(plan.projections())]
        at = [id_of(each) for each in catalyst.items(plan.output())].index(id_of(window))
        times = {
            id_of(each): each for row in lists for each in catalyst.parts(row[at])
            if kind_of(each) == "AttributeReference"
        }  # fmt: skip
    names = [rows.columns.get(each, "") for each in times]
    if len(names) != 1 or not any(names[0] == f"{name}.{mover.spec.column}" for name, _ in rows.leaves):
        return None
    kind = _kind_of(ops, plan, window, *times.values())
    # Spark's rows before the window have all that the results need but the window.
    if kind is None:
        return None
    return _Cut(window, kind, child if kind_of(plan) == "Project" else _renamed(ops, plan, rows))


def _renamed(ops: Operators, plan: Plan, rows: Relation) -> Relation:
    """Return rows under the columns that the copies of an Expand have, which may have ids of their own."""
    catalyst = ops.catalyst
    first = catalyst.items(catalyst.items(plan.projections())[0])
    pairs = [
        (each, to)
        for each, to in zip(first, catalyst.items(plan.output()), strict=True)
        if kind_of(each) == "AttributeReference"
    ]
    aliases = [catalyst.alias(each, to.name(), to.exprId(), to.metadata()) for each, to in pairs]
    carried = ops.carried(rows)
    return rows.then(
        lambda changes: catalyst.project([*aliases, *carried], changes),
        [to for _, to in pairs],
        "",
        {id_of(to): rows.columns[id_of(each)] for each, to in pairs},
    )


def _kind_of(ops: Operators, plan: Plan, window: Attribute, time: Attribute) -> Tumbling | Sliding | Session | None:
    """Return the kind of window, from those that Spark makes of one time."""
    catalyst = ops.catalyst
    columns = [
        catalyst.alias(
            catalyst.sql("timestamp_micros(0)") if id_of(each) == id_of(time) else catalyst.null_like(each),
            each.name(),
            each.exprId(),
        )
        for each in catalyst.items(plan.child().output())
    ]
    rows = catalyst.with_children(plan, [catalyst.project(columns, catalyst.one_row())])
    df = catalyst.frame(catalyst.project([catalyst.alias(window, "w")], rows), catalyst.spark)
    bounds = sorted(tuple(row) for row in df.selectExpr("unix_micros(w.start)", "unix_micros(w.end)").collect())
    start, size = bounds[0][0], bounds[0][1] - bounds[0][0]
    every = bounds[1][0] - start if len(bounds) > 1 else size
    if size % 1000 or every % 1000 or start % 1000:
        return None
    length, offset = _text_of(size), _text_of(start % every)
    if window.metadata().contains(_SESSION):
        return Session(length)
    if kind_of(plan) == "Project":
        return Tumbling(length, offset)
    return Sliding(length, _text_of(every), offset)


def _text_of(duration_us: int) -> str:
    for unit_us, unit in ((3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s")):
        if duration_us and duration_us % unit_us == 0:
            return f"{duration_us // unit_us} {unit}"
    return f"{duration_us // 1000} ms"


def _is_passed(ops: Operators, plan: Plan) -> bool:
    """Whether a node only filters rows, or leaves columns out."""
    return kind_of(plan) == "Filter" or (
        kind_of(plan) == "Project"
        and all(kind_of(each) == "AttributeReference" for each in ops.catalyst.items(plan.projectList()))
    )


def _is_of_any_window(condition: Expression) -> bool:
    """Whether a condition says only that a window, or a bound of it, is not null, as Spark infers of joins."""
    if kind_of(condition) != "IsNotNull":
        return False
    value = condition.child()
    value = value.child() if kind_of(value) == "GetStructField" else value
    return kind_of(value) == "AttributeReference" and _is_window(value)


def _is_window(column: Attribute) -> bool:
    return bool(column.metadata().contains(_TIME_WINDOW) or column.metadata().contains(_SESSION))


def _name_of(kind: Tumbling | Sliding | Session) -> str:
    if isinstance(kind, Session):
        return f"sessions with gaps of {kind.gap}"
    return f"windows of {kind.size}" + (f" every {kind.every}" if isinstance(kind, Sliding) else "")
