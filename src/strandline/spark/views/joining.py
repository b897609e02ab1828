"""Joins of two relations, as nodes of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.core.errors import ConfigurationError
from strandline.plan.graph import Node
from strandline.runtime.operators.views.joins import PAIRED, How, Joining
from strandline.spark.views.catalyst import Attribute, Expression, id_of, kind_of
from strandline.spark.views.meaning import short
from strandline.spark.views.nearjoins import near_join, ttl_join
from strandline.spark.views.operators import Operators, columns_of, hash_of, kept_for, made_of, ttl_of
from strandline.spark.views.pairs import Inputs, keeps_alone, keyed, paired, with_rest
from strandline.spark.views.relations import Part, Relation

_HOWS: Mapping[str, How] = {
    "Inner": "inner", "Cross": "inner", "LeftOuter": "left", "RightOuter": "right", "FullOuter": "full",
    "LeftSemi": "semi", "LeftAnti": "anti", "ExistenceJoin": "existence",
}  # fmt: skip


def any_join(ops: Operators, kind: str, inputs: Inputs, rest: Expression | None, exists: Attribute | None) -> Relation:
    """Join relations by keys that must be equal, and the rest of a condition, which Spark evaluates of pairs."""
    if kind not in _HOWS:
        raise ConfigurationError(f"the query has a join that Spark calls {kind}: it cannot be kept up to date")
    how = _HOWS[kind]
    for bounded_join in (near_join, ttl_join):
        joined = bounded_join(ops, how, inputs, rest, exists)
        if joined is not None:
            return joined
    return with_rest(ops, _ByKeys(ops, inputs), how, inputs, rest, exists)


@dataclass(frozen=True)
class _ByKeys:
    """A join that keeps all rows."""

    ops: Operators
    inputs: Inputs

    def joined(self, how: How, exists: Attribute | None = None) -> Relation:
        return join(self.ops, how, self.inputs, exists)

    def matched(self, how: How, rows: Relation, pairs: Relation, exists: Attribute | None = None) -> Relation:
        return join(self.ops, how, Inputs(rows, rows.output, pairs, rows.output), exists, null_safe=True)


def join(
    ops: Operators, how: How, inputs: Inputs, exists: Attribute | None = None, *, null_safe: bool = False
) -> Relation:
    """Join relations by equal keys. Null equals nothing, unless `null_safe`: then it equals null."""
    is_paired, left, right = how in PAIRED, inputs.left, inputs.right
    sides = (left, inputs.left_keys), (right, inputs.right_keys)
    texts = [", ".join(ops.meanings.of(key, rows.columns) for key in keys) for rows, keys in sides]
    held = right.meaning if is_paired else right.rows
    meaning = short(f"join {how} {null_safe}[{texts[0]}|{texts[1]}]({left.meaning}|{held})")
    output = [*left.output, *(right.output if is_paired else ()), *([exists] if exists is not None else [])]

    def make() -> tuple[Node, tuple[str, ...], Part]:
        halves = []
        for number, (rows, keys) in enumerate(sides):
            rows, key = keyed(ops, rows, keys, number, keeps_alone(how), null_safe=null_safe)
            columns = rows.output if is_paired or number == 0 else ()
            halves.append(ops.rows(rows, columns, key, is_weighted=rows.weighted))
        pairs = paired(halves, (left, right)[: 1 + is_paired], exists)
        process = Joining(how, *pairs.kinds, pairs.result)
        operator = ops.operator(pairs.rows, f"join-{hash_of(meaning)}", process, pairs.result, f"{how} join")
        by = f"equal {texts[0]}" if inputs.left_keys else "no key: one partition does all of it"
        part = Part(operator.uid, f"{how} join by {by}", "the rows of both sides", "")
        return operator, pairs.read, part

    node, names, part = ops.once(meaning, make, left, right)
    part = kept_for(node, part, ttl_of(left, right))
    appends = left.appends and right.appends and how in ("inner", "semi")
    return made_of(
        left, right, node=node, names=names, output=output, meaning=meaning, part=part, appends=appends,
        columns=_columns(left, right, output, meaning) if how == "inner" else None,
        unique=_unique_pairs(how, inputs), is_netted=True,
    )  # fmt: skip


def _columns(left: Relation, right: Relation, output: Sequence[Attribute], meaning: str) -> Mapping[int, str]:
    """Say what the columns of pairs mean: those of the right have places where both sides are of one table."""
    known = {left.columns[id_of(each)] for each in left.output}
    new = columns_of(output, meaning)
    same = {id_of(each): new[id_of(each)] for each in right.output if right.columns[id_of(each)] in known}
    return {**left.columns, **right.columns, **same}


def _unique_pairs(how: How, inputs: Inputs) -> frozenset[int] | None:
    """Return columns that identify a row of a join."""
    left, right = inputs.left, inputs.right
    if how not in PAIRED:
        return left.unique
    if how in ("inner", "left") and left.unique is not None and _covers(inputs.right_keys, right):
        return left.unique
    if how in ("inner", "right") and right.unique is not None and _covers(inputs.left_keys, left):
        return right.unique
    if left.unique is None or right.unique is None or how != "inner":
        return None
    return left.unique | right.unique


def _covers(keys: Sequence[Expression], rows: Relation) -> bool:
    ids = {id_of(key) for key in keys if kind_of(key) == "AttributeReference"}
    return rows.unique is not None and rows.unique <= ids
