"""Rows of one key, among those that operators read; the key of a view's operator in the columns of its query."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.plan.graph import Node, OperatorNode, PairNode, with_ancestors
from strandline.spark.streams.frames import FrameStep
from strandline.spark.views.keys import KEY
from strandline.spark.views.relations import Rows as ViewRows
from strandline.testing.nodes import Rows
from strandline.types.columns import to_python
from strandline.types.datatypes import DataType, StringType, StructType, parse_schema


def rows_of_key(node: Node, rows: Rows, operators: Sequence[OperatorNode], wanted: str) -> Rows:
    """Return the rows of a node for one key; all if they are needed for other keys, too, as rules of a broadcast."""
    keys = _keys_behind(node, operators)
    return rows if keys is None else rows.filter(has_key(rows, keys, wanted))


def has_key(rows: pa.RecordBatch, keys: Sequence[str], wanted: str) -> pa.Array:
    """Return which rows have a key, as text; several columns with commas between."""
    columns = [rows.column(name).to_pylist() for name in keys]
    return pa.array([",".join(map(str, values)) == wanted for values in zip(*columns, strict=True)], pa.bool_())


def _keys_behind(node: Node, operators: Sequence[OperatorNode]) -> Sequence[str] | None:
    """Return the key columns by which operators read a node's rows; None if its rows are needed for other keys."""
    keys = set()
    for operator in operators:
        parent = operator.parent
        if parent is node:
            keys.add(operator.keys)
        elif isinstance(parent, PairNode) and node in parent.parents:
            halves = [half.keys for half in parent.halves if half.node is node]
            if any(not half for half in halves):
                return None
            keys.update(halves)
        elif node in with_ancestors(operator):
            return None
    return next(iter(keys)) if len(keys) == 1 else None


def keys_in(node: OperatorNode, rows: Rows) -> list[Any]:
    """Return the key of each row that an operator reads, as its function sees it; compare keys as texts, for NaN."""
    kinds = parse_schema(node.input_schema).types_of(node.keys)
    columns = [to_python(_positive(rows.column(name)), kind) for name, kind in zip(node.keys, kinds, strict=True)]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _positive(column: pa.Array) -> pa.Array:
    """Return a column with 0.0 for -0.0, which are one key."""
    return pc.add(column, pa.scalar(0, column.type)) if pa.types.is_floating(column.type) else column


@dataclass(frozen=True)
class QueryKey:
    """The key of a view's operator, which is one column of its own, in the columns of the query."""

    names: Sequence[str]
    kind: DataType
    """A struct with a field for each column, and perhaps one that tells keys with nulls apart; or the only column's."""
    is_struct: bool

    @classmethod
    def of(cls, node: OperatorNode) -> QueryKey | None:
        """Return the key of an operator; None if it is not a view's."""
        if tuple(node.keys) != (KEY,):
            return None
        (kind,) = parse_schema(node.input_schema).types_of(node.keys)
        names, above = None, node.parent
        while names is None and above is not None:
            # The operator above may have made the key.
            names = above.step.key_names if isinstance(above, FrameStep) and isinstance(above.step, ViewRows) else None
            above = next(iter(above.parents), None)
        if names is None:
            return None
        return cls(names, kind, isinstance(kind, StructType) and [*kind.names][:1] in (["k0"], ["side"]))

    def columns(self, key: Any) -> dict[str, Any]:
        """Return a key as a dict of the query's columns."""
        if not self.is_struct:
            return dict(zip(self.names, [key], strict=True))
        return dict(zip(self.names, key.values() if isinstance(key, Mapping) else key, strict=False))

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row with these columns in place of the key."""
        columns: dict[str, Any] = {}
        for name, value in row.items():
            columns |= self.columns(value) if name == KEY else {name: value}
        return columns

    def parse(self, text: str) -> str:
        """Return the text of a key for its operator: plain text, a JSON list, or JSON by the names of the columns."""
        try:
            parts = json.loads(text)
        except ValueError:
            parts = text
        if isinstance(parts, dict) and {*parts} == {*self.names}:
            parts = [parts[name] for name in self.names]
        elif isinstance(parts, dict) or not self.is_struct:
            return text
        elif not self.names:
            # A group of all rows has one key.
            parts = []
        elif not isinstance(parts, list):
            is_text = isinstance(self.kind, StructType) and isinstance(self.kind.fields[0].type, StringType)
            parts = [text if is_text else parts]
        if not self.is_struct:
            return parts[0] if isinstance(parts[0], str) else json.dumps(parts[0])
        assert isinstance(self.kind, StructType)
        values = [*parts, *[0] * (len(self.kind.fields) - len(self.names))]
        return json.dumps(dict(zip(self.kind.names, values, strict=False)))
