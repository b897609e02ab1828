"""The record of the start positions of a job's sources, for a restart before the first checkpoint.

A source that starts at "now" decides once, when its first query starts. Spark keeps the position in the query's
directory, which is deleted with the attempt. Without this record, a restart would begin at a later "now" and lose rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from strandline.checkpoint.chain import Restored
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import START_PATH, JobDirectory
from strandline.checkpoint.source_log import pack, unpack
from strandline.core.clock import Clock
from strandline.core.errors import ConflictError, CorruptionError, NotFoundError
from strandline.core.failpoints import hit
from strandline.core.ids import Generation
from strandline.format.frame import RecordFormat


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The record, written once in a job's life, by one conditional create."""

    generation: Generation
    created_ms: int
    names: list[str]
    """The sources' names, in the order of their numbers in Spark's files; empty if a source has no name."""
    archive: bytes
    """The files of `capture_start`, packed."""


_START = RecordFormat(b"SLSTART1", 1, Start, "the start")


def start_path(restored: Restored | None) -> str:
    """Return the path of the start record of a job that began empty, or with a snapshot.

    A snapshot without the progress of the sources has a new start each time it is restored: the start of the job's
    former life does not apply.
    """
    if restored is None:
        return START_PATH
    key = hashlib.sha256(f"{restored.sha256} {restored.again or ''}".encode()).hexdigest()
    return f"{START_PATH}-{key[:32]}"


def save_start(jobdir: JobDirectory, claim: Claim, files: Mapping[str, bytes], names: list[str], clock: Clock) -> None:
    """Make these files the job's start, for ever; saving the same again changes nothing.

    Raises FencedError if a newer driver has claimed the job, CorruptionError if the saved start is damaged, and
    ConflictError if another driver has saved another start: then the rows of this attempt are not the job's, and it
    must be restarted from the saved start.
    """
    claim.check()
    path = start_path(claim.restored)
    start = Start(generation=claim.generation, created_ms=clock.now_ms(), names=names, archive=pack(files))
    hit("start.save.before")
    try:
        jobdir.create(path, _START.encode(start))
    except ConflictError as error:
        saved = load_start(jobdir, claim.restored)
        # An equal record of this generation is from our own earlier try, whose answer was lost.
        if saved is not None and msgspec.structs.replace(saved, created_ms=start.created_ms) == start:
            return
        raise ConflictError(
            f"{jobdir.url}/{path}: another driver has recorded the start of the job's sources",
            hint="the job restarts from there by itself; if this recurs, keep only one of its drivers",
        ) from error


def load_start(jobdir: JobDirectory, restored: Restored | None = None) -> Start | None:
    """Return the start record of a job that began empty, or with a snapshot; None if there is none yet.

    Raises CorruptionError if it is damaged.
    """
    path = start_path(restored)

    def decode(data: bytes, where: str) -> Start:
        start = _START.decode(data, where)
        unpack(start.archive, where)
        return start

    try:
        return jobdir.read(path, decode)
    except NotFoundError:
        return None
    except CorruptionError as error:
        raise CorruptionError(
            f"{jobdir.url}/{path}: the start of the job's sources cannot be read: {error}",
            hint="it is needed until the first checkpoint: restore it from a backup, or delete it and accept that "
            "the sources start again by their options",
            path=path,
        ) from error


def start_files(start: Start) -> dict[str, bytes]:
    """Return the saved files. In the directory that is Spark's `checkpointLocation`, they set the start."""
    return unpack(start.archive, START_PATH)
