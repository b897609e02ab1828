"""How other threads read what one thread changes now and then, without either of them waiting for a lock.

Readers look whether anything was changed while they read, and if so read again: a sequence lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_TRIES = 20
_PAUSE_S = 0.001


class SequenceLock:
    """Counts the changes of one thread, which never waits for those that read."""

    def __init__(self) -> None:
        self._count = 0
        """Odd in the middle of a change."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Change something. Not within another change; one that raises is not over for readers."""
        self._count += 1
        yield
        self._count += 1

    def read(self, of: Callable[[], T]) -> T | None:
        """Return what a function finds between two changes; None if there were changes whenever it was tried.

        In the thread that makes the changes, it never is.
        """
        for _ in range(_TRIES):
            before = self._count
            if not before & 1:
                try:
                    found = of()
                except Exception:
                    # What was changed while it was walked through, for one, is no error.
                    if self._count == before:
                        raise
                else:
                    if self._count == before:
                        return found
            time.sleep(_PAUSE_S)
        return None
