"""Output of an epoch: kept for a Spark task that runs again, and split for Spark's JVM, which copies whole batches."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from strandline.core.errors import OutputError, UnavailableError
from strandline.keeper.rowproof import RowProof

_IN_MEMORY_BYTES = 64 << 20
_PIECE_BYTES = 32 << 20


class KeptOutput:
    """The frames of the last epoch's output. Large output goes to a file."""

    def __init__(self, directory: Path) -> None:
        self.input = RowProof(0, 0)
        """The rows that the output was computed from."""
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=str(directory))  # noqa: SIM115
        self._sizes: list[int] = []

    def add(self, frame: pa.Buffer) -> None:
        """Keep one frame; raise UnavailableError if the disk is full."""
        try:
            self._file.write(frame)
        except OSError as error:
            raise UnavailableError(
                f"the epoch's output cannot be kept for a task that runs again: {error}",
                hint="look for a full disk under local_dir",
            ) from error
        self._sizes.append(frame.size)

    def frames(self) -> Iterator[bytes]:
        """Yield the frames."""
        self._file.seek(0)
        for size in self._sizes:
            yield self._file.read(size)

    def close(self) -> None:
        """Drop the output. Ignores a full disk, since nothing needs the output any more."""
        with contextlib.suppress(OSError):
            self._file.close()


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
