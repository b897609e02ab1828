"""A store that fails: before the work, after it (the answer is lost), and in the middle of it. Seeded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from strandline.core.clock import Clock
from strandline.core.errors import UnavailableError
from strandline.storage.base import ObjectInfo, ObjectStore

BEFORE, AFTER, MIDDLE = "before", "after", "middle"


class FaultyStore:
    """`rate` is the share of operations that fail; `script` fails chosen ones: (operation, part of the path, when).

    With `clock`, objects carry its time instead of the store's own.
    """

    def __init__(
        self, store: ObjectStore, *, seed: int = 0, rate: float = 0.0, clock: Clock | None = None, longest_run: int = 3
    ) -> None:
        self.inner = store
        self.rate = rate
        self.script: list[tuple[str, str, str]] = []
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda operation, path: None
        self._rng = random.Random(seed)
        self._clock = clock
        self._written_ms: dict[str, int] = {}
        self._longest_run = longest_run
        self._run = 0

    @property
    def url(self) -> str:
        return self.inner.url

    def put(self, path: str, data: bytes) -> None:
        self._do("put", path, lambda: self._write(path, lambda: self.inner.put(path, data)))

    def create(self, path: str, data: bytes) -> None:
        self._do("create", path, lambda: self._write(path, lambda: self.inner.create(path, data)))

    def put_file(self, path: str, source: Path) -> str:
        return str(self._do("put_file", path, lambda: self._write(path, lambda: self.inner.put_file(path, source))))

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        inner = source.inner if isinstance(source, FaultyStore) else source
        work = lambda: self.inner.take(path, inner, source_path)  # noqa: E731
        return bool(self._do("take", path, work))

    def get(self, path: str) -> bytes:
        return self._do("get", path, lambda: self.inner.get(path))

    def get_file(self, path: str, target: Path) -> None:
        self._do("get_file", path, lambda: self.inner.get_file(path, target))

    def head(self, path: str) -> ObjectInfo:
        return self._do("head", path, lambda: self._stamped(self.inner.head(path)))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        when = self._fault("list", prefix)
        found = [self._stamped(info) for info in self.inner.list(prefix)]
        if when == BEFORE:
            raise UnavailableError(f"list {prefix}: refused")
        yield from found[: len(found) // 2] if when else found
        if when:
            raise UnavailableError(f"list {prefix}: broke off")

    def delete(self, paths: Iterable[str]) -> None:
        wanted = list(paths)
        when = self._fault("delete", wanted[0] if wanted else "")
        if when == BEFORE:
            raise UnavailableError("delete: refused")
        self.inner.delete(wanted[: len(wanted) // 2] if when == MIDDLE else wanted)
        if when:
            raise UnavailableError("delete: no answer")

    def _do(self, operation: str, path: str, work: Callable[[], Any]) -> Any:
        when = self._fault(operation, path)
        # A write is atomic: broken off in the middle, it has done nothing.
        if when in (BEFORE, MIDDLE):
            raise UnavailableError(f"{operation} {path}: refused")
        result = work()
        if when == AFTER:
            raise UnavailableError(f"{operation} {path}: no answer")
        return result

    def _fault(self, operation: str, path: str) -> str | None:
        self.before(operation, path)
        self.calls.append((operation, path))
        for item in self.script:
            if item[0] in (operation, "*") and item[1] in path:
                self.script.remove(item)
                return item[2]
        if self._run < self._longest_run and self._rng.random() < self.rate:
            self._run += 1
            return self._rng.choice((BEFORE, AFTER, MIDDLE))
        self._run = 0
        return None

    def _write(self, path: str, work: Callable[[], Any]) -> Any:
        result = work()
        if self._clock is not None:
            self._written_ms[path] = self._clock.now_ms()
        return result

    def _stamped(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, modified_ms=self._written_ms.get(info.path, info.modified_ms))
