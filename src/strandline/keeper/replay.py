"""Output of the last epoch, kept for a Spark task that runs again."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa

from strandline.core.errors import UnavailableError
from strandline.keeper.rowproof import RowProof

_IN_MEMORY_BYTES = 64 << 20


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
