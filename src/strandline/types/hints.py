"""What a declaration says of the types before it. Not in evolution.py: to declare must import nothing heavy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Hints:
    """What no type says about how it came of another one, by paths in the new one. See evolution.py for paths."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Which field of the same struct a field was before, by name."""
    fill: Mapping[str, Any] = field(default_factory=dict)
    """What a field that is new has in values that were written without it; else null."""
    spare: Collection[str] = ()
    """Fields of older versions, by paths in the old type, whose values nobody misses."""
    unsaid: Mapping[str, str] = field(default_factory=dict)
    """Fields that may not be new, and why."""
    several: bool = False
    """Whether `renamed` always counts: of a field that has its name already, and of one that becomes several."""
