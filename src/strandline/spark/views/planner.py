"""From Spark's optimised plan of a query to a pipeline that keeps its result up to date.

Spark's optimizer leaves few kinds of nodes: what is linear goes on unchanged (`relations.py`); joins, aggregates,
window functions and limits become operators with state (`operators.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from strandline.spark.views.asof import without_asof
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, Plan, id_of, kind_of, meaning_of
from strandline.spark.views.operators import Operators
from strandline.spark.views.places import NodeError
from strandline.spark.views.relations import Relation, Static, short

_PASSED_ON = frozenset(
    {"RepartitionByExpression", "Repartition", "RebalancePartitions", "ResolvedHint", "Sort", "WindowGroupLimit"}
)
"""What changes the order of rows alone, or which of them a later step leaves out, too."""
_LINEAR = frozenset({"Project", "Filter", "Generate", "Expand"})
_NOT_LEFT_OF_STATIC = frozenset({"RightOuter", "FullOuter"})
_NOT_RIGHT_OF_STATIC = frozenset({"LeftOuter", "FullOuter", "LeftSemi", "LeftAnti", "ExistenceJoin"})


@dataclass
class Planner:
    """Plans one query."""

    catalyst: Catalyst
    tables: Mapping[int, Callable[[Sequence[Attribute]], Relation]]
    """By the id of the RDD that stands for it: the relation of a table, under these columns of the plan."""
    operators: Operators
    _lowered: dict[int, Relation | Static] = field(default_factory=dict)

    def relation(self, plan: Plan) -> Relation:
        """Return the relation of a query's plan."""
        kind = kind_of(plan)
        if kind == "Sort":
            raise _refused(
                "ORDER BY without LIMIT",
                "a result that changes has no order",
                "leave ORDER BY out and sort where you read; or add LIMIT n for the first n rows",
                plan,
            )
        lowered = self._lower(plan)
        return self._as_relation(lowered)

    def _as_relation(self, lowered: Relation | Static) -> Relation:
        return self.operators.constant(lowered) if isinstance(lowered, Static) else lowered

    def _lower(self, plan: Plan) -> Relation | Static:
        kind = kind_of(plan)
        if kind == "AsOfJoin":
            return self._lower(without_asof(self.catalyst, plan))
        if kind == "LogicalRDD" and (table := self.tables.get(plan.rdd().id())) is not None:
            return table(self.catalyst.items(plan.output()))
        plan, extra = self._with_subqueries(plan)
        kind = kind_of(plan)
        children = (
            [extra] if extra is not None else [self._lower(child) for child in self.catalyst.items(plan.children())]
        )
        if all(isinstance(child, Static) for child in children):
            return Static(plan, short(plan.canonicalized().toString()))
        if kind in _PASSED_ON:
            return children[0]
        if kind in _LINEAR:
            assert isinstance(children[0], Relation)
            return self._linear(kind, plan, children[0])
        match kind:
            case "Join":
                return self._join(plan, children[0], children[1])
            case "Union":
                return self._union(plan, [self._as_relation(child) for child in children])
            case "Aggregate":
                return self._aggregate(plan, self._as_relation(children[0]))
            case "Window":
                return self._window(plan, self._as_relation(children[0]))
            case "GlobalLimit" | "LocalLimit" | "Offset":
                return self._limit(plan)
            case "Sample":
                raise _refused(
                    "TABLESAMPLE",
                    "each epoch would draw other rows",
                    "filter by a hash: WHERE abs(hash(id)) % 10 = 0",
                    plan,
                )
        raise _refused(
            f"a step that Spark calls {kind}", "it cannot be kept up to date", "write the query without it", plan
        )

    # -- linear steps

    def _linear(self, kind: str, plan: Plan, child: Relation) -> Relation:
        self._check_deterministic(plan)
        catalyst = self.catalyst
        output = catalyst.items(plan.output())
        columns: dict[int, str] = {}
        texts: list[str] = []
        unique = child.unique
        match kind:
            case "Project":
                expressions = catalyst.items(plan.projectList())
                same: dict[int, int] = {}
                for expression in expressions:
                    text = self._meaning(_unaliased(expression), child)
                    texts.append(text)
                    columns[id_of(expression)] = text
                    if kind_of(_unaliased(expression)) == "AttributeReference":
                        same.setdefault(id_of(_unaliased(expression)), id_of(expression))
                if unique is not None:
                    unique = frozenset(same[each] for each in unique) if unique <= same.keys() else None

                def step(rows: Plan) -> Plan:
                    return catalyst.project([*expressions, self.operators.weight], rows)
            case "Expand":
                unique = None
                for at, attribute in enumerate(output):
                    columns[id_of(attribute)] = short(f"expand{at}({child.meaning}{self._meanings(plan, child)})")
                texts = [self._meanings(plan, child)]

                def step(rows: Plan) -> Plan:
                    weight = self.operators.weight
                    lists = catalyst.items(plan.projections())
                    projections = [catalyst.seq([*catalyst.items(each), weight]) for each in lists]
                    return catalyst.expand(projections, [*output, weight], rows)
            case _:
                texts = [self._meanings(plan, child)]
                for attribute in output:
                    if id_of(attribute) not in child.columns:
                        columns[id_of(attribute)] = short(f"{attribute.name()}@{texts[0]}")
                if kind == "Generate":
                    unique = None

                def step(rows: Plan) -> Plan:
                    return catalyst.with_children(plan, [rows])

        return child.then(step, output, f"{kind}[{', '.join(texts)}]", columns, unique=unique)

    def _check_deterministic(self, plan: Plan) -> None:
        for expression in self.catalyst.items(plan.expressions()):
            if not expression.deterministic():
                part = [each for each in self.catalyst.parts(expression) if not each.deterministic()][-1]
                raise _refused(
                    f"{part.sql()}, which is not the same each time",
                    "a row could not be taken back as it was given",
                    "compute it before, as a column of the stream; or use a hash of the row's columns",
                    part,
                    expression,
                )

    def _meaning(self, expression: Expression, child: Relation) -> str:
        return short(meaning_of(expression, child.columns))

    def _meanings(self, plan: Plan, child: Relation) -> str:
        return ", ".join(meaning_of(each, child.columns) for each in self.catalyst.items(plan.expressions()))

    # -- subqueries

    def _with_subqueries(self, plan: Plan) -> tuple[Plan, Relation | None]:
        """Return a node without scalar subqueries of changing tables, and its child joined with their results."""
        of_subquery: dict[str, tuple[Any, Relation]] = {}
        catalyst = self.catalyst

        def look(expression: Expression) -> Expression | None:
            if kind_of(expression) != "ScalarSubquery":
                return None
            key = short(expression.plan().canonicalized().toString())
            if key not in of_subquery:
                lowered = self._lower(expression.plan())
                if isinstance(lowered, Static):
                    return None
                of_subquery[key] = expression, lowered
            # The columns of equal subqueries have other ids.
            return of_subquery[key][1].output[0]

        if not self.catalyst.has_subquery(plan):
            return plan, None
        changed = catalyst.change_expressions(plan, lambda each: catalyst.replaced(each, look))
        if not of_subquery:
            return plan, None
        children = catalyst.items(plan.children())
        if len(children) != 1:
            raise _refused(
                "a scalar subquery in the condition of a join",
                "it has no place of its own",
                "write it in WHERE",
                *(expression for expression, _ in of_subquery.values()),
            )
        child = self._as_relation(self._lower(children[0]))
        for _, subquery in of_subquery.values():
            child = self.operators.join("left", child, [], subquery, [])
        if kind_of(plan) == "Filter":
            # What a filter gives has no column more.
            output = catalyst.items(plan.output())
            condition = changed.condition()
            changed = catalyst.project(output, catalyst.filter(condition, catalyst.items(plan.children())[0]))
            filtered = self._linear_filter(condition, child)
            return changed, filtered
        return changed, child

    def _linear_filter(self, condition: Expression, child: Relation) -> Relation:
        catalyst = self.catalyst
        return child.then(
            lambda rows: catalyst.filter(condition, rows),
            child.output,
            f"Filter[{meaning_of(condition, child.columns)}]",
            unique=child.unique,
        )

    # -- joins

    def _join(self, plan: Plan, left: Relation | Static, right: Relation | Static) -> Relation:
        self._check_deterministic(plan)
        how = kind_of(plan.joinType())
        if isinstance(right, Static) and isinstance(left, Relation) and how not in _NOT_LEFT_OF_STATIC:
            return self._static_join(plan, left, right)
        if isinstance(left, Static) and isinstance(right, Relation) and how not in _NOT_RIGHT_OF_STATIC:
            return self._static_join(plan, right, left, is_left=False)
        left, right = self._as_relation(left), self._as_relation(right)
        left_keys, right_keys, rest = self.catalyst.join_keys(plan)
        exists = plan.joinType().exists() if how == "ExistenceJoin" else None
        return self.operators.any_join(how, left, left_keys, right, right_keys, rest, exists)

    def _static_join(self, plan: Plan, rows: Relation, table: Static, *, is_left: bool = True) -> Relation:
        """Join changes with a table that stays as it is: Spark does it."""
        catalyst = self.catalyst
        output = catalyst.items(plan.output())
        text = short(
            f"{kind_of(plan.joinType())}[{self._meanings(plan, replace(rows, columns=rows.columns))}|{table.meaning}]"
        )
        columns = {
            id_of(each): short(f"{each.name()}@{at}@{text}")
            for at, each in enumerate(output)
            if id_of(each) not in rows.columns
        }

        def step(changes: Plan) -> Plan:
            sides = [changes, table.plan] if is_left else [table.plan, changes]
            return catalyst.project([*output, self.operators.weight], catalyst.with_children(plan, sides))

        is_filter = kind_of(plan.joinType()) in ("LeftSemi", "LeftAnti", "ExistenceJoin")
        return rows.then(step, output, text, columns, unique=rows.unique if is_filter else None)

    # -- what needs state

    def _union(self, plan: Plan, children: Sequence[Relation]) -> Relation:
        return self.operators.union(children, self.catalyst.items(plan.output()))

    def _aggregate(self, plan: Plan, child: Relation) -> Relation:
        self._check_deterministic_functions(plan)
        return self.operators.aggregate(plan, child)

    def _check_deterministic_functions(self, plan: Plan) -> None:
        for expression in self.catalyst.items(plan.expressions()):
            for each in self.catalyst.parts(expression):
                if not each.deterministic() and kind_of(each) in (
                    "Rand",
                    "Randn",
                    "Uuid",
                    "Shuffle",
                    "MonotonicallyIncreasingID",
                ):
                    raise _refused(each.sql(), "it is not the same each time", "compute it before, as a column", each)

    def _window(self, plan: Plan, child: Relation) -> Relation:
        return self.operators.window(plan, child)

    def _limit(self, plan: Plan) -> Relation:
        """LIMIT and OFFSET of sorted rows: Spark nests a LocalLimit, an Offset and a GlobalLimit."""
        limit: int | None = None
        offset, limited = 0, plan
        while (kind := kind_of(plan)) in ("GlobalLimit", "LocalLimit", "Offset"):
            if kind == "GlobalLimit":
                limit = int(plan.limitExpr().eval(None))
            elif kind == "Offset":
                offset = int(plan.offsetExpr().eval(None))
            plan = plan.child()
        is_sorted = kind == "Sort"
        inner = plan.child() if is_sorted else plan
        child = self._as_relation(self._lower(inner))
        order = self.catalyst.items(plan.order()) if is_sorted else []
        if not is_sorted and not self._has_equal_rows(inner):
            raise _refused(
                "LIMIT without ORDER BY",
                "which rows they are is not defined, and would change",
                "add ORDER BY; if any row will do, aggregate with any_value()",
                limited,
            )
        return self.operators.limit(child, order, limit, offset)

    def _has_equal_rows(self, plan: Plan) -> bool:
        return kind_of(plan) == "Project" and all(
            _unaliased(each).foldable() for each in self.catalyst.items(plan.projectList())
        )


def _unaliased(expression: Expression) -> Expression:
    return expression.child() if kind_of(expression) == "Alias" else expression


def _refused(what: str, why: str, hint: str, *nodes: Plan | Expression) -> NodeError:
    return NodeError(f"the query has {what}: {why}", hint, *nodes)
