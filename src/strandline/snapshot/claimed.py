"""Taking over a savepoint: it is the job's own from the restore on, and goes once the job stands on its own.

Only a savepoint can be claimed: its files are no one else's. A checkpoint shares files with others of its job, whose
driver deletes what it does not need any more, and another one of which may come back at any time and need the rest.

A savepoint has one owner, which `_claim` in its folder names: it is written by one conditional create, before the job
records that it restores the savepoint. A job that is killed in between claims it again, or leaves a claim behind.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from strandline.checkpoint.folder import Folder, delete_quietly
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import choose
from strandline.core.errors import ConflictError, CorruptionError, FencedError, NotFoundError, StrandlineError
from strandline.core.failpoints import hit
from strandline.format.frame import RecordFormat
from strandline.snapshot.listing import delete_files, find_half_deleted
from strandline.snapshot.opened import METADATA, find_snapshot
from strandline.snapshot.savepoint import CLAIM

log = logging.getLogger(__name__)


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The job that has claimed a savepoint, and its folder: another job may have the same name."""

    job: str
    url: str


_OWNER = RecordFormat(b"SLOWNER1", 1, Owner, "the savepoint's claim")


def check_owner(savepoint: Folder, jobdir: JobDirectory) -> bool:
    """Raise ConflictError if a savepoint is another job's; return whether it is this one's."""
    try:
        owner = savepoint.read(CLAIM, _OWNER.decode)
    except NotFoundError:
        return False
    if owner != _owner_of(jobdir):
        raise ConflictError(
            f"{savepoint.url}: job '{owner.job}' in {owner.url} has claimed this savepoint, and deletes it once that "
            f"job has a checkpoint of its own; job '{jobdir.job}' cannot restore it",
            hint="restore a copy (`strandline snapshots copy`); if that job is gone for good, or was moved, delete "
            f"{savepoint.url}/{CLAIM}",
        )
    return True


def settle_owner(savepoint: Folder, jobdir: JobDirectory, *, claimed: bool) -> None:
    """Before a job records that it restores a savepoint: make it the job's own if it is claimed.

    Raises ConflictError if it is another job's, and NotFoundError if it was deleted meanwhile.
    """
    if claimed:
        try:
            savepoint.create_own(CLAIM, _OWNER.encode(_owner_of(jobdir)))
        except ConflictError:
            if not check_owner(savepoint, jobdir):
                raise
        hit("savepoint.claimed")
    else:
        check_owner(savepoint, jobdir)
    try:
        savepoint.head(METADATA)
    except NotFoundError:
        # Its owner may have deleted it since it was opened.
        if claimed:
            delete_quietly(savepoint, [CLAIM])
        raise


def _owner_of(jobdir: JobDirectory) -> Owner:
    return Owner(job=jobdir.job, url=jobdir.url)


def release(
    jobdir: JobDirectory, owned: Claim, options: Mapping[str, str] | None = None, *, fsync: bool = True
) -> bool:
    """Delete the savepoint that the job has claimed, if the job has a checkpoint of its own since.

    To be called after a checkpoint, and after a restart, until it returns True: nothing remains to be done. What
    storage refuses is logged. Raises FencedError: then the job, and the savepoint, are another driver's.
    """
    restored = owned.restored
    if restored is None or not restored.claimed:
        return True
    try:
        choice = choose(jobdir)
        if choice.manifest is None:
            return False
        # A driver before this one may have been killed while it deleted it.
        half = find_half_deleted(restored.url, options, fsync=fsync)
        snapshot = half or find_snapshot(restored.url, options, fsync=fsync)
        if snapshot.kind != "savepoint" or snapshot.sha256 != restored.sha256:
            log.warning("%s: this is not the savepoint that job '%s' claimed: it stays", restored.url, jobdir.job)
            return True
        check_owner(snapshot.folder, jobdir)
        owned.check()
        delete_files(snapshot)
    except FencedError:
        raise
    except ConflictError as error:
        log.warning("the claimed savepoint stays: %s", error.message)
        return True
    except NotFoundError:
        return True
    except CorruptionError as error:
        log.warning("the claimed savepoint stays, delete it by hand: %s", error.message)
        return True
    except StrandlineError as error:
        log.warning("the claimed savepoint is still there: %s", error.message)
        return False
    log.warning(
        "the claimed savepoint %s is deleted: checkpoint %d needs none of it", restored.url, choice.manifest.checkpoint
    )
    return True
