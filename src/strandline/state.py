"""State as tables: savepoints made of rows, and savepoints made of others by changing some of their rows."""

from __future__ import annotations

from strandline.spark.tables.patching import patch
from strandline.spark.tables.writing import write

__all__ = ["patch", "write"]
