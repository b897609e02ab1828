"""What calls of the user's function have done, so that one can be undone alone, without its epoch.

Only where errors do not end the job: elsewhere there is no journal, and tables and handles do nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Journal:
    """Changes in order, each as a tuple: the function that takes it back, and its arguments."""

    __slots__ = ("entries", "note")

    note: Callable[[tuple[Any, ...]], None]
    """Note a change that is being made. Called at each write: it is the list's own method."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.note = self.entries.append

    def begin(self) -> None:
        """Forget what was noted: it stays."""
        self.entries.clear()

    def undo(self, mark: int = 0) -> None:
        """Take back what was done since there were so many changes, the last one first."""
        entries = self.entries
        while len(entries) > mark:
            take_back, *arguments = entries.pop()
            take_back(*arguments)
