"""Texts of what expressions and plans mean: the same in each process, and another for what gives other rows.

Spark's own texts leave out types of literals and data of tables, cut long lists, and its canonical forms depend on ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from strandline.spark.views.catalyst import Attribute, Catalyst, Expression, Plan, id_of, kind_of

_CATALYST = "org.apache.spark.sql.catalyst"
_EXPRESSION, _PLAN = f"{_CATALYST}.expressions.Expression", f"{_CATALYST}.plans.logical.LogicalPlan"
_TYPE = "org.apache.spark.sql.types.DataType"
_LONGEST = 120


class Meanings:
    """Says what parts of one query's plan mean."""

    def __init__(self, catalyst: Catalyst, tables: dict[int, str]) -> None:
        """`tables` are the names of tables of RDDs, by the id of these."""
        self._catalyst, self.tables = catalyst, tables

    def of(self, expression: Expression, columns: Mapping[int, str]) -> str:
        """Return what an expression means, whose columns mean what `columns` say."""
        return short(self._value(expression, columns, {}))

    def of_all(self, plan: Plan, columns: Mapping[int, str]) -> str:
        """Return what the expressions of a node of a plan mean, without its children."""
        ids: dict[int, str] = {}
        children = self._catalyst.items(plan.children())
        arguments = self._catalyst.items_of(plan.productIterator())
        return short(
            ", ".join(self._value(each, columns, ids) for each in arguments if all(each != child for child in children))
        )

    def of_table(self, plan: Plan) -> str:
        """Return what a plan means that reads no stream."""
        return short(self._value(plan, {}, {}))

    def _value(self, value: Any, columns: Mapping[int, str], ids: dict[int, str]) -> str:
        catalyst = self._catalyst
        if not hasattr(value, "_target_id"):
            return repr(value)
        if catalyst.is_a(value, _EXPRESSION):
            return self._expression(value, columns, ids)
        if catalyst.is_a(value, _PLAN):
            return self._plan(value, columns, ids)
        if catalyst.is_a(value, _TYPE):
            text: str = value.json()
            return text
        if catalyst.is_a(value, "scala.collection.immutable.Seq"):
            return f"[{', '.join(self._value(each, columns, ids) for each in catalyst.items(value))}]"
        if catalyst.is_a(value, f"{_CATALYST}.expressions.ExprId"):
            return ""
        if catalyst.is_a(value, "scala.Product"):
            parts = (self._value(each, columns, ids) for each in catalyst.items_of(value.productIterator()))
            return f"{kind_of(value)}({', '.join(parts)})"
        return kind_of(value) if "@" in value.toString() else str(value.toString())

    def _expression(self, value: Expression, columns: Mapping[int, str], ids: dict[int, str]) -> str:
        kind = kind_of(value)
        match kind:
            case "AttributeReference" | "NamedLambdaVariable" | "OuterReference":
                number = id_of(value)
                return columns.get(number) or ids.setdefault(number, f"#{len(ids)} {value.dataType().catalogString()}")
            case "Alias":
                return self._value(value.child(), columns, ids)
            case "Literal":
                return f"{value.sql()}:{value.dataType().catalogString()}"
            case "PythonUDF":
                # The bytes of the same function differ between processes.
                inner = [self._value(each, columns, ids) for each in self._catalyst.items(value.children())]
                return f"{kind}({value.name()}, {value.dataType().json()}, {', '.join(inner)})"
            case "AggregateExpression":
                arguments = self._catalyst.items_of(value.productIterator())[:4]
                return f"{kind}({', '.join(self._value(each, columns, ids) for each in arguments)})"
        parts = (self._value(each, columns, ids) for each in self._catalyst.items_of(value.productIterator()))
        return f"{kind}({', '.join(parts)})"

    def _plan(self, plan: Plan, columns: Mapping[int, str], ids: dict[int, str]) -> str:
        catalyst, kind = self._catalyst, kind_of(plan)
        output = ", ".join(self._named(each, ids) for each in catalyst.items(plan.output()))
        match kind:
            case "LocalRelation":
                rows = catalyst.items(plan.data())
                data = "\n".join(str(row.toSeq(plan.schema()).mkString("\1")) for row in rows)
                return f"{kind}({output}; {hashlib.sha256(data.encode()).hexdigest()[:16]})"
            case "LogicalRDD":
                return f"{kind}({output}; {self.tables.get(plan.rdd().id(), '')})"
            case "LogicalRelation":
                table = plan.catalogTable()
                name = table.get().identifier().toString() if table.isDefined() else _paths(catalyst, plan.relation())
                return f"{kind}({output}; {name})"
            case "DataSourceV2ScanRelation" | "DataSourceV2Relation":
                relation = plan.relation() if kind == "DataSourceV2ScanRelation" else plan
                return f"{kind}({output}; {relation.table().name()})"
        parts = (self._value(each, columns, ids) for each in catalyst.items_of(plan.productIterator()))
        return f"{kind}({output}; {', '.join(parts)})"

    def _named(self, column: Attribute, ids: dict[int, str]) -> str:
        text = ids.setdefault(id_of(column), f"#{len(ids)} {column.dataType().catalogString()}")
        return f"{column.name()} {text}"


def _paths(catalyst: Catalyst, relation: Any) -> str:
    if not catalyst.is_a(relation, "org.apache.spark.sql.execution.datasources.HadoopFsRelation"):
        return str(relation.getClass().getName())
    return ", ".join(str(path.toString()) for path in catalyst.items(relation.location().rootPaths()))


def short(text: str) -> str:
    """Return a text, or in place of a long one its hash."""
    return text if len(text) <= _LONGEST else hashlib.sha256(text.encode()).hexdigest()[:32]
