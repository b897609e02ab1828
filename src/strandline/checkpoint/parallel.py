"""Work done by a few threads at once: hashing and moving files."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 4
_WAITING = 2 * _THREADS


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Apply `work` to every item; results in order. The first error ends it, after the running ones have ended."""
    todo = list(items)
    if len(todo) < 2 or _THREADS == 1:
        return [work(item) for item in todo]
    with ThreadPoolExecutor(min(_THREADS, len(todo)), thread_name_prefix="transfer") as pool:
        return list(pool.map(work, todo))


class InBackground(Generic[T]):
    """Applies `work` to items while its user makes more of them; a few wait at most, so that not all are there at once.

    Left without an error, all is done; left with one, what is running has ended, and the rest is not begun.
    """

    def __init__(self, work: Callable[[T], object]) -> None:
        self._work = work
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="transfer") if _THREADS > 1 else None
        self._asked: deque[Future[object]] = deque()

    def put(self, item: T) -> None:
        """Have an item worked on. Raises what went wrong with one before it."""
        if self._pool is None:
            self._work(item)
            return
        if len(self._asked) == _WAITING:
            self._asked.popleft().result()
        self._asked.append(self._pool.submit(self._work, item))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        try:
            while self._asked and error is None:
                self._asked.popleft().result()
        finally:
            self._pool.shutdown(cancel_futures=True)


def sha256_of(path: Path) -> str:
    """Return a file's sha256 in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
