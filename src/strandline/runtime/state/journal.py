"""The undo journal: records the changes of a call of the user's function, so that one call can be undone alone.

It exists only if errors do not end the job: otherwise tables and handles do nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Journal:
    """Changes in order, each as a tuple: the function that undoes it, and its arguments."""

    __slots__ = ("entries", "note")

    note: Callable[[tuple[Any, ...]], None]
    """Record a change. Called at each write, so it is the list's `append` itself."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.note = self.entries.append

    def begin(self) -> None:
        """Discard the entries: their changes cannot be undone any more."""
        self.entries.clear()

    def undo(self, mark: int = 0) -> None:
        """Undo the changes after the first `mark` ones, the last one first."""
        entries = self.entries
        while len(entries) > mark:
            take_back, *arguments = entries.pop()
            take_back(*arguments)
