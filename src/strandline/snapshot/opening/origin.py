"""The origin of a job's start: its own newest checkpoint, a snapshot that the user names, or nothing.

Users repeat the command of a job, so that `--restore URL` restores a snapshot once. From then on, the job's records
name it as the job's ancestor, and the job continues from its own newest checkpoint. Another URL restores that snapshot.
The records keep all of them: a job does not restore an earlier snapshot again, since a stale command would then discard
the job's later work. To restore one again takes a new name (`again`), which works once, too.

Until its first own checkpoint, a job depends on the snapshot that it restored. A restart restores the same one again,
and fails if it is gone or replaced. An earlier snapshot can be restored then, since no work is lost. The job writes and
deletes nothing in the folder of another job's snapshot, unless it claims the snapshot (`owner.py`).

A job's checkpoints become void when it goes back, or over to another snapshot. So it reads every byte of the
replacement before (`verify`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from strandline.checkpoint.catalog import Catalog, read_catalog
from strandline.checkpoint.chain import Restored, is_left
from strandline.checkpoint.check import verify_files
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.generation import Claim, claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.checkpoint.restore import Choice, choose
from strandline.core.clock import Clock
from strandline.core.errors import BEGIN_ANEW, ConfigurationError, CorruptionError, NotFoundError
from strandline.core.ids import CheckpointId, Generation
from strandline.format.manifest import Manifest
from strandline.snapshot.opening.owner import check_owner, settle_owner
from strandline.snapshot.opening.snapshot import Snapshot, find_snapshot, open_snapshot, plain_url

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """The state from which a job starts."""

    choice: Choice
    """The checkpoints of the job's own directory: the newest one, skipped ones, and the number of the next."""
    manifest: Manifest | None
    """The manifest to restore; None if the job begins empty, unless `choice` has lost something."""
    folder: Folder
    """The folder to which paths of the manifest's files are relative."""
    restored: Restored | None = None
    """The snapshot that the user named: now, or before the job had a checkpoint of its own."""
    is_new: bool = False
    """Whether the user names it now, so that the job's checkpoints outside of its history become void."""
    is_own: bool = True
    """Whether it is a checkpoint of the job's directory, whose files the next checkpoint may reference."""

    @property
    def confirmed(self) -> Manifest | None:
        """The checkpoint whose files the next one may reference."""
        return self.manifest if self.is_own else None

    @property
    def is_fork(self) -> bool:
        """Whether the job begins a life of its own: output that sinks staged or published belongs to another life."""
        return self.manifest is not None and not self.is_own and self.manifest.life != self.choice.life

    @property
    def life(self) -> str:
        """The life of the job that continues; "" if a new one begins."""
        if self.manifest is not None and self.is_own:
            return self.manifest.life
        return "" if self.is_fork and self.is_new else self.choice.life

    def text(self, where: str) -> str:
        """Return where the job begins, as text that follows its name; `where` is the job's folder."""
        if self.manifest is None:
            return f"begins in {where} once more, without a checkpoint" if self.life else f"starts afresh in {where}"
        if self.is_own:
            return f"goes {'back to' if self.is_new else 'on from'} checkpoint {self.manifest.checkpoint} of {where}"
        kind = self.restored.kind if self.restored is not None else "snapshot"
        return f"begins in {where} with the {kind} {self.url} of job '{self.manifest.job}'"

    @property
    def url(self) -> str:
        """The url of the snapshot to restore."""
        if self.manifest is None or self.depends_on:
            return self.depends_on
        return f"{self.folder.url}/{manifest_path(self.manifest.checkpoint).rpartition('/')[0]}"

    @property
    def depends_on(self) -> str:
        """The url of the snapshot that the job needs until its first own checkpoint; "" if it needs none."""
        return "" if self.is_own or self.restored is None else self.restored.url

    def make_base(self, jobdir: JobDirectory, owned: Claim) -> None:
        """Record the base of this generation by `Claim.set_base`, before any other change.

        A savepoint that the job claims belongs to the job before that. Raises as `settle_owner` does.
        """
        if self.is_new and self.restored is not None and self.restored.kind == "savepoint":
            settle_owner(self.folder, jobdir, claimed=self.restored.claimed)
        checkpoint = self.manifest.checkpoint if self.manifest is not None and self.is_own else None
        owned.set_base(checkpoint, self.restored if self.is_new else None)


def decide(
    jobdir: JobDirectory,
    wanted: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    claimed: bool = False,
    again: str = "",
    owned: Claim | None = None,
    exclude: frozenset[CheckpointId] = frozenset(),
    fsync: bool = True,
) -> Origin:
    """Return the origin of a job's start, without changing anything. `wanted` is the snapshot that the user names.

    With `owned`, `Origin.make_base` must follow. `options` are those of the snapshot's storage, `exclude` has own
    checkpoints that `fetch` found damaged. With `claimed`, a savepoint belongs to the job from now on (`owner.py`). A
    new name `again` restores a snapshot that was restored before. Raises what `open_snapshot` does, CorruptionError if
    the job needs a snapshot that is gone, ConfigurationError for a snapshot that cannot be claimed, and ConflictError
    for one that another job has claimed.
    """
    choice = choose(jobdir, owned, exclude)
    if wanted is not None and _is_new(jobdir, choice, wanted, again):
        return _from_snapshot(jobdir, choice, open_snapshot(wanted, options, fsync=fsync), claimed, again)
    if wanted is not None and choice.manifest is not None and owned is not None and not owned.is_again:
        log.warning(
            "job '%s' goes on from its own checkpoint %d: it has restored %s before%s; to restore it once more, start "
            "it with again='…' (--again …), a name that was not given before",
            jobdir.job, choice.manifest.checkpoint, plain_url(wanted), f", again as {again!r}" if again else "",
        )  # fmt: skip
    if choice.manifest is None and choice.foreign is not None:
        needed = _open_again(jobdir, choice.foreign, options, fsync)
        return Origin(choice, needed.manifest, needed.folder, choice.foreign, is_own=False)
    return Origin(choice, choice.manifest, jobdir)


def _is_new(jobdir: JobDirectory, choice: Choice, wanted: str, again: str) -> bool:
    """Whether to restore the snapshot that the user names: not if the job restored it before."""
    requested_url = plain_url(wanted)
    if not choice.is_history_known:
        raise CorruptionError(
            f"job '{jobdir.job}': whether it has restored {requested_url} before is unknown: {choice.damaged_bases[0]}",
            hint="start it without a snapshot to restore: it goes on from its own newest checkpoint",
        )
    if choice.restored is None:
        return True
    before = choice.restored.commands
    # Without a checkpoint of its own, the job has no work to lose.
    return (requested_url, again) not in (before if choice.manifest is not None else before[-1:])


def _from_snapshot(jobdir: JobDirectory, choice: Choice, snapshot: Snapshot, claimed: bool, again: str) -> Origin:
    is_own = snapshot.lies_in(jobdir)
    if snapshot.kind == "savepoint":
        check_owner(snapshot.folder, jobdir)
    if claimed and not is_own and snapshot.kind == "checkpoint":
        raise ConfigurationError(
            f"{snapshot.url}: a checkpoint of job '{snapshot.manifest.job}' cannot be claimed: other checkpoints "
            "may share its files, and a driver of that job may come back",
            hint="restore it with claim=False, and remove that job's folder yourself once this job stands on its own; "
            "or take a savepoint, and claim that",
        )
    if not is_own and is_left(jobdir, read_catalog(jobdir).chain, snapshot.manifest):
        raise ConfigurationError(
            f"{snapshot.url}: job '{jobdir.job}' has gone back behind this snapshot, or on beside it, since it was "
            f"taken: what its sinks had shown up to epoch {snapshot.manifest.epoch} was taken back, and cannot be "
            "shown again",
            hint="restore it as another job: with another name or checkpoint directory, and sinks of its own",
        )
    restored = snapshot.restored(choice.restored, claimed=claimed and not is_own, again=again)
    folder = jobdir if is_own else snapshot.folder
    return Origin(choice, snapshot.manifest, folder, restored, is_new=True, is_own=is_own)


def _open_again(jobdir: JobDirectory, before: Restored, options: Mapping[str, str] | None, fsync: bool) -> Snapshot:
    """Open the snapshot that the job restored, and needs until it has a checkpoint of its own."""
    try:
        snapshot = find_snapshot(before.url, options, fsync=fsync)
        if snapshot.sha256 != before.sha256:
            raise CorruptionError(f"{snapshot.url}: this is another snapshot")
        # It was not void when the user named it. It is usable while its files stay, even if its job went back since.
        snapshot = replace(snapshot, refused="")
        snapshot.check()
    except (NotFoundError, CorruptionError) as error:
        raise CorruptionError(
            f"job '{jobdir.job}' restored {before.url}, has no checkpoint of its own yet, and cannot restore it again: "
            f"{error.message}",
            hint=f"bring the snapshot back, or name another one to restore; or {BEGIN_ANEW}",
        ) from error
    return snapshot


def verify(jobdir: JobDirectory, origin: Origin, before: Origin | None = None) -> None:
    """Read every byte of a snapshot that replaces the job's own checkpoints, if there are any.

    Call it before `Origin.make_base`. `before` is an origin that was verified, and is not read again. Raises
    CorruptionError if a file is missing or damaged, before any checkpoint is void.
    """
    newest, chosen = origin.choice.manifest, origin.manifest
    if not origin.is_new or newest is None or chosen is None:
        return
    if (
        before is not None
        and before.restored is not None
        and origin.restored is not None
        and (before.restored.sha256 == origin.restored.sha256)
    ):
        return
    if not (origin.is_own and chosen.checkpoint == newest.checkpoint):
        _read(origin.folder, chosen, f"{origin.url} is not restored", f"its own checkpoint {newest.checkpoint}")


def _read(folder: Folder, manifest: Manifest, what: str, still: str) -> None:
    files = manifest.files()
    problems = verify_files(folder, files)
    if problems:
        # Read damaged files again, as `fetch` does: the transfer may have damaged them.
        damaged = {problem.path for problem in problems}
        problems = verify_files(folder, [file for file in files if (file.path or file.name) in damaged])
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise CorruptionError(
            f"{what}: {folder.url}/{problems[0].path}: {problems[0].problem}{more}",
            hint=f"nothing was changed: the job still has {still}; bring the file back, or choose another snapshot",
        )


def rollback(jobdir: JobDirectory, checkpoint: CheckpointId, clock: Clock) -> Generation:
    """Let a stopped job continue from an older checkpoint of its own at its next start; return the new generation.

    Later checkpoints are void from then on, and sinks revoke later output when the job starts. A driver that still runs
    is fenced. All bytes of the checkpoint are read before. Raises NotFoundError if the job cannot restore such a
    checkpoint, and CorruptionError if it is damaged.
    """
    verify_own(jobdir, checkpoint)
    return go_back(jobdir, checkpoint, clock).generation


def go_back(jobdir: JobDirectory, checkpoint: CheckpointId, clock: Clock, previous: Claim | None = None) -> Claim:
    """Do what `rollback` does for a running driver, which replaces its `previous` claim with the returned one.

    The caller has called `verify_own`.
    """
    check_own(jobdir, checkpoint)
    owned = claim(jobdir, clock, previous)
    choose(jobdir, owned)
    check_own(jobdir, checkpoint)
    owned.set_base(checkpoint, back=True)
    return owned


def verify_own(jobdir: JobDirectory, checkpoint: CheckpointId) -> Manifest:
    """Read every byte of a checkpoint before a job goes back to it; return its manifest. Raises as `rollback` does."""
    catalog = check_own(jobdir, checkpoint)
    newest = max(catalog.live)
    if checkpoint != newest:
        what = f"job '{jobdir.job}' does not go back to checkpoint {checkpoint}"
        _read(jobdir, catalog.live[checkpoint], what, f"checkpoint {newest}")
    return catalog.live[checkpoint]


def check_own(jobdir: JobDirectory, checkpoint: CheckpointId) -> Catalog:
    """Raise NotFoundError if a job cannot restore such a checkpoint; return the job's catalog."""
    catalog = read_catalog(jobdir)
    whole = [i for i, manifest in catalog.live.items() if not catalog.missing(manifest)]
    if checkpoint in whole:
        return catalog
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
