"""State as tables, `sl.state`: savepoints made of rows, and of other snapshots by changing some of their rows."""

from __future__ import annotations

from strandline.spark.building.patching import patch
from strandline.spark.building.writing import write

__all__ = ["patch", "write"]
