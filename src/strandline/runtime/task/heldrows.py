"""Rows that wait for the end of their epoch: an epoch may have any number of them, so most are in a file."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from strandline.runtime.framefile import FrameFile

_IN_MEMORY_BYTES = 64 << 20


class HeldRows:
    """Batches of one epoch, in order: the first ones are in memory, the others in a file in `directory`."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._file: FrameFile | None = None
        self._schema: pa.Schema | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Hold a batch; raise UnavailableError if the disk is full."""
        self._bytes += batch.nbytes
        if self._bytes <= _IN_MEMORY_BYTES:
            self._batches.append(batch)
            return
        if self._file is None:
            self._file = FrameFile(self._directory, "rows that wait for the end of their epoch cannot be held")
            self._schema = batch.schema
        self._file.add(batch.serialize())

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, and forget them."""
        while self._batches:
            yield self._batches.popleft()
        if self._file is not None:
            for frame in self._file.frames():
                yield pa.ipc.read_record_batch(pa.py_buffer(frame), self._schema)
        self.clear()

    def clear(self) -> None:
        """Forget the batches."""
        self._batches.clear()
        self._bytes = 0
        if self._file is not None:
            self._file.close()
        self._file = None
