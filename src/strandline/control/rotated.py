"""A bounded file of lines, private to this user: at its limit, it is renamed, and a new one is begun."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

MAX_BYTES = 8 << 20
"""The size at which a file is rotated; one older file is kept."""


@dataclass
class RotatedFile:
    """Several drivers may write one. Thread-safe."""

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def append(self, data: bytes) -> None:
        """Write whole lines. A full disk or a deleted directory concerns no job: errors are ignored."""
        with self._lock, contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                if self.path.stat().st_size + len(data) > MAX_BYTES:
                    self.path.replace(older_file(self.path))
            with open(self.path, "a+b", opener=_open_private) as file:
                if file.tell():
                    # A full disk may have left a part of a line.
                    file.seek(-1, os.SEEK_END)
                    data = data if file.read(1) == b"\n" else b"\n" + data
                file.write(data)


def older_file(path: Path) -> Path:
    """Return the file that a file of lines is renamed to at its limit."""
    return path.with_name(path.name + ".1")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
