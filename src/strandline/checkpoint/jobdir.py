"""The layout of a job's directory, in one place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from strandline.core.errors import ConfigurationError, CorruptionError, StrandlineError
from strandline.core.ids import CheckpointId, Generation, unique_name
from strandline.storage.base import ObjectInfo, ObjectStore

T = TypeVar("T")

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

GENERATIONS = "generations"
START_PATH = f"{GENERATIONS}/start"
"""Where the job's sources began, before its first checkpoint."""
_PROBE = f"{GENERATIONS}/probe-"


def manifest_path(checkpoint: CheckpointId) -> str:
    """Return where a checkpoint's manifest is; its existence is what makes the checkpoint complete."""
    return f"chk-{checkpoint}/_metadata"


def exclusive_path(checkpoint: CheckpointId) -> str:
    """Return a new name for a file that one checkpoint owns."""
    return f"chk-{checkpoint}/{unique_name()}"


def shared_path() -> str:
    """Return a new name for a file that checkpoints share, spread by a random prefix."""
    name = unique_name()
    return f"shared/{name[:2]}/{name}"


def generation_path(generation: Generation) -> str:
    """Return where a driver's claim is."""
    return f"{GENERATIONS}/{generation}"


def base_path(generation: Generation) -> str:
    """Return where a generation says which checkpoint it goes on from."""
    return f"{GENERATIONS}/{generation}.base"


def published_path(generation: Generation) -> str:
    """Return where a generation that began empty says that it has published a checkpoint."""
    return f"{GENERATIONS}/{generation}.published"


def probe_path() -> str:
    """Return a new name for an object by which conditional creates are tried."""
    return f"{_PROBE}{unique_name()}"


def is_probe(path: str) -> bool:
    """Whether this is such an object: nobody needs it once it was tried."""
    return path.startswith(_PROBE)


def _number_in(shape: str, kind: Callable[[int], T]) -> Callable[[str], T | None]:
    """Return what gives the number `#` in paths of this shape, and None for any other path."""
    # Only numbers as we write them: the copy chk-07 that somebody made is not checkpoint 7.
    pattern = re.compile(shape.replace("#", "(0|[1-9][0-9]*)"))

    def number(path: str) -> T | None:
        match = pattern.fullmatch(path)
        return kind(int(match[1])) if match else None

    return number


manifest_id = _number_in("chk-#/_metadata", CheckpointId)
"""Return the checkpoint whose manifest a path is."""
checkpoint_id = _number_in("chk-#/.+", CheckpointId)
"""Return the checkpoint in whose folder a path is."""
claimed_generation = _number_in("generations/#", Generation)
"""Return the generation whose claim a path is."""
based_generation = _number_in(r"generations/#\.base", Generation)
"""Return the generation whose base record a path is."""
published_generation = _number_in(r"generations/#\.published", Generation)
"""Return the generation whose record of its first checkpoint a path is."""


class JobDirectory:
    """A job's directory, itself an ObjectStore: every path, as every FileRef's, is relative to the job."""

    def __init__(self, store: ObjectStore, job: str) -> None:
        if not _JOB_NAME.fullmatch(job):
            raise ConfigurationError(
                f"job name {job!r}: expected letters, digits, '.', '_' and '-', up to 100, a letter or digit first",
                hint="the name is a folder in the checkpoint storage: keep it short and plain",
            )
        self.store = store
        self.job = job

    @property
    def url(self) -> str:
        return f"{self.store.url}/{self.job}"

    def put(self, path: str, data: bytes) -> None:
        self.store.put(f"{self.job}/{path}", data)

    def create(self, path: str, data: bytes) -> None:
        self.store.create(f"{self.job}/{path}", data)

    def put_file(self, path: str, source: Path) -> None:
        self.store.put_file(f"{self.job}/{path}", source)

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        to = f"{self.job}/{path}"
        if isinstance(source, JobDirectory):
            return self.store.take(to, source.store, f"{source.job}/{source_path}")
        return self.store.take(to, source, source_path)

    def get(self, path: str) -> bytes:
        return self.store.get(f"{self.job}/{path}")

    def read(self, path: str, decode: Callable[[bytes, str], T]) -> T:
        """Get an object and decode it, given where it is; once more if it is damaged: it may have been so on the way.

        What is damaged for good is passed over, and what came later with it: rows of files already taken come again.
        """
        where = f"{self.url}/{path}"
        try:
            return decode(self.get(path), where)
        except CorruptionError:
            return decode(self.get(path), where)

    def get_file(self, path: str, target: Path) -> None:
        self.store.get_file(f"{self.job}/{path}", target)

    def head(self, path: str) -> ObjectInfo:
        return self._relative(self.store.head(f"{self.job}/{path}"))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return map(self._relative, self.store.list(f"{self.job}/{prefix}".rstrip("/")))

    def delete(self, paths: Iterable[str]) -> None:
        self.store.delete([f"{self.job}/{path}" for path in paths])

    def _relative(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, path=info.path[len(self.job) + 1 :])


def delete_quietly(jobdir: JobDirectory, paths: Iterable[str]) -> None:
    """Delete what nobody needs; what cannot be deleted is the garbage collector's."""
    try:
        jobdir.delete(paths)
    except StrandlineError:
        pass
