"""Makes the nodes of operators with state; equal ones are made once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from strandline.plan.columns import HIDDEN_TYPES, Columns, quoted
from strandline.plan.graph import Keyed, Node, OperatorNode, SourceNode, sources_of
from strandline.plan.operators import make_operator
from strandline.runtime.operators.views.bags import WEIGHT
from strandline.runtime.operators.views.inputs import EpochOperator
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, id_of
from strandline.spark.views.intervals import duration
from strandline.spark.views.keys import KEY, check_type
from strandline.spark.views.meaning import Meanings, short
from strandline.spark.views.relations import Part, Relation, Rows, unlike, weight_id
from strandline.types.datatypes import Field, StructType

YOUNGER = "the promise holds for what is younger"
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
    pin: str = ""
    """The uid that the user gives to the operator that is being made; "" if its meaning gives one."""
    is_pinned: bool = False
    """Whether an operator has the user's uid."""

    @cached_property
    def weight(self) -> Attribute:
        """The column WEIGHT in plans."""
        return self.as_weight("1L").toAttribute()

    def as_weight(self, value: Expression | str) -> Expression:
        """Return a value, or SQL, as the column WEIGHT."""
        catalyst = self.catalyst
        return catalyst.alias(catalyst.sql(value) if isinstance(value, str) else value, WEIGHT, weight_id(catalyst))

    def uid(self, meant: str, suffix: str = "") -> str:
        """Return the uid of an operator: the user's, or the one that its meaning gives."""
        if not self.pin:
            return meant
        return f"{self.pin}{suffix}" if suffix else self.pin

    @contextmanager
    def pinning(self, uid: str) -> Iterator[None]:
        """Give the user's uid to the last operator that is made meanwhile; "" gives none."""
        before, self.pin = self.pin, uid
        try:
            yield
        finally:
            self.pin = before

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
            clause=f"WHERE {condition.sql()}",
        )

    def results_of(
        self, output: Sequence[Attribute], results: Sequence[Expression], child: Relation, groups: str
    ) -> dict[int, str]:
        """Return what the columns of an aggregation mean, each for itself."""
        return {
            id_of(each): short(f"{self.meanings.of(result, child.columns)}@{groups}")
            for each, result in zip(output, results, strict=True)
        }

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

    def operator(
        self,
        keyed: Keyed,
        uid: str,
        process: Any,
        result: StructType,
        name: str,
        *,
        group: str = "",
        suffix: str = "",
    ) -> OperatorNode:
        """Return the node of an operator. `uid` is what its meaning gives, `suffix` is for a user's uid."""
        ddl = ", ".join([*(f"{quoted(each.name)} {each.type.ddl}" for each in result.fields), f"{WEIGHT} bigint"])
        order = keyed.order_by
        operator = make_operator(
            keyed.node, self.uid(uid, suffix), Columns.of(ddl).ddl, process=process, name=name, keys=(KEY,),
            order_by=order, group=group or uid,
        )  # fmt: skip
        return self.unlisted(operator)

    def unlisted(self, operator: OperatorNode) -> OperatorNode:
        """Take an operator off its sources' lists: a view that no job runs is no mistake, but perhaps explained."""
        for source in sources_of(operator):
            source.operators.remove(operator)
        return operator

    def once(self, meaning: str, make: Callable[[], tuple[Any, ...]], *above: Relation) -> tuple[Any, ...]:
        """Return what `make` returns for rows of this meaning, made once."""
        leaves = leaves_of(*above)
        if self.pin:
            meaning, self.is_pinned = f"{self.pin} {meaning}", True
        _, first = min(leaves, key=lambda leaf: leaf[0], default=("", self.source))
        # With the source, as what is made refers to it: together they can be freed.
        known = sources_of(first)[0].views
        if (meaning, leaves) not in known:
            node, *more = make()
            if isinstance(node, OperatorNode):
                node = replace(node, is_changed=not all(rows.appends for rows in above))
            known[meaning, leaves] = node, *more
        return known[meaning, leaves]


def _name_of(meaning: str, at: int) -> str:
    """Return a column's name in a state: that of the table's column, whatever the query calls it."""
    return source_column(meaning) or f"c{at}"


def source_column(meaning: str) -> str:
    """Return the name of the table's column that a column is; "" if it is computed."""
    match = re.fullmatch(r"\w+\.(\w+)", meaning)
    return match[1] if match else ""


def struct_of(node: Node, names: Sequence[str]) -> StructType:
    """Return some columns of a node with their types."""
    return StructType(tuple(Field(name, node.columns.type_of(name)) for name in names))


def columns_of(columns: Sequence[Attribute], meaning: str) -> dict[int, str]:
    return {id_of(each): short(f"{at}@{meaning}") for at, each in enumerate(columns)}


def ttl_of(*above: Relation) -> int | None:
    """Return after how long state of what is made of some rows may be forgotten; rows of no stream do not count."""
    ttls = [relation.ttl_ms for relation in above if relation.leaves]
    known = [each for each in ttls if each is not None]
    return max(known) if known and len(known) == len(ttls) else None


def kept_for(operator: Node, part: Part, ttl_ms: int | None) -> Part:
    """Have an operator forget the state of idle keys. What several views share is kept for the longest of their times.

    Return how one of them describes it.
    """
    process = operator.process if isinstance(operator, OperatorNode) else None
    assert isinstance(process, EpochOperator)
    if not process.is_shared:
        process.keep_for(ttl_ms)
    elif process.ttl_ms is not None:
        process.keep_for(None if ttl_ms is None else max(ttl_ms, process.ttl_ms))
    process.is_shared = True
    if ttl_ms is None:
        return part
    return replace(
        part, bound=f"a key is forgotten after {duration(ttl_ms * 1000)} without a change, by state_ttl: {YOUNGER}"
    )


def parts_of(*above: Relation, part: Part | None = None, appends: bool = True) -> tuple[Part, ...]:
    parts = dict.fromkeys(each for relation in above for each in relation.parts)
    if part is not None:
        reads = [name for relation in above for name, _ in sorted(relation.leaves, key=lambda leaf: leaf[0])]
        reads += [text for each in parts for text in (each.what, *each.reads)]
        reads += [text for relation in above for text in relation.clauses]
        gives = "rows that stay" if appends else "changes"
        parts[replace(part, gives=gives, reads=tuple(dict.fromkeys(reads)))] = None
    return tuple(parts)


def leaves_of(*above: Relation) -> frozenset[tuple[str, Node]]:
    return frozenset().union(*(relation.leaves for relation in above))


def made_of(
    *above: Relation,
    node: Node,
    names: Sequence[str],
    output: Sequence[Attribute],
    meaning: str,
    appends: bool,
    part: Part | None = None,
    attributes: Sequence[Attribute] | None = None,
    columns: Mapping[int, str] | None = None,
    **more: Any,
) -> Relation:
    """Return the rows that a node makes of others. It has the columns `output`, without `attributes`."""
    fields = {"ttl_ms": ttl_of(*above), "parts": parts_of(*above, part=part, appends=appends), **more}
    return Relation(
        node, tuple(names), tuple(output if attributes is None else attributes), tuple(output),
        columns_of(output, meaning) if columns is None else columns, meaning, appends=appends, leaves=leaves_of(*above),
        **fields,
    )  # fmt: skip


def names_of(columns: Sequence[Expression]) -> str:
    return ", ".join(each.sql() for each in columns)


def hash_of(meaning: str) -> str:
    return hashlib.sha256(meaning.encode()).hexdigest()[:12]
