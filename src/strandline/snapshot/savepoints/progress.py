"""How far a savepoint is: what those say who take one, and those hear who wait for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SavepointProgress:
    """How far a savepoint is."""

    rows: int
    """Of state, written so far."""
    done: int
    """Of the operators' partitions."""
    partitions: int


@dataclass(frozen=True, slots=True)
class PatchProgress:
    """How far a patch is."""

    step: str
    rows: int
    """Of the state that is being written."""
    done: int
    """Of the states that have a table."""
    states: int
