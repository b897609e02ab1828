"""The owner of a savepoint: the one job that has claimed it, which `_claim` in its folder names.

One conditional create writes it, before the job records that it restores the savepoint. A job that is killed in between
claims the savepoint again, or leaves a stale claim.
"""

from __future__ import annotations

import msgspec

from strandline.checkpoint.folder import Folder, delete_quietly
from strandline.checkpoint.jobdir import JobDirectory
from strandline.core.errors import ConflictError, NotFoundError
from strandline.core.failpoints import hit
from strandline.format.frame import RecordFormat
from strandline.snapshot.opening.snapshot import METADATA

CLAIM = "_claim"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The job that has claimed a savepoint, with its folder, since another job may have the same name."""

    job: str
    url: str


_OWNER = RecordFormat(b"SLOWNER1", 1, Owner, "the savepoint's claim")


def check_owner(savepoint: Folder, jobdir: JobDirectory) -> bool:
    """Raise ConflictError if another job owns a savepoint; return whether this one owns it."""
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
    """Claim a savepoint if `claimed`, before the job records that it restores the savepoint.

    Raises ConflictError if another job owns it, and NotFoundError if it was deleted meanwhile.
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
        # Its owner deleted it after this job opened it.
        if claimed:
            delete_quietly(savepoint, [CLAIM])
        raise


def _owner_of(jobdir: JobDirectory) -> Owner:
    return Owner(job=jobdir.job, url=jobdir.url)
