"""Hints for the evolution of a type. They are apart from evolution.py so that declarations import nothing heavy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Hints:
    """Facts about the change from an old type to a new one, by paths in the new one; evolution.py defines paths."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Former names of fields, in the same struct."""
    fill: Mapping[str, Any] = field(default_factory=dict)
    """Values of new fields in values that were written without them; else null."""
    droppable: Collection[str] = ()
    """Fields of older versions whose values are not needed, by paths in the old type."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Fields that may not be added, with the reason."""
    always_rename: bool = False
    """Whether `renamed` applies if the old type has the new name too, or if one field becomes several."""
