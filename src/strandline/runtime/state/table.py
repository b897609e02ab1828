"""The base classes of state tables, whose writes of an epoch are committed or discarded together.

A write belongs to one of four layers, from new to old: writes of the present epoch, which `abort` undoes; dirty writes,
which are committed and which the backend does not have yet; writes in flight, frozen for a background thread to write;
and writes in the backend. A freeze is a swap, so a checkpoint's synchronous part costs next to nothing.

If the backend `keeps_all`, it stores nothing between snapshots: the table loads everything with `adopt`, all of it
stays dirty, and each freeze is a copy, which reads can skip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from threading import Semaphore
from typing import Any, Generic, TypeVar

from strandline.backends.base import Backend, Entry
from strandline.format.keys import KeyCodec
from strandline.runtime.state.journal import Journal

Layer = TypeVar("Layer")
"""Changes that belong together, as a kind of state holds them."""

KeyEntries = list[tuple[Any, Any]]
"""The entries of one key in a table: pairs of the sub key and the value, as the table holds them."""


@dataclass(frozen=True)
class KeysToRead:
    """Keys whose entries are read."""

    keys: Sequence[Any]
    """The keys as tables of objects hold them."""
    encoded: Sequence[bytes]
    codec: KeyCodec


class StateTable(Generic[Layer]):
    """One state of one operator partition.

    Only one thread at a time may call it, except for `release`, `kept` and what `freeze` returns.
    """

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.hits = self.misses = 0
        self.journal: Journal | None = None
        """Records each write, if single calls can be undone."""
        self._backend = backend
        self._holds_all = backend.keeps_all
        self._frozen: list[Layer] = []
        """Frozen layers, the oldest first, until `_drop_written` drops those that are written."""
        self._inflight: list[Layer] = [] if self._holds_all else self._frozen
        """The frozen layers that reads have to search."""
        self._written = Semaphore(0)
        """Counts the layers that are written and still in `_frozen`."""

    @property
    def dirty_bytes(self) -> int:
        """About how much memory the changes take that the backend does not have yet."""
        raise NotImplementedError

    @property
    def cached_bytes(self) -> int:
        """About how much memory all other entries take."""
        return 0

    def commit(self) -> None:
        """Commit this epoch's writes."""
        raise NotImplementedError

    def abort(self) -> None:
        """Discard this epoch's writes."""
        raise NotImplementedError

    def changed(self) -> Iterator[Entry]:
        """Encode this epoch's writes so far."""
        raise NotImplementedError

    def freeze(self) -> Callable[[], Iterator[Entry]]:
        """Freeze the changes for a snapshot, between epochs; return the function that encodes them.

        A background thread calls it, writes the result to the backend, and then calls `release`.
        """
        self._drop_written()
        frozen = self._copy() if self._holds_all else self._take()
        self._frozen.append(frozen)
        return lambda: self._encode(frozen)

    def release(self) -> None:
        """Count the oldest frozen layer as written to the backend."""
        self._written.release()

    def adopt(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the entries of a backend that leaves state to the tables."""
        raise NotImplementedError

    def evict(self) -> None:
        """Keep the cache within its budget."""

    def unwritten(self) -> list[Any]:
        """Return the layers that the backend does not have yet, by key; none if entries contain their key groups."""
        return []

    def kept(self, some: KeysToRead) -> list[KeyEntries]:
        """Return the committed entries of some keys, in their order. Any thread may call it, also while an epoch runs.

        It takes no lock: if a commit, an abort or a freeze happens meanwhile, the result may mix epochs, or it raises
        RuntimeError. The caller detects that with a sequence lock: see lookups.py.
        """
        raise NotImplementedError

    def some_keys(self, codec: KeyCodec, most: int) -> list[bytes]:
        """Return some encoded keys, of which `kept` may find entries: first those that the backend has, in its order.

        Any thread may call it, with the same reservation. If they are fewer than `most`, there are no others.
        """
        raise NotImplementedError

    # -- freezing, by kind of table

    def _copy(self) -> Layer:
        """Return a copy of all entries."""
        raise NotImplementedError

    def _take(self) -> Layer:
        """Return the dirty changes, and replace them with an empty layer."""
        raise NotImplementedError

    def _encode(self, layer: Layer) -> Iterator[Entry]:
        """Encode a frozen layer, in the writing thread: all earlier layers are in the backend."""
        raise NotImplementedError

    def _drop_written(self) -> None:
        """Drop the layers that are written. Only the thread of the epochs may call it, while nothing reads them."""
        while self._frozen and self._written.acquire(blocking=False):
            self._let_go(self._frozen.pop(0))

    def _let_go(self, layer: Layer) -> None:
        """Prepare for reads of a layer's changes from the backend, as the layer is dropped."""


def first_keys(backend: Backend, state: str, codec: KeyCodec, most: int) -> list[bytes]:
    """Return the first encoded keys that a backend has entries of: a search for each, however many entries it has."""
    keys: list[bytes] = []
    first = b""
    while len(keys) < most:
        entry = next((entry for entry, _ in backend.scan(state, first=first)), None)
        if entry is None:
            break
        keys.append(entry[: codec.decode(entry)[2]])
        first = _after(keys[-1])
    return keys


def _after(prefix: bytes) -> bytes:
    """Return the least bytes that are above all that begin with a prefix, which has other bytes than 0xff."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


class ObjectTable(StateTable[dict[Any, Any]]):
    """Base of the tables of live objects: dicts by key, which are never replaced, since handles refer to them."""

    def __init__(self, name: str, backend: Backend, cache_bytes: int) -> None:
        super().__init__(name, backend)
        self.live: dict[Any, Any] = {}
        """The objects that the user's function reads and writes."""
        self.undo: dict[Any, Any] = {}
        """The values before this epoch, of all keys that it has written."""
        self._dirty: dict[Any, Any] = self.live if self._holds_all else {}
        self._absent: set[Any] = set()
        """If all state is live: keys that may be live with the value None. They are dropped to save memory."""
        self._cache_bytes = cache_bytes
        self._entry_bytes = 0.0
        """About how much memory a live entry takes; 0 before the first measurement."""

    def unwritten(self) -> list[dict[Any, Any]]:
        return [self._dirty, *self._frozen]

    def some_keys(self, codec: KeyCodec, most: int) -> list[bytes]:
        # Layers before the backend, as in `kept`. A list of a dict is made at once, whatever the other thread does.
        layers = [self._dirty, *self._inflight[::-1]]
        unwritten: list[bytes] = []
        for key in [key for layer in layers for key in list(islice(layer, most))]:
            # The key group of one that was written meanwhile may be forgotten: the backend has it.
            with suppress(KeyError):
                unwritten.append(self._encoded_key(key))
        stored = [] if self._holds_all else first_keys(self._backend, self.name, codec, most)
        return list(dict.fromkeys([*stored, *unwritten]))[:most]

    def _encoded_key(self, key: Any) -> bytes:
        """Return the bytes of a key that a layer has."""
        raise NotImplementedError

    def evict(self) -> None:
        self._drop_written()
        if self._holds_all:
            self._drop_absent(self._absent.difference(self.undo))
            self._absent.intersection_update(self.undo)
        elif self.live:
            size = self._sampled_bytes()
            self._entry_bytes = size if not self._entry_bytes else 0.8 * self._entry_bytes + 0.2 * size
            self._shrink()

    def _take(self) -> dict[Any, Any]:
        layer, self._dirty = self._dirty, {}
        return layer

    def _drop_absent(self, absent: set[Any]) -> None:
        """Drop these keys from `live`, if their value is None."""
        raise NotImplementedError

    def _sampled_bytes(self) -> float:
        """Measure a few live entries; return how much memory one takes."""
        raise NotImplementedError

    def _shrink(self) -> None:
        """Evict live entries if they exceed the budget."""
        raise NotImplementedError
