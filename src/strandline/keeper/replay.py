"""What the last epoch gave, kept for a Spark task that comes again, and the proof that its rows are all there.

A stream that was cut off looks like one that ended. So its end is told apart, by the row that only comes last (see
`spark/keepers/exchange.py`), and whoever saw it says what came before: how many rows, and a digest of their key groups.
It does not depend on the rows' order, which may differ when Spark runs a task again. Rows that went to another
partition the second time would be lost or count twice: they change it. What a row holds besides does not matter: the
first is kept.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import numpy as np
import pyarrow as pa

from strandline.core.errors import UnavailableError

_IN_MEMORY_BYTES = 64 << 20
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


class KeptOutput:
    """The output of the last epoch, for a Spark task that is retried. Large output goes to a file."""

    def __init__(self, directory: Path) -> None:
        self.input = RowProof(0, 0)
        """What it was computed from."""
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=str(directory))  # noqa: SIM115
        self._sizes: list[int] = []

    def add(self, frame: pa.Buffer) -> None:
        """Keep one frame; raise UnavailableError if there is no room for it."""
        try:
            self._file.write(frame)
        except OSError as error:
            raise UnavailableError(
                f"what the epoch gives cannot be kept for a task that comes again: {error}",
                hint="look for a full disk under local_dir",
            ) from error
        self._sizes.append(frame.size)

    def frames(self) -> Iterator[bytes]:
        """Give the frames again."""
        self._file.seek(0)
        for size in self._sizes:
            yield self._file.read(size)

    def close(self) -> None:
        """Let the output go. What a full disk did not take of it is not needed any more: that is no error."""
        with contextlib.suppress(OSError):
            self._file.close()
