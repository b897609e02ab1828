"""The two streams of a function of two, packed into one of pairs as a job packs them.

A pair has both halves, of which one is null, and the key by the left names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa

from strandline.api.joins import KeyedBroadcastProcess, KeyedCoProcess
from strandline.core.errors import ConfigurationError
from strandline.runtime.operators.joins import LEFT, RIGHT, check_inputs
from strandline.runtime.program import check_process
from strandline.runtime.rowlayout import RowLayout
from strandline.testing.plans import Prepared
from strandline.testing.program import Input, checked_keys
from strandline.testing.rows import Right, Rows
from strandline.testing.streams import OneStream, Stream, Told
from strandline.types.columns import to_arrow_type
from strandline.types.datatypes import Field, StructType
from strandline.types.ordering import check_order


class TwoStreams:
    """The streams of a function of two: right rows go where their keys are, or, of a broadcast, everywhere."""

    def __init__(self, process: Any, uid: str, left: Told, right: Told, order_by: Sequence[str] | str | None) -> None:
        self._is_broadcast = isinstance(process, KeyedBroadcastProcess)
        check_inputs(process, uid, "broadcast" if self._is_broadcast else "connect")
        right = _completed(right, left, self._is_broadcast)
        lefts, rights = Stream(left), Stream(right, "right ")
        self._streams = lefts, rights
        self._kinds = [to_arrow_type(stream.schema) for stream in self._streams]
        self._keys = [_places(left, lefts, f"operator '{uid}': its key")]
        if not self._is_broadcast:
            self._keys.append(_places(right, rights, f"operator '{uid}': its right_key"))
            _check_alike(self._streams, self._keys)
        keys = [lefts.schema.fields[at] for at in self._keys[0]]
        self.input = Input(
            StructType((Field(LEFT, lefts.schema), Field(RIGHT, rights.schema), *keys)).ddl,
            RowLayout(timed=lefts.is_timed, has_origins=lefts.follows and rights.follows),
            measured=lefts.follows,
            broadcast_order=_order(order_by, rights, self._is_broadcast),
        )
        self.specs = lefts.specs + rights.specs

    def rows(self, events: Sequence[Any]) -> Rows | None:
        """Return an epoch's events as pairs, in their order; None if there are none."""
        if not events:
            return None
        is_right = [isinstance(event, Right) for event in events]
        lefts = [event for event in events if not isinstance(event, Right)]
        rights = [event.event for event in events if isinstance(event, Right)]
        given = [self._packed(half, self._streams[half].events.rows(some)) for half, some in enumerate((lefts, rights))]
        # The left ones come first so far: where each event is among them.
        at = (count(), count(len(lefts)))
        order = pa.array([next(at[right]) for right in is_right], pa.int64())

        def whole(parts: Sequence[pa.Array]) -> pa.Array:
            return pa.concat_arrays(parts).take(order)

        columns = [whole(parts) for parts in zip(*(rows.columns for rows in given), strict=True)]
        times = whole([rows.times for rows in given]) if self.input.layout.timed else None
        origins = whole([rows.origins for rows in given]) if self.input.layout.has_origins else None
        return Rows(columns, times, origins=origins, for_all=columns[1].is_valid() if self._is_broadcast else None)

    def _packed(self, half: int, rows: Rows) -> Rows:
        """Return one stream's rows as pairs: times and origins too, whether they are wanted or not."""
        n = len(rows.columns[0])
        halves = [pa.nulls(n, kind) for kind in self._kinds]
        halves[half] = pa.StructArray.from_arrays(rows.columns, fields=list(self._kinds[half]))
        if half < len(self._keys):
            keys = [rows.columns[at] for at in self._keys[half]]
        else:
            keys = [pa.nulls(n, self._kinds[0].field(at).type) for at in self._keys[0]]
        times = pa.nulls(n, pa.int64()) if rows.times is None else rows.times
        return Rows([*halves, *keys], times, origins=pa.array([f"{half}/"] * n, pa.string()))


def streams_of(
    process: Any, uid: str, left: Told, right: Told, order_by: Sequence[str] | str | None
) -> OneStream | TwoStreams:
    """Return the streams of a function; where there is no right one, its schema is empty."""
    if not isinstance(process, Prepared):
        check_process(process, uid)
    if isinstance(process, KeyedCoProcess | KeyedBroadcastProcess):
        if not right.schema:
            raise ConfigurationError(
                f"Harness: {type(process).__name__} is a function of two streams, and there is no right one",
                hint='say what its events are: Harness(…, right="customer string, name string")',
            )
        return TwoStreams(process, uid, left, right, order_by)
    if right != Told(""):
        raise ConfigurationError(
            f"Harness: {type(process).__name__} is a function of one stream, and something was said of a right one",
            hint="derive it from KeyedCoProcess or KeyedBroadcastProcess, or leave all of right… out",
        )
    return OneStream(left, _listed(order_by))


def check_one_stream(process: Any, uid: str) -> None:
    """Refuse a function of two streams where there is one."""
    if isinstance(process, KeyedCoProcess | KeyedBroadcastProcess):
        raise ConfigurationError(
            f"operator '{uid}': {type(process).__name__} is a function of two streams, and then() gives it one",
            hint="begin a harness with it, and call then() for what reads its output",
        )


def _completed(right: Told, left: Told, is_broadcast: bool) -> Told:
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


def _places(told: Told, stream: Stream, what: str) -> list[int]:
    return [stream.schema.names.index(name) for name in checked_keys(told.key or (), stream.schema, what)]


def _check_alike(streams: Sequence[Stream], keys: Sequence[Sequence[int]]) -> None:
    """Refuse keys of which one stream's cannot be the other's."""
    fields = [[stream.schema.fields[at] for at in places] for stream, places in zip(streams, keys, strict=True)]
    if [field.type for field in fields[0]] != [field.type for field in fields[1]]:
        said = [", ".join(f"{field.name} {field.type.ddl}" for field in some) for some in fields]
        raise ConfigurationError(
            f"Harness: the keys of the streams differ: {said[0]} on the left, {said[1]} on the right",
            hint="both need as many columns of the same types, in the same order: key= and right_key=",
        )


def _order(order_by: Sequence[str] | str | None, rights: Stream, is_broadcast: bool) -> Sequence[str]:
    names = _listed(order_by)
    if names and not is_broadcast:
        raise ConfigurationError(
            "Harness: order_by is for the events of one stream, or the rules of a KeyedBroadcastProcess",
            hint="leave it out: events of connected streams come in the order in which they are pushed",
        )
    check_order(rights.schema, names, "Harness", "the broadcast stream")
    return names


def _listed(order_by: Any) -> tuple[Any, ...]:
    if order_by is None:
        return ()
    # What is no column's name is refused with the names that there are.
    return tuple(order_by) if isinstance(order_by, Sequence) and not isinstance(order_by, str) else (order_by,)
