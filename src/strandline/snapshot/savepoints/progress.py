"""Progress of savepoints and patches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SavepointProgress:
    """The progress of a savepoint."""

    rows: int
    """Rows of state written so far."""
    done: int
    """Partitions of operators that are complete."""
    partitions: int


@dataclass(frozen=True, slots=True)
class PatchProgress:
    """The progress of a patch."""

    step: str
    rows: int
    """Rows of the current state written so far."""
    done: int
    """States with tables that are complete."""
    states: int
