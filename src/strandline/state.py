"""State as tables, `sl.state`: read from snapshots; savepoints of rows, and of other snapshots with rows changed."""

from __future__ import annotations

from strandline.spark.building.patching import patch
from strandline.spark.building.writing import write
from strandline.spark.tables import lookup, opened, read, register, tables

__all__ = ["lookup", "opened", "patch", "read", "register", "tables", "write"]
