"""Rows of one key, among those that operators read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.plan.graph import Node, OperatorNode, PairNode, with_ancestors
from strandline.testing.nodes import Rows
from strandline.types.columns import to_python
from strandline.types.datatypes import parse_schema


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
