"""Joins of two streams with watermarks whose condition bounds how far apart the times of two rows are.

`b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR` does, and so do equal times, equal windows, and equal starts of windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.plan.graph import Keyed, Node
from strandline.plan.joins import connect
from strandline.runtime.operators.views.joins import PAIRED, How
from strandline.runtime.operators.views.near import Near, NearJoining
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression
from strandline.spark.views.intervals import duration
from strandline.spark.views.keys import KEY, join_key_of
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import ONE, Operators, columns_of, hash_of, leaves_of, parts_of, struct_of
from strandline.spark.views.relations import Part, Relation, Rows, unlike
from strandline.spark.views.times import Bound, Moved, TimeReader, behind
from strandline.spark.views.unions import united
from strandline.types.datatypes import BooleanType, Field, StructType

_AT = "__strandline_at"


@dataclass(frozen=True)
class Sides:
    """The rows, keys and time columns of a join."""

    left: Relation
    left_keys: Sequence[Expression]
    left_at: Moved
    right: Relation
    right_keys: Sequence[Expression]
    right_at: Moved

    @property
    def lags_us(self) -> tuple[int, int]:
        """By how much the times may be behind the watermark."""
        return self.left.times[self.left_at.column], self.right.times[self.right_at.column]


def near_join(
    ops: Operators,
    how: How,
    left: Relation,
    left_keys: Sequence[Expression],
    right: Relation,
    right_keys: Sequence[Expression],
    rest: Expression | None,
    exists: Attribute | None,
) -> Relation | None:
    """Join relations of which a row can have partners for some time only; None if there is no such time."""
    if not (left.times and right.times and left.appends and right.appends):
        return None
    catalyst = ops.catalyst
    conditions = [] if rest is None else catalyst.conjuncts(rest)
    pairs = zip(left_keys, right_keys, strict=True)
    bounds = _bounds(catalyst, left, right, [*(catalyst.equal_to(*pair) for pair in pairs), *conditions])
    found = _nearest(bounds, left, right)
    if found is None:
        return None
    left_at, right_at, lower, upper, used = found
    sides = Sides(left, left_keys, left_at, right, right_keys, right_at)
    near = Near(lower, upper, sides.lags_us)
    rest = None
    for each in conditions:
        if not any(each is bound.condition and bound.is_exact for bound in used):
            rest = catalyst.both(rest, each)
    if rest is None or how == "inner":
        joined = _joined(ops, how, sides, near, exists)
        return joined if rest is None else ops.filtered(joined, rest)
    # The rows that have a partner are those of the pairs: all others are those without.
    matched = ops.filtered(_joined(ops, "inner", sides, near), rest)
    if how in ("semi", "anti", "existence"):
        return _matched(ops, how, left, left_at, matched, exists)
    parts = [(matched, [*left.output, *right.output])]
    if how in ("left", "full"):
        alone = _matched(ops, "anti", left, left_at, matched)
        parts.append((alone, [*alone.output, *map(catalyst.null_like, right.output)]))
    if how in ("right", "full"):
        alone = _matched(ops, "anti", right, right_at, matched)
        parts.append((alone, [*map(catalyst.null_like, left.output), *alone.output]))
    return united(ops, parts, [*left.output, *right.output])


def _matched(
    ops: Operators, how: How, rows: Relation, at: Moved, pairs: Relation, exists: Attribute | None = None
) -> Relation:
    """Compare rows with those that pairs have: they have the same columns, and so the same time."""
    sides = Sides(rows, rows.output, at, pairs, rows.output, at)
    return _joined(ops, how, sides, Near(0, 0, sides.lags_us), exists, null_safe=True)


# -- bounds


def _bounds(catalyst: Catalyst, left: Relation, right: Relation, conditions: Sequence[Expression]) -> list[Bound]:
    """Return what conditions say of the times of the two sides."""
    reader, times = TimeReader(catalyst), {**left.times, **right.times}
    bounds = [bound for condition in conditions for bound in reader.bounds(condition, times)]
    return [each for each in bounds if (each.first.column in left.times) != (each.second.column in left.times)]


def _nearest(
    bounds: Sequence[Bound], left: Relation, right: Relation
) -> tuple[Moved, Moved, int, int, list[Bound]] | None:
    """Return the two times that are bounded in both directions, how far apart they are, and by which conditions."""
    best = None
    sides = [(each.first, each.second) for each in bounds]
    pairs = {
        (one.column, other.column): (one, other)
        for first, second in sides
        for one, other in ((first, second) if first.column in left.times else (second, first),)
    }
    for left_at, right_at in pairs.values():
        used = [each for each in bounds if {each.first.column, each.second.column} == {left_at.column, right_at.column}]
        # left + by <= right, and right + by <= left.
        lowers = [each.by_us for each in used if each.first.column == left_at.column]
        uppers = [-each.by_us for each in used if each.second.column == left_at.column]
        if lowers and uppers:
            lower = max(lowers)
            # No rows are near if bounds contradict each other: all conditions together say so.
            upper = max(min(uppers), lower)
            cost = upper - lower + left.times[left_at.column] + right.times[right_at.column]
            if best is None or cost < best[0]:
                exact = used if min(uppers) >= lower else []
                best = cost, (left_at, right_at, lower, upper, exact)
    return None if best is None else best[1]


# -- the operator


def _joined(
    ops: Operators, how: How, sides: Sides, near: Near, exists: Attribute | None = None, *, null_safe: bool = False
) -> Relation:
    """Join relations by equal keys and near times."""
    catalyst, is_paired, left, right = ops.catalyst, how in PAIRED, sides.left, sides.right
    halves = ((left, sides.left_keys, sides.left_at.of), (right, sides.right_keys, sides.right_at.of))
    texts = [", ".join(ops.meanings.of(key, rows.columns) for key in (*keys, at)) for rows, keys, at in halves]
    final = ops.is_final
    what = f"near {how} {null_safe} {near} {'final' if final else 'changes'}"
    meaning = short(f"{what}[{texts[0]}|{texts[1]}]({left.meaning}|{right.meaning})")
    output = [*left.output, *(right.output if is_paired else ()), *([exists] if exists is not None else [])]
    keeps_alone = how in ("left", "full", "anti", "existence"), how in ("right", "full")

    def make() -> tuple[Node, tuple[str, ...], Part]:
        nodes: list[tuple[Node, tuple[str, ...]]] = []
        for number, (rows, equal, at) in enumerate(halves):
            if not null_safe and not keeps_alone[number]:
                for key in equal:
                    rows = ops.filtered(rows, catalyst.not_null(key)) if key.nullable() else rows
            key = join_key_of(catalyst, equal, None if null_safe else (number + 1) * keeps_alone[number])
            nodes.append(timed_rows(ops, rows, rows.output if is_paired or number == 0 else (), key, at))
        names = unlike([*nodes[0][1], *(nodes[1][1] if is_paired else ()), *(["exists"] if exists is not None else [])])
        # A side without columns has one that no operator reads.
        unread = {0} if not left.output else set()
        unread |= {len(nodes[0][1])} if is_paired and not right.output else set()
        kinds = [struct_of(node, names_) for node, names_ in nodes]
        fields = [each for kind in kinds[: 1 + is_paired] for each in kind.fields]
        fields += [Field("exists", BooleanType())] if exists is not None else []
        result = StructType(tuple(Field(name, each.type) for name, each in zip(names, fields, strict=True)))
        pairs = connect(Keyed(nodes[0][0], (KEY,)), Keyed(nodes[1][0], (KEY,)))
        process = NearJoining(how, kinds[0], kinds[1], result, near, final=final)
        operator = ops.operator(pairs, f"near-{hash_of(meaning)}", process, result, f"{how} join")
        part = Part(operator.uid, f"{how} join by {_by(texts[0], near)}", _keeps(sides, near), "")
        return operator, tuple(name for at, name in enumerate(names) if at not in unread), part

    node, names, part = ops.once(meaning, make, left, right)
    appends = final or how in ("inner", "semi")
    return Relation(
        node,
        names,
        tuple(output),
        tuple(output),
        columns_of(output, meaning),
        meaning,
        appends=appends,
        unique=None if is_paired else left.unique,
        hidden=ops.hidden_of(node.columns.hidden),
        times=_times(sides, near, is_paired=is_paired),
        leaves=leaves_of(left, right),
        parts=parts_of(left, right, part=part, appends=appends),
    )


def timed_rows(
    ops: Operators, rows: Relation, columns: Sequence[Attribute], key: Expression, at: Expression
) -> tuple[Node, tuple[str, ...]]:
    """Return the node of rows with their key and their time, and the names of the columns."""
    catalyst, names = ops.catalyst, unlike(ops.names(rows, columns) or [ONE])
    values = list(columns) or [catalyst.sql("true")]
    pairs = ((KEY, key), *zip(names, values, strict=True), (_AT, catalyst.call("unix_micros", at)))
    return Rows(catalyst, rows, pairs, is_weighted=False, is_timed=True).node(), names


def _times(sides: Sides, near: Near, *, is_paired: bool) -> dict[tuple[int, int], int]:
    """Return the times of the result: a row comes when the later one of a pair does, or when none can come any more."""
    lags, result = near.lags_us, dict[tuple[int, int], int]()
    waits = max(lags[0], lags[1] + near.upper_us) - lags[0], max(lags[1], lags[0] - near.lower_us) - lags[1]
    for number, rows in enumerate((sides.left, sides.right)[: 1 + is_paired]):
        result |= behind(rows.times, rows.output, waits[number])
    return result


# -- for people


def _by(columns: str, near: Near) -> str:
    """Say which rows are partners."""
    if near.lower_us == near.upper_us == 0:
        return f"equal {columns}"
    ends = [f"{duration(abs(us))} {'before' if us < 0 else 'after'}" for us in (near.lower_us, near.upper_us)]
    return f"equal {columns}, of which the last is from {ends[0]} to {ends[1]}"


def _keeps(sides: Sides, near: Near) -> str:
    """Say how long rows are state."""
    lags = near.lags_us
    ends = [max(0, lag) for lag in (near.upper_us + lags[1], lags[0] - near.lower_us)]
    texts = [f"{duration(us)} after" if us else "as soon as" for us in ends]
    return (
        f"rows of the left side until the watermark is {texts[0]} their {sides.left_at.of.sql()}, "
        f"of the right side until it is {texts[1]} {sides.right_at.of.sql()}"
    )
