"""The layout of a job's directory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from strandline.checkpoint.folder import Folder
from strandline.core.errors import ConfigurationError
from strandline.core.ids import CheckpointId, Generation, unique_name
from strandline.storage.base import ObjectStore
from strandline.storage.kafkaparts import part_at

T = TypeVar("T")

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

GENERATIONS = "generations"
START_PATH = f"{GENERATIONS}/start"
"""The record of the start positions of the job's sources, before its first checkpoint."""
SINKS = "sinks"
"""The folder of staged rows that wait for their sinks' targets."""
PINS = "pins"
"""The folder of the pins of readers."""
_RESERVED = re.compile(rf"chk-\d+|shared|{GENERATIONS}|{SINKS}|{PINS}")
_SHARED = re.compile(r"shared/[^/]+/[^/]+")
_PROBE = f"{GENERATIONS}/probe-"


def manifest_path(checkpoint: CheckpointId) -> str:
    """Return the path of a checkpoint's manifest; its existence makes the checkpoint complete."""
    return f"chk-{checkpoint}/_metadata"


def exclusive_path(checkpoint: CheckpointId) -> str:
    """Return a new path for a file that one checkpoint owns."""
    return f"chk-{checkpoint}/{unique_name()}"


def shared_path() -> str:
    """Return a new path for a file that checkpoints share, spread by a random prefix."""
    name = unique_name()
    return f"shared/{name[:2]}/{name}"


def generation_path(generation: Generation) -> str:
    """Return the path of a driver's claim."""
    return f"{GENERATIONS}/{generation}"


def base_path(generation: Generation) -> str:
    """Return the path of a generation's base record."""
    return f"{GENERATIONS}/{generation}.base"


def turned_path(generation: Generation) -> str:
    """Return the path of the copy of a base record, by a generation that went back or restored a snapshot."""
    return f"{GENERATIONS}/{generation}.turned"


def published_path(generation: Generation) -> str:
    """Return the path of the record of the first checkpoint, by a generation that began empty."""
    return f"{GENERATIONS}/{generation}.published"


def failed_path(generation: Generation) -> str:
    """Return the path of the record of a generation that failed."""
    return f"{GENERATIONS}/{generation}.failed"


def probe_path() -> str:
    """Return a new path for an object that tests conditional creates."""
    return f"{_PROBE}{unique_name()}"


def is_probe(path: str) -> bool:
    """Whether an object tests conditional creates. After the test, it is not needed."""
    return path.startswith(_PROBE)


def _number_in(shape: str, kind: Callable[[int], T]) -> Callable[[str], T | None]:
    """Return the function that parses the number `#` in paths of a shape, and returns None for other paths."""
    # Only canonical numbers: a user's copy chk-07 is not checkpoint 7.
    pattern = re.compile(shape.replace("#", "(0|[1-9][0-9]*)"))

    def number(path: str) -> T | None:
        match = pattern.fullmatch(path)
        return kind(int(match[1])) if match else None

    return number


manifest_id = _number_in("chk-#/_metadata", CheckpointId)
"""Return the checkpoint whose manifest a path is."""
checkpoint_id = _number_in("chk-#/[^/]+", CheckpointId)
"""Return the checkpoint in whose folder a path is."""
claimed_generation = _number_in("generations/#", Generation)
"""Return the generation whose claim a path is."""
based_generation = _number_in(r"generations/#\.base", Generation)
"""Return the generation whose base record a path is."""
turned_generation = _number_in(r"generations/#\.turned", Generation)
"""Return the generation whose copy of a base record a path is."""
failed_generation = _number_in(r"generations/#\.failed", Generation)
"""Return the generation whose record of a failure a path is."""
published_generation = _number_in(r"generations/#\.published", Generation)
"""Return the generation whose record of its first checkpoint a path is."""


def is_reserved(name: str) -> bool:
    """Whether a folder name in a job's directory is reserved for the job's own files."""
    return _RESERVED.fullmatch(name) is not None


def is_checkpoints(path: str) -> bool:
    """Whether an object of this path belongs to checkpoints, and may be garbage."""
    return checkpoint_id(path) is not None or _SHARED.fullmatch(path) is not None or part_at(path) is not None


def check_job_name(job: Any) -> None:
    """Refuse an invalid job name."""
    if not isinstance(job, str) or not _JOB_NAME.fullmatch(job):
        raise ConfigurationError(
            f"job name {job!r}: expected letters, digits, '.', '_' and '-', up to 100, a letter or digit first",
            hint="the name is a folder in the checkpoint storage: keep it short and plain",
        )
    if is_reserved(job):
        raise ConfigurationError(
            f"job name '{job}': folders of this name are in a job's directory, for its own files",
            hint="choose another name for the job",
        )


class JobDirectory(Folder):
    """A job's directory, whose name is the job's."""

    def __init__(self, store: ObjectStore, job: str, folder: str | None = None) -> None:
        """`folder` is the directory's path in the store, if it was moved or is the store itself."""
        check_job_name(job)
        super().__init__(store, job if folder is None else folder)
        self.job = job
