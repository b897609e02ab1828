"""A storage in memory that takes time, refuses, loses answers, and does what was asked for long after it said no."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from strandline.core.errors import ConflictError, NotFoundError, UnavailableError
from strandline.storage.base import ObjectInfo, ObjectStore
from tests.simulation.world import World

LATE_MS = 540_000
"""How long after its refusal a request may still be executed; the product counts with ten minutes."""


class SimulatedStore:
    """`rate` is the share of requests that fail; `slow` that of those that take up to a minute."""

    url = "simulated://"

    def __init__(self, world: World, rate: float, slow: float) -> None:
        self.world, self.rate, self.slow = world, rate, slow
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.requests = 0
        self.deleted: set[str] = set()
        """Every path of which a deletion was asked for."""
        self.on_delete: Callable[[str], None] = lambda path: None

    def put(self, path: str, data: bytes) -> None:
        self._do("put", path, lambda: self._write(path, data))

    def create(self, path: str, data: bytes) -> None:
        def write() -> None:
            if path in self.objects:
                raise ConflictError(f"{path}: exists")
            self._write(path, data)

        self._do("create", path, write)

    def put_file(self, path: str, source: Path) -> str:
        raise NotImplementedError("keepers of a simulation have no files")

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        return False

    def get(self, path: str) -> bytes:
        return bytes(self._do("get", path, lambda: self._of(path)[0]))

    def get_file(self, path: str, target: Path) -> None:
        target.write_bytes(self.get(path))

    def head(self, path: str) -> ObjectInfo:
        def look() -> ObjectInfo:
            data, modified_ms = self._of(path)
            return ObjectInfo(path, len(data), modified_ms)

        info: ObjectInfo = self._do("head", path, look)
        return info

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        def look() -> list[ObjectInfo]:
            start = f"{prefix}/" if prefix else ""
            return [
                ObjectInfo(path, len(data), modified_ms)
                for path, (data, modified_ms) in self.objects.items() if path.startswith(start)
            ]  # fmt: skip

        yield from self._do("list", prefix, look)

    def delete(self, paths: Iterable[str]) -> None:
        wanted = list(paths)
        if not wanted:
            return

        def remove() -> None:
            self.deleted.update(wanted)
            for path in wanted:
                if path in self.objects:
                    self.on_delete(path)
                    del self.objects[path]

        self._do("delete", f"{wanted[0]} and {len(wanted) - 1} more" if wanted[1:] else wanted[0], remove)

    def _of(self, path: str) -> tuple[bytes, int]:
        try:
            return self.objects[path]
        except KeyError:
            raise NotFoundError(f"{path}: not found") from None

    def _write(self, path: str, data: bytes) -> None:
        self.objects[path] = data, self.world.now_ms()

    def _do(self, operation: str, path: str, work: Callable[[], Any]) -> Any:
        world, self.requests = self.world, self.requests + 1
        rng = world.rng
        world.sleep(self._delay_ms())
        if rng.random() >= self.rate:
            result = work()
            world.sleep(self._delay_ms())
            if operation not in ("get", "head"):
                world.note(f"{operation} {path}")
            return result
        fate = rng.choice(("refused", "no answer", "later"))
        if fate == "no answer":
            work()
        elif fate == "later" and operation in ("put", "create", "delete"):
            world.at(rng.uniform(0, LATE_MS), lambda: self._late(operation, path, work))
        world.note(f"{operation} {path}: {fate}")
        raise UnavailableError(f"{operation} {path}: {fate}")

    def _delay_ms(self) -> float:
        rng = self.world.rng
        return rng.uniform(0, 60_000) if rng.random() < self.slow else rng.uniform(1, 30)

    def _late(self, operation: str, path: str, work: Callable[[], Any]) -> None:
        self.world.note(f"{operation} {path}: done late")
        try:
            work()
        except ConflictError:
            pass


class SimulatedTruth(SimulatedStore):
    """The same objects, without time and faults."""

    def __init__(self, store: SimulatedStore) -> None:
        super().__init__(store.world, 0, 0)
        self.objects = store.objects

    def _do(self, operation: str, path: str, work: Callable[[], Any]) -> Any:
        return work()
