"""The proof that a partition's rows of an epoch are all there, and which they were.

A stream that was cut off looks like one that ended. So its end is told apart, by the row that only comes last (see
`spark/keepers/exchange.py`), and whoever saw it says what came before: how many rows, and a digest of their key groups.
It does not depend on the rows' order, which may differ when Spark runs a task again. Rows that went to another
partition the second time would be lost or count twice: they change it. What a row holds besides does not matter: the
first is kept.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(29)
_WRAP = (1 << 64) - 1


class RowProof(msgspec.Struct, frozen=True):
    """What END carries: all rows have come, and these were they."""

    rows: int
    digest: int


class RowCounter:
    """Counts the rows of an epoch."""

    def __init__(self) -> None:
        self._rows = 0
        self._digest = 0

    def add(self, key_groups: pa.Array) -> None:
        """Count rows with these key groups."""
        self._rows += len(key_groups)
        spread = (key_groups.to_numpy(zero_copy_only=False).astype(np.uint64) + np.uint64(1)) * _SPREAD
        self._digest = (self._digest + int(np.sum(spread ^ (spread >> _FOLD), dtype=np.uint64))) & _WRAP

    @property
    def proof(self) -> RowProof:
        """All that has come, once nothing more comes."""
        return RowProof(self._rows, self._digest)
