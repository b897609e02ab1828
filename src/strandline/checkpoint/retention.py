"""Which files a checkpoint may reference, which stay, and which go: older checkpoints' and those of failed ones.

A manifest is in doubt when storage did not say whether it was written: it may be there, or appear later. As long as it
could be the job's newest, a driver that takes over may base itself on it, so it stays as it is, with all its files:
whoever comes next finds it, there or not, and decides. No later checkpoint references its files. Once a later one is
published, it is deleted like every older one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strandline.checkpoint import invariants
from strandline.checkpoint.catalog import lacking, look_at, mark_published, read_catalog
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.parallel import in_parallel
from strandline.checkpoint.pins import Pins
from strandline.checkpoint.registry import SharedFiles
from strandline.core.clock import Clock
from strandline.core.errors import CheckpointError, CorruptionError, FencedError, StrandlineError, UnavailableError
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef, Manifest

log = logging.getLogger(__name__)

_REMEMBERED = 100_000


class Holds:
    """Who reads checkpoints of a job that might be subsumed meanwhile: while anybody does, none is.

    One for all runs of the job in this process: another run may take the place of the one that took the checkpoint.
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    @property
    def are_held(self) -> bool:
        """Whether anybody reads one."""
        return self._count > 0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._count -= 1


@dataclass
class Retention:
    """What the owner of a claim knows of the job's files, and may delete. Called by one thread at a time.

    Where it is wanted, invariants.py looks before each publication and each deletion, and raises CorruptionError.
    """

    _jobdir: JobDirectory
    _claim: Claim
    _retain: int
    confirmed: Manifest | None
    """The newest published manifest; at first the restored one."""
    _holds: Holds
    _clock: Clock

    def __post_init__(self) -> None:
        self._verify = invariants.wanted()
        self._registry = SharedFiles()
        self._registry_is_full = False
        self._newest_lacks_files = False
        self._has_marked = self.confirmed is not None  # What a base names needs no record of its own.
        self._abandoned: dict[str, None] = {}  # ordered, so that the oldest can be forgotten
        self._garbage: set[str] = set()
        self._doubtful: dict[CheckpointId, list[FileRef]] = {}
        self._pins = Pins(self._jobdir, self._clock)
        self._pinned: set[str] = set()
        """What other processes read, and nobody else needs: it goes with a later checkpoint."""

    @property
    def oldest_live(self) -> CheckpointId | None:
        """The oldest checkpoint that a restore can find; None while that is not known."""
        if not self._registry_is_full or self._doubtful:
            return None
        return min(self._registry.checkpoints, default=None)

    def new_bytes(self, files: Sequence[FileRef]) -> int:
        """Return how many bytes a checkpoint of these files adds to the confirmed one."""
        known = self._confirmed_paths()
        new = {f.path: f.size for f in files if f.path and f.path not in known}
        return sum(new.values()) + sum(f.size for f in files if f.inline is not None)

    def _confirmed_paths(self) -> set[str]:
        return {f.path for f in self.confirmed.stored()} if self.confirmed else set()

    def check(self, manifest: Manifest) -> None:
        """Raise CheckpointError if a checkpoint references what it must not, or what is not there."""
        if self._newest_lacks_files:
            self._fill_registry()
        new = self._new_files(manifest)
        for file, problem in zip(new, in_parallel(lambda file: look_at(self._jobdir, file), new), strict=True):
            if problem:
                raise CheckpointError(
                    f"checkpoint {manifest.checkpoint}: {self._jobdir.url}/{file.path} ('{file.name}'): {problem}: it "
                    "was uploaded, and is not there",
                    hint="the storage has lost or cut off a file; nothing was published",
                )
        if self._verify:
            invariants.check_publication(self._jobdir, manifest)

    def _new_files(self, manifest: Manifest) -> list[FileRef]:
        """Return the files that this checkpoint has uploaded; refuse one that it may not reference."""
        known = self._confirmed_paths()
        new: dict[str, FileRef] = {}
        for file in manifest.files():
            if file.inline is not None or file.path in known:
                continue
            if not file.path or file.path in self._abandoned or file.path in self._registry.live:
                raise CheckpointError(
                    f"checkpoint {manifest.checkpoint} references {file.path!r} ('{file.name}'), which neither it nor "
                    f"the last confirmed checkpoint uploaded: publishing it would be unsafe"
                )
            new[file.path] = file
        return list(new.values())

    def confirm(self, manifest: Manifest) -> None:
        """Take a checkpoint that is published for the newest: later ones may reference its files."""
        self._registry.complete(manifest)
        self.confirmed = manifest
        if not self._has_marked:
            # Before sinks show anything: a job that finds this and no checkpoint does not begin empty.
            with contextlib.suppress(UnavailableError):
                mark_published(self._jobdir, manifest)
                self._has_marked = True

    def clean(self) -> bool:
        """Delete what late reports, failed checkpoints and earlier refusals have left; return as `delete_due` does."""
        return not (self._garbage or self._overdue() or self._settled()) or self.delete_due()

    def _overdue(self) -> list[CheckpointId]:
        return [] if self._holds.are_held else self._registry.checkpoints[: -self._retain]

    def _settled(self) -> list[CheckpointId]:
        """Return the checkpoints in doubt that are not the newest any more, whether they are there or not."""
        newest = self.confirmed.checkpoint if self.confirmed else 0
        return [checkpoint for checkpoint in self._doubtful if checkpoint < newest]

    def delete_due(self) -> bool:
        """Delete manifests beyond `retain`, then garbage; False if storage refused and something remains.

        Raises FencedError, and CorruptionError if an invariant is broken that is verified. A newest checkpoint that
        lacks a file is warned of: nothing is deleted, and nothing published, until it is whole again.
        """
        try:
            self._fill_registry()
            if self._verify:
                self._verify_deletion()
            # Right before: somebody may have the job go back to what is to be deleted.
            self._claim.check()
            for checkpoint in self._settled():
                self._jobdir.delete([manifest_path(checkpoint)])
                self.discard(self._doubtful.pop(checkpoint))
            for checkpoint in self._overdue():
                self._jobdir.delete([manifest_path(checkpoint)])
                hit("checkpoint.subsume.manifest_deleted")
                self._garbage.update(self._registry.drop(checkpoint))
            self._garbage -= self._registry.live.keys()
            self._garbage |= self._pinned
            if self._garbage:
                # After the manifests are deleted: pins.py says why.
                self._pinned = self._garbage & self._pins.files()
            self._jobdir.delete(sorted(self._garbage - self._pinned))
            self._garbage.clear()
        except (FencedError, CorruptionError):
            raise
        except StrandlineError:
            return False
        return True

    def _verify_deletion(self) -> None:
        overdue, settled = self._overdue(), self._settled()
        staying = [self._registry.files_of(i) for i in self._registry.checkpoints if i not in overdue]
        files = self._garbage.union(*map(self._registry.files_of, overdue))
        files.update(f.path for i in settled for f in self._doubtful[i] if f.path)
        try:
            invariants.check_deletion(self._jobdir, [*overdue, *settled], files.difference(*staying))
        except CorruptionError:
            # A newer driver may have deleted while this one looked.
            self._claim.check()
            raise

    def _fill_registry(self) -> None:
        """Learn, once, which other checkpoints storage holds, and that the newest is there with every file.

        Files that are taken over from the restored checkpoint are not looked at when they are published: an older
        driver, a late collection or somebody's hand may have deleted them. Here a listing is at hand.
        """
        if self._registry_is_full:
            return
        catalog = read_catalog(self._jobdir)
        if self.confirmed is not None:
            newest = self.confirmed.checkpoint
            lacks = lacking(self._jobdir, catalog.missing(self.confirmed))
            problems: Iterable[str] = (f"{file.path}: {problem}" for file, problem in lacks)
            if newest not in catalog.manifests:
                problems = [f"{manifest_path(newest)}: {catalog.damaged.get(newest, 'missing')}"]
            for problem in problems:
                # A newer driver subsumes what this one holds for the newest: that is no damage.
                self._claim.check()
                error = CheckpointError(
                    f"{self._jobdir.url}/{problem}, but checkpoint {newest} is the newest: nothing is deleted, and no "
                    "other is published",
                    hint=f"`strandline snapshots verify {self._jobdir.url}/chk-{newest}` names all that is wrong in it",
                )
                if not self._newest_lacks_files:
                    # Storage may be away for a moment, with all of it. The state of the job that runs is whole.
                    log.warning("%s", error)
                    self._newest_lacks_files = True
                raise error
            # Of those that nobody can judge, the older ones end like every older one.
            unknown = [catalog.manifests[i] for i in catalog.unknown if i < newest]
            for manifest in [*catalog.live.values(), *unknown]:
                if manifest.checkpoint not in self._doubtful:
                    self._registry.complete(manifest)
        self._registry_is_full, self._newest_lacks_files = True, False

    def abandon(self, checkpoint: CheckpointId, files: Sequence[FileRef], in_doubt: bool) -> None:
        """Remember an unpublished checkpoint's uploads for deletion; never raises."""
        if in_doubt:
            self._doubtful[checkpoint] = list(files)
        self.discard(files)

    def discard(self, files: Iterable[FileRef]) -> None:
        """Remember files for deletion, unless a published checkpoint, or one in doubt, needs them; never raises."""
        paths = {f.path for f in files if f.path} - self._confirmed_paths() - self._registry.live.keys()
        self._abandoned.update(dict.fromkeys(paths))
        while len(self._abandoned) > _REMEMBERED:
            del self._abandoned[next(iter(self._abandoned))]
        self._garbage |= paths - {f.path for doubtful in self._doubtful.values() for f in doubtful}
