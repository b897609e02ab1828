"""What makes files of this machine outlast a power failure."""

from __future__ import annotations

import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Return once the file's content is on the disk."""
    _sync(path)


def sync_directory(path: Path) -> None:
    """Return once the names in the directory are on the disk: files made, renamed or deleted there."""
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
