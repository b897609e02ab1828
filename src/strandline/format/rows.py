"""Files of rows that are to be delivered to another system: Arrow batches in a frame, as docs/format.md says."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from strandline.core.errors import CorruptionError
from strandline.format.frame import frame, unframe

_MAGIC = b"SLSROWS1"
_VERSION = 1
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def encode_rows(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return a file of at least one batch, all of one schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return frame(_MAGIC, _VERSION, sink.getvalue().to_pybytes())


def decode_rows(data: bytes, where: str) -> list[pa.RecordBatch]:
    """Read a file; raise CorruptionError naming `where` unless every byte is as written."""
    payload = unframe(data, _MAGIC, _VERSION, where)
    try:
        with pa.ipc.open_stream(payload) as reader:
            return list(reader)
    except pa.ArrowInvalid as error:
        raise CorruptionError(f"{where}: its rows cannot be read: {error}") from error
