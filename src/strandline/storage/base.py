"""The interface of every durable storage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object: its path below the store's root, its size and the time of its last write."""

    path: str
    size_bytes: int
    modified_ms: int


class ObjectStore(Protocol):
    """A flat store of immutable objects under '/'-separated relative paths.

    Every write is atomic: a reader sees the whole object or none. Errors are UnavailableError (a retry may help),
    NotFoundError, ConflictError (only `create`) and ConfigurationError (no such bucket; AccessError if credentials or
    rights are refused).
    """

    @property
    def url(self) -> str:
        """The url of the store's root, without secrets."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing an existing one."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write an object if none exists, else raise ConflictError.

        The existing object may be from an earlier attempt of this writer whose answer was lost: callers compare the
        content.
        """
        ...

    def put_file(self, path: str, source: Path) -> str:
        """Upload a local file as a stream; return the sha256 of the bytes that were sent, in hex.

        A second read of the file may give other bytes: a disk or the memory may fail.
        """
        ...

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        """Copy an object of another store into this one within the storage, without reading it here.

        Return False, without effect, if the storage cannot do that for these two stores, or has no such object.
        """
        ...

    def get(self, path: str) -> bytes:
        """Read a whole object."""
        ...

    def get_file(self, path: str, target: Path) -> None:
        """Download an object into a local file as a stream; the target is complete or absent."""
        ...

    def head(self, path: str) -> ObjectInfo:
        """Return an object's size and time of writing without reading it."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List every object whose path begins with the folder `prefix`, in any order."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects; an absent object is not an error."""
        ...
