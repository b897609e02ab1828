"""Reads staged rows into memory while the checkpoint that will list them is in progress."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa

from strandline.checkpoint.folder import Folder
from strandline.ends.staged import StagedFile

_THREADS = 2


class ReadAhead:
    """The rows of files that were staged last, up to a number of bytes; they are verified as by any other read.

    It only saves time: what is not here, or could not be read, is read from storage.
    """

    def __init__(self, folder: Folder, sink: str, most_bytes: int) -> None:
        self._folder, self._sink, self._most_bytes = folder, sink, most_bytes
        self._files: dict[str, tuple[int, Future[list[pa.RecordBatch]]]] = {}
        """By path: the size, and the rows."""
        self._bytes = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, "strandline-read-ahead")

    def add(self, files: Iterable[StagedFile]) -> None:
        """Begin to read files; forget the oldest ones if there are too many."""
        for file in files:
            size = file.piece.bytes
            with self._lock:
                if size > self._most_bytes:
                    continue
                # While the process exits, no thread can be started.
                with suppress(RuntimeError):
                    self._files[file.path] = size, self._pool.submit(file.read, self._folder, self._sink)
                    self._bytes += size
                while self._bytes > self._most_bytes:
                    self._remove(next(iter(self._files)))

    def take(self, file: StagedFile) -> list[pa.RecordBatch] | None:
        """Return and forget the rows of a file; None if they are not here."""
        with self._lock:
            rows = self._remove(file.path) if file.path in self._files else None
        return None if rows is None or rows.cancelled() or rows.exception() is not None else rows.result()

    def _remove(self, path: str) -> Future[list[pa.RecordBatch]]:
        size, rows = self._files.pop(path)
        self._bytes -= size
        rows.cancel()
        return rows

    def clear(self) -> None:
        """Forget all rows."""
        with self._lock:
            for path in list(self._files):
                self._remove(path)

    def close(self) -> None:
        """Forget all rows, and end the threads when they have read their files."""
        with self._lock:
            self._most_bytes = -1
        self.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
