"""Events that a test pushes, checked against a stream's schema and converted to rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from strandline.core.errors import ConfigurationError
from strandline.plan.columns import Columns
from strandline.plan.graph import Node, SourceNode
from strandline.spark.sources.checks import check_source_name
from strandline.spark.streams.stream import Stream
from strandline.types.coercion import MisfitError, coercion
from strandline.types.columns import build
from strandline.types.spark_schema import SparkType, resolve_schema

AT = "__strandline_at"
"""A column of rows in a harness: their order among the events of all streams."""


def events(schema: str | SparkType, name: str | None = None) -> Stream:
    """Begin a pipeline with events that a test will push, in place of a source that Spark reads.

    It has all methods of a stream except the steps that Spark computes, such as select, where and transform. If a
    pipeline has several, each needs a `name`.

    >>> import strandline as sl
    >>> from strandline.testing import Harness, events
    >>> sales = events("user string, amount int, ts timestamp").watermark("ts").key_by("user")
    >>> with Harness(sales.window(sl.Tumbling("10s")).agg(amount=sl.agg.sum("amount"), uid="sums")) as h:
    ...     at = h.now
    ...     before = h.push(("ann", 5, at), ("bob", 6, at), ("ann", 7, at))
    ...     rows = h.advance_watermark(at.replace(second=10))
    >>> sorted((row.user, row.amount) for row in rows)
    [('ann', 12), ('bob', 6)]
    """
    return Stream(
        EventSource(Columns.of(resolve_schema(schema, "events(): the schema").ddl), name=check_source_name(name))
    )


@dataclass(frozen=True, eq=False)
class EventSource(SourceNode):
    """Events that a test pushes."""

    def type_of(self, node: Node, expression: str, what: str) -> str:
        """Refuse an SQL expression, which only Spark can compute."""
        raise ConfigurationError(
            f"{what} is over {expression.strip('()')!r}, and the columns are {', '.join(node.columns.names)}",
            hint="only Spark computes expressions: in a harness, push events that have the result as a column",
        )


@dataclass(frozen=True, slots=True)
class Right:
    """An event of the right stream of two, to be pushed among events of the left stream."""

    event: Any


class Events:
    """Converter from the events of one stream to rows."""

    def __init__(self, source: SourceNode, which: str = "") -> None:
        self._schema = source.columns.schema("Harness")
        self._label = f"{which}event"
        self._coercions = [coercion(field.type) for field in self._schema.fields]

    def rows(self, events: Sequence[tuple[int, Any]]) -> pa.RecordBatch:
        """Return events, dicts or tuples, with their places as rows; raise ConfigurationError if one does not fit."""
        fitting = [self._fit(event) for _, event in events]
        columns = [[event[at] for event in fitting] for at in range(len(self._coercions))]
        arrays = [build(values, field.type) for values, field in zip(columns, self._schema.fields, strict=True)]
        places = pa.array([at for at, _ in events], pa.int64())
        return pa.RecordBatch.from_arrays([*arrays, places], names=[*self._schema.names, AT])

    def _fit(self, event: Any) -> list[Any]:
        parts = self._parts(event)
        fitting = []
        for part, coerce, field in zip(parts, self._coercions, self._schema.fields, strict=True):
            try:
                fitting.append(None if part is None else coerce(part))
            except MisfitError as misfit:
                raise self._error(
                    f"the {self._label} {event!r} does not fit: column '{field.name}': {misfit}"
                ) from None
        return fitting

    def _parts(self, event: Any) -> Sequence[Any]:
        names = self._schema.names
        if hasattr(event, "_asdict"):
            event = event._asdict()
        if isinstance(event, Mapping):
            unknown = [str(name) for name in event if name not in names]
            if unknown:
                raise self._error(f"the {self._label} {event!r} has unknown {', '.join(unknown)}")
            return [event.get(name) for name in names]
        if not isinstance(event, tuple | list):
            raise self._error(f"the {self._label} is {event!r}, a {type(event).__name__}, expected a dict or a tuple")
        if len(event) != len(names):
            raise self._error(f"the {self._label} {event!r} has {len(event)} values, expected {len(names)}")
        return event

    def _error(self, message: str) -> ConfigurationError:
        return ConfigurationError(
            f"Harness: {message}", hint=f"make {self._label}s that fit the harness's schema: {self._schema.ddl}"
        )
