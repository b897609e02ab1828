"""Changes of stored operators, states and aggregates, each printed as one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["kept", "extended", "migrated", "renamed", "new", "dropped", "refused"]


@dataclass(frozen=True)
class Change:
    """The change of an operator, of one of its states, or of one of its aggregates."""

    uid: str
    """The uid in the program, or else in the snapshot."""
    state: str
    """Empty for the operator itself and for an aggregate."""
    action: Action
    was: str = ""
    """Its name in the snapshot, if that differs."""
    details: tuple[str, ...] = ()
    """The parts that change, or the reasons of a refusal."""
    aggregate: str = ""
    """The name of the aggregate's result; empty for an operator and a state."""

    def __str__(self) -> str:
        what = f"state '{self.uid}.{self.state}'" if self.state else f"operator '{self.uid}'"
        if self.aggregate:
            what = f"aggregate '{self.uid}.{self.aggregate}'"
        was = f", was '{self.was}'" if self.was else ""
        details = f" ({'; '.join(self.details)})" if self.details else ""
        return f"{what}: {self.action}{was}{details}"
