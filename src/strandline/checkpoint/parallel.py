"""Work done by a few threads at once: hashing and moving files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 4


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Apply `work` to every item; results in order. The first error ends it, after the running ones have ended."""
    todo = list(items)
    if len(todo) < 2 or _THREADS == 1:
        return [work(item) for item in todo]
    with ThreadPoolExecutor(min(_THREADS, len(todo)), thread_name_prefix="transfer") as pool:
        return list(pool.map(work, todo))


def sha256_of(path: Path) -> str:
    """Return a file's sha256 in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
