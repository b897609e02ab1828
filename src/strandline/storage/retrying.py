"""An ObjectStore that retries when the store below is unavailable."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TypeVar

from strandline.core.errors import ConflictError, NotFoundError, UnavailableError
from strandline.storage.base import ObjectInfo, ObjectStore

T = TypeVar("T")

_LONGEST_DELAY_S = 5.0
_DELETION_S = 5.0
"""A deletion that takes longer is not tried again: a checkpoint waits, and the next one deletes what is left."""


@dataclass
class RetryingStore:
    """Retries every operation that raises UnavailableError, with growing, jittered delays, a bounded number of times.

    `create` is not idempotent: an attempt whose answer was lost may have succeeded, so that the next one conflicts with
    it. After a lost answer, a conflict with the same bytes is therefore a success.
    """

    _store: ObjectStore
    _: KW_ONLY
    attempts: int = 5
    first_delay_s: float = 0.1
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)

    @property
    def url(self) -> str:
        return self._store.url

    def put(self, path: str, data: bytes) -> None:
        self._retry(lambda: self._store.put(path, data))

    def create(self, path: str, data: bytes) -> None:
        lost_answer = False

        def attempt() -> None:
            nonlocal lost_answer
            try:
                self._store.create(path, data)
            except UnavailableError:
                lost_answer = True
                raise
            except ConflictError:
                if not lost_answer or not self._holds(path, data):
                    raise

        self._retry(attempt)

    def put_file(self, path: str, source: Path) -> str:
        return self._retry(lambda: self._store.put_file(path, source))

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        inner = source._store if isinstance(source, RetryingStore) else source
        return self._retry(lambda: self._store.take(path, inner, source_path))

    def get(self, path: str) -> bytes:
        return self._retry(lambda: self._store.get(path))

    def get_file(self, path: str, target: Path) -> None:
        self._retry(lambda: self._store.get_file(path, target))

    def head(self, path: str) -> ObjectInfo:
        return self._retry(lambda: self._store.head(path))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._retry(lambda: list(self._store.list(prefix))))

    def delete(self, paths: Iterable[str]) -> None:
        wanted = [*paths]
        self._retry(lambda: self._store.delete(wanted), within_s=_DELETION_S)

    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return self._store.get(path) == data
        except NotFoundError:
            return False

    def _retry(self, operation: Callable[[], T], within_s: float = math.inf) -> T:
        delay_s, until = self.first_delay_s, time.monotonic() + within_s
        for _ in range(self.attempts - 1):
            try:
                return operation()
            except UnavailableError:
                if time.monotonic() > until:
                    raise
                self.sleep(delay_s * self.rng.uniform(0.5, 1.0))
                delay_s = min(delay_s * 2, _LONGEST_DELAY_S)
        return operation()
