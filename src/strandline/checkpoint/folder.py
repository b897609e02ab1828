"""A folder of an object store. Paths are relative to it, so that it can be copied anywhere."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from strandline.core.errors import ConflictError, CorruptionError, NotFoundError, StrandlineError
from strandline.storage.base import ObjectInfo, ObjectStore
from strandline.storage.place import Place

T = TypeVar("T")


class Folder:
    """A folder, which is an ObjectStore too. All paths, also those of FileRefs, are relative to it."""

    def __init__(self, store: ObjectStore, path: str = "") -> None:
        """`path` is the folder's path in the store; it is empty for the store itself."""
        self.store = store
        self.path = path
        self._prefix = f"{path}/" if path else ""

    @property
    def url(self) -> str:
        """The folder's url, quoted and without secrets; it opens the folder."""
        if not self.path:
            return self.store.url
        # The url of the root ends with a slash.
        return f"{self.store.url}{'' if self.store.url.endswith(':///') else '/'}{quote(self.path)}"

    def place(self, options: Mapping[str, str], *, fsync: bool = True) -> Place:
        """Return the folder's place for another process, with the options of its storage."""
        return Place(url=self.store.url, path=self.path, options=dict(options), fsync=fsync)

    def put(self, path: str, data: bytes) -> None:
        self.store.put(self._prefix + path, data)

    def create(self, path: str, data: bytes) -> None:
        self.store.create(self._prefix + path, data)

    def create_own(self, path: str, data: bytes) -> None:
        """Create an object with unique bytes; an existing object with these bytes is ours, and its answer was lost."""
        try:
            self.create(path, data)
        except ConflictError:
            pass
        try:
            is_own = self.get(path) == data
        except NotFoundError:
            is_own = False  # Its writer has deleted it since.
        if not is_own:
            raise ConflictError(f"{self.url}/{path}: another writer's object is there")

    def put_file(self, path: str, source: Path) -> str:
        return self.store.put_file(self._prefix + path, source)

    def put_known(self, path: str, source: Path, sha256: str) -> None:
        """Upload a local file with this sha256. Raises CorruptionError, after a deletion, if other bytes were sent."""
        if self.put_file(path, source) != sha256:
            delete_quietly(self, [path])
            raise CorruptionError(
                f"{source} on {socket.gethostname()}: read with other bytes than expected, for {self.url}/{path}",
                hint="check the memory of this machine, and the disk of its temporary files",
            )

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        to = self._prefix + path
        if isinstance(source, Folder):
            return self.store.take(to, source.store, source._prefix + source_path)
        return self.store.take(to, source, source_path)

    def get(self, path: str) -> bytes:
        return self.store.get(self._prefix + path)

    def read(self, path: str, decode: Callable[[bytes, str], T]) -> T:
        """Get an object and decode it; once more if it is damaged, since the transfer may have damaged it.

        Callers skip an object that stays damaged, and then the job processes rows again.
        """
        where = f"{self.url}/{path}"
        try:
            return decode(self.get(path), where)
        except CorruptionError:
            return decode(self.get(path), where)

    def get_file(self, path: str, target: Path) -> None:
        self.store.get_file(self._prefix + path, target)

    def head(self, path: str) -> ObjectInfo:
        return self._relative(self.store.head(self._prefix + path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return map(self._relative, self.store.list((self._prefix + prefix).rstrip("/")))

    def delete(self, paths: Iterable[str]) -> None:
        self.store.delete([self._prefix + path for path in paths])

    def _relative(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, path=info.path[len(self._prefix) :])


def folder_at(place: Place) -> Folder:
    """Open a folder at another process's place."""
    return Folder(place.store(), place.path)


def delete_quietly(folder: Folder, paths: Iterable[str]) -> None:
    """Delete objects that are not needed; ignore failures, as the garbage collector deletes the rest."""
    try:
        folder.delete(paths)
    except StrandlineError:
        pass
