"""Calls of other systems, as a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.plan.columns import Columns
from strandline.plan.graph import MapNode, Node
from strandline.runtime.task.asyncfunction import Calls
from strandline.types.datatypes import parse_schema

_MOST = 10_000


def map_async(
    node: Node, function: Callable[[Any], Any], output: str, concurrency: int, timeout: str | None, ordered: bool
) -> MapNode:
    """Return the node of a function of which several calls run at once; refuse what cannot run."""
    if not callable(function):
        raise ConfigurationError(f"map_async: it was given {function!r}, expected a function, async or not")
    if type(concurrency) is not int or not 0 < concurrency <= _MOST:
        raise ConfigurationError(
            f"map_async: concurrency is {concurrency!r}, expected a number from 1 to {_MOST}",
            hint="say how many calls may be under way at once in each of Spark's tasks: concurrency=20",
        )
    timeout_ms = None if timeout is None else parse_duration_ms(timeout, "map_async: timeout")
    if timeout_ms == 0:
        raise ConfigurationError(f"map_async: timeout is {timeout!r}, expected more than 0")
    if not isinstance(ordered, bool):
        raise ConfigurationError(f"map_async: ordered is {ordered!r}, expected True or False")
    given, ddl = node.columns.schema("map_async").ddl, parse_schema(output).ddl
    columns = Columns.of(ddl, node.columns.hidden)
    calls = Calls(concurrency, timeout_ms, ordered)
    return MapNode(columns, node, function=function, input=given, output=ddl, calls=calls)
