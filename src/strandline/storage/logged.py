"""An ObjectStore that reads and deletes parts of logs in Kafka by their paths, and has all other objects elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from strandline.core.errors import ConfigurationError
from strandline.storage.base import ObjectInfo, ObjectStore
from strandline.storage.kafkaparts import LogFolder, LogPart, LogTopics, folder_at, part_at, topics_at
from strandline.storage.local import downloaded

_PREFIX = "kafka."


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the storage's client, and those of Kafka's, which begin with `kafka.`, without that."""
    of_log = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    return {name: value for name, value in options.items() if not name.startswith(_PREFIX)}, of_log


class LoggedStore:
    """Keeps objects in `inner`. The path of a part has the address of its cluster, unless the options have one."""

    def __init__(self, inner: ObjectStore, options: Mapping[str, str]) -> None:
        """`options` are those of Kafka's client."""
        self._inner = inner
        self._options = dict(options)
        self._servers = self._options.pop("bootstrap.servers", "")

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, path: str, data: bytes) -> None:
        _refuse_part(path)
        self._inner.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        _refuse_part(path)
        self._inner.create(path, data)

    def put_file(self, path: str, source: Path) -> str:
        _refuse_part(path)
        return self._inner.put_file(path, source)

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        if part_at(path) or part_at(source_path):
            return False
        return self._inner.take(path, source._inner if isinstance(source, LoggedStore) else source, source_path)

    def get(self, path: str) -> bytes:
        part = part_at(path)
        return self._inner.get(path) if part is None else b"".join(self._topics(part.folder).read(part))

    def get_file(self, path: str, target: Path) -> None:
        part = part_at(path)
        if part is None:
            self._inner.get_file(path, target)
            return
        with downloaded(target) as file:
            file.writelines(self._topics(part.folder).read(part))

    def head(self, path: str) -> ObjectInfo:
        part = part_at(path)
        if part is None:
            return self._inner.head(path)
        return ObjectInfo(path, part.size_bytes, self._topics(part.folder).look(part))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List objects; parts only under their own folder, since that reads the whole topic."""
        folder = folder_at(prefix)
        if folder is None:
            yield from self._inner.list(prefix)
            return
        before = prefix.removesuffix(folder.path)
        for part, written_ms in self._topics(folder).find(folder):
            yield ObjectInfo(before + part.path, part.size_bytes, written_ms)

    def delete(self, paths: Iterable[str]) -> None:
        objects: list[str] = []
        parts: dict[str, list[LogPart]] = defaultdict(list)
        for path in paths:
            part = part_at(path)
            if part is None:
                objects.append(path)
            else:
                parts[part.folder.servers].append(part)
        self._inner.delete(objects)
        for of_cluster in parts.values():
            self._topics(of_cluster[0].folder).delete(of_cluster)

    def _topics(self, folder: LogFolder) -> LogTopics:
        return topics_at(self._servers or folder.servers, self._options)


def _refuse_part(path: str) -> None:
    if part := part_at(path):
        raise ConfigurationError(
            f"{part}: the path of a part of a log in Kafka, where only its checkpoint can write it",
            hint="copy a savepoint of the job: it has everything as files",
        )
