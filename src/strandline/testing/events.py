"""The events that a test gives: checked against a stream's schema, as rows."""

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
"""Of rows in a harness: their order, among those of all streams."""


def events(schema: str | SparkType, name: str | None = None) -> Stream:
    """Begin a pipeline with events that a test will push, in place of what Spark reads.

    It has all methods of a stream but the steps that Spark computes: select, where, transform and their like. In a
    pipeline of several, each needs a `name`.

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
        """Refuse an SQL expression: there is no Spark to compute it."""
        raise ConfigurationError(
            f"{what} is over {expression.strip('()')!r}, and the columns are {', '.join(node.columns.names)}",
            hint="in a harness an aggregate is over a column, since expressions are Spark's to compute: give events "
            "that have it",
        )


@dataclass(frozen=True, slots=True)
class Right:
    """An event of the right one of two streams, to be pushed among those of the left one."""

    event: Any


class Events:
    """Makes rows of the events of one stream."""

    def __init__(self, source: SourceNode, which: str = "") -> None:
        self._schema = source.columns.schema("Harness")
        self._what = f"{which}event"
        self._coercions = [coercion(field.type) for field in self._schema.fields]

    def rows(self, given: Sequence[tuple[int, Any]]) -> pa.RecordBatch:
        """Return events, dicts or tuples, with their places as rows; raise ConfigurationError for one that misfits."""
        fitting = [self._fit(event) for _, event in given]
        columns = [[event[at] for event in fitting] for at in range(len(self._coercions))]
        arrays = [build(values, field.type) for values, field in zip(columns, self._schema.fields, strict=True)]
        places = pa.array([at for at, _ in given], pa.int64())
        return pa.RecordBatch.from_arrays([*arrays, places], names=[*self._schema.names, AT])

    def _fit(self, event: Any) -> list[Any]:
        parts = self._parts(event)
        fitting = []
        for part, one, field in zip(parts, self._coercions, self._schema.fields, strict=True):
            try:
                fitting.append(None if part is None else one(part))
            except MisfitError as misfit:
                raise self._error(f"the {self._what} {event!r} does not fit: column '{field.name}': {misfit}") from None
        return fitting

    def _parts(self, event: Any) -> Sequence[Any]:
        names = self._schema.names
        if hasattr(event, "_asdict"):
            event = event._asdict()
        if isinstance(event, Mapping):
            unknown = [str(name) for name in event if name not in names]
            if unknown:
                raise self._error(f"the {self._what} {event!r} has unknown {', '.join(unknown)}")
            return [event.get(name) for name in names]
        if not isinstance(event, tuple | list):
            raise self._error(f"the {self._what} is {event!r}, a {type(event).__name__}, expected a dict or a tuple")
        if len(event) != len(names):
            raise self._error(f"the {self._what} {event!r} has {len(event)} values, expected {len(names)}")
        return event

    def _error(self, message: str) -> ConfigurationError:
        return ConfigurationError(
            f"Harness: {message}", hint=f"make {self._what}s that fit the harness's schema: {self._schema.ddl}"
        )
