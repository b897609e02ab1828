"""Deletes savepoints: by hand, or once the job that has claimed one needs none of it any more.

Only a savepoint can be deleted or claimed: its files are no one else's. A checkpoint shares files with others of its
job, whose driver deletes what it does not need any more, and another one of which may come back at any time and need
the rest.
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
"""Has the manifest of a savepoint whose deletion has begun: its files are still to be deleted."""

log = logging.getLogger(__name__)


def delete_snapshot(url: str, options: Mapping[str, str] | None = None) -> Snapshot:
    """Delete a savepoint, and return what it was. A job that has restored it must stand on its own by now.

    Whatever else lies in its folder stays. What a crash leaves is no savepoint any more; deleted again, it goes. Raises
    ConfigurationError for a checkpoint: its job deletes it.
    """
    snapshot = find_deletable(url, options)
    delete_files(snapshot)
    return snapshot


def find_deletable(url: str, options: Mapping[str, str] | None = None) -> Snapshot:
    """Return the savepoint that is there, or whose deletion was broken off. Raises as `delete_snapshot` does."""
    snapshot = find_half_deleted(url, options) or find_snapshot(url, options)
    if snapshot.kind == "checkpoint":
        raise ConfigurationError(
            f"{snapshot.url}: this is a checkpoint of job '{snapshot.manifest.job}', and not deleted by hand: later "
            "ones may share its files, and a restart may need it",
            hint="its job deletes it by `Checkpoints(retain=…)`; `strandline snapshots gc` deletes what none needs",
        )
    return snapshot


def find_half_deleted(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> Snapshot | None:
    """Return the savepoint whose deletion was broken off here; None if there is none, or it is there again."""
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
    """Delete a savepoint: its manifest before the files that it names, so that what stays is never taken for whole.

    1. A copy of the manifest says what is to be deleted, whoever ends it.
    2. The manifest, which makes it a savepoint.
    3. The files, and who has claimed it.
    4. The copy.
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
    log.info(
        "the claimed savepoint %s is deleted: checkpoint %d needs none of it", restored.url, choice.manifest.checkpoint
    )
    return True
