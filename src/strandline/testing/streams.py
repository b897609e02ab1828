"""The streams of a harness that was given a function, said in words: written as a program writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.api.joins import KeyedBroadcastProcess, KeyedCoProcess
from strandline.api.process import KeyedBatchProcess, KeyedProcess
from strandline.core.errors import ConfigurationError
from strandline.plan.checks import check_process
from strandline.spark.streams.stream import Processed, Stream, listed
from strandline.testing.events import events
from strandline.types.spark_schema import SparkType


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """One stream, in the user's words."""

    schema: str | SparkType | None = None
    key: str | Sequence[str] | None = None
    event_time: str | None = None
    watermark: str | None = None


def check_function(process: Any) -> None:
    """Refuse what is written as a method of a stream, or is no function at all."""
    if not isinstance(process, KeyedProcess | KeyedBatchProcess | type):
        raise ConfigurationError(
            f"Harness: it was given a {type(process).__name__}, expected a process function or a stream",
            hint="windows and aggregates are methods of a stream, which begins with testing.events(schema): "
            'events("user string, n int").key_by("user").agg(n=sl.agg.sum("n"), uid="sums")',
        )


def streams_of(
    process: Any, uid: str, left: StreamOptions, right: StreamOptions, order_by: Sequence[str] | str | None
) -> Processed[Any]:
    """Return what a function is given: its stream, or its two brought together."""
    order = () if order_by is None else listed(order_by)
    check_process(process, uid)
    if not isinstance(process, KeyedCoProcess | KeyedBroadcastProcess):
        if right != StreamOptions():
            raise ConfigurationError(
                f"Harness: {type(process).__name__} is a function of one stream, and something was said of a right one",
                hint="derive it from KeyedCoProcess or KeyedBroadcastProcess, or leave all of right… out",
            )
        return _timed(left).key_by(*listed(left.key), order_by=order)
    if not right.schema:
        raise ConfigurationError(
            f"Harness: {type(process).__name__} is a function of two streams, and there is no right one",
            hint='say what its events are: Harness(…, right="customer string, name string")',
        )
    is_broadcast = isinstance(process, KeyedBroadcastProcess)
    right = _completed(right, left, is_broadcast)
    keyed, other = _timed(left, "left").key_by(*listed(left.key)), _timed(right, "right")
    if is_broadcast:
        return keyed.broadcast(other, order_by=order)
    if order:
        raise ConfigurationError(
            "Harness: order_by is for the events of one stream, or the rules of a KeyedBroadcastProcess",
            hint="leave it out: events of connected streams come in the order in which they are pushed",
        )
    return keyed.connect(other.key_by(*listed(right.key)))


def _timed(told: StreamOptions, name: str | None = None) -> Stream:
    """Return a stream with event time, if it has some."""
    stream, which = events(told.schema or "", name), "right_" if name == "right" else ""
    if told.event_time is not None:
        return stream.watermark(told.event_time, told.watermark or "0s")
    if told.watermark is not None:
        raise ConfigurationError(
            f"Harness: {which}watermark was given without {which}event_time",
            hint=f'say which column it follows: {which}event_time="ts"',
        )
    return stream


def _completed(right: StreamOptions, left: StreamOptions, is_broadcast: bool) -> StreamOptions:
    """Return the right stream with what is as on the left, as it was not said."""
    if is_broadcast and right.key is not None:
        raise ConfigurationError(
            f"Harness: right_key is {right.key!r}, and the rules of a KeyedBroadcastProcess have no key",
            hint="leave it out: every partition hears of all rules",
        )
    event_time = right.event_time
    if event_time is None and not is_broadcast:
        event_time = left.event_time
    watermark = right.watermark
    if watermark is None and event_time is not None:
        watermark = left.watermark
    for what, mine, theirs in (("event_time", left.event_time, event_time), ("watermark", left.watermark, watermark)):
        if mine is None and theirs is not None:
            raise ConfigurationError(
                f"Harness: right_{what} was given, and {what} was not",
                hint=f"give {what} too: either both streams have it, or neither",
            )
    return replace(right, key=left.key if right.key is None else right.key, event_time=event_time, watermark=watermark)
