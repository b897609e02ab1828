"""Fencing: claims, by which one driver owns the job.

A driver claims the next generation by a conditional create. The existence of a claim fences all older drivers. Its
content only distinguishes a lost answer from a competitor, so a damaged claim fences too. Storage that ignores the
condition would allow two drivers: a process tests it once, before its first claim.

A driver that lost its claim may still be publishing. So a new driver records the checkpoint that it has chosen to
restore (its BASE) before it changes anything: later manifests of an older driver are void (chain.py).

An older driver may also be deleting: it has checked its claim, and pauses. Then it deletes only files older than the
newest manifest that it has published and found complete. A new driver continues from that manifest or a later one,
unless that was damaged since, or the job goes back in time. Only then can the old driver delete the base of the new
one. Object stores cannot prevent it, since a deletion cannot depend on another object; so the claim is checked right
before. The new driver notices it when it fetches the files, or before its first deletion (retention.py), and fails
loudly.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from strandline.checkpoint.chain import BASE, BaseRecord, Restored
from strandline.checkpoint.folder import delete_quietly
from strandline.checkpoint.jobdir import (
    GENERATIONS,
    JobDirectory,
    base_path,
    claimed_generation,
    generation_path,
    manifest_path,
    probe_path,
    turned_path,
)
from strandline.core.clock import Clock
from strandline.core.errors import (
    CheckpointError,
    ConfigurationError,
    ConflictError,
    CorruptionError,
    FencedError,
    NotFoundError,
)
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId, Generation, unique_name
from strandline.format.frame import RecordFormat
from strandline.format.manifest import MANIFEST, Manifest


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A claim. The owner's random name distinguishes a lost answer from a competitor."""

    generation: Generation
    owner: str
    claimed_ms: int


CLAIM = RecordFormat(b"SLCLAIM1", 1, ClaimRecord, "the claim")


class Claim:
    """A driver's ownership of a job, until a newer one claims it."""

    def __init__(self, jobdir: JobDirectory, generation: Generation, owner: str, *, is_again: bool = False) -> None:
        """`is_again` is True if the driver had an older claim, and restarts its job."""
        self._jobdir = jobdir
        self.is_again = is_again
        self.generation = generation
        self.owner = owner
        self.has_base = False
        self.highest_seen = CheckpointId(0)
        """The highest checkpoint number in storage when this driver chose a checkpoint to restore."""
        self.life = ""
        """The name of the job's life since its first base; known once there is a base."""
        self.restored: Restored | None = None
        """The last snapshot that was restored on purpose, from which the job's history descends."""
        self.turns: list[tuple[int, int]] = []
        """The runs in the job's history that went back, this one included: see `Manifest.turns`."""

    def check(self) -> None:
        """Raise FencedError if a newer driver has claimed the job, or if this claim is not ours any more."""
        try:
            # Claims are contiguous and never deleted: a newer one exists only if the next one does.
            self._jobdir.head(generation_path(Generation(self.generation + 1)))
        except NotFoundError:
            pass
        else:
            raise _fenced(self._jobdir, self.generation)
        self.check_there()

    def check_based(self) -> None:
        """Raise CheckpointError if this generation has not recorded its base."""
        if not self.has_base:
            raise CheckpointError(
                f"generation {self.generation} has not recorded its base",
                hint="call claim.set_base(…) after the choice of a checkpoint to restore",
            )

    def check_there(self) -> None:
        """Raise FencedError if this claim is gone or not ours, with or without a newer one."""
        # After the directory was emptied, another driver may have claimed the same number.
        try:
            owner = _owner_of(self._jobdir, self.generation)
        except NotFoundError as error:
            raise FencedError(
                f"job '{self._jobdir.job}': the claim of generation {self.generation} is gone",
                hint="the checkpoint directory was deleted or unmounted while the job ran; in an empty one, it would "
                "start without state",
                generation=self.generation,
            ) from error
        if owner not in (None, self.owner):
            raise _fenced(self._jobdir, self.generation)

    def set_base(
        self, checkpoint: CheckpointId | None, restored: Restored | None = None, *, back: bool = False
    ) -> None:
        """Record the checkpoint that is this generation's base; None for empty state, or for a foreign snapshot.

        From then on, manifests of older generations outside of that checkpoint's history are void. Call it right after
        the choice of the checkpoint. `restored` is the snapshot that this generation restores on purpose for the first
        time; `back` tells that it goes back in time. A foreign snapshot begins a new life of the job, unless it is
        from the same life. Raises FencedError if a newer driver has claimed the job, CorruptionError if the checkpoint
        is gone, CheckpointError if this generation has recorded another base.
        """
        # 1. A fenced driver must not add to the chain.
        self.check()
        # 2. Record the generation of the checkpoint too, because its manifest will be subsumed one day.
        chosen = None if checkpoint is None else self._manifest_of(checkpoint)
        if chosen is not None:
            self.life = chosen.life
        elif not self.life or (restored is not None and restored.life != self.life):
            self.life = unique_name()
        self.restored = restored or self.restored
        record = BaseRecord(
            generation=self.generation,
            checkpoint=checkpoint,
            checkpoint_generation=chosen.generation if chosen else None,
            highest_seen=max(self.highest_seen, checkpoint or self.highest_seen),
            life=self.life,
            restored=self.restored or UNSET,
        )
        hit("generation.base.before")
        # 3. One conditional create; a conflict with our own bytes is a lost answer. If the job leaves a history here,
        #    which a damaged record would revive, write a copy first.
        try:
            if restored is not None or back:
                self._jobdir.create_own(turned_path(self.generation), BASE.encode(record))
                hit("generation.base.copied")
            self._jobdir.create_own(base_path(self.generation), BASE.encode(record))
        except ConflictError as error:
            raise CheckpointError(
                f"job '{self._jobdir.job}': generation {self.generation} already has another base",
                hint="claim a new generation to restore another one",
            ) from error
        hit("generation.base.after")
        # 4. Check that it was not deleted since, by hand or by a late garbage collection.
        if checkpoint is not None:
            self._manifest_of(checkpoint)
        self.has_base = True

    def _manifest_of(self, checkpoint: CheckpointId) -> Manifest:
        path = manifest_path(checkpoint)
        try:
            return self._jobdir.read(path, MANIFEST.decode)
        except NotFoundError as error:
            # If a newer driver has subsumed the chosen checkpoint, raise FencedError: nothing is damaged.
            self.check()
            raise CorruptionError(f"{self._jobdir.url}/{path}: gone after it was chosen for restore") from error


def claim(jobdir: JobDirectory, clock: Clock, previous: Claim | None = None) -> Claim:
    """Claim the job, and so fence all older claims.

    A driver that restarts its job passes its `previous` claim. It raises FencedError if another driver's claim is
    newer: otherwise two drivers would take the job from each other for ever. The first claim of a process raises
    ConfigurationError if the storage ignores the condition of a conditional create.
    """
    if previous is None:
        _try_conditional_create(jobdir)
    else:
        # If the claim is gone, so is all state: the job would start empty, and process all rows again.
        previous.check_there()
    owner = previous.owner if previous else unique_name()
    newest = previous.generation if previous else _newest_claimed(jobdir)
    while True:
        generation = Generation(newest + 1)
        record = ClaimRecord(generation=generation, owner=owner, claimed_ms=clock.now_ms())
        try:
            jobdir.create_own(generation_path(generation), CLAIM.encode(record))
        except ConflictError:
            if previous is not None and _owner_of(jobdir, generation) != owner:
                raise _fenced(jobdir, previous.generation) from None
            newest = generation
        else:
            if previous is not None:
                previous.check_there()
            return Claim(jobdir, generation, owner, is_again=previous is not None)


def _newest_claimed(jobdir: JobDirectory) -> Generation:
    claimed = (g for info in jobdir.list(GENERATIONS) if (g := claimed_generation(info.path)))
    return max(claimed, default=Generation(0))


def _try_conditional_create(jobdir: JobDirectory) -> None:
    """Create a probe twice: the second time must be refused and change nothing."""
    path, first = probe_path(), unique_name().encode()
    try:
        jobdir.create_own(path, first)
        try:
            jobdir.create(path, unique_name().encode())
            refused = False
        except ConflictError:
            refused = True
        kept = jobdir.get(path) == first
    finally:
        delete_quietly(jobdir, [path])
    if not (refused and kept):
        raise ConfigurationError(
            f"{jobdir.url}: a conditional create has {'replaced' if not kept else 'created again'} an existing object, "
            "expected a conflict: two drivers could own the job",
            hint="use a storage with conditional writes (If-None-Match: *); S3-compatible ones may need a newer "
            "version or a setting for it",
        )


def _owner_of(jobdir: JobDirectory, generation: Generation) -> str | None:
    """Return the owner of a claim; None if it is damaged."""
    path = generation_path(generation)
    try:
        return CLAIM.decode(jobdir.get(path), f"{jobdir.url}/{path}").owner
    except CorruptionError:
        return None


def _fenced(jobdir: JobDirectory, generation: Generation) -> FencedError:
    return FencedError(
        f"job '{jobdir.job}': generation {generation} was replaced by a newer driver",
        hint="another driver runs the same job on the same directory: keep only one",
        generation=generation,
    )
