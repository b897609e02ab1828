"""Asynchronous calls of other systems, as a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.api.badrecords import OnError
from strandline.api.retries import Retry, retry_of
from strandline.core.errors import ConfigurationError, OutputError
from strandline.core.settings import Duration, parse_duration_ms
from strandline.plan.callables import check_called_with, check_function, check_shippable
from strandline.plan.graph import MapNode, Node
from strandline.plan.maps import map_on
from strandline.runtime.task.asyncfunction import Calls, Fallback
from strandline.runtime.task.outputs import OutputBuilder
from strandline.types.spark_schema import SparkType, resolve_schema

_MOST = 10_000


class _Fail:
    """The value of `fallback` that stands for none."""

    def __repr__(self) -> str:
        return "FAIL"


FAIL: Any = _Fail()


def map_async(
    node: Node,
    function: Callable[[Any], Any],
    output: str | SparkType,
    concurrency: int,
    timeout: Duration | None,
    ordered: bool,
    retry: int | Retry,
    fallback: Any,
    on_error: OnError | str,
) -> MapNode:
    """Return the node of a function whose calls run concurrently; refuse invalid arguments."""
    if not callable(function):
        raise ConfigurationError(f"map_async: it was given {function!r}, expected a function, async or not")
    check_called_with("map_async: the function", function, ["row"])
    check_shippable("map_async: the function", function)
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
    stands_for = None if fallback is FAIL else _fallback(fallback, output)
    calls = Calls(concurrency, timeout_ms, ordered, retry_of(retry), stands_for)
    return map_on(node, "map_async", function, function, output, on_error, calls)


def _fallback(fallback: Any, output: str | SparkType) -> Fallback:
    """Return the fallback of a call; refuse at once a row that does not fit the output."""
    if callable(fallback):
        check_function("map_async: fallback", fallback, ["row", "error"])
        check_shippable("map_async: fallback", fallback)
        return Fallback(function=fallback)
    rows = OutputBuilder("", resolve_schema(output, "map_async: output"), "map_async: fallback")
    try:
        for row in fallback if isinstance(fallback, list) else [] if fallback is None else [fallback]:
            rows.fitting(row)
    except OutputError as error:
        raise ConfigurationError(
            error.message,
            hint="give a row that fits `output`, None for no row, or a function of (row, error) that returns one",
        ) from None
    return Fallback(fallback)
