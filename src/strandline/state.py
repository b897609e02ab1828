"""State as tables, `sl.state`: read from snapshots; savepoints of rows, and of other snapshots with rows changed."""

from __future__ import annotations

from strandline.spark.building.patching import patch
from strandline.spark.building.writing import write
from strandline.spark.tables import lookup, read, register, tables

__all__ = ["lookup", "patch", "read", "register", "tables", "write"]
