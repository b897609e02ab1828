"""Retention of checkpoints: checks the files that a new one references, and deletes those of old and failed ones.

A manifest is in doubt when storage did not confirm its write: it may exist, or appear later. As long as it could be the
job's newest, the next driver may restore it, so it stays with all its files, and the next driver decides. No later
checkpoint references its files, and no earlier one is published after it. Once a later one is published, it is deleted
like every older one.

A checkpoint in flight may reference files of every checkpoint that was the newest since its trigger: these stay, beyond
`retain`, until it has ended, and also while it is in doubt.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from strandline.checkpoint import invariants
from strandline.checkpoint.catalog import confirm_missing, find_problem, mark_published, read_catalog
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.parallel import in_parallel
from strandline.checkpoint.pins import Pins
from strandline.core.clock import Clock
from strandline.core.errors import CheckpointError, CorruptionError, FencedError, StrandlineError, UnavailableError
from strandline.core.failpoints import hit
from strandline.core.ids import CheckpointId
from strandline.format.manifest import FileRef, Manifest

log = logging.getLogger(__name__)

_REMEMBERED = 100_000
_LATE_MS = 600_000
"""How long after its deletion a manifest in doubt may still appear."""


class Holds:
    """A count of readers of the job's checkpoints: while there are any, no checkpoint is subsumed.

    All runs of the job in this process share it, since a run may be replaced while its checkpoint is read.
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    @property
    def is_active(self) -> bool:
        """Whether there are readers."""
        return self._count > 0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._count -= 1


@dataclass(frozen=True, slots=True)
class _Paths:
    """The files of a published checkpoint, and those that are uploaded for a later one."""

    stored: frozenset[str]
    planned: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """Those that must stay as long as the checkpoint."""
        return self.stored | self.planned


@dataclass(frozen=True, slots=True)
class _Doubtful:
    """A checkpoint in doubt."""

    base: CheckpointId
    """The oldest checkpoint on which it may build."""
    files: list[FileRef]


@dataclass
class Retention:
    """The job's files as the owner of the claim knows them. Called by one thread at a time.

    In tests, invariants.py checks each publication and each deletion, and raises CorruptionError.
    """

    _jobdir: JobDirectory
    _claim: Claim
    _retain: int
    confirmed: Manifest | None
    """The newest published manifest; at first the restored one."""
    _holds: Holds
    _clock: Clock
    _oldest_base: Callable[[], CheckpointId | None] = lambda: None
    """Returns the oldest checkpoint on which one in flight may build; None if none is in flight."""

    def __post_init__(self) -> None:
        self._verify = invariants.is_verifying()
        self._live: dict[CheckpointId, _Paths] = {}
        """The files of published checkpoints; all of them since `_read_others`."""
        if self.confirmed is not None:
            self._add(self.confirmed)
        self._has_read_others = False
        self._newest_lacks_files = False
        self._is_refused = False
        """Whether storage has refused the last deletion: a warning names only the first in a row."""
        self._has_marked = self.confirmed is not None  # A checkpoint that is a base needs no such record.
        self._abandoned: dict[str, None] = {}  # ordered, to drop the oldest
        self._garbage: set[str] = set()
        self._doubtful: dict[CheckpointId, _Doubtful] = {}
        self._late: dict[CheckpointId, float] = {}
        """Checkpoints that were in doubt, each with the time until which its manifest may still appear."""
        self._pins = Pins(self._jobdir, self._clock)
        self._pinned: set[str] = set()
        """Garbage that pins keep; a later checkpoint deletes it."""

    @property
    def oldest_live(self) -> CheckpointId | None:
        """The oldest checkpoint that a restore can find; None while that is not known."""
        if not self._has_read_others or self._doubtful:
            return None
        return min(self._live, default=None)

    def new_bytes(self, files: Sequence[FileRef], base: CheckpointId) -> int:
        """Return the bytes that a checkpoint of these files adds to those on which it may build, from `base` on."""
        known = self._stored_paths(base)
        new = {f.path: f.size for f in files if f.path and f.path not in known}
        return sum(new.values()) + sum(f.size for f in files if f.inline is not None)

    def _add(self, manifest: Manifest) -> None:
        stored = frozenset(file.path for file in manifest.stored())
        self._live[manifest.checkpoint] = _Paths(stored, frozenset(manifest.planned()))

    def _live_files(self) -> set[str]:
        return set().union(*(paths.all for paths in self._live.values()))

    def _stored_paths(self, base: CheckpointId) -> set[str]:
        return set().union(*(paths.stored for i, paths in self._live.items() if i >= base))

    def _planned_paths(self, base: CheckpointId) -> set[str]:
        return set().union(*(paths.planned for i, paths in self._live.items() if i >= base))

    def check(self, manifest: Manifest, base: CheckpointId, others: Collection[str] = ()) -> None:
        """Raise CheckpointError if a checkpoint references a file that is missing or that it may not reference.

        It may build on checkpoints from `base` on. `others` are files of others in flight.
        """
        if self._newest_lacks_files:
            self._read_others()
        new = self._new_files(manifest, base, others)
        for file, problem in zip(new, in_parallel(lambda file: find_problem(self._jobdir, file), new), strict=True):
            if problem:
                raise CheckpointError(
                    f"checkpoint {manifest.checkpoint}: {self._jobdir.url}/{file.path} ('{file.name}'): {problem} "
                    "after its upload",
                    hint="the storage has lost or truncated a file; nothing was published",
                )
        if self._verify:
            invariants.check_publication(self._jobdir, manifest)

    def _new_files(self, manifest: Manifest, base: CheckpointId, others: Collection[str]) -> list[FileRef]:
        """Return the files that this checkpoint uploaded; raise CheckpointError for one that it may not reference."""
        known, planned = self._stored_paths(base), self._planned_paths(base)
        refused = self._abandoned.keys() | (self._live_files().union(others) - planned)
        new: dict[str, FileRef] = {}
        for file in manifest.files():
            if file.inline is not None or file.path in known:
                continue
            if not file.path or file.path in refused:
                raise CheckpointError(
                    f"checkpoint {manifest.checkpoint} references {file.path!r} ('{file.name}'), which neither it nor "
                    f"a confirmed checkpoint on which it may build uploaded or planned: publishing it would be unsafe"
                )
            new[file.path] = file
        return list(new.values())

    def confirm(self, manifest: Manifest) -> None:
        """Make a published checkpoint the newest, whose files later ones may reference."""
        self._add(manifest)
        self.confirmed = manifest
        if not self._has_marked:
            # Before rows become visible: a job that finds this record and no checkpoint does not start empty.
            with contextlib.suppress(UnavailableError):
                mark_published(self._jobdir, manifest)
                self._has_marked = True

    def delete_planned(self) -> None:
        """Delete the files that were uploaded for later checkpoints. At the end of a run: no other run uses them."""
        planned = self.confirmed.planned() if self.confirmed else set()
        # A checkpoint in doubt may use them.
        if planned and not self._doubtful:
            self._claim.check()
            self._jobdir.delete(sorted(planned))

    def clean(self) -> bool:
        """Delete files of late reports, failed checkpoints and failed deletions; return as `delete_due` does."""
        return not (self._garbage or self._overdue() or self._settled()) or self.delete_due()

    def _overdue(self) -> list[CheckpointId]:
        held = [self._oldest_base(), *(doubtful.base for doubtful in self._doubtful.values())]
        base = min((each for each in held if each is not None), default=None)
        beyond = [] if self._holds.is_active else sorted(self._live)[: -self._retain]
        return [checkpoint for checkpoint in beyond if base is None or checkpoint < base]

    def _settled(self) -> list[CheckpointId]:
        """Return the checkpoints in doubt that are not the newest any more, existing or not."""
        newest = self.confirmed.checkpoint if self.confirmed else 0
        return [checkpoint for checkpoint in self._doubtful if checkpoint < newest]

    def delete_due(self) -> bool:
        """Delete manifests beyond `retain`, then garbage; False if storage refused and something remains.

        Raises FencedError, and CorruptionError if an invariant is broken that is verified. If the newest
        checkpoint lacks a file, log a warning; nothing is deleted or published until it is whole again. If storage
        refuses, log a warning, too: without the right to delete, all checkpoints stay.
        """
        try:
            self._read_others()
            if self._verify:
                self._verify_deletion()
            # Right before the deletion, since another driver may restore what it deletes.
            self._claim.check()
            now_ms = self._clock.monotonic_ms()
            self._late |= dict.fromkeys(settled := self._settled(), now_ms + _LATE_MS)
            # For a while with each checkpoint: storage may execute a write after the deletion.
            self._jobdir.delete(map(manifest_path, self._late))
            self._late = {checkpoint: until for checkpoint, until in self._late.items() if until > now_ms}
            for checkpoint in settled:
                self.discard(self._doubtful.pop(checkpoint).files)
            for checkpoint in self._overdue():
                self._jobdir.delete([manifest_path(checkpoint)])
                hit("checkpoint.subsume.manifest_deleted")
                self._garbage |= self._live.pop(checkpoint).all
            self._garbage -= self._live_files()
            self._garbage |= self._pinned
            if self._garbage:
                # After the deletion of manifests; see pins.py.
                self._pinned = self._garbage & self._pins.files()
            self._jobdir.delete(sorted(self._garbage - self._pinned))
            self._garbage.clear()
        except (FencedError, CorruptionError):
            raise
        except StrandlineError as error:
            if not (self._is_refused or self._newest_lacks_files):
                log.warning(
                    "job '%s': what no checkpoint needs any more is not deleted, and its files become more: %s",
                    self._jobdir.job, error,
                )  # fmt: skip
            self._is_refused = True
            return False
        self._is_refused = False
        return True

    def _verify_deletion(self) -> None:
        overdue, settled = self._overdue(), self._settled()
        staying = [paths.all for i, paths in self._live.items() if i not in overdue]
        files = self._garbage.union(*(self._live[i].all for i in overdue))
        files.update(f.path for i in settled for f in self._doubtful[i].files if f.path)
        try:
            invariants.check_deletion(self._jobdir, [*overdue, *settled, *self._late], files.difference(*staying))
        except CorruptionError:
            self._claim.check()  # A newer driver may have deleted files during the verification.
            raise

    def _read_others(self) -> None:
        """Read the other checkpoints from storage, once, and check that the newest has every file.

        A publication does not check files of the restored checkpoint, which an older driver, a late garbage collection
        or a user may have deleted. Here a listing is available.
        """
        if self._has_read_others:
            return
        catalog = read_catalog(self._jobdir)
        if self.confirmed is not None:
            newest = self.confirmed.checkpoint
            missing = confirm_missing(self._jobdir, catalog.missing(self.confirmed))
            problems: Iterable[str] = (f"{file.path}: {problem}" for file, problem in missing)
            if newest not in catalog.manifests:
                problems = [f"{manifest_path(newest)}: {catalog.damaged.get(newest, 'missing')}"]
            for problem in problems:
                # If a newer driver has subsumed this checkpoint, raise FencedError: nothing is damaged.
                self._claim.check()
                error = CheckpointError(
                    f"{self._jobdir.url}/{problem}, but checkpoint {newest} is the newest: nothing is deleted, and no "
                    "other is published",
                    hint=f"`strandline snapshots verify {self._jobdir.url}/chk-{newest}` names all that is wrong in it",
                )
                if not self._newest_lacks_files:
                    # Only warn: storage may be unavailable for a moment, and the running job has all its state.
                    log.warning("%s", error)
                    self._newest_lacks_files = True
                raise error
            # Older manifests that cannot be judged are subsumed like all older ones.
            unknown = [catalog.manifests[i] for i in catalog.unknown if i < newest]
            for manifest in [*catalog.live.values(), *unknown]:
                if manifest.checkpoint not in self._doubtful:
                    self._add(manifest)
        self._has_read_others, self._newest_lacks_files = True, False

    def abandon(
        self, checkpoint: CheckpointId, base: CheckpointId, files: Sequence[FileRef], *, in_doubt: bool
    ) -> None:
        """Mark the uploads of an unpublished checkpoint, which may build on `base`, for deletion; never raises."""
        if in_doubt:
            self._doubtful[checkpoint] = _Doubtful(base, list(files))
        self.discard(files)

    def discard(self, files: Iterable[FileRef]) -> None:
        """Mark files for deletion, unless a published checkpoint, or one in doubt, needs them; never raises."""
        paths = {f.path for f in files if f.path}
        if paths:
            paths -= self._live_files()
        self._abandoned.update(dict.fromkeys(paths))
        while len(self._abandoned) > _REMEMBERED:
            del self._abandoned[next(iter(self._abandoned))]
        self._garbage |= paths - {f.path for doubtful in self._doubtful.values() for f in doubtful.files}
