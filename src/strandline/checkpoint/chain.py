"""Which manifests are the job's history: the chain of base records, and what holds while one of them is damaged.

Each generation records, before it touches anything, which checkpoint it goes on from: its base. The newest record
decides; from it the chain leads down, generation by generation. A manifest beside it is void, whenever it appears.

A record may be damaged: a power loss leaves an empty file. What it said is lost, not that its generation was there.

- The generation has published manifests: those are its own and count. What is older can be on its chain or beside it.
  That is unknown, so it is neither restored nor deleted.
- It has published none, and its record is the newest: it is passed over, and the next record below decides. It has
  added nothing, and what counted for it counts below. A generation that goes back in time, or restores somebody else's
  snapshot, is not passed over: what it left would count again. So its record has a copy, which is written first.

No two drivers can live by this: claims alone fence, and reading a damaged record changes none. A driver that passes a
record over writes its own, which is newer: whatever the generation passed over may still publish is void from then on.
What remains takes three faults at once: a replaced driver publishes late, the record of its successor, which made that
void, is damaged, and the successor has published nothing. Then the late manifest counts again. The rows it lists were
forgotten by the sinks when the successor started, and a sink that is to commit rows which are gone fails loudly.
A garbage collection deletes nothing while a record on the way is damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec

from strandline.checkpoint.jobdir import JobDirectory, base_path, based_generation, turned_generation, turned_path
from strandline.core.errors import CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId, Generation
from strandline.format.frame import RecordFormat
from strandline.format.manifest import Manifest


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that somebody had the job restore, instead of its newest checkpoint."""

    asked: str
    """What was asked for, as a url without secrets: it may be the folder of a job, whose newest checkpoint changes."""
    url: str
    """Where the snapshot itself was."""
    kind: Literal["checkpoint", "savepoint"]
    job: str
    checkpoint: CheckpointId
    generation: Generation
    life: str
    sha256: str
    """Of its manifest: another snapshot may have taken its place."""
    claimed: bool = False
    """True: it was given to the job, and goes when the job stands on its own."""
    again: str | msgspec.UnsetType = msgspec.UNSET
    """Under which name it was restored once more; left out the first time."""
    earlier: list[tuple[str, str]] | msgspec.UnsetType = msgspec.UNSET
    """What was asked for before, oldest first, each with the name that `again` had, or ""; left out if nothing was."""

    @property
    def commands(self) -> list[tuple[str, str]]:
        """All that was asked for, this last."""
        return [*(self.earlier or ()), (self.asked, self.again or "")]


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation goes on from: a checkpoint and who published it, somebody else's snapshot, or nothing."""

    generation: Generation
    checkpoint: CheckpointId | None
    checkpoint_generation: Generation | None
    highest_seen: CheckpointId
    """No checkpoint of this generation or a later one has this number or one below."""
    life: str
    """Names the job's life, from its very first base on: sinks are known by it."""
    restored: Restored | msgspec.UnsetType = msgspec.UNSET
    """The last snapshot that was restored on purpose, by this generation or one that it descends from; left out where
    there was none. Without a checkpoint, it is what this generation goes on from."""

    @property
    def foreign(self) -> Restored | None:
        """The snapshot of somebody else that this generation goes on from."""
        return self.restored if self.checkpoint is None and self.restored else None


BASE = RecordFormat(b"SLBASEC1", 1, BaseRecord, "the base record")


@dataclass(frozen=True)
class Chain:
    """The records from the newest down, as far as there are manifests, and what follows from them."""

    bases: Mapping[Generation, BaseRecord]
    """By generation, those that could be read."""
    damaged: Mapping[Generation, str]
    """By generation, those that could not, and why."""
    limits: Mapping[Generation, float] | None
    """By generation, up to which number its manifests count; None: there is no record, and all do."""
    broken_at: Generation | None
    """The generation whose damaged record hides which older manifests count."""

    @property
    def newest(self) -> BaseRecord | None:
        """The record that decides; None if there is none, or it cannot be read."""
        return self.bases[max(self.bases)] if self.bases else None

    def judge(self, manifest: Manifest) -> tuple[str, str]:
        """Return why a manifest is not the job's history, or else why nobody can say; neither ("") if it is."""
        if self.limits is None or manifest.checkpoint <= self.limits.get(manifest.generation, -1):
            return "", ""
        if self.broken_at is not None and manifest.generation < self.broken_at:
            return "", f"whether it counts is unknown: {self.damaged[self.broken_at]}"
        if (limit := self.limits.get(manifest.generation)) is not None:
            return f"published by generation {manifest.generation}, from whose checkpoint {limit} the job went on", ""
        return f"published by generation {manifest.generation}, which the job did not go on from", ""


def read_chain(jobdir: JobDirectory, paths: Collection[str], manifests: Iterable[Manifest]) -> Chain:
    """Walk from the newest record down, as far as there are manifests.

    The newest record decides, and it alone can bring in an older generation's history: a slow driver that writes
    its record late, when it is fenced already, therefore changes nothing.
    """
    recorded = {g for path in paths if (g := based_generation(path)) is not None}
    turned = {g for path in paths if (g := turned_generation(path)) is not None}
    published = {manifest.generation for manifest in manifests}
    bases: dict[Generation, BaseRecord] = {}
    damaged: dict[Generation, str] = {}

    def can_read(generation: Generation) -> bool:
        for path in [base_path(generation)] + [turned_path(generation)] * (generation in turned):
            where = f"{jobdir.url}/{path}"
            try:
                record = jobdir.read(path, BASE.decode)
                if record.generation != generation:
                    raise CorruptionError(f"{where}: is of generation {record.generation}: it was moved")
            except CorruptionError as error:
                damaged.setdefault(generation, error.message)
            else:
                bases[generation] = record
                damaged.pop(generation, None)
                return True
        return False

    # A damaged record hides nothing that counts if its generation published nothing, and did not turn back.
    newest = next((g for g in sorted(recorded, reverse=True) if can_read(g) or g in published | turned), None)
    if newest is None:
        return Chain(bases, damaged, None, None)
    limits = {newest: float("inf")}
    generation = newest
    while generation in bases:
        base = bases[generation]
        if base.checkpoint is None or base.checkpoint_generation is None or base.checkpoint_generation in limits:
            return Chain(bases, damaged, limits, None)
        generation = base.checkpoint_generation
        limits[generation] = base.checkpoint
        if generation not in recorded or generation < min(published, default=0):
            return Chain(bases, damaged, limits, None)
        can_read(generation)
    return Chain(bases, damaged, limits, generation)


def is_left(jobdir: JobDirectory, chain: Chain, manifest: Manifest) -> bool:
    """Return whether the job has gone back behind a snapshot of its own life, or never was where that was taken.

    Sinks have taken back rows that led to it then, or shown others in their place. Where a record is gone or damaged
    that would say so, the snapshot is taken for one of the history.
    """
    base = chain.newest
    if base is None or base.life != manifest.life:
        return False
    generation, limit = base.generation, float("inf")
    while generation > manifest.generation:
        record = chain.bases.get(generation) or _record_of(jobdir, generation)
        if record is None:
            return False
        came_from = record.foreign
        if came_from is not None and came_from.life == record.life:
            generation, limit = came_from.generation, came_from.checkpoint
        elif record.checkpoint is not None and record.checkpoint_generation is not None:
            generation, limit = record.checkpoint_generation, record.checkpoint
        else:
            return True
    return generation < manifest.generation or manifest.checkpoint > limit


def _record_of(jobdir: JobDirectory, generation: Generation) -> BaseRecord | None:
    for path in (base_path(generation), turned_path(generation)):
        with suppress(CorruptionError, NotFoundError):
            record = jobdir.read(path, BASE.decode)
            if record.generation == generation:
                return record
    return None
