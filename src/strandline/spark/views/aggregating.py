"""Aggregations of relations, as nodes of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strandline.plan.columns import Columns
from strandline.plan.graph import Cut, Keyed, Node, PartialNode
from strandline.runtime.operators.views.totals import Totals
from strandline.runtime.rowlayout import ROWS
from strandline.spark.views.catalyst import Attribute, Expression, Plan, id_of, kind_of, unaliased
from strandline.spark.views.keys import KEY, is_key, key_of
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import Operators, hash_of, kept_for, made_of, names_of, struct_of
from strandline.spark.views.recomputed import computed_anew
from strandline.spark.views.relations import FOR_EVER, Part, Relation, Rows
from strandline.spark.views.sums import SumPlanner
from strandline.spark.views.windows import closed_windows
from strandline.types.datatypes import Field, StructType


def aggregate(ops: Operators, plan: Plan, child: Relation) -> Relation:
    """Return the results of an aggregation."""
    known = child.columns.keys()
    child, groups = _with_columns(ops, child, ops.catalyst.items(plan.groupingExpressions()))
    groups.sort(key=lambda each: child.columns[id_of(each)])
    results = ops.catalyst.items(plan.aggregateExpressions())
    same = {id_of(of): id_of(each) for each in results if kind_of(of := unaliased(each)) == "AttributeReference"}
    # What is no column of the query is a constant.
    unique = frozenset(same.get(id_of(each), -1) for each in groups if id_of(each) in known)
    final = closed_windows(ops, plan, child, groups, results)
    if final is not None:
        return replace(final, unique=None if -1 in unique else unique)
    # A session is the group of its key's rows, which Spark merges.
    are_keys = all(is_key(each) and not each.metadata().contains("spark.sessionWindow") for each in groups)
    summed = _summed(ops, plan, child, groups, results) if are_keys else None
    result = summed or computed_anew(ops, plan, child, groups, results)
    return replace(result, unique=None if -1 in unique else unique)


def _with_columns(ops: Operators, child: Relation, groups: Sequence[Expression]) -> tuple[Relation, list[Attribute]]:
    """Return rows that have constants to group by as columns, and the columns to group by."""
    catalyst = ops.catalyst
    named = [each if kind_of(each) == "AttributeReference" else catalyst.alias(each, "constant") for each in groups]
    columns = [each for each in named if kind_of(each) == "Alias"]
    if columns:
        output = [*child.output, *(each.toAttribute() for each in columns)]
        meanings = {id_of(each): ops.meanings.of(each, {}) for each in columns}
        before, carried = child.output, ops.carried(child)
        child = child.then(
            lambda rows: catalyst.project([*before, *columns, *carried], rows),
            output,
            "",
            meanings,
            unique=child.unique,
        )
    return child, [each if kind_of(each) == "AttributeReference" else each.toAttribute() for each in named]


def _summed(
    ops: Operators, plan: Plan, child: Relation, groups: Sequence[Attribute], results: Sequence[Expression]
) -> Relation | None:
    """Return the results of an aggregation of sums; None if it needs more."""
    catalyst = ops.catalyst
    with ops.pinning(""):
        distinct = _distinct(ops, child, groups, results)
    if distinct is not None:
        child, results = distinct
    sums = SumPlanner(ops, child.columns, appends=child.appends).plan(results)
    if sums is None:
        return None
    names = [each.name for each in sums.addends]
    by = ", ".join(child.columns[id_of(key)] for key in groups)
    groups_meaning = short(f"groups[{len(groups)}: {by}]({child.rows})")
    meaning = short(f"{', '.join(sorted(names))} of {groups_meaning}")

    def make() -> tuple[Node, Part]:
        pairs = ((KEY, key_of(catalyst, groups)), *((each.name, each.value) for each in sums.addends))
        nothing = [each.nothing(catalyst) for each in sums.addends]
        seed = (key_of(catalyst, ()), *nothing) if not groups else ()
        node = Rows(catalyst, child, pairs, seed, is_weighted=False).node()
        key = struct_of(node, [KEY])
        types = (
            (KEY, node.columns.ddl_of(KEY)),
            (ROWS, "bigint"),
            *((each.name, each.kind.ddl) for each in sums.addends),
        )
        parts = {each.name: each.part for each in sums.addends}
        if groups and not child.weighted:
            parts = sums.counted(parts)
        partial = PartialNode(Columns(types), node, (KEY,), Cut(), parts)
        fields = [each.field for each in sums.addends]
        aggregated = sums.aggregated(appends=child.appends)
        process = Totals(key, fields, [each.counted for each in sums.addends[1:]], aggregated, is_whole=not groups)
        result = StructType((*key.fields, *(Field(each.name, each.kind) for each in sums.addends[1:])))
        group = f"totals-{hash_of(groups_meaning)[:6]}"
        uid = f"{group}-{hash_of(meaning)[:6]}"
        what = f"aggregate by {names_of(groups)}" if groups else "aggregate of all rows"
        operator = ops.operator(Keyed(partial, (KEY,)), uid, process, result, what, group=group)
        many = f"as many groups as there are different {names_of(groups)}" if groups else "one group"
        bound = FOR_EVER if groups else "one group"
        return operator, Part(operator.uid, what, f"a few numbers for each group: {many}", "", bound=bound)

    node, part = ops.once(meaning, make, child)
    part = kept_for(node, part, child.ttl_ms if groups else None)
    key = catalyst.attribute(node.columns.ddl_of(KEY), KEY, catalyst.new_id())
    stored, step = sums.finish(ops, key, groups)
    output = catalyst.items(plan.output())
    appends = child.appends and not sums.columns and bool(groups)
    columns = ops.results_of(output, results, child, groups_meaning)
    return made_of(
        child, node=node, names=(KEY, *stored), attributes=(key, *stored.values()), output=output, columns=columns,
        meaning=groups_meaning, part=part, appends=appends, steps=(step,),
    )  # fmt: skip


def _distinct(
    ops: Operators, child: Relation, groups: Sequence[Attribute], results: Sequence[Expression]
) -> tuple[Relation, list[Expression]] | None:
    """Return distinct rows, and aggregates of these, if all functions are of the same distinct values."""
    catalyst = ops.catalyst
    functions = [
        each for result in results for each in catalyst.parts(result) if kind_of(each) == "AggregateExpression"
    ]
    if not functions or not all(each.isDistinct() and not each.filter().isDefined() for each in functions):
        return None
    values = catalyst.items(functions[0].aggregateFunction().children())
    texts = [each.canonicalized().toString() for each in values]
    if any(
        [part.canonicalized().toString() for part in catalyst.items(each.aggregateFunction().children())] != texts
        for each in functions
    ):
        return None
    if not all(kind_of(each) == "AttributeReference" and is_key(each) for each in values):
        return None
    columns = list({id_of(each): each for each in (*groups, *values)}.values())
    distinct = _summed(ops, catalyst.aggregation(columns, columns), child, columns, columns)
    assert distinct is not None
    return distinct, [catalyst.replaced(each, catalyst.plain_aggregate) for each in results]
