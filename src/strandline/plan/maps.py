"""Python functions of rows, as nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from strandline.api.badrecords import DEAD_LETTER, DEAD_LETTERS, OnError, on_error_of
from strandline.core.errors import NullKeyError, UserCodeError
from strandline.plan.callables import check_function, check_shippable, name_of
from strandline.plan.columns import Columns
from strandline.plan.graph import Keyed, KeylessNode, MapNode, Node
from strandline.plan.operators import output_of
from strandline.runtime.rowlayout import ORIGIN
from strandline.runtime.task.asyncfunction import Calls
from strandline.runtime.task.rowfunction import OneRow
from strandline.types.datatypes import DataType
from strandline.types.spark_schema import SparkType, resolve_schema


def map_rows(node: Node, step: str, function: Any, output: str | SparkType, on_error: OnError | str) -> MapNode:
    """Return the node of a function of map() or flat_map(); refuse invalid functions."""
    check_function(f"{step}: the function", function, ["row"], f'write {step}(function, "user string, n int")')
    check_shippable(f"{step}: the function", function)
    return map_on(node, step, OneRow(function) if step == "map" else function, function, output, on_error)


def map_on(
    node: Node,
    step: str,
    rows: Callable[[Any], Any],
    function: Any,
    output: str | SparkType,
    on_error: OnError | str,
    calls: Calls | None = None,
) -> MapNode:
    """Return the node of the user's `function`, which `rows` wraps."""
    policy = on_error_of(step, on_error)
    input_ddl, output_ddl = node.columns.schema(step).ddl, resolve_schema(output, f"{step}: output").ddl
    columns = Columns.of(output_ddl, node.columns.hidden)
    return MapNode(
        columns, node, function=rows, input=input_ddl, output=output_ddl, step=step, calls=calls, on_error=policy,
        name=name_of(function),
    )  # fmt: skip


def keyless(keyed: Keyed, uid: str, read: tuple[tuple[str, DataType], ...]) -> Node:
    """Return the dead letters of the rows that keepers do not get: without a key, or with unreadable values."""
    columns = keyed.columns
    carried = columns.with_hidden(*(name for name in columns.hidden if name != ORIGIN))
    rows = KeylessNode(carried, keyed.node, keyed.keys, read)
    input_ddl = columns.schema(f"operator '{uid}'").ddl
    node = MapNode(
        Columns.of(DEAD_LETTER, rows.columns.hidden), rows, function=partial(_refuse_keyless, keyed.keys),
        input=input_ddl, output=DEAD_LETTER, step="key_by", name=uid, on_error=OnError("dead-letter"), is_counted=False,
    )  # fmt: skip
    return output_of(node, DEAD_LETTERS)


def _refuse_keyless(keys: Sequence[str], row: Any) -> None:
    """Raise NullKeyError for a null in the key. Errors of columns that cannot be read come before this call."""
    key = tuple(getattr(row, name) for name in keys)
    if None not in key:
        raise UserCodeError("what is aggregated of it cannot be read: a string that is no UTF-8, or a time after 9999")
    column = keys[key.index(None)]
    raise NullKeyError(f"the key column '{column}' is null", key=None if len(keys) == 1 else key)
