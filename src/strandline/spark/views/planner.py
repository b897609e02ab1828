"""From Spark's optimised plan of a query to a pipeline that keeps its result up to date.

Spark's optimizer leaves few kinds of nodes. What is linear goes on unchanged (`relations.py`); joins, aggregates,
window functions and limits become operators with state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strandline.core.errors import ConfigurationError
from strandline.spark.views.aggregating import aggregate
from strandline.spark.views.asof import without_asof
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, Plan, id_of, kind_of, unaliased
from strandline.spark.views.distinct import as_written
from strandline.spark.views.joining import any_join, join
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import Operators
from strandline.spark.views.pairs import Inputs
from strandline.spark.views.places import NodeError
from strandline.spark.views.ranking import top, top_window
from strandline.spark.views.recomputed import constant, limit, window
from strandline.spark.views.relations import Relation, Static, named
from strandline.spark.views.temporal import as_of_join
from strandline.spark.views.times import TimeReader
from strandline.spark.views.unions import united

Lowered = Relation | Static
_PASSED_ON = frozenset({
    "LocalLimit", "RebalancePartitions", "Repartition", "RepartitionByExpression", "ResolvedHint", "Sort",
    "WindowGroupLimit",
})  # fmt: skip
"""What changes the order of rows alone, or leaves out rows that a later step leaves out, too."""
_LINEAR = frozenset({"ArrowEvalPython", "BatchEvalPython", "Expand", "Filter", "Generate", "Project"})
_LITERAL = frozenset({"LocalRelation", "OneRowRelation", "Range"})
_LIMITS = frozenset({"GlobalLimit", "Offset"})
_NOT_LEFT_OF_STATIC = frozenset({"RightOuter", "FullOuter"})
_NOT_RIGHT_OF_STATIC = frozenset({"LeftOuter", "FullOuter", "LeftSemi", "LeftAnti", "ExistenceJoin"})
_AGGREGATE = "org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction"
_WRITTEN = {"UnionLoop": "WITH RECURSIVE over a stream", "ScriptTransformation": "TRANSFORM"}
"""How people write the nodes that no view has."""
_KEEPS_ROWS = frozenset({"LeftSemi", "LeftAnti", "ExistenceJoin"})


@dataclass
class Planner:
    """Plans one query."""

    operators: Operators
    tables: Mapping[int, Callable[[Sequence[Attribute]], Relation]]
    """By the id of the RDD that stands for it: the relation of a table, under these columns of the plan."""
    uid: str = ""
    """The uid of the last operator with state, if the user gives one."""
    ttls: Mapping[int, int] = field(default_factory=dict)
    """By id of a table's column: the time to live of state of its rows, in milliseconds."""
    ttl_ms: int | None = None
    """That of all other tables."""
    matches: frozenset[int] = frozenset()
    """Those of the tables that are matches of MATCH_RECOGNIZE: operators, which get the user's uid."""

    def __post_init__(self) -> None:
        self._catalyst, self._meanings = self.operators.catalyst, self.operators.meanings
        self._times = TimeReader(self._catalyst)

    def relation(self, plan: Plan, analysed: Plan) -> Relation:
        """Return the relation of a query's plan; `analysed` is the plan before Spark's optimizer."""
        uid = self.uid
        while kind_of(analysed) == "Project":
            analysed = analysed.child()
        # The optimizer leaves out a LIMIT of more rows than there can be.
        if kind_of(analysed) == "Sort":
            raise _refused(
                "ORDER BY without LIMIT",
                "a result that changes has no order",
                "leave ORDER BY out and sort where you read; or add LIMIT n for the first n rows",
                analysed,
            )
        # Here, a column may come twice: SELECT a, a.
        result = replace(self._relation(plan), output=tuple(self._catalyst.items(plan.output())))
        if uid and not self.operators.is_pinned:
            raise ConfigurationError(
                f"uid '{uid}' is for the last operator with state, and there is none, or several",
                hint="leave uid out; or have a view of its own for the part of the query that keeps state",
            )
        return result

    def _relation(self, plan: Plan) -> Relation:
        return self._as_relation(self._lower(plan))

    def _as_relation(self, lowered: Lowered) -> Relation:
        return constant(self.operators, lowered) if isinstance(lowered, Static) else lowered

    def _lower(self, plan: Plan) -> Lowered:
        kind = kind_of(plan)
        if not self._reads_streams(plan):
            leaves = self._catalyst.items(plan.collectLeaves())
            return Static(plan, self._meanings.of_table(plan), all(kind_of(leaf) in _LITERAL for leaf in leaves))
        if kind == "LogicalRDD":
            return self._table(plan)
        if kind == "AsOfJoin":
            return self._as_of(plan)
        if kind in _PASSED_ON:
            return self._lower(plan.child())
        if kind in _LIMITS:
            return self._limit(plan)
        if kind == "Aggregate":
            plan = as_written(self._catalyst, plan)
        if kind in ("Project", "Filter", "Aggregate") and self._catalyst.has_subquery(plan):
            return self._with_subqueries(plan)
        if kind in _LINEAR:
            return self._linear(kind, plan, self._relation(plan.child()))
        match kind:
            case "Join":
                sides = self._catalyst.items(plan.children())
                if all(map(self._reads_streams, sides)):
                    return self._with_uid(sides, lambda left, right: self._join(plan, left, right))
                return self._join(plan, *map(self._lower, sides))
            case "Union":
                self.uid = ""
                output = self._catalyst.items(plan.output())
                children = self._catalyst.items(plan.children())
                parts = [(self._relation(child), self._catalyst.items(child.output())) for child in children]
                return united(self.operators, parts, output)
            case "Aggregate":
                self._check_deterministic(plan)
                return self._with_uid([plan.child()], lambda child: aggregate(self.operators, plan, child))
            case "Window":
                self._check_deterministic(plan)
                return self._with_uid(
                    [plan.child()],
                    lambda child: top_window(self.operators, plan, child) or window(self.operators, plan, child),
                )
            case "Sample":
                hint = "filter by a hash: WHERE abs(hash(id)) % 10 = 0"
                raise _refused("TABLESAMPLE", "each epoch would draw other rows", hint, plan)
        what = _WRITTEN.get(kind, f"a step that Spark calls {kind}")
        raise _refused(what, "it cannot be kept up to date", "write the query without it", plan)

    def _with_uid(self, inputs: Sequence[Plan], make: Callable[..., Relation]) -> Relation:
        """Return what `make` makes of the relations of plans: an operator, which gets the user's uid."""
        uid, self.uid = self.uid, ""
        relations = [self._relation(each) for each in inputs]
        with self.operators.pinning(uid):
            result = make(*relations)
        return named(result, uid) if uid else result

    def _table(self, plan: Plan) -> Relation:
        columns, leaf = self._catalyst.items(plan.output()), plan.rdd().id()
        if leaf in self.matches:
            return self._with_uid([], lambda: self.tables[leaf](columns))
        relation = self.tables[leaf](columns)
        ttl_ms = next((self.ttls[id_of(each)] for each in columns if id_of(each) in self.ttls), self.ttl_ms)
        return relation if ttl_ms is None else replace(relation, ttl_ms=ttl_ms)

    def _reads_streams(self, plan: Plan) -> bool:
        """Whether a plan, or a subquery in it, reads a stream."""
        leaves = self._catalyst.items(plan.collectLeaves())
        return any(kind_of(leaf) == "LogicalRDD" and leaf.rdd().id() in self.tables for leaf in leaves) or any(
            map(self._reads_streams, self._catalyst.items(plan.subqueriesAll()))
        )

    # -- linear steps

    def _linear(self, kind: str, plan: Plan, child: Relation) -> Relation:
        self._check_deterministic(plan)
        catalyst, carried = self._catalyst, self.operators.carried(child)
        output = catalyst.items(plan.output())
        text, clause, unique, times = "", "", child.unique, child.times
        match kind:
            case "Project":
                expressions = catalyst.items(plan.projectList())
                times = self._times.projected(expressions, times) if times else times
                columns = {id_of(each): self._meanings.of(each, child.columns) for each in expressions}
                same: dict[int, int] = {}
                for each in expressions:
                    if kind_of(unaliased(each)) == "AttributeReference":
                        same.setdefault(id_of(unaliased(each)), id_of(each))
                if unique is not None:
                    unique = frozenset(same[each] for each in unique) if unique <= same.keys() else None

                def step(rows: Plan) -> Plan:
                    return catalyst.project([*expressions, *carried], rows)
            case "Expand":
                copies = [catalyst.items(each) for each in catalyst.items(plan.projections())]
                columns = {
                    id_of(each): short(f"copies {[self._meanings.of(row[at], child.columns) for row in copies]}")
                    for at, each in enumerate(output)
                }
                unique, text = None, f"{len(copies)} copies"
                times = self._times.expanded(copies, output, times) if times else times

                def step(rows: Plan) -> Plan:
                    projections = [catalyst.seq([*each, *carried]) for each in copies]
                    return catalyst.expand(projections, [*output, *carried], rows)
            case _:
                text = self._meanings.of_all(plan, child.columns)
                if kind == "Generate":
                    # Its other arguments are the columns that are read behind it.
                    text, unique = f"{self._meanings.of(plan.generator(), child.columns)} {plan.outer()}", None
                    clause = plan.generator().sql()
                elif kind == "Filter":
                    clause = f"WHERE {plan.condition().sql()}"
                text = f"{kind}[{text}]"
                columns = _new(output, child.columns, f"{text}({child.rows})")

                def step(rows: Plan) -> Plan:
                    return catalyst.with_children(plan, [rows])

        return child.then(step, output, text, columns, unique=unique, times=times, clause=clause)

    def _check_deterministic(self, plan: Plan) -> None:
        catalyst = self._catalyst
        for expression in catalyst.items(plan.expressions()):
            # Functions as first() depend on the order of rows alone.
            parts = [] if expression.deterministic() else catalyst.parts(expression)
            for part in parts:
                if not part.deterministic() and not catalyst.is_a(part, _AGGREGATE) and _has_sure_parts(catalyst, part):
                    raise _refused(
                        f"{part.sql()}, which is not the same each time",
                        "a row could not be taken back as it was given",
                        "compute it before, as a column of the stream; or use a hash of the row's columns",
                        part,
                        expression,
                    )

    # -- subqueries

    def _with_subqueries(self, plan: Plan) -> Relation:
        """Return a node's rows, in which scalar subqueries are columns of a join with their results."""
        self.uid = ""
        if kind_of(plan) == "Aggregate":
            above, below = self._catalyst.split(plan)
            if self._catalyst.has_subquery(below):
                raise _refused(
                    "a scalar subquery inside an aggregate function",
                    "it changes while the rows before it stay",
                    "join the subquery before, in FROM",
                    *self._catalyst.subqueries(below),
                )
            return self._joined(above, aggregate(self.operators, below, self._relation(below.child())))
        return self._joined(plan, self._relation(plan.child()))

    def _joined(self, plan: Plan, child: Relation) -> Relation:
        """Return a projection or a filter of rows, joined with the results of its scalar subqueries."""
        catalyst = self._catalyst
        results: dict[str, Attribute] = {}
        rows = child

        def column_of(expression: Expression) -> Expression | None:
            nonlocal rows
            if kind_of(expression) != "ScalarSubquery" or not self._reads_streams(expression.plan()):
                return None
            key = str(id_of(expression))
            if key not in results:
                subquery = self._relation(expression.plan())
                rows = join(self.operators, "left", Inputs(rows, [], subquery, []))
                results[key] = subquery.output[0]
            return results[key]

        if kind_of(plan) == "Project":
            columns = [catalyst.replaced(each, column_of) for each in catalyst.items(plan.projectList())]
            return self._linear("Project", catalyst.project(columns, plan.child()), rows)
        condition = catalyst.replaced(plan.condition(), column_of)
        filtered = self.operators.filtered(rows, condition)
        return self._linear("Project", catalyst.project(child.output, plan.child()), filtered)

    # -- joins

    def _join(self, plan: Plan, left: Lowered, right: Lowered) -> Relation:
        self._check_deterministic(plan)
        how = kind_of(plan.joinType())
        if isinstance(right, Static) and isinstance(left, Relation) and how not in _NOT_LEFT_OF_STATIC:
            return self._static_join(plan, left, right)
        if isinstance(left, Static) and isinstance(right, Relation) and how not in _NOT_RIGHT_OF_STATIC:
            return self._static_join(plan, right, left, is_left=False)
        if subqueries := self._catalyst.subqueries(plan):
            what = "a scalar subquery in the condition of a join"
            raise _refused(what, "Spark does not say of which side it is", "write it in WHERE", *subqueries)
        keys, other_keys, rest = self._catalyst.join_keys(plan)
        exists = plan.joinType().exists() if how == "ExistenceJoin" else None
        inputs = Inputs(self._as_relation(left), keys, self._as_relation(right), other_keys)
        return any_join(self.operators, how, inputs, rest, exists)

    def _static_join(self, plan: Plan, rows: Relation, table: Static, *, is_left: bool = True) -> Relation:
        """Join changes with a table that stays as it is: Spark does it."""
        catalyst, carried = self._catalyst, self.operators.carried(rows)
        how, output = kind_of(plan.joinType()), catalyst.items(plan.output())
        columns = {**_new(catalyst.items(table.plan.output()), {}, table.meaning), **rows.columns}
        text = short(f"{how} {is_left}[{self._meanings.of_all(plan, columns)}|{table.meaning}]")

        def step(changes: Plan) -> Plan:
            sides = [changes, table.plan] if is_left else [table.plan, changes]
            return catalyst.project([*output, *carried], catalyst.with_children(plan, sides))

        new = _new(output, rows.columns, f"{text}({rows.rows})")
        unique, clause = rows.unique if how in _KEEPS_ROWS else None, f"{how} join with a table of Spark"
        return rows.then(step, output, text, new, unique=unique, clause=clause)

    def _as_of(self, plan: Plan) -> Lowered:
        """Return an ASOF join: bounded by watermarks if both sides have one, else as a window function."""
        left, right = self._lower(plan.left()), self._lower(plan.right())
        if isinstance(left, Relation) and isinstance(right, Relation):
            joined = as_of_join(self.operators, plan, left, right)
            if joined is not None:
                return joined
        rows = self._lower(without_asof(self._catalyst, plan))
        unique = left.unique if isinstance(left, Relation) else None
        return replace(rows, unique=unique) if isinstance(rows, Relation) else rows

    # -- limits

    def _limit(self, plan: Plan) -> Relation:
        """Return the rows of LIMIT and OFFSET."""
        limited = plan
        limits: list[tuple[str, int]] = []
        while (kind := kind_of(plan)) in _LIMITS or kind == "LocalLimit":
            if kind != "LocalLimit":
                number = plan.limitExpr() if kind == "GlobalLimit" else plan.offsetExpr()
                limits.append((kind, int(number.eval(None))))
            plan = plan.child()
        start, end = 0, None
        for kind, number in reversed(limits):
            if kind == "Offset":
                start += number
            else:
                end = start + number if end is None else min(end, start + number)
        projections = []
        inner = plan
        while kind_of(inner) == "Project":
            projections.append(inner)
            inner = inner.child()
        if kind_of(inner) == "Sort":
            order = self._catalyst.items(inner.order())
            rows = self._with_uid([inner.child()], lambda child: self._first(child, order, start, end))
            for projection in reversed(projections):
                rows = self._linear("Project", projection, rows)
            return rows
        if kind_of(plan) != "Project" or not all(
            unaliased(each).foldable() for each in self._catalyst.items(plan.projectList())
        ):
            raise _refused(
                "LIMIT without ORDER BY",
                "which rows they are is not defined, and would change",
                "add ORDER BY; if any row will do, aggregate with any_value()",
                limited,
            )
        return self._with_uid([plan], lambda child: self._first(child, [], start, end))

    def _first(self, child: Relation, order: Sequence[Expression], start: int, end: int | None) -> Relation:
        """Return the rows from one place in an order up to another."""
        catalyst = self._catalyst
        number = catalyst.attribute("int", "number", catalyst.new_id())
        rows = top(self.operators, child, [], order, end, "row_number", number)
        if rows is None:
            return limit(self.operators, child, order, start, end)
        if start:
            rows = self.operators.filtered(rows, catalyst.within(number, start + 1, None))
        carried = self.operators.carried(rows)
        unnumbered = rows.then(
            lambda changes: catalyst.project([*child.output, *carried], changes),
            child.output,
            unique=child.unique,
        )
        return replace(unnumbered, columns=child.columns)


def _new(output: Sequence[Attribute], known: Mapping[int, str], meaning: str) -> dict[int, str]:
    """Say what new columns mean, by their places."""
    new = [each for each in output if id_of(each) not in known]
    return {id_of(each): short(f"{at}@{meaning}") for at, each in enumerate(new)}


def _has_sure_parts(catalyst: Catalyst, expression: Expression) -> bool:
    return all(child.deterministic() for child in catalyst.items(expression.children()))


def _refused(what: str, why: str, hint: str, *nodes: Plan | Expression) -> NodeError:
    return NodeError(f"the query has {what}: {why}", hint, *nodes)
