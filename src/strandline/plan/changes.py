"""What becomes of what is stored, for people: one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["kept", "migrated", "renamed", "new", "dropped", "refused"]


@dataclass(frozen=True)
class Change:
    """What becomes of an operator, of one of its states, or of one of its aggregates."""

    uid: str
    """As the program has it, or else the snapshot."""
    state: str
    """Empty: the operator itself, or an aggregate."""
    action: Action
    was: str = ""
    """What it is called in the snapshot, where that is something else."""
    details: tuple[str, ...] = ()
    """What changes, or why it is refused."""
    aggregate: str = ""
    """The name of the aggregate's result; empty: it is of none."""

    def __str__(self) -> str:
        what = f"state '{self.uid}.{self.state}'" if self.state else f"operator '{self.uid}'"
        if self.aggregate:
            what = f"aggregate '{self.uid}.{self.aggregate}'"
        was = f", was '{self.was}'" if self.was else ""
        details = f" ({'; '.join(self.details)})" if self.details else ""
        return f"{what}: {self.action}{was}{details}"
