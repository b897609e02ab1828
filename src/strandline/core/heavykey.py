"""A key that has many of an operator's rows lately, as keepers report it and a status shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_KEYS = 5
LEAST_ROWS = 100.0
"""Of a partition with fewer rows lately, nothing is said."""


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """A key that has many of the last minute's rows."""

    key: dict[str, str] = field(repr=False)
    """Its columns as text, cut if they are long; empty where values are hidden. A status that is logged has no keys."""
    share: float
    """An estimate: of the rows of its partition, or of those of the operator, where all partitions are summed up."""
    error: float
    """How far the share may be off, either way."""
    partition: int
