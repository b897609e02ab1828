"""Makes the nodes of operators with state; equal ones are made once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from strandline.plan.columns import HIDDEN_TYPES, Columns, quoted
from strandline.plan.graph import Keyed, Node, OperatorNode, SourceNode, sources_of
from strandline.plan.operators import make_operator
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, id_of
from strandline.spark.views.keys import KEY, check_type
from strandline.spark.views.meaning import Meanings, short
from strandline.spark.views.relations import Part, Relation, Rows, unlike, weight_id
from strandline.types.datatypes import Field, StructType

ONE = "one"
"""A column for rows that have no other."""


@dataclass
class Operators:
    """Makes operators. Equal ones are made once."""

    catalyst: Catalyst
    meanings: Meanings
    source: SourceNode
    """A source of the query."""
    is_final: bool = True
    """Whether results of windows come once, when the watermark closes them."""

    @cached_property
    def weight(self) -> Attribute:
        """The column WEIGHT in plans."""
        return self.as_weight("1L").toAttribute()

    def as_weight(self, value: Expression | str) -> Expression:
        """Return a value, or SQL, as the column WEIGHT."""
        catalyst = self.catalyst
        return catalyst.alias(catalyst.sql(value) if isinstance(value, str) else value, WEIGHT, weight_id(catalyst))

    def hidden_of(self, names: Sequence[str]) -> tuple[Attribute, ...]:
        """Return hidden columns in plans."""
        catalyst = self.catalyst
        return tuple(catalyst.attribute(HIDDEN_TYPES[name], name, catalyst.id_for(name)) for name in names)

    def carried(self, rows: Relation) -> list[Attribute]:
        """Return the columns that each step behind some rows keeps: weights and hidden columns."""
        return [self.weight, *rows.hidden]

    def filtered(self, rows: Relation, condition: Expression) -> Relation:
        return rows.then(
            lambda plan: self.catalyst.filter(condition, plan),
            rows.output,
            f"Filter[{self.meanings.of(condition, rows.columns)}]",
            unique=rows.unique,
        )

    def rows(
        self,
        rows: Relation,
        columns: Sequence[Attribute],
        key: Expression,
        *,
        seeded: bool = False,
        is_weighted: bool = True,
    ) -> tuple[Node, tuple[str, ...]]:
        """Return the node of rows with their key, and the names of the columns; rows without any get one."""
        catalyst, names = self.catalyst, unlike(self.names(rows, columns) or [ONE])
        values = list(columns) or [catalyst.sql("true")]
        pairs = ((KEY, key), *zip(names, values, strict=True))
        seed = (key, *map(catalyst.null_like, columns)) if columns else (key, catalyst.sql("true"))
        node = Rows(catalyst, rows, pairs, seed if seeded else (), is_weighted=is_weighted).node()
        return node, names

    def names(self, rows: Relation, columns: Sequence[Attribute]) -> list[str]:
        """Return the names that columns have in a state; refuse those of types that no state has."""
        for each in columns:
            check_type(each)
        return [_name_of(rows.columns[id_of(each)], at) for at, each in enumerate(columns)]

    def operator(self, keyed: Keyed, uid: str, process: Any, result: StructType, name: str) -> OperatorNode:
        ddl = ", ".join([*(f"{quoted(each.name)} {each.type.ddl}" for each in result.fields), f"{WEIGHT} bigint"])
        order = keyed.order_by
        operator = make_operator(
            keyed.node, uid, Columns.of(ddl).ddl, process=process, name=name, keys=(KEY,), order_by=order
        )
        return self.unlisted(operator)

    def unlisted(self, operator: OperatorNode) -> OperatorNode:
        """Take an operator off its sources' lists: a view that no job runs is no mistake, but perhaps explained."""
        for source in sources_of(operator):
            source.operators.remove(operator)
        return operator

    def once(self, meaning: str, make: Callable[[], tuple[Any, ...]], *above: Relation) -> tuple[Any, ...]:
        """Return what `make` returns for rows of this meaning, made once."""
        leaves = leaves_of(*above)
        _, first = min(leaves, key=lambda leaf: leaf[0], default=("", self.source))
        # With the source, as what is made refers to it: together they can be freed.
        known = sources_of(first)[0].views
        if (meaning, leaves) not in known:
            known[meaning, leaves] = make()
        return known[meaning, leaves]


def _name_of(meaning: str, at: int) -> str:
    """Return a column's name in a state: that of the table's column, whatever the query calls it."""
    match = re.fullmatch(r"\w+\.(\w+)", meaning)
    return match[1] if match else f"c{at}"


def struct_of(node: Node, names: Sequence[str]) -> StructType:
    """Return some columns of a node with their types."""
    return StructType(tuple(Field(name, node.columns.type_of(name)) for name in names))


def columns_of(columns: Sequence[Attribute], meaning: str) -> dict[int, str]:
    return {id_of(each): short(f"{at}@{meaning}") for at, each in enumerate(columns)}


def parts_of(*above: Relation, part: Part | None = None, appends: bool = True) -> tuple[Part, ...]:
    parts = dict.fromkeys(each for relation in above for each in relation.parts)
    if part is not None:
        parts[replace(part, gives="rows that stay" if appends else "changes")] = None
    return tuple(parts)


def leaves_of(*above: Relation) -> frozenset[tuple[str, Node]]:
    return frozenset().union(*(relation.leaves for relation in above))


def names_of(columns: Sequence[Expression]) -> str:
    return ", ".join(each.sql() for each in columns)


def hash_of(meaning: str) -> str:
    return hashlib.sha256(meaning.encode()).hexdigest()[:12]
