"""From the states that a function declares to their tables, and to the handles it finds in their place."""

from __future__ import annotations

from typing import Any

from strandline.api.joins import Broadcast
from strandline.api.states import List, Map, State
from strandline.backends.base import Backend
from strandline.format.expiringvalues import ExpiringCodec
from strandline.format.keys import KeyCodec
from strandline.format.values import ValueCodec
from strandline.runtime.state.broadcast import Broadcasts
from strandline.runtime.state.columnhandles import VectorValueHandle
from strandline.runtime.state.handles import ListHandle, MapHandle, value_handle, wrapped
from strandline.runtime.state.livekeys import LiveKeys
from strandline.runtime.state.maps import MapTable
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.ttl.cleaning import Cleanable, Expiry
from strandline.runtime.state.ttl.handles import (
    ExpiringListHandle,
    ExpiringMapHandle,
    ExpiringValueHandle,
    ExpiringVectorHandle,
)
from strandline.runtime.state.ttl.lifetimes import Lifetime
from strandline.runtime.state.values import ValueTable
from strandline.types.datatypes import ArrayType, DataType, LongType, parse_type


class Binder:
    """Makes the tables and handles of one operator partition, each table with the same part of the cache."""

    def __init__(
        self,
        scope: Scope,
        backend: Backend,
        keys: LiveKeys,
        expiry: Expiry | None,
        broadcasts: Broadcasts | None,
        cache_bytes: int,
        *,
        vectorised: bool,
    ) -> None:
        self._scope = scope
        self._backend = backend
        self._keys = keys
        self._expiry = expiry
        self._broadcasts = broadcasts
        self._cache_bytes = cache_bytes
        self._vectorised = vectorised

    def bind(self, name: str, state: State) -> tuple[ValueTable | MapTable, Any]:
        """Return a state's table and its handle."""
        if isinstance(state, Broadcast):
            assert self._broadcasts is not None
            return self._broadcasts.bind(name, state, self._backend, self._cache_bytes)
        life = None
        if state.ttl is not None:
            assert self._expiry is not None
            life = self._expiry.lifetime(name, state.ttl)
        if isinstance(state, Map):
            return self._bind_map(name, state, life)
        if isinstance(state, List):
            return self._bind_list(name, state, life)
        return (self._bind_vector if self._vectorised else self._bind_value)(name, state, life)

    def _bind_map(self, name: str, state: Map, life: Lifetime | None) -> tuple[MapTable, Any]:
        sub, values = KeyCodec([parse_type(state.key_type)]), ValueCodec(parse_type(state.value_type))
        table = self._map_table(name, sub, values, life)
        if life is None:
            # A declaration of ours may have a handle of its own.
            return table, getattr(state, "handle", MapHandle)(self._scope, table, sub, values, name)
        handle = ExpiringMapHandle(self._scope, table, sub, values, name, life, self._keys.decode)
        return table, self._cleaned(name, handle)

    def _bind_list(self, name: str, state: List, life: Lifetime | None) -> tuple[MapTable, Any]:
        element: DataType = parse_type(state.value_type)
        table = self._map_table(name, KeyCodec([LongType()]), ValueCodec(ArrayType(element)), life)
        if life is None:
            return table, ListHandle(self._scope, table, ValueCodec(element), name)
        handle = ExpiringListHandle(self._scope, table, ValueCodec(element), name, life, self._keys.decode)
        return table, self._cleaned(name, handle)

    def _bind_value(self, name: str, state: State, life: Lifetime | None) -> tuple[ValueTable, Any]:
        codec = ValueCodec(parse_type(state.value_type))
        stored = codec if life is None else ExpiringCodec(codec)
        encode_keys = self._keys.encode_many
        table = ValueTable(
            name,
            self._backend,
            encode_keys,
            stored.encode_many,
            self._decode_key,
            stored.decode_many,
            self._cache_bytes,
        )
        if life is None:
            return table, value_handle(self._scope, table, codec, name, state)
        default = getattr(state, "default", None)
        handle = ExpiringValueHandle(self._scope, table, codec, name, default, life, self._keys.decode)
        return table, wrapped(self._cleaned(name, handle), state)

    def _bind_vector(self, name: str, state: State, life: Lifetime | None) -> tuple[ValueTable, Any]:
        codec, default = ValueCodec(parse_type(state.value_type)), getattr(state, "default", None)
        table = ValueTable(name, self._backend, list, list, bytes, list, self._cache_bytes)
        if life is None:
            return table, VectorValueHandle(self._scope, table, codec, name, state.value_type, default)
        handle = ExpiringVectorHandle(self._scope, table, codec, name, state.value_type, default, life)
        return table, self._cleaned(name, handle)

    def _map_table(self, name: str, sub: KeyCodec, values: ValueCodec, life: Lifetime | None) -> MapTable:
        stored = values if life is None else ExpiringCodec(values)
        return MapTable(
            name, self._backend, self._keys.encode, self._keys.decode, sub.encode_sub, sub.decode_sub, stored,
            self._cache_bytes,
        )  # fmt: skip

    def _decode_key(self, entry: bytes) -> Any:
        return self._keys.decode(entry)[0]

    def _cleaned(self, name: str, handle: Cleanable) -> Cleanable:
        assert self._expiry is not None
        self._expiry.add(name, handle)
        return handle
