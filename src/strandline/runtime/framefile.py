"""Frames of one epoch that may need more memory than there is: large ones are in an unnamed file."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from strandline.core.errors import UnavailableError, local_files_hint


class FrameFile:
    """Frames, in order. Until they have more than `in_memory_bytes`, no file is made."""

    def __init__(self, directory: Path | None, what: str, in_memory_bytes: int = 1) -> None:
        """`directory` is a local one, for the file; `what` are the frames, in the error for a full disk."""
        self._what, place = what, None if directory is None else str(directory)
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(in_memory_bytes, dir=place)  # noqa: SIM115
        self._sizes: list[int] = []

    def add(self, frame: pa.Buffer) -> None:
        """Add one frame; raise UnavailableError if the disk is full."""
        try:
            self._file.write(frame)
            self._file.flush()
        except OSError as error:
            raise UnavailableError(f"{self._what}: {error}", hint=local_files_hint(error)) from error
        self._sizes.append(frame.size)

    def frames(self) -> Iterator[bytes]:
        """Yield the frames."""
        self._file.seek(0)
        for size in self._sizes:
            yield self._file.read(size)

    def close(self) -> None:
        """Drop the frames. Ignores a full disk, since nothing needs them any more."""
        with contextlib.suppress(OSError):
            self._file.close()
