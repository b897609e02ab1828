"""What an operator partition answers when somebody looks up keys of a running job: as of the last epoch that it kept.

A table's `kept` gives what it holds of a key, in another thread than that of the epochs; sequence_lock.py makes all
of it be of one epoch. Here it becomes entries of the state's declared type, whatever schema they were stored with,
without what has expired. keeper/lookups.py reads them in the driver.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from strandline.api.process import KeyedBatchProcess
from strandline.core.ids import Epoch
from strandline.format.keys import KeyCodec
from strandline.format.manifest import StateInfo
from strandline.format.schemas import Schemas
from strandline.format.values import ValueCodec, expiry_of
from strandline.runtime.program import Process, Program, state_infos
from strandline.runtime.state.store import Store
from strandline.runtime.state.table import Kept
from strandline.runtime.state.ttl.lists import HEAD
from strandline.types.datatypes import DataType, StructType, parse_schema, parse_type

TIME: Final = struct.Struct(">q")
VALUES: Final = ("value", "reducing", "aggregating", "broadcast")
"""Kinds of state that have at most one value of what is looked up: of a key or, in broadcast state, of a key of it."""
KNOWN: Final = (*VALUES, "map", "list", "timers", "panes")

Entries = list[tuple[bytes, bytes]]
"""Of one key: nothing and the value; each key of a map and its value; nothing and each element of a list; each time of
a timer and nothing; each end of a pane and the accumulators."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Some keys of one state, as bytes."""

    state: str
    keys: list[bytes]
    now_us: int
    """What has expired by this time of the clock is left out."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition has of them, in their order."""

    epoch: Epoch
    found: list[Entries]


def looked_up_type(info: StateInfo, key_columns: int) -> DataType:
    """Return the type of a state's values as look-ups give them: of panes, the accumulators without the key."""
    kind = parse_type(info.value_type)
    if info.kind == "panes":
        assert isinstance(kind, StructType)
        return StructType(kind.fields[key_columns:])
    return kind


class Lookups:
    """Looks up keys of one operator partition. In any thread."""

    def __init__(self, program: Program, process: Process, store: Store) -> None:
        self._store = store
        as_bytes = isinstance(process, KeyedBatchProcess)
        width = len(parse_schema(program.input_schema).types_of(program.key_columns))
        self._forms = {
            info.name: _Form.of(info, width, program.schemas.get(info.name, Schemas()), as_bytes=as_bytes)
            for info in state_infos(process)
            if info.kind in KNOWN
        }

    def find(self, asked: Asked, reached_us: int | None) -> list[Entries]:
        """Return what there is of keys; `reached_us` is the watermark. May be of no epoch: see sequence_lock.py."""
        form = self._forms[asked.state]
        over_us = reached_us if form.ttl_time == "event" else asked.now_us
        return [form.entries(kept, over_us) for kept in self._store.kept(asked.state, asked.keys)]


@dataclass(frozen=True)
class _Form:
    """How a state's table holds values, and what they become."""

    kind: str
    ttl_time: str
    """"event", "processing", or "" for what does not expire."""
    encode: Callable[[Any], bytes]
    encode_sub: Callable[[Any], bytes]
    stored: ValueCodec | None
    """If the table holds values as they are stored: what reads them."""

    @classmethod
    def of(cls, info: StateInfo, width: int, schemas: Schemas, *, as_bytes: bool) -> _Form:
        ttl_time = info.ttl.time if info.ttl else ""
        if info.kind == "timers":
            return cls(info.kind, ttl_time, _nothing, TIME.pack, None)
        kind = looked_up_type(info, width)
        codec = ValueCodec(kind)
        if info.kind == "panes":
            return cls(info.kind, ttl_time, lambda column: codec.encode_arrow(column)[0], TIME.pack, None)
        encode_sub = KeyCodec([parse_type(info.key_type)]).encode_sub if info.kind == "map" else _nothing
        return cls(info.kind, ttl_time, codec.encode, encode_sub, schemas.codec(kind) if as_bytes else None)

    def entries(self, kept: Kept, over_us: int | None) -> Entries:
        """Return what is kept of a key as entries, without what has expired."""
        if self.kind == "list":
            return [(b"", self.encode(element)) for chunk in self._chunks(kept, over_us) for element in chunk]
        living = [(sub, self._value(stored)) for sub, stored in kept if not self._is_over(stored, over_us)]
        return sorted((self.encode_sub(sub), self.encode(value)) for sub, value in living)

    def _chunks(self, kept: Kept, over_us: int | None) -> list[list[Any]]:
        # The head says when those expire that do not say it themselves.
        head = next((stored for number, stored in kept if number == HEAD), None)
        if head is not None and self._is_over(head, over_us):
            kept = [(number, stored) for number, stored in kept if self._expires_us(stored) is not None]
        return [self._value(stored) for _, stored in sorted(kept) if not self._is_over(stored, over_us)]

    def _is_over(self, stored: Any, over_us: int | None) -> bool:
        expires_us = self._expires_us(stored)
        return expires_us is not None and over_us is not None and expires_us <= over_us

    def _expires_us(self, stored: Any) -> int | None:
        if not self.ttl_time:
            return None
        found: int | None = stored[0] if self.stored is None else expiry_of(stored)
        return found

    def _value(self, stored: Any) -> Any:
        if self.stored is not None:
            return self.stored.decode(stored)
        return stored[1] if self.ttl_time else stored


def _nothing(_: Any) -> bytes:
    return b""
