"""The memory backend's limit: how large the state is, and would become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strandline.backends.base import Changes
from strandline.core.errors import StateLimitError
from strandline.runtime.state.scope import Scope


class StateLimit:
    """The sizes of one operator partition's stored entries, and how much they may be together."""

    def __init__(self, scope: Scope, limit_bytes: int) -> None:
        self._scope = scope
        self._limit = limit_bytes
        self._sizes: dict[tuple[str, bytes], int] = {}
        self._size = 0
        self._checked: dict[tuple[str, bytes], int] = {}

    def count(self, state: str, entries: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Give stored entries as they are read from a snapshot, and count them in."""
        for entry, value in entries:
            size = len(entry) + len(value)
            self._sizes[state, entry] = size
            self._size += size
            yield entry, value

    def check(self, changes: Changes) -> None:
        """Raise StateLimitError if an epoch's changes are too much; else they count from `commit` on."""
        changed: dict[tuple[str, bytes], int] = {}
        for state, entries in changes.items():
            for entry, value in entries:
                changed[state, entry] = 0 if value is None else len(entry) + len(value)
        size = self._size + sum(new - self._sizes.get(at, 0) for at, new in changed.items())
        if size > self._limit:
            raise StateLimitError(
                f"operator '{self._scope.uid}', partition {self._scope.partition}: state would grow to {size} bytes, "
                f"and the memory backend's limit is {self._limit} bytes",
                hint="use backend='rocksdb' for large state, or raise memory_backend_limit in Settings",
                operator=self._scope.uid,
                size_bytes=size,
                limit_bytes=self._limit,
            )
        self._checked = changed

    def commit(self) -> None:
        """Count what was checked."""
        for at, new in self._checked.items():
            self._size += new - self._sizes.pop(at, 0)
            if new:
                self._sizes[at] = new
        self._checked = {}

    def abort(self) -> None:
        """Forget what was checked."""
        self._checked = {}
