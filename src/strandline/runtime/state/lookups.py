"""Looks up keys in the state of an operator partition of a running job, as of its last committed epoch.

A table's `kept` returns what it holds of a key, in another thread than that of the epochs; sequence_lock.py ensures
that all of it is of one epoch. This module turns it into entries of the state's declared type, whatever schema they
were stored with, and leaves out what has expired. keeper/lookups.py decodes them in the driver.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
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
from strandline.runtime.state.table import KeyEntries
from strandline.runtime.state.ttl.lists import HEAD
from strandline.types.datatypes import DataType, StructType, parse_schema, parse_type

TIME: Final = struct.Struct(">q")
VALUES: Final = ("value", "reducing", "aggregating", "broadcast")
"""Kinds of state with at most one value a key; in broadcast state, a key of the map."""
KNOWN: Final = (*VALUES, "map", "list", "timers", "panes")
MAX_KEYS: Final = 1000
"""The most keys of a look-up."""
_PIECE = 50
_MOST_BYTES = 1 << 20
"""The size of entries after which a list of keys ends."""

Entries = list[tuple[bytes, bytes]]
"""The entries of one key as pairs of bytes: (empty, value); (key, value) of a map; (empty, element) of a list; (time,
empty) of a timer; (end, accumulators) of a pane."""


class LookupRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Some keys of one state, as bytes."""

    state: str
    keys: list[bytes]
    now_us: int
    """Entries that have expired by this time of the clock are left out."""
    most: int = 0
    """If no keys are given: how many keys to return of those that the state has."""


class LookupEntries(msgspec.Struct, frozen=True, kw_only=True):
    """The entries of each requested key, in the order of the request."""

    epoch: Epoch
    entries: list[Entries] = msgspec.field(name="found")
    keys: list[bytes] = []
    """The keys, if none were requested."""
    has_more: bool = False
    """Whether the state may have other keys."""


def looked_up_type(info: StateInfo, key_columns: int) -> DataType:
    """Return the type of a state's values in answers: of panes, the accumulators without the key."""
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

    def find(self, request: LookupRequest, epoch: Epoch, reached_us: int | None) -> LookupEntries:
        """Return the entries of keys; `reached_us` is the watermark. May mix epochs: see sequence_lock.py."""
        if request.most:
            return self._first(request, epoch, reached_us)
        return LookupEntries(epoch=epoch, entries=self._entries(request, request.keys, reached_us))

    def _entries(self, request: LookupRequest, keys: Sequence[bytes], reached_us: int | None) -> list[Entries]:
        form = self._forms[request.state]
        over_us = reached_us if form.ttl_time == "event" else request.now_us
        return [form.entries(kept, over_us) for kept in self._store.kept(request.state, keys)]

    def _first(self, request: LookupRequest, epoch: Epoch, reached_us: int | None) -> LookupEntries:
        """Return up to `request.most` keys with their entries. It reads no more keys than a look-up may have."""
        keys, entries, size = list[bytes](), list[Entries](), 0
        candidates = self._store.some_keys(request.state, MAX_KEYS)
        for start in range(0, len(candidates), _PIECE):
            piece = candidates[start : start + _PIECE]
            for key, of_key in zip(piece, self._entries(request, piece, reached_us), strict=True):
                # Nothing is left of a key that was deleted, or has expired.
                if not of_key:
                    continue
                if len(keys) == request.most or size > _MOST_BYTES:
                    return LookupEntries(epoch=epoch, entries=entries, keys=keys, has_more=True)
                keys.append(key)
                entries.append(of_key)
                size += sum(len(sub) + len(value) for sub, value in of_key)
        return LookupEntries(epoch=epoch, entries=entries, keys=keys, has_more=len(candidates) == MAX_KEYS)


@dataclass(frozen=True)
class _Form:
    """The conversion of a state's values, as its table holds them, into entries of an answer."""

    kind: str
    ttl_time: str
    """"event", "processing", or "" for values that do not expire."""
    encode: Callable[[Any], bytes]
    encode_sub: Callable[[Any], bytes]
    stored: ValueCodec | None
    """The codec of the stored values, if the table holds them as bytes."""

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

    def entries(self, kept: KeyEntries, over_us: int | None) -> Entries:
        """Return the entries of a key that have not expired."""
        if self.kind == "list":
            return [(b"", self.encode(element)) for chunk in self._chunks(kept, over_us) for element in chunk]
        living = [(sub, self._value(stored)) for sub, stored in kept if not self._is_over(stored, over_us)]
        return sorted((self.encode_sub(sub), self.encode(value)) for sub, value in living)

    def _chunks(self, kept: KeyEntries, over_us: int | None) -> list[list[Any]]:
        # Chunks without their own expiry expire with the head.
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
        expires_us: int | None = stored[0] if self.stored is None else expiry_of(stored)
        return expires_us

    def _value(self, stored: Any) -> Any:
        if self.stored is not None:
            return self.stored.decode(stored)
        return stored[1] if self.ttl_time else stored


def _nothing(_: Any) -> bytes:
    return b""
