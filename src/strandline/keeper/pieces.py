"""Splits a keeper's output for Spark's JVM, which copies each batch as a whole, outside of the memory it counts."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from strandline.core.errors import OutputError

_PIECE_BYTES = 32 << 20


def in_pieces(batch: pa.RecordBatch, uid: str, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch of output in pieces of some 32 MB; raise OutputError for a row larger than `most_bytes`."""
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
