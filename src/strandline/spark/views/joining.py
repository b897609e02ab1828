"""Joins of two relations, as nodes of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from strandline.core.errors import ConfigurationError
from strandline.plan.graph import Keyed, Node
from strandline.plan.joins import connect
from strandline.runtime.operators.views.joins import PAIRED, How, Joining
from strandline.spark.views.catalyst import Attribute, Expression, id_of, kind_of
from strandline.spark.views.keys import KEY, join_key_of
from strandline.spark.views.meaning import short
from strandline.spark.views.nearjoins import near_join, ttl_join
from strandline.spark.views.operators import (
    Operators,
    columns_of,
    hash_of,
    kept_for,
    leaves_of,
    parts_of,
    struct_of,
    ttl_of,
)
from strandline.spark.views.relations import Part, Relation, unlike
from strandline.spark.views.unions import united
from strandline.types.datatypes import BooleanType, Field, StructType

_HOWS: Mapping[str, How] = {
    "Inner": "inner", "Cross": "inner", "LeftOuter": "left", "RightOuter": "right", "FullOuter": "full",
    "LeftSemi": "semi", "LeftAnti": "anti", "ExistenceJoin": "existence",
}  # fmt: skip


def any_join(
    ops: Operators,
    kind: str,
    left: Relation,
    left_keys: Sequence[Expression],
    right: Relation,
    right_keys: Sequence[Expression],
    rest: Expression | None,
    exists: Attribute | None,
) -> Relation:
    """Join relations by keys that must be equal, and the rest of a condition, which Spark evaluates of pairs."""
    if kind not in _HOWS:
        raise ConfigurationError(f"the query has a join that Spark calls {kind}: it cannot be kept up to date")
    how = _HOWS[kind]
    for bounded_join in (near_join, ttl_join):
        joined = bounded_join(ops, how, left, left_keys, right, right_keys, rest, exists)
        if joined is not None:
            return joined
    if rest is None or how == "inner":
        joined = join(ops, how, left, left_keys, right, right_keys, exists)
        return joined if rest is None else ops.filtered(joined, rest)
    if ops.pin:
        raise ConfigurationError(
            f"uid '{ops.pin}' is for one operator, and an outer join with a condition beside equal values is several",
            hint="leave uid out, or have a view with the join's equal values alone",
        )
    # The rows that have a partner are those of the pairs: all others are those without.
    pairs = ops.filtered(join(ops, "inner", left, left_keys, right, right_keys), rest)
    if how in ("semi", "anti", "existence"):
        return _matched(ops, how, left, pairs, exists)
    parts = [(pairs, [*left.output, *right.output])]
    if how in ("left", "full"):
        alone = _matched(ops, "anti", left, pairs)
        parts.append((alone, [*alone.output, *map(ops.catalyst.null_like, right.output)]))
    if how in ("right", "full"):
        alone = _matched(ops, "anti", right, pairs)
        parts.append((alone, [*map(ops.catalyst.null_like, left.output), *alone.output]))
    return replace(united(ops, parts, [*left.output, *right.output]), appends=False)


def _matched(ops: Operators, how: How, rows: Relation, pairs: Relation, exists: Attribute | None = None) -> Relation:
    """Compare rows with those that pairs have."""
    return join(ops, how, rows, rows.output, pairs, rows.output, exists, null_safe=True)


def join(
    ops: Operators,
    how: How,
    left: Relation,
    left_keys: Sequence[Expression],
    right: Relation,
    right_keys: Sequence[Expression],
    exists: Attribute | None = None,
    *,
    null_safe: bool = False,
) -> Relation:
    """Join relations by equal keys. Null equals nothing, unless `null_safe`: then it equals null."""
    catalyst, is_paired = ops.catalyst, how in PAIRED
    texts = [
        ", ".join(ops.meanings.of(key, rows.columns) for key in keys)
        for rows, keys in ((left, left_keys), (right, right_keys))
    ]
    held = right.meaning if is_paired else right.rows
    meaning = short(f"join {how} {null_safe}[{texts[0]}|{texts[1]}]({left.meaning}|{held})")
    output = [*left.output, *(right.output if is_paired else ()), *([exists] if exists is not None else [])]

    def make() -> tuple[Node, tuple[str, ...], Part]:
        outer = how in ("left", "full", "anti", "existence"), how in ("right", "full")
        halves = []
        for number, (rows, keys, is_kept) in enumerate(((left, left_keys, outer[0]), (right, right_keys, outer[1]))):
            if not null_safe and not is_kept:
                for key in keys:
                    rows = ops.filtered(rows, catalyst.not_null(key)) if key.nullable() else rows
            # Where neither side keeps its rows without a partner, no key has a null.
            side = None if null_safe or not any(outer) else (number + 1) * is_kept
            key = join_key_of(catalyst, keys, side, has_nulls=null_safe or any(outer))
            columns = rows.output if is_paired or number == 0 else ()
            halves.append(ops.rows(rows, columns, key, is_weighted=rows.weighted))
        names = unlike(
            [
                *halves[0][1],
                *(halves[1][1] if is_paired else ()),
                *(["exists"] if exists is not None else []),
            ]
        )
        # A side without columns has one that no operator reads.
        unread = {0} if not left.output else set()
        unread |= {len(halves[0][1])} if is_paired and not right.output else set()
        kinds = [struct_of(node, names_) for node, names_ in halves]
        fields = [each for kind in kinds[: 1 + is_paired] for each in kind.fields]
        fields += [Field("exists", BooleanType())] if exists is not None else []
        result = StructType(tuple(Field(name, each.type) for name, each in zip(names, fields, strict=True)))
        pairs = connect(Keyed(halves[0][0], (KEY,)), Keyed(halves[1][0], (KEY,)), keys_once=True)
        process = Joining(how, kinds[0], kinds[1], result)
        operator = ops.operator(pairs, f"join-{hash_of(meaning)}", process, result, f"{how} join")
        by = f"equal {texts[0]}" if left_keys else "no key: one partition does all of it"
        part = Part(operator.uid, f"{how} join by {by}", "the rows of both sides", "")
        return operator, tuple(name for at, name in enumerate(names) if at not in unread), part

    node, names, part = ops.once(meaning, make, left, right)
    part = kept_for(node, part, ttl_of(left, right))
    appends = left.appends and right.appends and how in ("inner", "semi")
    return Relation(
        node,
        names,
        tuple(output),
        tuple(output),
        _columns(left, right, output, meaning) if how == "inner" else columns_of(output, meaning),
        meaning,
        appends=appends,
        unique=_unique_pairs(how, left, left_keys, right, right_keys),
        is_netted=True,
        ttl_ms=ttl_of(left, right),
        leaves=leaves_of(left, right),
        parts=parts_of(left, right, part=part, appends=appends),
    )


def _columns(left: Relation, right: Relation, output: Sequence[Attribute], meaning: str) -> Mapping[int, str]:
    """Say what the columns of pairs mean: those of the right have places where both sides are of one table."""
    known = {left.columns[id_of(each)] for each in left.output}
    new = columns_of(output, meaning)
    same = {id_of(each): new[id_of(each)] for each in right.output if right.columns[id_of(each)] in known}
    return {**left.columns, **right.columns, **same}


def _unique_pairs(
    how: How, left: Relation, left_keys: Sequence[Expression], right: Relation, right_keys: Sequence[Expression]
) -> frozenset[int] | None:
    """Return columns that identify a row of a join."""
    if how not in PAIRED:
        return left.unique
    if how in ("inner", "left") and left.unique is not None and _covers(right_keys, right):
        return left.unique
    if how in ("inner", "right") and right.unique is not None and _covers(left_keys, left):
        return right.unique
    if left.unique is None or right.unique is None or how != "inner":
        return None
    return left.unique | right.unique


def _covers(keys: Sequence[Expression], rows: Relation) -> bool:
    ids = {id_of(key) for key in keys if kind_of(key) == "AttributeReference"}
    return rows.unique is not None and rows.unique <= ids
