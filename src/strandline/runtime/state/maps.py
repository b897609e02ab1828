"""The table of map and list states, with many entries a key. See table.py for the layers.

Each key has a cell, a dict of the entries known so far; None is an entry known to be absent. A cell is `complete`
when every stored entry is in it, so that it needs no absent ones. Changes are kept by key, then by entry, so that a
scan can be laid over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from strandline.backends.base import Backend, Entry
from strandline.format.values import ExpiringCodec, ValueCodec
from strandline.runtime.state.table import KeyEntries, KeysToRead, ObjectTable
from strandline.runtime.state.values import deep_size

_MISSING: Any = object()
_ENTRY_BYTES = 150

Cell = dict[Any, Any]


class MapTable(ObjectTable):
    """Entries (key, sub key) → value of one declared state."""

    live: dict[Any, Cell]
    undo: dict[tuple[Any, Any], Any]

    def __init__(
        self,
        name: str,
        backend: Backend,
        encode_key: Callable[[Any], bytes],
        decode_key: Callable[[bytes], tuple[Any, int]],
        encode_sub: Callable[[Any], bytes],
        decode_sub: Callable[[bytes, int], Any],
        values: ValueCodec | ExpiringCodec,
        cache_bytes: int,
    ) -> None:
        super().__init__(name, backend, cache_bytes)
        self._complete: set[Any] = set()
        self._encode_key = encode_key
        self._decode_key = decode_key
        self._encode_sub = encode_sub
        self._decode_sub = decode_sub
        self._values = values
        self._held = 0
        self._writes = 0
        self.undone = 0
        """How often writes were undone: what was derived from the entries may be wrong since."""

    def get(self, key: Any, sub: Any) -> Any:
        """Return one entry, or None."""
        cell = self.live.get(key)
        if cell is None:
            cell = self.live[key] = {}
        value = cell.get(sub, _MISSING)
        if value is not _MISSING:
            self.hits += 1
            return value
        value = self._find(key, sub)
        if value is not None or key not in self._complete:
            cell[sub] = value
        return value

    def load(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Load entries: those that are not in memory, from the backend, with one read."""
        if self._holds_all:
            return
        missing = []
        known = (self.live, self._dirty, *self._inflight)
        for key, sub in entries:
            if key not in self._complete and not any(sub in layer.get(key, ()) for layer in known):
                missing.append((key, sub))
        self.misses += len(missing)
        stored = self._backend.get_many(
            self.name, [self._encode_key(key) + self._encode_sub(sub) for key, sub in missing]
        )
        for (key, sub), data in zip(missing, stored, strict=True):
            self.live.setdefault(key, {})[sub] = None if data is None else self._values.decode(data)

    def put(self, key: Any, sub: Any, value: Any) -> None:
        """Set one entry; None deletes it."""
        entry = (key, sub)
        is_first = entry not in self.undo
        if is_first or self.journal is not None:
            before = self.get(key, sub)
            if is_first:
                self.undo[entry] = before
            if self.journal is not None:
                self.journal.note((self._take_back, key, sub, before, is_first))
        self.live[key][sub] = value

    def put_new(self, key: Any, sub: Any, value: Any) -> None:
        """Set an entry that is known not to exist. Reads nothing."""
        if self.journal is not None:
            self.journal.note((self._take_back, key, sub, None, (key, sub) not in self.undo))
        self.undo.setdefault((key, sub), None)
        cell = self.live.get(key)
        if cell is None:
            cell = self.live[key] = {}
        cell[sub] = value

    def append(self, key: Any, sub: Any, element: Any) -> None:
        """Append to a list that only this epoch writes, since its sub key has the epoch. Reads nothing."""
        chunk = self.peek(key, sub) if self.is_ours(key, sub) else None
        if chunk is None:
            self.put_new(key, sub, [element])
        else:
            self.grow(chunk, element)

    def grow(self, chunk: list[Any], element: Any) -> None:
        """Append to a list that this epoch has put."""
        if self.journal is not None:
            self.journal.note((chunk.pop,))
        chunk.append(element)

    def _take_back(self, key: Any, sub: Any, before: Any, is_first: bool) -> None:
        self.undone += 1
        self.live[key][sub] = before
        if is_first:
            del self.undo[key, sub]
            if before is None and self._holds_all:
                self._absent.add((key, sub))

    def is_ours(self, key: Any, sub: Any) -> bool:
        """Whether this epoch has put the entry: no snapshot or lookup reads it yet, so it may be changed in place."""
        return (key, sub) in self.undo

    def peek(self, key: Any, sub: Any) -> Any:
        """Return an entry if it is live, else None. Reads nothing."""
        cell = self.live.get(key)
        return cell.get(sub) if cell else None

    def entries(self, key: Any) -> Cell:
        """Return the key's complete cell, which is read-only: stored and changed entries, absent ones as None."""
        if self._holds_all:
            return self.live.get(key, {})
        cell = self.live.get(key)
        if cell is None:
            cell = self.live[key] = {}
        if key in self._complete:
            return cell
        whole = self._scan(key)
        whole.update(cell)
        cell.clear()
        cell.update((sub, value) for sub, value in whole.items() if value is not None)
        self._complete.add(key)
        return cell

    def commit(self) -> None:
        dirty, cells = self._dirty, self.live
        if self._holds_all:
            self._absent.update((key, sub) for key, sub in self.undo if cells[key][sub] is None)
        else:
            for key, sub in self.undo:
                value = dirty.setdefault(key, {})[sub] = cells[key].get(sub)
                if value is None and key in self._complete:
                    # Otherwise a read of the cell would take the longer, the more entries the key has ever had.
                    cells[key].pop(sub, None)
            self._writes += len(self.undo)
        self.undo.clear()
        self._held = 0

    def abort(self) -> None:
        self.undone += 1
        for (key, sub), value in self.undo.items():
            self.live[key][sub] = value
            if value is None and self._holds_all:
                self._absent.add((key, sub))
        self.undo.clear()
        self._held = 0

    def changed(self) -> Iterator[Entry]:
        for key, sub in self.undo:
            value = self.live[key].get(sub)
            yield self._encode_key(key) + self._encode_sub(sub), None if value is None else self._values.encode(value)

    def adopt(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        for entry, value in entries:
            key, end = self._decode_key(entry)
            self.live.setdefault(key, {})[self._decode_sub(entry, end)] = self._values.decode(value)

    def kept(self, some: KeysToRead) -> list[KeyEntries]:
        cells = map(self._kept_live if self._holds_all else self._kept_of, some.keys, some.encoded)
        return [[entry for entry in cell.items() if entry[1] is not None] for cell in cells]

    def _encoded_key(self, key: Any) -> bytes:
        return self._encode_key(key)

    def _kept_live(self, key: Any, _: bytes) -> Cell:
        # Copy first: `undo` has the old value of every entry that this epoch had written by then.
        cell = dict(self.live.get(key, ()))
        return {sub: self.undo.get((key, sub), value) for sub, value in cell.items()}

    def _kept_of(self, key: Any, encoded: bytes) -> Cell:
        # List the layers before the scan: one written meanwhile is in both. No read_group: its iterators are shared.
        layers = [*self._inflight, self._dirty]
        stored = self._backend.scan(self.name, encoded)
        cell = {self._decode_sub(entry, len(encoded)): self._values.decode(value) for entry, value in stored}
        for layer in layers:
            cell.update(layer.get(key, ()))
        return cell

    def _shrink(self) -> None:
        """Evict all cells; unwritten changes stay in `_dirty`."""
        # Cells that the epoch wrote, and that the last call kept, have to stay: they do not count for the budget.
        if (len(self.live) - self._held) * self._entry_bytes > self._cache_bytes:
            kept = {key: self.live[key] for key, _ in self.undo}
            self.live.clear()
            self.live.update(kept)
            self._complete.intersection_update(kept)
            self._held = len(kept)

    @property
    def dirty_bytes(self) -> int:
        return self._writes * _ENTRY_BYTES

    @property
    def cached_bytes(self) -> int:
        return int(len(self.live) * self._entry_bytes)

    def _copy(self) -> dict[Any, Cell]:
        return {key: dict(cell) for key, cell in self.live.items()}

    def _take(self) -> dict[Any, Cell]:
        self._writes = 0
        return super()._take()

    def _find(self, key: Any, sub: Any) -> Any:
        if self._holds_all:
            self._absent.add((key, sub))
            return None
        if key in self._complete:
            return None
        for layer in (self._dirty, *self._inflight[::-1]):
            value = layer.get(key, {}).get(sub, _MISSING)
            if value is not _MISSING:
                return value
        self.misses += 1
        stored = self._backend.get_many(self.name, [self._encode_key(key) + self._encode_sub(sub)])[0]
        return None if stored is None else self._values.decode(stored)

    def _scan(self, key: Any) -> Cell:
        self.misses += 1
        prefix = self._encode_key(key)
        cell = {
            self._decode_sub(entry, len(prefix)): self._values.decode(value)
            for entry, value in self._backend.read_group(self.name, prefix)
        }
        for layer in (*self._inflight, self._dirty):
            cell.update(layer.get(key, {}))
        return cell

    def _drop_absent(self, absent: set[tuple[Any, Any]]) -> None:
        for key, sub in absent:
            cell = self.live.get(key, {})
            if cell.get(sub, sub) is None:
                del cell[sub]
            if not cell:
                self.live.pop(key, None)

    def _sampled_bytes(self) -> float:
        some = [cell for cell, _ in zip(reversed(self.live.values()), range(16), strict=False)]
        return sum(map(deep_size, some)) / len(some) + 2 * _ENTRY_BYTES

    def _encode(self, changes: dict[Any, Cell]) -> Iterator[Entry]:
        for key, cell in changes.items():
            prefix = self._encode_key(key)
            for sub, value in cell.items():
                yield prefix + self._encode_sub(sub), None if value is None else self._values.encode(value)
