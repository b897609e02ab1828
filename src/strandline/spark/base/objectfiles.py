"""A sink's directory in object storage. To rename a file is to copy it within the storage and to delete the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.core.errors import ConflictError, NotFoundError, UnavailableError
from strandline.core.ids import unique_name
from strandline.storage.place import Place

SCHEMES = ("s3", "gs", "az")
"""Schemes for which Strandline has a client. For all others, Hadoop needs one."""


class ObjectFiles:
    """Objects below a url. One object is created or replaced in one step; several are not.

    Copy and deletion are two steps: a consumer that removes the copy in between may see it again after a retry.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self._place = Place(url=root, options=dict(options))
        self._store = self._place.store()

    def place(self) -> Place:
        """Return the place of the objects, for tasks."""
        return self._place

    def check_writable(self) -> None:
        """Raise ConfigurationError if objects cannot be written and deleted; leave nothing there."""
        name = f"_strandline-try-{unique_name()[:8]}"
        self._store.put(name, b"")
        self._store.delete([name])

    def list(self, path: str) -> list[tuple[str, int]]:
        """Return names and sizes of the objects directly in a folder."""
        return [(name, size) for name, size in self._below(path) if "/" not in name]

    def rename(self, source: str, target: str) -> bool:
        """Move an object; return False if the source does not exist. An earlier attempt may have copied the target."""
        try:
            size = self._store.head(source).size_bytes
        except NotFoundError:
            return False
        if self._size(target) != size and not self._store.take(target, self._store, source):
            # This storage cannot copy synchronously, or not an object of this size.
            try:
                self._store.put(target, self._store.get(source))
            except NotFoundError:
                return False
        if self._size(target) != size:
            raise UnavailableError(f"{self._store.url}/{source} was copied to {target}, but the copy has another size")
        self._store.delete([source])
        return True

    def read(self, path: str) -> bytes | None:
        """Return an object's content, None if it does not exist."""
        try:
            return self._store.get(path)
        except NotFoundError:
            return None

    def create(self, path: str, data: bytes) -> bool:
        """Write an object; return False if another object has that name."""
        try:
            self._store.create(path, data)
        except ConflictError:
            # If the answer was lost, the client has retried, and this is the object of its first attempt.
            return self.read(path) == data
        return True

    def sync(self, path: str, files: Sequence[str] = ()) -> None:
        """Do nothing: written objects are durable."""

    def exists(self, path: str) -> bool:
        """Whether there is an object of that name, or one in a folder of that name."""
        return self._size(path) is not None or next(iter(self._below(path)), None) is not None

    def delete(self, path: str) -> None:
        """Delete an object, or all objects in a folder."""
        self._store.delete([path, *(f"{path}/{name}" for name, _ in self._below(path))])

    def mkdirs(self, path: str) -> None:
        """Do nothing: a folder exists while an object is in it."""

    def local(self, path: str) -> None:
        """Return None: no object is on this machine."""
        return

    def directories(self, path: str) -> Sequence[str]:
        """Return the names of the folders in a folder."""
        return sorted({name.partition("/")[0] for name, _ in self._below(path) if "/" in name})

    def for_spark(self, path: str) -> str:
        """Return the url; Spark does not write there."""
        return f"{self._place.url}/{path}"

    def _below(self, path: str) -> Sequence[tuple[str, int]]:
        prefix = f"{path}/" if path else ""
        return [(info.path.removeprefix(prefix), info.size_bytes) for info in self._store.list(path)]

    def _size(self, path: str) -> int | None:
        try:
            return self._store.head(path).size_bytes
        except NotFoundError:
            return None
