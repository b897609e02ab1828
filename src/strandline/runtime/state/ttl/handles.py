"""Handles of states with a TTL. Their tables hold pairs: the expiry time, and the value. See lifetimes.py.

States without a TTL have other handles (../handles.py), which stay fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from strandline.format.keys import KeyCodec
from strandline.format.values import ValueCodec, expiry_of, pack_expiry, with_expiry, without_expiry
from strandline.runtime.state.columnar import BatchKeys, VectorValueHandle
from strandline.runtime.state.handles import MapHandle, ValueHandle, coercion
from strandline.runtime.state.maps import MapTable
from strandline.runtime.state.misuse import ALL, Handle, refusing
from strandline.runtime.state.readout import copy_for
from strandline.runtime.state.scope import Scope
from strandline.runtime.state.ttl.lifetimes import Lifetime
from strandline.runtime.state.values import ValueTable
from strandline.runtime.state.vectors import KeySlots, VectorTable


@refusing(*ALL)
class ExpiringValueHandle(Handle):
    """One value of the current key, which expires."""

    what, to_read, has = ValueHandle.what, ValueHandle.to_read, ValueHandle.has

    __slots__ = ("_coerce", "_copy", "_default", "_life", "_name", "_scope", "_table")

    def __init__(
        self, scope: Scope, table: ValueTable, codec: ValueCodec, name: str, default: Any, life: Lifetime
    ) -> None:
        self._scope = scope
        self._table = table
        self._name = name
        self._coerce = coercion(scope, name, codec)
        how = f"write x = self.{name}.value, change x, and then self.{name}.value = x"
        self._copy = copy_for(codec.type, scope, table, name, how) or (codec.copy if codec.mutable else None)
        self._default = None if default is None else codec.coerce(default)
        self._life = life

    @property
    def value(self) -> Any:
        key, life = self._scope.key, self._life
        pair = self._table.live[key]
        if pair is None or life.is_over(pair[0]):
            value = self._default
        else:
            value = pair[1]
            if life.on_read and (renewed := life.after_reading(pair[0])) is not None:
                self._put(key, pair, renewed, value)
        return self._copy(value) if self._copy and value is not None else value

    @value.setter
    def value(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        value = self._coerce(value)
        key = self._scope.key
        old = self._table.live[key]
        self._put(key, old, self._life.renewed(old and old[0]), value)

    def exists(self) -> bool:
        pair = self._table.live[self._scope.key]
        return pair is not None and not self._life.is_over(pair[0])

    def clear(self) -> None:
        self._table.put(self._scope.key, None)

    def clean(self, entries: list[bytes]) -> None:
        keys = [self._life.keys.decode(entry)[0] for entry in entries]
        self._table.load(keys)
        for key, entry in zip(keys, entries, strict=True):
            pair = self._table.live[key]
            if pair is not None and self._life.has_ended(entry, pair[0]):
                self._table.put(key, None)

    def _put(self, key: Any, old: Any, expires_us: int, value: Any) -> None:
        if old is None or old[0] is None:
            self._life.watch(key, expires_us)
        self._table.put(key, (expires_us, value))


class ExpiringMapHandle(MapHandle):
    """The entries of the current key, each of which expires on its own."""

    __slots__ = ("_keys", "_life")

    def __init__(
        self, scope: Scope, table: MapTable, keys: KeyCodec, values: ValueCodec, name: str, life: Lifetime
    ) -> None:
        super().__init__(scope, table, keys, values, name)
        self._keys = keys
        self._life = life

    def __getitem__(self, sub: Any) -> Any:
        value = self.get(sub)
        if value is None:
            raise KeyError(sub)
        return value

    def get(self, sub: Any, default: Any = None) -> Any:
        sub = self._coerce_key(sub)
        pair = self._living(sub)
        if pair is None:
            return default
        if self._life.on_read and (renewed := self._life.after_reading(pair[0])) is not None:
            self._put(sub, pair, renewed, pair[1])
        return self._copy(pair[1]) if self._copy else pair[1]

    def __setitem__(self, sub: Any, value: Any) -> None:
        sub, value = self._coerce_key(sub), self._coerce_value(value)
        old = self.table.get(self._scope.key, sub)
        self._put(sub, old, self._life.renewed(old and old[0]), value)

    def __delitem__(self, sub: Any) -> None:
        sub = self._coerce_key(sub)
        if self._living(sub) is None:
            raise KeyError(sub)
        self.table.put(self._scope.key, sub, None)

    def __contains__(self, sub: object) -> bool:
        return self._living(self._coerce_key(sub)) is not None

    def __iter__(self) -> Iterator[Any]:
        is_over = self._life.is_over
        cell = self.table.entries(self._scope.key)
        return iter([sub for sub, pair in cell.items() if pair is not None and not is_over(pair[0])])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clean(self, entries: list[bytes]) -> None:
        entry_keys = []
        for entry in entries:
            key, end = self._life.keys.decode(entry)
            entry_keys.append((key, self._keys.decode_sub(entry, end)))
        self.table.load(entry_keys)
        for (key, sub), entry in zip(entry_keys, entries, strict=True):
            pair = self.table.get(key, sub)
            if pair is not None and self._life.has_ended(entry, pair[0]):
                self.table.put(key, sub, None)

    def _living(self, sub: Any) -> Any:
        pair = self.table.get(self._scope.key, sub)
        return None if pair is None or self._life.is_over(pair[0]) else pair

    def _put(self, sub: Any, old: Any, expires_us: int, value: Any) -> None:
        key = self._scope.key
        if old is None or old[0] is None:
            self._life.watch(key, expires_us, self._keys.encode_sub(sub))
        self.table.put(key, sub, (expires_us, value))


class ExpiringVectorHandle(VectorValueHandle):
    """A value state of a vectorised function whose values expire. Its table holds bytes, which contain the expiry."""

    def __init__(
        self, scope: Scope, table: VectorTable, codec: ValueCodec, name: str, default: Any, life: Lifetime
    ) -> None:
        super().__init__(scope, table, codec, name, default)
        self._life = life

    def get_many(self, keys: BatchKeys) -> pa.Array:
        self._check_keys(keys)
        life, places = self._life, self._find(keys)
        stored = self._table.get(places)
        living = [None if data is None or life.is_over(expiry_of(data)) else data for data in stored]
        if life.on_read:
            self._renew(keys, places, living)
        values = self._codec.decode_arrow([None if data is None else without_expiry(data) for data in living])
        return values if self._default is None else values.fill_null(self._default)

    def _present(self, stored: list[bytes]) -> Sequence[bytes | None]:
        return [None if self._life.is_over(expiry_of(data)) else without_expiry(data) for data in stored]

    def clean(self, entries: list[bytes]) -> None:
        keys = list(dict.fromkeys(entries))
        places = self._table.find(keys)
        life, stored = self._life, self._table.get(places)
        ended = [
            at
            for at, (key, data) in enumerate(zip(keys, stored, strict=True))
            if data is not None and life.has_ended(key, expiry_of(data))
        ]
        self._table.put(places.some(ended), [None] * len(ended))

    def _finished(self, keys: BatchKeys, places: KeySlots, values: list[bytes | None]) -> list[bytes | None]:
        expires_us = self._life.renewed(None)
        usual = pack_expiry(expires_us)
        stored: list[bytes | None] = []
        for key, old, new in zip(keys.encoded, self._table.get(places), values, strict=True):
            if new is None:
                stored.append(None)
                continue
            packed, before_us = usual, None if old is None else expiry_of(old)
            if before_us is None:
                self._life.watch_encoded(key, expires_us)
            else:
                packed = pack_expiry(self._life.renewed(before_us))
            stored.append(with_expiry(new, packed))
        return stored

    def _renew(self, keys: BatchKeys, places: KeySlots, living: list[bytes | None]) -> None:
        """Write the values that reading keeps alive for longer."""
        renewed: dict[int, bytes] = {}
        for at, data in enumerate(living):
            if data is None:
                continue
            before_us = expiry_of(data)
            expires_us = self._life.after_reading(before_us)
            if expires_us is not None:
                if before_us is None:
                    self._life.watch_encoded(keys.encoded[at], expires_us)
                renewed[at] = with_expiry(without_expiry(data), pack_expiry(expires_us))
        self._table.put(places.some(list(renewed)), list(renewed.values()))
