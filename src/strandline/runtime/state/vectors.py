"""The table of value states of vectorised functions: keys and values are bytes, in numbered slots. See table.py.

A dict finds a key's slot, once a batch; all else is arrays by slot. A key keeps its slot while it has changes that the
backend does not have, so a key without a slot is read from the backend.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from strandline.backends.base import Backend, Entry
from strandline.format.keys import KeyCodec
from strandline.runtime.state.table import KeyEntries, KeysToRead, StateTable, first_keys

Numbers = np.ndarray[Any, Any]

_FIRST_SLOTS = 1024
_SLOT_BYTES = 160
"""About what a slot takes in the dict and in the arrays."""
_SAMPLE = 16
_FEWEST_ABSENT = 4096


class Slots:
    """The keys in memory and their values. Eviction makes another one, so that a slot never changes its key."""

    def __init__(self, capacity: int) -> None:
        self.index: dict[bytes, int] = {}
        self.count = 0
        self.keys = np.empty(capacity, object)
        self.values = np.empty(capacity, object)
        self.before = np.empty(capacity, object)
        """The values before this epoch, of the slots that it has written."""
        self.written = np.zeros(capacity, bool)
        self.layer = np.zeros(capacity, np.int64)
        """The number of the layer in which a slot was changed last."""
        self.used = np.zeros(capacity, np.int64)
        """The number of the search that found a slot last."""

    def add(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Give keys slots."""
        start, end = self.count, self.count + len(keys)
        if end > len(self.keys):
            self._grow(max(end, 2 * len(self.keys)))
        self.keys[start:end] = keys
        self.values[start:end] = values
        self.count = end
        # Last: other threads read what they find in the index.
        self.index.update(zip(keys, range(start, end), strict=True))

    def _grow(self, capacity: int) -> None:
        for name in ("keys", "values", "before", "written", "layer", "used"):
            old = getattr(self, name)
            new = np.zeros(capacity, old.dtype) if old.dtype != object else np.empty(capacity, object)
            new[: self.count] = old[: self.count]
            setattr(self, name, new)

    def only(self, kept: Numbers) -> Slots:
        """Return a copy with some of the slots."""
        copy = Slots(max(_FIRST_SLOTS, 2 * len(kept)))
        copy.add(self.keys[kept].tolist(), self.values[kept].tolist())
        for name in ("before", "written", "layer", "used"):
            getattr(copy, name)[: len(kept)] = getattr(self, name)[kept]
        return copy


@dataclass(frozen=True)
class KeySlots:
    """The slots of some keys, in their order."""

    slots: Slots
    at: Numbers

    def some(self, numbers: Sequence[int]) -> KeySlots:
        """Return those of some of the keys."""
        return KeySlots(self.slots, self.at[np.array(numbers, np.int64)])


@dataclass(frozen=True)
class Writes:
    """Keys and values that were written together."""

    keys: Numbers
    values: Numbers

    @classmethod
    def of(cls, slots: Slots, at: Numbers) -> Writes:
        """Return the present values of some slots."""
        return cls(slots.keys[at], slots.values[at])

    def entries(self) -> Iterator[Entry]:
        """Return the keys and values."""
        return zip(self.keys.tolist(), self.values.tolist(), strict=True)


class VectorTable(StateTable[list[Writes]]):
    """One value a key, of many keys at once."""

    def __init__(self, name: str, backend: Backend, cache_bytes: int) -> None:
        super().__init__(name, backend)
        self._slots = Slots(_FIRST_SLOTS)
        self._dirty: list[Writes] = []
        self._dirty_count = 0
        self._layer = 1
        """The number of the layer that the next freeze takes."""
        self._released = 0
        """The number of the newest layer that the backend has."""
        self._searches = 0
        self._has_written = False
        self._absent = 0
        """If all state is in memory: at most so many slots have no value."""
        self._cache_bytes = cache_bytes
        self._entry_bytes = float(_SLOT_BYTES)

    def find(self, keys: Sequence[bytes], known: KeySlots | None = None) -> KeySlots:
        """Return the slots of keys; those that are not in memory are read from the backend, with one read.

        `known`: what the same keys had before.
        """
        if known is not None and known.slots is self._slots:
            return known
        slots = self._slots
        try:
            at = np.fromiter(map(slots.index.__getitem__, keys), np.int64, len(keys))
        except KeyError:
            missing = list({*keys}.difference(slots.index))
            self.misses += len(missing)
            self.hits -= len(missing)
            stored = [None] * len(missing) if self._holds_all else self._backend.get_many(self.name, missing)
            slots.add(missing, stored)
            self._absent += len(missing)
            at = np.fromiter(map(slots.index.__getitem__, keys), np.int64, len(keys))
        self.hits += len(keys)
        self._searches += 1
        slots.used[at] = self._searches
        return KeySlots(slots, at)

    def get(self, places: KeySlots) -> list[bytes | None]:
        """Return the values of keys."""
        values: list[bytes | None] = places.slots.values[places.at].tolist()
        return values

    def put(self, places: KeySlots, values: Sequence[bytes | None]) -> None:
        """Set the values of keys; None deletes one. Of equal keys, the last one counts."""
        if not values:
            return
        slots, at = places.slots, places.at
        new = np.empty(len(values), object)
        new[:] = values
        first = at[~slots.written[at]]
        # In this order: see `kept`.
        slots.before[first] = slots.values[first]
        slots.written[first] = True
        slots.values[at] = new
        self._absent += values.count(None)
        self._has_written = True

    def _written_now(self) -> Numbers:
        return np.flatnonzero(self._slots.written[: self._slots.count])

    def commit(self) -> None:
        if not self._has_written:
            return
        slots, at = self._slots, self._written_now()
        if not self._holds_all:
            self._dirty.append(Writes.of(slots, at))
            self._dirty_count += len(at)
            slots.layer[at] = self._layer
        self._end(at)

    def abort(self) -> None:
        if self._has_written:
            slots, at = self._slots, self._written_now()
            slots.values[at] = slots.before[at]
            self._end(at)

    def _end(self, at: Numbers) -> None:
        self._slots.written[at] = False
        self._slots.before[at] = None
        self._has_written = False

    def stored(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys that have a value, with what they have in this epoch."""
        index, keys = self._slots.index, self._slots.keys[: self._slots.count].tolist()
        values = self._slots.values[: self._slots.count].tolist()
        yield from ((key, value) for key, value in zip(keys, values, strict=True) if value is not None)
        if not self._holds_all:
            yield from ((key, value) for key, value in self._backend.scan(self.name) if key not in index)

    def changed(self) -> Iterator[Entry]:
        return Writes.of(self._slots, self._written_now()).entries()

    def adopt(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        keys, values = [], []
        for key, value in entries:
            keys.append(key)
            values.append(value)
        self._slots.add(keys, values)

    def kept(self, some: KeysToRead) -> list[KeyEntries]:
        slots = self._slots
        values: list[Any] = [None] * len(some.encoded)
        absent = []
        for number, key in enumerate(some.encoded):
            at = slots.index.get(key)
            if at is None:
                absent.append(number)
                continue
            values[number] = slots.values[at]
            # After the value: a write marks the slot before it.
            if slots.written[at]:
                values[number] = slots.before[at]
        if absent and not self._holds_all:
            stored = self._backend.get_many(self.name, [some.encoded[number] for number in absent])
            for number, value in zip(absent, stored, strict=True):
                values[number] = value
        return [[] if value is None else [(None, value)] for value in values]

    def some_keys(self, codec: KeyCodec, most: int) -> list[bytes]:
        live = list(islice(self._slots.index, most))
        stored = [] if self._holds_all else [key for key, _ in islice(self._backend.scan(self.name), most)]
        return list(dict.fromkeys([*stored, *live]))[:most]

    def evict(self) -> None:
        self._drop_written()
        slots = self._slots
        if self._holds_all:
            if self._absent > max(_FEWEST_ABSENT, slots.count // 2):
                has_value = _has_value(slots.values[: slots.count])
                self._slots = slots.only(np.flatnonzero(has_value | slots.written[: slots.count]))
                self._absent = 0
            return
        self._measure()
        most = int(self._cache_bytes / self._entry_bytes)
        if slots.count <= most:
            return
        pinned = slots.written[: slots.count] | (slots.layer[: slots.count] > self._released)
        others = np.flatnonzero(~pinned)
        if len(others) > most:
            # Keep the half that was used last.
            dropped = len(others) - most // 2
            if dropped < len(others):
                pinned[others[np.argpartition(slots.used[others], dropped)[dropped:]]] = True
            self._slots = slots.only(np.flatnonzero(pinned))

    def _measure(self) -> None:
        """Measure a few entries."""
        slots = self._slots
        if slots.count:
            some = [*slots.values[:_SAMPLE], *slots.values[max(0, slots.count - _SAMPLE) : slots.count]]
            size = sum(map(sys.getsizeof, some)) / len(some) + sys.getsizeof(slots.keys[0]) + _SLOT_BYTES
            self._entry_bytes = 0.8 * self._entry_bytes + 0.2 * size

    @property
    def dirty_bytes(self) -> int:
        return int(self._dirty_count * self._entry_bytes)

    @property
    def cached_bytes(self) -> int:
        return int((self._slots.count - self._dirty_count) * self._entry_bytes)

    def _copy(self) -> list[Writes]:
        slots = self._slots
        at = np.flatnonzero(_has_value(slots.values[: slots.count]))
        return [Writes.of(slots, at)]

    def _take(self) -> list[Writes]:
        layer, self._dirty = self._dirty, []
        self._dirty_count = 0
        self._layer += 1
        return layer

    def _encode(self, layer: list[Writes]) -> Iterator[Entry]:
        if len(layer) == 1:
            return layer[0].entries()
        newest: dict[bytes, bytes | None] = {}
        for writes in layer:
            newest.update(writes.entries())
        return iter(newest.items())

    def _let_go(self, layer: list[Writes]) -> None:
        self._released += 1


class EntryTable(VectorTable):
    """Entries of many keys at once: a key's bytes here are those of the key and the sub key."""

    def __init__(self, name: str, backend: Backend, cache_bytes: int, subs: KeyCodec) -> None:
        super().__init__(name, backend, cache_bytes)
        self._subs = subs

    def kept(self, some: KeysToRead) -> list[KeyEntries]:
        # Those in memory first: an entry that is evicted meanwhile is in the backend.
        names: dict[bytes, dict[bytes, None]] = {key: {} for key in some.encoded}
        sizes = {*map(len, names)}
        for name in list(self._slots.index):
            for size in sizes:
                if (of_key := names.get(name[:size])) is not None:
                    of_key[name] = None
        if not self._holds_all:
            for key, of_key in names.items():
                of_key.update(dict.fromkeys(name for name, _ in self._backend.scan(self.name, key)))
        return [self._entries(key, [*names[key]], some) for key in some.encoded]

    def _entries(self, key: bytes, names: Sequence[bytes], some: KeysToRead) -> KeyEntries:
        kept = super().kept(replace(some, keys=[], encoded=names))
        return [
            (self._subs.decode_sub(name, len(key)), value)
            for name, entries in zip(names, kept, strict=True)
            for _, value in entries
        ]

    def some_keys(self, codec: KeyCodec, most: int) -> list[bytes]:
        stored = [] if self._holds_all else first_keys(self._backend, self.name, codec, most)
        live = (name[: codec.decode(name)[2]] for name in list(self._slots.index))
        return list(islice(dict.fromkeys([*stored, *live]), most))


def _has_value(values: Numbers) -> Numbers:
    return np.fromiter((value is not None for value in values), bool, len(values))
