"""Output of an epoch: kept for a Spark task that runs again, and split for Spark's JVM, which copies whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from strandline.core.errors import OutputError
from strandline.keeper.rowproof import RowProof
from strandline.runtime.framefile import FrameFile

_IN_MEMORY_BYTES = 64 << 20
_PIECE_BYTES = 32 << 20


class KeptOutput(FrameFile):
    """The frames of the last epoch's output."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "the epoch's output cannot be kept for a task that runs again", _IN_MEMORY_BYTES)
        self.input = RowProof(0, 0)
        """The rows that the output was computed from."""
        self.wait_s = 0.0
        """For how long the epoch waited for these rows."""


def in_pieces(batch: pa.RecordBatch, uid: str, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch of output in pieces of some 32 MB; raise OutputError for a row larger than `most_bytes`.

    Spark's JVM holds a batch outside of the memory that it counts.
    """
    if batch.nbytes <= min(_PIECE_BYTES, most_bytes):
        yield batch
    elif batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from in_pieces(batch.slice(0, half), uid, most_bytes)
        yield from in_pieces(batch.slice(half), uid, most_bytes)
    elif batch.nbytes <= most_bytes:
        yield batch
    else:
        sizes = {name: column.nbytes for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        largest = max(sizes, key=lambda name: sizes[name])
        message = (
            f"operator '{uid}' gave a row of {batch.nbytes:,} bytes, and {most_bytes:,} are the most (max_row in "
            f"Settings); its largest column is '{largest}' with {sizes[largest]:,}"
        )
        raise OutputError(
            message,
            hint="keep large values elsewhere and give where they are; or raise max_row, and Spark's memory with it",
            discreet=message,
            operator=uid,
        )
