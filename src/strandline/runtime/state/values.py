"""The table of value states: one live object a key, over a backend. See table.py for the layers.

A key that is not live is looked up in the dirty layer, in those in flight from new to old, and then in the backend.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from strandline.backends.base import Backend, Entry
from strandline.runtime.state.table import KeyEntries, KeysToRead, ObjectTable

_DICT_SLOT_BYTES = 100
_SAMPLE = 16
_PIECE = 4096
_MISSING: Any = object()


class ValueTable(ObjectTable):
    """One value a key. Keys and values are objects that the codecs decode."""

    def __init__(
        self,
        name: str,
        backend: Backend,
        encode_keys: Callable[[Sequence[Any]], list[bytes]],
        encode_values: Callable[[Sequence[Any]], list[bytes]],
        decode_key: Callable[[bytes], Any],
        decode_values: Callable[[Sequence[bytes | None]], list[Any]],
        cache_bytes: int,
    ) -> None:
        super().__init__(name, backend, cache_bytes)
        self._encode_keys = encode_keys
        self._encode_values = encode_values
        self._decode_values = decode_values
        self._decode_key = decode_key

    def load(self, keys: Iterable[Any]) -> None:
        """Load keys: those that are not in memory, from the backend, with one read."""
        wanted = keys if isinstance(keys, set | frozenset) else set(keys)
        missing = wanted.difference(self.live)
        self.hits += len(wanted) - len(missing)
        if not missing:
            return
        if self._holds_all:
            self.live.update(dict.fromkeys(missing))
            self._absent |= missing
            return
        # From new to old: the first layer that has a key has its newest value.
        for layer in (self._dirty, *self._inflight[::-1]):
            if layer:
                # With `keys()`: an intersection with the dict would iterate it, however few are missing.
                hits = missing & layer.keys()
                self.live.update(zip(hits, map(layer.__getitem__, hits), strict=True))
                missing -= hits
        if not missing:
            return
        self.misses += len(missing)
        absent = list(missing)
        stored = self._backend.get_many(self.name, self._encode_keys(absent))
        self.live.update(zip(absent, self._decode_values(stored), strict=True))

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key that is live; None deletes it."""
        before = self.live[key]
        is_first = key not in self.undo
        if is_first:
            self.undo[key] = before
        if self.journal is not None:
            self.journal.note((self.take_back, key, before, is_first))
        self.live[key] = value

    def take_back(self, key: Any, before: Any, is_first: bool) -> None:
        """Undo a write; `is_first`: it was the epoch's first one of the key."""
        self.live[key] = before
        if is_first:
            del self.undo[key]

    def commit(self) -> None:
        if self._holds_all:
            self._absent.update(key for key in self.undo if self.live[key] is None)
        else:
            self._dirty.update(zip(self.undo, map(self.live.__getitem__, self.undo), strict=True))
        self.undo.clear()

    def abort(self) -> None:
        self.live.update(self.undo)
        self.undo.clear()

    def changed(self) -> Iterator[Entry]:
        return self._encode({key: self.live[key] for key in self.undo})

    def adopt(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        keys, values = [], []
        for entry, value in entries:
            keys.append(self._decode_key(entry))
            values.append(value)
        self.live.update(zip(keys, self._decode_values(values), strict=True))

    def kept(self, some: KeysToRead) -> list[KeyEntries]:
        # List the layers before reading the backend: a layer written meanwhile is in both.
        layers = [self._dirty, *self._inflight[::-1]]
        values = [_first(layers, key) for key in some.keys]
        if self._holds_all:
            # After the live values: `undo` has the old value of each key that this epoch had written by then.
            values = [self.undo.get(key, value) for key, value in zip(some.keys, values, strict=True)]
        elif absent := [at for at, value in enumerate(values) if value is _MISSING]:
            stored = self._backend.get_many(self.name, [some.encoded[at] for at in absent])
            for at, value in zip(absent, self._decode_values(stored), strict=True):
                values[at] = value
        return [[] if value is None or value is _MISSING else [(None, value)] for value in values]

    def _encoded_key(self, key: Any) -> bytes:
        return self._encode_keys([key])[0]

    def _shrink(self) -> None:
        """If the budget is full, keep those of the keys that were loaded last that take half of it."""
        # Keys that the epoch wrote have to stay: they do not count, or each batch would copy everything.
        if (len(self.live) - len(self.undo)) * self._entry_bytes > self._cache_bytes:
            dropped = len(self.live) - int(self._cache_bytes / 2 / self._entry_bytes)
            kept = dict(islice(self.live.items(), dropped, None))
            kept.update((key, self.live[key]) for key in self.undo)
            self.live.clear()
            self.live.update(kept)

    @property
    def dirty_bytes(self) -> int:
        return int(len(self._dirty) * (self._entry_bytes or 200.0))

    @property
    def cached_bytes(self) -> int:
        return int(len(self.live) * self._entry_bytes)

    def _copy(self) -> dict[Any, Any]:
        return dict(self.live)

    def _drop_absent(self, absent: set[Any]) -> None:
        for key in absent:
            if self.live.get(key, key) is None:
                del self.live[key]

    def _sampled_bytes(self) -> float:
        sampled = [k for k, _ in zip(self.live, range(_SAMPLE), strict=False)]
        sampled += [k for k, _ in zip(reversed(self.live), range(_SAMPLE), strict=False)]
        return sum(deep_size(k) + deep_size(self.live[k]) for k in sampled) / len(sampled) + _DICT_SLOT_BYTES

    def _encode(self, changes: dict[Any, Any]) -> Iterator[Entry]:
        if None in changes.values():
            yield from ((key, None) for key in self._encode_keys([key for key, v in changes.items() if v is None]))
            changes = {key: value for key, value in changes.items() if value is not None}
        keys, values = list(changes), list(changes.values())
        # In pieces: encoding a large table at once would double its memory and hold the interpreter for long.
        for start in range(0, len(keys), _PIECE):
            piece = slice(start, start + _PIECE)
            yield from zip(self._encode_keys(keys[piece]), self._encode_values(values[piece]), strict=True)


def _first(layers: Sequence[dict[Any, Any]], key: Any) -> Any:
    """Return the value of a key in the newest layer that has it."""
    for layer in layers:
        value = layer.get(key, _MISSING)
        if value is not _MISSING:
            return value
    return _MISSING


def deep_size(value: Any) -> int:
    """Return about how many bytes an object takes, its elements included."""
    size = sys.getsizeof(value, 64)
    if isinstance(value, tuple | list):
        size += sum(map(deep_size, value[:_SAMPLE])) * max(1, len(value) // _SAMPLE)
    elif isinstance(value, dict):
        some = [deep_size(k) + deep_size(v) for (k, v), _ in zip(value.items(), range(_SAMPLE), strict=False)]
        size += sum(some) * max(1, len(value) // _SAMPLE)
    return size
