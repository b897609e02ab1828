"""Aggregates that are kept as sums and extremes, and the SQL of Spark's around them.

Spark computes what a row adds, and the result from the sums: a sum in keepers is all that is ours.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.format.manifest import AggregateInfo
from strandline.plan.aggregates import AccumulatorColumn
from strandline.runtime.builtin import Aggregated
from strandline.runtime.operators.aggregates.accumulators import FieldSpec
from strandline.runtime.operators.views.totals import COUNT
from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, Plan, kind_of
from strandline.spark.views.operators import Operators, source_column
from strandline.spark.views.relations import Linear
from strandline.types.datatypes import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    StringType,
    TimestampNTZType,
    TimestampType,
    parse_type,
)

ROWS_TEXT = "rows of the group"
"""What people are told of the column COUNT."""
_EXTREMES = {"Max": "max", "Min": "min"}
_ORDERED = (
    BooleanType, DateType, DecimalType, DoubleType, FloatType, IntegralType, StringType, TimestampNTZType,
    TimestampType,
)  # fmt: skip


@dataclass(frozen=True)
class Addend:
    """A column of the accumulator."""

    name: str
    value: Expression
    """What a row adds."""
    kind: DataType
    merge: str
    counted: str = ""
    """The column with the number of values that are not null: where that is 0, the result is null."""
    meant: str = ""
    """The name that its meaning gives."""

    @property
    def is_count(self) -> bool:
        """Whether it is a number of rows."""
        return self.merge == "sum" and not self.counted

    def nothing(self, catalyst: Catalyst) -> Expression:
        """Return what no row adds."""
        return catalyst.sql("0L" if self.is_count else f"cast(null as {self.kind.ddl})")

    @property
    def part(self) -> AccumulatorColumn:
        """The column as Spark computes it of many rows, or of one."""
        c = f"`{self.name}`"
        many = f"cast({self.merge}({c}) as {self.kind.ddl})"
        return AccumulatorColumn(self.kind, self.merge, many, c, lambda of, n: of[self.name])

    @property
    def field(self) -> FieldSpec:
        """The column as keepers use it."""
        return FieldSpec(self.name, self.kind.ddl, self.merge)


@dataclass(frozen=True)
class Sums:
    """The accumulator of an aggregation, and the results as expressions over its columns."""

    addends: list[Addend]
    """The first one is the number of rows."""
    aggregates: Mapping[str, tuple[AggregateInfo, str]]
    """The aggregates for manifests, each with its text in the query."""
    same: Mapping[str, str]
    """By column: another one with the same values."""
    was: Mapping[str, str]
    """By aggregate with a name of the user's: the name that its meaning gives."""
    columns: list[tuple[Addend, Attribute, Callable[[Expression], Expression]]]
    """What Spark knows as buffers: the column that each is, and what is made of it."""
    results: list[Expression]

    def aggregated(self, *, appends: bool, stored: Mapping[str, str] | None = None) -> Aggregated:
        """Return the description of the aggregates for manifests and upgrades.

        `stored` has the names of the columns in the state, if they are other ones there.
        """
        names = stored or {each.name: each.name for each in self.addends}
        return Aggregated(
            infos={
                name: AggregateInfo(function=info.function, type=info.type, columns=[names[c] for c in info.columns])
                for name, (info, _) in self.aggregates.items()
            },
            merges={names[each.name]: each.merge for each in self.addends},
            empty={names[each.name]: 0 for each in self.addends if each.is_count},
            was=self.was,
            added=(),
            texts={name: text for name, (_, text) in self.aggregates.items()},
            same={names[column]: names[other] for column, other in self.same.items()},
            is_changed=not appends,
        )

    def counted(
        self, parts: Mapping[str, AccumulatorColumn], stored: Mapping[str, str] | None = None
    ) -> dict[str, AccumulatorColumn]:
        """Return the accumulator's columns, the numbers of rows as Spark counts: for rows of which each is added.

        `stored` is as in aggregated().
        """
        counts = {stored[each] if stored else each for each in (COUNT, *self.same)}
        return {
            name: replace(part, many="count(1)", addend="") if name in counts else part for name, part in parts.items()
        }

    def finish(
        self,
        ops: Operators,
        key: Attribute,
        keys: Sequence[Attribute],
        *more: Expression,
        hidden: Sequence[Attribute] = (),
    ) -> tuple[dict[str, Attribute], Linear]:
        """Return the columns that keepers give, by name, and the step that makes the results of them.

        `keys` are the columns in the key of the rows, and `more` are others that the results need; `hidden` ones stay.
        """
        catalyst = ops.catalyst
        groups = [
            catalyst.alias(catalyst.field(key, at), each.name(), each.exprId(), each.metadata())
            for at, each in enumerate(keys)
        ]
        stored = {
            each.name: catalyst.attribute(each.kind.ddl, each.name, catalyst.new_id()) for each, _, _ in self.columns
        }
        buffers = [
            catalyst.alias(change(stored[each.name]), attribute.name(), attribute.exprId())
            for each, attribute, change in self.columns
        ]

        def step(rows: Plan) -> Plan:
            rows = catalyst.project([*groups, *more, *buffers, ops.weight, *hidden], rows)
            return catalyst.project([*self.results, ops.weight, *hidden], rows)

        return stored, step


class SumPlanner:
    """Looks whether the aggregates of a node can be kept as sums."""

    def __init__(self, ops: Operators, columns: Mapping[int, str], *, appends: bool) -> None:
        """`columns` say what the columns of the rows mean, so that columns of the state are named by what they mean."""
        self._catalyst, self._weight, self._meanings = ops.catalyst, ops.weight, ops.meanings
        self._columns_mean = columns
        self._appends = appends
        self._is_strict = ops.catalyst.spark.conf.get("spark.sql.ansi.enabled") == "true"
        self._addends: dict[str, Addend] = {}
        self._aggregates: dict[str, tuple[AggregateInfo, str]] = {}
        self._used: list[Addend] = []
        """The columns of the aggregate that is being planned."""
        self._is_pinned = bool(ops.pin)
        """Whether aggregates are known by the names of their results: those of an operator with the user's uid."""
        self._result = ""
        self._was: dict[str, str] = {}
        self._columns: list[tuple[Addend, Attribute, Callable[[Expression], Expression]]] = []

    def plan(self, results: Sequence[Expression]) -> Sums | None:
        """Return the accumulator of some results; None if one of them needs all rows of a group."""
        rows = self._add("rows", self._weight, LongType(), "sum", name=COUNT)
        self._possible = True
        changed = [self._of_result(each) for each in results]
        if not self._possible:
            return None
        self._aggregates[COUNT] = AggregateInfo(function="count", type="bigint", columns=[COUNT]), ROWS_TEXT
        addends = [rows, *(each for each in self._addends.values() if each is not rows)]
        same = {each.name: COUNT for each in addends if each.is_count and each.value == rows.value and each is not rows}
        return Sums(addends, self._aggregates, same, self._was, self._columns, changed)

    def _of_result(self, result: Expression) -> Expression:
        """Return a result over the accumulator's columns."""
        self._result = re.sub(r"\W", "_", result.name(), flags=re.ASCII).lower() if self._is_pinned else ""
        return self._catalyst.replaced(result, self._of_aggregate)

    def _of_aggregate(self, expression: Expression) -> Expression | None:
        """Return what an aggregate function is over the accumulator's columns."""
        if kind_of(expression) != "AggregateExpression":
            return None
        function = expression.aggregateFunction()
        how, of = kind_of(function), self._catalyst.items(function.children())
        condition = expression.filter().get() if expression.filter().isDefined() else None
        result = None
        self._used.clear()
        if not expression.isDistinct():
            if how == "Count":
                result = self._count(of, condition)
            elif how in _EXTREMES and self._appends:
                result = self._extreme(_EXTREMES[how], of[0], condition)
            elif how == "Sum":
                result = self._sum(function, of[0], condition)
            elif how == "Average":
                result = self._average(function, of[0], condition)
        self._possible = self._possible and result is not None
        if result is not None:
            self._know("avg" if how == "Average" else how.lower(), expression)
        # Anything will do in place of it: there will be no such accumulator.
        return result if result is not None else expression

    def _know(self, function: str, expression: Expression) -> None:
        """Keep what manifests and people are told of an aggregate that has been planned."""
        main, *others = sorted(dict.fromkeys(self._used), key=lambda each: each.is_count)
        columns = [each.name for each in (main, *others)]
        info = AggregateInfo(function=function, type=expression.dataType().sql().lower(), columns=columns)
        name = f"{function}_{main.meant.partition('_')[2]}"
        if self._is_pinned:
            number = sum(known.rpartition("#")[0] == self._result for known in self._aggregates)
            name, was = f"{self._result}#{number + 1}", name
            self._was[name] = was
        self._aggregates[name] = info, expression.sql().replace("(1)", "(*)")

    def _count(self, of: Sequence[Expression], condition: Expression | None) -> Expression:
        return self._column(self._counted(of, condition))

    def _counted(self, of: Sequence[Expression], condition: Expression | None) -> Addend:
        catalyst = self._catalyst
        for each in of:
            condition = catalyst.both(condition, catalyst.not_null(each)) if each.nullable() else condition
        value = self._weight if condition is None else catalyst.if_(condition, self._weight, catalyst.sql("0L"))
        return self._add("count", value, LongType(), "sum", of=of[0] if len(of) == 1 else None)

    def _extreme(self, how: str, value: Expression, condition: Expression | None) -> Expression | None:
        kind = self._type_of(value)
        if not isinstance(kind, _ORDERED):
            return None
        return self._column(self._add(how, self._only(value, condition), kind, how, of=value))

    def _sum(self, function: Any, value: Expression, condition: Expression | None) -> Expression | None:
        kind = self._summed_type(value, function.dataType())
        # Without ANSI's rules, and in try_sum(), a sum that is too large is another number, or null.
        if kind is None or not self._is_strict or function.evalContext().evalMode().toString() != "ANSI":
            return None
        return self._column(self._total(value, kind, condition))

    def _average(self, function: Any, value: Expression, condition: Expression | None) -> Expression | None:
        catalyst = self._catalyst
        total, count = catalyst.items(function.aggBufferAttributes())[:2]
        kind = self._summed_type(value, total.dataType())
        if kind is None or not self._is_strict:
            return None
        if isinstance(kind, LongType) and not isinstance(self._type_of(value), LongType):
            exact: DataType = LongType()
        else:
            exact = DecimalType(38, 0) if isinstance(kind, LongType) else kind
        ddl = total.dataType().sql()
        summed = self._total(value, exact, condition)
        self._columns.append((summed, total, lambda column: catalyst.cast(column, ddl)))
        self._columns.append((self._counted([value], condition), count, lambda column: column))
        return function.evaluateExpression()

    def _total(self, value: Expression, kind: DataType, condition: Expression | None) -> Addend:
        catalyst = self._catalyst
        added = catalyst.cast(value, kind.ddl)
        if not self._appends:
            is_gone = catalyst.less_than(self._weight, catalyst.sql("0L"))
            added = catalyst.if_(is_gone, catalyst.negative(added), added)
        counted = self._counted([value], condition).name
        return self._add("sum", self._only(added, condition), kind, "sum", counted, of=value)

    def _summed_type(self, value: Expression, result: Any) -> DataType | None:
        kind = self._type_of(value)
        if isinstance(kind, IntegralType):
            return LongType()
        if isinstance(kind, DecimalType):
            return parse_type(result.sql())
        # A double that is taken back leaves another sum than before it came.
        return DoubleType() if isinstance(kind, FloatType | DoubleType) and self._appends else None

    def _only(self, value: Expression, condition: Expression | None) -> Expression:
        """Return a value, or null for rows of weight 0 and those for which the condition is not true."""
        catalyst = self._catalyst
        is_row = catalyst.negation(catalyst.equal_to(self._weight, catalyst.sql("0L")))
        return catalyst.if_(catalyst.both(condition, is_row), value, catalyst.null_like(value))

    def _add(
        self,
        what: str,
        value: Expression,
        kind: DataType,
        merge: str,
        counted: str = "",
        *,
        name: str = "",
        of: Expression | None = None,
    ) -> Addend:
        """Return the column of a value; `of` is the argument of the function, after which people know it."""
        if not name:
            meaning = self._meanings.of(value, self._columns_mean)
            column = source_column(self._meanings.of(of, self._columns_mean)) if of is not None else ""
            parts = (what, column, hashlib.sha256(f"{meaning} {kind.ddl}".encode()).hexdigest()[:12])
            name = "_".join(filter(None, parts))
        key = f"{self._result} {name}"
        if key not in self._addends:
            meant, name = name, self._named(what) if self._result else name
            self._addends[key] = Addend(name, value, kind, merge, counted, meant)
        self._used.append(self._addends[key])
        return self._addends[key]

    def _named(self, what: str) -> str:
        """Return the name of a column of the result's own, which no other column has."""
        names = {each.name for each in self._addends.values()}
        numbered = (f"{what}_{self._result}_{number}" for number in itertools.count(1))
        return next(name for name in numbered if name not in names)

    def _column(self, addend: Addend) -> Expression:
        """Return the column of an accumulator in Spark's plan."""
        for known, attribute, _ in self._columns:
            if known is addend and attribute.name() == addend.name:
                return attribute
        attribute = self._catalyst.attribute(addend.kind.ddl, addend.name, self._catalyst.new_id())
        self._columns.append((addend, attribute, lambda column: column))
        return attribute

    def _type_of(self, expression: Expression) -> DataType | None:
        try:
            return parse_type(expression.dataType().sql())
        except ConfigurationError:
            return None
