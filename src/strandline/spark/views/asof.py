"""ASOF joins as window functions: of the rows of both sides, the last right one before each left one.

Spark has them from version 4.3 on, and its optimizer leaves them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from strandline.spark.views.catalyst import Catalyst, Expression, Plan, kind_of
from strandline.spark.views.places import NodeError

ENABLED = "spark.sql.join.asofJoin.enabled"
_IS_EXACT = {"GreaterThanOrEqual": True, "LessThanOrEqual": True, "GreaterThan": False, "LessThan": False}
_IS_BACKWARD = frozenset({"GreaterThanOrEqual", "GreaterThan"})


def without_asof(catalyst: Catalyst, plan: Plan) -> Plan:
    """Return the optimised plan that gives what an ASOF join gives. Raise NodeError if there is none."""
    left, right = plan.left(), plan.right()
    match = plan.asOfCondition()
    kind = kind_of(match)
    left_keys, right_keys = keys_of(catalyst, plan)
    right = catalyst.filter(reduce(catalyst.both, map(catalyst.not_null, (match.right(), *right_keys))), right)
    for condition in right_conditions(catalyst, plan):
        right = catalyst.filter(condition, right)
    numbers = range(len(left_keys))
    # Of equal times, the right row comes first if it is a match.
    sides = ("1", "0") if _IS_EXACT[kind] else ("0", "1")
    is_left = F.col("side") == int(sides[0])
    structs = [
        catalyst.struct((f"c{at}", each) for at, each in enumerate(catalyst.items(side.output())))
        for side in (left, right)
    ]
    nulls = [catalyst.null_like(each) for each in structs]
    union = catalyst.union([
        _side(catalyst, left, left_keys, match.left(), sides[0], [structs[0], nulls[1]]),
        _side(catalyst, right, right_keys, match.right(), sides[1], [nulls[0], structs[1]]),
    ])  # fmt: skip
    time = F.col("time").asc_nulls_first() if kind in _IS_BACKWARD else F.col("time").desc_nulls_first()
    until = Window.partitionBy(*(F.col(f"k{number}") for number in numbers)).orderBy(time, "side")
    last = F.last("right", ignorenulls=True).over(until.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    df = catalyst.frame(union, catalyst.spark).withColumn("match", last).where(is_left)
    if kind_of(plan.joinType()) == "Inner":
        df = df.where("match is not null")
    analysed = catalyst.plan_of(df.select("left", "match"))
    fields = [
        catalyst.alias(catalyst.field(struct, at), each.name(), each.exprId(), each.metadata())
        for struct, side in zip(catalyst.items(analysed.output()), (left, right), strict=True)
        for at, each in enumerate(catalyst.items(side.output()))
    ]
    result: Any = catalyst.frame(catalyst.project(fields, analysed), catalyst.spark)._jdf
    return result.queryExecution().optimizedPlan()


def _side(
    catalyst: Catalyst, rows: Plan, keys: Sequence[Expression], time: Expression, side: str, structs: list[Expression]
) -> Plan:
    """Return the rows of one side, in the columns of both."""
    names = [*(f"k{number}" for number in range(len(keys))), "time", "side", "left", "right"]
    pairs = zip(names, [*keys, time, catalyst.sql(side), *structs], strict=True)
    return catalyst.project([catalyst.alias(value, name) for name, value in pairs], rows)


def keys_of(catalyst: Catalyst, plan: Plan) -> tuple[list[Expression], list[Expression]]:
    left_keys, right_keys = [], []
    for condition in _conditions(catalyst, plan):
        if _reads_only(condition, plan.right()):
            continue
        sides = catalyst.items(condition.children())
        if kind_of(condition) == "EqualTo" and _reads_only(sides[1], plan.left()):
            sides.reverse()
        if kind_of(condition) != "EqualTo" or not (
            _reads_only(sides[0], plan.left()) and _reads_only(sides[1], plan.right())
        ):
            raise NodeError(
                f"the query has an ASOF JOIN ON {condition.sql()}, expected columns of both sides that are equal",
                "select the rows before, in a subquery, or after it, in WHERE",
                condition,
                plan,
            )
        left_keys.append(sides[0])
        right_keys.append(sides[1])
    return left_keys, right_keys


def right_conditions(catalyst: Catalyst, plan: Plan) -> list[Expression]:
    """Return the conditions on right rows alone."""
    return [each for each in _conditions(catalyst, plan) if _reads_only(each, plan.right())]


def _conditions(catalyst: Catalyst, plan: Plan) -> list[Expression]:
    return catalyst.conjuncts(plan.condition().get()) if plan.condition().isDefined() else []


def _reads_only(expression: Expression, plan: Plan) -> bool:
    return bool(expression.references().subsetOf(plan.outputSet()))
