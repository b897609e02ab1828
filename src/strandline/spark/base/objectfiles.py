"""Files of object storage, as a sink's directory: renamed by a copy within the storage, and then deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strandline.core.errors import ConflictError, NotFoundError, UnavailableError
from strandline.core.ids import unique_name
from strandline.storage.place import Place

SCHEMES = ("s3", "gs", "az")
"""Of these Strandline has a client of its own; of all others, Hadoop, if Spark has been given one."""


class ObjectFiles:
    """Objects below a url. Each appears whole, or is replaced, in one step; there is no step for several.

    A copy and the deletion behind it are two: whoever takes a copy away in between may find another one.
    """

    def __init__(self, root: str, options: Mapping[str, str]) -> None:
        self._place = Place(url=root, options=dict(options))
        self._store = self._place.store()

    def place(self) -> Place:
        """Return where they are, for tasks."""
        return self._place

    def check_writable(self) -> None:
        """Raise ConfigurationError if objects cannot be written and deleted there; leave nothing."""
        name = f"_strandline-try-{unique_name()[:8]}"
        self._store.put(name, b"")
        self._store.delete([name])

    def list(self, path: str) -> list[tuple[str, int]]:
        """Return names and sizes of what is directly in a folder."""
        return [(name, size) for name, size in self._below(path) if "/" not in name]

    def rename(self, source: str, target: str) -> bool:
        """Move an object; return False if the source is not there. The target may be there: from a try before."""
        try:
            size = self._store.head(source).size_bytes
        except NotFoundError:
            return False
        if self._size(target) != size and not self._store.take(target, self._store, source):
            # This storage does not copy while one waits for it, or not so much at once.
            try:
                self._store.put(target, self._store.get(source))
            except NotFoundError:
                return False
        if self._size(target) != size:
            raise UnavailableError(f"{self._store.url}/{source} was copied to {target}, and is not there in full")
        self._store.delete([source])
        return True

    def read(self, path: str) -> bytes | None:
        """Return an object's content, None if it is not there."""
        try:
            return self._store.get(path)
        except NotFoundError:
            return None

    def create(self, path: str, data: bytes) -> bool:
        """Write an object; return False if there is another one of that name."""
        try:
            self._store.create(path, data)
        except ConflictError:
            # Its own, if the answer was lost: the client has tried again then.
            return self.read(path) == data
        return True

    def sync(self, path: str, files: Sequence[str] = ()) -> None:
        """Nothing to be done: what was written is durable."""

    def exists(self, path: str) -> bool:
        """Return whether there is an object of that name, or one in a folder of that name."""
        return self._size(path) is not None or next(iter(self._below(path)), None) is not None

    def delete(self, path: str) -> None:
        """Delete an object or all in a folder."""
        self._store.delete([path, *(f"{path}/{name}" for name, _ in self._below(path))])

    def mkdirs(self, path: str) -> None:
        """Nothing to be done: a folder is there while something is in it."""

    def local(self, path: str) -> None:
        """Nothing of it is on this machine."""
        return

    def directories(self, path: str) -> Sequence[str]:
        """Return the names of the folders in a folder."""
        return sorted({name.partition("/")[0] for name, _ in self._below(path) if "/" in name})

    def for_spark(self, path: str) -> str:
        """Return the url; Spark itself does not write there."""
        return f"{self._place.url}/{path}"

    def _below(self, path: str) -> Sequence[tuple[str, int]]:
        prefix = f"{path}/" if path else ""
        return [(info.path.removeprefix(prefix), info.size_bytes) for info in self._store.list(path)]

    def _size(self, path: str) -> int | None:
        try:
            return self._store.head(path).size_bytes
        except NotFoundError:
            return None
