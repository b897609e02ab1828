"""What one call of the user's function has done, so that it can be undone alone, without its epoch.

Only where errors do not end the job: elsewhere there is no journal, and tables and handles do nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Journal:
    """The changes of one call, in order: each as a function that takes it back, and the arguments of that."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def note(self, take_back: Callable[..., Any], *arguments: Any) -> None:
        """Note a change that is being made."""
        self.entries.append((take_back, arguments))

    def begin(self) -> None:
        """A call begins: what was done before it stays."""
        if self.entries:
            self.entries.clear()

    def undo(self) -> None:
        """Take back what was done since the call began, the last change first."""
        for take_back, arguments in reversed(self.entries):
            take_back(*arguments)
        self.entries.clear()
