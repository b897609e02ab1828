"""Rows of one key, among those that operators read."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from strandline.plan.graph import Node, OperatorNode, PairNode, with_ancestors
from strandline.testing.nodes import Rows


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
