"""Publication of a manifest: one conditional create, whose answer may be lost or conflict with another driver."""

from __future__ import annotations

from strandline.checkpoint.catalog import read_catalog
from strandline.checkpoint.folder import Folder
from strandline.checkpoint.generation import Claim
from strandline.checkpoint.jobdir import JobDirectory, manifest_path
from strandline.core.errors import CheckpointError, ConflictError, NotFoundError, StrandlineError
from strandline.format.manifest import MANIFEST, Manifest


class OutcomeUnknownError(CheckpointError):
    """It is unknown whether storage has written the manifest."""


class NumberTakenError(CheckpointError):
    """A manifest of a replaced driver has the checkpoint's number. Carries `next_id`."""


def publish(jobdir: JobDirectory, claim: Claim, manifest: Manifest) -> None:
    """Create a checkpoint's manifest, which makes it complete; creating the same again changes nothing.

    Raises FencedError, NumberTakenError, and OutcomeUnknownError when the manifest may exist or appear later.
    """
    if create_manifest(jobdir, manifest_path(manifest.checkpoint), MANIFEST.encode(manifest)):
        return
    claim.check()
    raise NumberTakenError(
        f"checkpoint {manifest.checkpoint}: a driver that was replaced has published under this number",
        next_id=read_catalog(jobdir).next_id,
    )


def create_manifest(folder: Folder, path: str, data: bytes) -> bool:
    """Create a manifest, unless it is there already; False if there is another one.

    Raises OutcomeUnknownError when the manifest may be there or appear later.
    """
    try:
        try:
            folder.create(path, data)
        except ConflictError:
            # With these bytes, the answer to an earlier try was lost.
            return folder.get(path) == data
    except NotFoundError:
        return False
    except StrandlineError as error:
        # Any error may be of a retry in the client whose first try has written the object.
        raise OutcomeUnknownError(
            f"{folder.url}/{path}: could not be written: {error.message}",
            hint=error.hint or "`strandline snapshots list` shows whether it is there",
        ) from error
    return True
