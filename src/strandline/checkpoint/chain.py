"""The chain of base records, which defines the manifests in the job's history, also if one record is damaged.

Each generation records its base, the checkpoint from which it continues, before it changes anything. The newest record
decides; from it the chain leads down, generation by generation. A manifest outside of the chain is void at all times.

A record may be damaged: a power loss leaves an empty file. Its content is lost, but the generation is known.

- If the generation has published manifests, they count. Older manifests can be on its chain or outside of it. That is
  unknown, so they are neither restored nor deleted.
- If it has published none and its record is the newest, the record is skipped, and the next record below decides. The
  generation has added nothing, and the same older manifests count. A generation that goes back in time, or restores a
  foreign snapshot, is not skipped: the manifests that it left would count again. So its record has a copy, which is
  written first.

This cannot admit two drivers: only claims fence, and a read of a damaged record changes none. A driver that skips a
record writes a newer one, which makes all later manifests of the skipped generation void.
One case remains, of three faults at once: a replaced driver publishes late, the record of its successor, which made
that void, is damaged, and the successor has published nothing. Then the late manifest counts again. The sinks dropped
its rows when the successor started, and a sink fails loudly if it is to commit dropped rows.
Garbage collection deletes nothing while a record in the chain is damaged.
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
    """A snapshot that the job restored on a user's request, instead of its newest checkpoint."""

    requested: str = msgspec.field(name="asked")
    """The requested url, without secrets. It may be the folder of a job, whose newest checkpoint changes."""
    url: str
    """The url of the snapshot itself."""
    kind: Literal["checkpoint", "savepoint"]
    job: str
    checkpoint: CheckpointId
    generation: Generation
    life: str
    sha256: str
    """The checksum of its manifest, since another snapshot may replace it."""
    claimed: bool = False
    """Whether the job owns it, and deletes it once the job has a checkpoint of its own."""
    again: str | msgspec.UnsetType = msgspec.UNSET
    """The name of a repeated restore; left out the first time."""
    earlier: list[tuple[str, str]] | msgspec.UnsetType = msgspec.UNSET
    """Earlier requests, oldest first, each with its `again` or ""; left out if there are none."""

    @property
    def commands(self) -> list[tuple[str, str]]:
        """All requests, this one last."""
        return [*(self.earlier or ()), (self.requested, self.again or "")]


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The base of a generation: a checkpoint and the generation that published it, a foreign snapshot, or nothing."""

    generation: Generation
    checkpoint: CheckpointId | None
    checkpoint_generation: Generation | None
    highest_seen: CheckpointId
    """All checkpoints of this generation and later ones have higher numbers."""
    life: str
    """The name of the job's life since its first base; sinks use it as an id."""
    restored: Restored | msgspec.UnsetType = msgspec.UNSET
    """The last snapshot that this generation or one before it in the chain restored on purpose; left out if there is
    none. Without a checkpoint, it is the base of this generation."""

    @property
    def foreign(self) -> Restored | None:
        """The foreign snapshot that is the base of this generation, if any."""
        return self.restored if self.checkpoint is None and self.restored else None


BASE = RecordFormat(b"SLBASEC1", 1, BaseRecord, "the base record")


@dataclass(frozen=True)
class Chain:
    """The records from the newest down, as far as there are manifests, and which manifests count."""

    bases: Mapping[Generation, BaseRecord]
    """The readable records, by generation."""
    damaged: Mapping[Generation, str]
    """The damaged records, by generation, with the reason."""
    limits: Mapping[Generation, float] | None
    """The highest number that counts of each generation's manifests; None if there is no record, so that all count."""
    broken_at: Generation | None
    """The generation whose damaged record hides which older manifests count."""

    @property
    def newest(self) -> BaseRecord | None:
        """The record that decides; None if there is none, or it cannot be read."""
        return self.bases[max(self.bases)] if self.bases else None

    def judge(self, manifest: Manifest) -> tuple[str, str]:
        """Return why a manifest is not in the job's history, and why that is unknown; both are "" if it is in it."""
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

    # A damaged record hides no manifest that counts if its generation published nothing and did not go back.
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
    """Whether a snapshot of the job's own life is outside of its history: the job went back before it, or never had it.

    Sinks have then removed the rows that led to the snapshot, or replaced them. If a record in the chain is missing or
    damaged, the snapshot counts as part of the history.
    """
    base = chain.newest
    if base is None or base.life != manifest.life:
        return False
    generation, limit = base.generation, float("inf")
    while generation > manifest.generation:
        record = chain.bases.get(generation) or _record_of(jobdir, generation)
        if record is None:
            return False
        origin = record.foreign
        if origin is not None and origin.life == record.life:
            generation, limit = origin.generation, origin.checkpoint
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
