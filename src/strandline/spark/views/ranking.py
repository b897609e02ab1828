"""The first rows of each key in an order, as nodes of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strandline.plan.graph import Keyed, Node
from strandline.runtime.operators.views.top import Numbering, Order, Top
from strandline.spark.views.catalyst import Attribute, Expression, Plan, id_of, kind_of, unaliased
from strandline.spark.views.keys import KEY, is_key, key_of
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import Operators, hash_of, kept_for, made_of, names_of, struct_of
from strandline.spark.views.relations import FOR_EVER, Part, Relation, Rows, unlike

_NUMBERINGS: dict[str, Numbering] = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}


def top_window(ops: Operators, plan: Plan, child: Relation) -> Relation | None:
    """Return the first rows of a window's partitions with their numbers; None if the window function is another one.

    Spark's optimizer says how many rows a filter behind the window leaves.
    """
    below = plan.child()
    functions = ops.catalyst.items(plan.windowExpressions())
    if len(functions) != 1 or kind_of(unaliased(functions[0])) != "WindowExpression":
        return None
    function = kind_of(unaliased(functions[0]).windowFunction())
    if function not in _NUMBERINGS:
        return None
    count = int(below.limit()) if kind_of(below) == "WindowGroupLimit" else None
    keys, order = ops.catalyst.items(plan.partitionSpec()), ops.catalyst.items(plan.orderSpec())
    return top(ops, child, keys, order, count, _NUMBERINGS[function], functions[0].toAttribute())


def top(
    ops: Operators,
    child: Relation,
    keys: Sequence[Expression],
    order: Sequence[Expression],
    count: int | None,
    numbering: Numbering,
    number: Attribute,
) -> Relation | None:
    """Return the first rows of each key in an order; None if keepers cannot sort them as Spark does."""
    catalyst = ops.catalyst
    if not all(is_key(each.child()) for each in order):
        return None
    by = ", ".join(ops.meanings.of(key, child.columns) for key in keys)
    sorted_by = ", ".join(ops.meanings.of(each, child.columns) for each in order)
    held = ", ".join(child.columns[id_of(each)] for each in child.output)
    meaning = short(f"top {count} {numbering}[{by}; {sorted_by}; {held}]({child.meaning})")

    def make() -> tuple[Node, tuple[str, ...], Part]:
        names = ops.names(child, child.output)
        places = {id_of(each): at for at, each in enumerate(child.output)}
        values = list(child.output)
        orders = []
        for each in order:
            expression = each.child()
            at = places.get(id_of(expression)) if kind_of(expression) == "AttributeReference" else None
            if at is None:
                at = len(values)
                values.append(expression)
            directions = kind_of(each.direction()), kind_of(each.nullOrdering())
            orders.append(Order(at, directions[0] == "Descending", directions[1] == "NullsLast"))
        unlike_names = unlike([*names, *(f"order_{at}" for at in range(len(names), len(values)))])
        pairs = ((KEY, key_of(catalyst, keys)), *zip(unlike_names, values, strict=True))
        node = Rows(catalyst, child, pairs).node()
        kind, uid = struct_of(node, unlike_names), f"top-{hash_of(meaning)}"
        name = unlike([*unlike_names, "number"])[-1]
        is_bounded = child.appends and count is not None
        process = Top(struct_of(node, [KEY]), kind, orders, count, numbering, name, appends=is_bounded)
        result = process.result.columns
        first = "rows" if count is None else f"the first {count} rows"
        by_key = f" by {names_of(keys)}" if keys else ""
        what = f"{first}{by_key} in order of {names_of(order)}"
        operator = ops.operator(Keyed(node, (KEY,)), uid, process, result, what)
        kept = "these rows" if is_bounded else "all rows, as one may move up"
        bound = FOR_EVER if keys or not is_bounded else "their number"
        part = Part(operator.uid, what, kept, "", bound=bound)
        return operator, (*unlike_names[: len(child.output)], result.names[-1]), part

    node, names, part = ops.once(meaning, make, child)
    part = kept_for(node, part, child.ttl_ms if keys else None)
    columns = {**child.columns, id_of(number): short(f"number@{meaning}")}
    unique = child.unique
    if unique is None and numbering == "row_number" and all(kind_of(key) == "AttributeReference" for key in keys):
        numbered = () if count == 1 else (id_of(number),)
        unique = frozenset({*numbered, *map(id_of, keys)})
    first = made_of(
        child, node=node, names=names, output=(*child.output, number), columns=columns, meaning=meaning, part=part,
        appends=False, unique=unique, is_netted=True,
    )  # fmt: skip
    if count != 1:
        return first
    one = [*child.output, catalyst.alias(catalyst.sql("1"), number.name(), number.exprId()), *ops.carried(first)]
    return replace(
        first,
        names=names[:-1],
        attributes=child.output,
        steps=(lambda rows: catalyst.project(one, rows),),
    )
