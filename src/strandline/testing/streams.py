"""The streams of a harness for a function, built from the harness's options with the public API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.api.joins import KeyedBroadcastProcess, KeyedCoProcess
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.core.errors import ConfigurationError
from strandline.plan.checks import check_process
from strandline.spark.streams.stream import Processed, Stream, as_names
from strandline.testing.events import events
from strandline.types.spark_schema import SparkType


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one stream."""

    schema: str | SparkType | None = None
    key: str | Sequence[str] | None = None
    event_time: str | None = None
    watermark: str | None = None


def check_function(process: Any) -> None:
    """Refuse an object that is not a process function."""
    if not isinstance(process, KeyedProcess | KeyedBatchProcess | type):
        raise ConfigurationError(
            f"Harness: it was given a {type(process).__name__}, expected a process function or a stream",
            hint="windows and aggregates are methods of a stream, which begins with testing.events(schema): "
            'events("user string, n int").key_by("user").agg(n=sl.agg.sum("n"), uid="sums")',
        )


def streams_of(
    process: Any, uid: str, left: StreamOptions, right: StreamOptions, order_by: Sequence[str] | str | None
) -> Processed[Any]:
    """Return the input of a function: its stream, or its two streams connected."""
    order = () if order_by is None else as_names(order_by)
    check_process(process, uid)
    if not isinstance(process, KeyedCoProcess | KeyedBroadcastProcess):
        if right != StreamOptions():
            raise ConfigurationError(
                f"Harness: {type(process).__name__} is a function of one stream, and right… options are set",
                hint="derive it from KeyedCoProcess or KeyedBroadcastProcess, or leave the right… options out",
            )
        return _stream(left).key_by(*as_names(left.key), order_by=order)
    if not right.schema:
        raise ConfigurationError(
            f"Harness: {type(process).__name__} is a function of two streams, and there is no right one",
            hint='write the schema of its events: Harness(…, right="customer string, name string")',
        )
    is_broadcast = isinstance(process, KeyedBroadcastProcess)
    right = _with_defaults(right, left, is_broadcast)
    keyed, other = _stream(left, "left").key_by(*as_names(left.key)), _stream(right, "right")
    if is_broadcast:
        return keyed.broadcast(other, order_by=order)
    if order:
        raise ConfigurationError(
            "Harness: order_by is for the events of one stream, or the rules of a KeyedBroadcastProcess",
            hint="leave it out: events of connected streams come in the order in which they are pushed",
        )
    return keyed.connect(other.key_by(*as_names(right.key)))


def _stream(options: StreamOptions, name: str | None = None) -> Stream:
    """Return a stream, with a watermark if it has event time."""
    stream, prefix = events(options.schema or "", name), "right_" if name == "right" else ""
    if options.event_time is not None:
        return stream.watermark(options.event_time, options.watermark or "0s")
    if options.watermark is not None:
        raise ConfigurationError(
            f"Harness: {prefix}watermark was given without {prefix}event_time",
            hint=f'name the column that it follows: {prefix}event_time="ts"',
        )
    return stream


def _with_defaults(right: StreamOptions, left: StreamOptions, is_broadcast: bool) -> StreamOptions:
    """Return the options of the right stream, with those of the left stream as defaults."""
    if is_broadcast and right.key is not None:
        raise ConfigurationError(
            f"Harness: right_key is {right.key!r}, and the rules of a KeyedBroadcastProcess have no key",
            hint="leave it out: every partition receives all rules",
        )
    event_time = right.event_time
    if event_time is None and not is_broadcast:
        event_time = left.event_time
    watermark = right.watermark
    if watermark is None and event_time is not None:
        watermark = left.watermark
    pairs = (("event_time", left.event_time, event_time), ("watermark", left.watermark, watermark))
    for option, left_value, right_value in pairs:
        if left_value is None and right_value is not None:
            raise ConfigurationError(
                f"Harness: right_{option} was given, and {option} was not",
                hint=f"pass {option} too: either both streams have it, or neither",
            )
    return replace(right, key=left.key if right.key is None else right.key, event_time=event_time, watermark=watermark)
