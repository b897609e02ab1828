"""Changes that a log has and the database does not have yet: of many changes of a key, it then gets the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from strandline.backends.base import Entry

_ABSENT: Any = object()
_ENTRY_BYTES = 170
"""About the memory that Python takes for an entry beside its bytes."""
_SIZED = 64
_SCANS = 16
"""A state that is scanned so often while changes wait gets its changes at once."""


class Waiting:
    """Changes by state. One thread at a time adds and drops them; any threads may read meanwhile."""

    def __init__(self, direct: Iterable[str]) -> None:
        """No changes of the states of `direct` wait: they are read in order."""
        self._direct = set(direct)
        self._by_state: dict[str, dict[bytes, bytes | None]] = {}
        self._entry_bytes: dict[str, float] = {}
        self._scans: dict[str, int] = {}

    def is_direct(self, state: str) -> bool:
        """Whether changes of a state do not wait."""
        return state in self._direct

    def add(self, state: str, entries: Sequence[Entry]) -> None:
        """Add changes, which replace earlier ones."""
        some = [*islice(entries, _SIZED)]
        size = sum(map(len, filter(None, chain.from_iterable(some)))) / len(some)
        self._entry_bytes[state] = max(size, 0.9 * self._entry_bytes.get(state, 0.0))
        self._by_state.setdefault(state, {}).update(entries)

    @property
    def size_bytes(self) -> int:
        """About the memory they take."""
        # A list of a dict is made at once, whatever another thread does.
        states = [*self._by_state.items()]
        return int(sum(len(of) * (_ENTRY_BYTES + self._entry_bytes[state]) for state, of in states))

    @property
    def states(self) -> list[str]:
        """The states with changes."""
        return [*self._by_state]

    def of(self, state: str) -> list[Entry]:
        """Return a state's changes."""
        return [*self._by_state.get(state, {}).items()]

    def drop(self, state: str) -> None:
        """Drop a state's changes: the database has them."""
        self._by_state.pop(state, None)

    def get_many(
        self, state: str, keys: Sequence[bytes], stored: Callable[[list[bytes]], Iterable[bytes | None]]
    ) -> list[bytes | None] | None:
        """Return the values of keys, with those that the database has as `stored`; None if no changes wait."""
        changes = self._by_state.get(state)
        if not changes:
            return None
        values = [changes.get(key, _ABSENT) for key in keys]
        missing = [key for key, value in zip(keys, values, strict=True) if value is _ABSENT]
        if missing:
            stored_values = iter(stored(missing))
            values = [next(stored_values) if value is _ABSENT else value for value in values]
        return values

    def scan(self, state: str, prefix: bytes, first: bytes) -> list[Entry]:
        """Return the changes of keys with a prefix from `first` on, in order. Read the database after this."""
        changes = self._by_state.get(state)
        if not changes:
            return []
        scans = self._scans[state] = self._scans.get(state, 0) + 1
        if scans == _SCANS:
            self._direct.add(state)
        return sorted(entry for entry in [*changes.items()] if entry[0] >= first and entry[0].startswith(prefix))


def merged(stored: Iterator[tuple[bytes, bytes]], changes: list[Entry]) -> Iterator[tuple[bytes, bytes]]:
    """Yield stored entries with changes applied, both in key order."""
    at, end = 0, len(changes)
    for entry in stored:
        while at < end and changes[at][0] < entry[0]:
            key, value = changes[at]
            at += 1
            if value is not None:
                yield key, value
        if at < end and changes[at][0] == entry[0]:
            # It comes next, or the entry is deleted.
            continue
        yield entry
    for key, value in changes[at:]:
        if value is not None:
            yield key, value
