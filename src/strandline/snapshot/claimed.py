"""Taking over a savepoint: it is the job's own from the restore on, and goes once the job stands on its own.

Only a savepoint can be claimed: its files are no one else's. A checkpoint shares files with others of its job, whose
driver deletes what it does not need any more, and another one of which may come back at any time and need the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory
from strandline.checkpoint.restore import choose
from strandline.core.errors import ConflictError, CorruptionError, FencedError, NotFoundError, StrandlineError
from strandline.snapshot.listing import delete_files, find_half_deleted
from strandline.snapshot.opened import find_snapshot
from strandline.snapshot.owner import check_owner

log = logging.getLogger(__name__)


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
