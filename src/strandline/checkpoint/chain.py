"""Which manifests are the job's history: the chain of base records, and what holds while one of them is damaged.

Each generation records, before it touches anything, which checkpoint it goes on from: its base. The newest record
decides; from it the chain leads down, generation by generation. A manifest beside it is void, whenever it appears.

A record may be damaged: a power loss leaves an empty file. What it said is lost, not that its generation was there.

- The generation has published manifests: those are its own and count. What is older can be on its chain or beside it.
  That is unknown, so it is neither restored nor deleted.
- It has published none, and its record is the newest: it is passed over, and the next record below decides. It has
  added nothing, and what counted for it counts below.

No two drivers can live by this: claims alone fence, and reading a damaged record changes none. A driver that passes a
record over writes its own, which is newer: whatever the generation passed over may still publish is void from then on.
What remains takes three faults at once: a replaced driver publishes late, the record of its successor, which made that
void, is damaged, and the successor has published nothing. Then the late manifest counts again. The rows it lists were
forgotten by the sinks when the successor started, and a sink that is to commit rows which are gone fails loudly.
A garbage collection deletes nothing while a record on the way is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from strandline.checkpoint.jobdir import JobDirectory, base_path, based_generation
from strandline.core.errors import CorruptionError
from strandline.core.ids import CheckpointId, Generation
from strandline.format.frame import RecordFormat
from strandline.format.manifest import Manifest


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation goes on from: a checkpoint and the generation that published it, or nothing."""

    generation: Generation
    checkpoint: CheckpointId | None
    checkpoint_generation: Generation | None
    highest_seen: CheckpointId
    """No checkpoint of this generation or a later one has this number or one below."""
    life: str
    """Names the job's life, from its very first base on: sinks are known by it."""


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

    def judge(self, manifest: Manifest) -> tuple[str, str]:
        """Return why a manifest is not the job's history, or else why nobody can say; neither ("") if it is."""
        if self.limits is None or manifest.checkpoint <= self.limits.get(manifest.generation, -1):
            return "", ""
        if self.broken_at is not None and manifest.generation < self.broken_at:
            return "", f"whether it counts is unknown: {self.damaged[self.broken_at]}"
        return f"published by generation {manifest.generation}, which the job did not go on from", ""


def read_chain(jobdir: JobDirectory, paths: Iterable[str], manifests: Iterable[Manifest]) -> Chain:
    """Walk from the newest record down, as far as there are manifests.

    The newest record decides, and it alone can bring in an older generation's history: a slow driver that writes
    its record late, when it is fenced already, therefore changes nothing.
    """
    recorded = {g for path in paths if (g := based_generation(path)) is not None}
    published = {manifest.generation for manifest in manifests}
    bases: dict[Generation, BaseRecord] = {}
    damaged: dict[Generation, str] = {}

    def can_read(generation: Generation) -> bool:
        path = base_path(generation)
        where = f"{jobdir.url}/{path}"
        try:
            bases[generation] = jobdir.read(path, BASE.decode)
            if bases[generation].generation != generation:
                raise CorruptionError(f"{where}: is of generation {bases.pop(generation).generation}: it was moved")
        except CorruptionError as error:
            damaged[generation] = error.message
        return generation in bases

    newest = next((g for g in sorted(recorded, reverse=True) if can_read(g) or g in published), None)
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
