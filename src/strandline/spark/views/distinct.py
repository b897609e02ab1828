"""Aggregations of several DISTINCT values, as the query had them.

Spark's optimizer makes two aggregations of one, over copies of each row, in an order that depends on ids. An operator
must be the same in each process, so the planner goes back to the one aggregation.
"""

from __future__ import annotations

from strandline.spark.views.catalyst import Catalyst, Expression, Plan, id_of, kind_of, unaliased

_COPY = "gid"
"""Spark's name for the number of a row's copy."""


def as_written(catalyst: Catalyst, plan: Plan) -> Plan:
    """Return the aggregation of which Spark has made these two; any other plan unchanged."""
    inner = plan.child()
    if kind_of(inner) != "Aggregate" or kind_of(inner.child()) != "Expand":
        return plan
    expand = inner.child()
    columns = catalyst.items(expand.output())
    copies = [each for each in columns if each.name() == _COPY]
    groups = {id_of(each) for each in catalyst.items(inner.groupingExpressions())}
    if len(copies) != 1 or id_of(copies[0]) not in groups:
        return plan
    rows = [catalyst.items(each) for each in catalyst.items(expand.projections())]
    # Each copy of a row has the columns of one distinct value, and nulls in place of the others.
    sources = {
        id_of(column): next((row[at] for row in rows if not _is_null(row[at])), rows[0][at])
        for at, column in enumerate(columns)
    }
    functions = {id_of(each): unaliased(each) for each in catalyst.items(inner.aggregateExpressions())}

    def original(expression: Expression) -> Expression:
        return catalyst.replaced(
            expression, lambda each: sources.get(id_of(each)) if kind_of(each) == "AttributeReference" else None
        )

    def as_one(expression: Expression) -> Expression | None:
        if kind_of(expression) != "AggregateExpression":
            return None
        function = expression.aggregateFunction()
        first = catalyst.items(function.children())[:1]
        if kind_of(function) == "First" and kind_of(first[0]) == "AttributeReference" and id_of(first[0]) in functions:
            before = functions[id_of(first[0])]
            if kind_of(before) == "AggregateExpression":
                return original(before)
        written = catalyst.distinct_aggregate(original(function))
        condition = catalyst.replaced(expression.filter().get(), without_copies)
        return written if kind_of(condition) == "Literal" else catalyst.filtered(written, condition)

    def without_copies(condition: Expression) -> Expression | None:
        """Return the condition of a FILTER without the number of the copy."""
        if kind_of(condition) == "EqualTo" and id_of(copies[0]) in catalyst.ids_in(condition):
            return catalyst.sql("true")
        if kind_of(condition) == "AttributeReference" and id_of(condition) in functions:
            # The inner aggregation has it as the maximum of the copies' conditions.
            return original(catalyst.items(functions[id_of(condition)].aggregateFunction().children())[0])
        return None

    results = [catalyst.replaced(each, as_one) for each in catalyst.items(plan.aggregateExpressions())]
    grouped = [original(each) for each in catalyst.items(plan.groupingExpressions())]
    if [kind_of(each) for each in grouped] != ["AttributeReference"] * len(grouped):
        # By a constant: the two aggregations do.
        return plan
    return catalyst.aggregate(plan, catalyst.items(plan.groupingExpressions()), results, expand.child())


def _is_null(expression: Expression) -> bool:
    return kind_of(expression) == "Literal" and expression.value() is None
