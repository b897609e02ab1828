"""The one small interface behind which every durable storage stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object: its path below the store's root, its size and when it was last written."""

    path: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """A flat store of immutable objects under '/'-separated relative paths.

    Every write is atomic: a reader sees the whole object or none. Errors are UnavailableError (trying again may
    help), NotFoundError, ConflictError (only `create`) and ConfigurationError (no such bucket;
    AccessError where credentials or rights are refused).
    """

    @property
    def url(self) -> str:
        """Where the store's root is, without secrets."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing one that is there."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write an object if none is there, else raise ConflictError.

        A conflict may be this writer's own earlier try whose answer was lost: callers compare the content.
        """
        ...

    def put_file(self, path: str, source: Path) -> None:
        """Upload a local file, streaming."""
        ...

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        """Have an object of another store put here without its bytes passing through this process.

        False, and nothing has happened, where storage cannot do that for these two, or finds no such object.
        """
        ...

    def get(self, path: str) -> bytes:
        """Read a whole object."""
        ...

    def get_file(self, path: str, target: Path) -> None:
        """Download an object into a local file, streaming; the target is complete or absent."""
        ...

    def head(self, path: str) -> ObjectInfo:
        """Look at an object without reading it."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List every object whose path begins with the folder `prefix`, in any order."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; one that is not there is no error."""
        ...
