"""Proof that all rows of a partition's epoch arrived, with a digest of their key groups.

A stream that was cut off looks like one that ended. So a marker row comes last (see `spark/keepers/exchange.py`), and
the task that gets it sends the number of rows before it, and a digest of their key groups. The digest does not depend
on the rows' order, which may differ when Spark runs a task again. It changes if a row moves to another partition, where
it would be lost or count twice. Other values in a row may differ: the keeper has those of the first run.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FOLD = np.uint64(29)
_WRAP = (1 << 64) - 1


class RowProof(msgspec.Struct, frozen=True):
    """The payload of END: the number of rows, and the digest of their key groups."""

    rows: int
    digest: int


class RowCounter:
    """Counts and digests the rows of an epoch."""

    def __init__(self) -> None:
        self._rows = 0
        self._digest = 0

    def add(self, key_groups: pa.Array) -> None:
        """Add rows with these key groups."""
        self._rows += len(key_groups)
        spread = (key_groups.to_numpy(zero_copy_only=False).astype(np.uint64) + np.uint64(1)) * _SPREAD
        self._digest = (self._digest + int(np.sum(spread ^ (spread >> _FOLD), dtype=np.uint64))) & _WRAP

    @property
    def proof(self) -> RowProof:
        """The proof of all rows so far."""
        return RowProof(self._rows, self._digest)
