"""What a job starts from: its own newest checkpoint, a snapshot that somebody names, or nothing.

A snapshot is named again and again, since whoever looks after a job repeats its command: `--restore URL` restores it
once. From then on the job's records say that its history descends from it, and the job goes on from its own newest
checkpoint. Naming another snapshot than the last time restores that one.

Until its first own checkpoint, a job depends on what it restored: a restart restores the same again, and fails if it is
gone or another one. Nothing is ever written where a snapshot of somebody else lies, and nothing deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.chain import Restored, is_left
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.generation import Claim, claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.restore import Choice, choose
from strandline.core.clock import Clock
from strandline.core.errors import ConfigurationError, CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId, Generation
from strandline.format.manifest import Manifest
from strandline.snapshot.opened import Snapshot, find_snapshot, open_snapshot, plain_url

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """What a job starts from."""

    choice: Choice
    """What the job's own directory has: what was skipped there, and the number of the next checkpoint."""
    manifest: Manifest | None
    """What is restored; None: the job begins empty, unless `choice` has lost something."""
    folder: Folder
    """To which the paths of the manifest's files are relative."""
    restored: Restored | None = None
    """The snapshot, if it is one that somebody named: now, or before the job had a checkpoint of its own."""
    is_new: bool = False
    """True: it is restored on purpose, now, and what the job has beside its history becomes void."""
    is_own: bool = True
    """False: the snapshot is no checkpoint of this directory, so that no checkpoint may reference its files."""

    @property
    def confirmed(self) -> Manifest | None:
        """The checkpoint whose files the next one may reference."""
        return self.manifest if self.is_own else None

    @property
    def depends_on(self) -> str:
        """Where the snapshot is that the job needs until its first own checkpoint; "" if it needs none."""
        return "" if self.is_own or self.restored is None else self.restored.url

    def make_base(self, owned: Claim) -> None:
        """Record what this generation goes on from, as `Claim.set_base` does: before anything else is touched."""
        checkpoint = self.manifest.checkpoint if self.manifest is not None and self.is_own else None
        owned.set_base(checkpoint, self.restored if self.is_new else None)


def decide(
    jobdir: JobDirectory,
    wanted: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    claimed: bool = False,
    owned: Claim | None = None,
    exclude: frozenset[CheckpointId] = frozenset(),
    fsync: bool = True,
) -> Origin:
    """Say what the job starts from, touching nothing. `wanted` is the snapshot that somebody names, if any.

    With `owned`, the answer is prepared for `Origin.make_base`, which must follow. `options` are the storage's where
    the snapshot lies, `exclude` are own checkpoints that `fetch` found damaged. With `claimed`, a savepoint is the
    job's from now on (`claimed.py`). Raises what `open_snapshot` does, CorruptionError if the job needs a snapshot that
    is gone, and ConfigurationError for one that cannot be claimed.
    """
    choice = choose(jobdir, owned, exclude)
    if wanted is not None and _is_new(jobdir, choice, wanted):
        return _from_snapshot(jobdir, choice, open_snapshot(wanted, options, fsync=fsync), claimed)
    if wanted is not None and choice.manifest is not None and owned is not None:
        log.warning(
            "job '%s' goes on from its own checkpoint %d: it has restored %s before; give it another path to "
            "restore it once more",
            jobdir.job, choice.manifest.checkpoint, plain_url(wanted),
        )  # fmt: skip
    if choice.manifest is None and choice.foreign is not None:
        again = _open_again(jobdir, choice.foreign, options, fsync)
        return Origin(choice, again.manifest, again.folder, choice.foreign, is_own=False)
    return Origin(choice, choice.manifest, jobdir)


def _is_new(jobdir: JobDirectory, choice: Choice, wanted: str) -> bool:
    """Whether the job's history does not descend from the snapshot that somebody names."""
    asked = plain_url(wanted)
    if not choice.is_history_known:
        raise CorruptionError(
            f"job '{jobdir.job}': whether it has restored {asked} before is unknown: {choice.damaged_bases[0]}",
            hint="start it without a snapshot to restore: it goes on from its own newest checkpoint",
        )
    return choice.restored is None or choice.restored.asked != asked


def _from_snapshot(jobdir: JobDirectory, choice: Choice, snapshot: Snapshot, claimed: bool) -> Origin:
    own = snapshot.lies_in(jobdir)
    if claimed and not own and snapshot.kind == "checkpoint":
        raise ConfigurationError(
            f"{snapshot.url}: a checkpoint of job '{snapshot.manifest.job}' cannot be claimed: other checkpoints "
            "may share its files, and a driver of that job may come back",
            hint="restore it with claim=False, and remove that job's folder yourself once this job stands on its own; "
            "or take a savepoint, and claim that",
        )
    if not own and is_left(jobdir, read_catalog(jobdir).chain, snapshot.manifest):
        raise ConfigurationError(
            f"{snapshot.url}: job '{jobdir.job}' has gone back behind this snapshot, or on beside it, since it was "
            f"taken: what its sinks had shown up to epoch {snapshot.manifest.epoch} was taken back, and cannot be "
            "shown again",
            hint="restore it as another job: with another name or checkpoint directory, and sinks of its own",
        )
    restored = snapshot.restored(claimed=claimed and not own)
    folder = jobdir if own else snapshot.folder
    return Origin(choice, snapshot.manifest, folder, restored, is_new=True, is_own=own)


def _open_again(jobdir: JobDirectory, before: Restored, options: Mapping[str, str] | None, fsync: bool) -> Snapshot:
    """Open a snapshot that the job restored before, and needs until it has a checkpoint of its own."""
    try:
        snapshot = find_snapshot(before.url, options, fsync=fsync)
        if snapshot.sha256 != before.sha256:
            raise CorruptionError(f"{snapshot.url}: this is another snapshot")
        # It was not void when it was chosen: what its job has done since is that job's affair, while the files stay.
        snapshot = replace(snapshot, refused="")
        snapshot.check()
    except (NotFoundError, CorruptionError) as error:
        raise CorruptionError(
            f"job '{jobdir.job}' restored {before.url}, has no checkpoint of its own yet, and cannot restore it again: "
            f"{error.message}",
            hint="bring the snapshot back, or name another one to restore; to begin empty, use another job name or "
            "checkpoint directory",
        ) from error
    return snapshot


def rollback(jobdir: JobDirectory, checkpoint: CheckpointId, clock: Clock) -> Generation:
    """Have a job that is stopped go on from an older checkpoint of its own when it starts next; return the claim.

    What it published later is void from then on, and sinks take back what they have shown since, when the job starts.
    A driver that still runs is fenced. Raises NotFoundError if the job has no such checkpoint that can be restored.
    """
    return go_back(jobdir, checkpoint, clock).generation


def go_back(jobdir: JobDirectory, checkpoint: CheckpointId, clock: Clock, previous: Claim | None = None) -> Claim:
    """Do what `rollback` does, for a driver that has the `previous` claim and goes on with the one that it gets."""
    check_own(jobdir, checkpoint)
    owned = claim(jobdir, clock, previous)
    choose(jobdir, owned)
    check_own(jobdir, checkpoint)
    owned.set_base(checkpoint, back=True)
    return owned


def check_own(jobdir: JobDirectory, checkpoint: CheckpointId) -> None:
    """Raise NotFoundError if a job has no such checkpoint that can be restored."""
    catalog = read_catalog(jobdir)
    whole = [i for i, manifest in catalog.live.items() if not catalog.missing(manifest)]
    if checkpoint in whole:
        return
    why = (
        catalog.void.get(checkpoint)
        or catalog.unknown.get(checkpoint)
        or catalog.damaged.get(checkpoint)
        or ("it misses files" if checkpoint in catalog.live else "there is none of this number")
    )
    raise NotFoundError(
        f"{jobdir.url}/{manifest_path(checkpoint)}: the job cannot go back to checkpoint {checkpoint}: {why}",
        hint=f"it can go back to {', '.join(map(str, whole))}" if whole else "it has none that can be restored",
    )
