"""`strandline new`: a project to begin with."""

from __future__ import annotations


def new() -> None:
    """Make a project."""
