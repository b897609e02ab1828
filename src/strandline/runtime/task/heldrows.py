"""Rows that wait for the end of their epoch: an epoch may have any number of them, so most are in a file."""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from strandline.core.errors import UnavailableError

_IN_MEMORY_BYTES = 64 << 20


class HeldRows:
    """Batches of one epoch, in order: the first ones are in memory, the others in a file in `directory`."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._sizes: list[int] = []
        self._schema: pa.Schema | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Hold a batch; raise UnavailableError if the disk is full."""
        self._bytes += batch.nbytes
        if self._bytes <= _IN_MEMORY_BYTES:
            self._batches.append(batch)
            return
        frame = batch.serialize()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
            self._file.write(frame)
            self._file.flush()
        except OSError as error:
            raise UnavailableError(
                f"rows that wait for the end of their epoch cannot be held: {error}",
                hint="look for a full disk under local_dir",
            ) from error
        self._sizes.append(frame.size)
        self._schema = batch.schema

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches, and forget them."""
        while self._batches:
            yield self._batches.popleft()
        if self._file is not None:
            self._file.seek(0)
            for size in self._sizes:
                yield pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), self._schema)
        self.clear()

    def clear(self) -> None:
        """Forget the batches."""
        self._batches.clear()
        self._sizes.clear()
        self._bytes = 0
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None
