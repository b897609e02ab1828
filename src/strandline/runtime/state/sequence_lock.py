"""A sequence lock: threads read data that one other thread changes, and neither waits for the other.

A reader compares the count of changes before and after its read, and reads again if it has moved.
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
    """Counts the changes of one thread, which never waits for readers."""

    def __init__(self) -> None:
        self._count = 0
        """Odd during a change."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Make a change in the `with` block. Do not nest; if the block raises, readers see a change without end."""
        self._count += 1
        yield
        self._count += 1

    def read(self, of: Callable[[], T]) -> T | None:
        """Return the function's result between two changes; None if a change fell into every attempt.

        In the thread that makes the changes, it is never None.
        """
        for _ in range(_TRIES):
            before = self._count
            if not before & 1:
                try:
                    result = of()
                except Exception:
                    # A change during the read may make it fail, as in an iteration: that is no error.
                    if self._count == before:
                        raise
                else:
                    if self._count == before:
                        return result
            time.sleep(_PAUSE_S)
        return None
