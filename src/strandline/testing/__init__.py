"""Tools for tests: run process functions with their real state, without Spark and without other processes."""

from __future__ import annotations

from strandline.testing.aggregates import agg
from strandline.testing.harness import Harness, Snapshot
from strandline.testing.rows import Right
from strandline.testing.windows import window

__all__ = ["Harness", "Right", "Snapshot", "agg", "window"]
