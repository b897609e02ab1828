"""What every kind of state is to its partition: a table whose writes of an epoch are kept or forgotten together.

What is written belongs to one of four layers, from new to old: the present epoch's, which `abort` takes back; `dirty`,
what committed epochs wrote and the backend does not have yet; frozen changes, while a background thread writes them;
and what the backend has. Freezing is a swap, so a checkpoint's synchronous part costs next to nothing.

Where the backend `keeps_all`, it keeps nothing itself: the table holds everything as live objects and takes them over
with `adopt`, and each freeze is a copy of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from strandline.backends.base import Backend, Entry


class StateTable(Protocol):
    """One state of one operator partition. One thread at a time, apart from what `freeze` returns and `release`."""

    name: str
    hits: int
    misses: int

    @property
    def dirty_bytes(self) -> int:
        """About how much memory changes hold on to that the backend does not have yet."""
        ...

    @property
    def cached_bytes(self) -> int:
        """About how much memory the rest takes."""
        ...

    def commit(self) -> None:
        """Keep this epoch's writes."""
        ...

    def abort(self) -> None:
        """Forget this epoch's writes."""
        ...

    def changed(self) -> Iterator[Entry]:
        """Encode what this epoch wrote so far."""
        ...

    def freeze(self) -> Callable[[], Iterator[Entry]]:
        """Take what the backend must be given for a snapshot; later writes do not show in it.

        The result is called in a background thread, and `release` in the end.
        """
        ...

    def release(self) -> None:
        """The oldest frozen changes are in the backend now."""
        ...

    def adopt(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Take over the entries of a backend that keeps nothing itself."""
        ...

    def evict(self) -> None:
        """Keep what is cached within its budget."""
        ...

    def unwritten(self) -> list[dict[Any, Any]]:
        """Return the layers of what the backend does not have yet, by key; none where entries carry their keys."""
        ...


class ObjectTable:
    """What tables of live objects have in common: by key, in dicts that stay the same, for handles hold on to them."""

    def __init__(self, name: str, backend: Backend, cache_bytes: int) -> None:
        self.name = name
        self.hits = 0
        self.misses = 0
        self.live: dict[Any, Any] = {}
        """What the user's function reads and writes."""
        self.undo: dict[Any, Any] = {}
        """What stood there before, of all that this epoch has written."""
        self.dirty: dict[Any, Any] = {}
        self.inflight: list[dict[Any, Any]] = []
        """Frozen changes, older first."""
        self._backend = backend
        self._holds_all = backend.keeps_all
        self._cache_bytes = cache_bytes
        self._entry_bytes = 0.0
        """About how much memory a live entry takes; 0 before the first look."""

    def freeze(self) -> Callable[[], Iterator[Entry]]:
        """Take what the backend must be given for a snapshot; later writes do not show in it."""
        if self._holds_all:
            frozen = self._copied()
        else:
            frozen, self.dirty = self.dirty, {}
        self.inflight.append(frozen)
        return lambda: self._encode(frozen, with_absent=not self._holds_all)

    def release(self) -> None:
        """The oldest frozen changes are in the backend now."""
        self.inflight.pop(0)

    def unwritten(self) -> list[dict[Any, Any]]:
        """Return the layers of what the backend does not have yet, by key."""
        return [self.live if self._holds_all else self.dirty, *self.inflight]

    def evict(self) -> None:
        """Keep what is cached within its budget."""
        if self._holds_all:
            self._drop_absent()
        elif self.live:
            size = self._sampled_bytes()
            self._entry_bytes = size if not self._entry_bytes else 0.8 * self._entry_bytes + 0.2 * size
            self._shrink()

    def _drop_absent(self) -> None:
        """Forget that something is not there, where everything else stays: memory follows the state."""
        raise NotImplementedError

    def _sampled_bytes(self) -> float:
        """Look at a few live entries; return how much memory one takes."""
        raise NotImplementedError

    def _shrink(self) -> None:
        """Let go of live entries if they are beyond the budget."""
        raise NotImplementedError

    def _copied(self) -> dict[Any, Any]:
        """Return all that there is, so that later writes do not show in it."""
        raise NotImplementedError

    def _encode(self, changes: dict[Any, Any], *, with_absent: bool) -> Iterator[Entry]:
        """Encode a layer; what is not there is left out unless somebody must be told."""
        raise NotImplementedError
