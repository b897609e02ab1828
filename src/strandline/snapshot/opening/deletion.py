"""Deletes savepoints: at a user's request, or once the job that claimed one does not need it any more.

Only a savepoint can be deleted or claimed: it shares no files. A checkpoint shares files with others of its job. The
job's driver deletes files that it does not need, and a driver that restarts may need all others.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping

from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import choose
from strandline.core.errors import (
    ConfigurationError,
    ConflictError,
    CorruptionError,
    FencedError,
    NotFoundError,
    StrandlineError,
)
from strandline.core.failpoints import hit
from strandline.snapshot.opening.owner import CLAIM, check_owner
from strandline.snapshot.opening.snapshot import (
    METADATA,
    Snapshot,
    decode_hashed,
    find_snapshot,
    open_folder,
    plain_url,
)

DELETING = "_deleting"
"""Copy of the manifest of a savepoint whose deletion has begun, and whose files still have to be deleted."""

log = logging.getLogger(__name__)


def delete_snapshot(url: str, options: Mapping[str, str] | None = None) -> Snapshot:
    """Delete a savepoint, and return it. A job that has restored it must have a checkpoint of its own by now.

    Other files in its folder stay. After a crash, the rest is no savepoint, and another call deletes it. Raises
    ConfigurationError for a checkpoint, which its job deletes.
    """
    snapshot = find_deletable(url, options)
    delete_files(snapshot)
    return snapshot


def find_deletable(url: str, options: Mapping[str, str] | None = None) -> Snapshot:
    """Return a savepoint, whole or half deleted. Raises as `delete_snapshot` does."""
    snapshot = find_half_deleted(url, options) or find_snapshot(url, options)
    if snapshot.kind == "checkpoint":
        raise ConfigurationError(
            f"{snapshot.url}: this is a checkpoint of job '{snapshot.manifest.job}', and not deleted by hand: later "
            "ones may share its files, and a restart may need it",
            hint="its job deletes it by `Checkpoints(retain=…)`; `strandline snapshots gc` deletes what none needs",
        )
    return snapshot


def find_half_deleted(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Snapshot | None:
    """Return the savepoint whose deletion was interrupted here; None if there is none, or a new savepoint."""
    here = open_folder(url, options, fsync=fsync)
    try:
        here.head(METADATA)
    except NotFoundError:
        try:
            manifest, sha256 = here.read(DELETING, decode_hashed)
        except NotFoundError:
            return None
        return Snapshot(manifest, here, here.url, plain_url(url), "savepoint", sha256)
    return None


def delete_files(savepoint: Snapshot) -> None:
    """Delete a savepoint: its manifest before its files, so that a part of it never looks like a whole one.

    1. Copy the manifest, which lets a later call continue an interrupted deletion.
    2. Delete the manifest, which makes the folder a savepoint.
    3. Delete the files and the claim.
    4. Delete the copy.
    """
    folder = savepoint.folder
    try:
        data = folder.get(METADATA)
    except NotFoundError:
        data = None
    if data is not None:
        if hashlib.sha256(data).hexdigest() != savepoint.sha256:
            raise CorruptionError(f"{savepoint.url}/{METADATA}: is not the manifest that was opened", hint="look again")
        folder.put(DELETING, data)
        hit("savepoint.delete.begun")
        folder.delete([METADATA])
        hit("savepoint.delete.manifest_deleted")
    folder.delete([*sorted(f.path for f in savepoint.manifest.stored()), CLAIM])
    hit("savepoint.delete.files_deleted")
    folder.delete([DELETING])


def release(
    jobdir: JobDirectory, owned: Claim, options: Mapping[str, str] | None = None, *, fsync: bool = True
) -> bool:
    """Delete the savepoint that the job has claimed, if the job has a later checkpoint of its own.

    Call it after each checkpoint and restart until it returns True, when nothing is left to do. It logs errors of the
    storage. Raises FencedError if the job and the savepoint belong to another driver.
    """
    restored = owned.restored
    if restored is None or not restored.claimed:
        return True
    try:
        choice = choose(jobdir)
        if choice.manifest is None:
            return False
        # An earlier driver may have been killed in the middle of the deletion.
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
    log.info(
        "the claimed savepoint %s is deleted: checkpoint %d needs none of it", restored.url, choice.manifest.checkpoint
    )
    return True
