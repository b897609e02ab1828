"""What the last epoch gave, kept for a Spark task that comes again."""

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
