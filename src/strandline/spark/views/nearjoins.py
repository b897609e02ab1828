"""Joins of two streams with watermarks whose condition bounds how far apart the times of two rows are.

`b.at BETWEEN a.at AND a.at + INTERVAL 1 HOUR` does, and so do equal times, equal windows, and equal starts of windows.
Joins of streams with `state_ttl` are the same, by the times at which rows come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.plan.graph import Node
from strandline.runtime.operators.views.joins import PAIRED, How
from strandline.runtime.operators.views.near import Near, NearJoining
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression
from strandline.spark.views.intervals import duration
from strandline.spark.views.keys import KEY
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import ONE, YOUNGER, Operators, hash_of, made_of
from strandline.spark.views.pairs import Inputs, keeps_alone, keyed, paired, with_rest
from strandline.spark.views.relations import Part, Relation, Rows, unlike
from strandline.spark.views.times import Bound, Moved, TimeReader, Times, of_partners, of_result

_AT = "__strandline_at"


@dataclass(frozen=True)
class _Near:
    """A join by equal keys and near times."""

    ops: Operators
    inputs: Inputs
    times: tuple[Moved | None, Moved | None]
    """None: a row's time is when it comes."""
    near: Near

    def joined(self, how: How, exists: Attribute | None = None) -> Relation:
        return _joined(self, how, exists)

    def matched(self, how: How, rows: Relation, pairs: Relation, exists: Attribute | None = None) -> Relation:
        # They have the same columns, and so the same time.
        at = self.times[0 if rows is self.inputs.left else 1]
        if at is None:
            near = Near(0, (rows.ttl_ms or 0) * 1000, by_clock=True)
        else:
            near = Near(0, 0, (rows.times[at.column].lag_us, pairs.times[at.column].lag_us))
        inputs = Inputs(rows, rows.output, pairs, rows.output)
        return _joined(_Near(self.ops, inputs, (at, at), near), how, exists, null_safe=True)


def near_join(
    ops: Operators, how: How, inputs: Inputs, rest: Expression | None, exists: Attribute | None
) -> Relation | None:
    """Join relations of which a row can have partners for some time only; None if there is no such time."""
    left, right = inputs.left, inputs.right
    if not (left.times and right.times and left.appends and right.appends):
        return None
    catalyst = ops.catalyst
    conditions = [] if rest is None else catalyst.conjuncts(rest)
    equal = [catalyst.equal_to(*pair) for pair in zip(inputs.left_keys, inputs.right_keys, strict=True)]
    nearest = _nearest(_bounds(catalyst, left, right, [*equal, *conditions]), left, right)
    if nearest is None:
        return None
    left_at, right_at, lower, upper, used = nearest
    near = Near(lower, upper, (left.times[left_at.column].lag_us, right.times[right_at.column].lag_us))
    rest = None
    for each in conditions:
        if not any(each is bound.condition and bound.is_exact for bound in used):
            rest = catalyst.both(rest, each)
    return with_rest(ops, _Near(ops, inputs, (left_at, right_at), near), how, inputs, rest, exists)


def ttl_join(
    ops: Operators, how: How, inputs: Inputs, rest: Expression | None, exists: Attribute | None
) -> Relation | None:
    """Join relations whose rows are forgotten some time after they have come; None if rows of a side are not."""
    left, right = inputs.left, inputs.right
    if left.ttl_ms is None or right.ttl_ms is None or not (left.appends and right.appends):
        return None
    near = Near(-right.ttl_ms * 1000, left.ttl_ms * 1000, by_clock=True)
    return with_rest(ops, _Near(ops, inputs, (None, None), near), how, inputs, rest, exists)


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
            cost = upper - lower + left.times[left_at.column].lag_us + right.times[right_at.column].lag_us
            if best is None or cost < best[0]:
                exact = used if min(uppers) >= lower else []
                best = cost, (left_at, right_at, lower, upper, exact)
    return None if best is None else best[1]


# -- the operator


def _joined(join: _Near, how: How, exists: Attribute | None = None, *, null_safe: bool = False) -> Relation:
    """Join relations by equal keys and near times."""
    ops, inputs, near, is_paired = join.ops, join.inputs, join.near, how in PAIRED
    left, right = inputs.left, inputs.right
    sides = (left, inputs.left_keys, join.times[0]), (right, inputs.right_keys, join.times[1])
    texts = [
        ", ".join(ops.meanings.of(each, rows.columns) for each in (*keys, *([at.of] if at else [])))
        for rows, keys, at in sides
    ]
    final = ops.is_final and not near.by_clock
    what = f"near {how} {null_safe} {near} {'final' if final else 'changes'}"
    meaning = short(f"{what}[{texts[0]}|{texts[1]}]({left.meaning}|{right.meaning})")
    output = [*left.output, *(right.output if is_paired else ()), *([exists] if exists is not None else [])]

    def make() -> tuple[Node, tuple[str, ...], Part]:
        halves = []
        for number, (rows, equal, at) in enumerate(sides):
            rows, key = keyed(ops, rows, equal, number, keeps_alone(how), null_safe=null_safe)
            columns = rows.output if is_paired or number == 0 else ()
            halves.append(timed_rows(ops, rows, columns, key, at.of if at else None))
        pairs = paired(halves, (left, right)[: 1 + is_paired], exists)
        process = NearJoining(how, *pairs.kinds, pairs.result, near, final=final)
        operator = ops.operator(pairs.rows, f"near-{hash_of(meaning)}", process, pairs.result, f"{how} join")
        by = f"{how} join by {_by(texts[0], near)}"
        return operator, pairs.read, Part(operator.uid, by, "rows of both sides", "", bound=_bound(join))

    node, names, part = ops.once(meaning, make, left, right)
    appends = final or how in ("inner", "semi")
    return made_of(
        left, right, node=node, names=names, output=output, meaning=meaning, part=part, appends=appends,
        unique=None if is_paired else left.unique, hidden=ops.hidden_of(node.columns.hidden),
        times={} if near.by_clock else _times(join, is_paired=is_paired),
    )  # fmt: skip


def timed_rows(
    ops: Operators, rows: Relation, columns: Sequence[Attribute], key: Expression, at: Expression | None
) -> tuple[Node, tuple[str, ...]]:
    """Return the node of rows with their key and perhaps their time, and the names of the columns."""
    catalyst, names = ops.catalyst, unlike(ops.names(rows, columns) or [ONE])
    values = list(columns) or [catalyst.sql("true")]
    pairs = [(KEY, key), *zip(names, values, strict=True)]
    if at is not None:
        pairs.append((_AT, catalyst.call("unix_micros", at)))
    return Rows(catalyst, rows, tuple(pairs), is_weighted=False, is_timed=at is not None).node(), names


def _times(join: _Near, *, is_paired: bool) -> Times:
    """Return the times of the result: a row comes when the later one of a pair does, or when none can come any more."""
    near, (left, right) = join.near, (join.inputs.left, join.inputs.right)
    assert join.times[0] is not None
    assert join.times[1] is not None
    left_at, right_at = left.times[join.times[0].column], right.times[join.times[1].column]
    times = of_result(left.times, left.output, left_at, near.lags_us[1] + near.upper_us)
    if not is_paired:
        return times
    others = of_result(right.times, right.output, right_at, near.lags_us[0] - near.lower_us)
    return {**times, **of_partners(others, right_at, left_at, near.lower_us, near.upper_us)}


# -- for people


def _by(columns: str, near: Near) -> str:
    """Say which rows are partners."""
    if not columns:
        return "no key: one partition does all of it"
    if near.by_clock or near.lower_us == near.upper_us == 0:
        return f"equal {columns}"
    ends = [f"{duration(abs(us))} {'before' if us < 0 else 'after'}" for us in (near.lower_us, near.upper_us)]
    return f"equal {columns}, of which the last is from {ends[0]} to {ends[1]}"


def _bound(join: _Near) -> str:
    """Say how long rows are state."""
    near, texts = join.near, []
    ends = near.upper_us + near.lags_us[1], near.lags_us[0] - near.lower_us
    for side, at, end in zip(("left", "right"), join.times, ends, strict=True):
        if at is None:
            texts.append(f"{side} rows are forgotten after {duration(end)}" if end else f"no {side} rows")
        else:
            after = f"{duration(end)} after" if end > 0 else "past"
            texts.append(f"{side} rows until the watermark is {after} {at.of.sql()}")
    return ", ".join(texts) + (f", by state_ttl: {YOUNGER}" if near.by_clock else "")
