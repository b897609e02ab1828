"""MATCH_RECOGNIZE as an operator: what Spark computes of each row, what keepers compare, and the measures behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField
from pyspark.sql.types import StructType as Schema

from strandline.plan.graph import Keyed, Node
from strandline.runtime.operators.patterns.conditions import FUNCTIONS, Call, Column, Condition, Held, Literal
from strandline.runtime.operators.patterns.memory import Slot
from strandline.runtime.operators.patterns.search import Matching
from strandline.runtime.operators.views.match import MatchRecognizing
from strandline.runtime.operators.views.top import Order
from strandline.spark.views.catalyst import Attribute, Expression, Plan, id_of, kind_of, unaliased
from strandline.spark.views.intervals import duration
from strandline.spark.views.keys import KEY, check_type, key_of
from strandline.spark.views.matchclause import MatchClause, Matches
from strandline.spark.views.matchvalues import MatchExpressions, MatchValue
from strandline.spark.views.meaning import short
from strandline.spark.views.operators import Operators, hash_of, made_of, names_of, source_column, struct_of
from strandline.spark.views.places import NodeError, refuse_node
from strandline.spark.views.relations import Part, Relation, Rows, unlike
from strandline.spark.views.rewriting import Piece, Rewriting
from strandline.spark.views.structure import Span
from strandline.spark.views.sums import Addend, SumPlanner
from strandline.spark.views.times import UTC, WHOLE, Time, TimeReader
from strandline.types.datatypes import DataType, Field, LongType, StructType, parse_type

_AT = "__strandline_at"
_DAY_US = 86_400_000_000
_TRANSPARENT = frozenset({"KnownNotNull", "KnownNullable"})
_ARITHMETIC = frozenset({"Add", "Subtract", "Multiply", "Divide"})
_TYPES = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "STRING", "BINARY", "DATE",
    "TIMESTAMP", "TIMESTAMP_NTZ", "INTERVAL",
)  # fmt: skip
"""What keepers compare."""
_WIDTH = {"TINYINT": 1, "SMALLINT": 2, "INT": 3, "BIGINT": 4, "DECIMAL": 5, "FLOAT": 6, "DOUBLE": 7}
"""The types of numbers, each of which is cast to later ones."""
_LONGEST_INTERVAL = "INTERVAL DAY TO SECOND"
_HINT = (
    "conditions that compare a row with others of the match have =, <, >, +, -, *, /, AND, OR, NOT, IN, IS NULL, CASE "
    "and coalesce() of numbers, texts and times; all that is about the row alone may be any expression"
)
Run = Callable[[Rewriting, str, Schema], DataFrame]
"""Has Spark analyse a query of an empty table with this name and these columns."""


@dataclass(frozen=True)
class MatchRows:
    """The matches of a clause, as a table of the query around it."""

    schema: Schema
    make: Callable[[], Relation]
    """Returns what the operator gives: the values that keys and measures are made of."""
    results: Sequence[Expression]
    """The columns of the schema, over those of the operator."""

    def relation(self, ops: Operators, columns: Sequence[Attribute]) -> Relation:
        """Return the matches under these columns of a plan."""
        catalyst, rows = ops.catalyst, self.make()
        pairs = list(zip(self.results, columns, strict=True))
        renamed = [catalyst.alias(result, each.name(), each.exprId(), each.metadata()) for result, each in pairs]
        meanings = {id_of(each): ops.meanings.of(result, rows.columns) for result, each in pairs}

        def step(plan: Plan) -> Plan:
            return catalyst.project([*renamed, *ops.carried(rows)], plan)

        return rows.then(step, columns, "", meanings, times=TimeReader(catalyst).projected(renamed, rows.times))


def match_rows(
    ops: Operators, matches: Matches, clause: MatchClause, rows: Relation, schema: Schema, run: Run
) -> MatchRows:
    """Return the matches of a clause over the rows of its table. Raise ConfigurationError."""
    return _Planner(ops, matches, clause, rows, schema, run).planned()


@dataclass
class _Planner:
    """Plans one clause."""

    ops: Operators
    matches: Matches
    clause: MatchClause
    rows: Relation
    schema: Schema
    run: Run
    columns: dict[str, tuple[int, Expression]] = field(default_factory=dict)
    """By meaning: the columns that a row has in keepers, by their numbers."""
    before: dict[tuple[int, int], Attribute] = field(default_factory=dict)
    """Columns of the row so many rows before."""
    slots: dict[Slot, Attribute] = field(default_factory=dict)

    def planned(self) -> MatchRows:
        clause, rows = self.clause, self.rows
        names = [each.name().lower() for each in rows.output]
        by_name = {name: each for name, each in zip(names, rows.output, strict=True) if names.count(name) == 1}
        keys = [self._column(by_name, key, "PARTITION BY") for key in clause.keys]
        order = [self._column(by_name, term.column, "ORDER BY") for term in clause.order]
        lag_us = self._lag(order[0])
        time = order[0].name()
        expressions = MatchExpressions(self.matches, clause, frozenset(names), time)
        conditions = {variable: expressions.of_condition(variable) for variable in clause.conditions}
        measures = [(name, span, expressions.of_measure(span)) for name, span in clause.measures]
        of_values, fields = self._values(list(expressions.values.values()))
        parsed = self._parsed([*conditions.values(), *(pieces for _, _, pieces in measures)], of_values, fields)
        results = parsed[len(conditions) :]
        # The key is that of the last row.
        of_key = [self._slot(Slot("last", self._number(key)), key.dataType().sql()) for key in keys]
        compared = {
            variable: self._condition(result, rewriting)
            for variable, (result, _, rewriting) in zip(conditions, parsed, strict=False)
        }
        skip_slot = None
        if clause.skip_to is not None:
            is_first, variables = clause.skip_to
            slot = Slot("first" if is_first else "last", self._number(order[0]), variables)
            skip_slot = self._slot(slot, order[0].dataType().sql())
        if not self.slots:
            self._slot(Slot("last", self._number(order[0])), order[0].dataType().sql())
        for each, term in zip(order[1:], clause.order[1:], strict=True):
            if not _is_compared(each.dataType().sql()):
                raise self.matches.refused(
                    f"MATCH_RECOGNIZE: ORDER BY {each.name()}, which is {each.dataType().sql()}", term.column.first,
                    "order by numbers, texts and times",
                )  # fmt: skip
        orders = [
            Order(self._number(each), is_descending=term.is_descending, nulls_last=term.nulls_last)
            for each, term in zip(order[1:], clause.order[1:], strict=True)
        ]
        matching = self._numbered(compared, skip_slot)
        self._check_names([*(key.name() for key in keys), *(name for name, *_ in measures)])
        of_table = {field.name.lower(): field for field in self.schema.fields}
        schema = Schema([
            *(of_table[key.name().lower()] for key in keys),
            *(StructField(name, kind, True) for (name, *_), (_, kind, _) in zip(measures, results, strict=True)),
        ])  # fmt: skip

        def make() -> Relation:
            return self._operator(keys, order[0], matching, orders, lag_us)

        return MatchRows(schema, make, [*of_key, *(result for result, _, _ in results)])

    # -- checks

    def _column(self, by_name: Mapping[str, Attribute], span: Span, what: str) -> Attribute:
        token = self.matches.query.tokens[span.first]
        if token.value.lower() not in by_name:
            raise self.matches.refused(
                f"{what} {token.value}: the table of MATCH_RECOGNIZE has no such column, or several", span.first,
                f"it has {', '.join(each.name() for each in self.rows.output)}",
            )  # fmt: skip
        return by_name[token.value.lower()]

    def _lag(self, time: Attribute) -> int:
        """Return how far behind the watermark rows may be."""
        at = self.clause.order[0].column.first
        if not self.rows.appends:
            raise self.matches.refused(
                "MATCH_RECOGNIZE is of rows that stay, and those of its table change", self.clause.at,
                "give it a stream, or a view whose rows only come",
            )  # fmt: skip
        known = self.rows.times.get((id_of(time), WHOLE))
        if known is None:
            raise self.matches.refused(
                f"MATCH_RECOGNIZE: ORDER BY {time.name()}, which has no watermark: when the rows before one are all "
                "there is not known",
                at,
                f'give its stream one, .watermark("{time.name()}", "10 s"), or write the column that has one first',
            )
        return known.lag_us

    def _check_names(self, names: Sequence[str]) -> None:
        seen = set[str]()
        for at, name in enumerate(names):
            if name.lower() in seen:
                span = self.clause.measures[at - len(self.clause.keys)][1]
                raise self.matches.refused(f"MATCH_RECOGNIZE has two columns named {name}", span.first, "rename one")
            seen.add(name.lower())

    # -- what Spark parses

    def _values(self, values: Sequence[MatchValue]) -> tuple[list[Expression], list[StructField]]:
        """Return what each value of a match is, over slots and columns of the row, and the column in its place."""
        pairs_by_value: dict[int, tuple[Expression, StructField]] = {}
        for is_aggregate in (False, True):
            chosen = [at for at, each in enumerate(values) if (each.how == "aggregate") is is_aggregate]
            parsed = self._parsed([values[at].pieces for at in chosen], [], [], is_aggregate=is_aggregate)
            for at, (expression, kind, _) in zip(chosen, parsed, strict=True):
                of_match = self._aggregate if is_aggregate else self._of_row
                pairs_by_value[at] = of_match(values[at], expression), StructField(values[at].name, kind, True)
        pairs = [pairs_by_value[at] for at in range(len(values))]
        return [value for value, _ in pairs], [field for _, field in pairs]

    def _parsed(
        self,
        texts: Sequence[Sequence[Piece]],
        values: Sequence[Expression],
        fields: Sequence[StructField],
        *,
        is_aggregate: bool = False,
    ) -> list[tuple[Expression, Any, Rewriting]]:
        """Return expressions of the row and of values, with their types, and the query that Spark has parsed."""
        if not texts:
            return []
        catalyst, pieces = self.ops.catalyst, list[Piece]()
        for text in texts:
            at = next((piece.at for piece in text if piece.text), 0)
            pieces += [Piece(", (" if pieces else "SELECT (", at), *text, Piece(")", at)]
        rewriting = self.matches.edits.of([*pieces, Piece(" FROM __match_values", len(self.matches.query.text))])
        df = self.run(rewriting, "__match_values", Schema([*self.schema.fields, *fields]))
        plan = catalyst.plan_of(df)
        if kind_of(plan) != ("Aggregate" if is_aggregate else "Project") or kind_of(plan.child()) != "SubqueryAlias":
            raise self.matches.refused(
                "MATCH_RECOGNIZE has an aggregate function other than count, sum, avg, min and max, or a function that "
                "makes rows", self.clause.at, "compute it of FIRST(…), LAST(…) and these",
            )  # fmt: skip
        if catalyst.items(plan.subqueries()):
            raise self.matches.refused(
                "MATCH_RECOGNIZE has a subquery in its expressions",
                self.clause.at,
                "join the table before, or the matches",
            )
        columns = {
            id_of(each): other
            for each, other in zip(catalyst.items(plan.child().output()), [*self.rows.output, *values], strict=True)
        }
        items = catalyst.items(plan.aggregateExpressions() if is_aggregate else plan.projectList())
        for each in items:
            for part in catalyst.parts(each):
                if not part.deterministic() and all(inner.deterministic() for inner in catalyst.items(part.children())):
                    message = f"MATCH_RECOGNIZE has {part.sql()}, which is not the same each time"
                    hint = "compute it before, as a column of the stream"
                    raise refuse_node(rewriting, NodeError(message, hint, part, each))
        return [
            (self._replaced(unaliased(each), columns), field.dataType, rewriting)
            for each, field in zip(items, df.schema.fields, strict=True)
        ]

    def _replaced(self, expression: Expression, columns: Mapping[int, Expression]) -> Expression:
        def change(part: Expression) -> Expression | None:
            return columns.get(id_of(part)) if kind_of(part) == "AttributeReference" else None

        return self.ops.catalyst.replaced(expression, change)

    # -- values of a match

    def _of_row(self, value: MatchValue, expression: Expression) -> Expression:
        """Return the column that a value of one row is."""
        if value.how == "before" and not value.before:
            return expression
        number, ddl = self._number(expression), expression.dataType().sql()
        if value.before:
            new = self.ops.catalyst.attribute(ddl, value.name, self.ops.catalyst.new_id())
            attribute = self.before.setdefault((number, value.before), new)
            if value.how == "before":
                return attribute
            number = -1 - list(self.before).index((number, value.before))
        how: Any = value.how
        return self._slot(Slot(how, number, value.variables, value.count), ddl)

    def _aggregate(self, value: MatchValue, expression: Expression) -> Expression:
        """Return an aggregate function over the sums and extremes that a match holds."""
        sums = SumPlanner(self.ops, self.rows.columns, appends=True).plan([expression])
        if sums is None:
            raise self.matches.refused(
                "MATCH_RECOGNIZE: this aggregate function is not supported", value.at,
                "count, sum, avg, min and max are, without DISTINCT, of numbers, texts and times",
            )  # fmt: skip
        columns = {
            id_of(attribute): change(self._slot(self._addend_slot(addend, value), addend.kind.ddl))
            for addend, attribute, change in sums.columns
        }
        return self._replaced(sums.results[0], columns)

    def _addend_slot(self, addend: Addend, value: MatchValue) -> Slot:
        how: Any = addend.merge
        return Slot(how, self._number(addend.value), value.variables, empty=0 if addend.is_count else None)

    def _number(self, expression: Expression) -> int:
        """Return the number of the column of a row that has the value of an expression."""
        meaning = self.ops.meanings.of(expression, self.rows.columns)
        return self.columns.setdefault(meaning, (len(self.columns), expression))[0]

    def _slot(self, slot: Slot, ddl: str) -> Attribute:
        """Return the column of the results that has what a slot holds."""
        catalyst = self.ops.catalyst
        if slot not in self.slots:
            self.slots[slot] = catalyst.attribute(ddl, f"v{len(self.slots)}", catalyst.new_id())
        return self.slots[slot]

    # -- conditions

    def _condition(self, expression: Expression, rewriting: Rewriting) -> Condition:
        if expression.dataType().sql() != "BOOLEAN":
            raise refuse_node(
                rewriting,
                NodeError(
                    f"DEFINE has a value that is {expression.dataType().sql()}, expected a condition",
                    "write a comparison", expression,
                ),
            )  # fmt: skip
        try:
            return self._compared(expression)
        except NodeError as error:
            raise refuse_node(rewriting, NodeError(str(error), error.hint, *error.nodes, expression)) from None

    def _compared(self, expression: Expression) -> Condition:
        """Return what keepers evaluate; what is about the row alone is a column. Raise NodeError."""
        catalyst, kind = self.ops.catalyst, kind_of(expression)
        ids = catalyst.ids_in(expression)
        slots = {id_of(attribute): at for at, attribute in enumerate(self.slots.values())}
        before = {id_of(attribute): at for at, attribute in enumerate(self.before.values())}
        if not ids & {*slots, *before}:
            literal = None if ids else self._literal(expression)
            return literal or Column(self._number(expression))
        self._check_type(expression)
        if kind == "AttributeReference":
            number = id_of(expression)
            return Held(slots[number]) if number in slots else Column(-1 - before[number])
        if kind in _TRANSPARENT:
            return self._compared(expression.child())
        if catalyst.is_a(expression, "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"):
            return self._compared(expression.replacement())
        if kind == "With":
            # x BETWEEN a AND b has x once.
            shared = {each.id().toString(): each.child() for each in catalyst.items(expression.defs())}
            return self._compared(
                catalyst.replaced(
                    expression.child(),
                    lambda part: shared[part.id().toString()] if kind_of(part) == "CommonExpressionRef" else None,
                )
            )
        children = catalyst.items(expression.children())
        if kind == "DecimalDivideWithOverflowCheck" or (
            kind == "Divide" and expression.evalMode().toString() == "LEGACY"
        ):
            # An average's: what users write is ANSI's.
            kind = "Average"
        zone = self._check_function(kind, expression, children)
        if kind == "Cast" and not _is_number(children[0].dataType().sql()):
            return self._compared(children[0])
        return Call(kind, tuple(map(self._compared, children)), _type_of(expression), zone)

    def _literal(self, expression: Expression) -> Literal | None:
        if not expression.foldable():
            return None
        try:
            value: Any = expression.eval(None)
        except Py4JJavaError:
            return None
        if hasattr(value, "_target_id"):
            ddl = expression.dataType().sql()
            if ddl == "STRING":
                return Literal(value.toString())
            return Literal(Decimal(value.toString())) if ddl.startswith("DECIMAL") else None
        return Literal(value)

    def _check_type(self, expression: Expression) -> None:
        ddl = expression.dataType().sql()
        if not _is_compared(ddl):
            raise NodeError(f"MATCH_RECOGNIZE: a condition has a value of the match that is {ddl}", _HINT, expression)

    def _check_function(self, kind: str, expression: Expression, children: Sequence[Expression]) -> str:
        """Check that keepers evaluate a function as Spark does; return its time zone, if it has one."""
        types = [child.dataType().sql() for child in children]
        is_known = kind in FUNCTIONS
        if kind in _ARITHMETIC:
            is_known = expression.evalMode().toString() == "ANSI" and all(map(_is_number, types))
        elif kind in ("UnaryMinus", "Abs"):
            is_known = expression.failOnError() and _is_number(types[0])
        elif kind == "Cast":
            is_known = (
                types[0] == expression.dataType().sql()
                or (types[0].startswith("INTERVAL ") and expression.dataType().sql() == _LONGEST_INTERVAL)
                or (
                    _is_number(types[0])
                    and _WIDTH.get(_base(expression.dataType().sql()), 0) >= _WIDTH[_base(types[0])]
                )
            )
        elif kind in ("SubtractTimestamps", "TimestampAddInterval"):
            zone: str = expression.timeZoneId().get()
            zone = "" if zone in UTC else zone
            if kind == "SubtractTimestamps":
                is_known = not expression.legacyInterval() and _is_zone(zone)
            else:
                length = self._literal(children[1]) if children[1].foldable() else None
                is_known = length is not None and types[1].startswith("INTERVAL") and "MONTH" not in types[1]
                is_known = is_known and (not zone or abs(length.value) < _DAY_US)  # type: ignore[union-attr]
            if is_known:
                return zone
        if not is_known:
            raise NodeError(
                f"MATCH_RECOGNIZE: a condition has {_name_of(kind, expression)} of a value of the match",
                _HINT,
                expression,
            )
        return ""

    # -- the operator

    def _numbered(self, compared: Mapping[int, Condition], skip_slot: Attribute | None) -> Matching:
        """Return the matching, in which columns of rows before have the numbers behind the others."""

        def column(number: int) -> int:
            return number if number >= 0 else len(self.columns) - 1 - number

        def renumbered(condition: Condition) -> Condition:
            match condition:
                case Column(index):
                    return Column(column(index))
                case Call():
                    return replace(condition, arguments=tuple(map(renumbered, condition.arguments)))
            return condition

        clause, slots = self.clause, list(self.slots)
        ids = [id_of(each) for each in self.slots.values()]
        return Matching(
            clause.pattern, {variable: renumbered(each) for variable, each in compared.items()},
            tuple(replace(slot, column=column(slot.column)) for slot in slots), clause.within_us, clause.skip,
            None if skip_slot is None else ids.index(id_of(skip_slot)),
        )  # fmt: skip

    def _operator(
        self, keys: Sequence[Attribute], time: Attribute, matching: Matching, order: Sequence[Order], lag_us: int
    ) -> Relation:
        ops, rows, catalyst = self.ops, self.rows, self.ops.catalyst
        by = ", ".join(rows.columns[id_of(key)] for key in keys)
        before = [*self.before]
        meaning = short(
            f"match {matching} {order} {before} by [{by}] at {rows.columns[id_of(time)]} {lag_us} of {[*self.columns]}"
            f"({rows.rows})"
        )
        attributes = list(self.slots.values())
        clause = self.clause

        def make() -> tuple[Node, tuple[str, ...], Part]:
            for each in (*self._expressions_of_rows(), *attributes):
                check_type(each)
            names = unlike([source_column(meant) or f"c{at}" for at, meant in enumerate(self.columns)])
            columns = [*zip(names, self._expressions_of_rows(), strict=True)]
            at = catalyst.call("unix_micros", time)
            pairs = ((KEY, key_of(catalyst, keys)), *columns, (_AT, at))
            node = Rows(catalyst, rows, pairs, is_weighted=False, is_timed=True).node()
            kind = StructType(tuple(Field(each.name(), parse_type(each.dataType().sql())) for each in attributes))
            process = MatchRecognizing(
                struct_of(node, [KEY]), struct_of(node, names), kind, matching, order, before, lag_us
            )
            operator = ops.operator(Keyed(node, (KEY,)), f"match-{hash_of(meaning)}", process, kind, "match_recognize")
            what = f"MATCH_RECOGNIZE {clause.pattern_text}" + (
                f" by {names_of(keys)}" if keys else ", no key: one partition does all of it"
            )
            return operator, kind.names, Part(operator.uid, what, self._keeps, "", bound=self._bound(time))

        node, names, part = ops.once(meaning, make, rows)
        times = {}
        if clause.within_us is not None:
            # No row of a match is further behind the watermark than its first one, when that is known.
            times = {
                (id_of(attribute), WHOLE): Time(lag_us + clause.within_us, 0, clause.within_us - 1)
                for slot, attribute in self.slots.items()
                if slot.is_row and slot.column == self._number(time)
            }
        return made_of(
            rows, node=node, names=names, output=attributes, meaning=meaning, part=part, appends=True,
            hidden=ops.hidden_of(node.columns.hidden), times=times,
        )  # fmt: skip

    def _expressions_of_rows(self) -> list[Expression]:
        """Return the columns of rows. What fails of one row is null there: no condition may need it."""
        return [
            each if kind_of(each) == "AttributeReference" else self.ops.catalyst.try_(each)
            for _, each in self.columns.values()
        ]

    @property
    def _keeps(self) -> str:
        keeps = "rows that wait for the watermark, and those from the first row of an open match on"
        most = max((count for _, count in self.before), default=0)
        return f"{keeps}; the last {most} of each key" if most else keeps

    def _bound(self, time: Attribute) -> str:
        within_us = self.clause.within_us
        if within_us is None:
            return "an open match is kept for ever, as there is no WITHIN"
        return f"rows until the watermark is {duration(within_us)} after {time.sql()} of a match's first row"


def _type_of(expression: Expression) -> DataType:
    ddl = expression.dataType().sql()
    return LongType() if ddl.startswith("INTERVAL") else parse_type(ddl)


def _name_of(kind: str, expression: Expression) -> str:
    return f"CAST AS {expression.dataType().sql()}" if kind == "Cast" else f"{expression.prettyName()}()"


def _is_compared(ddl: str) -> bool:
    return re.split(r"[ (]", ddl)[0] in _TYPES and "COLLATE" not in ddl


def _base(ddl: str) -> str:
    return ddl.split("(")[0]


def _is_number(ddl: str) -> bool:
    return _base(ddl) in _WIDTH


def _is_zone(zone: str) -> bool:
    try:
        return not zone or bool(ZoneInfo(zone))
    except (ValueError, KeyError):
        return False
