"""Spark's logical plans and expressions, as the JVM has them: reads them, and builds others of their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame, SparkSession

Plan = Any
"""A LogicalPlan of the JVM."""
Expression = Any
Attribute = Any

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_PLAN = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"
_SEQ = "scala.collection.immutable.Seq"
_ids: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


class Catalyst:
    """Makes plans and expressions of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._catalyst = jvm.org.apache.spark.sql.catalyst
        self._expressions = self._catalyst.expressions
        self._logical = self._catalyst.plans.logical
        self._none = _object(jvm.scala, "None")

    # -- from text and to DataFrames

    def optimized(self, text: str) -> tuple[DataFrame, Plan]:
        """Return the DataFrame of a query, and the plan that Spark's optimizer makes of it."""
        df = self.spark.sql(text)
        jdf: Any = df._jdf
        return df, jdf.queryExecution().optimizedPlan()

    def never_null(self, text: str) -> frozenset[str]:
        """Return the columns of a query that are never null."""
        df, plan = self.optimized(text)
        conditions = [each for each in self.items(plan.constraints()) if kind_of(each) == "IsNotNull"]
        known = {id_of(each.child()) for each in conditions if kind_of(each.child()) == "AttributeReference"}
        columns = zip(df.schema.fields, self.items(plan.output()), strict=True)
        return frozenset(
            field.name for field, its in columns if not (field.nullable and its.nullable()) or id_of(its) in known
        )

    def functions(self) -> list[str]:
        """Return the names of the session's functions."""
        return [row[0] for row in self.spark.sql("SHOW FUNCTIONS").collect()]

    def present(self, df: DataFrame) -> list[Expression]:
        """Return where a query has the present time, which Spark's optimizer replaces."""
        pattern = self._catalyst.trees.TreePattern.CURRENT_LIKE()

        def inside(plan: Plan) -> list[Expression]:
            if not plan.containsPattern(pattern):
                return []
            below = [each for child in self.items(plan.children()) for each in inside(child)]
            return [*self._with_pattern(plan, pattern), *below]

        return inside(self.plan_of(df))

    def names_of_rdds(self, df: DataFrame) -> dict[int, str]:
        """Return the names of the tables of RDDs that a query reads, by the id of these."""
        names: dict[int, str] = {}

        def visit(plan: Plan, name: str) -> None:
            kind = kind_of(plan)
            if kind == "SubqueryAlias":
                name = str(plan.identifier().toString())
            elif kind == "LogicalRDD":
                names.setdefault(plan.rdd().id(), name)
            elif kind != "View":
                name = ""
            for child in self.items(plan.children()):
                visit(child, name)
            for inner in self.items(plan.subqueries()):
                visit(inner, "")

        visit(self.plan_of(df), "")
        return names

    def plan_of(self, df: DataFrame) -> Plan:
        """Return the analysed plan of a DataFrame."""
        jdf: Any = df._jdf
        return jdf.queryExecution().analyzed()

    def frame(self, plan: Plan, spark: SparkSession) -> DataFrame:
        """Return the DataFrame of a plan."""
        session: Any = spark._jsparkSession
        dataset = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan)
        return DataFrame(dataset, spark)

    # -- expressions

    def sql(self, text: str) -> Expression:
        """Return the expression of SQL without columns."""
        session: Any = self.spark._jsparkSession
        return session.sessionState().sqlParser().parseExpression(text)

    def new_id(self) -> Any:
        """Return an id for a new column."""
        return _object(self._expressions, "NamedExpression").newExprId()

    def id_for(self, name: str) -> Any:
        """Return an id that is the same in all plans of this JVM."""
        ids = _ids.setdefault(self._gateway, {})
        if name not in ids:
            ids[name] = self.new_id()
        return ids[name]

    def alias(self, expression: Expression, name: str, id_: Any = None, metadata: Any = None) -> Any:
        """Return an expression as a column with this name, and with this id in place of a new one."""
        nil = self.seq(())
        metadata = self._none if metadata is None else self._jvm.scala.Some(metadata)
        return self._expressions.Alias(expression, name, id_ or self.new_id(), nil, metadata, nil)

    def call(self, function: str, *arguments: Expression) -> Expression:
        """Return a call of a function of SQL."""
        unresolved = _object(self._catalyst.analysis, "UnresolvedFunction")
        return self._resolved(unresolved.apply(function, self.seq(arguments), False))

    def max(self, expression: Expression) -> Expression:
        """Return the aggregate function."""
        return self._expressions.aggregate.Max(expression).toAggregateExpression()

    def _resolved(self, expression: Expression) -> Expression:
        """Return an expression as Spark analyses it.

        Plans get nothing else: where Spark renews ids, in a plan that has one twice, it passes over what is unresolved.
        """
        columns = [each for each in self.parts(expression) if kind_of(each) == "AttributeReference"]
        rows = _object(self._logical, "LocalRelation").apply(self.seq(columns))
        analysed = self.plan_of(self.frame(self.project([self.alias(expression, "resolved")], rows), self.spark))
        return analysed.projectList().head().child()

    def both(self, one: Expression | None, other: Expression) -> Expression:
        """Return the conjunction of two conditions."""
        return other if one is None else self._expressions.And(one, other)

    def equal_to(self, one: Expression, other: Expression) -> Expression:
        """Return a comparison."""
        return self._expressions.EqualTo(one, other)

    def either(self, one: Expression | None, other: Expression) -> Expression:
        """Return the disjunction of two conditions."""
        return other if one is None else self._expressions.Or(one, other)

    def if_(self, condition: Expression, yes: Expression, no: Expression) -> Expression:
        """Return one of two values."""
        return self._expressions.If(condition, yes, no)

    def within(self, number: Expression, first: int, last: int | None) -> Expression:
        """Return whether a number is in a range."""
        above = self._expressions.GreaterThanOrEqual(number, self.sql(str(first)))
        return (
            above if last is None else self.both(above, self._expressions.LessThanOrEqual(number, self.sql(str(last))))
        )

    def less_than(self, one: Expression, other: Expression) -> Expression:
        """Return a comparison."""
        return self._expressions.LessThan(one, other)

    def negation(self, condition: Expression) -> Expression:
        """Return whether a condition is not true."""
        return self._expressions.Not(condition)

    def negative(self, number: Expression) -> Expression:
        """Return a number with the other sign."""
        return self._expressions.UnaryMinus(number, True)

    def try_(self, expression: Expression) -> Expression:
        """Return an expression that is null where this one fails."""
        return self._expressions.TryEval(expression)

    def null_like(self, expression: Expression) -> Expression:
        """Return a null of the type of an expression."""
        return _object(self._expressions, "Literal").create(None, expression.dataType())

    def is_null(self, expression: Expression) -> Expression:
        """Return whether an expression is null."""
        return self._expressions.IsNull(expression)

    def not_null(self, expression: Expression) -> Expression:
        """Return whether an expression is not null."""
        return self._expressions.IsNotNull(expression)

    def struct(self, columns: Iterable[tuple[str, Expression]]) -> Expression:
        """Return a struct of named values."""
        parts: list[Expression] = []
        for name, value in columns:
            parts += [self.sql("'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"), value]
        return self._expressions.CreateNamedStruct(self.seq(parts))

    def cast(self, expression: Expression, ddl: str) -> Expression:
        """Return a value as another type, as SQL casts it."""
        cast = self.sql(f"cast(null as {ddl})")
        return self._resolved(self.with_children(cast, [expression]))

    def normalized(self, expression: Expression) -> Expression:
        """Return a value in which all NaNs are one, and -0.0 is 0.0."""
        return _object(self._catalyst.optimizer, "NormalizeFloatingNumbers").normalize(expression)

    def cast_to(self, expression: Expression, attribute: Attribute) -> Expression:
        """Return a value as the type of a column, from which it differs at most in what may be null."""
        if expression.dataType().sameType(attribute.dataType()):
            return expression
        cast = self._expressions.Cast
        evaluated = self.sql("cast(null as string)").evalMode()
        return self._resolved(cast(expression, attribute.dataType(), self._none, evaluated))

    def attribute(self, ddl: str, name: str, id_: Any) -> Attribute:
        """Return a column of a type."""
        return self.alias(self.sql(f"cast(null as {ddl})"), name, id_).toAttribute()

    def _row_number(self, keys: Sequence[Expression], orders: Sequence[Expression]) -> Expression:
        frame = self._expressions.SpecifiedWindowFrame(
            *(_object(self._expressions, each) for each in ("RowFrame", "UnboundedPreceding", "CurrentRow"))
        )
        spec = self._expressions.WindowSpecDefinition(self.seq(keys), self.seq(orders), frame)
        return self._expressions.WindowExpression(self._expressions.RowNumber(), spec)

    def _ascending(self, expression: Expression) -> Expression:
        order = _object(self._expressions, "Ascending")
        return self._expressions.SortOrder(expression, order, order.defaultNullOrdering(), self.seq(()))

    def filtered(self, aggregate: Expression, condition: Expression) -> Expression:
        """Return an aggregate function of those of its rows for which a condition is true."""

        def changed(argument: Any) -> Any:
            if not self.is_a(argument, "scala.Option"):
                return argument
            before = argument.get() if argument.isDefined() else None
            return self._jvm.scala.Some(self.both(before, condition))

        return self.copy(aggregate, changed)

    def conjuncts(self, condition: Expression) -> list[Expression]:
        """Return the conditions that a condition joins by AND."""
        if kind_of(condition) != "And":
            return [condition]
        return [part for each in self.items(condition.children()) for part in self.conjuncts(each)]

    def parts(self, expression: Expression) -> list[Expression]:
        """Return an expression and all that it is made of."""
        return [expression, *(part for child in self.items(expression.children()) for part in self.parts(child))]

    def ids_in(self, expression: Expression) -> set[int]:
        """Return the numbers of the columns in an expression."""
        return {id_of(each) for each in self.parts(expression) if kind_of(each) == "AttributeReference"}

    def has_subquery(self, plan: Plan) -> bool:
        """Whether the expressions of a node have scalar subqueries."""
        return bool(self.subqueries(plan))

    def subqueries(self, plan: Plan) -> list[Expression]:
        """Return the scalar subqueries in the expressions of a node."""
        return self._with_pattern(plan, self._catalyst.trees.TreePattern.SCALAR_SUBQUERY())

    def _with_pattern(self, plan: Plan, pattern: Any) -> list[Expression]:
        """Return the innermost expressions of a node that have a pattern of Spark's trees."""
        return [
            part
            for expression in self.items(plan.expressions())
            if expression.containsPattern(pattern)
            for part in self.parts(expression)
            if part.containsPattern(pattern)
            and not any(child.containsPattern(pattern) for child in self.items(part.children()))
        ]

    def field(self, struct: Expression, at: int) -> Expression:
        """Return the field of a struct."""
        return self._expressions.GetStructField(struct, at, self._none)

    # -- plans

    def project(self, columns: Sequence[Expression], plan: Plan) -> Plan:
        """Return a projection."""
        return self._logical.Project(self.seq(columns), plan)

    def filter(self, condition: Expression, plan: Plan) -> Plan:
        """Return the rows for which a condition is true."""
        return self._logical.Filter(condition, plan)

    def expand(self, projections: Sequence[Any], output: Sequence[Attribute], plan: Plan) -> Plan:
        """Return several projections of each row."""
        return self._logical.Expand(self.seq(projections), self.seq(output), plan)

    def aggregate(self, node: Plan, groups: Sequence[Expression], results: Sequence[Expression], plan: Plan) -> Plan:
        """Return an aggregation with other groups, results and rows."""
        lists = iter((self.seq(groups), self.seq(results)))

        def changed(argument: Any) -> Any:
            if self.is_a(argument, _SEQ):
                return next(lists)
            return plan if self.is_a(argument, _PLAN) else argument

        return self.copy(node, changed)

    def split(self, node: Plan) -> tuple[Plan, Plan]:
        """Return an aggregation as a projection of one that has only groups and functions."""
        groups = self.items(node.groupingExpressions())
        functions: dict[str, Any] = {}

        def column_of(expression: Expression) -> Expression | None:
            if kind_of(expression) != "AggregateExpression":
                return None
            column = functions.setdefault(expression.canonicalized().toString(), self.alias(expression, "value"))
            return column.toAttribute()

        results = [self.replaced(each, column_of) for each in self.items(node.aggregateExpressions())]
        below = self.aggregate(node, groups, [*groups, *functions.values()], node.child())
        return self.project(results, below), below

    def aggregation(self, groups: Sequence[Expression], results: Sequence[Expression]) -> Plan:
        """Return an aggregation of no rows, of which only the columns are used."""
        rows = _object(self._logical, "LocalRelation").apply(self.seq(groups))
        return self._logical.Aggregate(self.seq(groups), self.seq(results), rows, self._none)

    def distinct_aggregate(self, function: Expression) -> Expression:
        """Return an aggregate function of distinct values."""
        return self.copy(function.toAggregateExpression(), lambda argument: True if argument is False else argument)

    def plain_aggregate(self, expression: Expression) -> Expression | None:
        """Return an aggregate function without DISTINCT; None for another expression."""
        if kind_of(expression) != "AggregateExpression":
            return None
        return self.copy(expression, lambda argument: False if argument is True else argument)

    def numbered(self, name: str, keys: Sequence[Expression], order: Sequence[Expression], plan: Plan) -> Plan:
        """Return rows with the number of each among those of its key, as the last column."""
        orders = [each if self.is_a(each, f"{_EXPRESSIONS}.SortOrder") else self._ascending(each) for each in order]
        number = self.alias(self._row_number(keys, orders), name)
        return self._logical.Window(self.seq([number]), self.seq(keys), self.seq(orders), plan, self._none)

    def union(self, plans: Sequence[Plan]) -> Plan:
        """Return the rows of plans with the same columns."""
        return self._logical.Union(self.seq(plans), False, False)

    def one_row(self) -> Plan:
        """Return a plan with one row without columns."""
        return self._logical.OneRowRelation()

    def with_children(self, node: Any, children: Sequence[Any]) -> Any:
        """Return a plan or an expression with other children."""
        return node.withNewChildren(self.seq(children))

    def join_keys(self, join: Plan) -> tuple[list[Expression], list[Expression], Expression | None]:
        """Return the keys of both sides that must be equal in a join, and the rest of its condition."""
        keyed = _object(self._catalyst.planning, "ExtractEquiJoinKeys").unapply(join)
        if keyed.isEmpty():
            condition = join.condition()
            return [], [], condition.get() if condition.isDefined() else None
        parts = keyed.get()
        rest = parts._4()
        return self.items(parts._2()), self.items(parts._3()), rest.get() if rest.isDefined() else None

    def copy(self, node: Any, change: Callable[[Any], Any]) -> Any:
        """Return a plan or an expression with what `change` makes of the arguments of its constructor."""
        arguments = [change(argument) for argument in self.items_of(node.productIterator())]
        array = self._gateway.new_array(self._jvm.java.lang.Object, len(arguments))
        for at, argument in enumerate(arguments):
            array[at] = argument
        return node.makeCopy(array)

    def replaced(self, node: Any, change: Callable[[Expression], Expression | None]) -> Any:
        """Return an expression in which `change` has replaced those parts for which it returns another one."""
        other = change(node)
        if other is not None:
            return other
        children = self.items(node.children())
        if not children:
            return node
        changed = [self.replaced(child, change) for child in children]
        if all(new is old for new, old in zip(changed, children, strict=True)):
            return node
        return self.with_children(node, changed)

    # -- reading

    def is_a(self, value: Any, class_name: str) -> bool:
        """Whether a value of the JVM is of a class."""
        return hasattr(value, "_target_id") and bool(is_instance_of(self._gateway, value, class_name))

    def seq(self, values: Iterable[Any]) -> Any:
        """Return values as Scala's sequence."""
        seq = self._nil
        for value in reversed(list(values)):
            seq = getattr(seq, "$colon$colon")(value)
        return seq

    @cached_property
    def _nil(self) -> Any:
        return _object(self._jvm.scala.collection.immutable, "Nil")

    def items(self, seq: Any) -> list[Any]:
        """Return the elements of Scala's sequence."""
        return self.items_of(seq.iterator())

    def items_of(self, iterator: Any) -> list[Any]:
        """Return what Scala's iterator gives."""
        items = []
        while iterator.hasNext():
            items.append(iterator.next())
        return items


def kind_of(node: Any) -> str:
    """Return the name of the class of a node of a plan, or of an expression."""
    name: str = node.getClass().getSimpleName()
    return name.rstrip("$")


def unaliased(expression: Expression) -> Expression:
    """Return what a column is computed of."""
    return expression.child() if kind_of(expression) == "Alias" else expression


def id_of(attribute: Attribute) -> int:
    """Return the number that Spark has for a column."""
    number: int = attribute.exprId().id()
    return number


def _object(package: Any, name: str) -> Any:
    """Return an object of Scala."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
