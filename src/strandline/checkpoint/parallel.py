"""Parallel work in a few threads, for hashing and transfers of files."""

from __future__ import annotations

import _thread
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 4
_WAITING = 2 * _THREADS


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Apply `work` to every item; return the results in order. The first error ends it, after running items end.

    The calling thread works, too, and waits only for items that have begun: a helper may lack the memory to begin, and
    Thread.start() would wait for it for ever (gh-140746 of CPython).
    """
    waiting, begun, lock = deque(items), list[Future[R]](), threading.Lock()

    def run() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                begun.append(Future())
                item, result = waiting.popleft(), begun[-1]
            try:
                result.set_result(work(item))
            except BaseException as error:
                with lock:
                    waiting.clear()
                result.set_exception(error)

    for _ in range(min(_THREADS, len(waiting)) - 1):
        with suppress(RuntimeError, MemoryError):
            _thread.start_new_thread(run, ())
    run()
    wait(begun)
    return [result.result() for result in begun]


class BackgroundWork(Generic[T]):
    """A context that applies `work` to items in threads while its caller creates more; `put` blocks if too many wait.

    On exit without an error, all items are done; with one, running items have ended, and the rest do not start.
    """

    def __init__(self, work: Callable[[T], object]) -> None:
        self._work = work
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="transfer") if _THREADS > 1 else None
        self._futures: deque[Future[object]] = deque()

    def put(self, item: T) -> None:
        """Add an item. Raises the error of an earlier item."""
        if self._pool is None:
            self._work(item)
            return
        if len(self._futures) == _WAITING:
            self._futures.popleft().result()
        self._futures.append(self._pool.submit(self._work, item))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        try:
            while self._futures and error is None:
                self._futures.popleft().result()
        finally:
            self._pool.shutdown(cancel_futures=True)


def sha256_of(path: Path) -> str:
    """Return a file's sha256 in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
