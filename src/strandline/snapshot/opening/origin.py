"""What a job starts from: its own newest checkpoint, a snapshot that somebody names, or nothing.

A snapshot is named again and again, since whoever looks after a job repeats its command: `--restore URL` restores it
once. From then on the job's records say that its history descends from it, and the job goes on from its own newest
checkpoint. Naming another snapshot restores that one. The records remember all of them: one that was restored before
another one is not restored once more when it is named, because what the job did since would be lost to a command that
somebody has left somewhere. That takes a name of its own (`again`), which counts once, too.

Until its first own checkpoint, a job depends on what it restored: a restart restores the same again, and fails if it is
gone or another one. Then nothing is lost if an earlier one is named, and it is restored. Where a snapshot of another
job lies, nothing is written and nothing deleted, unless it is claimed (`owner.py`).

What the job has becomes void when it goes back, or over to another snapshot. So every byte of what it is to have
instead is read before (`verify`).
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
    def is_fork(self) -> bool:
        """Whether the job begins a life of its own with it: what sinks have staged and shown stays another life's."""
        return self.manifest is not None and not self.is_own and self.manifest.life != self.choice.life

    @property
    def life(self) -> str:
        """Names the job's life that goes on; "" if a new one begins."""
        if self.manifest is not None and self.is_own:
            return self.manifest.life
        return "" if self.is_fork and self.is_new else self.choice.life

    def text(self, where: str) -> str:
        """Return where the job begins, in words behind its name; `where` is its own folder."""
        if self.manifest is None:
            return f"begins in {where} once more, without a checkpoint" if self.life else f"starts afresh in {where}"
        if self.is_own:
            return f"goes {'back to' if self.is_new else 'on from'} checkpoint {self.manifest.checkpoint} of {where}"
        kind = self.restored.kind if self.restored is not None else "snapshot"
        return f"begins in {where} with the {kind} {self.url} of job '{self.manifest.job}'"

    @property
    def url(self) -> str:
        """Where the snapshot is that is restored."""
        if self.manifest is None or self.depends_on:
            return self.depends_on
        return f"{self.folder.url}/{manifest_path(self.manifest.checkpoint).rpartition('/')[0]}"

    @property
    def depends_on(self) -> str:
        """Where the snapshot is that the job needs until its first own checkpoint; "" if it needs none."""
        return "" if self.is_own or self.restored is None else self.restored.url

    def make_base(self, jobdir: JobDirectory, owned: Claim) -> None:
        """Record what this generation goes on from, as `Claim.set_base` does: before anything else is touched.

        A savepoint that is claimed is the job's before that. Raises as `settle_owner` does.
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
    """Say what the job starts from, touching nothing. `wanted` is the snapshot that somebody names, if any.

    With `owned`, the answer is prepared for `Origin.make_base`, which must follow. `options` are the storage's where
    the snapshot lies, `exclude` are own checkpoints that `fetch` found damaged. With `claimed`, a savepoint is the
    job's from now on (`claimed.py`). A snapshot that was restored before is restored once more under a name, `again`,
    that it was not restored under. Raises what `open_snapshot` does, CorruptionError if the job needs a snapshot that
    is gone, ConfigurationError for one that cannot be claimed, and ConflictError for one that another job has claimed.
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
    """Whether a snapshot that somebody names is to be restored, because it was not yet."""
    asked = plain_url(wanted)
    if not choice.is_history_known:
        raise CorruptionError(
            f"job '{jobdir.job}': whether it has restored {asked} before is unknown: {choice.damaged_bases[0]}",
            hint="start it without a snapshot to restore: it goes on from its own newest checkpoint",
        )
    if choice.restored is None:
        return True
    # As they are written today: an earlier release told s3a:// and s3:// apart.
    before = [(plain_url(url), name) for url, name in choice.restored.commands]
    # Without a checkpoint of its own, the job has done nothing since that could be lost.
    return (asked, again) not in (before if choice.manifest is not None else before[-1:])


def _from_snapshot(jobdir: JobDirectory, choice: Choice, snapshot: Snapshot, claimed: bool, again: str) -> Origin:
    own = snapshot.lies_in(jobdir)
    if snapshot.kind == "savepoint":
        check_owner(snapshot.folder, jobdir)
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
    restored = snapshot.restored(choice.restored, claimed=claimed and not own, again=again)
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
            hint=f"bring the snapshot back, or name another one to restore; or {BEGIN_ANEW}",
        ) from error
    return snapshot


def verify(jobdir: JobDirectory, origin: Origin, before: Origin | None = None) -> None:
    """Read every byte of a snapshot that is to take the place of what the job has, if it has anything.

    To be called before `Origin.make_base`. `before` is an answer that was verified: the same is not read again. Raises
    CorruptionError if a file is missing or damaged: nothing is void then.
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
        # Once more, as `fetch` does: it may have been on the way.
        damaged = {problem.path for problem in problems}
        problems = verify_files(folder, [file for file in files if (file.path or file.name) in damaged])
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise CorruptionError(
            f"{what}: {folder.url}/{problems[0].path}: {problems[0].problem}{more}",
            hint=f"nothing was changed: the job still has {still}; bring the file back, or choose another snapshot",
        )


def rollback(jobdir: JobDirectory, checkpoint: CheckpointId, clock: Clock) -> Generation:
    """Have a job that is stopped go on from an older checkpoint of its own when it starts next; return the claim.

    What it published later is void from then on, and sinks take back what they have shown since, when the job starts.
    A driver that still runs is fenced. Every byte is read before. Raises NotFoundError if the job has no such
    checkpoint that can be restored, and CorruptionError if its bytes are damaged.
    """
    verify_own(jobdir, checkpoint)
    return go_back(jobdir, checkpoint, clock).generation


def go_back(jobdir: JobDirectory, checkpoint: CheckpointId, clock: Clock, previous: Claim | None = None) -> Claim:
    """Do what `rollback` does, for a driver that has the `previous` claim and goes on with the one that it gets.

    It has called `verify_own`.
    """
    check_own(jobdir, checkpoint)
    owned = claim(jobdir, clock, previous)
    choose(jobdir, owned)
    check_own(jobdir, checkpoint)
    owned.set_base(checkpoint, back=True)
    return owned


def verify_own(jobdir: JobDirectory, checkpoint: CheckpointId) -> Manifest:
    """Read every byte of a checkpoint that a job is to go back to; return its manifest. Raises as `rollback` does."""
    catalog = check_own(jobdir, checkpoint)
    newest = max(catalog.live)
    if checkpoint != newest:
        what = f"job '{jobdir.job}' does not go back to checkpoint {checkpoint}"
        _read(jobdir, catalog.live[checkpoint], what, f"checkpoint {newest}")
    return catalog.live[checkpoint]


def check_own(jobdir: JobDirectory, checkpoint: CheckpointId) -> Catalog:
    """Raise NotFoundError if a job has no such checkpoint that can be restored; return what it has."""
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
