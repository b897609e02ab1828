"""Unions of relations, as nodes of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.plan.graph import Node
from strandline.plan.unions import union
from strandline.spark.views.catalyst import Attribute, Expression
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import ONE, Operators, made_of
from strandline.spark.views.relations import Relation, Rows, once, unlike


def united(
    ops: Operators, parts: Sequence[tuple[Relation, Sequence[Expression]]], output: Sequence[Attribute]
) -> Relation:
    texts = [
        short(f"{', '.join(ops.meanings.of(each, rows.columns) for each in columns)}({rows.meaning})")
        for rows, columns in parts
    ]
    meaning = short(f"union[{' | '.join(texts)}]")

    def make() -> tuple[Node, tuple[str, ...], None]:
        names = unlike([each.name() for each in output] or [ONE])
        nodes = []
        for rows, columns in parts:
            values = [ops.catalyst.cast_to(value, to) for value, to in zip(columns, output, strict=True)]
            pairs = list(zip(names, values or [ops.catalyst.sql("true")], strict=True))
            nodes.append(Rows(ops.catalyst, rows, tuple(pairs)).node())
        return union(nodes[0], nodes[1:]), names, None

    relations = [rows for rows, _ in parts]
    node, names, _ = ops.once(meaning, make, *relations)
    return made_of(
        *relations, node=node, names=names[: len(output)], attributes=output, output=once(output), meaning=meaning,
        appends=all(rows.appends for rows in relations),
    )  # fmt: skip
