"""Fencing: which driver owns the job.

A driver claims the next generation by a conditional create. That a claim exists is what fences every older driver; what
it holds only tells a lost answer from a competitor, so a damaged claim fences as an intact one does. Storage that
ignores the condition would bring two drivers to life: a process tries it once, before its first claim.

A driver that lost its claim may still be in the middle of publishing. So a new driver, once it has chosen what to
restore, records that choice (its BASE) before it touches anything: what an older one publishes later is void
(chain.py).

An older driver may also be in the middle of deleting: it has checked its claim, and pauses. What it then deletes is
older than the newest manifest it has published itself, and was found to be complete. A new driver goes on from that one
or a later one, unless it was damaged in between, or the job is to go back: then, and only then, the old driver may take
away what the new one went on from. Nothing in an object store can prevent it, since no deletion can depend on another
object; so the claim is checked right before. The new driver sees it when it fetches the files, or before it deletes
anything itself (retention.py), and fails loudly.
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
    """A claim. The owner's random name tells a lost answer from a competitor."""

    generation: Generation
    owner: str
    claimed_ms: int


CLAIM = RecordFormat(b"SLCLAIM1", 1, ClaimRecord, "the claim")


class Claim:
    """A driver's ownership of a job, until a newer one claims it."""

    def __init__(self, jobdir: JobDirectory, generation: Generation, owner: str, *, is_again: bool = False) -> None:
        """`is_again`: the driver has had an older claim, and restarts its job."""
        self._jobdir = jobdir
        self.is_again = is_again
        self.generation = generation
        self.owner = owner
        self.has_base = False
        self.highest_seen = CheckpointId(0)
        """The highest checkpoint number that was found in storage when this driver chose what to restore."""
        self.life = ""
        """Names the job's life, from its very first base on; known once there is a base."""
        self.restored: Restored | None = None
        """The last snapshot that was restored on purpose, of which the job's history descends."""

    def check(self) -> None:
        """Raise FencedError if a newer driver has claimed the job, or if this claim is not ours any more."""
        try:
            # Claims are contiguous and never deleted: a newer one exists only if the very next one does.
            self._jobdir.head(generation_path(Generation(self.generation + 1)))
        except NotFoundError:
            pass
        else:
            raise _fenced(self._jobdir, self.generation)
        self.check_there()

    def check_based(self) -> None:
        """Raise CheckpointError if readers cannot know yet what this generation goes on from."""
        if not self.has_base:
            raise CheckpointError(
                f"generation {self.generation} has not recorded what it goes on from",
                hint="call claim.set_base(…) after choosing what to restore",
            )

    def check_there(self) -> None:
        """Raise FencedError if this claim is gone or not ours, whether or not there is a newer one."""
        # Somebody may have emptied the directory and begun anew, or made our number theirs.
        try:
            owner = _owner_of(self._jobdir, self.generation)
        except NotFoundError as error:
            raise FencedError(
                f"job '{self._jobdir.job}': the claim of generation {self.generation} is gone",
                hint="the checkpoint directory was deleted, or unmounted, while the job ran: in an empty one, it would "
                "begin anew",
                generation=self.generation,
            ) from error
        if owner not in (None, self.owner):
            raise _fenced(self._jobdir, self.generation)

    def set_base(
        self, checkpoint: CheckpointId | None, restored: Restored | None = None, *, back: bool = False
    ) -> None:
        """Record which checkpoint this generation goes on from; None: from empty state, or from a foreign snapshot.

        From then on, what older generations publish beside that checkpoint's own history is void. Must come after
        choosing and before anything else. `restored` is the snapshot that this generation restores on purpose, for
        the first time; `back` says that it goes back in time. A foreign snapshot begins a new life of the job, unless
        it is of the job's own. Raises FencedError if the job was claimed anew, CorruptionError if the checkpoint is
        gone, CheckpointError if this generation has already recorded another one.
        """
        # 1. A driver that is already fenced must not add to the chain.
        self.check()
        # 2. Which history the checkpoint belongs to is written down, because its manifest will be subsumed one day.
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
        # 3. One conditional create; a conflict with our own bytes is a lost answer. Where a damaged record would let
        #    the history go on that is left here, a copy is there before it.
        try:
            if restored is not None or back:
                self._jobdir.create_own(turned_path(self.generation), BASE.encode(record))
                hit("generation.base.copied")
            self._jobdir.create_own(base_path(self.generation), BASE.encode(record))
        except ConflictError as error:
            raise CheckpointError(
                f"job '{self._jobdir.job}': generation {self.generation} already goes on from another checkpoint",
                hint="claim a new generation to restore another one",
            ) from error
        hit("generation.base.after")
        # 4. Nobody can have subsumed it meanwhile, unless it was taken away by hand or by a late collection.
        if checkpoint is not None:
            self._manifest_of(checkpoint)
        self.has_base = True

    def _manifest_of(self, checkpoint: CheckpointId) -> Manifest:
        path = manifest_path(checkpoint)
        try:
            return self._jobdir.read(path, MANIFEST.decode)
        except NotFoundError as error:
            # A newer driver subsumes what this one has chosen: that is no damage.
            self.check()
            raise CorruptionError(f"{self._jobdir.url}/{path}: gone after it was chosen for restore") from error


def claim(jobdir: JobDirectory, clock: Clock, previous: Claim | None = None) -> Claim:
    """Become the job's owner: every older claim is fenced from now on.

    A driver that restarts its job gives its `previous` claim, and raises FencedError if another driver's is newer:
    else two drivers would take the job from each other for ever. The first claim of a process raises
    ConfigurationError if the storage ignores the condition of a conditional create.
    """
    if previous is None:
        _try_conditional_create(jobdir)
    else:
        # Where it is gone, so is all that the job has had: it would begin empty, and all its rows come again.
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
            f"{jobdir.url}: an object that was there was {'replaced' if not kept else 'created again'} by a "
            "conditional create, which must be refused: two drivers could own the job",
            hint="use a storage with conditional writes (If-None-Match: *); S3-compatible ones may need a newer "
            "version or a setting for it",
        )


def _owner_of(jobdir: JobDirectory, generation: Generation) -> str | None:
    """Return who made a claim; None if it is damaged: then nobody can say."""
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
