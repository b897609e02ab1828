"""Fencing: which driver owns the job, and which history of checkpoints is the job's.

A driver claims the next generation by a conditional create. A driver that lost its claim may still be in the middle
of publishing. So a new driver, once it has chosen what to restore, records that choice (its BASE) before it touches
anything. The records form a chain, from the newest one down: a manifest that is not on it is void for every reader,
no matter when it appears.
"""

from __future__ import annotations

import msgspec

from strandline.checkpoint.jobdir import (
    GENERATIONS,
    JobDirectory,
    base_path,
    claimed_generation,
    generation_path,
    manifest_path,
)
from strandline.core.clock import Clock
from strandline.core.errors import CheckpointError, ConflictError, CorruptionError, FencedError, NotFoundError
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId, Generation, unique_name
from strandline.format.frame import frame, unframe
from strandline.format.manifest import decode_manifest

CLAIM_MAGIC = b"SLCLAIM1"
BASE_MAGIC = b"SLBASEC1"
_VERSION = 1


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A claim. The owner's random name tells a lost answer from a competitor."""

    generation: int
    owner: str
    claimed_ms: int


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation goes on from: a checkpoint and the generation that published it, or nothing."""

    generation: int
    checkpoint: int | None
    checkpoint_generation: int | None
    highest_seen: int
    """No checkpoint of this generation or a later one has this number or one below."""


def decode_base(data: bytes, where: str) -> BaseRecord:
    """Read a base record; raise CorruptionError naming `where`."""
    _, payload = unframe(data, BASE_MAGIC, (_VERSION,), where)
    try:
        return msgspec.json.decode(payload, type=BaseRecord)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{where}: the base record does not have the expected fields: {error}") from error


class Claim:
    """A driver's ownership of a job, until a newer one claims it."""

    def __init__(self, jobdir: JobDirectory, generation: Generation, owner: str = "") -> None:
        self._jobdir = jobdir
        self.generation = generation
        self.owner = owner
        self.has_base = False
        self.highest_seen = 0
        """The highest checkpoint number that was found in storage when this driver chose what to restore."""

    def check(self) -> None:
        """Raise FencedError if a newer driver has claimed the job."""
        try:
            # Claims are contiguous and never deleted: a newer one exists only if the very next one does.
            self._jobdir.head(generation_path(Generation(self.generation + 1)))
        except NotFoundError:
            return
        raise _fenced(self._jobdir, self.generation)

    def set_base(self, checkpoint: CheckpointId | None) -> None:
        """Record which checkpoint this generation goes on from; None: from empty state.

        From then on, what older generations publish beside that checkpoint's own history is void. Must come after
        choosing and before anything else. Raises FencedError if the job was claimed anew, CorruptionError if the
        checkpoint is gone, CheckpointError if this generation has already recorded another one.
        """
        # 1. A driver that is already fenced must not add to the chain.
        self.check()
        # 2. Which history the checkpoint belongs to is written down, because its manifest will be subsumed one day.
        published_by = None if checkpoint is None else self._generation_of(checkpoint)
        record = BaseRecord(
            generation=self.generation,
            checkpoint=checkpoint,
            checkpoint_generation=published_by,
            highest_seen=max(self.highest_seen, checkpoint or 0),
        )
        hit("generation.base.before")
        # 3. One conditional create; a conflict with our own bytes is a lost answer.
        try:
            data = frame(BASE_MAGIC, _VERSION, msgspec.json.encode(record))
            _create_own(self._jobdir, base_path(self.generation), data)
        except ConflictError as error:
            raise CheckpointError(
                f"job '{self._jobdir.job}': generation {self.generation} already goes on from another checkpoint",
                hint="claim a new generation to restore another one",
            ) from error
        hit("generation.base.after")
        # 4. Nobody can have subsumed it meanwhile, unless it was taken away by hand or by a late collection.
        if checkpoint is not None:
            self._generation_of(checkpoint)
        self.has_base = True

    def _generation_of(self, checkpoint: CheckpointId) -> int:
        path = manifest_path(checkpoint)
        try:
            return decode_manifest(self._jobdir.get(path), f"{self._jobdir.url}/{path}").generation
        except NotFoundError as error:
            raise CorruptionError(f"{self._jobdir.url}/{path}: gone after it was chosen for restore") from error


def claim(jobdir: JobDirectory, clock: Clock, previous: Claim | None = None) -> Claim:
    """Become the job's owner: every older claim is fenced from now on.

    A driver that restarts its job gives its `previous` claim, and raises FencedError if another driver's is newer:
    else two drivers would take the job from each other for ever.
    """
    owner = previous.owner if previous else unique_name()
    newest = previous.generation if previous else _newest_claimed(jobdir)
    while True:
        generation = Generation(newest + 1)
        record = ClaimRecord(generation=generation, owner=owner, claimed_ms=clock.now_ms())
        try:
            _create_own(jobdir, generation_path(generation), frame(CLAIM_MAGIC, _VERSION, msgspec.json.encode(record)))
        except ConflictError:
            if previous is not None and _owner_of(jobdir, generation) != owner:
                raise _fenced(jobdir, previous.generation) from None
            newest = generation
        else:
            return Claim(jobdir, generation, owner)


def _newest_claimed(jobdir: JobDirectory) -> Generation:
    claimed = (g for info in jobdir.list(GENERATIONS) if (g := claimed_generation(info.path)))
    return max(claimed, default=Generation(0))


def _owner_of(jobdir: JobDirectory, generation: Generation) -> str:
    path = generation_path(generation)
    where = f"{jobdir.url}/{path}"
    _, payload = unframe(jobdir.get(path), CLAIM_MAGIC, (_VERSION,), where)
    try:
        return msgspec.json.decode(payload, type=ClaimRecord).owner
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{where}: the claim does not have the expected fields: {error}") from error


def _fenced(jobdir: JobDirectory, generation: Generation) -> FencedError:
    return FencedError(
        f"job '{jobdir.job}': generation {generation} was replaced by a newer driver",
        hint="another driver runs the same job on the same directory: keep only one",
        generation=generation,
    )


def _create_own(jobdir: JobDirectory, path: str, data: bytes) -> None:
    """Create an object; one that already holds these very bytes is ours."""
    try:
        jobdir.create(path, data)
    except ConflictError:
        if jobdir.get(path) != data:
            raise
