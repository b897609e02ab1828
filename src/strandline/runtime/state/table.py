"""What every kind of state is to its partition: a table whose writes of an epoch are kept or forgotten together.

What is written belongs to one of four layers, from new to old: the present epoch's, which `abort` takes back; dirty,
what committed epochs wrote and the backend does not have yet; what is in flight, frozen and given to a background
thread to write; and what the backend has. Freezing is a swap, so a checkpoint's synchronous part costs next to nothing.

Where the backend `keeps_all`, it keeps nothing itself: the table takes everything over with `adopt`, all of it is dirty
for ever, and each freeze is a copy, in which reads need not look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Semaphore
from typing import Any, Generic, TypeVar

from strandline.backends.base import Backend, Entry
from strandline.format.keys import KeyCodec
from strandline.runtime.state.journal import Journal

Layer = TypeVar("Layer")
"""Changes that belong together, as a kind of state holds them."""

Kept = list[tuple[Any, Any]]
"""What a table has of one key: what follows the key in an entry, and the value, as the table holds them."""


@dataclass(frozen=True)
class SomeKeys:
    """Keys to look up."""

    keys: Sequence[Any]
    """As tables of objects know them."""
    encoded: Sequence[bytes]
    codec: KeyCodec


class StateTable(Generic[Layer]):
    """One state of one operator partition.

    One thread at a time, apart from what `freeze` returns, `release`, and `kept`.
    """

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.hits = self.misses = 0
        self.journal: Journal | None = None
        """Where each write is noted, if single calls are to be undone."""
        self._backend = backend
        self._holds_all = backend.keeps_all
        self._frozen: list[Layer] = []
        """What was frozen and is not known to be written, older first."""
        self._inflight: list[Layer] = [] if self._holds_all else self._frozen
        """The same, where reads have to look into it."""
        self._written = Semaphore(0)
        """Counts what is written, and still among what was frozen."""

    @property
    def dirty_bytes(self) -> int:
        """About how much memory changes hold on to that the backend does not have yet."""
        raise NotImplementedError

    @property
    def cached_bytes(self) -> int:
        """About how much memory the rest takes."""
        return 0

    def commit(self) -> None:
        """Keep this epoch's writes."""
        raise NotImplementedError

    def abort(self) -> None:
        """Forget this epoch's writes."""
        raise NotImplementedError

    def changed(self) -> Iterator[Entry]:
        """Encode what this epoch wrote so far."""
        raise NotImplementedError

    def freeze(self) -> Callable[[], Iterator[Entry]]:
        """Between epochs: take what the backend must be given for a snapshot; later writes do not show in it.

        The result is called in a background thread, and `release` in the end.
        """
        self._drop_written()
        frozen = self._copy() if self._holds_all else self._take()
        self._frozen.append(frozen)
        return lambda: self._encode(frozen)

    def release(self) -> None:
        """The oldest frozen changes are in the backend now."""
        self._written.release()

    def adopt(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Take over the entries of a backend that keeps nothing itself."""
        raise NotImplementedError

    def evict(self) -> None:
        """Keep what is cached within its budget."""

    def unwritten(self) -> list[Any]:
        """Return the layers of what the backend does not have yet, by key; none where entries carry their keys."""
        return []

    def kept(self, some: SomeKeys) -> list[Kept]:
        """Return what committed epochs wrote of some keys, in their order. In any thread, also while an epoch runs.

        It holds no lock: if a commit, an abort or a freeze falls into it, what it returns is of no epoch, or it raises
        RuntimeError. See lookups.py for who finds that out.
        """
        raise NotImplementedError

    # -- what freezing is, by kind

    def _copy(self) -> Layer:
        """Return all that there is, so that later writes do not show in it."""
        raise NotImplementedError

    def _take(self) -> Layer:
        """Return the dirty changes, and go on with none."""
        raise NotImplementedError

    def _encode(self, layer: Layer) -> Iterator[Entry]:
        """Encode what was frozen, in the thread that writes: all that was frozen before is in the backend."""
        raise NotImplementedError

    def _drop_written(self) -> None:
        """Let go of what is written; in the thread of the epochs, when nothing that goes on relies on it."""
        while self._frozen and self._written.acquire(blocking=False):
            self._let_go(self._frozen.pop(0))

    def _let_go(self, layer: Layer) -> None:
        """Do what there is to be done when reads find a layer's changes in the backend from now on."""


class ObjectTable(StateTable[dict[Any, Any]]):
    """What tables of live objects have in common: by key, in dicts that stay the same, for handles hold on to them."""

    def __init__(self, name: str, backend: Backend, cache_bytes: int) -> None:
        super().__init__(name, backend)
        self.live: dict[Any, Any] = {}
        """What the user's function reads and writes."""
        self.undo: dict[Any, Any] = {}
        """What stood there before, of all that this epoch has written."""
        self._dirty: dict[Any, Any] = self.live if self._holds_all else {}
        self._absent: set[Any] = set()
        """Where all is live: what may stand there as absent. It goes, so that memory follows the state."""
        self._cache_bytes = cache_bytes
        self._entry_bytes = 0.0
        """About how much memory a live entry takes; 0 before the first look."""

    def unwritten(self) -> list[dict[Any, Any]]:
        return [self._dirty, *self._frozen]

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
        taken, self._dirty = self._dirty, {}
        return taken

    def _drop_absent(self, absent: set[Any]) -> None:
        """Forget of these that they are not there, unless they are."""
        raise NotImplementedError

    def _sampled_bytes(self) -> float:
        """Look at a few live entries; return how much memory one takes."""
        raise NotImplementedError

    def _shrink(self) -> None:
        """Let go of live entries if they are beyond the budget."""
        raise NotImplementedError
