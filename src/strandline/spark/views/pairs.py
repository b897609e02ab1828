"""The parts that all joins share: keyed inputs, the columns of pairs, and conditions beside equal keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.core.errors import ConfigurationError
from strandline.plan.graph import Keyed, Node
from strandline.plan.joins import connect
from strandline.runtime.operators.views.joins import How
from strandline.spark.views.catalyst import Attribute, Expression
from strandline.spark.views.keys import KEY, join_key_of
from strandline.spark.views.operators import Operators, struct_of
from strandline.spark.views.relations import Relation, unlike
from strandline.spark.views.unions import united
from strandline.types.datatypes import BooleanType, Field, StructType


@dataclass(frozen=True)
class Inputs:
    """Two relations, and the keys by which they are joined."""

    left: Relation
    left_keys: Sequence[Expression]
    right: Relation
    right_keys: Sequence[Expression]


class Join(Protocol):
    """A kind of join by equal keys."""

    def joined(self, how: How, exists: Attribute | None = None) -> Relation:
        """Return the join of its inputs."""

    def matched(self, how: How, rows: Relation, pairs: Relation, exists: Attribute | None = None) -> Relation:
        """Return the join of rows with those that pairs of its inputs have."""


def with_rest(
    ops: Operators, join: Join, how: How, inputs: Inputs, rest: Expression | None, exists: Attribute | None
) -> Relation:
    """Return a join with the rest of its condition, which Spark evaluates of pairs."""
    if rest is None or how == "inner":
        joined = join.joined(how, exists)
        return joined if rest is None else ops.filtered(joined, rest)
    if ops.pin:
        raise ConfigurationError(
            f"uid '{ops.pin}' is for one operator, and an outer join with a condition beside equal values is several",
            hint="leave uid out, or have a view with the join's equal values alone",
        )
    # The rows that have a partner are those of the pairs: all others are those without.
    left, right, pairs = inputs.left, inputs.right, ops.filtered(join.joined("inner"), rest)
    if how in ("semi", "anti", "existence"):
        return join.matched(how, left, pairs, exists)
    parts = [(pairs, [*left.output, *right.output])]
    if how in ("left", "full"):
        alone = join.matched("anti", left, pairs)
        parts.append((alone, [*alone.output, *map(ops.catalyst.null_like, right.output)]))
    if how in ("right", "full"):
        alone = join.matched("anti", right, pairs)
        parts.append((alone, [*map(ops.catalyst.null_like, left.output), *alone.output]))
    return united(ops, parts, [*left.output, *right.output])


def keeps_alone(how: How) -> tuple[bool, bool]:
    """Return for each side whether the result has its rows without a partner."""
    return how in ("left", "full", "anti", "existence"), how in ("right", "full")


def keyed(
    ops: Operators, rows: Relation, keys: Sequence[Expression], side: int, keeps: tuple[bool, bool], *, null_safe: bool
) -> tuple[Relation, Expression]:
    """Return a side's rows without those that have no partner and are not kept, and their key.

    Null equals nothing, unless `null_safe`: then it equals null.
    """
    catalyst = ops.catalyst
    if not null_safe and not keeps[side]:
        for key in keys:
            rows = ops.filtered(rows, catalyst.not_null(key)) if key.nullable() else rows
    # Where neither side keeps its rows without a partner, no key has a null.
    number = None if null_safe or not any(keeps) else (side + 1) * keeps[side]
    return rows, join_key_of(catalyst, keys, number, has_nulls=null_safe or any(keeps))


@dataclass(frozen=True)
class Paired:
    """The input of an operator on pairs, and its columns."""

    rows: Keyed
    kinds: tuple[StructType, StructType]
    """The columns of each side."""
    result: StructType
    read: tuple[str, ...]
    """The columns of the result that queries read: a side without columns has one that they do not."""


def paired(
    halves: Sequence[tuple[Node, tuple[str, ...]]], sides: Sequence[Relation], exists: Attribute | None = None
) -> Paired:
    """Pair the nodes of both sides, each with the names of its columns; `sides` are those that the result has."""
    left, right = (struct_of(node, names) for node, names in halves)
    fields = [each for kind in (left, right)[: len(sides)] for each in kind.fields]
    unread = {sum(len(names) for _, names in halves[:at]) for at, side in enumerate(sides) if not side.output}
    if exists is not None:
        fields.append(Field("exists", BooleanType()))
    names = unlike([each.name for each in fields])
    result = StructType(tuple(Field(name, each.type) for name, each in zip(names, fields, strict=True)))
    rows = connect(Keyed(halves[0][0], (KEY,)), Keyed(halves[1][0], (KEY,)), keys_once=True)
    return Paired(rows, (left, right), result, tuple(name for at, name in enumerate(names) if at not in unread))
