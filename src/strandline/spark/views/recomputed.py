"""Nodes around what Spark computes anew of each key that changed: most aggregates, window functions, limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from strandline.plan.graph import Keyed, Node
from strandline.runtime.operators.views.recomputing import Collecting, Comparing
from strandline.spark.views.catalyst import Attribute, Expression, Plan, id_of, kind_of, unaliased
from strandline.spark.views.keys import KEY, key_of
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import (
    Operators,
    columns_of,
    hash_of,
    kept_for,
    made_of,
    names_of,
    parts_of,
    struct_of,
)
from strandline.spark.views.relations import Part, Relation, Static, once
from strandline.types.datatypes import StructType

_NUMBER = "__strandline_number"


def computed_anew(
    ops: Operators, plan: Plan, child: Relation, groups: Sequence[Attribute], results: Sequence[Expression]
) -> Relation:
    """Return the results of an aggregation."""
    catalyst = ops.catalyst
    sessions = [each for each in groups if each.metadata().contains("spark.sessionWindow")] if groups else []
    keys = [each for each in groups if each not in sessions]
    is_row = catalyst.equal_to(ops.weight, catalyst.sql("1L"))

    def only_rows(expression: Expression) -> Expression | None:
        return catalyst.filtered(expression, is_row) if kind_of(expression) == "AggregateExpression" else None

    computed = [catalyst.replaced(each, only_rows) for each in results]
    weight = ops.as_weight(catalyst.max(ops.weight) if keys else "1L")

    def fragment(rows: Plan, key: Attribute) -> Plan:
        return catalyst.aggregate(plan, [*groups, key], [*computed, key, weight], rows)

    text = ", ".join(ops.meanings.of(each, child.columns) for each in (*groups, *results))
    output = catalyst.items(plan.output())
    meaning = short(f"aggregate[{len(groups)}: {text}]({child.meaning})")
    what = f"aggregate by {names_of(groups)}" if groups else "aggregate of all rows"
    return _recomputed(ops, child, keys, output, fragment, meaning, what, seeded=not groups)


def window(ops: Operators, plan: Plan, child: Relation) -> Relation:
    """Return the rows with the results of window functions."""
    catalyst = ops.catalyst
    keys = catalyst.items(plan.partitionSpec())
    text = ops.meanings.of_all(plan, child.columns)
    output = catalyst.items(plan.output())

    def fragment(rows: Plan, key: Attribute) -> Plan:
        del key
        return catalyst.with_children(plan, [rows])

    what = f"window functions by {names_of(keys)}" if keys else "window functions over all rows"
    result = _recomputed(ops, child, keys, output, fragment, short(f"window[{text}]({child.meaning})"), what)
    # The rows' own columns mean what they meant.
    columns = {**result.columns, **{id_of(each): child.columns[id_of(each)] for each in child.output}}
    return replace(result, unique=child.unique or _numbered_by(ops, plan, keys), columns=columns)


def _numbered_by(ops: Operators, plan: Plan, keys: Sequence[Expression]) -> frozenset[int] | None:
    """Return the columns of a row_number() and what it counts within, which identify a row."""
    for each in ops.catalyst.items(plan.windowExpressions()):
        is_number = (
            kind_of(unaliased(each)) == "WindowExpression" and kind_of(unaliased(each).windowFunction()) == "RowNumber"
        )
        if is_number and all(kind_of(key) == "AttributeReference" for key in keys):
            return frozenset({id_of(each), *map(id_of, keys)})
    return None


def limit(ops: Operators, child: Relation, order: Sequence[Expression], start: int, end: int | None) -> Relation:
    """Return the rows from one place in an order up to another."""
    catalyst = ops.catalyst
    text = ", ".join(ops.meanings.of(each, child.columns) for each in order)

    def fragment(rows: Plan, key: Attribute) -> Plan:
        numbered = catalyst.numbered(_NUMBER, [key], order or [key], rows)
        rank = numbered.output().last()
        wanted = catalyst.within(rank, start + 1, end)
        first = catalyst.equal_to(rank, catalyst.sql("1"))
        kept = catalyst.filter(catalyst.either(wanted, first), numbered)
        weight = ops.as_weight(catalyst.if_(wanted, ops.weight, catalyst.sql("0L")))
        return catalyst.project([*child.output, key, weight], kept)

    what = f"rows {start + 1} to {'the last' if end is None else end} in order"
    meaning = short(f"limit[{text}: {start}, {end}]({child.meaning})")
    result = _recomputed(ops, child, [], child.output, fragment, meaning, what)
    return replace(result, unique=child.unique, columns=child.columns)


def constant(ops: Operators, table: Static) -> Relation:
    """Return the rows of a table: all of them come in the first epoch, and then what has changed in it."""
    output = once(ops.catalyst.items(table.plan.output()))
    rows = Relation(
        ops.source,
        (),
        (),
        output,
        columns_of(output, table.meaning),
        short(f"table@{ops.source.name}({table.meaning})"),
        steps=(lambda _: ops.catalyst.project([*output, ops.as_weight("1L")], table.plan),),
        weighted=False,
    )
    return replace(_compared(ops, rows, (), rows.meaning), appends=table.is_literal)


def _recomputed(
    ops: Operators,
    child: Relation,
    keys: Sequence[Expression],
    output: Sequence[Attribute],
    fragment: Callable[[Plan, Attribute], Plan],
    meaning: str,
    what: str,
    *,
    seeded: bool = False,
) -> Relation:
    """Collect rows by key, let Spark compute all results of a key that changed, and compare them with the last."""
    catalyst = ops.catalyst
    by = ", ".join(ops.meanings.of(key, child.columns) for key in keys)
    held = ", ".join(child.columns[id_of(each)] for each in child.output)
    collected = short(f"rows{'+' if seeded else ''} by[{by}; {held}]({child.meaning})")

    def collect() -> tuple[Node, tuple[str, ...], Part]:
        node, names = ops.rows(child, child.output, key_of(catalyst, keys), seeded=seeded)
        rows, key = struct_of(node, names), struct_of(node, [KEY])
        uid, what_rows = f"rows-{hash_of(collected)}", f"rows by {names_of(keys)}" if keys else "all rows"
        process = Collecting(key, rows)
        result = StructType((*key.fields, *rows.fields))
        operator = ops.operator(Keyed(node, (KEY,)), uid, process, result, "rows", suffix="-rows")
        return (
            operator,
            names,
            Part(operator.uid, what_rows, "all rows", ""),
        )

    node, names, part = ops.once(collected, collect, child)
    ttl_ms = child.ttl_ms if keys else None
    part = kept_for(node, part, ttl_ms)
    key_id = catalyst.new_id()
    key = catalyst.attribute(node.columns.ddl_of(KEY), KEY, key_id)
    rows = made_of(
        child, node=node, names=(KEY, *names[: len(child.output)]), attributes=(key, *child.output),
        output=once(output), columns=columns_of([*child.output, *output], meaning), appends=True,
        meaning=short(f"computed({meaning})"), parts=parts_of(child, part=part, appends=False),
        steps=(lambda plan: fragment(plan, key),), ttl_ms=ttl_ms,
    )  # fmt: skip
    return _compared(ops, rows, [key], meaning, what, f"results-{hash_of(collected)[:6]}")


def _compared(
    ops: Operators,
    rows: Relation,
    key: Sequence[Attribute],
    meaning: str,
    what: str = "a table",
    beginning: str = "results",
) -> Relation:
    """Return the changes of rows of which each epoch gives all that a key has now."""

    def make() -> tuple[Node, tuple[str, ...], Part]:
        by = key[0] if key else key_of(ops.catalyst, [])
        node, names = ops.rows(rows, rows.output, by)
        uid = f"{beginning}-{hash_of(meaning)[:6]}"
        kind = struct_of(node, names)
        process = Comparing(struct_of(node, [KEY]), kind)
        operator = ops.operator(Keyed(node, (KEY,)), uid, process, kind, what)
        return operator, names, Part(operator.uid, what, "the last results of each key", "")

    node, names, part = ops.once(short(f"results {meaning}"), make, rows)
    part = kept_for(node, part, rows.ttl_ms)
    return made_of(
        rows, node=node, names=names[: len(rows.output)], output=rows.output, meaning=meaning, part=part, appends=False,
        is_netted=True,
    )  # fmt: skip
