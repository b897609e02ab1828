"""Binds the states that a function declares: a table for each, and the handle that replaces the declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strandline.api.joins import Broadcast
from strandline.api.states import List, Map, State
from strandline.backends.base import Backend
from strandline.format.keys import KeyCodec
from strandline.format.schemas import Schemas
from strandline.format.values import ExpiringCodec, ValueCodec
from strandline.runtime.state.broadcast import Broadcasts
from strandline.runtime.state.columnar import VectorValueHandle
from strandline.runtime.state.handles import (
    CopyingValueHandle,
    JournaledCopyingValueHandle,
    JournaledValueHandle,
    ListHandle,
    MapHandle,
    ValueHandle,
    check_in_full,
    wrap_cell,
)
from strandline.runtime.state.journal import Journal
from strandline.runtime.state.livekeys import LiveKeys
from strandline.runtime.state.maps import MapTable
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.ttl.cleaning import Expiry
from strandline.runtime.state.ttl.handles import (
    ExpiringMapHandle,
    ExpiringValueHandle,
    ExpiringVectorHandle,
)
from strandline.runtime.state.ttl.lifetimes import Lifetime
from strandline.runtime.state.ttl.lists import ExpiringListHandle, WholeListHandle
from strandline.runtime.state.values import ValueTable
from strandline.runtime.state.vectors import VectorTable
from strandline.types.datatypes import LongType, parse_type


@dataclass(frozen=True)
class Binder:
    """Makes the tables and handles of one operator partition, each table with the same part of the cache."""

    scope: Scope
    backend: Backend
    keys: LiveKeys
    expiry: Expiry | None
    broadcasts: Broadcasts | None
    cache_bytes: int
    vectorised: bool
    schemas: Mapping[str, Schemas]
    """The schemas of states whose type was changed, by name."""
    journal: Journal | None = None
    """Records writes, if single calls can be undone."""

    def bind(self, name: str, state: State) -> tuple[ValueTable | VectorTable | MapTable, Any]:
        """Return a state's table and its handle."""
        if isinstance(state, Broadcast):
            assert self.broadcasts is not None
            return self.broadcasts.bind(name, state, self._codec(name, state), self.backend, self.cache_bytes)
        kind: Any = self._bind_vector if self.vectorised else self._bind_value
        if isinstance(state, Map | List):
            kind = self._bind_map if isinstance(state, Map) else self._bind_list
        if state.ttl is None:
            table, handle = kind(name, state, None)
        else:
            assert self.expiry is not None
            table, handle = kind(name, state, self.expiry.lifetime(name, state.ttl))
            self.expiry.add(name, handle.clean)
        return table, wrap_cell(handle, state)

    def _bind_map(self, name: str, state: Map, life: Lifetime | None) -> tuple[MapTable, Any]:
        sub, values = KeyCodec([parse_type(state.key_type)]), self._codec(name, state)
        table = self._map_table(name, sub, values, life)
        if life is None:
            # A built-in declaration may have its own handle class.
            return table, getattr(state, "handle", MapHandle)(self.scope, table, sub, values, name)
        return table, ExpiringMapHandle(self.scope, table, sub, values, name, life)

    def _bind_list(self, name: str, state: List, life: Lifetime | None) -> tuple[MapTable, Any]:
        element = parse_type(state.value_type)
        chunks = self._schemas(name).codec_of_chunks(element)
        numbers = KeyCodec([LongType()])
        table = self._map_table(name, numbers, chunks, life)
        if life is None:
            return table, ListHandle(self.scope, table, self._checked_when_written(ValueCodec(element)), name)
        kind = WholeListHandle if state.expires == "list" else ExpiringListHandle
        return table, kind(self.scope, table, numbers, self._checked_when_written(ValueCodec(element)), name, life)

    def _bind_value(self, name: str, state: State, life: Lifetime | None) -> tuple[ValueTable, Any]:
        codec, default = self._codec(name, state), getattr(state, "default", None)
        stored = codec if life is None else ExpiringCodec(codec)
        encode, decode = self.keys.encode_many, self._decode_key
        table = ValueTable(name, self.backend, encode, stored.encode_many, decode, stored.decode_many, self.cache_bytes)
        table.journal = self.journal
        if life is None:
            kind = CopyingValueHandle if codec.mutable else ValueHandle
            if self.journal is not None:
                kind = JournaledCopyingValueHandle if codec.mutable else JournaledValueHandle
            return table, kind(self.scope, table, codec, name, default)
        return table, ExpiringValueHandle(self.scope, table, codec, name, default, life)

    def _bind_vector(self, name: str, state: State, life: Lifetime | None) -> tuple[VectorTable, Any]:
        codec, default = self._codec(name, state), getattr(state, "default", None)
        table = VectorTable(name, self.backend, self.cache_bytes)
        if life is None:
            return table, VectorValueHandle(self.scope, table, codec, name, default)
        return table, ExpiringVectorHandle(self.scope, table, codec, name, default, life)

    def _map_table(self, name: str, sub: KeyCodec, values: ValueCodec, life: Lifetime | None) -> MapTable:
        stored = values if life is None else ExpiringCodec(values)
        table = MapTable(
            name, self.backend, self.keys.encode, self.keys.decode, sub.encode_sub, sub.decode_sub, stored,
            self.cache_bytes,
        )  # fmt: skip
        table.journal = self.journal
        return table

    def _codec(self, name: str, state: State) -> ValueCodec:
        return self._checked_when_written(self._schemas(name).codec(parse_type(state.value_type)))

    def _checked_when_written(self, codec: ValueCodec) -> ValueCodec:
        """If calls can be undone, have the codec check values in full when they are written, not when encoded."""
        if self.journal is not None:
            check_in_full(codec)
        return codec

    def _schemas(self, name: str) -> Schemas:
        return self.schemas.get(name, Schemas())

    def _decode_key(self, entry: bytes) -> Any:
        return self.keys.decode(entry)[0]
