"""The stream of events that a harness is given, or the right one of two: checked, and how it moves the watermark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strandline.core.errors import ConfigurationError
from strandline.core.settings import parse_duration_ms
from strandline.runtime.rowlayout import RowLayout
from strandline.runtime.watermarks import WatermarkSpec
from strandline.testing.program import Input
from strandline.testing.rows import Events, Right, Rows
from strandline.types.datatypes import StructType, TimestampType, parse_schema
from strandline.types.ordering import check_order


@dataclass(frozen=True, slots=True)
class Told:
    """One stream, in the user's words."""

    schema: str
    key: str | Sequence[str] | None = None
    event_time: str | None = None
    watermark: str | None = None


class Stream:
    """One stream; `which` is "right " for the right one of two. Each epoch's events are sorted by `order_by`."""

    def __init__(self, told: Told, which: str = "", order_by: Sequence[str] = ()) -> None:
        self.schema = parse_schema(told.schema)
        _check_event_time(self.schema, told, which)
        self.is_timed, self.follows = told.event_time is not None, told.watermark is not None
        delay_us = parse_duration_ms(told.watermark or "0s", f"Harness: {_argument(which)}watermark") * 1000
        self.specs = [WatermarkSpec(told.event_time, delay_us)] if told.event_time is not None else []
        check_order(self.schema, order_by, "Harness", "the stream")
        self.events = Events(self.schema, told.event_time, which, order_by)


class OneStream:
    """The stream of a function of one, as its input."""

    def __init__(self, told: Told, order_by: Sequence[str]) -> None:
        stream = Stream(told, order_by=order_by)
        self.input = Input(stream.schema.ddl, RowLayout(timed=stream.is_timed), measured=stream.follows)
        self.specs = stream.specs
        self._events = stream.events

    def rows(self, events: Sequence[Any]) -> Rows | None:
        """Return an epoch's events as rows, None if there are none."""
        if any(isinstance(event, Right) for event in events):
            raise ConfigurationError(
                "Harness: there is no right stream, as the function is one of one stream",
                hint="derive it from KeyedCoProcess or KeyedBroadcastProcess, or use push() alone",
            )
        return self._events.rows(events) if events else None


def _check_event_time(schema: StructType, told: Told, which: str) -> None:
    """Refuse an event time that no column has."""
    argument = _argument(which)
    if told.event_time is None:
        if told.watermark is not None:
            raise ConfigurationError(
                f"Harness: {argument}watermark was given without {argument}event_time",
                hint=f'say which column it follows: {argument}event_time="ts"',
            )
        return
    where = f"{which}column" if which else "column"
    kinds = {field.name: field.type for field in schema.fields}
    if told.event_time not in kinds:
        raise ConfigurationError(
            f"Harness: {argument}event_time='{told.event_time}' is no {where}; there are {', '.join(kinds)}"
        )
    if not isinstance(kinds[told.event_time], TimestampType):
        kind = kinds[told.event_time].ddl
        raise ConfigurationError(f"Harness: the {where} '{told.event_time}' is {kind}, expected timestamp")


def _argument(which: str) -> str:
    return which.replace(" ", "_")
